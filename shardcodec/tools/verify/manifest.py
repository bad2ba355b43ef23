# manifest.py - the result of a run of `verify`, written to a file
# SPDX-License-Identifier: MIT
"""`Manifest`: an SQLite file with a row for each verified shard, so that a later run verifies only shards that have changed.

`SumsManifest`: a text with the SHA-256 of each object, which `sha256sum -c` takes in the folder of the target. Both appear when
they are whole. `old_manifest.old_manifest` opens either; rows are on disk, not in memory, so an array may have any number of shards.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from ...storage.whole_file import NewWholeFile, remove_part
from ..documents import DOCUMENTS
from .manifest_rows import ESCAPES, FORMAT, SUMS_SUFFIX, VERSION, ManifestRow, key_of, path_of_shard
from .old_manifest import old_manifest

__all__ = ["Manifest", "SumsManifest", "new_manifest"]

# Rows of one transaction.
_COMMIT_ROWS = 1000


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
                self._rows.execute("INSERT INTO about VALUES (?, ?)", (FORMAT, VERSION))
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
        values = (key_of(row.array), key_of(row.shard), *row[2:6])
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
    for char, text in ESCAPES.items():
        escaped = escaped.replace(char, text)
    sign = "\\" if escaped != name else ""
    return os.fsencode(f"{sign}{sha256}  {escaped}\n")


def new_manifest(path: str) -> Manifest:
    """Return a new manifest; the suffix of its name selects the kind."""
    return (SumsManifest if path.endswith(SUMS_SUFFIX) else Manifest)(path)


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
