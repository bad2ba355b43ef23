# buffered_object.py - the buffered writes of one object
# SPDX-License-Identifier: MIT
"""Records of the buffer: what it stores for each object."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ...options import Options
from ...storage.replace import replace as replace_objects
from ...storage.runner import ON_LOOP, Runner
from ...storage.store import Store
from ..opened_shard import ShardObject
from .layout_looks import LayoutGuard
from .overlay import Overlay, OverlayMaker

if TYPE_CHECKING:
    from ..._native import Chain


__all__ = [
    "BufferedElements",
    "BufferedObject",
    "BufferedWrites",
    "LockName",
    "LockNames",
    "Target",
    "lock_names",
    "resolve",
]


class BufferedWrites(Protocol):
    """The buffered writes of one object. Callers hold the object's lock in the table of this process."""

    @property
    def kind(self) -> Hashable:
        """The kind of the writes.

        A write is added to buffered writes of its own kind. Buffered writes of another kind are flushed first.
        """

    @property
    def nbytes(self) -> int:
        """Memory that the writes take, in bytes."""

    @property
    def is_complete(self) -> bool:
        """True if the writes cover the whole object, so the stored object is not needed."""

    async def flush(self) -> None:
        """Store the writes; after an exception the stored object is as it was."""


@dataclass(slots=True, eq=False)
class BufferedObject:
    """An object with buffered writes.

    Attributes
    ----------
    writes : BufferedWrites
        The writes.
    nbytes : int
        Memory that the buffer has counted for this object, in bytes.
    last_write : int
        Number of the last write; later writes have larger numbers.
    """

    writes: BufferedWrites
    nbytes: int = 0
    last_write: int = 0


class Target(NamedTuple):
    """Where and how buffered elements are stored, as the last write says.

    Attributes
    ----------
    store : Store
        The store of the object.
    key : str
        Its key there.
    options : Options
        Options of the write.
    writes_empty : bool
        Store inner chunks that equal the fill value.
    guard : LayoutGuard or None
        The layout that the write was made for; None if it cannot change.
    """

    store: Store
    key: str
    options: Options
    writes_empty: bool
    guard: LayoutGuard | None = None


class BufferedElements:
    """Buffered writes of elements, through arrays of zarr.

    Parameters
    ----------
    chain : Chain
        Compiled chain of the object, for the byte order of the memory. It is the kind of the writes.
    dtype : dtype
        Data type of the elements in memory.

    Attributes
    ----------
    overlay : Overlay
        The elements.
    target : Target or None
        Where they are stored; None before the first write.
    """

    def __init__(self, chain: Chain, dtype: np.dtype[Any]) -> None:
        self.kind = chain
        self.overlay = Overlay(chain, dtype)
        self.target: Target | None = None

    @property
    def nbytes(self) -> int:
        """Memory of the elements, in bytes."""
        return self.overlay.nbytes

    @property
    def is_complete(self) -> bool:
        """True if every element of the object is buffered."""
        return self.overlay.is_complete

    async def flush(self) -> None:
        """Store the elements; the caller holds the object's lock in the table.

        Raises
        ------
        Exception
            Errors of codecs and of the store; the stored object is as it was.
        """
        assert self.target is not None
        store, key, options, writes_empty, _ = self.target
        maker = OverlayMaker(
            self.overlay,
            key,
            store.path(key),
            lambda: store.staging(key),
            options,
            write_empty=writes_empty,
        )
        await replace_objects(store, [key], maker, options)


# ---------------------------------------------------------------- names of objects for locks, memoised for the buffer
#
# Names under which the buffer stores objects: their names for locks.
#
# To resolve a path takes several system calls, so names are memoised while blocks of `group_writes` are open. The name of a
# symbolic link is not memoised: an erase removes the link and keeps its target, so the path then names another object.

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
