# writers.py - the threads that store the frames of streams
# SPDX-License-Identifier: MIT
"""`StreamWriters`: the threads and the memory that the streams of a group share.

The exception of a signal handler may stop a caller at any moment. So the mutex is a native lock in a `with` statement, and each
sleeper has its own queue of tokens: a token wakes it, also if it comes before the sleep.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty
from typing import Literal, TypeVar

from .. import native
from ..access.placement import APPEND_NBYTES
from ..errors import StreamFullError
from ..storage.waiting import WorkerThreads
from .frame_queue import FrameMemory, StreamQueue, Ticket, Tokens

__all__ = ["Full", "StreamWriters"]

T = TypeVar("T")
Full = Literal["block", "raise", "drop"]

# Memory that the engine keeps from one update to the next for each thread, in updates: encoded inner chunks, and all that is appended.
KEPT_UPDATES = 2
# Longest sleep, in seconds: a thread then looks whether the interpreter ends, and a caller tries again.
IDLE_SECONDS = 1.0


class StreamWriters:
    """The threads and the memory that the streams of a group share.

    One thread stores frames of a stream, while another one may encode the next ones. Each update has a ticket.
    """

    def __init__(self, queues: Sequence[StreamQueue], memory: FrameMemory, n_threads: int) -> None:
        self._queues = queues
        self._memory = memory
        self._mutex = _thread.allocate_lock()
        self._idle: list[Tokens] = []  # threads without work
        self._waiting: list[Tokens] = []  # callers that wait for an update
        self._first = 0  # number of the queue that is asked first
        self._is_ending = self._is_abandoned = self._has_no_thread = False
        self._process = os.getpid()
        self._caller = threading.get_ident()
        self._threads = WorkerThreads[None](n_threads, "shardcodec-stream")
        for _ in range(n_threads):
            self._threads.submit(self._run)
        # new memory for each update would cost as much as a copy of the frames; last, so that `end` follows
        update_nbytes = min(max(queue.update_nbytes for queue in queues), APPEND_NBYTES)
        self._kept_nbytes = KEPT_UPDATES * n_threads * update_nbytes
        native.load().keep_memory(self._kept_nbytes)

    # ---- in the thread of the caller

    def check_process(self) -> None:
        """Raise RuntimeError in a forked child, which has none of the threads."""
        if os.getpid() != self._process:
            raise RuntimeError("expected the process that has begun the stream; begin one in this process")

    def slot(self, queue: StreamQueue, full: Full) -> int | None:
        """Return a slot for a frame; None: the frame was dropped. It raises as `Stream.append`."""
        with self._mutex:
            self._check(queue)
            slot = self._memory.take()
            if slot is None and full == "drop":
                queue.drop()
                return None
            if slot is None and full == "raise":
                number = queue.order.number
                raise StreamFullError(
                    f"array {queue.target.folder!r}: expected room for frame {number}, but {self._memory.n_slots} frames wait; "
                    "take it later, use full='block' or 'drop', or a larger queue",
                    numbers=(number,),
                )
        return self._wait_for(self._memory.take, queue) if slot is None else slot

    def push(self, queue: StreamQueue, source: object, row: int, slot: int) -> None:
        """Add a frame that is in a slot; after an error the slot is free."""
        try:
            with self._mutex:
                self._check(queue)
                wakes = queue.push(source, row, slot, time.monotonic()) or self._memory.is_full
                idle = self._take_idle() if wakes else []
        except BaseException:
            self.give(slot)
            raise
        _wake(idle)
        if self._has_no_thread:
            self._work_off()

    def give(self, slot: int) -> None:
        """Free a slot without a frame."""
        with self._mutex:
            self._memory.give([slot])

    def flush(self, queue: StreamQueue, *, is_last: bool = False) -> None:
        """Store all frames that were taken so far, and return when they are stored; it raises as `Stream.flush`.

        is_last: wait also for updates of frames that other threads append meanwhile.
        """
        with self._mutex:
            queue.failure = None  # its frames are tried again now
            self._check(queue)
            number = queue.flush_until = queue.order.number

        def is_done() -> bool | None:
            is_busy = queue.n_busy > 0 if is_last else queue.is_busy_before(number)
            return True if queue.is_flushed(number) and not is_busy else None

        self._wait_for(is_done, queue)

    def give_up(self, queue: StreamQueue) -> None:
        """Take no further frames of a stream, drop those that wait, and return when no update is under way."""
        with self._mutex:
            self._memory.give(frame.slot for frame in queue.close())
        self._wait_for(lambda: None if queue.n_busy else True, queue)

    def end(self) -> None:
        """End the threads, as soon as updates that have begun are finished."""
        with self._mutex:
            self._is_ending = self._is_abandoned = True
            idle = self._take_idle()
            kept, self._kept_nbytes = self._kept_nbytes, 0  # several threads may close the stream
        _wake(idle)
        try:
            self._threads.__exit__(None, None, None)
        finally:
            native.load().keep_memory(-kept)

    def stats(self, queue: StreamQueue) -> tuple[int, int, int, int, float]:
        """Return frames that wait, stored and dropped ones, updates, and the seconds of the slowest update."""
        with self._mutex:
            return (
                queue.n_frames,
                queue.n_frames_stored,
                queue.n_frames_dropped,
                queue.n_updates,
                queue.slowest,
            )

    def _check(self, queue: StreamQueue) -> None:
        if queue.is_closed:
            raise ValueError(
                f"array {queue.target.folder!r}: expected an open stream, but it has been closed"
            )
        self._raise_failure(queue)

    def _raise_failure(self, queue: StreamQueue) -> None:
        """Raise the error of the writer, if there is one, and let a thread try again."""
        if queue.failure is not None:
            _wake(self._take_idle())
            queue.raise_failure()

    def _wait_for(self, attempt: Callable[[], T | None], queue: StreamQueue) -> T:
        """Return the first result of `attempt` that is not None; it is repeated after each update, under the mutex."""
        result: T | None = None
        while result is None:
            tokens = Tokens()
            with self._mutex:
                result = attempt()
                if result is None:
                    self._raise_failure(queue)
                    self._waiting.append(tokens)
                idle = self._take_idle()
            _wake(idle)
            if self._has_no_thread:
                self._work_off()
            elif result is None:
                _sleep(tokens, IDLE_SECONDS)
        return result

    def _take_idle(self) -> list[Tokens]:
        idle, self._idle = self._idle, []
        return idle

    def _work_off(self) -> None:
        """Store the frames whose time has come, in the thread of the caller."""
        with self._mutex:
            update = self._choose()
        while not isinstance(update, float):
            self._store(*update)
            with self._mutex:
                update = self._choose()

    # ---- in the threads

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
            idle = self._take_idle()
        _wake(waiting)
        _wake(idle)

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


def _wake(sleepers: Sequence[Tokens]) -> None:
    for tokens in sleepers:
        tokens.put(None)


def _sleep(tokens: Tokens, seconds: float) -> None:
    with contextlib.suppress(Empty):
        tokens.get(timeout=seconds)
