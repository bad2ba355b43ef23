# lock_names.py - names of objects for locks, resolved once for a block of `group_writes`
# SPDX-License-Identifier: MIT
"""`Names`.

To resolve a path takes several system calls, so a block remembers what it found. It remembers nothing of a symbolic link:
an erase removes the link and leaves its target, so that the same path then names another object.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..access.shard_object import ShardObject
from ..compat import StorePath
from .stores import is_link, lock_keys, lock_keys_async

__all__ = ["Names"]


class Names:
    """Names as `lock_keys` gives them, by store and path, or by object."""

    def __init__(self) -> None:
        self._known: dict[
            tuple[int, str], tuple[Any, str]
        ] = {}  # with the store, so that its id stays its own

    def known(self, target: StorePath) -> str | None:
        """Return a name that was resolved before."""
        found = self._known.get((id(target.store), target.path))
        return None if found is None else found[1]

    def is_link(self, target: StorePath) -> bool:
        """Tell whether an object that was just named is reached by a symbolic link."""
        return self.known(target) is None

    async def of(self, targets: Sequence[StorePath]) -> list[str]:
        """Name objects of one store, without blocking the event loop."""
        names = [self.known(target) for target in targets]
        unknown = [target for target, name in zip(targets, names, strict=True) if name is None]
        resolved = iter(await lock_keys_async(unknown, self._resolved) if unknown else ())
        return [next(resolved) if name is None else name for name in names]

    def _resolved(self, targets: Sequence[StorePath]) -> list[str]:
        names = lock_keys(targets)
        for target, name in zip(targets, names, strict=True):
            if not is_link(target):
                self._known[id(target.store), target.path] = target.store, name
        return names

    def of_object(self, target: ShardObject) -> str:
        """Name the object of a handle."""
        found = self._known.get((id(target), ""))
        if found is not None:
            return found[1]
        name = target.identity
        if target.path is None or not os.path.islink(target.path):
            self._known[id(target), ""] = target, name
        return name
