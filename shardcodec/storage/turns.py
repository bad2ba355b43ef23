# turns.py - fair use of the event loop by small reads and writes
# SPDX-License-Identifier: MIT
"""Small reads and writes run on the event loop itself, because a switch of threads takes longer than the work.

Such a coroutine never waits, so a loop over thousands of them would block every other task and timeout. Therefore, after
some calls or a millisecond, the next call lets the event loop run all other tasks once. The first call of each task does
so too, so that tasks that begin together run concurrently. Waiting calls are admitted one by one, one in each iteration of
the event loop.
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

# Bounds of one turn.
MAX_CALLS_OF_A_TURN = 16
MAX_SECONDS = 0.001

Task = asyncio.Task[Any]


class Turn:
    """The calls since an event loop last ran all other tasks."""

    __slots__ = ("_waiting", "began", "first_calls_wait", "is_ending", "loop", "n_calls", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop: asyncio.AbstractEventLoop | None = loop
        self.task: Callable[[], Task | None] = lambda: None  # a weak reference: a task keeps its result
        self.n_calls: int = 0
        self.began: float = 0.0
        self.first_calls_wait: bool = loop is not None and not has_task_per_call(loop)
        self.is_ending: bool = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    def begin(self) -> None:
        """Start a turn: the event loop has run all other tasks."""
        self.n_calls, self.began = 0, perf_counter()

    async def end(self) -> None:
        """Let the event loop run all other tasks, and return when it is the caller's turn."""
        if not self.is_ending:  # fast path: no other call waits
            self.is_ending, self.n_calls = True, MAX_CALLS_OF_A_TURN
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
        """Begin a turn, and admit the call that has waited longest in the next iteration of the event loop."""
        self.begin()
        while self._waiting and self._waiting[0].done():  # cancelled
            self._waiting.popleft()
        self.is_ending = bool(self._waiting)
        if self.is_ending:
            assert self.loop is not None
            self._waiting.popleft().set_result(None)
            self.n_calls = MAX_CALLS_OF_A_TURN
            self.loop.call_soon(self._admit)


class _LastTurn(threading.local):
    """The turn of the event loop that this thread ran last."""

    def __init__(self) -> None:
        self.turn = Turn(None)


_local = _LastTurn()


def is_over() -> bool:
    """Count a call that begins; return True if it must wait for `next_turn`."""
    turn, task = _local.turn, asyncio.current_task()
    if turn.task() is not task and task is not None:
        return _is_over_for(task)
    turn.n_calls += 1
    return turn.n_calls > MAX_CALLS_OF_A_TURN or perf_counter() - turn.began >= MAX_SECONDS


def _is_over_for(task: Task) -> bool:
    """Count a call as `is_over` does, for the first call after a call of another task."""
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
    """Let the event loop run all other tasks and the calls that already wait."""
    turn, task = _local.turn, asyncio.current_task()
    await turn.end()
    if task is not None:
        turn.task = weakref.ref(task)
