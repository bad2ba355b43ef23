# remote.py - boxes of many objects that are reached by requests, into one array
# SPDX-License-Identifier: MIT
"""Reading from stores that answer requests.

What is asked for, and when one request more is worth it:

- An object of which most is wanted, or which cannot be much larger than what is wanted, is fetched whole: one request.
- Of any other shard the index comes first, then the ranges that the box needs; ranges with a small gap are one. That
  takes one round trip more, so it is worth it only where the rest of the shard is more than a round trip's worth of bytes
  (`Limits.max_gap_nbytes`).

Several objects are under way at a time, and the indexes of some while ranges of others are. Each answer is decoded when
it arrives, in another thread unless it is small.

An object can be exchanged between its index and its ranges. Where the store names states, the ranges are bound to that of
the index. Where it does not, an answer that does not fit makes us look at the index again: if that is another one now,
the object is read anew; if it is the same, the object is damaged. A writer that exchanges it again and again is answered
by one request for the whole, which is always one state.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import native
from ..errors import ShardError, ShardFormatError
from ..options import Options
from ..storage.aio import all_of, to_its_end
from ..storage.remote import Answer, ByteBudget, Changed, Limits, Remote
from .boxes import as_void, n_touched, touched
from .placement import ABSENT
from .reader import INLINE_NBYTES, ReadItem, decoded_nbytes, explain, index_too_short, read

__all__ = ["fetch", "wants_whole"]

# Where at least this share of a shard's inner chunks is wanted, it is fetched whole: a quarter more bytes at most ...
WHOLE_SHARE = 0.8

# ... unless it may be larger than this. Then index and ranges are better: they come side by side, are decoded while
# others are on their way, and need not all be in memory.
WHOLE_NBYTES = 64 << 20

# Where the size of an object is not known, an index of at most this size is asked for together with the last range.
INDEX_ROOM_NBYTES = 64 << 10

# So often an object is read by index and ranges, if it is another one each time.
MAX_TRIES = 3

# A coroutine is at work on one object at a time; so many more of them than requests, to have indexes come early.
OBJECTS_PER_REQUEST = 2


def wants_whole(chain: Any, n_wanted: int, limits: Limits) -> bool:
    """Tell whether one request for all of an object is better than index and ranges.

    Parameters
    ----------
    chain : Chain
    n_wanted : int
        Inner chunks that are wanted.
    limits : Limits
    """
    if not chain.is_shard:
        return True
    inner_nbytes = math.prod(chain.inner.shape) * int(chain.itemsize)  # encoded, it is hardly more
    if chain.n_chunks * inner_nbytes > WHOLE_NBYTES:
        return False
    n_waste = int(chain.n_chunks) - n_wanted
    return bool(n_waste * inner_nbytes <= limits.max_gap_nbytes or n_wanted >= WHOLE_SHARE * chain.n_chunks)


async def fetch(
    items: Sequence[ReadItem],
    out: np.ndarray[Any, Any],
    axes: Sequence[int],
    options: Options,
    remote: Remote,
    limits: Limits,
) -> list[int]:
    """Read boxes of objects of a store into an array.

    Parameters
    ----------
    items : sequence of ReadItem
        Their keys are those of the store; sources do not count.
    out, axes
        As for `read`.
    remote : Remote
    limits : Limits

    Returns
    -------
    list of int
        Positions of items whose object does not exist.

    Raises
    ------
    ShardFormatError, ChecksumError, CodecError
        An object is damaged.
    Exception
        Whatever the store raises. All other requests have ended then.
    """
    call = _Call(items, out, axes, options, remote, limits)
    queue = iter(enumerate(items))
    n_workers = min(len(items), OBJECTS_PER_REQUEST * limits.n_requests)
    missing = await all_of(call.work_off(queue) for _ in range(n_workers))
    return sorted(position for some in missing for position in some)


class _Index(NamedTuple):
    """An index that was fetched: n_chunks pairs, and of the object's state what the store told."""

    entries: np.ndarray[Any, Any]
    nbytes: int | None
    version: Any

    def is_that_of(self, other: _Index) -> bool:
        return bool(self.version == other.version and np.array_equal(self.entries, other.entries))


class _Call:
    """What the objects of one call share."""

    def __init__(
        self,
        items: Sequence[ReadItem],
        out: np.ndarray[Any, Any],
        axes: Sequence[int],
        options: Options,
        remote: Remote,
        limits: Limits,
    ) -> None:
        self.out = out
        self.axes = axes
        self.options = options
        self.remote = remote
        self.limits = limits
        self.requests = asyncio.Semaphore(limits.n_requests)
        self.budget = ByteBudget(limits.budget_nbytes)
        self.decoders = asyncio.Semaphore(options.threads)
        self.is_small = sum(decoded_nbytes(item.chain, item.box) for item in items) <= INLINE_NBYTES

    async def work_off(self, queue: Iterator[tuple[int, ReadItem]]) -> list[int]:
        """Take objects from the queue that all workers share; return the positions of missing ones."""
        return [position for position, item in queue if not await _Object(self, item).run()]

    async def decode(self, item: ReadItem) -> None:
        if self.is_small:
            read([item], self.out, self.axes, self.options)
            return
        async with self.decoders:
            await to_its_end(asyncio.to_thread(read, [item], self.out, self.axes, self.options))


