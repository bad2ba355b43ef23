# virtual_loop.py - an event loop whose time and order come from a list of choices
# SPDX-License-Identifier: MIT
"""`VirtualLoop`: runs coroutines and threads of several simulated processes, one step after the other.

Callbacks run in the order in which they were scheduled, as in every event loop of asyncio. What comes from outside is an
*event*: an answer of a service, the end of a thread's work, the start of a task, a cancellation. When no callback is left, a
choice takes the next of the pending events, or lets the time pass to the next timer. A thread works only while the loop waits for it: until
it ends, or waits for the loop itself. So the same choices give the same run, and no run takes real time.

A process is what a callback belongs to by its context. A lost process runs no further callback.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import heapq
import io
import random
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, NamedTuple, Protocol
from unittest import mock

from zarr.core import sync as zarr_sync

from shardcodec import compat
from shardcodec.access import buffer as buffers
from shardcodec.access.buffer import group_writes
from shardcodec.storage import conditions, process_locks, turns
from shardcodec.storage.runner import run_blocking

__all__ = [
    "OPERATION",
    "PROCESS",
    "Choices",
    "Listed",
    "Owner",
    "Process",
    "Random",
    "Violation",
    "VirtualLoop",
    "running",
    "virtual_package",
]

# Real seconds after which a thread that does not come back is stuck in a lock.
STUCK_SECONDS = 60.0
MAX_STEPS = 50_000
MAX_SECONDS = 7200.0


class Violation(AssertionError):
    """A run has done what it must not do."""


# ---------------------------------------------------------------- choices


class Choices(Protocol):
    """The source of all decisions of a run."""

    random: random.Random

    def pick(self, weights: Sequence[float]) -> int:
        """Return the number of one of the possibilities; the first one is the usual one."""

    def interrupts(self) -> bool:
        """Return True if an event comes before callbacks that are ready."""


class Random:
    """Choices at random, from a seed."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self._share = self.random.choice((0, 0, 0.05, 0.3))

    def interrupts(self) -> bool:
        return bool(self._share) and self.random.random() < self._share

    def pick(self, weights: Sequence[float]) -> int:
        if len(weights) == 1:
            return 0
        at = self.random.random() * sum(weights)
        for i, weight in enumerate(weights):
            at -= weight
            if at < 0:
                return i
        return 0


class Listed:
    """The choices of a list, and the usual ones after its end. `following` returns the next list.

    The lists are those with at most `bound` unusual choices, of which each is made once.
    """

    def __init__(self, listed: Sequence[int] = (), bound: int = 2) -> None:
        self.random = random.Random(0)
        self.bound = bound
        self._listed = list(listed)
        self._taken: list[int] = []
        self._sizes: list[int] = []

    def pick(self, weights: Sequence[float]) -> int:
        possible = [i for i, weight in enumerate(weights) if weight]
        if len(possible) == 1:
            return possible[0]
        n = len(self._taken)
        choice = self._listed[n] if n < len(self._listed) else 0
        self._taken.append(choice)
        self._sizes.append(len(possible))
        return possible[choice]

    def interrupts(self) -> bool:
        return False

    def following(self) -> list[int] | None:
        """Return the list after this run, None after the last one."""
        for i in reversed(range(len(self._taken))):
            unusual = sum(choice > 0 for choice in self._taken[:i])
            if unusual < self.bound and self._taken[i] + 1 < self._sizes[i]:
                return [*self._taken[:i], self._taken[i] + 1]
        return None


# ---------------------------------------------------------------- processes, events, threads


class Process:
    """A simulated process: its name, and the state that is global in a real one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_lost = False  # it runs nothing more
        self.is_gone = False  # its rest is cleaned up: its requests go nowhere
        self.parked: list[asyncio.Handle] = []
        # the lock of the probe, too: a process that is lost with it must not stop the others
        self._globals: tuple[Any, ...] = None, group_writes._Blocks(), weakref.WeakKeyDictionary()

    def enter(self) -> None:
        buffers._buffer, group_writes._blocks, conditions._probing = self._globals

    def leave(self) -> None:
        self._globals = buffers._buffer, group_writes._blocks, conditions._probing

    @property
    def buffer(self) -> Any:
        """The buffered writes of its blocks."""
        return self._globals[0]


PROCESS: ContextVar[Process | None] = ContextVar("process", default=None)


class Owner:
    """What requests and threads are for. n_under_way: those that have begun and not ended."""

    n_under_way = 0

    def look_failed(self, key: str) -> None:
        """Note that an attempt of a read of an object has failed."""


OPERATION: ContextVar[Any] = ContextVar("operation", default=None)


class Event(NamedTuple):
    """Something that may happen next, on behalf of a process or of the service (None)."""

    what: str
    process: Process | None
    happen: Callable[[], None]


class _Thread(threading.Thread):
    """A thread that works while the loop waits, and the other way round."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._turn, self._back = _thread.allocate_lock(), _thread.allocate_lock()
        self._turn.acquire()
        self._back.acquire()
        self.job: _Job | None = None
        self.start()

    def run(self) -> None:
        while True:
            self._turn.acquire()
            job = self.job
            assert job is not None
            _local.thread = self
            job.work()
            self._back.release()

    def resume(self) -> None:
        """Let the thread work until it ends its job or waits for the loop; called by the loop."""
        self._turn.release()
        if not self._back.acquire(timeout=STUCK_SECONDS):
            raise Violation(f"a thread waits for a lock that nothing releases: {self.job}")

    def wait(self) -> None:
        """Let the loop run until it calls `resume`; called in the thread."""
        self._back.release()
        self._turn.acquire()


