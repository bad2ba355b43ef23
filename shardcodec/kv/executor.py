# executor.py - where the coroutines of a store do their work
# SPDX-License-Identifier: MIT
"""`Threads`."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from ..storage.tasks import to_its_end

__all__ = ["Threads"]

T = TypeVar("T")


class Threads:
    """So many threads, begun when they are needed; None: those of the event loop."""

    def __init__(self, n: int | None) -> None:
        self._n = n
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    async def run(self, work: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Call something in a thread, with the caller's context, and wait for its end."""
        if self._n is None:
            return await to_its_end(asyncio.to_thread(work, *arguments, **keywords))
        context, pool = copy_context(), self._begun(self._n)

        async def run() -> T:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(pool, lambda: context.run(work, *arguments, **keywords))

        return await to_its_end(run())

    def _begun(self, n: int) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():  # a fork leaves the pool without its threads
            self._pool = ThreadPoolExecutor(n, thread_name_prefix="shardcodec.kv")
            self._pid = os.getpid()
        return self._pool
