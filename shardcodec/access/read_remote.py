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
none, one byte is requested to compare the state. Ranges of large uncompressed inner chunks are not cached.
"""

from __future__ import annotations

import asyncio
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
from ..storage import budget
from ..storage.budget import Budget, Limits
from ..storage.event_loop import all_of, in_thread
from ..storage.indexes import RemoteIndex
from ..storage.ranges import coalesced
from ..storage.store import Answer, ObjectChanged, Remote, Store
from .consistent_read import checked_data, confirm, consistent_read, minimum_nbytes, with_proof
from .limited_remote import LimitedRemote
from .placement import ABSENT
from .read import INLINE_NBYTES, ObjectSelection, decoded_nbytes, read, with_key
from .regions import n_touched, outline, touched
from .remote_index import IndexLoader

if TYPE_CHECKING:
    from .._native import Chain
    from ..storage.disk_cache import DiskCache


__all__ = [
    "DecodeQueue",
    "cache_of",
    "fetch",
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


Numbers = np.ndarray[Any, np.dtype[Any]]


def cache_of(store: Store, options: Options) -> DiskCache | None:
    """Return the cache on a local disk for the objects of a store; None if there is none."""
    if options.cache_dir is None:
        return None
    from ..storage import disk_cache  # here, because most processes have none

    return disk_cache.of_store(store, options)


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

    items: sources are ignored. names: those of the objects in the cache of indexes; without names, no index is cached. disk: the
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
        self.is_small = is_small
        self.disk = disk
        self.arrivals = DecodeQueue(out, axes, options, inline=is_small)
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
        self.loader = IndexLoader(call.remote, item.key, item.chain, call.options, name)
        n_chunks = int(item.chain.n_chunks) if item.chain.is_shard else 1
        self.on_disk = None if call.disk is None else call.disk.object(item.key, n_chunks)
        self._keeping = asyncio.Lock()

    async def run(self) -> bool:
        """Fill the item's part of the array; return True if the object exists."""
        try:
            exists = await self.read()
            if not exists:
                await self.decode(None)
            return bool(exists)
        finally:
            if self.on_disk is not None:
                self.on_disk.close()

    async def read(self) -> bool | None:
        """Fill the item's part if the object exists."""
        call, index = self.call, self.loader.cached()
        if index is None:
            index = self.index_on_disk()
        if not self.chain.is_shard and await self.read_object_on_disk():
            return True
        has_index, n_wanted = index is not None, self.n_wanted
        if index is not None and self.on_disk is not None and self.on_disk.is_in(index.state):
            present = self.positions[index.entries[self.positions, 0] != ABSENT]
            n_wanted = len(present) - int(self.on_disk.has(present).sum())
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
        loader = self.loader
        since = loader.ticket()
        ranges = self.plan(index.entries, index.nbytes)
        confirm(loader, index, ranges)
        found = self.found_on_disk(index, ranges)
        if found is None:
            await self.fetch_ranges(index, ranges)
        else:
            rest = index.entries
            if len(found):
                rest = index.entries.copy()
                rest[found] = ABSENT
            # without the size of the object, whole inner chunks are planned
            missing = self.plan(rest, None)
            try:
                await all_of(
                    [
                        self.read_from_disk(index, found, is_all=not missing),
                        self.fetch_ranges(index, missing),
                    ]
                )
            except ShardError:
                if not len(found) or self.on_disk is None:
                    raise
                self.on_disk.drop()  # the bytes on the disk may have been damaged before they came there
                return await self.read_ranges(index)
            ranges = missing
        if ranges and not index.is_sound and loader.must_be_sound:
            loader.keep(replace(index, is_sound=True), since)  # the last request proved it
        return True

    def plan(self, entries: np.ndarray[Any, Any], nbytes: int | None) -> list[tuple[int, int]]:
        """Return the ranges of the object that have the requested inner chunks, or the parts of them; `nbytes` is its size."""
        limits = self.call.limits
        try:
            return native.load().plan_ranges(  # type: ignore[no-any-return]
                self.chain,
                entries,
                self.item.box,
                outline(self.call.out),
                self.call.axes,
                shard_nbytes=nbytes,
                max_gap_nbytes=min(limits.free_gap_nbytes, limits.max_gap_nbytes),
                max_nbytes=limits.max_nbytes,
                allow_in_index=self.call.options.allow_in_index,
            )
        except ShardError as error:
            raise with_key(error, self.chain, self.key) from None

    async def fetch_ranges(self, index: RemoteIndex, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch ranges, and decode each one when it arrives; fill the absent inner chunks."""
        merged = coalesced(ranges, self.call.limits, self.call.n_objects)
        end = minimum_nbytes(self.loader, index, sum(merged[-1])) if merged else 0
        requests = with_proof(merged, end)
        if len(requests) == 1:
            await self.read_range(index, *requests[0], fill_absent=True)
        else:
            work = [self.read_range(index, *request) for request in requests]
            absent = native.load().Fetched(self.chain, index.entries, None, 0, fill_absent=True)
            await all_of([*work, self.decode(absent)])

    async def read_range(
        self, index: RemoteIndex, offset: int, nbytes: int, proof: int, *, fill_absent: bool = False
    ) -> None:
        """Fetch one range and decode the inner chunks in it; `proof` bytes behind it must exist."""
        async with self.call.hold(nbytes):
            n = nbytes + proof
            answer = await self.call.remote.get_range(self.key, offset, offset + n, index.state)
            data = checked_data(self.loader, index, lambda: self.positions, offset, n, answer)
            if nbytes or fill_absent:
                fetched = native.load().Fetched(
                    self.chain, index.entries, data[:nbytes], offset, fill_absent=fill_absent
                )
                await self.decode(fetched, nbytes)
                await self.keep(index, offset, data[:nbytes], self.positions)

    # ---- the cache on a local disk

    def index_on_disk(self) -> RemoteIndex | None:
        """Return the index from the disk, which may be stale; None if it is not there."""
        if self.on_disk is None or not self.chain.is_shard or (entries := self.on_disk.entries()) is None:
            return None
        since, options = self.loader.ticket(), self.call.options
        index = RemoteIndex(entries, self.on_disk.nbytes, self.on_disk.state, is_confirmed=options.immutable)
        try:
            index = self.loader.checked(index)
        except ShardError:
            return None
        self.loader.keep(index, since)
        return index

    def found_on_disk(self, index: RemoteIndex, ranges: Sequence[tuple[int, int]]) -> Numbers | None:
        """Return the positions of the requested inner chunks that are on the disk; None if this read is not cached.

        ranges: those of the read, without the disk.
        """
        if self.on_disk is None or not ranges:
            return None
        inner, wanted = self.chain.inner, self.positions
        inner_nbytes = math.prod(inner.shape) * int(self.chain.itemsize)
        if inner.is_plain and inner_nbytes > self.call.limits.max_gap_nbytes:
            sizes = index.entries[wanted, 1]
            if sum(nbytes for _, nbytes in ranges) < int(sizes[sizes != ABSENT].sum()):
                return None  # the rest of the inner chunks would take longer than another request
        if not self.on_disk.is_in(index.state):
            return wanted[:0]
        present = wanted[index.entries[wanted, 0] != ABSENT]
        found: Numbers = present[self.on_disk.has(present)]
        return found

    async def read_from_disk(self, index: RemoteIndex, found: Numbers, *, is_all: bool) -> None:
        """Decode inner chunks that are on the disk. If they are all that the call needs, compare the state of the object."""
        places = index.entries[found].astype(np.int64)
        order = np.argsort(places[:, 0], kind="stable")
        found, places = found[order], places[order]
        group = np.cumsum(places[:, 1]) // BATCH_NBYTES
        cuts = np.flatnonzero(np.diff(group)) + 1
        work = [
            self.decode_from_disk(index, *part)
            for part in zip(np.split(found, cuts), np.split(places, cuts), strict=True)
            if len(part[0])
        ]
        if work and is_all and not index.is_confirmed:
            work.append(self.compare(index.state))
        await all_of(work)

    async def decode_from_disk(self, index: RemoteIndex, found: Numbers, places: Numbers) -> None:
        """Read inner chunks from the disk and decode them; fetch those whose bytes there are damaged."""
        sizes = places[:, 1]
        nbytes = int(sizes.sum())
        async with self.call.hold(nbytes):
            data, good = await self.with_disk(found, places[:, 0], sizes)
            entries = np.full_like(index.entries, ABSENT)
            entries[found, 0] = np.cumsum(sizes) - sizes
            entries[found, 1] = sizes
            entries[found[~good]] = ABSENT
            await self.decode(native.load().Fetched(self.chain, entries, data, 0, fill_absent=False), nbytes)
        lost = [(int(offset), int(size)) for offset, size in places[~good]]
        merged = coalesced(lost, self.call.limits, self.call.n_objects)
        await all_of(self.read_range(index, offset, size, 0) for offset, size in merged)

    async def read_object_on_disk(self) -> bool:
        """Decode an object that is not a shard from the disk; return False if it is not there, or has changed."""
        disk, first = self.on_disk, np.zeros(1, np.int64)
        if disk is None or not disk.nbytes or not disk.has(first)[0]:
            return False
        async with self.call.hold(disk.nbytes):
            data, good = await self.with_disk(first, first, np.array([disk.nbytes]))
            if not good[0]:
                return False
            try:
                await all_of([self.decode(data, len(data)), self.compare(disk.state)])
            except ObjectChanged:
                return False
            except ShardError:
                disk.drop()
                return False
        return True

    async def with_disk(
        self, positions: Numbers, offsets: Numbers, sizes: Numbers
    ) -> tuple[Numbers, Numbers]:
        """Call `CachedObject.read`, in a thread unless the call is small."""
        assert self.on_disk is not None
        if self.call.is_small:
            return self.on_disk.read(positions, offsets, sizes)
        return await in_thread(self.on_disk.read, positions, offsets, sizes)

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
            await in_thread(self.on_disk.keep, index.state, nbytes, entries, offset, data, chunks)

    @functools.cached_property
    def positions(self) -> Numbers:
        """Return the positions of the requested inner chunks."""
        chain = self.chain
        return np.flatnonzero(touched(self.item.box, chain.perm, chain.inner.shape, chain.grid_shape))

    async def decode(self, source: Any, nbytes: int = 0) -> None:
        await self.call.arrivals.decode(self.item._replace(source=source), nbytes)
