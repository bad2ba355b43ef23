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

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..access.consistent_read import (
    WriterWatch,
    checked_data,
    confirm,
    consistent_read,
    minimum_nbytes,
    with_proof,
)
from ..access.opened_shard import Entries, NativeShard, OpenedShard, read_opened
from ..access.placement import ABSENT
from ..access.read import with_key
from ..access.remote_index import IndexLoader, checked_entries
from ..compat import Store
from ..errors import ShardError
from ..options import Options
from ..storage import process_locks
from ..storage.indexes import RemoteIndex
from ..storage.kinds import store_of
from ..storage.ranges import coalesced, cut_out
from ..storage.retry import retry
from .keys import cut

if TYPE_CHECKING:
    from .._native import Chain
from .store_requests import Ask, BatchedRemote, in_step

__all__ = [
    "ChunkRequest",
    "at_a_time",
    "look_native",
    "read",
    "read_and_close",
    "read_native",
    "read_sizes",
    "sizes_native",
    "with_keys",
]


# Common parts of all read paths.


class ChunkRequest(NamedTuple):
    """A request for one chunk.

    number: that of the value in the result. position: that of the chunk in the index of its shard. request: bytes of the chunk
    to read, see `byte_ranges`; None for the whole chunk.
    """

    number: int
    key: str
    position: int
    request: Any


def with_keys(
    error: ShardError, chain: Chain, shard: str, requests: Sequence[ChunkRequest] = ()
) -> ShardError:
    """Return an error of the engine with the key of the shard, and with the key of the chunk if it is in `requests`.

    An error that concerns an outer shard, or that names its chunk already, is returned unchanged.
    """
    error = with_key(error, chain, shard)
    if error.shard != shard or hasattr(error, "chunk_key"):
        return error  # the error of a shard around this one, or complete
    key = next((request.key for request in requests if request.position == error.entry), None)
    if key is None:
        return error
    return type(error)(f"chunk {key!r}: {error.message}", **error.context | {"chunk_key": key})


def read_and_close(opened: OpenedShard, requests: Sequence[ChunkRequest]) -> dict[int, Any]:
    """Read the stored bytes of chunks, or ranges of them, and close the shard, also after an error.

    Returns encoded bytes by `ChunkRequest.number`; an absent chunk has no item. Without checksums of the chunks, a wrong entry
    of any chunk is an error, because the others are doubtful too; ``SHARDCODEC_ALLOW_IN_INDEX=1`` permits it.
    """
    data: dict[int, Any] = {}

    def work(opened: OpenedShard) -> dict[int, Any]:
        opened.check()
        for request in [] if opened.missing else requests:
            try:
                entry = opened.entry(request.position)
            except ShardError as error:
                error.entry = request.position
                raise
            if entry is not None:
                start, nbytes = cut(request.request, entry[1])
                data[request.number] = opened.range(entry[0] + start, nbytes) if nbytes else b""
        return data

    return read_opened(opened, work)


# Read shards that the engine opens itself. A shard stays open while it is read, so index and chunks are of one state.

# Functions from the key of a shard to the opened shard, and to the path of its file (None: in memory).
Open = Callable[[str], OpenedShard]
FileOf = Callable[[str], str | None]


def read_native(
    chain: Chain, shards: Mapping[str, Sequence[ChunkRequest]], open_shard: Open, file_of: FileOf
) -> dict[int, Any]:
    """Read chunks as `read.read`, from shards that the engine opens itself."""
    data: dict[int, Any] = {}
    for shard, requests in shards.items():
        work = functools.partial(_read, open_shard, shard, requests)
        try:
            data.update(retry(work, file_of(shard)))
        except ShardError as error:
            raise with_keys(error, chain, shard, requests) from None
    return data


def sizes_native(chain: Chain, shards: Sequence[str], open_shard: Open, file_of: FileOf) -> Entries:
    """Return sizes of chunks as `read.read_sizes`, from shards that the engine opens itself."""

    def look(opened: OpenedShard) -> Any:
        return ABSENT if opened.missing else opened.entries(check=True)[:, 1]

    sizes = np.empty((len(shards), chain.n_chunks), dtype=np.uint64)
    for shard, out in zip(shards, sizes, strict=True):
        out[:] = look_native(chain, shard, open_shard, file_of, look)
    return sizes


def look_native(
    chain: Chain, shard: str, open_shard: Open, file_of: FileOf, look: Callable[[OpenedShard], Any]
) -> Any:
    """Call `look` with the opened shard and return its result; retry while a writer appends to its file."""
    try:
        return retry(lambda: read_opened(open_shard(shard), look), file_of(shard))
    except ShardError as error:
        raise with_keys(error, chain, shard) from None


def _read(open_shard: Open, shard: str, requests: Sequence[ChunkRequest]) -> dict[int, Any]:
    return read_and_close(open_shard(shard), requests)


