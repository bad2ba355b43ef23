# read_remote.py - read parts of many objects into one array, from a store of requests
# SPDX-License-Identifier: MIT
"""Read parts of many objects from a store that answers requests.

A shard is read in one of two ways:

- One request for the whole object, if the read needs most of it or the rest is small.
- Otherwise one request for the index, then requests for the ranges of the requested inner chunks; close ranges are merged
  (`storage.ranges`). This needs a second round trip, so it is used only if the rest of the shards has more bytes than a
  round trip is worth (`Limits.max_gap_nbytes`).

Several objects are read at the same time. Each answer is decoded when it arrives (`decode_queue`), in another thread unless the
call is small. `consistent_read` starts again if an object changes between its index and its ranges. Indexes are cached
between calls (`storage.indexes`); with a cached index, a part of a shard needs one round trip.

With the option ``cache_dir``, whole inner chunks are cached on a local disk (`storage.disk_cache`). Those that are there are
decoded at the same time as the others are requested. The requests are bound to the state of the cached bytes, and if there are
none, one byte is requested to compare the state. Objects that are on the disk as a whole are decoded before
(`disk_reads.DiskReader`), and only compared here.

With the option ``cache``, decoded inner chunks are cached in memory, under the cached index. They are copied before any are requested.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import native
from ..errors import ShardError
from ..options import Options
from ..storage import budget, indexes
from ..storage.budget import Budget, Limits
from ..storage.event_loop import all_of, in_thread
from ..storage.indexes import RemoteIndex
from ..storage.ranges import coalesced
from ..storage.store import Answer, ObjectChanged, Remote, Store
from .consistent_read import checked_data, confirm, consistent_read, minimum_nbytes, with_proof
from .disk_reads import Numbers, ObjectOnDisk, disk_reader, plan_ranges, positions_of
from .limited_remote import LimitedRemote
from .placement import ABSENT
from .read import INLINE_NBYTES, ObjectSelection, decoded_nbytes, read
from .regions import as_void, n_touched
from .remote_index import IndexLoader, chunk_ticket

if TYPE_CHECKING:
    from .._native import Chain, Fetched
    from ..storage.disk_cache import DiskCache


__all__ = [
    "DecodeQueue",
    "fetch",
    "fetch_rest",
    "read_far",
    "wants_whole",
]


# `DecodeQueue`: decodes answers of a store into an array, in another thread.
#
# An *answer* is the bytes that a store returned for one request: a whole object, or a range of it. To hand single answers
# to the thread would often take longer than to decode them. So one native plan runs after the other. It decodes all answers that
# arrived since the last plan began: few at first, more if decoding is slower than the store. A large answer gets a plan of its
# own, so that its memory is freed before other answers are decoded.

# A plan takes queued answers up to this number of bytes, or one answer.
BATCH_NBYTES = 8 << 20


class _QueueEntry(NamedTuple):
    """A queued item, the size of its answer in bytes, and the future that `DecodeQueue.decode` awaits."""

    item: ObjectSelection
    nbytes: int
    done: asyncio.Future[None]


class DecodeQueue:
    """A queue of the answers that one call decodes into one array; `out`, `axes` and `options` are as for `read`.

    inline: decode in the thread of the event loop, without the queue, because the call has little to decode.
    """

    def __init__(
        self, out: np.ndarray[Any, Any], axes: Sequence[int], options: Options, *, inline: bool
    ) -> None:
        self._into = out, axes, options
        self._inline = inline
        self._queue: deque[_QueueEntry] = deque()
        self._task: asyncio.Task[None] | None = None

    async def decode(self, item: ObjectSelection, nbytes: int) -> None:
        """Decode an answer of `nbytes` bytes into the array of the queue; return when its elements are there.

        The source of `item` is the answer: the bytes of the object, a native ``Fetched`` with a range of it, or None for a
        missing object. Raises for damage in this answer only; other answers are still decoded. CancelledError: `end` was
        called.
        """
        if self._inline:
            read([item], *self._into)
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(_QueueEntry(item, nbytes, done))
        if self._task is None:
            self._task = asyncio.ensure_future(self._run())
        await done

    async def end(self) -> None:
        """Cancel the calls of `decode` that wait; return when no thread writes to the array any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._queue:
                batch = self._next_batch()
                try:
                    await self._read(batch)
                finally:
                    _cancel(batch)
        finally:
            self._task = None
            _cancel(self._queue)

    def _next_batch(self) -> list[_QueueEntry]:
        batch = [self._queue.popleft()]
        room = BATCH_NBYTES - batch[0].nbytes
        while self._queue and self._queue[0].nbytes <= room:
            batch.append(self._queue.popleft())
            room -= batch[-1].nbytes
        return batch

    async def _read(self, batch: Sequence[_QueueEntry]) -> None:
        awaited = [entry for entry in batch if not entry.done.cancelled()]
        if not awaited:
            return
        try:
            await in_thread(read, [entry.item for entry in awaited], *self._into)
        except Exception as error:  # noqa: BLE001  # `decode` raises it
            if len(awaited) == 1 or not isinstance(error, ShardError):
                _finish(awaited, error)
            else:
                for entry in awaited:  # one by one, so that only the damaged items get an error
                    await self._read([entry])
        else:
            _finish(awaited, None)


