# shard_threads.py - several shards at the same time
# SPDX-License-Identifier: MIT
"""`in_order`: threads work on shards; the results come in the order of the shards, so reports do not depend on timing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from .monitor import Monitor

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
    items: Iterable[T], work: Callable[[T], R], n_threads: int, monitor: Monitor, *, is_short: bool = False
) -> Iterator[R]:
    """Work on items in threads.

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
    if n_threads == 1 or is_short:
        yield from _one_by_one(rest, work, None if n_threads == 1 else _MOST_LONG, monitor)
    if n_threads > 1:
        yield from _in_threads(rest, work, n_threads, monitor)


def _one_by_one(
    items: Iterable[T], work: Callable[[T], R], most_long: int | None, monitor: Monitor
) -> Iterator[R]:
    """Work on items in this thread, until the work was long `most_long` times in a row."""
    n_long = 0
    for item in items:
        monitor.check()
        start = time.perf_counter()
        found = work(item)
        n_long = n_long + 1 if time.perf_counter() - start > _SHORT_SECONDS else 0
        yield found
        if n_long == most_long:
            return


def _in_threads(items: Iterable[T], work: Callable[[T], R], n_threads: int, monitor: Monitor) -> Iterator[R]:
    def begin(item: T) -> R:
        monitor.check()  # the stop may have been asked for while the item waited
        return work(item)

    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(n_threads, "shardcodec-shard") as threads:
        try:
            for item in items:
                monitor.check()
                waiting.append(threads.submit(begin, item))
                if len(waiting) > n_threads * _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                monitor.check()
                yield waiting.popleft().result()
        except Exception:
            for begun in _cancel(waiting):
                if begun.exception() is None:
                    yield begun.result()
            raise
        finally:
            _cancel(waiting)


def _cancel(waiting: Iterable[Future[R]]) -> list[Future[R]]:
    """Cancel what is not begun; return the rest. The last ones first, so that no thread begins one meanwhile."""
    return [one for one in reversed(list(waiting)) if not one.cancel()][::-1]
