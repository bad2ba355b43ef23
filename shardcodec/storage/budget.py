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


class _Hold:
    """A budget of which the running code holds a part."""

    __slots__ = ("budget", "is_over")

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.is_over = False


# A signal handler that raises may leave a hold here that is over.
_within: ContextVar[tuple[_Hold, ...]] = ContextVar("shardcodec.budgets", default=())


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

        Nothing is granted at once, and so is any amount within a block that holds this budget, without counting.
        """
        if not amount or self.is_held_here():
            yield
            return
        await self.take(amount, most)
        hold = _Hold(self)
        token = _within.set((*_within.get(), hold))
        try:
            yield
        finally:
            hold.is_over = True  # tasks and threads that were started in the block keep a copy of its context
            self.give_back(amount)
            _within.reset(token)

    def is_held_here(self) -> bool:
        """Return True if the running code holds a part of this budget."""
        return any(hold.budget is self and not hold.is_over for hold in _within.get())

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

    A signal handler may raise while the thread waits, or just after; then the amount is given back as well.

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
        self._is_over = False
        self._held: list[
            tuple[asyncio.AbstractEventLoop, _Hold]
        ] = []  # one; `pop` gives it to one thread only
        self._token: Token[tuple[_Hold, ...]] | None = None

    def __enter__(self) -> None:
        if not self._amount:
            return
        try:
            on_zarrs_loop(self._take())
            self._token = _within.set((*_within.get(), *(hold for _, hold in self._held)))
        except BaseException:
            self._leave()
            raise

    async def _take(self) -> None:
        budget = self._find()
        if budget.is_held_here():
            return
        await budget.take(self._amount, self._most)
        self._held.append((asyncio.get_running_loop(), _Hold(budget)))
        if self._is_over:
            self._leave()

    def _leave(self) -> None:
        self._is_over = True
        with contextlib.suppress(IndexError, RuntimeError):  # nothing is held; the loop is closed
            loop, hold = self._held.pop()
            hold.is_over = True
            loop.call_soon_threadsafe(hold.budget.give_back, self._amount)

    def __exit__(self, *unused: object) -> None:
        self._leave()
        if self._token is not None:
            _within.reset(self._token)


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
