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
"""

from __future__ import annotations

import asyncio
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
from ..storage.store import Remote
from .consistent_read import checked_data, confirm, consistent_read, minimum_nbytes, with_proof
from .limited_remote import LimitedRemote
from .read import INLINE_NBYTES, ObjectSelection, decoded_nbytes, read, with_key
from .regions import n_touched, outline, touched
from .remote_index import IndexLoader

if TYPE_CHECKING:
    from .._native import Chain


__all__ = [
    "DecodeQueue",
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


async def fetch(
    items: Sequence[ObjectSelection],
    out: np.ndarray[Any, Any],
    axes: Sequence[int],
    options: Options,
    remote: Remote,
    limits: Limits,
    *,
    names: Sequence[str] | None = None,
) -> list[int]:
    """Read parts of objects of a store into an array; return the positions of items whose object does not exist.

    items: sources are ignored. names: those of the objects in the cache of indexes; without names, no index is cached. After an
    error all other requests have ended.
    """
    call = _RemoteRead(items, out, axes, options, remote, limits)
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
    ) -> None:
        self.out = out
        self.axes = axes
        self.options = options
        is_small = sum(decoded_nbytes(item.chain, item.box) for item in items) <= INLINE_NBYTES
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

    async def run(self) -> bool:
        """Fill the item's part of the array; return True if the object exists."""
        call, index = self.call, self.loader.cached()
        has_index = index is not None
        exists: bool | None
        if wants_whole(self.chain, self.n_wanted, call.limits, n_objects=call.n_objects, has_index=has_index):
            exists = await self.read_whole()
        else:
            exists = await consistent_read(self.loader, index, self.read_ranges, self.read_whole)
        if not exists:
            await self.decode(None)
        return bool(exists)

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
        if self.chain.is_shard and self.n_wanted < self.chain.n_chunks:  # a later call may want more of it
            index = self.loader.of_whole(answer)
            self.loader.keep(replace(index, is_sound=self.loader.must_be_sound), since)
        return True

    async def read_ranges(self, index: RemoteIndex) -> bool:
        """Fetch the requested inner chunks, and decode each range when it arrives."""
        limits, loader = self.call.limits, self.loader
        engine = native.load()
        since = loader.ticket()
        try:
            ranges = engine.plan_ranges(
                self.chain,
                index.entries,
                self.item.box,
                outline(self.call.out),
                self.call.axes,
                shard_nbytes=index.nbytes,
                max_gap_nbytes=min(limits.free_gap_nbytes, limits.max_gap_nbytes),
                max_nbytes=limits.max_nbytes,
                allow_in_index=self.call.options.allow_in_index,
            )
        except ShardError as error:
            raise with_key(error, self.chain, self.key) from None
        confirm(loader, index, ranges)
        merged = coalesced(ranges, limits, self.call.n_objects)
        end = minimum_nbytes(loader, index, sum(merged[-1])) if merged else 0
        requests = with_proof(merged, end)
        if len(requests) == 1:
            await self.read_range(index, *requests[0], fill_absent=True)
        else:
            work = [self.read_range(index, *request) for request in requests]
            absent = engine.Fetched(self.chain, index.entries, None, 0, fill_absent=True)
            await all_of([*work, self.decode(absent)])
        if ranges and not index.is_sound and loader.must_be_sound:
            loader.keep(replace(index, is_sound=True), since)  # the last request proved it
        return True

    async def read_range(
        self, index: RemoteIndex, offset: int, nbytes: int, proof: int, *, fill_absent: bool = False
    ) -> None:
        """Fetch one range and decode the inner chunks in it; `proof` bytes behind it must exist."""
        async with self.call.hold(nbytes):
            n = nbytes + proof
            answer = await self.call.remote.get_range(self.key, offset, offset + n, index.state)
            data = checked_data(self.loader, index, self.positions, offset, n, answer)
            if nbytes or fill_absent:
                fetched = native.load().Fetched(
                    self.chain, index.entries, data[:nbytes], offset, fill_absent=fill_absent
                )
                await self.decode(fetched, nbytes)

    def positions(self) -> np.ndarray[Any, Any]:
        """Return the positions of the requested inner chunks."""
        chain = self.chain
        return np.flatnonzero(touched(self.item.box, chain.perm, chain.inner.shape, chain.grid_shape))

    async def decode(self, source: Any, nbytes: int = 0) -> None:
        await self.call.arrivals.decode(self.item._replace(source=source), nbytes)
