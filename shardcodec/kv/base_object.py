# base_object.py - the object under a store: a file, an object of a zarr store, or an entry of another shard
# SPDX-License-Identifier: MIT
"""The base of a key-value store, which may be an entry of another key-value store (KV-55).

A change of an inner shard is a change of the outer shard. The new value is made from the old one while the lock of
the outer shard is held.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ..access.opened_shard import NestedShard, OpenedShard
from ..access.shard_object import ShardObject, shard_object
from ..options import Options
from ..storage.indexes import IndexCache
from ..storage.kinds import at_url
from ..storage.runner import BLOCKING, run_blocking
from ..storage.store import Maker, StoredObject
from .keys import Key, as_bytes

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["NestedObject", "Renew", "object_of_base"]

# Maps the position of an entry, its value (None if absent) and the generation of the shard to the new value.
Renew = Callable[[int, bytes | None, bytes], bytes | None]


class OuterEntries(Protocol):
    """The part of `Entries` that a shard inside an entry needs."""

    def open_entry(self, position: int) -> tuple[OpenedShard, tuple[int, int] | None]: ...

    def exchange(self, positions: Sequence[int], renew: Renew) -> bytes: ...


class OuterStore(Protocol):
    """The part of `ShardedKeyValueStore` that a shard inside an entry needs."""

    @property
    def path(self) -> bytes: ...

    @property
    def target(self) -> ShardObject: ...

    def position_of(self, key: Key) -> int: ...

    @property
    def stored(self) -> OuterEntries: ...


class NestedObject:
    """A shard object that is an entry of another key-value store; `inner_key` is relative to the path of `outer`."""

    path: str | None = None
    staging: str | None = None
    is_link = False

    def __init__(self, outer: OuterStore, inner_key: bytes) -> None:
        outer.position_of(inner_key)  # raises if no entry has this key
        self.outer = outer
        self.inner_key = inner_key
        self.key: str = f"{outer.target.key}[{(outer.path + inner_key).hex()}]"

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

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenedShard:
        """Open the entry as a shard, through the outer shard."""
        outer, place = self.outer.stored.open_entry(self.outer.position_of(self.inner_key))
        try:
            return NestedShard(chain, outer, place, self.key, options)
        except BaseException:
            outer.close()
            raise

    open_whole = open  # noqa: A003  # the method above

    def update(self, maker: Maker, options: Options) -> bytes | None:
        """Replace the value by one made from it; return the generation of the outer shard."""
        return self.update_all([self], maker, options)[0]

    def update_all(self, targets: Sequence[Any], maker: Maker, options: Options) -> list[bytes | None]:
        """Replace values of one outer shard in one write."""
        positions = {self.outer.position_of(target.inner_key): i for i, target in enumerate(targets)}

        def renew(position: int, old: bytes | None, generation: bytes) -> bytes | None:
            stored = StoredObject(positions[position], data=old, state=generation)
            (new,) = run_blocking(maker.make([stored], BLOCKING)).objects
            return None if new is None else bytes(new)

        maker.begin()
        generation = self.outer.stored.exchange(sorted(positions), renew)
        return [generation] * len(targets)


def object_of_base(
    base: Any, kind: type[OuterStore], storage_options: Mapping[str, Any] | None = None
) -> ShardObject:
    """Return the object of a shard, from the arguments of `ShardedKeyValueStore`.

    kind: class of the stores whose entries can be shards. TypeError: `base` is neither a path nor a pair of a store and a key,
    or its store is bound to a transaction; or there are options without a URL.
    """
    if not isinstance(base, tuple):
        if isinstance(base, str | os.PathLike):
            return shard_object(base, None, storage_options)
        raise TypeError(f"base: expected a path or a pair (store, key), got {type(base).__name__}")
    if len(base) != 2:
        raise TypeError(f"base: expected a path or a pair (store, key), got a tuple of {len(base)} items")
    store, key = base
    if getattr(store, "bound_to", None) is not None:
        raise TypeError(
            "base: expected a store that is not bound to a transaction; bind the new store to the transaction instead"
        )
    if isinstance(store, kind):
        at_url(store, storage_options)
        return NestedObject(store, as_bytes(key, "key"))
    if not isinstance(key, str) or isinstance(store, bytes | bytearray | memoryview):
        raise TypeError(f"base: expected a path or a pair (store, key), got {base!r}")
    return shard_object(store, key, storage_options)
