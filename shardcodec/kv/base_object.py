# base_object.py - the object under a store: a file, an object of a zarr store, or an entry of another shard
# SPDX-License-Identifier: MIT
"""The base of a key-value store, which may be an entry of another key-value store (KV-55).

A change of an inner shard is a change of the outer shard. The new value is made from the old one while the lock of
the outer shard is held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..access.shard_object import Look, Make, NativeShard, OpenObject, Part, ShardObject, object_of
from ..options import Options
from ..storage.index_cache import IndexCache
from .keys import Key, as_bytes
from .results import ReadResult
from .spec import Parsed

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["NestedObject", "Renewed", "object_of_base"]

# Maps the position of an entry, its value (None if absent) and the generation of the shard to the new value.
Renewed = Callable[[int, bytes | None, bytes], bytes | None]


class OuterStore(Protocol):
    """The part of `KeyedEntries` that a shard inside an entry needs."""

    @property
    def path(self) -> bytes: ...

    @property
    def target(self) -> ShardObject: ...

    def position_of(self, key: Key) -> int: ...

    def read_sync(self, key: Key) -> ReadResult: ...

    def exchange(self, positions: Sequence[int], renewed: Renewed) -> bytes: ...

    def parsed(self, path: bytes) -> Parsed: ...


class NestedShard(NativeShard):
    """The value of a key, opened as a shard."""

    def __init__(self, chain: Chain, data: bytes | None, options: Options, generation: bytes) -> None:
        super().__init__(chain, data, options)
        self._generation = generation

    @property
    def generation(self) -> bytes:
        return self._generation


class NestedObject:
    """A shard object that is an entry of another key-value store.

    Parameters
    ----------
    outer : OuterStore
        The store with the entry.
    inner_key : bytes
        Key of the entry, relative to the path of `outer`.
    """

    path: str | None = None

    def __init__(self, outer: OuterStore, inner_key: bytes) -> None:
        outer.position_of(inner_key)  # raises if no entry has this key
        self.outer = outer
        self.inner_key = inner_key
        self.key = f"{outer.target.key}[{(outer.path + inner_key).hex()}]"

    @property
    def identity(self) -> str:
        """Name of the entry, unique in this process."""
        return f"{self.outer.target.identity}[{(self.outer.path + self.inner_key).hex()}]"

    @property
    def realm(self) -> Hashable:
        """Objects with the same realm change together: the entries of one outer shard."""
        return f"entries:{self.outer.target.identity}"

    @property
    def is_near(self) -> bool:
        """Same as for the outer shard."""
        return self.outer.target.is_near

    @property
    def is_prompt(self) -> bool:
        """Same as for the outer shard."""
        return self.outer.target.is_prompt

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        """Read the value and open it as a shard."""
        found = self.outer.read_sync(self.inner_key)
        data = found.value if found.state == "value" else None
        return NestedShard(chain, data, options, found.stamp.generation)

    open_whole = open  # noqa: A003  # the method above

    def update(self, make: Make, options: Options, look: Look | None = None, *, blind: bool = False) -> bytes:
        """Replace the value by one made from it; return the generation of the outer shard after the write."""
        return self.update_all([Part(self, make, look)], options)[0]

    def update_all(self, parts: Sequence[Part], options: Options) -> list[bytes]:
        """Replace values of one outer shard in one write; return its new generation once for each."""

        def renewed(position: int, old: bytes | None, generation: bytes) -> bytes | None:
            part = by_position[position]
            if part.look is not None:
                part.look(generation)
            new = part.make(old, False)
            return None if new is None else bytes(new)

        by_position = {self.outer.position_of(part.target.inner_key): part for part in parts}
        return [self.outer.exchange(sorted(by_position), renewed)] * len(parts)


def object_of_base(base: Any, kind: type[OuterStore]) -> ShardObject:
    """Return the object of a shard.

    Parameters
    ----------
    base : path-like, or tuple
        As for `ShardedKeyValueStore`.
    kind : type
        Class of the stores whose entries can be shards.

    Returns
    -------
    ShardObject

    Raises
    ------
    TypeError
        `base` is neither a path nor a pair of a store and a key, or its store is bound to a transaction.
    """
    if not isinstance(base, tuple):
        if isinstance(base, str | os.PathLike):
            return object_of(base, None)
        raise TypeError(f"base: expected a path or a pair (store, key), got {type(base).__name__}")
    if len(base) != 2:
        raise TypeError(f"base: expected a path or a pair (store, key), got a tuple of {len(base)} items")
    store, key = base
    if getattr(store, "bound_to", None) is not None:
        raise TypeError(
            "base: expected a store that is not bound to a transaction; bind the new store to the transaction instead"
        )
    if isinstance(store, kind):
        return NestedObject(store, as_bytes(key, "key"))
    if not isinstance(key, str) or isinstance(store, bytes | bytearray | memoryview):
        raise TypeError(f"base: expected a path or a pair (store, key), got {base!r}")
    return object_of(store, key)
