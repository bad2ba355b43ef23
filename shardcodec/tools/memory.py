# memory.py - how much memory a tool uses for indexes and data
# SPDX-License-Identifier: MIT
"""`MemoryBudget`: divides the memory that the caller permits among threads, and refuses shards that do not fit.

Shards are read in blocks and inner chunk by inner chunk, so their size does not matter. What must fit is the index of a shard
and one inner chunk, encoded and decoded; and whole shards where a store permits nothing else.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import SupportsIndex

from ..access.array_reader import ArrayReader
from ..errors import UnsupportedError
from ..format.spec import ShardSpec
from ..readable import format_nbytes

__all__ = ["UNLIMITED", "MemoryBudget", "MemoryShare"]

# All copies of an entry of an index, and what is noted about the inner chunk.
ENTRY_NBYTES = 600
# Bytes of an object in memory at a time.
BLOCK_NBYTES = 4 << 20
# Blocks are not smaller than this.
MIN_BLOCK_NBYTES = 64 << 10


@dataclass(frozen=True)
class MemoryShare:
    """The memory of one thread.

    Attributes
    ----------
    n_threads : int
        Threads that work at a time.
    block_nbytes : int
        Bytes of an object to read at a time, unless they are one inner chunk.
    free_nbytes : int or None
        Largest encoded inner chunk, or header and footer, in bytes; None without a bound.
    """

    n_threads: int
    block_nbytes: int = BLOCK_NBYTES
    free_nbytes: int | None = None

    def check_fits(self, shard: str, what: str, nbytes: int) -> None:
        """Raise `UnsupportedError` for an encoded inner chunk, a header or a footer that does not fit."""
        if self.free_nbytes is not None and nbytes > self.free_nbytes:
            raise UnsupportedError(
                f"shard {shard!r}: {what} has {format_nbytes(nbytes)}, more than the {format_nbytes(self.free_nbytes)} "
                "that `memory` leaves for it; permit more memory",
                shard=shard,
                nbytes=nbytes,
                limit=self.free_nbytes,
            )


UNLIMITED = MemoryShare(1)


class MemoryBudget:
    """The memory that the caller permits.

    Parameters
    ----------
    memory : int or None
        In bytes; None for no bound.

    Raises
    ------
    TypeError, ValueError
        It is not a positive whole number.
    """

    def __init__(self, memory: SupportsIndex | None) -> None:
        if memory is not None:
            try:
                memory = operator.index(memory)
            except TypeError:
                raise TypeError(f"memory: expected a number of bytes, got {memory!r}") from None
            if memory <= 0:
                raise ValueError(f"memory: expected a positive number of bytes, got {memory}")
        self.nbytes = memory

    def share(
        self, spec: ShardSpec, place: str, n_threads: int, *, more: int = 0, holds_whole: bool = False
    ) -> MemoryShare:
        """Return the memory of each thread that works on shards of one array.

        Parameters
        ----------
        spec : ShardSpec
        place : str
            Path of the array or of the shard, for the error.
        n_threads : int
            Threads that the caller wants; there are fewer if memory is short.
        more : int
            Bytes that each thread needs in addition.
        holds_whole : bool
            True if new shards are in memory as a whole; with a bound there is one thread then, see `check_whole`.

        Raises
        ------
        ValueError
            An index and one inner chunk do not fit.
        """
        if self.nbytes is None:
            return MemoryShare(n_threads)
        fixed = _fixed_nbytes(spec) + more
        least = fixed + MIN_BLOCK_NBYTES + _encoded_nbytes(spec)
        if self.nbytes < least:
            raise ValueError(
                f"memory: expected at least {format_nbytes(least)} for a shard of {place}, whose index has {spec.n_chunks} "
                f"entries and whose inner chunks have {format_nbytes(spec.inner.nbytes)}, got {format_nbytes(self.nbytes)}"
            )
        n_threads = 1 if holds_whole else min(n_threads, self.nbytes // least)
        free = self.nbytes // n_threads - fixed
        return MemoryShare(n_threads, min(BLOCK_NBYTES, free), free)

    def chunk_threads(self, place: str, reader: ArrayReader, n_threads: int) -> int:
        """Return how many threads can each decode an inner chunk for a box of its size; `reader` has one thread.

        Raises
        ------
        ValueError
            Not even one can.
        """
        least = 3 * math.prod(reader.chunks) * reader.dtype.itemsize
        if self.nbytes is not None and least > self.nbytes:
            raise ValueError(
                f"memory: expected at least {format_nbytes(least)} for inner chunks of {place}, got {format_nbytes(self.nbytes)}"
            )
        return n_threads if self.nbytes is None else min(n_threads, self.nbytes // max(1, least))

    def check_whole(self, shard: str, nbytes: int) -> None:
        """Raise `UnsupportedError` if a shard does not fit that must be in memory as a whole."""
        if self.nbytes is not None and nbytes > self.nbytes:
            raise UnsupportedError(
                f"shard {shard!r}: it has {format_nbytes(nbytes)}, and this store needs all of it in memory, but `memory` is "
                f"{format_nbytes(self.nbytes)}; permit more memory, or write to a local folder with `to`",
                shard=shard,
                nbytes=nbytes,
                limit=self.nbytes,
            )


def _fixed_nbytes(spec: ShardSpec) -> int:
    """Return the memory of an index and of a decoded inner chunk with its intermediate; of a nested shard, as for a shard."""
    entries = ENTRY_NBYTES * spec.n_chunks
    if spec.inner.sharding is None or spec.inner.bytes_codecs:
        return entries + 2 * spec.inner.nbytes
    return entries + _fixed_nbytes(ShardSpec.from_chain(spec.inner))


def _encoded_nbytes(spec: ShardSpec) -> int:
    """Return the size of an encoded inner chunk that the codecs do not make smaller; of a nested shard, of one in it."""
    if spec.inner.sharding is None or spec.inner.bytes_codecs:
        return spec.inner.nbytes + spec.inner.nbytes // 64 + 1024
    return _encoded_nbytes(ShardSpec.from_chain(spec.inner))
