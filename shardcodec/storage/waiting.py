# waiting.py - work in threads, concurrent calls, fair turns on the event loop, retries
# SPDX-License-Identifier: MIT
"""Work in threads, concurrent calls, fair turns on the event loop, retries.

A coroutine waits for a thread with `in_thread`. A function starts threads with `WorkerThreads`. Nothing else in the package
starts threads that read or write shards.

The engine's work writes to arrays and holds locks, so its caller must wait until it has ended. A cancelled caller makes
the work stop early.
"""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import errno
import functools
import math
import os
import queue
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from time import perf_counter
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from .. import native
from ..compat import Caller, has_task_per_call, is_zarrs_loop, submit
from ..errors import ChecksumError, CodecError, ShardError, ShardFileError, ShardFormatError
from ..native import listen_to
from . import absent

__all__ = [
    "COSTLY_SECONDS",
    "DAMAGE",
    "MAX_CALLS",
    "Patience",
    "ThreadCall",
    "Threads",
    "WorkerThreads",
    "all_of",
    "call_all",
    "call_each",
    "finish_each",
    "from_zarrs_loop",
    "in_thread",
    "is_over",
    "is_replaced",
    "next_turn",
    "retry",
]

T = TypeVar("T")
R = TypeVar("R")

POLL_SECONDS = 0.05


# The caller that waits for the task which started this one.
_caller: ContextVar[Caller | None] = ContextVar("shardcodec.caller", default=None)


async def all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """Run awaitables concurrently; after the first failure cancel the rest, wait for all, and raise that failure."""
    token = _caller.set(Caller.of_this_task() or _caller.get())
    try:
        tasks = [asyncio.ensure_future(part) for part in work]
    finally:
        _caller.reset(token)
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def in_thread(work: Callable[..., T], *arguments: Any, pool: Executor | None = None) -> T:
    """Run work in another thread, with the context of the caller, and wait for its end, also after a cancellation.

    A cancellation, or a caller that no longer waits, stops the native plans in the work, so the work ends soon. The
    thread is one of `pool`, or of the event loop's default executor. If the system refuses to start one, the caller does the work
    itself.
    """
    cancel = native.load().Cancel()
    with listen_to(cancel):
        context = copy_context()
    call = _OneCall(functools.partial(context.run, work, *arguments))
    try:
        future = asyncio.get_running_loop().run_in_executor(pool, call)
    except RuntimeError:
        return call()
    return await _end_of(future, cancel)


async def from_zarrs_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on zarr's event loop, which the connections of stores belong to, and wait for it on any event loop."""
    return await (work if is_zarrs_loop() else asyncio.wrap_future(submit(work)))


class Threads(ThreadPoolExecutor):
    """A pool of threads whose caller does the work itself if the system refuses to start one."""

    def submit(self, work: Callable[..., T], /, *arguments: Any, **keywords: Any) -> Future[T]:
        """Begin the work, or do all of it here."""
        call = _OneCall(functools.partial(work, *arguments, **keywords))
        try:
            return super().submit(call)
        except RuntimeError:
            call.run()
            return call.future


