# replace.py - the one function that replaces objects
# SPDX-License-Identifier: MIT
"""Replace objects of a store without losing another writer's work.

A writer of this process holds the lock of each object in the lock table. Writers in other processes are excluded by the
lock of a file, or are detected by a condition on the entity tag; any other store offers neither. Each kind of store makes
one attempt (`Store.exchange`). `replace` repeats the attempts until all objects are replaced, or the deadline has passed.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..options import Options
from .runner import BLOCKING, ON_LOOP, Runner, run_blocking
from .store import Contest, Maker, Replacement, Store

__all__ = ["replace", "replace_blocking"]


async def replace(
    store: Store, keys: Sequence[str], maker: Maker, options: Options, runner: Runner = ON_LOOP
) -> list[bytes | None]:
    """Replace objects by new ones that are made from them.

    Parameters
    ----------
    store : Store
    keys : sequence of str
        Each object once.
    maker : Maker
        Makes the new objects, under all locks.
    options : Options
        ``locking`` and ``lock_timeout`` are used.
    runner : Runner
        How to wait.

    Returns
    -------
    list of (bytes or None)
        Name of the state of each new object; None if its bytes or its file identify the state.

    Raises
    ------
    ValueError
        The store is read-only.
    LockError
        Other writers changed an object during each attempt for ``lock_timeout``. Other objects may have been replaced.
    Exception
        Errors of the maker and of the store. The object is as it was.
    """
    work = _Exchange(store, keys, maker, options, runner)
    try:
        while work.left:
            await runner.under_locks(await work.names(), work.exchange)
    finally:
        store.forget(keys)
    return work.states


def replace_blocking(store: Store, keys: Sequence[str], maker: Maker, options: Options) -> list[bytes | None]:
    """Replace objects as `replace`, in a thread that does not run an event loop."""
    return run_blocking(replace(store, keys, maker, options, BLOCKING))


class _Exchange:
    """The objects of one write, and what has been achieved.

    Attributes
    ----------
    left : sequence of int
        Positions of objects that have not been replaced yet.
    states : list of (bytes or None)
        Names of the states of new objects.
    """

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
        self.left: Sequence[int] = range(len(keys))
        self.states: list[bytes | None] = [None] * len(keys)

    async def names(self) -> list[str]:
        """Find the names for locks of the objects that are left."""
        keys = [self._keys[i] for i in self.left]
        self._names = await self._runner.call(self._store.lock_names, keys, inline=self._store.is_prompt)
        return self._names

    async def exchange(self) -> None:
        """Replace the objects that are left, whose locks are held; stop if a name leads to another object by now."""
        wanted: Sequence[Replacement] = [
            Replacement(i, self._keys[i], name) for i, name in zip(self.left, self._names, strict=True)
        ]
        has_moved = False
        while wanted and not has_moved:
            if self._contest is None:
                self._contest = Contest(self._options)
            outcome = await self._store.exchange(
                wanted, self._maker, self._options, self._runner, self._contest
            )
            wanted, has_moved = outcome.left, outcome.has_moved
            if outcome.is_undisturbed:  # the next objects have their own deadline
                self._contest = None
            for position, state in outcome.states.items():
                self.states[position] = state
            if outcome.pause:
                await self._runner.sleep(outcome.pause)
        self.left = [one.position for one in wanted]