def _finish(batch: Iterable[_QueueEntry], error: Exception | None) -> None:
    for entry in batch:
        if entry.done.done():
            continue
        if error is None:
            entry.done.set_result(None)
        else:
            entry.done.set_exception(error)


def _cancel(batch: Iterable[_QueueEntry]) -> None:
    for entry in batch:
        entry.done.cancel()


# A shard is fetched whole if the read needs at least this share of its inner chunks: at most a quarter more bytes ...
WHOLE_SHARE = 0.8

# ... unless it may be larger than this. Ranges are requested concurrently, are decoded while others are under way, and need
# not be in memory all at once.
WHOLE_NBYTES = 64 << 20

# Number of coroutines per concurrent request. Each reads one object after the other; more of them fetch indexes earlier.
OBJECTS_PER_REQUEST = 2


def wants_whole(
    chain: Chain, n_wanted: int, limits: Limits, *, n_objects: int = 1, has_index: bool = False
) -> bool:
    """Return True if one request for a whole object is better than requests for its index and ranges.

    n_wanted: number of inner chunks to read. n_objects: objects that the call reads. has_index: the index is cached, which
    saves a round trip.
    """
    if not chain.is_shard:
        return True
    inner_nbytes = math.prod(chain.inner.shape) * int(chain.itemsize)  # encoding hardly makes it larger
    if chain.n_chunks * inner_nbytes > WHOLE_NBYTES:
        return False
    n_waste = int(chain.n_chunks) - n_wanted
    is_cheap = not has_index and n_waste * inner_nbytes <= limits.share_nbytes(n_objects)
    return bool(is_cheap or n_wanted >= WHOLE_SHARE * chain.n_chunks)


async def read_far(
    store: Store,
    items: Sequence[ObjectSelection],
    out: Numbers,
    axes: Sequence[int],
    options: Options,
    limits: Limits,
) -> list[int]:
    """Read as `fetch`, from the cache on a local disk first, if there is one."""
    disk = disk_reader(store, options)
    if disk is None or not disk.is_usable():
        return await fetch_rest(None, store, list(enumerate(items)), out, axes, options, limits)
    is_small = sum(decoded_nbytes(item.chain, item.box) for item in items) <= INLINE_NBYTES
    work = items, out, axes
    rest = disk.read(*work) if is_small else await in_thread(disk.read, *work)
    return await fetch_rest(disk.cache, store, rest, out, axes, options, limits)


async def fetch_rest(
    disk: DiskCache | None,
    store: Store,
    rest: Sequence[tuple[int, ObjectSelection]],
    out: Numbers,
    axes: Sequence[int],
    options: Options,
    limits: Limits,
) -> list[int]:
    """Read as `fetch` what `DiskReader.read` has left; return the positions of missing objects."""
    if not rest:
        return []
    items = [item for _, item in rest]
    names = store.index_names([item.key for item in items])
    missing = await fetch(items, out, axes, options, store, limits, names=names, disk=disk)
    return [rest[i][0] for i in missing]


