# event_loop.py - what a coroutine waits for: awaitables, work in a thread, coroutines on zarr's event loop
# SPDX-License-Identifier: MIT
"""Coroutines wait here for several awaitables, for work in another thread, or for coroutines on zarr's event loop.

The engine's work writes to arrays and holds locks, so its caller must wait until it has ended. A cancelled caller makes
the work stop early.
"""

from __future__ import annotations

import _thread
import asyncio
import functools
import os
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any, Generic, TypeVar

from .. import native
from ..compat import Caller, is_zarrs_loop, max_workers, submit
from ..native import listen_to

__all__ = ["Threads", "all_of", "caller_of_task", "from_zarrs_loop", "in_thread", "threads_for_locks"]

T = TypeVar("T")

POLL_SECONDS = 0.05


# The caller that waits for the task which started this one.
_caller: ContextVar[Caller | None] = ContextVar("shardcodec.caller", default=None)

# Work may wait for zarr's event loop, where a codec waits for a thread. It finds one of the next pool, because all threads of
# one pool may be waiting. Work that waits for locks has threads of its own: the locks' owners may wait for all others.
_pools: dict[int, ThreadPoolExecutor] = {}
_level: ContextVar[int] = ContextVar("shardcodec.level", default=0)
_LOCKS = -1
os.register_at_fork(after_in_child=_pools.clear)


def caller_of_task() -> Caller | None:
    """Return the caller in the main thread that waits for the running task, or for the one that started it; None if there is none."""
    return Caller.of_this_task() or _caller.get()


async def all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """Run awaitables concurrently; after the first failure cancel the rest, wait for all, and raise that failure."""
    token = _caller.set(caller_of_task())
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
    thread is one of `pool`; otherwise of a pool of this module, with as many threads as zarr's own. If the system refuses to
    start one, the caller does the work itself.
    """
    cancel = native.load().Cancel()
    with listen_to(cancel):
        context = copy_context()
    if pool is None:
        level = _level.get()
        context.run(_level.set, level + 1)
        pool = _pool(level)
    call = _OneCall(functools.partial(context.run, work, *arguments))
    try:
        future = asyncio.get_running_loop().run_in_executor(pool, call)
    except RuntimeError:
        return call()
    return await _end_of(future, cancel)


async def from_zarrs_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on zarr's event loop, which the connections of stores belong to, and wait for it on any event loop."""
    return await (work if is_zarrs_loop() else asyncio.wrap_future(submit(work)))


def threads_for_locks() -> Executor:
    """Return the threads for work of `in_thread` that waits for locks."""
    return _pool(_LOCKS)


def _pool(level: int) -> ThreadPoolExecutor:
    return _pools.get(level) or _pools.setdefault(
        level, ThreadPoolExecutor(max_workers(), thread_name_prefix="shardcodec")
    )


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
            caller = caller_of_task()
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
