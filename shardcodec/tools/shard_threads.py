# shard_threads.py - threads work on several shards at the same time
# SPDX-License-Identifier: MIT
"""`in_order`: threads work on shards; the results come in the order of the shards, so reports do not depend on timing."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TypeVar

from ..storage.worker_threads import ThreadCall, WorkerThreads
from .monitor import Monitor, Stopped

__all__ = ["in_order"]

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
