# concurrent_calls.py - calls to a file system at the same time, where each of them waits
# SPDX-License-Identifier: MIT
"""Calls at the same time, where one of them shows that each may wait for a round trip.

On a warm local disk such a call takes some microseconds, and a change of threads costs more than the call.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

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
    """Call a function for all items, up to `MAX_CALLS` at a time; as `call_each`.

    The caller takes part, so the work is done even if the system refuses to start threads.
    """
    calls = _Calls(work, items)
    threads: list[threading.Thread] = []
    try:
        with contextlib.suppress(RuntimeError):  # a limit of the process, or the end of the interpreter
            for _ in range(min(len(items), MAX_CALLS) - 1):
                threads.append(threading.Thread(target=calls.run, name="shardcodec-call"))
                threads[-1].start()
        calls.run()
    finally:
        calls.stop()
        for thread in threads:
            if thread.ident is not None:  # it was started
                thread.join()
    return calls.results()


class _Calls(Generic[T, R]):
    """The calls of `call_all`: each thread takes the next item until none is left or a call has raised."""

    def __init__(self, work: Callable[[T], R], items: Sequence[T]) -> None:
        self._work = work
        self._items = items
        self._left = deque(range(len(items)))
        self._results: dict[int, R] = {}
        self._errors: dict[int, BaseException] = {}

    def run(self) -> None:
        while self._left:
            try:
                i = self._left.popleft()
            except IndexError:  # another thread has taken it
                return
            try:
                self._results[i] = self._work(self._items[i])
            except BaseException as error:  # noqa: BLE001  # the caller raises it
                self._errors[i] = error
                self.stop()

    def stop(self) -> None:
        """Begin no further call."""
        self._left.clear()

    def results(self) -> list[R]:
        if self._errors:
            raise self._errors[min(self._errors)]
        return [self._results[i] for i in range(len(self._items))]
