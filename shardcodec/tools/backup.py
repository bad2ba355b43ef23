# backup.py - copy an object byte by byte before it is changed
# SPDX-License-Identifier: MIT
"""`copy_object` and `back_up`: durable copies of objects, in runs of a few MiB."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from .. import native
from ..storage.files import open_file
from ..storage.journals import pending_journal
from ..storage.store import Store
from ..storage.temp_folder import staging_for
from ..storage.upload import Upload
from .array_target import ShardTarget
from .stored_bytes import BLOCK_NBYTES, StoredBytes, open_object

__all__ = ["back_up", "copy_object", "write_object"]


# Bytes of a copy that a thread holds at a time. They are not part of its share of the memory, so they are few.
COPY_NBYTES = 1 << 20


def copy_object(
    view: StoredBytes, store: Store, key: str, *, block_nbytes: int = COPY_NBYTES, sync: bool = False
) -> None:
    """Copy an object to a new one in any store, some bytes at a time.

    Raises
    ------
    FileExistsError
        There is a file already.
    """
    write_object(_blocks(view, block_nbytes), view.nbytes, store, key, sync=sync)


def write_object(blocks: Iterator[Any], nbytes: int, store: Store, key: str, *, sync: bool = False) -> None:
    """Write a new object, block by block; of a file, none may exist."""
    path = store.path(key)
    sink: Any = (
        Upload(store, key, nbytes) if path is None else native.load().NewFile(path, staging=staging_for(path))
    )
    try:
        offset = 0
        for block in blocks:
            sink.write(block, offset)
            offset += memoryview(block).nbytes
        if path is None:
            sink.commit()
        elif not sink.commit(sync=sync, only_new=True):
            raise FileExistsError(f"{path}: expected no file of this name; choose an empty folder")
    finally:
        sink.abort()


def _blocks(view: StoredBytes, nbytes: int) -> Iterator[Any]:
    for offset in range(0, view.nbytes, nbytes):
        yield view.range(offset, min(nbytes, view.nbytes - offset))


def back_up(shard: ShardTarget, folder: str) -> str:
    """Copy the object of a shard, and its journal, to a folder, durably.

    Parameters
    ----------
    shard : ShardTarget
    folder : str
        A local folder; it is made if it does not exist.

    Returns
    -------
    str
        Path of the copy: the key of the shard in the folder. A journal is beside it, with the suffix ``.journal``.

    Raises
    ------
    FileExistsError
        The folder has a copy of this shard already.
    OSError
        The copy cannot be written, or is not equal to the object.
    """
    array = shard.array
    to = os.path.join(folder, *filter(None, (array.name, shard.relative)))
    path = array.store.path(shard.key)
    if path is None:
        view = open_object(array.store, shard.key)
        assert view is not None
        try:
            _write_file(_blocks(view, BLOCK_NBYTES), to)  # one thread, see `MemoryBudget.share`
            if os.path.getsize(to) != view.nbytes:
                raise OSError(f"{to}: expected a copy of {view.nbytes} bytes, got {os.path.getsize(to)}")
        finally:
            view.close()
        return to
    journal = pending_journal(path)
    # the bytes of the file itself: an engine's reader would show the state before an unfinished update
    _write_file(_file_blocks(path), to)
    if journal is not None:
        _write_file(_file_blocks(journal), f"{to}.journal")
    return to


def _write_file(blocks: Iterator[Any], path: str) -> None:
    if os.path.lexists(path):
        raise FileExistsError(f"{path}: expected no file of this name; choose an empty folder for the backup")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    checksum, crc32c = 0, native.load().crc32c
    sink = native.load().NewFile(path)
    try:
        offset = 0
        for block in blocks:
            sink.write(block, offset)
            offset += len(block)
            checksum = crc32c(block, checksum)
        if not sink.commit(sync=True, only_new=True):
            raise FileExistsError(f"{path}: expected no file of this name")
    finally:
        sink.abort()
    found = 0
    for block in _file_blocks(path):
        found = crc32c(block, found)
    if found != checksum:
        raise OSError(f"{path}: the copy differs from the object; nothing was changed")


def _file_blocks(path: str) -> Iterator[memoryview]:
    """Yield the bytes of a file; each block is valid until the next one is asked for."""
    opened = open_file(path)
    if opened is None:
        raise FileNotFoundError(path)
    buffer = memoryview(bytearray(COPY_NBYTES))
    with opened as file:
        while n := file.readinto(buffer):
            yield buffer[:n]
