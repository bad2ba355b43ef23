# manifest.py - the result of an earlier run of `verify`, in a file
# SPDX-License-Identifier: MIT
"""`Manifest`: an SQLite file with a row for each verified shard, so that a later run verifies only shards that have changed.

`SumsManifest`: a text with the SHA-256 of each object, which `sha256sum -c` takes in the folder of the target. Both appear when
they are whole. `old_manifest` opens either; rows are on disk, not in memory, so an array may have any number of shards.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self
from urllib.parse import quote

from ..storage.whole_file import NewWholeFile, remove_part
from .documents import DOCUMENTS

__all__ = [
    "SUMS_SUFFIX",
    "Manifest",
    "ManifestRow",
    "OldManifest",
    "OldSums",
    "SumsManifest",
    "new_manifest",
    "old_manifest",
    "path_of_shard",
]

# A manifest with this suffix is a text with checksums.
SUMS_SUFFIX = ".sha256"

# ---------------------------------------------------------------- the SQLite file

_FORMAT = "shardcodec manifest"
_VERSION = 1
# Rows of one transaction.
_COMMIT_ROWS = 1000


class ManifestRow(NamedTuple):
    """A verified shard.

    Attributes
    ----------
    array, shard : str
        Path of the array, and key of the shard in its folder.
    state : str or None
        Name of the state of the object, valid in all processes; None if the store does not name it.
    nbytes : int
        Size of the object in bytes.
    level : str
        How much was checked.
    n_findings : int
        Number of findings without warnings.
    sha256 : str or None
        Hash of the object; None if it was not asked for.
    """

    array: str
    shard: str
    state: str | None
    nbytes: int
    level: str
    n_findings: int
    sha256: str | None = None


def _key(name: str) -> str | bytes:
    """Return a name as a row has it: names need not be UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return os.fsencode(name)
    return name


def path_of_shard(array: str, shard: str) -> str:
    """Return the path of a shard below the root of the hierarchy."""
    return f"{array}/{shard}" if array else shard


class Manifest:
    """A new manifest, which appears under its name at the end of a with block.

    Parameters
    ----------
    path : str
        The new file; an old manifest is replaced.

    Raises
    ------
    FileNotFoundError
        Its folder does not exist.
    ValueError
        It is inside of a zarr hierarchy, or a file that is not a manifest has its name.

    Attributes
    ----------
    has_hashes : bool
        True if rows need the hashes of objects, False if they need their states.
    """

    has_hashes = False

    def __init__(self, path: str) -> None:
        _check_outside_of_hierarchies(path)
        _check_replaceable(path)
        self._path = os.path.abspath(path)
        folder = os.path.dirname(self._path)
        if not os.path.isdir(folder):
            raise FileNotFoundError(
                f"manifest {path}: expected a file in a folder that exists, but there is no {folder}"
            )
        remove_part(self._path)
        # SQLite writes to the temporary name, which the new file has from the start
        self._file = NewWholeFile(self._path)
        self._n = 0
        try:
            self._open(self._file.name)
        except BaseException:
            self._file.abort()
            raise

    def _open(self, name: str) -> None:
        """Begin the file under its temporary name."""
        self._rows = sqlite3.connect(name)
        try:
            with self._full_disk():
                # no journal beside it: a file that is not finished is removed
                self._rows.execute("PRAGMA journal_mode = OFF")
                self._rows.execute("PRAGMA synchronous = OFF")
                self._rows.execute("CREATE TABLE about (format TEXT, version INTEGER)")
                self._rows.execute("INSERT INTO about VALUES (?, ?)", (_FORMAT, _VERSION))
                self._rows.execute(
                    "CREATE TABLE shards (array TEXT, shard TEXT, state TEXT, nbytes INTEGER, level TEXT, n_findings INTEGER,"
                    " PRIMARY KEY (array, shard)) WITHOUT ROWID"
                )
                self._rows.execute("CREATE TABLE objects (name BLOB PRIMARY KEY, sha256 TEXT) WITHOUT ROWID")
        except BaseException:
            self._rows.close()
            raise

    def add(self, row: ManifestRow) -> None:
        """Add a shard, or a chunk of an array without shards."""
        values = (_key(row.array), _key(row.shard), *row[2:6])
        self._insert("INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?, ?)", values)

    def add_object(self, name: str, sha256: str, *, is_document: bool) -> None:
        """Add an object that belongs to no array, or a document of a node; `name` is its path below the root."""
        if not is_document:  # documents are parsed each time
            self._insert("INSERT OR REPLACE INTO objects VALUES (?, ?)", (os.fsencode(name), sha256))

    def _insert(self, statement: str, values: tuple[Any, ...]) -> None:
        with self._full_disk():
            self._rows.execute(statement, values)
            self._n += 1
            if self._n % _COMMIT_ROWS == 0:
                self._rows.commit()

    def _finish(self) -> None:
        """Write what is left, before the file gets its name."""
        with self._full_disk():
            self._rows.commit()
            self._rows.close()

    def _close(self) -> None:
        self._rows.close()

    @contextmanager
    def _full_disk(self) -> Iterator[None]:
        """Raise an error of SQLite, such as a full disk, as an `OSError` that names the file."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise OSError(
                f"manifest {self._path}: cannot write it: {error}; free some space, or choose another place"
            ) from error

    def _abort(self) -> None:
        try:
            self._close()
        finally:
            self._file.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the file its name; after an exception remove it."""
        try:
            if kind is None:
                self._finish()
                _check_replaceable(self._path)  # another process may have made a file of this name
                self._file.commit()
        finally:
            self._abort()