class _Object:
    """One object of a call."""

    def __init__(self, call: _Call, item: ReadItem) -> None:
        self.call = call
        self.item = item
        self.chain = item.chain
        self.key = item.key

    async def run(self) -> bool:
        """Fill the item's box; return whether the object exists."""
        if wants_whole(self.chain, self.n_wanted(), self.call.limits):
            return await self.read_whole()
        index = await self.index()
        for _ in range(MAX_TRIES):
            if index is None:
                await self.decode(None)
                return False
            try:
                await self.read_ranges(index)
                return True
            except Changed:
                index = await self.index()
            except ShardError:
                newer = await self.index()
                if newer is not None and newer.is_that_of(index):
                    raise
                index = newer
        return await self.read_whole()

    def n_wanted(self) -> int:
        return n_touched(self.item.box, self.chain) if self.chain.is_shard else 1

    async def read_whole(self) -> bool:
        nbytes = math.prod(self.chain.shape) * int(self.chain.itemsize) + int(self.chain.index_nbytes)
        async with self.call.budget.hold(nbytes):
            async with self.call.requests:
                answer = await self.call.remote.get(self.key)
            await self.decode(None if answer is None else answer.data)
        return answer is not None

    async def index(self) -> _Index | None:
        """Fetch and decode the index, its checksum checked; None when the object does not exist."""
        chain, remote = self.chain, self.call.remote
        n = chain.index_nbytes
        async with self.call.requests:
            if chain.index_at_start:
                answer = await remote.get_range(self.key, 0, n)
            else:
                answer = await remote.get_suffix(self.key, n)
        if answer is None:
            return None
        if len(answer.data) < n or (answer.nbytes is not None and answer.nbytes < n):
            # before memory is taken for what the metadata promises
            raise index_too_short(self.key, len(answer.data), n)
        self.check_length(answer, 0, n)
        entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
        try:
            native.load().load_index(chain, answer.data, entries)
        except ShardError as error:
            raise self.explained(error) from None
        return _Index(entries, answer.nbytes, answer.version)

    async def read_ranges(self, index: _Index) -> None:
        """Fetch what the box needs and decode it range by range."""
        limits = self.call.limits
        engine = native.load()
        try:
            ranges = engine.plan_ranges(
                self.chain,
                index.entries,
                self.item.box,
                as_void(self.call.out),
                self.call.axes,
                shard_nbytes=index.nbytes,
                max_gap_nbytes=limits.max_gap_nbytes,
                max_nbytes=limits.max_nbytes,
                allow_in_index=self.call.options.allow_in_index,
            )
        except ShardError as error:
            raise self.explained(error) from None
        work = [self.read_range(index, *wanted) for wanted in self.with_room_for_index(index, ranges)]
        absent = engine.Fetched(self.chain, index.entries, None, 0, fill_absent=True)
        await all_of([*work, self.decode(absent)])

    async def read_range(self, index: _Index, offset: int, nbytes: int, room: int) -> None:
        """Fetch one range and decode what lies in it; `room` is what must be there behind it."""
        async with self.call.budget.hold(nbytes):
            async with self.call.requests:
                answer = await self.call.remote.get_range(
                    self.key, offset, offset + nbytes + room, index.version
                )
            if answer is None:  # gone since the index was read; or there, and without these bytes
                raise self.too_short(index.entries, offset)
            if len(answer.data) < nbytes + room:
                raise self.too_short(index.entries, offset + len(answer.data))
            self.check_length(answer, offset, nbytes + room)
            if nbytes:
                data = answer.data[:nbytes]
                await self.decode(
                    native.load().Fetched(self.chain, index.entries, data, offset, fill_absent=False)
                )

    @property
    def leaves_room(self) -> bool:
        """Whether an index must follow the last inner chunk."""
        return not self.chain.index_at_start and not self.call.options.allow_in_index

    def with_room_for_index(self, index: _Index, ranges: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """Ask for so much more that an inner chunk which touches an index at the end does not pass unseen.

        Where the size of the object is not known, behind the last inner chunk there must at least be room for the
        index. If that is small, the last range is longer by it; else one more byte is asked for.
        """
        wanted = [(offset, nbytes, 0) for offset, nbytes in ranges]
        if not self.leaves_room or index.nbytes is not None or not ranges:
            return wanted
        offset, nbytes = ranges[-1]
        if self.chain.index_nbytes <= INDEX_ROOM_NBYTES:
            return [*wanted[:-1], (offset, nbytes, self.chain.index_nbytes)]
        return [*wanted, (offset + nbytes + self.chain.index_nbytes - 1, 0, 1)]

    def check_length(self, answer: Answer, offset: int, nbytes: int) -> None:
        """Refuse an answer that is longer than what was asked for."""
        if len(answer.data) > nbytes:
            raise ShardFormatError(
                f"shard {self.key!r}: the store answers with {len(answer.data)} bytes where it was asked for {nbytes} "
                f"at offset {offset}",
                shard=self.key,
                offset=offset,
                expected=nbytes,
                actual=len(answer.data),
            )

    def too_short(self, entries: np.ndarray[Any, Any], end: int) -> ShardError:
        """The error for an object that has no bytes from `end` on, though an inner chunk of the box needs them."""
        chain = self.chain
        wanted = touched(self.item.box, chain.perm, chain.inner.shape, chain.grid_shape)
        wanted &= entries[:, 0] != ABSENT
        last = max(0, end - (chain.index_nbytes if self.leaves_room else 0))
        entry = int(np.flatnonzero(wanted & (entries.sum(axis=1, dtype=np.uint64) > last))[0])
        offset, nbytes = (int(number) for number in entries[entry])
        what = "the store has none" if offset + nbytes > end else "the index is there; the store has no more"
        error = ShardFormatError(
            f"index entry claims {nbytes} bytes at offset {offset}, but {what} from {end} on",
            entry=entry,
            offset=offset,
            nbytes=nbytes,
            limit=end,
        )
        return self.explained(error)

    async def decode(self, source: Any) -> None:
        await self.call.decode(self.item._replace(source=source))

    def explained(self, error: ShardError) -> ShardError:
        error.shard = 0
        return explain(error, [self.item])
