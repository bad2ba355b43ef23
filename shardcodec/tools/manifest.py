# manifest.py - which shards were verified, and in which state
# SPDX-License-Identifier: MIT
"""`Manifest`: an SQLite file with a row for each verified shard, so that a later run verifies only shards that have changed.

Rows are on disk, not in memory, so an array may have any number of shards.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import quote

from ..storage.whole_file import NewWholeFile, remove_part
from .documents import DOCUMENTS

__all__ = ["Manifest", "ManifestRow", "OldManifest"]

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
    """

    array: str
    shard: str
    state: str | None
    nbytes: int
    level: str
    n_findings: int


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
    """

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
            self._rows = sqlite3.connect(self._file.name)
        except BaseException:
            self._file.abort()
            raise
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
        except BaseException:
            self._abort()
            raise

    def add(self, row: ManifestRow) -> None:
        """Add a shard."""
        with self._full_disk():
            self._rows.execute("INSERT OR REPLACE INTO shards VALUES (?, ?, ?, ?, ?, ?)", row)
            self._n += 1
            if self._n % _COMMIT_ROWS == 0:
                self._rows.commit()

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
            self._rows.close()
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
                with self._full_disk():
                    self._rows.commit()
                    self._rows.close()
                _check_replaceable(self._path)  # another process may have made a file of this name
                self._file.commit()
        finally:
            self._abort()


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
        OldManifest(path).close()
    except ValueError as error:
        raise ValueError(f"manifest: expected a new file or an old manifest to replace: {error}") from error


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
        self._rows.execute(
            "CREATE TABLE seen (array TEXT, shard TEXT, PRIMARY KEY (array, shard)) WITHOUT ROWID"
        )

    def find(self, array: str, shard: str) -> ManifestRow | None:
        """Return the row of a shard that exists; None if the earlier run did not verify it."""
        self._rows.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (array, shard))
        row = self._rows.execute(
            "SELECT * FROM old.shards WHERE array = ? AND shard = ?", (array, shard)
        ).fetchone()
        return None if row is None else ManifestRow(*row)

    def missing(self, array: str) -> Iterator[str]:
        """Yield the shards of an array that the earlier run verified, and that `find` did not get in this run."""
        query = "SELECT shard FROM old.shards WHERE array = ? EXCEPT SELECT shard FROM seen WHERE array = ?"
        for (shard,) in self._rows.execute(query, (array, array)):
            yield shard

    def has_any_of(self, arrays: Iterable[str]) -> bool:
        """Return True if one of these arrays has a row."""
        query = "SELECT 1 FROM old.shards WHERE array = ? LIMIT 1"
        return any(self._rows.execute(query, (array,)).fetchone() for array in arrays)

    def of_other_arrays(self, arrays: Container[str]) -> Iterator[tuple[str, str]]:
        """Yield array and shard of the rows of all other arrays, in order."""
        for array, shard in self._rows.execute("SELECT array, shard FROM old.shards ORDER BY array, shard"):
            if array not in arrays:
                yield array, shard

    def close(self) -> None:
        """Close the file."""
        self._rows.close()
