# locks.py - one writer at a time for every shard, within this process
# SPDX-License-Identifier: MIT
"""Locks for shards.

A partial write reads a shard, changes it and writes it back; of two that do so at once, one would lose its inner
chunks. Every writer of this process, whole or partial, holds the lock of each shard it writes.

A lock may be waited for by threads and by coroutines alike, and passes to the one that asked first. A coroutine never
blocks its event loop: zarr runs all its work on one. Several locks are taken in ascending order of their keys, so that
two writers cannot wait for each other.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from .. import native

if TYPE_CHECKING:
    from .._native import Hold

__all__ = ["LockTable", "table"]


class LockTable:
    """Locks by key. A lock exists only while it is held or waited for.

    A block that holds locks, `hold`, is native: a signal handler that raises cannot leave them locked.
    """

    def __init__(self) -> None:
        self._engine = native.load()
        self._native = self._engine.LockTable()

    def __len__(self) -> int:
        return len(self._native)

    def try_acquire(self, key: str) -> bool:
        """Take the lock if it is free."""
        return self._native.enter(key, None)  # type: ignore[no-any-return]

    def calm(self, key: str) -> int | None:
        """Return a number that stays the same until the lock is taken; None while it is held.

        So a reader who asks twice can tell whether there was a writer meanwhile. Other keys may change the number too.
        """
        return self._native.calm(key)  # type: ignore[no-any-return]

    def n_taken(self, key: str) -> int:
        """What `calm` will say when the caller has released the lock and before it is taken again."""
        return self._native.n_taken(key)  # type: ignore[no-any-return]

    def n_waiting(self, key: str) -> int:
        """Count the threads and coroutines that wait for the lock."""
        return self._native.n_waiting(key)  # type: ignore[no-any-return]

    def holds(self, key: str) -> bool:
        """Tell whether the caller, or its own caller, has the lock."""
        return self._native.holds(key)  # type: ignore[no-any-return]

    def release(self, key: str) -> None:
        """Pass the lock on."""
        self._native.release(key)

    def acquire(self, key: str) -> None:
        """Wait for the lock. Not for a thread that runs an event loop."""
        self._native.acquire(key)

    async def acquire_async(self, key: str) -> None:
        """Wait for the lock without blocking the event loop."""
        loop = asyncio.get_running_loop()
        granted = loop.create_future()
        grant = self._grant(key, loop, granted)
        if self._native.enter(key, grant):
            return
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(key)
            else:
                self._native.withdraw(key, grant)
            raise

    def _grant(
        self, key: str, loop: asyncio.AbstractEventLoop, granted: asyncio.Future[None]
    ) -> Callable[[], bool]:
        """Make what tells a coroutine that it has the lock; it may be called again where a signal interrupted it."""
        settled = False

        def settle() -> None:
            nonlocal settled
            if settled:
                return
            settled = True
            if granted.cancelled():
                self.release(key)
            else:
                granted.set_result(None)

        def grant() -> bool:
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:
                if loop.is_closed():  # nothing waits there any more
                    return False
                raise
            return True

        return grant

    def hold(self, keys: Iterable[str]) -> AbstractContextManager[None]:
        """Hold several locks; those that the caller's own caller holds already are left to it."""
        return self._engine.Hold(self._native, keys)  # type: ignore[no-any-return]

    def hold_async(self, keys: Iterable[str]) -> AsyncHold:
        """Hold several locks, from a coroutine; otherwise as `hold`."""
        return AsyncHold(self, self._engine.Hold(self._native, keys))


class AsyncHold:
    """A block of a coroutine in which locks are held."""

    __slots__ = ("_hold", "_table")

    def __init__(self, table: LockTable, hold: Hold) -> None:
        self._table = table
        self._hold = hold

    async def __aenter__(self) -> None:
        try:
            for key in self._hold.missing():
                if not self._hold.try_take(key):
                    await self._table.acquire_async(key)
                    self._hold.took(key)
            self._hold.begin()
        except BaseException:
            self._hold.give_back()
            raise

    async def __aexit__(self, *exception: object) -> None:
        self._hold.__exit__(*exception)


# The table of this process, once it is needed: it takes the extension.
_tables: dict[str, LockTable] = {}


def table() -> LockTable:
    """Return the table of this process."""
    found = _tables.get("")
    return _tables.setdefault("", LockTable()) if found is None else found


# A forked child has none of the threads that hold its parent's locks, and could wait for them for ever.
os.register_at_fork(after_in_child=_tables.clear)
