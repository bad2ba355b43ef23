# backup.py - copy an object byte by byte before it is changed
# SPDX-License-Identifier: MIT
"""`copy_stored`: copies of objects, in blocks of a few MiB. `Backup`: the durable copy of a shard, before a repair in place.

A backup gets its name when it is whole and on disk, and is never written over. So a task that is repeated, or runs twice at
the same time, finds either no backup or a whole one.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from .. import native
from ..access.opened_shard import Entries, NestedShard, OpenedShard, Sums
from ..access.shard_object import open_object
from ..errors import ShardError, ShardFileError
from ..storage.files import open_file
from ..storage.kinds import object_at
from ..storage.new_object import put_object
from ..storage.store import Store
from ..storage.undo_journal import OldBytes, pending_journal, read_journal
from ..storage.whole_file import put_file
from .memory import BLOCK_NBYTES, MemoryBudget
from .names import node_path, object_name
from .targets import ShardTarget

__all__ = [
    "Backup",
    "UnreadableObject",
    "copy_stored",
    "holds_whole",
    "old_object",
    "same_bytes",
    "sync_folders",
]


# Bytes of a copy that a thread holds at a time. They are not part of its share of the memory, so they are few.
COPY_NBYTES = 1 << 20


class UnreadableObject(ShardFileError):
    """An object of the old hierarchy cannot be read, so the new one does not have it. is_data: False for a FIFO, a socket or a device."""


@contextmanager
def old_object() -> Iterator[None]:
    """Raise `UnreadableObject` if an object of the old hierarchy cannot be opened or read."""
    try:
        yield
    except (ShardError, OSError) as error:
        kind = error.context.get("kind", "") if isinstance(error, ShardFileError) else "link"
        is_data = kind == "folder" or kind.startswith("link")
        raise UnreadableObject(f"it cannot be read: {error}", is_data=is_data) from error


def copy_stored(
    store: Store,
    key: str,
    new_store: Store,
    new_key: str,
    budget: MemoryBudget,
    *,
    sync: bool,
    may_replace: bool = False,
    before_store: Callable[[], None] | None = None,
) -> int | None:
    """Copy an object as it is to any store, block by block.

    Parameters
    ----------
    store, key
        The object.
    new_store, new_key
        The new one.
    budget : MemoryBudget
        For a store that takes only whole objects.
    sync : bool
        A file and its name are on disk when this returns.
    may_replace : bool
        Another object of this name is replaced.
    before_store : callable, optional
        Called when all bytes were read, just before the new object appears; an error that it raises prevents this.

    Returns
    -------
    int or None
        Size in bytes; None if the object does not exist.

    Raises
    ------
    FileExistsError
        There is another file already.
    UnsupportedError
        The new object must be in memory as a whole, and does not fit.
    UnreadableObject
        The old object cannot be read.
    OSError
        The new object cannot be written.
    """
    with old_object():
        view = open_object(store, key)
    if view is None:
        return None
    try:
        if holds_whole(new_store, new_key):
            budget.check_whole(store.path(key) or key, view.nbytes)
        # a request costs a round trip
        blocks = _old_blocks(view, COPY_NBYTES if store.is_near else BLOCK_NBYTES)
        put_object(
            blocks,
            view.nbytes,
            new_store,
            new_key,
            sync=sync,
            may_replace=may_replace,
            before_store=before_store,
        )
        return view.nbytes
    finally:
        view.close()


def holds_whole(store: Store, key: str) -> bool:
    """Return True if a new object is in memory until it is stored: in a store that does not take parts."""
    return store.path(key) is None and not store.takes_parts


def same_bytes(one: OpenedShard, other: OpenedShard) -> bool:
    """Return True if two objects are byte-identical."""
    return one.nbytes == other.nbytes and all(
        a == b for a, b in zip(_blocks(one, COPY_NBYTES), _blocks(other, COPY_NBYTES), strict=True)
    )


def _old_blocks(view: OpenedShard, nbytes: int) -> Iterator[memoryview]:
    """Yield the bytes of an object of the old hierarchy; `UnreadableObject` if they cannot be read."""
    blocks = _blocks(view, nbytes)
    while True:
        with old_object():
            block = next(blocks, None)
        if block is None:
            return
        yield block


def _blocks(view: OpenedShard, nbytes: int) -> Iterator[memoryview]:
    for offset in range(0, view.nbytes, nbytes):
        yield memoryview(view.range(offset, min(nbytes, view.nbytes - offset)))


class Backup:
    """The copy of a shard in a folder, under the key of the shard; a journal is beside it, with the suffix ``.journal``.

    Parameters
    ----------
    shard : ShardTarget
    folder : str
        A local folder; it is made if it does not exist.

    Attributes
    ----------
    path : str
        Path of the copy.
    """

    def __init__(self, shard: ShardTarget, folder: str) -> None:
        self._shard, self._folder = shard, os.path.abspath(folder)
        name = object_name(shard.relative)
        self.path: str = os.path.join(folder, *filter(None, (node_path(shard.array.name), name)))
        self._journal = f"{self.path}.journal"

    @property
    def exists(self) -> bool:
        """True if there is a backup of this shard."""
        return os.path.lexists(self.path)

    @property
    def has_journal(self) -> bool:
        """True if the shard had an unfinished update in place."""
        return os.path.lexists(self._journal)

    def make(self) -> bool:
        """Copy the object of the shard, and before it its journal, durably; return False if there is a backup already.

        Raises
        ------
        FileExistsError
            There is no backup, but the journal of another state of the shard. Or the backup is the file of the shard itself.
        OSError
            The copy cannot be written, or is not equal to the object.
        """
        store, key = self._shard.array.store, self._shard.key
        path = store.path(key)
        if self.exists:
            self._check_other_file(path)
            return False
        if path is None:
            view = open_object(store, key)
            if view is None:
                raise FileNotFoundError(f"{self._shard.name}: it was deleted during the repair")
            try:
                made = self._write(
                    _blocks(view, BLOCK_NBYTES), self.path
                )  # one thread, see `MemoryBudget.share`
            finally:
                view.close()
            return made
        self._copy_journal(pending_journal(path))
        # the bytes of the file itself: an engine's reader would show the state before an unfinished update
        return self._write(_file_blocks(path), self.path)

    def is_equal(self) -> bool:
        """Return True if readers of the shard see the bytes that they saw when the backup was made."""
        now = open_object(self._shard.array.store, self._shard.key)
        if now is None:
            return False
        try:
            return self.holds(now)
        finally:
            now.close()

    def holds(self, now: OpenedShard) -> bool:
        """Return True if the bytes of an open object are those of the backup."""
        old = self.open()
        try:
            return same_bytes(old, now)
        finally:
            old.close()

    def open(self) -> OpenedShard:
        """Open the backup, as readers saw the shard: without the bytes of an unfinished update."""
        store, key, _ = object_at(self.path, None)
        view = open_object(store, key)
        if view is None:
            raise FileNotFoundError(f"{self.path}: expected the backup, but it was removed during the repair")
        saved = None
        if self.has_journal:
            with open(self._journal, "rb") as file:
                saved = read_journal(file.read(), view.nbytes)
        return view if saved is None else _RolledBack(view, saved)

    def sync(self) -> None:
        """Wait until the backup and its name are on disk; another worker may have written it just now."""
        for path in (self._journal, self.path):
            with suppress(FileNotFoundError):
                native.load().sync_path(path)
        folder = os.path.dirname(os.path.abspath(self.path))
        last = os.path.dirname(self._folder)
        while folder != last and os.path.dirname(folder) != folder:
            _sync_folder(folder)
            folder = os.path.dirname(folder)
        _sync_folder(last)

    def _check_other_file(self, shard: str | None) -> None:
        with suppress(FileNotFoundError):  # one of them was removed: its reader reports that
            if shard is not None and os.path.samefile(shard, self.path):
                raise FileExistsError(
                    f"{self.path}: expected a copy of the shard {self._shard.name}, but it is the same file; choose an empty folder "
                    "for the backup"
                )

    def _copy_journal(self, journal: str | None) -> None:
        if journal is not None:
            with suppress(FileNotFoundError):  # another worker has a backup by now, and rolls the update back
                if self._write(_file_blocks(journal), self._journal):
                    return
        if self.has_journal and not self.exists and not _same_files(journal, self._journal):
            raise FileExistsError(
                f"{self._journal}: expected no journal of another state of {self._shard.name}; choose an empty folder for the backup"
            )

    def _write(self, blocks: Iterator[memoryview], path: str) -> bool:
        """Write a new file that is read again before it gets its name; return False if there is one."""
        crc32c = native.load().crc32c
        checksum = nbytes = 0

        def noted() -> Iterator[memoryview]:
            nonlocal checksum, nbytes
            for block in blocks:
                checksum, nbytes = crc32c(block, checksum), nbytes + len(block)
                yield block

        def check(copy: str) -> None:
            found = 0
            for block in _file_blocks(copy):
                found = crc32c(block, found)
            if found != checksum or os.path.getsize(copy) != nbytes:
                raise OSError(f"{path}: the copy differs from the object; nothing was changed")

        if not put_file(path, noted(), sync=True, may_replace=False, check=check):
            return False
        self.sync()
        return True


class _RolledBack(NestedShard):
    """The bytes of a file before an unfinished update."""

    def __init__(self, view: OpenedShard, saved: OldBytes) -> None:
        super().__init__(None, view, (0, saved.nbytes))
        self._saved = saved

    def range(self, offset: int, nbytes: int) -> Any:
        data = bytearray(super().range(offset, nbytes))
        for first, old in self._saved.runs:
            low, high = max(first, offset), min(first + len(old), offset + nbytes)
            if low < high:
                data[low - offset : high - offset] = old[low - first : high - first]
        return memoryview(data)

    def checksums(self, ranges: Entries, max_nbytes: int) -> Sums | None:
        return None


def _same_files(one: str | None, other: str) -> bool:
    try:
        return one is not None and all(
            a == b for a, b in itertools.zip_longest(_file_blocks(one), _file_blocks(other))
        )
    except FileNotFoundError:
        return False


def sync_folders(path: str) -> None:
    """Wait until a new folder, and the names of all folders above it, are on disk."""
    folder = os.path.abspath(path)
    while folder:
        _sync_folder(folder)
        folder = "" if os.path.dirname(folder) == folder else os.path.dirname(folder)


def _sync_folder(path: str) -> None:
    with suppress(PermissionError):  # of a folder that this user could not have made either
        native.load().sync_path(path)


def _file_blocks(path: str) -> Iterator[memoryview]:
    """Yield the bytes of a file; each block is valid until the next one is asked for."""
    opened = open_file(path)
    if opened is None:
        raise FileNotFoundError(path)
    buffer = memoryview(bytearray(COPY_NBYTES))
    with opened as file:
        while n := file.readinto(buffer):
            yield buffer[:n]