async def fetch(
    items: Sequence[ObjectSelection],
    out: np.ndarray[Any, Any],
    axes: Sequence[int],
    options: Options,
    remote: Remote,
    limits: Limits,
    *,
    names: Sequence[str] | None = None,
    disk: DiskCache | None = None,
) -> list[int]:
    """Read parts of objects of a store into an array; return the positions of items whose object does not exist.

    items: an item whose source is an `Answer` without data has been decoded, and is read again only if the object is in another
    state; other sources are ignored. names: those of the objects in the cache of indexes; without names, no index is cached. disk: the
    cache on a local disk, if there is one. After an error all other requests have ended.
    """
    call = _RemoteRead(items, out, axes, options, remote, limits, disk)
    optional_names: Sequence[str | None] = [None] * len(items) if names is None else names
    queue = iter(enumerate(zip(items, optional_names, strict=True)))
    n_workers = min(len(items), OBJECTS_PER_REQUEST * limits.n_requests)
    try:
        missing = await all_of(call.work_off(queue) for _ in range(n_workers))
    finally:
        await call.arrivals.end()
    return sorted(position for positions in missing for position in positions)


class _RemoteRead:
    """The state that all objects of one call share."""

    def __init__(
        self,
        items: Sequence[ObjectSelection],
        out: np.ndarray[Any, Any],
        axes: Sequence[int],
        options: Options,
        remote: Remote,
        limits: Limits,
        disk: DiskCache | None,
    ) -> None:
        self.out = out
        self.axes = axes
        self.options = options
        is_small = sum(decoded_nbytes(item.chain, item.box) for item in items) <= INLINE_NBYTES
        self.disk = disk
        self.is_small = is_small
        self.arrivals = DecodeQueue(out, axes, options, inline=is_small)
        self.store = remote
        self.remote = LimitedRemote(remote, limits.n_requests)
        self.limits = limits
        self.n_objects = len(items)
        self._whole_objects = Budget()
        self._reads = budget.of_store(remote.budget_name).reads

    def hold(self, nbytes: int) -> AbstractAsyncContextManager[None]:
        """Reserve bytes until they are decoded; wait until they are free."""
        return self._reads.hold(nbytes, self.limits.read_nbytes)

    def hold_object(self) -> AbstractAsyncContextManager[None]:
        """Wait until another whole object may be requested."""
        return self._whole_objects.hold(1, self.limits.n_objects)

    async def work_off(self, queue: Iterator[tuple[int, tuple[ObjectSelection, str | None]]]) -> list[int]:
        """Take objects from the queue that all workers share; return the positions of missing ones."""
        return [position for position, (item, name) in queue if not await _ObjectRead(self, item, name).run()]


