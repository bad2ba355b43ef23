# budget.py - the limits of requests: how many, how large, how much memory
# SPDX-License-Identifier: MIT
"""The limits of requests to a store, and who holds how much of them.

`Store.limits` tells the limits (`Limits`), from zarr's configuration. `of_store` tells what all calls of an event loop to one
store hold of them at present. A limit of one call alone is a separate `Budget`.

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
from typing import Any, NamedTuple

from ..compat import coalescing, config, default_spec, on_zarrs_loop

__all__ = [
    "MAX_GAP_NBYTES",
    "NEAR",
    "Budget",
    "HeldFromThread",
    "Limits",
    "StoreBudgets",
    "limits_of_zarr",
    "of_store",
]

# Local files: bytes that cost less to read than another system call.
MAX_GAP_NBYTES = 16 << 10

# zarr works on `async.concurrency` objects at the same time, and requests this number of ranges of each.
RANGES_PER_OBJECT = 10

# Memory for writes to a store: this for each object that zarr permits at the same time.
OBJECT_NBYTES = 32 << 20


class Limits(NamedTuple):
    """The limits of requests, and the value of a request in bytes.

    n_requests, read_nbytes, write_nbytes: limits of all calls of this process to one store: concurrent requests; bytes that are
    requested or not decoded; bytes of old and new objects. A single larger request or object runs alone. max_gap_nbytes: extra
    bytes that are worth one round trip less. free_gap_nbytes: those that are worth one concurrent request less. max_nbytes:
    bound of a merged range. most_objects: number of objects that one call works on at the same time; `n_requests` by default.
    """

    n_requests: int
    max_gap_nbytes: int = 1 << 20
    max_nbytes: int = 16 << 20
    read_nbytes: int = 256 << 20
    free_gap_nbytes: int = 16 << 10
    most_objects: int | None = None
    write_nbytes: int = 10 * OBJECT_NBYTES

    @property
    def n_objects(self) -> int:
        """Maximum number of objects that one call works on at the same time."""
        return self.most_objects or self.n_requests

    def share_nbytes(self, n_objects: int) -> int:
        """Return the extra bytes that are worth a round trip of one object, if this many objects are read together."""
        share = self.max_gap_nbytes // max(1, min(n_objects, self.n_requests))
        return max(share, min(self.free_gap_nbytes, self.max_gap_nbytes))


# The limits of a file or of bytes in memory, where a request is a system call.
NEAR = Limits(1, MAX_GAP_NBYTES, free_gap_nbytes=MAX_GAP_NBYTES)


def limits_of_zarr(spec: Any = None, *, near: bool) -> Limits:
    """Return the limits of zarr's configuration.

    spec: an `ArraySpec`, whose configuration has bounds of merged ranges; without it those of new arrays are used. near: a
    request costs as little as one to a local file, so few extra bytes are worth another request.
    """
    max_gap_nbytes, max_nbytes = coalescing(default_spec() if spec is None else spec)
    n_objects = max(1, int(config.get("async.concurrency")))
    free_gap_nbytes = MAX_GAP_NBYTES
    if near:
        max_gap_nbytes = free_gap_nbytes = min(max_gap_nbytes, MAX_GAP_NBYTES)
    return Limits(
        RANGES_PER_OBJECT * n_objects,
        max_gap_nbytes,
        max_nbytes,
        free_gap_nbytes=free_gap_nbytes,
        most_objects=n_objects,
        write_nbytes=n_objects * OBJECT_NBYTES,
    )


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
    """An amount that coroutines of one event loop share. They get it in the order in which they ask."""

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

    A signal handler may raise while the thread waits, or just after; then the amount is given back as well. `find` returns the
    budget; it is called on the event loop.
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


class StoreBudgets(NamedTuple):
    """Budgets of all calls of one event loop to one store.

    requests: concurrent ones. reads: bytes that are requested or wait for decoding. writes: bytes of old and new objects; they
    do not count as `reads`, because a read would wait until a large object is encoded and stored.
    """

    requests: Budget
    reads: Budget
    writes: Budget


# For each event loop the budgets of the stores, by name.
_budgets: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, StoreBudgets]] = (
    weakref.WeakKeyDictionary()
)


def of_store(name: str | None) -> StoreBudgets:
    """Return the budgets of a store (`Store.budget_name`) on the running event loop; new ones for None."""
    if name is None:
        return StoreBudgets(Budget(), Budget(), Budget())
    of_loop = _budgets.setdefault(asyncio.get_running_loop(), {})
    if name not in of_loop:
        of_loop[name] = StoreBudgets(Budget(), Budget(), Budget())
    return of_loop[name]
