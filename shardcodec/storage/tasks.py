# tasks.py - asynchronous work that does not outlive its caller
# SPDX-License-Identifier: MIT
"""Two small helpers around asyncio.

Work of ours writes to arrays and holds locks, so whoever started it must not leave while it runs; but who does not want
it any more can make it stop early.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from .. import native
from ..cancel import listening_to
from ..compat import Caller

__all__ = ["all_of", "in_thread", "to_its_end"]

T = TypeVar("T")

POLL_SECONDS = 0.05


# Who waits for the task that started this one.
_caller: ContextVar[Caller | None] = ContextVar("shardcodec.caller", default=None)


async def all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """Run awaitables together; at the first failure cancel the others, and raise it when all have ended."""
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


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that another thread does, also when cancelled meanwhile.

    Native plans within it are told to stop when that happens, or when nobody waits for the result any more. So the end
    comes soon.
    """
    cancel = native.load().Cancel()
    with listening_to(cancel):
        task = asyncio.ensure_future(work)
    return await _end_of(task, cancel)


async def in_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Do work in another thread, and wait for it `to_its_end`; without a task around it, as `asyncio.to_thread` needs one."""
    cancel = native.load().Cancel()
    with listening_to(cancel):
        context = copy_context()
    call = functools.partial(context.run, work, *arguments)
    return await _end_of(asyncio.get_running_loop().run_in_executor(None, call), cancel)


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
        if not looked_up:  # no sooner: looking through all frames costs as much as a short read
            caller = Caller.of_this_task() or _caller.get()
            timeout = None if caller is None else POLL_SECONDS
        if caller is not None and not caller.is_waiting():
            cancel.stop()
    if cancelled is not None and not task.cancelled():
        task.exception()  # seen, and less important
        raise cancelled
    try:
        return task.result()
    except native.load().Cancelled:
        raise asyncio.CancelledError from None
