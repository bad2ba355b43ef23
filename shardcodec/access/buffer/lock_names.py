# lock_names.py - names of objects for locks, memoised for the buffer
# SPDX-License-Identifier: MIT
"""Names under which the buffer stores objects: their names for locks.

To resolve a path takes several system calls, so names are memoised while blocks of `group_writes` are open. The name of a
symbolic link is not memoised: an erase removes the link and keeps its target, so the path then names another object.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...storage.runner import ON_LOOP, Runner
from ...storage.store import Store
from ..shard_object import ShardObject

__all__ = ["LockName", "LockNames", "lock_names", "resolve"]

# Number of memoised names. The memo is cleared when it is full.
MAX_NAMES = 1 << 16


@dataclass(frozen=True, slots=True)
class LockName:
    """The name of an object for locks.

    Attributes
    ----------
    name : str
        The name; for a symbolic link the name of its target.
    is_link : bool
        True if a symbolic link leads to the object.
    """

    name: str
    is_link: bool


async def lock_names(store: Store, keys: Sequence[str]) -> list[str]:
    """Return the names of objects of one store, without blocking the event loop and without the test for links."""
    return await ON_LOOP.call(store.lock_names, keys, inline=store.is_prompt)


async def resolve(store: Store, keys: Sequence[str], runner: Runner = ON_LOOP) -> list[LockName]:
    """Return the names of objects of one store, without blocking the event loop."""
    return await runner.call(_resolve, store, keys, inline=store.is_prompt)


def _resolve(store: Store, keys: Sequence[str]) -> list[LockName]:
    names = store.lock_names(keys)
    return [LockName(name, store.is_link(key)) for key, name in zip(keys, names, strict=True)]


class LockNames:
    """Memoised names for locks, by store and key, or by handle."""

    def __init__(self) -> None:
        # with the store or handle: while it is in memory, no other object has its id
        self._known: dict[tuple[int, str], tuple[Any, LockName]] = {}

    def known(self, store: Store, key: str) -> LockName | None:
        """Return a memoised name; None if there is none."""
        found = self._known.get((id(store), key))
        return None if found is None else found[1]

    async def of(self, store: Store, keys: Sequence[str], runner: Runner = ON_LOOP) -> list[LockName]:
        """Return the names of objects of one store, without blocking the event loop."""
        names = [self.known(store, key) for key in keys]
        unknown = [key for key, name in zip(keys, names, strict=True) if name is None]
        found = await resolve(store, unknown, runner) if unknown else []
        for key, name in zip(unknown, found, strict=True):
            self._note(store, key, name)
        resolved = iter(found)
        return [next(resolved) if name is None else name for name in names]

    def of_object(self, target: ShardObject) -> str:
        """Return the name of the object of a handle."""
        found = self._known.get((id(target), ""))
        if found is not None:
            return found[1].name
        name = LockName(target.identity, target.is_link)
        self._note(target, "", name)
        return name.name

    def _note(self, owner: Any, key: str, name: LockName) -> None:
        if name.is_link:
            return
        if len(self._known) >= MAX_NAMES:
            self._known.clear()
        self._known[id(owner), key] = owner, name