_local = threading.local()
_idle: list[_Thread] = []


class _Job:
    """A call of `run_in_executor`."""

    def __init__(self, loop: VirtualLoop, call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        self._loop, self._call, self._future = loop, call, future
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_done = False
        self._thread: _Thread | None = None
        self._process = PROCESS.get()
        # what the thread waits for
        self._asked: tuple[Coroutine[Any, Any, Any], Context] | None = None
        self._answer: asyncio.Task[Any] | None = None

    def __str__(self) -> str:
        return repr(self._call)

    def work(self) -> None:
        try:
            self._result = self._call()
        except BaseException as error:  # the loop raises it
            self._error = error
        self._is_done = True

    def step(self) -> None:
        """Let the thread work, on behalf of the loop."""
        if self._thread is None:
            self._thread = _idle.pop() if _idle else _Thread()
            self._thread.job = self
        self._thread.resume()
        if not self._is_done:
            assert self._asked is not None
            work, context = self._asked
            self._answer = context.run(self._loop.create_task, zarr_sync._runner(work))
            self._answer.add_done_callback(self._answered, context=context)
            return
        _idle.append(self._thread)
        self._thread = None
        if self._future.done():
            return
        if self._error is None:
            self._future.set_result(self._result)
        else:
            self._future.set_exception(self._error)

    def _answered(self, _task: asyncio.Task[Any]) -> None:
        self._loop.expect("thread", self.step, self._process)

    def ask(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on the loop and wait for it, in the thread."""
        assert self._thread is not None
        self._asked = work, copy_context()
        self._thread.wait()
        assert self._answer is not None
        result, self._answer, self._asked = self._answer.result(), None, None
        if isinstance(result, BaseException):
            raise result
        return result


# Work that never waits for the loop needs no thread of its own.
LEAVES = frozenset(("_ElementsMaker._write", "_NewShard._encode", "read", "load_index", "store_index"))


def _work_of(func: Callable[..., Any]) -> str:
    """Return the name of what `event_loop.in_thread` is asked to do."""
    work = getattr(func, "_work", func)
    work = work.args[0] if isinstance(work, partial) else work
    return str(getattr(work, "__qualname__", work))


def _call_for(future: asyncio.Future[Any], call: Callable[[], Any]) -> None:
    if future.done():
        return
    try:
        future.set_result(call())
    except Exception as error:  # the loop raises it
        future.set_exception(error)


# ---------------------------------------------------------------- the loop


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time; see the head of this file."""

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self._choices = choices
        self._now = 0.0
        self._events: list[Event] = []
        self._process: Process | None = None
        self._settled: asyncio.Future[None] | None = None
        self.n_steps = 0
        self.trace: list[str] = []
        self.failures: list[str] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.set_task_factory(self._make_task)
        self.set_exception_handler(lambda _, context: self.failures.append(str(context)))

    def time(self) -> float:
        return self._now

    def _make_task(self, _loop: Any, work: Any, **how: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(work, loop=self, **how)
        self.tasks.append(task)
        return task

    def _write_to_self(self) -> None:
        """Do nothing: other threads call only while the loop waits for them."""

    def expect(self, what: str, happen: Callable[[], None], process: Process | None = None) -> None:
        """Add an event that may happen from now on."""
        self._events.append(Event(what, process, happen))

    def expect_later(self, seconds: float, what: str, happen: Callable[[], None]) -> None:
        """Add an event of the service that may happen after some time."""
        Context().run(self.call_later, seconds, self.expect, what, happen)

    def run_in_executor(self, _executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = self.create_future()
        work, owner = _work_of(func), OPERATION.get() or Owner()
        owner.n_under_way += 1

        def call() -> Any:
            try:
                return func(*args)
            finally:
                owner.n_under_way -= 1

        step = partial(_call_for, future, call) if work in LEAVES else _Job(self, call, future).step
        self.expect(f"thread {work}", step, PROCESS.get())
        return future

    # ---- steps

    def _run_once(self) -> None:
        self.n_steps += 1
        if self.n_steps > MAX_STEPS or self._now > MAX_SECONDS:
            raise Violation(f"no end after {self.n_steps} steps and {self._now:.0f} s; {self.pending()}")
        if self._ready:
            if self._possible() and self._choices.interrupts():
                self._happen(self._possible())
            for _ in range(len(self._ready)):
                self._call(self._ready.popleft())
        elif not self._stopping:
            self._next_event()

    def _call(self, handle: asyncio.Handle) -> None:
        if handle._cancelled:
            return
        process = handle._context.get(PROCESS)
        if process is not None and process.is_lost:
            process.parked.append(handle)
            return
        self.switch(process)
        handle._run()

    def switch(self, process: Process | None) -> None:
        """Let the global state be that of a process."""
        if process is self._process or process is None:
            return
        if self._process is not None:
            self._process.leave()
        process.enter()
        self._process = process

    def switch_away(self) -> None:
        """Keep the global state of the process that has run last."""
        if self._process is not None:
            self._process.leave()
            self._process = None

    def _next_event(self) -> None:
        timers, possible = self._timers(), self._possible()
        if possible and self._happen(possible, or_time=bool(timers)):
            return
        if not timers and self._settled is not None:
            self._settled.set_result(None)
            return
        if not timers:
            raise Violation(f"nothing can happen any more, but something waits: {self.pending()}")
        self._now = max(self._now, timers[0]._when)
        while timers and timers[0]._when <= self._now:
            self._ready.append(heapq.heappop(timers))

    def _possible(self) -> list[int]:
        return [i for i, e in enumerate(self._events) if e.process is None or not e.process.is_lost]

    def _happen(self, possible: Sequence[int], *, or_time: bool = False) -> bool:
        """Let one of these events happen; return False if time is to pass before."""
        choice = self._choices.pick([4.0] * len(possible) + [1.0] * or_time)
        if choice == len(possible):
            return False
        event = self._events.pop(possible[choice])
        self.trace.append(f"{self._now:.3f} {event.what}")
        self.switch(event.process)
        event.happen()
        return True

    def _timers(self) -> list[asyncio.TimerHandle]:
        timers: list[asyncio.TimerHandle] = self._scheduled
        while timers and timers[0]._cancelled:
            heapq.heappop(timers)._scheduled = False
        return timers

    # ---- the end

    def settle(self) -> None:
        """Run until nothing more can happen."""
        self._settled = self.create_future()
        self.run_until_complete(self._settled)
        self._settled = None

    def pending(self) -> str:
        """Return the stacks of all tasks that are not done."""
        return _stacks([task for task in self.tasks if not task.done()])


def _stacks(tasks: Sequence[asyncio.Task[Any]]) -> str:
    text = io.StringIO()
    for task in tasks:
        task.print_stack(file=text)
    return text.getvalue()


# ---------------------------------------------------------------- the package, on virtual loops


class _Clock:
    """The functions of `time`, on the loop that runs."""

    def __init__(self) -> None:
        self.loop: VirtualLoop | None = None

    def monotonic(self) -> float:
        assert self.loop is not None
        return self.loop.time()

    time = perf_counter = monotonic

    def sleep(self, seconds: float) -> None:
        _sync(asyncio.sleep(seconds))


clock = _Clock()


def _sync(coro: Coroutine[Any, Any, Any]) -> Any:
    """Do as zarr's `sync`: wait in a thread of the loop for a coroutine. Outside of threads it must not have to wait."""
    if not hasattr(_local, "thread"):
        return run_blocking(coro)
    job = _local.thread.job
    assert isinstance(job, _Job)
    return job.ask(coro)


@contextlib.contextmanager
def _hold(table: process_locks.LockTable, keys: Sequence[str]) -> Iterator[None]:
    """Hold locks as `LockTable.hold` does; wait for them on the loop, because the thread that holds one may wait for the loop, too."""
    hold = table._engine.Hold(table._native, keys)
    try:
        for key in hold.missing():
            if not hold.try_take(key):
                _sync(table.acquire_async(key))
                hold.took(key)
        hold.begin()
    except BaseException:
        hold.give_back()
        raise
    try:
        yield
    finally:
        hold.__exit__(None, None, None)


class _RandomOfLoop:
    """The functions of `random` that the package uses, from the choices of the loop."""

    def uniform(self, low: float, high: float) -> float:
        assert clock.loop is not None
        return clock.loop._choices.random.uniform(low, high)


@contextlib.contextmanager
def virtual_package() -> Iterator[None]:
    """Let the package take its time, its waits in threads and its random numbers from the virtual loop that runs."""
    at_random = types.SimpleNamespace(uniform=_RandomOfLoop().uniform)
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("shardcodec.") and getattr(module, "time", None) is time:
                stack.enter_context(mock.patch.object(module, "time", clock))
            if name.startswith("shardcodec.") and getattr(module, "random", None) is random:
                stack.enter_context(mock.patch.object(module, "random", at_random))
        stack.enter_context(mock.patch.object(turns, "perf_counter", clock.perf_counter))
        stack.enter_context(mock.patch.object(compat, "sync", _sync))
        stack.enter_context(mock.patch.object(process_locks.LockTable, "hold", _hold))
        yield


@contextlib.contextmanager
def running(loop: VirtualLoop) -> Iterator[None]:
    """Let a loop be zarr's event loop, whose time is that of the package."""
    before = buffers._buffer, group_writes._blocks
    zarrs = zarr_sync.loop[0]
    clock.loop = zarr_sync.loop[0] = loop
    try:
        yield
    finally:
        buffers._buffer, group_writes._blocks = before
        zarr_sync.loop[0] = zarrs
        loop.close()
