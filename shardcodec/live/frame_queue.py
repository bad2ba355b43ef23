# frame_queue.py - the frames of one stream that are not stored yet
# SPDX-License-Identifier: MIT
"""`StreamQueue`: the waiting frames of one stream, and the choice of those that the next update stores. `FrameMemory`: their memory.

A frame waits until `max_delay` has passed, so that one update has several frames. An inner chunk of several frames is written in
one update if all of them come in this time: each further update encodes it again, and leaves the bytes of the older one dead.
Where a shard is replaced as a whole, its frames wait until all are there.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import deque
from collections.abc import Iterable, Sequence
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from ..access.placement import BLOCK_NBYTES
from ..errors import StreamError
from .order import Changes, FrameOrder
from .record import StreamRecord
from .target import Frame, FrameTarget, FrameUpdate

__all__ = ["FrameMemory", "StreamLimits", "StreamQueue", "Ticket", "Tokens"]

Ints = tuple[int, ...]
Tokens = SimpleQueue[None]

# Frames that wait in the memory of one queue, also if they are tiny.
MAX_FRAMES = 1 << 16
# A slot begins at a multiple of this number of bytes, for any data type; the first one at a block.
SLOT_ALIGNMENT = 64


class FrameMemory:
    """The memory of the frames that wait: slots of the size of the largest frame. Its callers: as those of `StreamQueue`.

    A frame goes behind the one before it, if this slot is free and was used before, else into the lowest free slot. So frames that
    follow each other lie one behind the other, and no more memory is used than once waited.
    """

    def __init__(self, nbytes: int, frame_nbytes: int) -> None:
        self._slot_nbytes = -(-frame_nbytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT
        self.n_slots: int = min(nbytes // self._slot_nbytes, MAX_FRAMES)
        if not self.n_slots:
            raise ValueError(
                f"queue: expected at least {self._slot_nbytes} bytes, for one frame, got {nbytes}"
            )
        self._is_free = bytearray(b"\1" * self.n_slots)
        self._n_used = 0  # slots behind these were never taken
        self._last = -1
        room = np.empty(self.n_slots * self._slot_nbytes + BLOCK_NBYTES, dtype=np.uint8)
        self._bytes = room[-room.ctypes.data % BLOCK_NBYTES :]

    @property
    def is_full(self) -> bool:
        """True if no slot is free."""
        return 1 not in self._is_free

    def free_slot(self) -> int | None:
        """Return the slot for the next frame; None if none is free."""
        if self.is_full:
            return None
        slot = self._last + 1
        return slot if slot < self._n_used and self._is_free[slot] else self._is_free.index(1)

    def taking(self, slot: int) -> Changes:
        """Return the changes that take a free slot."""
        return [
            (operator.setitem, self._is_free, slot, 0),
            (setattr, self, "_n_used", max(self._n_used, slot + 1)),
            (setattr, self, "_last", slot),
        ]

    def giving(self, slots: Iterable[int]) -> Changes:
        """Return the changes that free slots."""
        return [(operator.setitem, self._is_free, slot, 1) for slot in slots]

    def give(self, slots: Iterable[int]) -> None:
        """Free slots."""
        for slot in slots:
            self._is_free[slot] = 1

    def slots(self, shape: Ints, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Return all slots as one array of frames of this shape."""
        strides = [math.prod(shape[axis + 1 :]) * dtype.itemsize for axis in range(len(shape))]
        return np.ndarray(
            (self.n_slots, *shape), dtype, buffer=self._bytes.data, strides=(self._slot_nbytes, *strides)
        )


class StreamLimits(NamedTuple):
    """When frames are stored.

    max_delay: seconds. n_frames: most frames of an update. by_shard: shards are stored as a whole. grow_every: frames after which
    the shape is changed; None: the shape is fixed.
    """

    max_delay: float
    n_frames: int
    by_shard: bool
    grow_every: int | None


class Ticket:
    """An update that has begun. Updates are stored in the order of their tickets, because a later frame may have the same place.

    number: of its first frame. turn: gets a token when all tickets before this one have ended. is_void: one of them has failed, and
    its frames must be stored first.
    """

    def __init__(self, frames: list[Frame]) -> None:
        self.frames: list[Frame] = frames
        self.number: int = frames[0].number if frames else 0
        self.turn: Tokens = Tokens()
        self.is_void: bool = False


