# old_manifest.py - the manifest of an earlier run of `verify`
# SPDX-License-Identifier: MIT
"""`old_manifest`: open the manifest of an earlier run, an SQLite file or a text with checksums."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Container, Iterable, Iterator
from urllib.parse import quote

from ..documents import DOCUMENTS
from .manifest_rows import FORMAT, SUMS_SUFFIX, VERSION, ManifestRow, key_of, parsed_line, path_of_shard

__all__ = ["OldManifest", "OldSums", "old_manifest"]


def old_manifest(path: str) -> OldManifest:
    """Open a manifest of either kind; see `OldManifest`."""
    return (OldSums if path.endswith(SUMS_SUFFIX) else OldManifest)(path)


class OldManifest:
    """A manifest of an earlier run. It also remembers the shards of this run.

    Parameters
    ----------
    path : str
        The file.

    Raises
    ------
    FileNotFoundError
        The file does not exist.
    ValueError
        The file is not a manifest of this version.
    """

    # True if objects without a hash are new: the earlier run did not have them, or they had findings.
    has_all_hashes = False

    def __init__(self, path: str) -> None:
        with open(path, "rb"):
            pass
        self._rows = sqlite3.connect("", uri=True)  # a temporary database, on disk if it is large
        try:
            self._rows.execute("ATTACH ? AS old", (f"file:{quote(os.path.abspath(path))}?mode=ro",))
            about = self._rows.execute("SELECT format, version FROM old.about").fetchone()
        except sqlite3.DatabaseError as error:
            self._rows.close()
            raise ValueError(f"{path}: expected a manifest of shardcodec verify: {error}") from error
        if about != (FORMAT, VERSION):
            self._rows.close()
            raise ValueError(f"{path}: expected a manifest of version {VERSION}, got {about}")
        tables = "SELECT 1 FROM old.sqlite_master WHERE name = 'objects'"
        if self._rows.execute(tables).fetchone():
            self._begin("AS SELECT name, sha256 FROM old.objects")
        else:  # of an earlier version
            self._begin("(name BLOB, sha256 TEXT)")

    def _begin(self, objects: str) -> None:
        """Make the tables of this run; `objects` defines the table of objects and their hashes in SQL."""
        self._rows.execute(
            "CREATE TABLE seen (array TEXT, shard TEXT, PRIMARY KEY (array, shard)) WITHOUT ROWID"
        )
        self._rows.execute(f"CREATE TABLE objects {objects}")
        self._rows.execute("CREATE UNIQUE INDEX names ON objects (name)")
        self._rows.execute("CREATE TABLE seen_objects (name BLOB PRIMARY KEY) WITHOUT ROWID")

    def sha256(self, name: str) -> str | None:
        """Return the hash that an object had, by its path below the root; None if it is not known."""
        key = (os.fsencode(name),)  # names need not be UTF-8
        self._rows.execute("INSERT OR IGNORE INTO seen_objects VALUES (?)", key)
        row = self._rows.execute("SELECT sha256 FROM objects WHERE name = ?", key).fetchone()
        return None if row is None else str(row[0])

    def missing_objects(self, folder: str = "") -> Iterator[str]:
        """Yield the objects below a folder of which `sha256` was not asked in this run."""
        query = "SELECT name FROM objects EXCEPT SELECT name FROM seen_objects ORDER BY name"
        for (key,) in self._rows.execute(query):
            name = os.fsdecode(key)
            if name.startswith(folder):
                yield name

    def find(self, array: str, shard: str) -> ManifestRow | None:
        """Return the row of a shard that exists; None if the earlier run did not verify it."""
        key = (key_of(array), key_of(shard))
        self._rows.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", key)
        row = self._rows.execute("SELECT * FROM old.shards WHERE array = ? AND shard = ?", key).fetchone()
        return None if row is None else ManifestRow(array, shard, *row[2:])

    def missing(self, array: str) -> Iterator[str]:
        """Yield the shards of an array that the earlier run verified, and that `find` did not get in this run."""
        query = "SELECT shard FROM old.shards WHERE array = ? EXCEPT SELECT shard FROM seen WHERE array = ?"
        for (shard,) in self._rows.execute(query, (key_of(array), key_of(array))):
            yield os.fsdecode(shard)

    def has_any_of(self, arrays: Iterable[str]) -> bool:
        """Return True if one of these arrays has a row."""
        query = "SELECT 1 FROM old.shards WHERE array = ? LIMIT 1"
        return any(self._rows.execute(query, (key_of(array),)).fetchone() for array in arrays)

    def of_other_arrays(self, arrays: Container[str]) -> Iterator[tuple[str, str]]:
        """Yield array and shard of the rows of all other arrays, in order."""
        for array, shard in self._rows.execute("SELECT array, shard FROM old.shards ORDER BY array, shard"):
            if os.fsdecode(array) not in arrays:
                yield os.fsdecode(array), os.fsdecode(shard)

    def close(self) -> None:
        """Close the file."""
        self._rows.close()


class OldSums(OldManifest):
    """The lines of ``sha256sum``. They say nothing about states and levels, so no shard is skipped: hashes are compared."""

    has_all_hashes = True

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows = sqlite3.connect("")
        try:
            self._begin("(name BLOB, sha256 TEXT)")
            with open(path, "rb") as lines:
                self._rows.executemany("INSERT OR REPLACE INTO objects VALUES (?, ?)", _sums(path, lines))
        except BaseException:
            self._rows.close()
            raise

    def find(self, array: str, shard: str) -> ManifestRow | None:
        """Return None: no row shows that a shard is whole. It is seen also if it is not in the sample."""
        self.sha256(path_of_shard(array, shard))
        return None

    def missing_objects(self, folder: str = "") -> Iterator[str]:
        """Yield as `OldManifest` does; raise `ValueError` if no object of this run is in the text: it is of another target."""
        documents = [os.fsencode(name) for name in sorted(DOCUMENTS)]  # the root of every target has them
        others = f"WHERE name NOT IN ({', '.join('?' * len(documents))}) LIMIT 1"
        lines = self._rows.execute(f"SELECT 1 FROM objects {others}", documents).fetchone()
        both = f"SELECT 1 FROM objects JOIN seen_objects USING (name) {others}"
        if lines and not self._rows.execute(both, documents).fetchone():
            raise ValueError(
                f"{self._path}: expected a manifest of the same target, but it has none of its objects; paths are those below the "
                "folder in which `sha256sum` would run"
            )
        yield from super().missing_objects(folder)

    def missing(self, array: str) -> Iterator[str]:
        """Yield nothing; see `missing_objects`."""
        return iter(())

    def has_any_of(self, arrays: Iterable[str]) -> bool:
        """Return False: there are no rows of arrays."""
        return False

    def of_other_arrays(self, arrays: Container[str]) -> Iterator[tuple[str, str]]:
        """Yield nothing; see `missing_objects`."""
        return iter(())


def _sums(path: str, lines: Iterable[bytes]) -> Iterator[tuple[bytes, str]]:
    for number, line in enumerate(lines, 1):
        parsed = parsed_line(line.rstrip(b"\n"))
        if parsed is None:
            raise ValueError(
                f"{path}, line {number}: expected a manifest of shardcodec verify, or a line of sha256sum, got {line[:80]!r}"
            )
        name, sha256 = parsed
        yield os.fsencode(name), sha256
