# base_object.py - what a store stands on, and a shard that is an entry of another one
# SPDX-License-Identifier: MIT
"""The base of a store on a store (KV-55): the object is the value of a key.

To change an inner shard is to change the outer one: the new value is made of the old one while nobody else changes that.
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

# From the position of an entry, its value (None: there is none) and the generation of the shard to the new value.
Renewed = Callable[[int, bytes | None, bytes], bytes | None]


class OuterStore(Protocol):
    """What a store has to have so that its entries can be shards themselves; every `KeyedEntries` has it."""

    @property
    def path(self) -> bytes: ...

    @property
    def target(self) -> ShardObject: ...

    def position_of(self, key: Key) -> int: ...

    def read_sync(self, key: Key) -> ReadResult: ...

    def exchange(self, positions: Sequence[int], renewed: Renewed) -> bytes: ...

    def parsed(self, path: bytes) -> Parsed: ...


class NestedShard(NativeShard):
    """The value of a key, as a shard."""

    def __init__(self, chain: Chain, data: bytes | None, options: Options, generation: bytes) -> None:
        super().__init__(chain, data, options)
        self._generation = generation

    @property
    def generation(self) -> bytes:
        return self._generation


class NestedObject:
    """An entry of a store.

    Parameters
    ----------
    outer : OuterStore
    inner_key : bytes
        Relative to the store's path.
    """

    path: str | None = None

    def __init__(self, outer: OuterStore, inner_key: bytes) -> None:
        outer.position_of(inner_key)  # is a key
        self.outer = outer
        self.inner_key = inner_key
        self.key = f"{outer.target.key}[{(outer.path + inner_key).hex()}]"

    @property
    def identity(self) -> str:
        """Names the entry in this process."""
        return f"{self.outer.target.identity}[{(self.outer.path + self.inner_key).hex()}]"

    @property
    def realm(self) -> Hashable:
        """Entries of one outer shard change as one."""
        return f"entries:{self.outer.target.identity}"

    @property
    def is_near(self) -> bool:
        """As the outer shard."""
        return self.outer.target.is_near

    @property
    def is_prompt(self) -> bool:
        """As the outer shard."""
        return self.outer.target.is_prompt

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        """Read the value."""
        found = self.outer.read_sync(self.inner_key)
        data = found.value if found.state == "value" else None
        return NestedShard(chain, data, options, found.stamp.generation)

    open_whole = open  # noqa: A003  # the method above

    def update(self, make: Make, options: Options, look: Look | None = None, *, blind: bool = False) -> bytes:
        """Exchange the value."""
        return self.update_all([Part(self, make, look)], options)[0]

    def update_all(self, parts: Sequence[Part], options: Options) -> list[bytes]:
        """Exchange values of the outer shard in one write."""

        def renewed(position: int, old: bytes | None, generation: bytes) -> bytes | None:
            part = by_position[position]
            if part.look is not None:
                part.look(generation)
            new = part.make(old, False)
            return None if new is None else bytes(new)

        by_position = {self.outer.position_of(part.target.inner_key): part for part in parts}
        return [self.outer.exchange(sorted(by_position), renewed)] * len(parts)


def object_of_base(base: Any, kind: type[OuterStore]) -> ShardObject:
    """Return the place of a shard.

    Parameters
    ----------
    base
        As for `ShardedKeyValueStore`.
    kind : type
        The class of the stores of which an entry can be the shard.

    Raises
    ------
    TypeError
        It is no base.
    """
    if not isinstance(base, tuple):
        if isinstance(base, str | os.PathLike):
            return object_of(base, None)
        raise TypeError(f"base is a path or a pair of a store and a key, not {type(base).__name__}")
    if len(base) != 2:
        raise TypeError(f"base is a path or a pair of a store and a key, not {len(base)} things")
    store, key = base
    if getattr(store, "bound_to", None) is not None:
        raise TypeError(
            "a store within a transaction cannot be a base; let this store take part in it instead"
        )
    if isinstance(store, kind):
        return NestedObject(store, as_bytes(key, "key"))
    if not isinstance(key, str) or isinstance(store, bytes | bytearray | memoryview):
        raise TypeError(f"base is a path or a pair of a store and a key, not {base!r}")
    return object_of(store, key)