class StreamQueue:
    """The frames of one stream that wait. Callers of the methods hold the mutex of the writers, except for `store` and `publish`.

    The methods for the thread of the user change nothing: they return `Changes`, which the caller makes in one step.

    flush_until: frames with smaller numbers are stored at once. n_stored: all frames with smaller numbers are stored, or were dropped.
    n_published: those that the record counts. ends: the next update tells readers that no further frames come, and is the last one;
    has_ended: it has. failure: the error of the last update. given_up: numbers of frames that a closed stream
    has not stored.
    """

    def __init__(
        self, target: FrameTarget, order: FrameOrder, record: StreamRecord, limits: StreamLimits
    ) -> None:
        self.target = target
        self.order = order
        self._record = record
        self._limits = limits
        self._groups: dict[Ints, deque[Frame]] = {}
        self._whole: deque[Ints] = deque()
        self._missing: dict[Ints, int] = {}  # frames that have not come yet, of the shards of which some have
        self._done: set[int] = set()
        self.n_stored: int
        self.n_published: int
        self.n_stored = self.n_published = self._n_grown = order.number
        self.flush_until = 0
        self._tickets: list[Ticket] = []
        self.ends: bool = False
        self.has_ended: bool = False
        self.is_closed: bool = False
        self.failure: BaseException | None = None
        self.given_up: list[int] = []
        self.n_frames: int
        self.n_frames_stored: int
        self.n_frames_dropped: int
        self.n_frames = self.n_frames_stored = self.n_frames_dropped = self.n_updates = 0
        self.slowest: float = 0.0

    @property
    def stores_shards(self) -> bool:
        """True if shards are stored as a whole."""
        return self._limits.by_shard

    @property
    def n_busy(self) -> int:
        """Number of threads that encode or store frames."""
        return len(self._tickets)

    @property
    def update_nbytes(self) -> int:
        """Size of the frames of the largest update."""
        return self._limits.n_frames * self.target.frame_nbytes

    def begin(self) -> None:
        """Take the array over from an earlier stream, and show readers all frames of it."""
        self._record.begin(self.n_stored)
        if self._limits.grow_every is not None:
            self.target.grow(self.n_stored // self.order.n_inner, self._record.check)

    def pushing(
        self, source: Any, row: int, slot: int, slots: Any | None, now: float
    ) -> tuple[bool, Changes]:
        """Return True if a sleeping thread should look, and the changes that add the next frame, ``source[row]``.

        slots: it is copied into its slot of this memory. IndexError: the array has no room for it.
        """
        place = self.order.place()
        key = self._shard_of(place) if self._limits.by_shard else ()
        changes: Changes = []
        if slots is not None:  # first, because it alone can fail
            changes.append((operator.setitem, slots, slot, source[row, ...]))
            source, row = slots, slot
        group = self._groups.get(key)
        if group is None:
            group = deque()
            changes.append((operator.setitem, self._groups, key, group))
        changes.append((group.append, Frame(self.order.number, place, source, row, slot, now)))
        changes.append((setattr, self, "n_frames", self.n_frames + 1))
        changes += self.order.taking()
        if self._limits.by_shard:
            is_whole, counting = self._counting(key)
            return is_whole, changes + counting
        return not group or len(group) + 1 >= self._limits.n_frames, changes

    def dropping(self) -> Changes:
        """Return the changes that leave the place of the next frame empty."""
        place = self.order.place()
        changes: Changes = [(self._done.add, self.order.number), *self.order.taking()]
        changes.append((setattr, self, "n_frames_dropped", self.n_frames_dropped + 1))
        return changes + (self._counting(self._shard_of(place))[1] if self._limits.by_shard else [])

    def _shard_of(self, place: Ints) -> Ints:
        return tuple(at // n for at, n in zip(place, self.target.shard_extents, strict=True))

    def _counting(self, shard: Ints) -> tuple[bool, Changes]:
        """Return True if the next frame is the last one of a shard, so that this can be stored, and the changes that count it."""
        n = self._missing.get(shard) or self.order.n_in_block(shard, self.target.shard_extents)
        if n > 1:
            return False, [(operator.setitem, self._missing, shard, n - 1)]
        return True, [(self._missing.pop, shard, None), (self._whole.append, shard)]

    def next_update(self, now: float, *, is_full: bool) -> list[Frame] | float:
        """Return the frames to store now, an empty list for an update of the record alone, or the seconds until the next look."""
        is_over = self.is_closed or self.has_ended
        if self.failure is not None or is_over or self.n_busy >= self.n_threads:
            return math.inf
        if any(ticket.is_void for ticket in self._tickets):
            return math.inf
        if self.n_busy:  # only whole updates, because others may come while the first one is stored
            waiting = self._groups.get((), deque())
            is_due = len(waiting) >= self._limits.n_frames
            return self._first_of(waiting, now, takes_all=False) if is_due else math.inf
        is_flush = not self.is_flushed(self.flush_until)
        if self.ends and not is_flush:
            return []
        if self._limits.by_shard:
            key = self._shard_to_store(any_shard=is_flush or is_full)
            if key is not None:
                return list(self._groups.pop(key))
        elif group := self._groups.get(()):
            wait = group[0].time + self._limits.max_delay - now
            if not (is_flush or is_full or wait <= 0 or len(group) >= self._limits.n_frames):
                return wait
            return self._first_of(group, now, takes_all=is_flush or is_full)
        return [] if is_flush and not any(self._groups.values()) else math.inf

    def is_flushed(self, number: int) -> bool:
        """Return True if readers see all frames before a number."""
        n_seen = self.n_published if self._limits.grow_every is None else min(self.n_published, self._n_grown)
        return n_seen >= number

    def is_busy_before(self, number: int) -> bool:
        """Return True if an update of frames before a number, or of the record alone, has not ended."""
        return any(ticket.number < number for ticket in self._tickets)

    def _shard_to_store(self, *, any_shard: bool) -> Ints | None:
        while self._whole:
            key = self._whole.popleft()
            if self._groups.get(key):
                return key
        groups = {key: group for key, group in self._groups.items() if group} if any_shard else {}
        return max(groups, key=lambda key: len(groups[key])) if groups else None

    def _first_of(self, group: deque[Frame], now: float, *, takes_all: bool) -> list[Frame]:
        """Take the first frames out of a group, if possible up to the end of an inner chunk.

        Those that do not lie one behind the other in memory would be copied, so they wait for the next update, if it does not
        have fewer than half of the frames.
        """
        n = min(len(group), self._limits.n_frames)
        pairs = itertools.pairwise(itertools.islice(group, n))
        n_joined = 1 + sum(1 for _ in itertools.takewhile(lambda pair: pair[1].follows(pair[0]), pairs))
        end = self._chunk_end(group, n_joined)
        if 2 * end >= self._limits.n_frames:
            return [group.popleft() for _ in range(end)]
        end = self._chunk_end(group, n)
        rest_is_due = n == len(group) and (
            takes_all or (end < n and group[end].time + self._limits.max_delay <= now)
        )
        return [group.popleft() for _ in range(n if not end or rest_is_due else end)]

    def _chunk_end(self, group: deque[Frame], end: int) -> int:
        """Return the last position up to `end` at which an inner chunk ends, 0 if there is none."""
        while end and not self._ends_chunk(group, end):
            end -= 1
        return end

    def _ends_chunk(self, group: deque[Frame], end: int) -> bool:
        """Return True if the frame before position `end` completes its inner chunk, or the next frame is in another one."""
        extents = self.target.chunk_extents
        place = group[end - 1].place
        if end == len(group):
            return (place[-1] + 1) % extents[-1] == 0 or place[-1] + 1 == self.order.extents[-1]
        following = group[end].place
        return any(a // n != b // n for a, b, n in zip(place, following, extents, strict=True))

    @property
    def n_threads(self) -> int:
        """How many threads may store frames: one of them, and one that encodes the next ones meanwhile."""
        may_encode = self.target.encodes_ahead and self.target.options.threads > 1
        return 2 if may_encode and not self._limits.by_shard else 1

    def prepare(self, frames: Sequence[Frame]) -> FrameUpdate:
        """Do what may be done before the frames of earlier tickets are stored. Without the mutex."""
        update = self.target.prepare(frames)
        return self.target.encoded(update) if self.n_threads > 1 else update

    def store(self, update: FrameUpdate) -> None:
        """Store frames in one update. Without the mutex; the caller has the turn."""
        self.target.store(update, self._record.check)

    def mark_stored(self, frames: Sequence[Frame]) -> int:
        """Count frames that are stored; return the number of frames that the record may count."""
        self._mark([frame.number for frame in frames])
        self.n_frames -= len(frames)
        self.n_frames_stored += len(frames)
        return self.n_stored

    def _mark(self, numbers: Iterable[int]) -> None:
        self._done.update(numbers)
        while self.n_stored in self._done:
            self._done.remove(self.n_stored)
            self.n_stored += 1

    def publish(self, n_frames: int) -> None:
        """Show readers the frames before number `n_frames`: store the record, and a new shape after `grow_every` frames. Without the mutex."""
        ends = self.ends
        if n_frames > self.n_published or ends:
            self._record.publish(n_frames, is_open=not ends)
        grow_every, is_flush = self._limits.grow_every, self._n_grown < self.flush_until <= n_frames
        if grow_every is not None and (is_flush or n_frames - self._n_grown >= grow_every):
            self.target.grow(n_frames // self.order.n_inner, self._record.check)
            self._n_grown = n_frames
        self.n_published = n_frames
        self.has_ended = ends

    def begin_update(self, frames: list[Frame]) -> Ticket:
        """Return the ticket of the next update."""
        ticket = Ticket(frames)
        self._tickets.append(ticket)
        if len(self._tickets) == 1:
            ticket.turn.put(None)
        return ticket

    def end_update(self, ticket: Ticket, error: BaseException | None) -> list[Frame]:
        """End an update, whose frames wait again if they are not stored; return those that a closed stream has given up."""
        had_turn = ticket is self._tickets[0]
        self._tickets.remove(ticket)
        if error is not None and not ticket.is_void:
            self.failure = None if self.is_closed else error
            for later in self._tickets:
                later.is_void = True
        if had_turn and self._tickets:
            self._tickets[0].turn.put(None)
        if self.is_closed:
            self.n_frames -= len(ticket.frames)
            self.given_up += [frame.number for frame in ticket.frames]
            return ticket.frames
        self._put_back(ticket.frames)
        return []

    def _put_back(self, frames: Sequence[Frame]) -> None:
        """Put frames that were not stored back to the beginning of the queue."""
        if frames:
            key = self._shard_of(frames[0].place) if self._limits.by_shard else ()
            waiting = self._groups.get(key, deque())
            self._groups[key] = deque(sorted((*frames, *waiting)))  # by number: several updates may come back
            if self._limits.by_shard and key not in self._missing:
                self._whole.appendleft(key)

    def failing(self) -> tuple[BaseException, Changes] | None:
        """Return the error of the writer, if there is one, and the change after which the writer tries again."""
        error = self.failure
        if error is None:
            return None
        return self._error(error) if isinstance(error, Exception) else error, [
            (setattr, self, "failure", None)
        ]

    def _error(self, error: Exception) -> StreamError:
        waiting = [frame.number for frame in self.waiting()]
        numbers = sorted({*waiting, *range(self.n_published, self.n_stored)})
        if self.ends and not numbers:
            text = f"all frames are stored, but the end of the stream could not be: {error}; readers with `tail` wait until another stream resumes"
        else:
            shown = (
                f"{len(numbers)} frames from number {numbers[0]} on"
                if numbers
                else "the record of the stream"
            )
            shown = f"frame {numbers[0]}" if len(numbers) == 1 else shown
            text = f"{shown} could not be stored: {error}"
        failure = StreamError(f"array {self.target.folder!r}: {text}", numbers=tuple(numbers))
        failure.__cause__ = error
        return failure

    def closed_error(self, number: int) -> StreamError:
        """Return the error of a `flush` of the frames before a number, when the stream has been closed and has given up some of them."""
        numbers = sorted(each for each in self.given_up if each < number)
        return StreamError(
            f"array {self.target.folder!r}: expected to store the frames before number {number}, but the stream has been closed, and "
            f"{len(numbers)} of them are given up",
            numbers=tuple(numbers),
        )

    def waiting(self) -> list[Frame]:
        """Return the frames that are not stored, also those of updates that have begun."""
        return [frame for ticket in tuple(self._tickets) for frame in tuple(ticket.frames)] + self._queued()

    def _queued(self) -> list[Frame]:
        return [frame for group in tuple(self._groups.values()) for frame in tuple(group)]

    def closing(self, memory: FrameMemory) -> Changes:
        """Return the changes that drop the frames which wait; no further ones are taken. Those of updates that have begun follow in `end_update`."""
        frames = self._queued()
        return [
            (setattr, self, "is_closed", True),
            (setattr, self, "failure", None),
            (self._groups.clear,),
            (setattr, self, "n_frames", self.n_frames - len(frames)),
            (self.given_up.extend, [frame.number for frame in frames]),
            *memory.giving(frame.slot for frame in frames),
        ]
