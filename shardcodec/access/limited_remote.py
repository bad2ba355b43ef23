# limited_remote.py - a store of requests with a limit of concurrent requests
# SPDX-License-Identifier: MIT
"""`LimitedRemote`: limits the concurrent requests to a store, and counts them for `shardcodec.stats`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from .. import native
from ..storage import budget
from ..storage.store import Answer, Remote

__all__ = ["LimitedRemote"]


class LimitedRemote:
    """A `Remote` that makes at most `n_requests` concurrent requests to another one, with other calls to the same store.

    It belongs to one event loop.
    """

    budget_name = None  # the limit of the store is kept here

    def __init__(self, remote: Remote, n_requests: int) -> None:
        self._remote = remote
        self._most = n_requests
        self._budget: budget.Budget | None = None

    async def get(self, key: str) -> Answer | None:
        """Return all of an object."""
        return await self._ask(self._remote.get, key)

    async def get_range(self, key: str, start: int, end: int, state: Any = None) -> Answer | None:
        """Return bytes [start, end) of an object; raise `ObjectChanged` if it is not in the state `state`."""
        return await self._ask(self._remote.get_range, key, start, end, state)

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        """Return the last bytes of an object, or all of a shorter one."""
        return await self._ask(self._remote.get_suffix, key, nbytes)

    async def _ask(self, request: Callable[..., Awaitable[Answer | None]], *arguments: Any) -> Answer | None:
        if self._budget is None:  # here an event loop runs
            self._budget = budget.of_store(self._remote.budget_name).requests
        async with self._budget.hold(1, self._most):
            answer = await request(*arguments)
        native.load().totals_add(reads=1, bytes_read=0 if answer is None else len(answer.data))
        return answer
