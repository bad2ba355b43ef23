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
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from ..access.opened_shard import Entries, NativeShard, OpenedShard, read_opened
from ..access.placement import ABSENT
from ..access.read import with_key
from ..access.remote_index import (
    IndexLoader,
    LimitedRemote,
    WriterWatch,
    checked_data,
    checked_entries,
    confirm,
    consistent_read,
    minimum_nbytes,
    with_proof,
)
from ..compat import RangeByteRequest, Store, SuffixByteRequest
from ..errors import ShardError
from ..options import Options
from ..storage import budget, locks
from ..storage.event_loop import all_of
from ..storage.indexes import RemoteIndex
from ..storage.kinds import store_of
from ..storage.ranges import coalesced, cut_out
from ..storage.retry import retry
from ..storage.store import Answer, ObjectChanged
from ..storage.store import Store as AnyStore
from .keys import cut

if TYPE_CHECKING:
    from .._native import Chain


__all__ = [
    "Ask",
    "BatchedRemote",
    "ChunkRequest",
    "StoreRequests",
    "at_a_time",
    "in_step",
    "look_native",
    "read",
    "read_and_close",
    "read_native",
    "read_sizes",
    "sizes_native",
    "with_keys",
]


# ---------------------------------------------------------------- requests for chunks, and their values from an opened shard
#
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
    of any chunk is an error, because the others are doubtful too; the option ``allow_in_index`` permits it.
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


# ---------------------------------------------------------------- values from shards in local files and in memory
#
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


# ---------------------------------------------------------------- requests to the store below
#
# Send the requests of many coroutines with one call to a store.
#
# A request to an object store can be bound to a state of the object: it fails if the object has changed since.

T = TypeVar("T")

# Key, byte request of zarr (None: the whole object), and the state that the request is bound to (None: any).
Request = tuple[str, Any, Any]

# Coroutine function that makes one call to a store. An answer is None if the object does not exist; it is `ObjectChanged` if the
# object is in another state.
Ask = Callable[[Sequence[Request]], Awaitable[list[Answer | ObjectChanged | None]]]


class StoreRequests:
    """An `Ask` that sends requests to the store below, and some other requests with its first call.

    others: pairs of a key that is not a chunk and a byte request of zarr; the method `others` returns the answers. If the store
    identifies states, each request is a call, within the limits of the store, and the others are sent by that method.
    """

    def __init__(self, store: Store, prototype: Any, others: Sequence[tuple[str, Any]] = ()) -> None:
        self._store = store
        self.prototype = prototype
        self._others = others
        self._answers: list[Any] | None = None

    async def __call__(self, requests: Sequence[Request]) -> list[Answer | ObjectChanged | None]:
        """Return the answers to requests; see `Ask`."""
        store = store_of(self._store)
        if store.identifies_states:
            return await _ask_bound(store, requests)
        own = [(key, request) for key, request, _ in requests]
        if self._answers is None:
            buffers = await self._ask([*self._others, *own])
            self._answers, buffers = buffers[: len(self._others)], buffers[len(self._others) :]
        else:
            buffers = await self._ask(own)
        return [None if buffer is None else Answer(buffer.as_numpy_array()) for buffer in buffers]

    async def others(self) -> list[Any]:
        """Return the answers to the other requests: buffers of zarr, None for a missing object. Send them if not sent yet."""
        if self._answers is None:
            self._answers = await self._ask(self._others) if self._others else []
        return self._answers

    async def _ask(self, requests: Sequence[tuple[str, Any]]) -> list[Any]:
        try:
            return list(await self._store.get_partial_values(self.prototype, requests))
        except (NotImplementedError, FileNotFoundError):  # LocalStore raises for an absent key
            store = store_of(self._store)
            permits, most = budget.of_store(store.budget_name).requests, store.limits().n_requests

            async def get(key: str, request: Any) -> Any:
                async with permits.hold(1, most):
                    return await self._store.get(key, self.prototype, request)

            return await all_of(get(*each) for each in requests)


