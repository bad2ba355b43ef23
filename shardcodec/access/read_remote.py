# read_remote.py - boxes of many objects that are reached by requests, into one array
# SPDX-License-Identifier: MIT
"""Reading from stores that answer requests.

What is asked for, and when one request more is worth it:

- An object of which most is wanted, or which cannot be much larger than what is wanted, is fetched whole: one request.
- Of any other shard the index comes first, then the ranges that the box needs; ranges with a small gap are one
  (`storage.ranges`). That takes one round trip more, so it is worth it only where the rest of the shards is more than a
  round trip's worth of bytes (`Limits.max_gap_nbytes`).

Several objects are under way at a time, and the indexes of some while ranges of others are. Each answer is decoded when
it arrives (`decode_queue`), in another thread unless all is small.

An object can be exchanged between its index and its ranges. Where the store names states, the ranges are bound to that of
the index. Where it does not, an answer that does not fit makes us look at the index again: if that is another one now,
the object is read anew; if it is the same, the object is damaged. A writer that exchanges it again and again is answered
by one request for the whole, which is always one state.

Indexes are kept between calls (`storage.remote_indexes`); with one of these, what is wanted of a shard takes one request.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..errors import ShardError, ShardFormatError
from ..options import Options
from ..storage import remote_indexes
from ..storage.ranges import coalesced
from ..storage.remote_indexes import RemoteIndex
from ..storage.requests import Answer, ByteBudget, Changed, Limits, Remote
from ..storage.tasks import all_of
from .decode_queue import Arrivals
from .index_check import check_index, must_be_sound, reach
from .placement import ABSENT
from .read import INLINE_NBYTES, ReadItem, decoded_nbytes, explain, index_too_short
from .regions import n_touched, outline, touched

if TYPE_CHECKING:
    from .._native import Chain

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


def wants_whole(
    chain: Chain, n_wanted: int, limits: Limits, *, n_objects: int = 1, has_index: bool = False
) -> bool:
    """Tell whether one request for all of an object is better than index and ranges.

    Parameters
    ----------
    chain : Chain
    n_wanted : int
        Inner chunks that are wanted.
    limits : Limits
    n_objects : int
        Objects that the call reads.
    has_index : bool
        The index need not be asked for, which spares the round trip.
    """
    if not chain.is_shard:
        return True
    inner_nbytes = math.prod(chain.inner.shape) * int(chain.itemsize)  # encoded, it is hardly more
    if chain.n_chunks * inner_nbytes > WHOLE_NBYTES:
        return False
    n_waste = int(chain.n_chunks) - n_wanted
    is_cheap = not has_index and n_waste * inner_nbytes <= limits.share_nbytes(n_objects)
    return bool(is_cheap or n_wanted >= WHOLE_SHARE * chain.n_chunks)


async def fetch(
    items: Sequence[ReadItem],
    out: np.ndarray[Any, Any],
    axes: Sequence[int],
    options: Options,
    remote: Remote,
    limits: Limits,
    *,
    names: Sequence[str] | None = None,
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
    names : sequence of str, optional
        Of the items' objects, among all stores of the process: indexes are kept under them.

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
    optional_names: Sequence[str | None] = [None] * len(items) if names is None else names
    queue = iter(enumerate(zip(items, optional_names, strict=True)))
    n_workers = min(len(items), OBJECTS_PER_REQUEST * limits.n_requests)
    try:
        missing = await all_of(call.work_off(queue) for _ in range(n_workers))
    finally:
        await call.arrivals.end()
    return sorted(position for some in missing for position in some)


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
        is_small = sum(decoded_nbytes(item.chain, item.box) for item in items) <= INLINE_NBYTES
        self.arrivals = Arrivals(out, axes, options, inline=is_small)
        self.remote = remote
        self.limits = limits
        self.n_objects = len(items)
        self.requests = asyncio.Semaphore(limits.n_requests)
        self.objects = asyncio.Semaphore(limits.n_objects or limits.n_requests)
        self.budget = ByteBudget(limits.budget_nbytes)

    async def work_off(self, queue: Iterator[tuple[int, tuple[ReadItem, str | None]]]) -> list[int]:
        """Take objects from the queue that all workers share; return the positions of missing ones."""
        return [position for position, (item, name) in queue if not await _Object(self, item, name).run()]

    async def ask(self, request: Callable[..., Awaitable[Answer | None]], *arguments: Any) -> Answer | None:
        """Make a request when its turn has come."""
        async with self.requests:
            answer = await request(*arguments)
        native.load().totals_add(reads=1, bytes_read=0 if answer is None else len(answer.data))
        return answer


class _Object:
    """One object of a call."""

    def __init__(self, call: _Call, item: ReadItem, name: str | None) -> None:
        self.name = name
        self.n_wanted = n_touched(item.box, item.chain) if item.chain.is_shard else 1
        self.call = call
        self.item = item
        self.chain = item.chain
        self.key = item.key

    async def run(self) -> bool:
        """Fill the item's box; return whether the object exists."""
        index = self.kept_index()
        is_kept = index is not None
        call = self.call
        if wants_whole(self.chain, self.n_wanted, call.limits, n_objects=call.n_objects, has_index=is_kept):
            return await self.read_whole()
        if not is_kept:
            index = await self.index()
        for _ in range(MAX_TRIES):
            if index is None:
                await self.decode(None)
                return False
            try:
                await self.read_ranges(index, is_kept)
                return True
            except Changed:
                index = await self.index()
            except ShardError:
                newer = await self.index()
                if newer is not None and newer.is_that_of(index):
                    raise
                index = newer
            is_kept = False
        return await self.read_whole()

    async def read_whole(self) -> bool:
        # Encoded it is hardly more, but for an index that may be larger than tiny inner chunks.
        nbytes = max(math.prod(self.chain.shape) * int(self.chain.itemsize), int(self.chain.index_nbytes))
        since = remote_indexes.ticket(self.call.options)
        async with self.call.budget.hold(nbytes):
            async with self.call.objects:
                answer = await self.call.ask(self.call.remote.get, self.key)
            await (self.decode(None) if answer is None else self.decode(answer.data, len(answer.data)))
        if answer is None:
            return False
        if self.chain.is_shard and self.n_wanted < self.chain.n_chunks:  # more of it may be wanted later
            n = self.chain.index_nbytes
            stored = answer.data[:n] if self.chain.index_at_start else answer.data[-n:]
            index = self.loaded(answer._replace(data=stored))
            self.keep(index._replace(is_sound=must_be_sound(self.chain, self.call.options)), since)
        return True

    def kept_index(self) -> RemoteIndex | None:
        if self.name is None or not self.chain.is_shard:
            return None
        index = remote_indexes.get(self.name, self.chain, self.call.options)
        if index is not None:
            native.load().totals_add(index_hits=1)
        return index

    def keep(self, index: RemoteIndex, since: int) -> None:
        if self.name is not None:
            remote_indexes.put(self.name, self.chain, index, self.call.options, since)

    async def index(self) -> RemoteIndex | None:
        """Fetch and decode the index, its checksum checked; None when the object does not exist."""
        remote = self.call.remote
        n = self.chain.index_nbytes
        since = remote_indexes.ticket(self.call.options)
        if self.chain.index_at_start:
            answer = await self.call.ask(remote.get_range, self.key, 0, n)
        else:
            answer = await self.call.ask(remote.get_suffix, self.key, n)
        native.load().totals_add(index_misses=1)
        if answer is None:
            return None
        index = self.checked(self.loaded(answer))
        self.keep(index, since)
        return index

    def loaded(self, answer: Answer) -> RemoteIndex:
        """Decode an index."""
        chain, n = self.chain, self.chain.index_nbytes
        if len(answer.data) < n or (answer.nbytes is not None and answer.nbytes < n):
            # before memory is taken for what the metadata promises
            raise index_too_short(self.key, len(answer.data), n)
        self.check_length(answer, 0, n)
        entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
        try:
            native.load().load_index(chain, answer.data, entries)
        except ShardError as error:
            raise self.explained(error) from None
        return RemoteIndex(entries, answer.nbytes, answer.version)

    def checked(self, index: RemoteIndex) -> RemoteIndex:
        """Check all entries where `must_be_sound`; what is left to check is the end of an object of unknown size."""
        if index.is_sound or not must_be_sound(self.chain, self.call.options):
            return index
        try:
            check_index(self.chain, index.entries, index.nbytes, self.call.options)
        except ShardError as error:
            raise self.explained(error) from None
        return index._replace(is_sound=index.nbytes is not None)

    async def read_ranges(self, index: RemoteIndex, is_kept: bool) -> None:
        """Fetch what the box needs and decode it range by range."""
        limits = self.call.limits
        engine = native.load()
        since = remote_indexes.ticket(self.call.options)
        index = self.checked(index)
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
            raise self.explained(error) from None
        if is_kept and not ranges and not self.call.options.immutable:
            raise Changed(self.key)  # perhaps: no request would tell
        wanted = self.with_room_for_index(index, coalesced(ranges, limits, self.call.n_objects))
        if len(wanted) == 1:
            await self.read_range(index, *wanted[0], fill_absent=True)
        else:
            work = [self.read_range(index, *one) for one in wanted]
            absent = engine.Fetched(self.chain, index.entries, None, 0, fill_absent=True)
            await all_of([*work, self.decode(absent)])
        if ranges and not index.is_sound and must_be_sound(self.chain, self.call.options):
            self.keep(index._replace(is_sound=True), since)  # the last range had room for all entries

    async def read_range(
        self, index: RemoteIndex, offset: int, nbytes: int, room: int, *, fill_absent: bool = False
    ) -> None:
        """Fetch one range and decode what lies in it; `room` is what must be there behind it."""
        async with self.call.budget.hold(nbytes):
            end = offset + nbytes + room
            answer = await self.call.ask(self.call.remote.get_range, self.key, offset, end, index.version)
            if answer is None:  # gone since the index was read; or there, and without these bytes
                raise self.too_short(index.entries, offset)
            if len(answer.data) < nbytes + room:
                raise self.too_short(index.entries, offset + len(answer.data))
            self.check_length(answer, offset, nbytes + room)
            if nbytes or fill_absent:
                data = answer.data[:nbytes]
                fetched = native.load().Fetched(
                    self.chain, index.entries, data, offset, fill_absent=fill_absent
                )
                await self.decode(fetched, nbytes)

    @property
    def leaves_room(self) -> bool:
        """Whether an index must follow the last inner chunk."""
        return not self.chain.index_at_start and not self.call.options.allow_in_index

    def with_room_for_index(
        self, index: RemoteIndex, ranges: list[tuple[int, int]]
    ) -> list[tuple[int, int, int]]:
        """Ask for so much more that an object which ends too early does not pass unseen.

        Where its size is not known, behind the last inner chunk there must at least be room for an index at the end; and,
        where `must_be_sound`, for all that any entry claims. If that is little more, the last range is longer by it; else
        one more byte is asked for.
        """
        wanted = [(offset, nbytes, 0) for offset, nbytes in ranges]
        if index.nbytes is not None or not ranges:
            return wanted
        offset, nbytes = ranges[-1]
        last = end = offset + nbytes
        if must_be_sound(self.chain, self.call.options) and not index.is_sound:
            end = reach(self.chain, index.entries)
        elif self.leaves_room:
            end += self.chain.index_nbytes
        if end - last <= INDEX_ROOM_NBYTES:
            return [*wanted[:-1], (offset, nbytes, max(0, end - last))]
        return [*wanted, (end - 1, 0, 1)]

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
        wanted = entries[:, 0] != ABSENT
        if not must_be_sound(chain, self.call.options):
            wanted &= touched(self.item.box, chain.perm, chain.inner.shape, chain.grid_shape)
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

    async def decode(self, source: Any, nbytes: int = 0) -> None:
        await self.call.arrivals.decode(self.item._replace(source=source), nbytes)

    def explained(self, error: ShardError) -> ShardError:
        error.shard = 0
        return explain(error, [self.item])
