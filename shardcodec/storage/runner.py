# runner.py - how a coroutine of this package waits: on an event loop, or in a blocking call
# SPDX-License-Identifier: MIT
"""How a coroutine of this package waits: on an event loop, or in a blocking call.

Code that replaces objects is written once, as coroutines. On an event loop, `ON_LOOP` suspends them while they wait. In a
thread without an event loop, `BLOCKING` waits itself, so such a coroutine never suspends, and `run_blocking` runs it as a
function.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import Any, Protocol, TypeVar

from .. import native
from ..compat import on_zarrs_loop
from ..options import Options
from . import budget, file_locks, process_locks
from .event_loop import in_thread
from .file_systems import OpenFile

__all__ = [
    "BLOCKING",
    "ON_LOOP",
    "Runner",
    "run_blocking",
]

T = TypeVar("T")


class Runner(Protocol):
    """How a coroutine waits for locks, threads, requests and time."""

    async def call(self, work: Callable[..., T], *arguments: Any, inline: bool) -> T:
        """Call a function; not on the event loop unless `inline`."""

    async def request(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that waits for a store."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    def hold(
        self, find: Callable[[], budget.Budget], amount: int, most: int
    ) -> AbstractAsyncContextManager[None]:
        """Hold a part of a budget; `find` returns it on the event loop of requests."""

    async def under_locks(self, names: Sequence[str], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine while the locks of these objects in the table of this process are held."""

    def hold_files(
        self, paths: Sequence[str], options: Options, names: Sequence[str], *, prompt: bool
    ) -> AbstractAsyncContextManager[list[OpenFile | None]]:
        """Hold locks of files between processes; see `file_locks.hold`."""


class _OnLoop:
    """Waits on an event loop without blocking it."""

    async def call(self, work: Callable[..., T], *arguments: Any, inline: bool) -> T:
        return work(*arguments) if inline else await in_thread(work, *arguments)

    async def request(self, work: Coroutine[Any, Any, T]) -> T:
        return await work

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def hold(
        self, find: Callable[[], budget.Budget], amount: int, most: int
    ) -> AbstractAsyncContextManager[None]:
        return find().hold(amount, most)

    async def under_locks(self, names: Sequence[str], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async with process_locks.table().hold_async(names):
            return await work()

    def hold_files(
        self, paths: Sequence[str], options: Options, names: Sequence[str], *, prompt: bool
    ) -> AbstractAsyncContextManager[list[OpenFile | None]]:
        return file_locks.hold_async(paths, options, names, prompt=prompt)


class _Blocking:
    """Waits in the calling thread, which must not run an event loop."""

    async def call(self, work: Callable[..., T], *arguments: Any, inline: bool) -> T:
        return work(*arguments)

    async def request(self, work: Coroutine[Any, Any, T]) -> T:
        request = _WholeRequest(work)
        # an interrupted wait would free the locks, and the request would end after that of the next writer
        answer: T = native.load().call_or_undo(lambda: on_zarrs_loop(request.run()), request.end)
        return answer

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def hold(
        self, find: Callable[[], budget.Budget], amount: int, most: int
    ) -> AbstractAsyncContextManager[None]:
        return _AsyncForm(budget.HeldFromThread(find, amount, most))

    async def under_locks(self, names: Sequence[str], work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        # a native context manager: a signal handler that raises cannot leave its locks locked
        with process_locks.table().hold(names):
            return await work()

    def hold_files(
        self, paths: Sequence[str], options: Options, names: Sequence[str], *, prompt: bool
    ) -> AbstractAsyncContextManager[list[OpenFile | None]]:
        return _AsyncForm(file_locks.hold(paths, options, names, prompt=prompt))


class _WholeRequest:
    """A request that has ended, or never begins, after `end`, which may be interrupted and called again."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work
        self._ended = threading.Event()
        self._first: dict[str, str] = {}  # the method that came first: `setdefault` is atomic

    async def run(self) -> Any:
        if self._first.setdefault("first", "run") != "run":
            raise asyncio.CancelledError
        try:
            return await self._work
        finally:
            self._ended.set()

    def end(self, *_: Any) -> None:
        if self._first.setdefault("first", "end") == "end":
            self._work.close()
        else:
            self._ended.wait()


class _AsyncForm(AbstractAsyncContextManager[T]):
    """A context manager in the form of an asynchronous one that never suspends."""

    def __init__(self, manager: AbstractContextManager[T]) -> None:
        self._manager = manager

    async def __aenter__(self) -> T:
        return self._manager.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return self._manager.__exit__(kind, error, trace)


ON_LOOP: Runner = _OnLoop()
BLOCKING: Runner = _Blocking()


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits with `BLOCKING`, so it never suspends, and return its result."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    work.close()
    raise AssertionError("expected a coroutine that never suspends")
