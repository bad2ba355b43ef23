# concurrent_calls.py - calls to a file system at the same time, where each of them waits
# SPDX-License-Identifier: MIT
"""Calls at the same time, where one of them shows that each may wait for a round trip.

On a warm local disk such a call takes some microseconds, and a change of threads costs more than the call.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from .. import native
from .worker_threads import WorkerThreads

__all__ = ["COSTLY_SECONDS", "MAX_CALLS", "call_all", "call_each", "finish_each"]

T = TypeVar("T")
R = TypeVar("R")

# From this duration on, concurrent calls are worth their threads.
COSTLY_SECONDS = 200e-6

# Bound of concurrent calls.
MAX_CALLS = 32


def call_each(work: Callable[[T], R], items: Sequence[T], *, waits: bool = False) -> list[R]:
    """Call a function for each item: one after the other until a call takes long, then several at the same time.

    work: it releases the GIL while it waits. waits: a call is known to take long, so the first one is not made alone. Returns
    the results in the order of the items. If calls raise, the error of the first such item is raised, after all calls that were
    begun have ended. The exception of a signal handler comes before other errors.
    """
    results: list[R] = []
    while not waits and len(results) < len(items):
        begin = time.perf_counter()
        results.append(work(items[len(results)]))
        waits = time.perf_counter() - begin >= COSTLY_SECONDS
    return results + call_all(work, items[len(results) :])


def finish_each(work: Callable[[T], None], items: Sequence[T], *, waits: bool) -> None:
    """Call a function for each item, also if signal handlers raise meanwhile: their exception comes after the last call.

    work: it raises nothing itself, and may be called for an item again. waits: a call takes long: then several are made at the
    same time, as by `call_all`, and else one after the other.
    """

    def call() -> None:
        if waits:
            call_all(work, items)
        else:
            for item in items:
                work(item)

    native.load().call_to_its_end(call)


def call_all(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call a function for all items, up to `MAX_CALLS` at the same time; as `call_each`.

    The caller takes part, so the work is done even if the system refuses to start threads.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    calls = _Calls(work, items)
    n_more = min(len(items), MAX_CALLS) - 1
    with WorkerThreads[None](n_more, "shardcodec-call") as threads:
        try:
            for _ in range(n_more):
                threads.submit(calls.run)
            calls.run()
        finally:  # after Ctrl-C no further call begins
            calls.remaining.clear()
    return calls.results()


class _Calls(Generic[T, R]):
    """The calls of `call_all`: each thread takes the next item until none is left or a call has raised."""

    def __init__(self, work: Callable[[T], R], items: Sequence[T]) -> None:
        self._work = work
        self._items = items
        self.remaining = deque(range(len(items)))
        self._results: dict[int, R] = {}
        self._errors: dict[int, BaseException] = {}

    def run(self) -> None:
        while self.remaining:
            try:
                i = self.remaining.popleft()
            except IndexError:  # another thread has taken it
                return
            try:
                self._results[i] = self._work(self._items[i])
            except BaseException as error:  # noqa: BLE001  # the caller raises it
                self._errors[i] = error
                self.remaining.clear()

    def results(self) -> list[R]:
        if self._errors:
            raise self._errors[min(self._errors, key=lambda i: (isinstance(self._errors[i], Exception), i))]
        return [self._results[i] for i in range(len(self._items))]
