# concurrent_calls.py - calls to a file system at the same time, where each of them waits
# SPDX-License-Identifier: MIT
"""Calls at the same time, where one of them shows that each may wait for a round trip.

On a warm local disk such a call takes some microseconds, and a change of threads costs more than the call.
"""

from __future__ import annotations

import _thread
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from .. import native

__all__ = ["COSTLY_SECONDS", "MAX_CALLS", "call_all", "call_each", "finish_each"]

T = TypeVar("T")
R = TypeVar("R")

# From this duration on, several calls at a time are worth their threads.
COSTLY_SECONDS = 200e-6

# Most calls at a time.
MAX_CALLS = 32


def call_each(work: Callable[[T], R], items: Sequence[T], *, waits: bool = False) -> list[R]:
    """Call a function for each item: one after the other until a call takes long, then several at a time.

    Parameters
    ----------
    work : callable
        It releases the GIL while it waits.
    items : sequence
    waits : bool
        True if a call is known to take long, so that the first one is not made alone.

    Returns
    -------
    list
        The results in the order of the items. If calls raise, so does this function: the error of the first such item,
        after all calls that were begun have ended. The exception of a signal handler comes before other errors.
    """
    results: list[R] = []
    while not waits and len(results) < len(items):
        begin = time.perf_counter()
        results.append(work(items[len(results)]))
        waits = time.perf_counter() - begin >= COSTLY_SECONDS
    return results + call_all(work, items[len(results) :])


def finish_each(work: Callable[[T], None], items: Sequence[T], *, waits: bool) -> None:
    """Call a function for each item, also if signal handlers raise meanwhile: their exception comes after the last call.

    Parameters
    ----------
    work : callable
        It raises nothing itself, and may be called for an item again.
    items : sequence
    waits : bool
        True if a call takes long: then several are made at a time, as by `call_all`, and else one after the other.
    """

    def call() -> None:
        if waits:
            call_all(work, items)
        else:
            for item in items:
                work(item)

    native.load().call_to_its_end(call)


def call_all(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Call a function for all items, up to `MAX_CALLS` at a time; as `call_each`.

    The caller takes part, so the work is done even if the system refuses to start threads.
    """
    if len(items) < 2:
        return [work(item) for item in items]
    to_its_end = native.load().call_to_its_end
    calls = _Calls(work, items)
    threads: list[threading.Thread] = []
    try:
        with contextlib.suppress(RuntimeError):  # a limit of the process, or the end of the interpreter
            for _ in range(min(len(items), MAX_CALLS) - 1):
                threads.append(threading.Thread(target=calls.run_in_thread, name="shardcodec-call"))
                threads[-1].start()
        calls.run()
    finally:  # after Ctrl-C too, the caller may release what the calls have taken
        to_its_end(calls.end)
    for thread in threads:
        if thread.ident is not None:  # it was started
            thread.join()
    return calls.results()


class _Calls(Generic[T, R]):
    """The calls of `call_all`: each thread takes the next item until none is left or a call has raised.

    `Thread.join` cannot tell when the calls have ended: after a signal handler has raised in it, Python 3.11 takes a running
    thread for one that has ended.
    """

    def __init__(self, work: Callable[[T], R], items: Sequence[T]) -> None:
        self._work = work
        self._items = items
        self._left = deque(range(len(items)))
        self._results: dict[int, R] = {}
        self._errors: dict[int, BaseException] = {}
        self._running: set[int] = set()
        self._one_ended = _thread.allocate_lock()  # locked, until a thread has left `_running`
        self._one_ended.acquire()

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
                self._left.clear()

    def run_in_thread(self) -> None:
        me = threading.get_ident()
        self._running.add(me)
        try:
            self.run()
        finally:
            self._running.discard(me)
            with contextlib.suppress(RuntimeError):  # another thread has released it just now
                self._one_ended.release()

    def end(self) -> None:
        """Begin no further call, and wait for those that run. It may be interrupted and called again."""
        self._left.clear()  # so a thread that joins `_running` after this makes no call
        while self._running:
            self._one_ended.acquire()

    def results(self) -> list[R]:
        if self._errors:
            raise self._errors[min(self._errors, key=lambda i: (isinstance(self._errors[i], Exception), i))]
        return [self._results[i] for i in range(len(self._items))]
