# worker_threads.py - threads that end with the block that has started them
# SPDX-License-Identifier: MIT
"""Threads that end with the block that has started them. Nothing else in the package starts threads that read or write shards.

After the block no thread of it works, whatever ended the block: a thread that still wrote after Ctrl-C would put a shard of a
conversion that was given up into the next one. A pool of `concurrent.futures` does not promise that: a signal handler that raises
in `Thread.start` leaves a running thread of which the pool does not know, and one that raises while the pool waits ends the wait.
Here each thread tells of itself, and the caller uses no lock that a signal handler could leave locked.
"""

from __future__ import annotations

import _thread
import contextlib
import queue
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from .. import native

__all__ = ["ThreadCall", "WorkerThreads", "caller"]

R = TypeVar("R")

# A thread without work looks so often whether the interpreter ends.
_IDLE_SECONDS = 1.0


class ThreadCall(Generic[R]):
    """A call that a thread makes."""

    def __init__(self, work: Callable[..., R], arguments: tuple[Any, ...]) -> None:
        self._work, self._arguments = work, arguments
        self._unclaimed = [None]  # `pop` succeeds once: for the thread that begins, or for `native`
        self._result: R | None = None
        self.error: BaseException | None = None
        self.is_done: bool = False

    def cancel(self) -> bool:
        """Return True if the call has not begun; it is never made then."""
        return self._claims()

    def result(self) -> R:
        """Return or raise what the finished call returned or raised."""
        if self.error is not None:
            raise self.error
        return self._result  # type: ignore[return-value]

    def run(self) -> bool:
        """Make the call in this thread; return False if it was cancelled."""
        if not self._claims():
            return False
        try:
            self._result = self._work(*self._arguments)
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            self.error = error
        self.is_done = True
        return True

    def _claims(self) -> bool:
        try:
            self._unclaimed.pop()
        except IndexError:
            return False
        return True


# The thread that waits for this one.
_callers = threading.local()


def caller() -> int:
    """Return the number of the thread that waits for this one in a `with` block of `WorkerThreads`, or else of this one."""
    return getattr(_callers, "ident", None) or threading.get_ident()


class WorkerThreads(Generic[R]):
    """At most `n_threads` threads that make calls, for a with block; their names begin with `name`.

    At the end of the block calls that have not begun are dropped, and those that have begun are finished, also if signal
    handlers raise meanwhile: their exception comes after the last call.
    """

    def __init__(self, n_threads: int, name: str) -> None:
        self._n_threads, self._name = n_threads, name
        self._threads: list[threading.Thread] = []
        self._calls: queue.SimpleQueue[ThreadCall[R] | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[ThreadCall[R]] = queue.SimpleQueue()
        self._is_closed = False
        self._working: set[int] = set()
        self._caller: int | None = None  # the thread of the `with` block, which waits for the calls
        self._one_ended = _thread.allocate_lock()  # locked, until a thread has left `_working`
        self._one_ended.acquire()

    def __enter__(self) -> Self:
        # as `caller`, which would be one more call for each array
        self._caller = getattr(_callers, "ident", None) or threading.get_ident()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        native.load().call_to_its_end(self._end)
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join()

    def submit(self, work: Callable[..., R], *arguments: Any) -> ThreadCall[R]:
        """Let a thread make a call; the caller makes it if the system starts no thread at all."""
        call = ThreadCall(work, arguments)
        self._calls.put(call)
        if len(self._threads) < self._n_threads:
            self._start_thread()
        if not self._threads:
            self._work_off(self._calls.get_nowait())
        return call

    def wait(self, call: ThreadCall[R]) -> ThreadCall[R]:
        """Return a call that was submitted as soon as it is finished."""
        while not call.is_done:
            self._finished.get()
        return call

    def next_finished(self, timeout: float | None = None) -> ThreadCall[R] | None:
        """Return the next call that is finished, of those that `wait` has not waited for; None after `timeout` seconds."""
        try:
            return self._finished.get(timeout=timeout)
        except queue.Empty:
            return None

    def _start_thread(self) -> None:
        number = len(self._threads)
        thread = threading.Thread(target=self._run, name=f"{self._name}_{number}")
        self._threads.append(thread)
        try:
            thread.start()
        except RuntimeError:  # a limit of the process, or the end of the interpreter
            self._threads.remove(thread)

    def _run(self) -> None:
        me = threading.get_ident()
        _callers.ident = self._caller
        # before the look at `_is_closed`, so that `_end` sees it if there is any work to do
        self._working.add(me)
        try:
            while not self._is_closed:
                with contextlib.suppress(queue.Empty):
                    self._work_off(self._calls.get(timeout=_IDLE_SECONDS))
                if not threading.main_thread().is_alive():
                    return
        finally:
            self._working.discard(me)
            with contextlib.suppress(RuntimeError):  # another thread has released it just now
                self._one_ended.release()

    def _work_off(self, call: ThreadCall[R] | None) -> None:
        if call is not None and not self._is_closed and call.run():
            self._finished.put(call)

    def _end(self) -> None:
        """Begin no further call, and wait for those that run. It may be interrupted and called again."""
        self._is_closed = True
        for _ in self._threads:
            self._calls.put(None)
        while self._working:
            self._one_ended.acquire()
