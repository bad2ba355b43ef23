# budget.py - limits that all calls to one store share
# SPDX-License-Identifier: MIT
"""Limits of concurrent requests, and of the bytes that they bring, for all calls of an event loop to one store.

Nearly all calls of a process run on one event loop, that of zarr. Eight threads of dask then make as many requests, and need as
much memory, as one. A store may itself read another store of the same name. Its requests are part of the one that they serve
and are not counted again: they would wait for it, and it waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import AsyncIterator
from contextvars import ContextVar
from typing import NamedTuple

__all__ = ["Budget", "bytes_of", "requests_of"]


# The budgets that the running code holds.
_within: ContextVar[tuple[Budget, ...]] = ContextVar("shardcodec.budgets", default=())


class _Turn(NamedTuple):
    granted: asyncio.Future[None]
    amount: int
    most: int


class Budget:
    """An amount that coroutines of one event loop hold at a time. They get it in the order in which they ask."""

    def __init__(self) -> None:
        self._held = 0
        self._waiting = deque[_Turn]()

    @contextlib.asynccontextmanager
    async def hold(self, amount: int, most: int) -> AsyncIterator[None]:
        """Hold an amount, after waiting until all hold at most `most` together; alone, any amount is granted.

        Within a block that holds this budget, at once and without counting.
        """
        outer = _within.get()
        if self in outer:
            yield
            return
        if self._waiting or not self._fits(amount, most):
            await self._wait(amount, most)
        else:
            self._held += amount
        token = _within.set((*outer, self))
        try:
            yield
        finally:
            self._give_back(amount)
            _within.reset(token)

    def _fits(self, amount: int, most: int) -> bool:
        return not self._held or self._held + amount <= most

    async def _wait(self, amount: int, most: int) -> None:
        turn = _Turn(asyncio.get_running_loop().create_future(), amount, most)
        self._waiting.append(turn)
        try:
            await turn.granted
        except asyncio.CancelledError:
            is_granted = turn.granted.done() and not turn.granted.cancelled()
            self._give_back(
                amount if is_granted else 0
            )  # without the turn that was cancelled the next one may fit
            raise

    def _give_back(self, amount: int) -> None:
        self._held -= amount
        while self._waiting:
            turn = self._waiting[0]
            if not turn.granted.cancelled():
                if not self._fits(turn.amount, turn.most):
                    break
                self._held += turn.amount
                turn.granted.set_result(None)
            self._waiting.popleft()


# For each event loop the budgets of the stores, by name.
_Budgets = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Budget]]
_requests: _Budgets = weakref.WeakKeyDictionary()
_bytes: _Budgets = weakref.WeakKeyDictionary()


def requests_of(name: str | None) -> Budget:
    """Return the budget of concurrent requests to a store; one of its own for None."""
    return _of(_requests, name)


def bytes_of(name: str | None) -> Budget:
    """Return the budget of bytes that are requested from a store or wait for decoding; one of its own for None."""
    return _of(_bytes, name)


def _of(budgets: _Budgets, name: str | None) -> Budget:
    if name is None:
        return Budget()
    return budgets.setdefault(asyncio.get_running_loop(), {}).setdefault(name, Budget())
