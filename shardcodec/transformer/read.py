# read.py - read chunks of many shards with two calls to the store
# SPDX-License-Identifier: MIT
"""Read chunks of shards in stores that answer requests.

Each shard is read by its own coroutine with `consistent_read`. The coroutines run in step (`store_requests.in_step`), so the
first call to the store requests the indexes of all shards, and the second call all ranges; close ranges are joined. A
shard whose chunks are all requested is fetched whole with the first call. (`local_values` reads files and objects in
memory.)

If the store does not identify states of objects (entity tags), a writer may replace a shard between the two calls without
a trace. If a writer of this process held the lock of a shard meanwhile, all shards are read again under their locks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..access.opened_shard import NativeShard, cut_out, joined
from ..access.placement import ABSENT
from ..access.remote_index import (
    IndexLoader,
    WriterWatch,
    checked_data,
    checked_entries,
    confirm,
    consistent_read,
    minimum_nbytes,
)
from ..compat import Store
from ..errors import ShardError
from ..options import Options
from ..storage import locks
from ..storage.indexes import RemoteIndex
from ..storage.kinds import store_of
from .byte_ranges import cut
from .store_requests import Ask, BatchedRemote, in_step
from .values import ChunkRequest, read_and_close, with_keys

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["at_a_time", "read", "read_sizes"]

# Number of shards whose indexes are requested at a time while a store is listed, and memory for these indexes in bytes.
LIST_SHARDS = 512
LIST_NBYTES = 32 << 20

Entries = np.ndarray[Any, np.dtype[np.uint64]]


async def read(
    store: Store,
    chain: Chain,
    shards: Mapping[str, Sequence[ChunkRequest]],
    options: Options,
    ask: Ask,
    names: Sequence[str],
    *,
    whole: bool = False,
) -> dict[int, Any]:
    """Read chunks, or parts of them, from a store that answers requests.

    Parameters
    ----------
    store : Store
        The store with the shards.
    chain
        Compiled chain of a shard.
    shards : mapping
        From keys of shards to requests for their chunks.
    options : Options
        Options of the read.
    ask : callable
        Makes one call to the store.
    names : sequence of str
        Names of the objects in the lock table.
    whole : bool
        Fetch every shard whole. Nested shards need this, because nothing else keeps index and chunks in one state.

    Returns
    -------
    dict
        From `ChunkRequest.number` to buffers, without absent chunks.

    Raises
    ------
    ShardFormatError, ChecksumError
        An index, or the entry of a requested chunk, is wrong.
    """

    async def read_all() -> dict[int, Any]:
        remote = BatchedRemote()
        objects = store_of(store).index_names(list(shards))
        readers = [
            _ShardRead(IndexLoader(remote, shard, chain, options, name), remote, wanted).run(whole=whole)
            for (shard, wanted), name in zip(shards.items(), objects, strict=True)
        ]
        found: dict[int, Any] = {}
        for part in await in_step(readers, ask):
            found |= part
        return found

    if store_of(store).identifies_states:
        return await read_all()
    watch = WriterWatch(names)
    if watch.is_quiet:
        try:
            found = await read_all()
        except ShardError:
            if not watch.has_changed():
                raise
        else:
            if not watch.has_changed():
                return found
    async with locks.table().hold_async(names):
        return await read_all()


class _Span(NamedTuple):
    """Range of a shard that holds a requested chunk or a part of it."""

    number: int
    offset: int
    nbytes: int


class _ShardRead:
    """A read of some chunks of one shard.

    Parameters
    ----------
    loader : IndexLoader
    remote : BatchedRemote
    wanted : sequence of ChunkRequest
    """

    def __init__(self, loader: IndexLoader, remote: BatchedRemote, wanted: Sequence[ChunkRequest]) -> None:
        self._loader = loader
        self._remote = remote
        self._wanted = wanted
        self._positions = [part.position for part in wanted]

    async def run(self, *, whole: bool) -> dict[int, Any]:
        """Return buffers by `ChunkRequest.number`, without absent chunks."""
        loader = self._loader
        index = None if whole else loader.cached()
        try:
            if whole or (index is None and self._is_all()):
                found = await self._read_whole()
            else:
                found = await consistent_read(loader, index, self._read_ranges, self._read_whole)
        except ShardError as error:
            raise with_keys(error, loader.chain, loader.key, self._wanted) from None
        return found or {}

    def _is_all(self) -> bool:
        """Return True if all chunks are requested whole."""
        complete = {part.position for part in self._wanted if part.request is None}
        return len(complete) == int(self._loader.chain.n_chunks)

    async def _read_whole(self) -> dict[int, Any] | None:
        answer = await self._remote.get(self._loader.key)
        if answer is None:
            return None
        return read_and_close(
            NativeShard(self._loader.chain, answer.data, self._loader.options), self._wanted
        )

    async def _read_ranges(self, index: RemoteIndex) -> dict[int, Any]:
        loader = self._loader
        spans, end = self._spans(index)
        parts = [(span.offset, span.nbytes) for span in spans]
        asked = [part for part in parts if part[1]]
        if asked and (minimum := minimum_nbytes(loader, index, end)):
            asked.append((minimum - 1, 1))
        confirm(loader, index, asked)
        ranges = joined(asked)
        answers = await self._remote.get_ranges(loader.key, ranges, index.version)
        data = [
            checked_data(loader, index, lambda: np.array(self._positions), offset, nbytes, answer)
            for (offset, nbytes), answer in zip(ranges, answers, strict=True)
        ]
        found = cut_out(parts, ranges, [memoryview(part) for part in data])
        return {span.number: part for span, part in zip(spans, found, strict=True)}

    def _spans(self, index: RemoteIndex) -> tuple[list[_Span], int]:
        """Return the ranges of the requested chunks, without absent chunks, and the end of the last chunk."""
        loader = self._loader
        entries = checked_entries(loader.chain, index.entries, self._positions, index.nbytes, loader.options)
        spans, end = [], 0
        for part, (offset, size) in zip(self._wanted, entries.tolist(), strict=True):
            if offset != ABSENT:
                start, nbytes = cut(part.request, size)
                spans.append(_Span(part.number, offset + start, nbytes))
                end = max(end, offset + size)
        return spans, end


# ---- indexes alone


async def read_sizes(chain: Chain, shards: Sequence[str], options: Options, ask: Ask) -> Entries:
    """Read the sizes of chunks from the indexes of some shards with one call to the store.

    Returns
    -------
    ndarray of uint64, shape (n, n_chunks)
        Sizes of chunks in bytes; 2^64-1 for an absent chunk.

    Raises
    ------
    ShardFormatError, ChecksumError
        An index or one of its entries is wrong.
    """
    sizes = np.full((len(shards), chain.n_chunks), ABSENT, dtype=np.uint64)
    remote = BatchedRemote()
    readers = [
        IndexLoader(remote, shard, chain, options).load_sizes(out)
        for shard, out in zip(shards, sizes, strict=True)
    ]
    await in_step(readers, ask)
    return sizes


def at_a_time(chain: Chain) -> int:
    """Return the number of shards whose indexes are in memory at a time."""
    return max(1, min(LIST_SHARDS, LIST_NBYTES // (16 * int(chain.n_chunks))))
