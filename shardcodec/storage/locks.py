# locks.py - one writer at a time for every shard, within this process
# SPDX-License-Identifier: MIT
"""Locks for shards.

A partial write reads a shard, changes it and writes it back; of two that do so at once, one would lose its inner
chunks. Every writer of this process, whole or partial, holds the lock of each shard it writes.

A lock may be waited for by threads and by coroutines alike, and passes to whoever asked first. A coroutine never
blocks its event loop: zarr runs all its work on one. Several locks are taken in ascending order of their keys, so that
two writers cannot wait for each other.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from contextvars import ContextVar, Token

__all__ = ["LockTable", "table"]

Grant = Callable[[], None]

# Counters of locks that were taken; keys share them.
N_COUNTERS = 1024


class LockTable:
    """Locks by key. A lock exists only while somebody holds it or waits for it."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._queues: dict[Hashable, deque[Grant]] = {}
        self._n_taken = [0] * N_COUNTERS

    def __len__(self) -> int:
        return len(self._queues)

    def try_acquire(self, key: Hashable) -> bool:
        """Take the lock if nobody has it."""
        return self._enter(key, None)

    def calm(self, key: Hashable) -> int | None:
        """Return a number that stays the same until somebody takes the lock; None while somebody holds it.

        So a reader who asks twice can tell whether there was a writer meanwhile. Other keys may change the number too.
        """
        with self._mutex:
            return None if key in self._queues else self._n_taken[hash(key) % N_COUNTERS]

    def n_taken(self, key: Hashable) -> int:
        """What `calm` will say when the lock, which the caller holds, has been released and nobody has taken it since."""
        with self._mutex:
            return self._n_taken[hash(key) % N_COUNTERS]

    @staticmethod
    def holds(key: Hashable) -> bool:
        """Tell whether the caller, or his own caller, has the lock."""
        return key in _held.get()

    def _enter(self, key: Hashable, grant: Grant | None) -> bool:
        """Take the lock, or queue up: `grant` is called, by the thread that releases it, when it is ours."""
        with self._mutex:
            queue = self._queues.get(key)
            if queue is None:
                self._queues[key] = deque()
                self._n_taken[hash(key) % N_COUNTERS] += 1
                return True
            if grant is not None:
                queue.append(grant)
            return False

    def release(self, key: Hashable) -> None:
        """Pass the lock on."""
        with self._mutex:
            queue = self._queues.get(key)
            if queue is None:  # a forked child has a new table: the parent's lock is the parent's
                return
            if not queue:
                del self._queues[key]
                return
            grant = queue.popleft()
        grant()

    def _withdraw(self, key: Hashable, grant: Grant) -> bool:
        """Leave the queue; False when the lock has been granted already."""
        with self._mutex:
            try:
                self._queues[key].remove(grant)
            except (KeyError, ValueError):
                return False
            return True

    def acquire(self, key: Hashable) -> None:
        """Wait for the lock. Not for a thread that runs an event loop."""
        granted = threading.Event()
        grant = granted.set
        if self._enter(key, grant):
            return
        try:
            granted.wait()
        except BaseException:  # an interrupt: nobody would release what is granted later
            if not self._withdraw(key, grant):
                self.release(key)
            raise

    async def acquire_async(self, key: Hashable) -> None:
        """Wait for the lock without blocking the event loop."""
        loop = asyncio.get_running_loop()
        granted = loop.create_future()

        def grant() -> None:
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:  # that loop is closed, nobody waits there any more
                self.release(key)

        def settle() -> None:
            if granted.cancelled():
                self.release(key)
            else:
                granted.set_result(None)

        if self._enter(key, grant):
            return
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(key)
            else:
                self._withdraw(key, grant)
            raise

    def hold(self, keys: Iterable[Hashable]) -> Hold:
        """Hold several locks; those that the caller's own caller holds already are left to it."""
        return Hold(self, keys)

    def hold_async(self, keys: Iterable[Hashable]) -> AsyncHold:
        """Hold several locks, from a coroutine; otherwise as `hold`."""
        return AsyncHold(self, keys)


# Held by this thread or task, or by whoever started it and waits for it.
_held: ContextVar[frozenset[Hashable]] = ContextVar("shardcodec.locks", default=frozenset())


class Hold:
    """A block in which locks are held. No generator: every write passes here, and the first after a pause dearly."""

    __slots__ = ("_keys", "_table", "_taken", "_token")

    def __init__(self, table: LockTable, keys: Iterable[Hashable]) -> None:
        self._table = table
        self._keys = keys
        self._taken: list[Hashable] = []
        self._token: Token[frozenset[Hashable]]

    def _missing(self) -> list[Hashable]:
        """What is to be taken, in order."""
        return sorted(set(self._keys) - _held.get(), key=str)

    def _note(self) -> None:
        self._token = _held.set(_held.get().union(self._taken))

    def _give_back(self) -> None:
        while self._taken:
            self._table.release(self._taken.pop())

    def __enter__(self) -> None:
        try:
            for key in self._missing():
                self._table.acquire(key)
                self._taken.append(key)
        except BaseException:
            self._give_back()
            raise
        self._note()

    def __exit__(self, *exception: object) -> None:
        _held.reset(self._token)
        self._give_back()


class AsyncHold(Hold):
    """The same for coroutines."""

    __slots__ = ()

    async def __aenter__(self) -> None:
        try:
            for key in self._missing():
                if not self._table.try_acquire(key):
                    await self._table.acquire_async(key)
                self._taken.append(key)
        except BaseException:
            self._give_back()
            raise
        self._note()

    async def __aexit__(self, *exception: object) -> None:
        self.__exit__()


_table = LockTable()


def table() -> LockTable:
    """Return the table of this process."""
    return _table


def _forget() -> None:
    global _table
    _table = LockTable()


# A forked child has none of the threads that hold its parent's locks, and could wait for them for ever.
os.register_at_fork(after_in_child=_forget)
