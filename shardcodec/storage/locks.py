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
import contextlib
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator
from contextvars import ContextVar

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

    @contextlib.contextmanager
    def hold(self, keys: Iterable[Hashable]) -> Iterator[None]:
        """Hold several locks; those that the caller's own caller holds already are left to it."""
        wanted = _in_order(keys)
        with contextlib.ExitStack() as held:
            for key in wanted:
                self.acquire(key)
                held.callback(self.release, key)
            held.enter_context(_noted(wanted))
            yield

    @contextlib.asynccontextmanager
    async def hold_async(self, keys: Iterable[Hashable]) -> AsyncIterator[None]:
        """Hold several locks, from a coroutine; otherwise as `hold`."""
        wanted = _in_order(keys)
        with contextlib.ExitStack() as held:
            for key in wanted:
                if not self.try_acquire(key):
                    await self.acquire_async(key)
                held.callback(self.release, key)
            held.enter_context(_noted(wanted))
            yield


# Held by this thread or task, or by whoever started it and waits for it.
_held: ContextVar[frozenset[Hashable]] = ContextVar("shardcodec.locks", default=frozenset())


@contextlib.contextmanager
def _noted(keys: Iterable[Hashable]) -> Iterator[None]:
    token = _held.set(_held.get() | set(keys))
    try:
        yield
    finally:
        _held.reset(token)


def _in_order(keys: Iterable[Hashable]) -> list[Hashable]:
    return sorted(set(keys) - _held.get(), key=str)


_table = LockTable()


def table() -> LockTable:
    """Return the table of this process."""
    return _table


def _forget() -> None:
    global _table
    _table = LockTable()


# A forked child has none of the threads that hold its parent's locks, and could wait for them for ever.
os.register_at_fork(after_in_child=_forget)
