# buffered_chunks.py - buffered inner chunks of one shard, as `Shard` writes them
# SPDX-License-Identifier: MIT
"""The part of handles in `group_writes`.

`Shard.write_chunks` adds whole inner chunks to the buffer of this process. Before any other operation, a handle flushes the
buffered writes of its shard.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...options import Options
from ...storage import locks
from ...storage.waiting import in_thread
from ..opened_shard import ShardObject
from . import open_buffer
from .overlay import Overlay, OverlayMaker

if TYPE_CHECKING:
    from ..._native import Chain

__all__ = ["BufferedChunks", "buffer_chunks", "flush", "flush_named", "has_buffered", "is_any_buffered"]


class BufferedChunks:
    """Buffered writes of whole inner chunks, through handles on one shard.

    Parameters
    ----------
    target : ShardObject
        The shard.
    chain : Chain
        Compiled chain of the shard.
    dtype : dtype
        Data type of the elements in memory.
    write_empty : bool
        Store inner chunks that equal the fill value.
    """

    def __init__(self, target: ShardObject, chain: Chain, dtype: np.dtype[Any], *, write_empty: bool) -> None:
        self.kind: Hashable = (chain, write_empty)
        self._target = target
        self._overlay = Overlay(chain, dtype)
        self._write_empty = write_empty
        self._options: Options | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the inner chunks, in bytes."""
        return self._overlay.nbytes

    @property
    def is_complete(self) -> bool:
        """True if every inner chunk of the shard is buffered."""
        return self._overlay.is_complete

    def add(self, where: Sequence[int], chunks: np.ndarray[Any, Any], options: Options) -> None:
        """Buffer inner chunks, with the axes of the index; all chunks are stored with the options of the last call."""
        for position, chunk in zip(where, chunks, strict=True):
            self._overlay.write_chunk(position, chunk)
        self._options = options

    async def flush(self) -> None:
        """Store the inner chunks; the caller holds the object's lock in the table."""
        assert self._options is not None
        target = self._target
        maker = OverlayMaker(
            self._overlay,
            target.key,
            target.path,
            lambda: target.staging,
            self._options,
            write_empty=self._write_empty,
        )
        await in_thread(target.update, maker, self._options)


def buffer_chunks(
    target: ShardObject,
    chain: Chain,
    where: Sequence[int],
    chunks: np.ndarray[Any, Any],
    options: Options,
    *,
    write_empty: bool,
) -> bool:
    """Buffer inner chunks if a block is open; return False if the caller must store them at once.

    All inner chunks of a shard, and inner chunks with codecs without native code, are not buffered.

    Parameters
    ----------
    target : ShardObject
        The shard.
    chain : Chain
        Compiled chain of the shard, for the byte order of the chunks.
    where : sequence of int
        Positions of inner chunks, each once.
    chunks : ndarray, shape (n, *chunk shape)
        The inner chunks, with the axes of the index.
    options : Options
        Options of the write.
    write_empty : bool
        Store inner chunks that equal the fill value.
    """
    buffer = open_buffer.active()
    if buffer is None or not 0 < len(where) < chain.n_chunks or chain.stage is not None or not chain.shape:
        return False

    def added(writes: BufferedChunks | None) -> BufferedChunks:
        if writes is None:
            writes = BufferedChunks(target, chain, chunks.dtype, write_empty=write_empty)
        writes.add(where, chunks, options)
        return writes

    name = buffer.name_of(target)
    if target.is_link:
        # the write may remove the link, but the buffered write would have the name of its target
        buffer.flush_blocking(name)
        return False
    return buffer.add_blocking(name, (chain, write_empty), added)


def has_buffered(target: ShardObject) -> bool:
    """Return True if a shard has buffered writes."""
    buffer = open_buffer.active()
    return buffer is not None and buffer.has(buffer.name_of(target))


def is_any_buffered() -> bool:
    """Return True if any object has buffered writes."""
    buffer = open_buffer.active()
    return buffer is not None and not buffer.is_empty


def flush(target: ShardObject) -> None:
    """Store the buffered writes of a shard, unless the caller holds its lock to change it.

    Raises
    ------
    GroupWriteError
        The shard could not be stored; its buffered writes are kept.
    """
    buffer = open_buffer.active()
    if buffer is not None:
        flush_named([buffer.name_of(target)])


def flush_named(names: Sequence[str]) -> None:
    """Store buffered writes as `flush`, for objects by their names."""
    buffer = open_buffer.active()
    if buffer is None:
        return
    for name in names:
        if buffer.has(name) and not locks.table().holds(name):
            buffer.flush_blocking(name)