class _ObjectRead:
    """The read of one object."""

    def __init__(self, call: _RemoteRead, item: ObjectSelection, name: str | None) -> None:
        self.n_wanted = n_touched(item.box, item.chain) if item.chain.is_shard else 1
        self.call = call
        self.item = item
        self.chain = item.chain
        self.key = item.key
        since = chunk_ticket(call.store, item.chain, call.options)
        self.loader = IndexLoader(call.remote, item.key, item.chain, call.options, name, since=since)
        self.on_disk = None if call.disk is None else ObjectOnDisk(call.disk, item, self.loader, call.limits)
        self._keeping = asyncio.Lock()
        self._copied: tuple[RemoteIndex | None, Numbers] = None, np.empty(0, np.int64)

    async def run(self) -> bool:
        """Fill the item's part of the array; return True if the object exists."""
        try:
            if isinstance(self.item.source, Answer):
                with contextlib.suppress(ObjectChanged):
                    await self.compare(self.item.source.state)
                    return True
            exists = await self.read()
            if not exists:
                await self.decode(None)
            return bool(exists)
        finally:
            if self.on_disk is not None:
                self.on_disk.cached.close()

    async def read(self) -> bool | None:
        """Fill the item's part if the object exists."""
        call, index = self.call, self.loader.cached()
        if index is None and self.on_disk is not None:
            index = self.on_disk.index()
        n_wanted = self.n_wanted
        if index is not None and self.on_disk is not None:
            present = index.entries[self.positions, 0] != ABSENT
            n_wanted = int(present.sum()) - len(self.on_disk.found(index, self.positions))
        elif index is not None:
            n_wanted -= len(await self.copied(index))
        has_index = index is not None
        if wants_whole(self.chain, n_wanted, call.limits, n_objects=call.n_objects, has_index=has_index):
            return await self.read_whole()
        return await consistent_read(self.loader, index, self.read_ranges, self.read_whole)

    async def read_whole(self) -> bool:
        """Fetch and decode the whole object; return False if it does not exist."""
        # encoding hardly makes a shard larger, but the index may be larger than tiny inner chunks
        nbytes = max(math.prod(self.chain.shape) * int(self.chain.itemsize), int(self.chain.index_nbytes))
        since = self.loader.ticket()
        async with self.call.hold(nbytes):
            async with self.call.hold_object():
                answer = await self.call.remote.get(self.key)
            if answer is None:
                return False
            await self.decode(answer.data, len(answer.data))
            is_part = self.chain.is_shard and self.n_wanted < self.chain.n_chunks
            if is_part or (self.chain.is_shard and self.on_disk is not None):
                index = self.loader.of_whole(answer)
                if is_part:  # a later call may want more of it
                    self.loader.keep(replace(index, is_sound=self.loader.must_be_sound), since)
                await self.keep(index, 0, answer.data, np.arange(self.chain.n_chunks))
            else:
                await self.keep(answer, 0, answer.data, np.zeros(1, np.int64))
        return True

    async def read_ranges(self, index: RemoteIndex) -> bool:
        """Read the requested inner chunks, from the disk and with requests."""
        loader, disk = self.loader, self.on_disk
        since = loader.ticket()
        ranges = self.plan(index.entries, index.nbytes)
        confirm(loader, index, ranges)
        copied = await self.copied(index)
        uses_disk = disk is not None and ranges and disk.is_kept(index, self.positions, ranges)
        found = copied[:0]
        if disk is not None and uses_disk:
            found = disk.found(index, np.setdiff1d(self.positions, copied))
        if uses_disk or len(copied):
            rest = index.entries.copy()
            rest[copied] = rest[found] = ABSENT
            ranges = self.plan(rest, None if uses_disk else index.nbytes)
        work = [self.read_from_disk(index, found), self.fetch_ranges(index, ranges)]
        if not ranges and len(copied) + len(found) and not index.is_confirmed:
            work.append(self.compare(index.state))
        try:
            await all_of(work)
        except ShardError:
            if disk is None or not len(found):
                raise
            disk.cached.drop()  # the bytes may have been damaged before they came to the disk
            return await self.read_ranges(index)
        if ranges and not index.is_sound and loader.must_be_sound:
            loader.keep(replace(index, is_sound=True), since)  # the last request proved it
        return True

    def plan(self, entries: Numbers, nbytes: int | None) -> list[tuple[int, int]]:
        """Call `plan_ranges`."""
        call = self.call
        return plan_ranges(self.item, entries, nbytes, (call.out, call.axes), call.options, call.limits)

    async def fetch_ranges(self, index: RemoteIndex, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch ranges, and decode each one when it arrives; fill the absent inner chunks."""
        merged = coalesced(ranges, self.call.limits, self.call.n_objects)
        end = minimum_nbytes(self.loader, index, sum(merged[-1])) if merged else 0
        requests = with_proof(merged, end)
        if len(requests) == 1:
            await self.read_range(index, *requests[0], fill_absent=True)
        else:
            work = [self.read_range(index, *request) for request in requests]
            await all_of([*work, self.decode(self.fetched(index, None, 0, fill_absent=True))])

    async def read_range(
        self, index: RemoteIndex, offset: int, nbytes: int, proof: int, *, fill_absent: bool = False
    ) -> None:
        """Fetch one range and decode the inner chunks in it; `proof` bytes behind it must exist."""
        async with self.call.hold(nbytes):
            n = nbytes + proof
            answer = await self.call.remote.get_range(self.key, offset, offset + n, index.state)
            data = checked_data(self.loader, index, lambda: self.positions, offset, n, answer)
            if nbytes or fill_absent:
                await self.decode(self.fetched(index, data[:nbytes], offset, fill_absent=fill_absent), nbytes)
                await self.keep(index, offset, data[:nbytes], self.positions)

    def fetched(self, index: RemoteIndex, data: Any, first: int, *, fill_absent: bool) -> Fetched:
        """Return the source of a range of the object."""
        state = self.loader.chunk_state(index)
        return native.load().Fetched(  # type: ignore[no-any-return]
            self.chain, index.entries, data, first, fill_absent=fill_absent, state=state
        )

    async def copied(self, index: RemoteIndex) -> Numbers:
        """Copy the inner chunks that are cached in memory, once for an index; return their positions."""
        if self._copied[0] is not index:
            there = np.zeros(len(self.positions) if self.loader.chunk_state(index) else 0, np.bool_)
            if len(there):
                cache: Any = indexes.of_options(self.call.options)
                source, into = self.fetched(index, None, 0, fill_absent=False), as_void(self.call.out)
                arguments = source, self.chain, self.item.box, into, self.call.axes, there, cache.native
                if self.call.is_small:
                    native.load().copy_kept(*arguments)
                else:
                    await in_thread(native.load().copy_kept, *arguments)
            self._copied = index, self.positions[: len(there)][there]
        return self._copied[1]

    async def read_from_disk(self, index: RemoteIndex, found: Numbers) -> None:
        """Decode inner chunks that are on the disk."""
        group = np.cumsum(index.entries[found, 1]) // BATCH_NBYTES
        parts = np.split(found, np.flatnonzero(np.diff(group)) + 1)
        work = [self.decode_from_disk(index, part) for part in parts if len(part)]
        await all_of(work)

    async def decode_from_disk(self, index: RemoteIndex, found: Numbers) -> None:
        """Read inner chunks from the disk and decode them; fetch those whose bytes there are damaged."""
        assert self.on_disk is not None
        nbytes = int(index.entries[found, 1].sum())
        async with self.call.hold(nbytes):
            work = functools.partial(self.on_disk.fetched, index, found, fill_absent=False)
            source, good = await in_thread(work)
            await self.decode(source, nbytes)
        lost = [(int(offset), int(n)) for offset, n in index.entries[found[~good]]]
        merged = coalesced(lost, self.call.limits, self.call.n_objects)
        await all_of(self.read_range(index, offset, n, 0) for offset, n in merged)

    async def compare(self, state: Any) -> None:
        """Raise `ObjectChanged` if the object has another state; with the option ``immutable`` it has not."""
        if self.call.options.immutable:
            return
        if await self.call.remote.get_range(self.key, 0, 1, state) is None:
            raise ObjectChanged(self.key)

    async def keep(self, index: RemoteIndex | Answer, offset: int, data: Any, positions: Numbers) -> None:
        """Keep bytes from `offset` on, on the disk; the inner chunks at `positions` that lie in them are found there later."""
        if self.on_disk is None:
            return
        entries = index.entries if isinstance(index, RemoteIndex) else None
        places = np.array([[0, len(data)]], np.uint64) if entries is None else entries[positions]
        there = (places[:, 0] != ABSENT) & (places[:, 0] >= offset) & (places[:, 1] > 0)
        there &= (places[:, 1] <= len(data)) & (places[:, 0] - np.uint64(offset) <= len(data) - places[:, 1])
        chunks = positions[there], *places[there].astype(np.int64).T
        nbytes = len(data) if entries is None else index.nbytes
        async with self._keeping:
            await in_thread(self.on_disk.cached.keep, index.state, nbytes, entries, offset, data, chunks)

    @functools.cached_property
    def positions(self) -> Numbers:
        """The positions of the requested inner chunks."""
        return positions_of(self.item)

    async def decode(self, source: Any, nbytes: int = 0) -> None:
        await self.call.arrivals.decode(self.item._replace(source=source), nbytes)