class _OneCall(Generic[T]):
    """A call that is made once. A pool that could not start a thread keeps it in its queue, where another thread may find it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._is_free = _thread.allocate_lock()
        self.future: Future[T] = Future()

    def __call__(self) -> T:
        self.run()
        try:
            return self.future.result()
        finally:
            del self  # the traceback of an error would keep it, and with it the error

    def run(self) -> None:
        if not self._is_free.acquire(blocking=False):
            return
        try:
            self.future.set_result(self._work())
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            self.future.set_exception(error)
            del self  # as above


async def _end_of(task: asyncio.Future[T], cancel: Any) -> T:
    caller: Caller | None = None
    cancelled: asyncio.CancelledError | None = None
    timeout: float | None = POLL_SECONDS
    while not task.done():
        looked_up = timeout is None or caller is not None
        try:
            await asyncio.wait([task], timeout=timeout)
        except asyncio.CancelledError as error:
            cancelled = error
            cancel.stop()
        if task.done():
            break
        if not looked_up:  # delayed, because a search of all frames costs as much as a short read
            caller = Caller.of_this_task() or _caller.get()
            timeout = None if caller is None else POLL_SECONDS
        if caller is not None and not caller.is_waiting():
            cancel.stop()
    if cancelled is not None and not task.cancelled():
        task.exception()  # mark it as retrieved; the cancellation takes precedence
        raise cancelled
    try:
        return task.result()
    except native.load().Cancelled:
        raise asyncio.CancelledError from None


# ---------------------------------------------------------------- threads that end with the block that has started them
#
# After the block no thread of it works, whatever ended the block: a thread that still wrote after Ctrl-C would put a shard of a
# conversion that was given up into the next one. A pool of `concurrent.futures` does not promise that: a signal handler that raises
# in `Thread.start` leaves a running thread of which the pool does not know, and one that raises while the pool waits ends the wait.
# Here each thread tells of itself, and the caller uses no lock that a signal handler could leave locked.

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
        self._one_ended = _thread.allocate_lock()  # locked, until a thread has left `_working`
        self._one_ended.acquire()

    def __enter__(self) -> Self:
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

    # ---- in the threads

    def _run(self) -> None:
        me = threading.get_ident()
        self._working.add(
            me
        )  # before the look at `_is_closed`, so that `_end` sees it if there is any work to do
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

    # ---- the end

    def _end(self) -> None:
        """Begin no further call, and wait for those that run. It may be interrupted and called again."""
        self._is_closed = True
        for _ in self._threads:
            self._calls.put(None)
        while self._working:
            self._one_ended.acquire()


# ---------------------------------------------------------------- fair use of the event loop by small reads and writes
#
# Small reads and writes run on the event loop itself, because a switch of threads takes longer than the work.
#
# Such a coroutine never waits, so a loop over thousands of them would block every other task and timeout. Therefore, after
# some calls or a millisecond, the next call lets the event loop run all other tasks once. The first call of each task does
# so too, so that tasks that begin together run concurrently. Waiting calls are admitted one by one, one in each iteration of
# the event loop.

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


# ---------------------------------------------------------------- calls to a file system at the same time, where each of them waits
#
# Calls at the same time, where one of them shows that each may wait for a round trip.
#
# On a warm local disk such a call takes some microseconds, and a change of threads costs more than the call.

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


# ---------------------------------------------------------------- read again while another writer changes the object
#
# `retry`: the one loop. Three errors are worth another attempt:
#
# 1. ESTALE. A server of a network file system forgets a file that another client has replaced by a new one. For up to about
#    a second, this client's file descriptor and cached name of it lead nowhere. The engine reports ESTALE
#    (csrc/io/sc_file.h), also if the file system reports ENOENT. The new file exists under the name.
# 2. An error with ``changed``: the reader knows that the object is no longer in the state that it began to read.
# 3. Damage in a file that was changed a moment ago. A writer that appends shrinks the file to its new end and overwrites an
#    index at the start; in place it overwrites inner chunks. A reader in between may see bytes of two states. A file that
#    does not change from one attempt to the next is damaged.

# Seconds for which readers retry after ESTALE. GlusterFS, and FUSE in general, cache a directory entry for one second; under
# load, with writers that replace the file all the time, 3 of 19,627 reads did not succeed within 3 s.
READ_SECONDS = 10.0

# Bounds of the pause between two attempts, in seconds. The upper bound doubles from attempt to attempt; the pause is random,
# so that it does not keep step with a writer that replaces the file at regular times.
FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.1

# Seconds before each further attempt to read a file that a writer is changing. The first is longer than the time that some
# file systems need to show a change in the times of a file.
CHANGE_PAUSES = (0.01, 0.02, 0.04, 0.08)

# Attempts to open a file that is in its folder but was not found: a shard without inner chunks counts as not found, too.
MAX_FOUND = 3

# For this long after its last change a file counts as changing.
CHANGING_SECONDS = 2.0

# Errors that bytes of two states cause.
DAMAGE = (ShardFormatError, ChecksumError, CodecError)


def is_replaced(error: BaseException) -> bool:
    """Return True for ESTALE: another client has replaced a file; or the server has forgotten that this client has it open."""
    return isinstance(error, OSError) and (error.errno == errno.ESTALE or absent.is_forgotten(error))


class Patience:
    """The pauses between attempts of one piece of work.

    seconds: time to retry after the first ESTALE; 0: each first error is raised, because the caller cannot wait.
    """

    def __init__(self, seconds: float = READ_SECONDS) -> None:
        self._seconds = seconds
        self._deadline = 0.0
        self._bound = FIRST_PAUSE
        self._n_attempts = 0
        self._paths: set[Any] = set()
        self._owed = 0.0
        self._stale: Any = None  # the file of the last ESTALE, until it is looked at
        self._n_changes = 0
        self._seen: tuple[int, ...] | None = None

    @classmethod
    def after(cls, error: Exception, path: str | None = None) -> Self:
        """Return a `Patience` after an attempt that could not wait; raise its error unless another attempt may succeed."""
        patience = cls()
        patience._owed = patience.pause(error, path)
        return patience

    def catch_up(self) -> None:
        """Wait as long as the caller of `after` could not."""
        if self._owed:
            self._sleep(self._owed)
            self._owed = 0.0

    def _sleep(self, seconds: float) -> None:
        """Sleep; then look at a stale file by its name, so that a client of NFS forgets the cached name, by which an open goes again."""
        time.sleep(seconds)
        stale, self._stale = self._stale, None
        if stale is not None:
            with contextlib.suppress(OSError, TypeError, ValueError):
                os.stat(stale)

    def pause(self, error: Exception, path: str | None = None) -> float:
        """Return the seconds to wait before the next attempt; `path` is the file that was read.

        Raises `error` if the next attempt would fail like this one, or the time for retries is over; after ESTALE a note then
        says how often it was tried.
        """
        if isinstance(error, DAMAGE):
            seconds = self._change_pause(path, is_certain=getattr(error, "changed", False))
            if seconds is None:
                raise error
            return seconds
        if not is_replaced(error):
            raise error
        assert isinstance(error, OSError)
        if not self._paths:
            is_missing = isinstance(error, ShardFileError)
            self._deadline = time.monotonic() + min(self._seconds, absent.SECONDS if is_missing else math.inf)
        self._stale = error.filename
        self._paths.add(error.filename)
        self._n_attempts += 1
        if time.monotonic() >= self._deadline:
            if self._seconds:
                error.add_note(
                    f"tried {self._n_attempts} times in {self._seconds:g} s; other clients replace the file"
                )
            raise error
        return self._next_pause()

    def _next_pause(self) -> float:
        self._bound = min(2 * self._bound, LONGEST_PAUSE)
        return random.uniform(FIRST_PAUSE, self._bound)

    def _change_pause(self, path: str | None, *, is_certain: bool) -> float | None:
        """Return the seconds to wait before a damaged object is read again; None if no writer is changing it."""
        n = self._n_changes
        if n == len(CHANGE_PAUSES) or not self._seconds:
            return None
        if path is not None:
            before, self._seen = self._seen, _state_of(path)
            is_certain = is_certain or (_is_recent(self._seen) and (n == 0 or self._seen != before))
        if not is_certain:
            return None
        self._n_changes += 1
        return 0.0 if path is None else CHANGE_PAUSES[n]  # other objects are replaced in one step

    def wait(self, error: Exception, path: str | None = None) -> None:
        """Wait before the next attempt, as `pause`. Threads that run an event loop must not call this."""
        self._sleep(self.pause(error, path))

    def sees_change(self, path: str | None) -> bool:
        """Return True, after a pause, if a writer is changing a file in which damage was found."""
        seconds = self._change_pause(path, is_certain=False)
        if seconds is not None:
            time.sleep(seconds)
        return seconds is not None

    def misses(self, paths: Iterable[Any]) -> bool:
        """Return True, after a pause, if the caller must repeat its attempt because a file may be missing only for a moment.

        `paths` are the files that this attempt did not find. True: an earlier attempt had ESTALE for one of them, and the time for
        retries is not over, or `absent.doubt` has an error. False, at once: otherwise; then the files do not exist. It blocks, so
        with time for retries it must not be called on an event loop.
        """
        missing = [path for path in paths if isinstance(path, str)]
        if self._paths and time.monotonic() < self._deadline and not self._paths.isdisjoint(missing):
            time.sleep(self._next_pause())
            return True
        error = absent.doubt(missing)
        if error is None or (self._n_attempts >= MAX_FOUND and not isinstance(error, ShardFileError)):
            return False
        self.wait(error)
        return True


def _state_of(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _is_recent(state: tuple[int, ...] | None) -> bool:
    return state is not None and abs(time.time() - state[0] / 1e9) < CHANGING_SECONDS


def retry(
    work: Callable[[], T],
    path: str | Callable[[Exception], str | None] | None = None,
    *,
    again: Callable[[T, Patience], bool] | None = None,
    patience: Patience | None = None,
) -> T:
    """Run work that reads, and repeat it with pauses while another writer changes what it reads; not on an event loop.

    path: the file that is read, or a function from an error to it; None if it is not a file. again: from a result to True if it
    must not be believed; it has waited then, by a method of the `Patience`. patience: that of an earlier attempt.
    """
    if patience is None:
        patience = Patience()
    else:
        patience.catch_up()
    while True:
        try:
            result = work()
        except (OSError, ShardError) as error:
            patience.wait(error, path(error) if callable(path) else path)
        else:
            if again is None or not again(result, patience):
                return result
