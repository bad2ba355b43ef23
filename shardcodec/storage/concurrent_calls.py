# concurrent_calls.py - calls to a file system at the same time, where each of them waits
# SPDX-License-Identifier: MIT
"""Calls at the same time, where one of them shows that each may wait for a round trip.

On a warm local disk such a call takes some microseconds, and a change of threads costs more than the call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

__all__ = ["COSTLY_SECONDS", "MAX_CALLS", "call_all", "call_each"]

T = TypeVar("T")
R = TypeVar("R")

# From this duration on, several calls at a time are worth their threads.
COSTLY_SECONDS = 200e-6

# Most calls at a time.
MAX_CALLS = 32


def call_each(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call a function for each item: one after the other until a call takes long, then several at a time.

    Parameters
    ----------
    work : callable
        It releases the GIL while it waits.
    items : sequence

    Returns
    -------
    list
        The results in the order of the items. If calls raise, so does this function: the error of the first such item,
        after all calls that were begun have ended.
    """
    results: list[R] = []
    waits = False
    while not waits and len(results) < len(items):
        begin = time.perf_counter()
        results.append(work(items[len(results)]))
        waits = time.perf_counter() - begin >= COSTLY_SECONDS
    return results + call_all(work, items[len(results) :])


def call_all(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call a function for all items, up to `MAX_CALLS` at a time; as `call_each`."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(len(items), MAX_CALLS), "shardcodec-call") as threads:
        return list(threads.map(work, items))
