# process_locks.py - locks of shards in this process
# SPDX-License-Identifier: MIT
"""`LockTable`: excludes the writers of this process from each other. `file_locks` excludes those of other processes.

A partial write reads a shard, changes it and writes it back; without a lock, one of two concurrent writes would lose its
inner chunks. Every writer of this process, whole or partial, holds the lock of each shard that it writes.

Threads and coroutines can wait for a lock; the first waiter gets it next. A coroutine never blocks its event loop, because
zarr runs all its work on one. A writer takes several locks in ascending order of their keys, so that two writers cannot
wait for each other.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from .. import native
from . import file_locks
from .event_loop import caller_of_task

if TYPE_CHECKING:
    from .._native import Hold

__all__ = ["LockTable", "table"]


class LockTable:
    """A table of locks by key. A lock exists only while it is held or has waiters.

    `hold` returns a native context manager: a signal handler that raises cannot leave its locks locked.
    """

    def __init__(self) -> None:
        self._engine = native.load()
        self._native = self._engine.LockTable()

    def __len__(self) -> int:
        return len(self._native)

    def wanted_by(self, thread: int | None) -> list[str]:
        """Return the keys for which a signal handler in a thread must not wait, because what it has interrupted needs the locks."""
        return self._native.wanted_by(thread)  # type: ignore[no-any-return]

    def try_acquire(self, key: str) -> bool:
        """Take the lock if it is free; return True on success."""
        return self._native.enter(key, None)  # type: ignore[no-any-return]

    def calm(self, key: str) -> int | None:
        """Return a number that does not change until the lock is taken; None while it is held.

        A reader compares two such numbers to detect a writer in between. Other keys may change the number too.
        """
        return self._native.calm(key)  # type: ignore[no-any-return]

    def n_taken(self, key: str) -> int:
        """Return the number that `calm` returns after the caller has released the lock, until it is taken again."""
        return self._native.n_taken(key)  # type: ignore[no-any-return]

    def n_waiting(self, key: str) -> int:
        """Return the number of threads and coroutines that wait for the lock."""
        return self._native.n_waiting(key)  # type: ignore[no-any-return]

    def holds(self, key: str) -> bool:
        """Return True if the caller, or its own caller, has the lock."""
        return self._native.holds(key)  # type: ignore[no-any-return]

    def release(self, key: str) -> None:
        """Release the lock, or hand it to the first waiter."""
        self._native.release(key)

    def acquire(self, key: str) -> None:
        """Wait for the lock and take it. Threads that run an event loop must not call this."""
        self._native.acquire(key)

    async def acquire_async(self, key: str) -> None:
        """Wait for the lock and take it, without blocking the event loop.

        LockError, at once: a signal handler waits for this task in the main thread, and has interrupted what needs the lock there.
        """
        main = threading.main_thread().ident
        if key in self.wanted_by(main) and (caller := caller_of_task()) is not None and caller.is_waiting():
            raise file_locks.interrupted(key)
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
        """Return the callback that gives a coroutine the lock; it may be called again after a signal interrupted it."""
        is_over = False

        def hand_over() -> None:
            nonlocal is_over
            if is_over:
                return
            is_over = True
            if granted.cancelled():
                self.release(key)
            else:
                granted.set_result(None)

        def grant() -> bool:
            try:
                loop.call_soon_threadsafe(hand_over)
            except RuntimeError:
                if loop.is_closed():  # its coroutines no longer wait
                    return False
                raise
            return True

        return grant

    def hold_free(self, key: str) -> AbstractContextManager[bool]:
        """Return a context manager that holds a lock if it is free; it yields False if not, and does not wait."""
        return self._engine.FreeHold(self._native, key)  # type: ignore[no-any-return]

    def hold(self, keys: Iterable[str]) -> AbstractContextManager[None]:
        """Return a context manager that holds several locks, except those that the caller's own caller already holds."""
        return self._engine.Hold(self._native, keys)  # type: ignore[no-any-return]

    def hold_async(self, keys: Iterable[str]) -> AsyncHold:
        """Return an asynchronous context manager that holds several locks, as `hold`."""
        return AsyncHold(self, self._engine.Hold(self._native, keys))


class AsyncHold:
    """An asynchronous context manager that holds locks."""

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


# The table of this process, made at its first use, because it loads the extension.
_tables: dict[str, LockTable] = {}


def table() -> LockTable:
    """Return the table of this process."""
    present = _tables.get("")
    return _tables.setdefault("", LockTable()) if present is None else present


# A forked child does not have the threads that hold its parent's locks, so it would wait for them forever.
os.register_at_fork(after_in_child=_tables.clear)