class SumsManifest(Manifest):
    """A new text with the lines of ``sha256sum``: of each object without findings, its hash and its path below the root."""

    has_hashes = True

    def _open(self, name: str) -> None:
        self._text = open(name, "wb")  # noqa: SIM115 - closed by `_close`

    def add(self, row: ManifestRow) -> None:
        if row.sha256 is not None and not row.n_findings:
            self.add_object(path_of_shard(row.array, row.shard), row.sha256, is_document=False)

    def add_object(self, name: str, sha256: str, *, is_document: bool) -> None:
        self._text.write(_line(name, sha256))

    def _finish(self) -> None:
        self._text.flush()

    def _close(self) -> None:
        self._text.close()


def _line(name: str, sha256: str) -> bytes:
    """Return the line of an object; a backslash before it says that the name is escaped, as GNU's programs do."""
    escaped = name
    for char, text in _ESCAPES.items():
        escaped = escaped.replace(char, text)
    sign = "\\" if escaped != name else ""
    return os.fsencode(f"{sign}{sha256}  {escaped}\n")


# The backslash is first: the others are escaped with it.
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_SUM = re.compile(rb"(\\?)([0-9a-fA-F]{64}) [ *]([^\n]+)")


def _parsed(line: bytes) -> tuple[str, str] | None:
    """Return name and hash of a line; None for another text."""
    match = _SUM.fullmatch(line)
    if match is None:
        return None
    name = os.fsdecode(match[3])
    if match[1]:
        originals = {text[1]: char for char, text in _ESCAPES.items()}
        name = re.sub(r"\\(.)", lambda escape: originals.get(escape[1], escape[0]), name)
    while name.startswith("./"):  # as `find . -type f` names files
        name = name[2:].lstrip("/")
    return name, match[2].decode().lower()


def new_manifest(path: str) -> Manifest:
    """Return a new manifest; the suffix of its name selects the kind."""
    return (SumsManifest if path.endswith(SUMS_SUFFIX) else Manifest)(path)


# ---- where a manifest may be


def _check_outside_of_hierarchies(path: str) -> None:
    """Refuse a file in the folder of an array or a group, or below it."""
    folder, name = os.path.split(os.path.abspath(path))
    # only a link itself is replaced, but users expect neither the link nor its file in a hierarchy
    for file in (os.path.join(os.path.realpath(folder), name), os.path.realpath(path)):
        above = os.path.dirname(file)
        while True:
            if any(os.path.lexists(os.path.join(above, document)) for document in DOCUMENTS):
                raise ValueError(
                    f"manifest: expected a file outside of the zarr hierarchy {above}, got {path}"
                )
            if above == os.path.dirname(above):
                break
            above = os.path.dirname(above)


def _check_replaceable(path: str) -> None:
    """Refuse the name of an object that is not a manifest; a new name is fine."""
    if not os.path.lexists(path):
        return
    if not os.path.isfile(path):
        raise ValueError(
            f"manifest: expected a new file or an old manifest, but {path} is not a regular file"
        )
    try:
        old_manifest(path).close()
    except ValueError as error:
        raise ValueError(f"manifest: expected a new file or an old manifest to replace: {error}") from error


# ---------------------------------------------------------------- the manifest of an earlier run


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
        if about != (_FORMAT, _VERSION):
            self._rows.close()
            raise ValueError(f"{path}: expected a manifest of version {_VERSION}, got {about}")
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
        key = (_key(array), _key(shard))
        self._rows.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", key)
        row = self._rows.execute("SELECT * FROM old.shards WHERE array = ? AND shard = ?", key).fetchone()
        return None if row is None else ManifestRow(array, shard, *row[2:])

    def missing(self, array: str) -> Iterator[str]:
        """Yield the shards of an array that the earlier run verified, and that `find` did not get in this run."""
        query = "SELECT shard FROM old.shards WHERE array = ? EXCEPT SELECT shard FROM seen WHERE array = ?"
        for (shard,) in self._rows.execute(query, (_key(array), _key(array))):
            yield os.fsdecode(shard)

    def has_any_of(self, arrays: Iterable[str]) -> bool:
        """Return True if one of these arrays has a row."""
        query = "SELECT 1 FROM old.shards WHERE array = ? LIMIT 1"
        return any(self._rows.execute(query, (_key(array),)).fetchone() for array in arrays)

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
        parsed = _parsed(line.rstrip(b"\n"))
        if parsed is None:
            raise ValueError(
                f"{path}, line {number}: expected a manifest of shardcodec verify, or a line of sha256sum, got {line[:80]!r}"
            )
        name, sha256 = parsed
        yield os.fsencode(name), sha256
