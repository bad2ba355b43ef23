# work.py - work on several shards at a time: threads, memory, progress
# SPDX-License-Identifier: MIT
"""Work on several shards at a time: threads, memory, progress.

`in_order`: threads work on shards; the results come in the order of the shards, so reports do not depend on timing.
"""

from __future__ import annotations

import math
import operator
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, SupportsIndex, TypeVar

from ..access.array_reader import ArrayReader
from ..errors import UnsupportedError
from ..format.spec import ShardSpec
from ..storage.worker_threads import ThreadCall, WorkerThreads
from .report import Report, format_nbytes

__all__ = [
    "UNLIMITED",
    "Incomplete",
    "LostScheduler",
    "MemoryBudget",
    "MemoryShare",
    "Monitor",
    "RunOptions",
    "Stopped",
    "in_order",
]


# ---------------------------------------------------------------- how much memory a tool uses for indexes and data
#
# `MemoryBudget`: divides the memory that the caller permits among threads, and refuses shards that do not fit.
#
# Shards are read in blocks and inner chunk by inner chunk, so their size does not matter. What must fit is the index of a shard
# and one inner chunk, encoded and decoded; and whole shards where a store permits nothing else.

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


# ---------------------------------------------------------------- progress of a tool, and requests to stop
#
# `Monitor`: a tool tells it what is done, and asks it between two shards whether to stop.


class Stopped(Exception):
    """The user asked the tool to stop; the current shard was finished or dropped.

    Attributes
    ----------
    report : Report or None
        What `repair` and `compact` did before; None from the other tools.
    """

    report: Report | None = None


class Incomplete(Exception):
    """A job was interrupted, but not by the user; it can be resumed."""


class LostScheduler(OSError):
    """The scheduler of a cluster was lost, or has dropped the work."""


class Monitor:
    """The default monitor: it shows nothing and never stops a tool. A program overrides the methods."""

    def start(self, name: str, total: int | None) -> None:
        """Begin a new part of the work.

        Parameters
        ----------
        name : str
            What is worked on, such as the name of an array.
        total : int or None
            Number of shards to come; None if it is unknown.
        """

    def advance(self, n: int = 1) -> None:
        """Note that `n` more shards are done."""

    def add_nbytes(self, nbytes: int) -> None:
        """Note the size of objects that are done, in bytes; tools that know it call this before `advance`."""

    def check(self) -> None:
        """Raise `Stopped` if the user asked to stop; call it when no shard is half done."""


# ---------------------------------------------------------------- how a tool runs


@dataclass(frozen=True)
class RunOptions:
    """How a tool runs, as its caller has chosen: collected in the public function, and handed on as one record.

    Attributes
    ----------
    threads, memory : int or None
        Of this process, or of each worker.
    dask : str, distributed.Client, bool or None
        The cluster that does the work, as for `convert`.
    storage_options : mapping or None
        Options of the stores of URLs.
    monitor : Monitor
    """

    threads: int | None = None
    memory: int | None = None
    dask: Any = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    monitor: Monitor = field(default_factory=Monitor)


# ---------------------------------------------------------------- several shards at the same time

# Shards that wait for a thread, for each thread.
_AHEAD = 2
# Work that takes less is done sooner than a thread begins it: the threads would mostly wait for Python's lock.
_SHORT_SECONDS = 5e-4
# So many items in a row must take longer before threads are used: one may have to wait for another program.
_MOST_LONG = 8

T = TypeVar("T")
R = TypeVar("R")


def in_order(
    items: Iterable[T],
    work: Callable[[T], R],
    n_threads: int,
    monitor: Monitor,
    *,
    is_short: bool = False,
    is_large: Callable[[R], bool] | None = None,
    any_order: bool = False,
) -> Generator[R, None, None]:
    """Work on items in threads. No thread works after the generator is closed; after an error, close it to end them at once.

    Parameters
    ----------
    items : iterable
        Taken one by one, a few ahead of the results.
    work : callable
        Called in a thread with each item.
    n_threads : int
        With one, the work is done in the thread of the caller.
    monitor : Monitor
        It is asked before each item and each result whether to stop, also in the threads.
    is_short : bool
        The work on an item is expected to be short. It is done in the thread of the caller until it turns out to be long.
    is_large : callable, optional
        Says of a result that most of the work was done without Python's lock, so that a thread is worth it even if the work was short.
    any_order : bool
        Yield each result as soon as it is there, so that a long item does not keep the threads from further ones. All work is done in
        threads, so that an exception in the thread of the caller interrupts no item.

    Yields
    ------
    object
        What `work` returned, in the order of the items.

    Raises
    ------
    Stopped
        The user asked to stop.
    Exception
        What `items` or `work` raised first, in the order of the items. In both cases items that were begun are finished and
        their results are yielded before; no other item is begun.
    """
    rest = iter(items)
    if not any_order and (n_threads == 1 or is_short):
        yield from _one_by_one(rest, work, None if n_threads == 1 else _MOST_LONG, monitor, is_large)
        if n_threads == 1:
            return
    starts = _Starts(monitor)

    def begin(number: int, item: T) -> R:
        starts.check(number)  # the user may have asked to stop while the item waited
        return work(item)

    waiting: deque[ThreadCall[R]] = deque()

    def take() -> R:
        call = threads.next_finished() if any_order else threads.wait(waiting[0])
        assert call is not None  # without a limit of time
        waiting.remove(call)
        return call.result()

    with WorkerThreads[R](n_threads, "shardcodec-shard") as threads:
        try:
            for number, item in enumerate(rest):
                monitor.check()
                waiting.append(threads.submit(begin, number, item))
                if len(waiting) > n_threads * _AHEAD:
                    yield take()
            while waiting:
                monitor.check()
                yield take()
        except Exception:
            for begun in _cancel(waiting):
                if threads.wait(begun).error is None:
                    yield begun.result()
            raise


def _one_by_one(
    items: Iterable[T],
    work: Callable[[T], R],
    most_long: int | None,
    monitor: Monitor,
    is_large: Callable[[R], bool] | None,
) -> Iterator[R]:
    """Work on items in this thread, until the work was long, or the items were large, `most_long` times in a row."""
    n_long = 0
    for item in items:
        monitor.check()
        start = time.perf_counter()
        found = work(item)
        is_long = time.perf_counter() - start > _SHORT_SECONDS
        n_long = n_long + 1 if is_long or (is_large is not None and is_large(found)) else 0
        yield found
        if n_long == most_long:
            return


class _Starts:
    """Lets items begin until the user asks to stop. If an item has begun, so do all items before it.

    Parameters
    ----------
    monitor : Monitor
    """

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._lock = threading.Lock()
        self._last = -1  # the last item that has begun
        self._is_stopped = False

    def check(self, number: int) -> None:
        """Raise `Stopped` if an item must not begin."""
        with self._lock:
            if number < self._last:
                return
            if self._is_stopped:
                raise Stopped
            try:
                self._monitor.check()
            except Stopped:
                self._is_stopped = True
                raise
            self._last = number


def _cancel(waiting: Iterable[ThreadCall[R]]) -> list[ThreadCall[R]]:
    """Cancel items from the last one back to one that has begun; return the rest, which have begun."""
    rest = list(waiting)
    while rest and rest[-1].cancel():
        rest.pop()
    return rest
