# replace.py - the one function that replaces objects
# SPDX-License-Identifier: MIT
"""Replace objects of a store without losing another writer's work.

A writer of this process holds the lock of each object in the lock table. Writers in other processes are excluded by the
lock of a file, or are detected by a condition on the entity tag; any other store offers neither. Each kind of store makes
one attempt (`Store.exchange`). `replace` repeats the attempts until all objects are replaced, or the deadline has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from ..options import Options
from . import file_locks, process_locks
from .runner import ON_LOOP, Runner
from .store import Contest, Maker, Replacement, Store

__all__ = ["forget", "replace"]


# Names of the objects that the caller replaces. A signal handler in the middle of it finds them here, if their locks are held.
_replaced: ContextVar[tuple[str, ...]] = ContextVar("shardcodec.replaced", default=())


async def replace(
    store: Store, keys: Sequence[str], maker: Maker, options: Options, runner: Runner = ON_LOOP
) -> list[bytes | None]:
    """Replace objects, each once, by new ones that are made from them under all locks; return the names of their new states.

    A name is None if the bytes or the file identify the state. LockError: other writers changed an object during each attempt
    for ``SHARDCODEC_LOCK_TIMEOUT``; other objects may have been replaced. After an error of the maker or the store the object is
    unchanged.
    """
    exchange = _Exchange(store, keys, maker, options, runner)
    try:
        while exchange.remaining:
            names = await exchange.names()
            for name in _replaced.get():
                # The changes of one of the two writes would be lost.
                if name in names and process_locks.table().holds(name):
                    raise file_locks.interrupted(name)
            await runner.under_locks(names, exchange.exchange)
    finally:
        forget(store, keys)
    return exchange.states


def forget(store: Store, keys: Sequence[str], *, prefix: str | None = None) -> None:
    """Drop what this process has cached of objects that were written, or removed: those whose keys begin with `prefix`."""
    store.forget(keys)
    if not store.is_near:
        from . import disk_cache  # here, because most processes write files

        disk_cache.forget(store, keys, prefix)


class _Exchange:
    """The objects of one write: `remaining` are positions of those that have not been replaced yet, `states` names of new states."""

    def __init__(
        self, store: Store, keys: Sequence[str], maker: Maker, options: Options, runner: Runner
    ) -> None:
        store.check_writable()
        self._store = store
        self._keys = keys
        self._maker = maker
        self._options = options
        self._runner = runner
        self._contest: Contest | None = None  # begins when the locks of this process are held
        self._names: list[str] = []
        self.remaining: Sequence[int] = range(len(keys))
        self.states: list[bytes | None] = [None] * len(keys)

    async def names(self) -> list[str]:
        """Find the names for locks of the objects that are left."""
        keys = [self._keys[i] for i in self.remaining]
        self._names = await self._runner.call(self._store.lock_names, keys, inline=self._store.is_prompt)
        return self._names

    async def exchange(self) -> None:
        """Replace the objects that are left, whose locks are held; stop if a name leads to another object by now."""
        token = _replaced.set((*_replaced.get(), *self._names))
        try:
            await self._exchange()
        finally:
            _replaced.reset(token)

    async def _exchange(self) -> None:
        replacements: Sequence[Replacement] = [
            Replacement(i, self._keys[i], name) for i, name in zip(self.remaining, self._names, strict=True)
        ]
        has_moved = False
        while replacements and not has_moved:
            if self._contest is None:
                self._contest = Contest(self._options)
            outcome = await self._store.exchange(
                replacements, self._maker, self._options, self._runner, self._contest
            )
            replacements, has_moved = outcome.remaining, outcome.has_moved
            if outcome.is_undisturbed:  # the next objects have their own deadline
                self._contest = None
            for position, state in outcome.states.items():
                self.states[position] = state
            if outcome.pause:
                await self._runner.sleep(outcome.pause)
        self.remaining = [replacement.position for replacement in replacements]
