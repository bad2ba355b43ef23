# aio.py - asynchronous work that does not outlive its caller
# SPDX-License-Identifier: MIT
"""Two small helpers around asyncio.

Work of ours writes to arrays and holds locks, so whoever started it must not leave while it runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

__all__ = ["all_of", "to_its_end"]

T = TypeVar("T")


async def all_of(work: Iterable[Awaitable[T]]) -> list[T]:
    """Run awaitables together; at the first failure cancel the others, and raise it when all have ended."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def to_its_end(work: Awaitable[T]) -> T:
    """Wait for work that cannot be stopped half-way (another thread does it), even when cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None and not task.cancelled():
        task.exception()  # seen, and less important
        raise cancelled
    return task.result()
