# executor.py - threads for the coroutines of a store
# SPDX-License-Identifier: MIT
"""`Executor`: runs synchronous calls of a store without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

from ..storage.tasks import to_its_end

__all__ = ["Executor"]

T = TypeVar("T")


class Executor:
    """A thread pool that starts with its first call.

    Parameters
    ----------
    n : int or None
        Number of threads. None uses the default executor of the event loop.
    """

    def __init__(self, n: int | None) -> None:
        self._n = n
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    async def run(self, work: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        """Run `work` in a thread with the context of the caller, and wait for its end, also after a cancellation."""
        if self._n is None:
            return await to_its_end(asyncio.to_thread(work, *arguments, **keywords))
        context, pool = copy_context(), self._started_pool(self._n)

        async def run() -> T:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(pool, lambda: context.run(work, *arguments, **keywords))

        return await to_its_end(run())

    def _started_pool(self, n: int) -> ThreadPoolExecutor:
        if self._pool is None or self._pid != os.getpid():  # after a fork the pool has no threads
            self._pool = ThreadPoolExecutor(n, thread_name_prefix="shardcodec.kv")
            self._pid = os.getpid()
        return self._pool
