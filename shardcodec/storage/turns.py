# turns.py - how long one task may keep its event loop
# SPDX-License-Identifier: MIT
"""Small reads and writes run on the event loop itself, because a change of threads takes longer than they do.

Such a coroutine never has to wait, so a loop over thousands of them would keep every other task and every time-out from running.
So work takes turns: after some calls, or a millisecond, the next call lets the event loop run everything else once. The
first call of each task does so too, because tasks that begin together are meant to run together. Calls that wait for
their turn are admitted one after the other, one in each round of the event loop.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ..compat import has_task_per_call

__all__ = ["is_over", "next_turn"]

# One turn: so many calls, or so much time.
MAX_CALLS = 16
MAX_SECONDS = 0.001

Task = asyncio.Task[Any]


class Turn:
    """The calls since an event loop last ran everything else."""

    __slots__ = ("_waiting", "began", "first_calls_wait", "is_ending", "loop", "n_calls", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop = loop
        self.task: Callable[[], Task | None] = lambda: None  # a weak reference: a task keeps its result
        self.n_calls = 0
        self.began = 0.0
        self.first_calls_wait = loop is not None and not has_task_per_call(loop)
        self.is_ending = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def begin(self) -> None:
        """Note that the event loop has run everything else."""
        self.n_calls, self.began = 0, perf_counter()

    async def end(self) -> None:
        """Let the event loop run everything else, and return when it is the caller's turn."""
        if not self.is_ending:  # nobody else waits: the cheapest way
            self.is_ending, self.n_calls = True, MAX_CALLS
            try:
                await asyncio.sleep(0)
            finally:
                self._admit()
            return
        assert self.loop is not None
        future = self.loop.create_future()
        self._waiting.append(future)
        await future

    def _admit(self) -> None:
        """Begin a turn, and in the next round of the event loop one with the call that has waited longest."""
        self.begin()
        while self._waiting and self._waiting[0].done():  # cancelled
            self._waiting.popleft()
        self.is_ending = bool(self._waiting)
        if self.is_ending:
            assert self.loop is not None
            self._waiting.popleft().set_result(None)
            self.n_calls = MAX_CALLS
            self.loop.call_soon(self._admit)


class _Local(threading.local):
    """The turn of the event loop that the thread ran last."""

    def __init__(self) -> None:
        self.turn = Turn(None)


_local = _Local()


def is_over() -> bool:
    """Tell whether a call that begins has to wait for `next_turn`; it counts from now on."""
    turn, task = _local.turn, asyncio.current_task()
    if turn.task() is not task and task is not None:
        return _is_over_for(task)
    turn.n_calls += 1
    return turn.n_calls > MAX_CALLS or perf_counter() - turn.began >= MAX_SECONDS


def _is_over_for(task: Task) -> bool:
    """As `is_over`, for the first call since another task has had one."""
    turn, loop = _local.turn, asyncio.get_running_loop()
    if turn.loop is not loop:
        turn = _local.turn = Turn(loop)
    turn.task = weakref.ref(task)
    turn.began = perf_counter()
    if turn.first_calls_wait:
        turn.n_calls += 1
        return True
    turn.n_calls = 1  # the event loop has run everything else before this task
    return False


async def next_turn() -> None:
    """Let the event loop run everything else, and those calls that wait already."""
    turn, task = _local.turn, asyncio.current_task()
    await turn.end()
    if task is not None:
        turn.task = weakref.ref(task)
