# writers.py - the threads that store the frames of streams
# SPDX-License-Identifier: MIT
"""`StreamWriters`: the threads and the memory that the streams of a group share.

A signal handler may interrupt a caller at any moment: its exception may end the call, and it may call the stream itself. So a caller
holds no lock while Python code runs. It decides first, and then makes all changes in one step of the native mutex (`_change`); in the
threads, where no handler runs, a `with` statement holds the mutex. Each sleeper has its own queue of tokens: a token wakes it, also if
it comes before the sleep.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, Literal, TypeVar

from .. import native
from ..access.placement import APPEND_NBYTES
from ..errors import StreamError, StreamFullError
from ..storage.worker_threads import WorkerThreads
from .frame_queue import FrameMemory, StreamQueue, Ticket, Tokens
from .order import Changes

__all__ = ["Full", "StreamWriters"]

T = TypeVar("T")
Full = Literal["block", "raise", "drop"]

# Memory that the engine keeps from one update to the next for each thread, in updates: encoded inner chunks, and all that is appended.
KEPT_UPDATES = 2
# Attempts of one change in steps; in each one another thread has made a change.
MAX_ATTEMPTS = 100
# Errors of a caller that reads while a thread makes a change; those of signal handlers have other types.
OF_CHANGES = (LookupError, RuntimeError, ValueError, StreamError)
# Longest sleep, in seconds: a thread then looks whether the interpreter ends, and a caller tries again.
IDLE_SECONDS = 1.0


class StreamWriters:
    """The threads and the memory that the streams of a group share.

    One thread stores frames of a stream, while another one may encode the next ones. Each update has a ticket.
    """

    def __init__(self, queues: Sequence[StreamQueue], memory: FrameMemory, n_threads: int) -> None:
        self._queues = queues
        self._memory = memory
        self._mutex = native.load().Mutex()
        self._idle: list[Tokens] = []  # threads without work
        self._waiting: list[Tokens] = []  # callers that wait for an update
        self._first = 0  # number of the queue that is asked first
        self._is_ending = self._is_abandoned = self._has_no_thread = False
        self._process = os.getpid()
        self._caller = threading.get_ident()
        self._n_threads, self._kept_nbytes = n_threads, 0
        self._threads = WorkerThreads[None](n_threads, "shardcodec-stream")

    def start(self) -> None:
        """Start the threads; `end` follows also an interrupt in here."""
        for _ in range(self._n_threads):
            self._threads.submit(self._run)
        # new memory for each update would cost as much as a copy of the frames
        update_nbytes = min(max(queue.update_nbytes for queue in self._queues), APPEND_NBYTES)
        kept_nbytes = KEPT_UPDATES * self._n_threads * update_nbytes
        native.load().keep_memory(kept_nbytes)
        self._kept_nbytes = kept_nbytes

    def check_process(self) -> None:
        """Raise RuntimeError in a forked child, which has none of the threads."""
        if os.getpid() != self._process:
            raise RuntimeError("expected the process that has begun the stream; begin one in this process")

    def push(self, queue: StreamQueue, source: Any, row: int, slots: Any | None, full: Full) -> bool:
        """Take a frame, ``source[row]``, in one step; return False if it was dropped. It raises as `Stream.append`.

        slots: the memory of the queue, into which it is copied; None: the frame is stored from where it is.
        """
        now = time.monotonic()

        def attempt() -> tuple[tuple[bool, bool] | BaseException | None, Changes] | None:
            self._check_open(queue)
            if queue.failure is not None:
                return queue.failing()
            slot = self._memory.free_slot()
            if slot is None and full == "block":
                return None
            if slot is None and full == "raise":
                raise self._full_error(queue)
            if queue.order.lacks_place:
                return None, []
            if slot is None:
                return (False, False), queue.dropping()
            wakes, changes = queue.pushing(source, row, slot, slots, now)
            return (True, wakes), changes + self._memory.taking(slot)

        while (taken := self._wait_for(attempt, queue)) is None:
            queue.order.fetch()
        is_taken, wakes = taken
        if wakes or self._memory.is_full:
            self._wake_idle()
        if self._has_no_thread:
            self._work_off()
        return is_taken

    def flush(self, queue: StreamQueue, *, is_last: bool = False) -> None:
        """Store all frames that were taken so far, and return when they are stored; it raises as `Stream.flush`.

        is_last: wait also for updates of frames that other threads append meanwhile.
        """

        def begin() -> tuple[int, Changes]:
            if not is_last:
                self._check_open(queue)
            number = queue.order.number
            retried = (setattr, queue, "failure", None)  # its frames are tried again now
            return number, [retried, (setattr, queue, "flush_until", max(number, queue.flush_until))]

        number = self._change(begin)
        self._wake_idle()

        def is_done() -> tuple[bool, Changes] | None:
            is_busy = queue.n_busy > 0 if is_last else queue.is_busy_before(number)
            if is_busy or queue.is_flushed(number):
                return None if is_busy else (True, [])
            if queue.is_closed:  # by another thread, whose call of `close` was interrupted
                raise queue.closed_error(number)
            return None

        self._wait_for(is_done, queue)

    def end_record(self, queue: StreamQueue) -> None:
        """Tell readers that no further frames come; it raises as `Stream.close`.

        A thread stores the record, so that the exception of a signal handler comes out as it is, and ends the wait.
        """
        self._change(lambda: (None, [(setattr, queue, "ends", True)]))
        self._wake_idle()
        self._wait_for(lambda: (True, []) if queue.has_ended or queue.is_closed else None, queue)

    def give_up(self, queue: StreamQueue, *, waits: bool = True) -> list[int]:
        """Take no further frames of a stream, drop those that wait, and return their numbers, with `waits` when no update is under way."""
        native.load().call_to_its_end(lambda: self._close(queue))
        if waits:
            self._wait_for(lambda: None if queue.n_busy else (True, []), queue)
        return sorted(queue.given_up)

    def _close(self, queue: StreamQueue) -> None:
        if not queue.is_closed:
            self._change(lambda: (None, queue.closing(self._memory)))

    def end(self, *, waits: bool = True) -> None:
        """End the threads, with `waits` when updates that have begun are finished. It may be called again after an interrupt."""
        native.load().call_to_its_end(self._abandon)
        self._wake_idle()
        if not waits:
            return
        try:
            self._threads.__exit__(None, None, None)
        except BaseException:
            self._threads.__exit__(None, None, None)  # the interrupt may have come before it had begun
            raise
        finally:
            self._change(self._releasing_memory)

    def _abandon(self) -> None:
        """Take no further frames: no thread would store those of a stream that a second interrupt has left open."""
        for queue in self._queues:
            self._close(queue)
        self._is_ending = self._is_abandoned = True

    @property
    def has_ended(self) -> bool:
        """True if `end` has come to its end."""
        return self._is_abandoned and not self._kept_nbytes

    def stats(self, queue: StreamQueue) -> tuple[int, int, int, int, float]:
        """Return frames that wait, stored and dropped ones, updates, and the seconds of the slowest update."""
        return self._change(
            lambda: (
                (
                    queue.n_frames,
                    queue.n_frames_stored,
                    queue.n_frames_dropped,
                    queue.n_updates,
                    queue.slowest,
                ),
                [],
            )
        )

    def _releasing_memory(self) -> tuple[None, Changes]:
        kept = self._kept_nbytes
        return None, [(native.load().keep_memory, -kept), (setattr, self, "_kept_nbytes", 0)] if kept else []

    def _check_open(self, queue: StreamQueue) -> None:
        if queue.is_closed:
            raise ValueError(
                f"array {queue.target.folder!r}: expected an open stream, but it has been closed"
            )

    def _full_error(self, queue: StreamQueue) -> StreamFullError:
        number = queue.order.number
        return StreamFullError(
            f"array {queue.target.folder!r}: expected room for frame {number}, but {self._memory.n_slots} frames wait; "
            "take it later, use full='block' or 'drop', or a larger queue",
            numbers=(number,),
        )

    def _change(self, prepare: Callable[[], tuple[T, Changes]]) -> T:
        """Make changes in one step, and return what `prepare` has returned with them.

        `prepare` reads without the mutex. It is called again if a thread has changed anything meanwhile, also after an error; at last
        under the mutex, where a handler cannot call the stream.
        """
        for _ in range(MAX_ATTEMPTS):
            version = self._mutex.version
            try:
                result, changes = prepare()
            except OF_CHANGES:
                if self._mutex.version == version:
                    raise
                continue
            if self._mutex.step(version, changes):
                return result
        return self._mutex.change(prepare)  # type: ignore[no-any-return]

    def _wait_for(
        self, attempt: Callable[[], tuple[T | BaseException, Changes] | None], queue: StreamQueue
    ) -> T:
        """Make the changes that `attempt` returns, and return or raise its result; None: it is called again after the next update."""

        def prepare() -> tuple[Any, Changes]:
            if (found := attempt() or queue.failing()) is not None:
                return found
            tokens = Tokens()
            return tokens, [(self._waiting.append, tokens)]

        while True:
            result = self._change(prepare)
            if not isinstance(result, BaseException | SimpleQueue):
                return result  # type: ignore[no-any-return]
            self._wake_idle()
            if isinstance(result, BaseException):
                raise result
            if self._has_no_thread:
                self._work_off()
            else:
                _sleep(result, IDLE_SECONDS)

    def _wake_idle(self) -> None:
        """Wake the threads without work. They leave the list themselves: a caller that is interrupted here leaves none asleep."""
        _wake(tuple(self._idle))

    def _work_off(self) -> None:
        """Store the frames whose time has come, in the thread of the caller; signal handlers wait, because they would tear the update."""
        _before_handlers(self._store_due)

    def _store_due(self) -> None:
        while True:
            with self._mutex:
                update = self._choose()
            if isinstance(update, float):
                return
            self._store(*update)

    def _run(self) -> None:
        if threading.get_ident() == self._caller:  # the system has started no thread
            self._has_no_thread = True
            return
        while (update := self._next_update()) is not None:
            self._store(*update)

    def _next_update(self) -> tuple[StreamQueue, Ticket] | None:
        """Wait for the next update; None: there will be none."""
        while not self._is_abandoned:
            tokens = Tokens()
            with self._mutex:
                update = self._choose()
                if not isinstance(update, float):
                    return update
                if self._is_ending:
                    return None
                self._idle.append(tokens)
            _sleep(tokens, min(update, IDLE_SECONDS))
            with self._mutex:
                if tokens in self._idle:
                    self._idle.remove(tokens)
            if not threading.main_thread().is_alive():
                self._flush_at_exit()
        return None

    def _flush_at_exit(self) -> None:
        """Store all waiting frames, because the interpreter ends and the program has not closed its streams."""
        with self._mutex:
            self._is_ending = True
            for each in self._queues:
                each.flush_until = each.order.number

    def _choose(self) -> tuple[StreamQueue, Ticket] | float:
        """Return the next stream and the ticket of its frames, which the caller stores; or the seconds until the next look."""
        now, wait, n = time.monotonic(), math.inf, len(self._queues)
        for i in range(n):
            number = (self._first + i) % n
            update = self._queues[number].next_update(now, is_full=self._memory.is_full)
            if not isinstance(update, float):
                self._first = number + 1
                return self._queues[number], self._queues[number].begin_update(update)
            wait = min(wait, update)
        return wait

    def _store(self, queue: StreamQueue, ticket: Ticket) -> None:
        """Store the frames of a ticket, when its turn has come."""
        begin = time.perf_counter()
        failure: BaseException | None = None
        try:
            self._prepare_and_store(queue, ticket)
        except BaseException as error:  # noqa: BLE001 - the caller of the stream raises it
            failure = error
        with self._mutex:
            if failure is None and not ticket.is_void:
                queue.n_updates += 1
                queue.slowest = max(queue.slowest, time.perf_counter() - begin)
            self._memory.give(frame.slot for frame in queue.end_update(ticket, failure))
            waiting, self._waiting = self._waiting, []
        _wake(waiting)
        self._wake_idle()

    def _prepare_and_store(self, queue: StreamQueue, ticket: Ticket) -> None:
        try:
            update = queue.prepare(ticket.frames) if ticket.frames else None
        finally:
            ticket.turn.get()  # also after an error, so that the first frames that fail are the first to be told
        if ticket.is_void:
            return
        if update is not None:
            queue.store(update)
        with self._mutex:
            n_frames = queue.mark_stored(ticket.frames)
            self._memory.give(frame.slot for frame in ticket.frames)
            ticket.frames = []
        queue.publish(n_frames)


def _before_handlers(work: Callable[[], None]) -> None:
    """Call `work`; signal handlers of Python, which run in the main thread alone, are called behind it."""
    if threading.current_thread() is not threading.main_thread():
        work()
        return
    handlers: dict[int, Any] = {}
    late: list[int] = []

    def hold() -> None:
        for number in signal.valid_signals():
            if callable(handler := signal.getsignal(number)):
                handlers.setdefault(number, handler)
                signal.signal(number, lambda number, _: late.append(number))

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    try:
        native.load().call_to_its_end(hold)
        work()
    finally:
        native.load().call_to_its_end(restore)
    for number in late:
        signal.raise_signal(number)


def _wake(sleepers: Sequence[Tokens]) -> None:
    for tokens in sleepers:
        tokens.put(None)


def _sleep(tokens: Tokens, seconds: float) -> None:
    with contextlib.suppress(Empty):
        tokens.get(timeout=seconds)
