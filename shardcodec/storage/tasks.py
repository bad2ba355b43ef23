# tasks.py - asynchronous work that ends before its caller returns
# SPDX-License-Identifier: MIT
"""Helpers around asyncio.

The engine's work writes to arrays and holds locks, so its caller must wait until it has ended. A cancelled caller makes
the work stop early.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Executor
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from .. import native
from ..cancel import listen_to
from ..compat import Caller

__all__ = ["all_of", "in_thread"]

T = TypeVar("T")

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
    thread is one of `pool`, or of the event loop's default executor.
    """
    cancel = native.load().Cancel()
    with listen_to(cancel):
        context = copy_context()
    call = functools.partial(context.run, work, *arguments)
    return await _end_of(asyncio.get_running_loop().run_in_executor(pool, call), cancel)


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