class BatchedRemote:
    """A `Remote` that only coroutines run by `in_step` can await: `in_step` sends its requests."""

    budget_name = None

    async def get(self, key: str) -> Answer | None:
        """Return a whole object; None if it does not exist."""
        (answer,) = await _ask_in_step([(key, None, None)])
        return answer

    async def get_range(self, key: str, start: int, end: int, state: Any = None) -> Answer | None:
        """Return bytes [start, end) of an object; None if it does not exist. A state of None accepts any state."""
        (answer,) = await self.get_ranges(key, [(start, end - start)], state)
        return answer

    async def get_ranges(
        self, key: str, ranges: Sequence[tuple[int, int]], state: Any = None
    ) -> list[Answer | None]:
        """Return several ranges (offset, nbytes) of an object; the same rules as for `get_range`."""
        if not ranges:
            return []
        return await _ask_in_step([(key, RangeByteRequest(a, a + n), state) for a, n in ranges])

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        """Return the last bytes of an object, or all of a shorter one."""
        (answer,) = await _ask_in_step([(key, SuffixByteRequest(nbytes), None)])
        return answer


@types.coroutine
def _ask_in_step(
    requests: list[Request],
) -> Generator[list[Request], list[Answer | None], list[Answer | None]]:
    return (yield requests)


async def in_step(readers: Sequence[Coroutine[Any, Any, T]], ask: Ask) -> list[T]:
    """Run several coroutines together, and send their requests to a store with as few calls as possible.

    In each step, every coroutine runs until it needs answers from the store. One call of `ask` then sends the requests of all
    coroutines, and each gets its answers. So any number of coroutines that need answers k times take k calls.

    They may await a `BatchedRemote` only. Returns their results in order. The first error is raised, in the order of steps and
    then of `readers`, or an error of `ask`; all other coroutines are closed.
    """
    results: dict[int, T] = {}
    answers: dict[int, Any] = {}
    try:
        while len(results) < len(readers):
            asked: dict[int, list[Request]] = {}
            for number, reader in enumerate(readers):
                if number in results:
                    continue
                try:
                    asked[number] = _resume(reader, answers.get(number))
                except StopIteration as end:
                    results[number] = end.value
            together = [request for own in asked.values() for request in own]
            answered = iter(await ask(together) if together else [])
            answers = {number: [next(answered) for _ in own] for number, own in asked.items()}
    finally:
        for reader in readers:
            reader.close()
    return [results[number] for number in range(len(readers))]


def _resume(reader: Coroutine[Any, Any, Any], answers: list[Any] | None) -> list[Request]:
    """Run a coroutine with its answers until it needs the next ones; return its next requests.

    If an answer is `ObjectChanged`, the first such error is raised inside the coroutine instead. At the end of the coroutine
    StopIteration is raised; ``.value`` is its result.
    """
    changed = next((answer for answer in answers or () if isinstance(answer, ObjectChanged)), None)
    return reader.send(answers) if changed is None else reader.throw(changed)  # type: ignore[no-any-return]


async def _ask_bound(store: AnyStore, requests: Sequence[Request]) -> list[Answer | ObjectChanged | None]:
    """Send each request on its own, bound to its state; return the answers as `Ask` does."""
    limited = LimitedRemote(store, store.limits().n_requests)

    async def get(key: str, request: Any, state: Any) -> Answer | ObjectChanged | None:
        if request is None:
            return await limited.get(key)
        if isinstance(request, SuffixByteRequest):
            return await limited.get_suffix(key, request.suffix)
        try:
            return await limited.get_range(key, request.start, request.end, state)
        except ObjectChanged as error:
            return error

    return await all_of(get(*each) for each in requests)


# ---------------------------------------------------------------- read chunks of many shards with two calls to the store

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
    async with locks.table().hold_async(names):
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


# ---- indexes alone


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
