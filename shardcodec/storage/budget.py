# budget.py - limits that all calls to one store share
# SPDX-License-Identifier: MIT
"""Limits of concurrent requests, and of the bytes that they bring, for all calls of an event loop to one store.

Nearly all calls of a process run on one event loop, that of zarr. Eight threads of dask then make as many requests, and need as
much memory, as one. A store may itself use another store of the same name. Its requests are part of the one that they serve
and are not counted again: they would wait for it, and it waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from typing import NamedTuple

from ..compat import on_zarrs_loop

__all__ = ["Budget", "HeldFromThread", "bytes_of", "memory_of_writes", "requests_of"]

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
        await self.take(amount, most)
        token = _within.set((*outer, self))
        try:
            yield
        finally:
            self.give_back(amount)
            _within.reset(token)

    async def take(self, amount: int, most: int) -> None:
        """Wait as `hold`; the caller gives the amount back."""
        if not self._waiting and self._fits(amount, most):
            self._held += amount
            return
        turn = _Turn(asyncio.get_running_loop().create_future(), amount, most)
        self._waiting.append(turn)
        try:
            await turn.granted
        except asyncio.CancelledError:
            is_granted = turn.granted.done() and not turn.granted.cancelled()
            # without the turn that was cancelled the next one may fit
            self.give_back(amount if is_granted else 0)
            raise

    def _fits(self, amount: int, most: int) -> bool:
        return not self._held or self._held + amount <= most

    def give_back(self, amount: int) -> None:
        """Return an amount; on the event loop."""
        self._held -= amount
        while self._waiting:
            turn = self._waiting[0]
            if not turn.granted.cancelled():
                if not self._fits(turn.amount, turn.most):
                    break
                self._held += turn.amount
                turn.granted.set_result(None)
            self._waiting.popleft()


class HeldFromThread(AbstractContextManager[None]):
    """Hold a part of a budget of zarr's event loop in a thread, which must not be the thread of that loop.

    A signal handler may raise while the thread waits, or just after. The amount is given back when nothing refers to this object
    any longer, so none is lost.

    Parameters
    ----------
    find : callable
        Returns the budget; called on the event loop.
    amount, most : int
        As for `Budget.hold`.
    """

    def __init__(self, find: Callable[[], Budget], amount: int, most: int) -> None:
        self._find = find
        self._amount = amount
        self._most = most
        self._loop: asyncio.AbstractEventLoop | None = None  # set while the amount is held
        self._budget: Budget | None = None
        self._token: Token[tuple[Budget, ...]] | None = None

    def __enter__(self) -> None:
        on_zarrs_loop(self._take())
        if self._budget is not None:
            self._token = _within.set((*_within.get(), self._budget))

    async def _take(self) -> None:
        budget = self._find()
        if budget in _within.get():
            return
        await budget.take(self._amount, self._most)
        self._budget, self._loop = budget, asyncio.get_running_loop()

    def __exit__(self, *unused: object) -> None:
        if self._token is not None:
            _within.reset(self._token)
        self.__del__()

    def __del__(self) -> None:
        loop, self._loop = self._loop, None
        if loop is not None and self._budget is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._budget.give_back, self._amount)


# For each event loop the budgets of the stores, by name.
_Budgets = weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Budget]]
_requests: _Budgets = weakref.WeakKeyDictionary()
_bytes: _Budgets = weakref.WeakKeyDictionary()
_memory: _Budgets = weakref.WeakKeyDictionary()


def requests_of(name: str | None) -> Budget:
    """Return the budget of concurrent requests to a store; one of its own for None."""
    return _of(_requests, name)


def bytes_of(name: str | None) -> Budget:
    """Return the budget of bytes that are requested from a store or wait for decoding; one of its own for None."""
    return _of(_bytes, name)


def memory_of_writes(name: str | None) -> Budget:
    """Return the budget of bytes of old and new objects that are held by writes to a store; one of its own for None.

    It is not that of reads: a read would wait until a large object is encoded and stored.
    """
    return _of(_memory, name)


def _of(budgets: _Budgets, name: str | None) -> Budget:
    if name is None:
        return Budget()
    return budgets.setdefault(asyncio.get_running_loop(), {}).setdefault(name, Budget())