# Number of shards whose indexes are requested together while a store is listed, and memory for these indexes in bytes.
LIST_SHARDS = 512
LIST_NBYTES = 32 << 20

Sizes = np.ndarray[Any, np.dtype[np.uint64]]
Merge = Callable[[Sequence[tuple[int, int]]], list[tuple[int, int]]]


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
    """Read chunks, or parts of them, from a store that answers requests; return buffers by `ChunkRequest.number`.

    Absent chunks have no item. shards: from keys of shards to requests for their chunks. ask: makes one call to the store.
    names: those of the objects in the lock table. whole: fetch every shard whole; nested shards need this, because nothing else
    keeps index and chunks in one state.
    """

    async def read_all() -> dict[int, Any]:
        remote = BatchedRemote()
        objects = store_of(store).index_names(list(shards))
        merge = functools.partial(coalesced, limits=store_of(store).limits(), n_objects=len(shards))
        readers = [
            _ShardRead(IndexLoader(remote, shard, chain, options, name), remote, requests, merge).run(
                whole=whole
            )
            for (shard, requests), name in zip(shards.items(), objects, strict=True)
        ]
        data: dict[int, Any] = {}
        for part in await in_step(readers, ask):
            data |= part
        return data

    if store_of(store).identifies_states:
        return await read_all()
    watch = WriterWatch(names)
    if watch.is_quiet:
        try:
            data = await read_all()
        except ShardError:
            if not watch.has_changed():
                raise
        else:
            if not watch.has_changed():
                return data
    async with process_locks.table().hold_async(names):
        return await read_all()


class _Span(NamedTuple):
    """Range of a shard that holds a requested chunk or a part of it."""

    number: int
    offset: int
    nbytes: int


class _ShardRead:
    """A read of some chunks of one shard; `merge` merges ranges: it is `coalesced` with the limits of the store."""

    def __init__(
        self, loader: IndexLoader, remote: BatchedRemote, requests: Sequence[ChunkRequest], merge: Merge
    ) -> None:
        self._loader = loader
        self._remote = remote
        self._requests = requests
        self._merge = merge
        self._positions = [request.position for request in requests]

    async def run(self, *, whole: bool) -> dict[int, Any]:
        """Return buffers by `ChunkRequest.number`, without absent chunks."""
        loader = self._loader
        index = None if whole else loader.cached()
        try:
            if whole or (index is None and self._is_all()):
                data = await self._read_whole()
            else:
                data = await consistent_read(loader, index, self._read_ranges, self._read_whole)
        except ShardError as error:
            raise with_keys(error, loader.chain, loader.key, self._requests) from None
        return data or {}

    def _is_all(self) -> bool:
        """Return True if all chunks are requested whole."""
        complete = {request.position for request in self._requests if request.request is None}
        return len(complete) == int(self._loader.chain.n_chunks)

    async def _read_whole(self) -> dict[int, Any] | None:
        answer = await self._remote.get(self._loader.key)
        if answer is None:
            return None
        return read_and_close(
            NativeShard(self._loader.chain, answer.data, self._loader.options), self._requests
        )

    async def _read_ranges(self, index: RemoteIndex) -> dict[int, Any]:
        loader = self._loader
        spans, end = self._spans(index)
        parts = [(span.offset, span.nbytes) for span in spans]
        asked = [part for part in parts if part[1]]
        confirm(loader, index, asked)
        proved = with_proof(self._merge(asked), minimum_nbytes(loader, index, end))
        ranges = [(offset, nbytes + n_more) for offset, nbytes, n_more in proved]
        answers = await self._remote.get_ranges(loader.key, ranges, index.state)
        data = [
            checked_data(loader, index, lambda: np.array(self._positions), offset, nbytes, answer)
            for (offset, nbytes), answer in zip(ranges, answers, strict=True)
        ]
        pieces = cut_out(parts, ranges, [memoryview(part) for part in data])
        return {span.number: part for span, part in zip(spans, pieces, strict=True)}

    def _spans(self, index: RemoteIndex) -> tuple[list[_Span], int]:
        """Return the ranges of the requested chunks, without absent chunks, and the end of the last chunk."""
        loader = self._loader
        entries = checked_entries(loader.chain, index.entries, self._positions, index.nbytes, loader.options)
        spans, end = [], 0
        for part, (offset, size) in zip(self._requests, entries.tolist(), strict=True):
            if offset != ABSENT:
                start, nbytes = cut(part.request, size)
                spans.append(_Span(part.number, offset + start, nbytes))
                end = max(end, offset + size)
        return spans, end


async def read_sizes(chain: Chain, shards: Sequence[str], options: Options, ask: Ask) -> Sizes:
    """Read the sizes of chunks from the indexes of shards with one call to the store; uint64, shape (n, n_chunks).

    The size of an absent chunk is 2^64-1.
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
    """Return the number of shards whose indexes are in memory together."""
    return max(1, min(LIST_SHARDS, LIST_NBYTES // (16 * int(chain.n_chunks))))
