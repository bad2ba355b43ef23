# shard_threads.py - several shards at the same time
# SPDX-License-Identifier: MIT
"""`in_order`: threads work on shards; the results come in the order of the shards, so reports do not depend on timing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from .monitor import Monitor

__all__ = ["in_order"]

# Shards that wait for a thread, for each thread.
_AHEAD = 2

T = TypeVar("T")
R = TypeVar("R")


def in_order(items: Iterable[T], work: Callable[[T], R], n_threads: int, monitor: Monitor) -> Iterator[R]:
    """Work on items in threads.

    Parameters
    ----------
    items : iterable
        Taken one by one, a few ahead of the results.
    work : callable
        Called in a thread with each item.
    n_threads : int
    monitor : Monitor
        It is asked before each item and each result whether to stop.

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
    if n_threads == 1:  # another thread would take memory of its own
        for item in items:
            monitor.check()
            yield work(item)
        return
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(n_threads, "shardcodec-shard") as threads:
        try:
            for item in items:
                monitor.check()
                waiting.append(threads.submit(work, item))
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
