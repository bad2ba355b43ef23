# chunk_overlay.py - inner chunks of one shard that wait for others, so that the shard is written once
# SPDX-License-Identifier: MIT
"""`shardcodec.group_writes`, as `shardcodec.Shard` sees it.

What is gathered in this process, of whatever surface, is known to one above this (`register_gatherer`). A handle gives it
inner chunks that are written whole. All else that a handle does, it does with what is stored: before that, what was
gathered of the shard is stored.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..options import Options
from ..storage import locks
from ..storage.tasks import to_its_end
from ..storage.temp_folder import staging_for
from .flush import flush
from .overlay import Gathered
from .shard_object import ShardObject

if TYPE_CHECKING:
    from .._native import Chain

__all__ = [
    "GatheredChunks",
    "Gatherer",
    "has",
    "is_any",
    "register_gatherer",
    "settle",
    "settle_named",
    "take",
]


class Gatherer(Protocol):
    """What is gathered in this process."""

    def name_of(self, target: ShardObject) -> str:
        """Name an object, which is resolved once."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is gathered of any object."""

    def has(self, name: str) -> bool:
        """Whether anything is gathered of this object."""

    def hold_now(self, name: str, kind: Hashable, take: Callable[[Any], Any]) -> bool:
        """Gather a change of an object; False when it cannot wait.

        `take` gets what is held of that kind, None where nothing is, and returns it with the change. It is called under the
        object's lock in the table.
        """

    def settle_now(self, name: str) -> None:
        """Store what is gathered of an object; not for who holds its lock."""


_find: Callable[[], Gatherer | None] | None = None


def register_gatherer(find: Callable[[], Gatherer | None]) -> None:
    """Say how what is gathered is found: None while nothing is to be."""
    global _find
    _find = find


class GatheredChunks:
    """Inner chunks of one shard, written through handles.

    Parameters
    ----------
    target : ShardObject
    chain
        Compiled chain of the shard.
    dtype : dtype
        Of the elements in memory.
    write_empty : bool
        Store inner chunks that equal the fill value.
    """

    def __init__(self, target: ShardObject, chain: Chain, dtype: np.dtype[Any], *, write_empty: bool) -> None:
        self.kind: Hashable = (chain, write_empty)
        self._target = target
        self._gathered = Gathered(chain, dtype)
        self._write_empty = write_empty
        self._options: Options | None = None

    @property
    def nbytes(self) -> int:
        """Memory that is held."""
        return self._gathered.nbytes

    @property
    def is_complete(self) -> bool:
        """Whether every inner chunk has been written."""
        return self._gathered.is_complete

    def add(self, where: Sequence[int], chunks: np.ndarray[Any, Any], options: Options) -> None:
        """Take over inner chunks, in the axes of the index; the options of the last ones count."""
        for position, chunk in zip(where, chunks, strict=True):
            self._gathered.put(position, chunk)
        self._options = options

    async def store(self) -> None:
        """Store them; the object's lock in the table is held by who calls."""
        assert self._options is not None
        await to_its_end(asyncio.to_thread(self._target.update, self._make, self._options))

    def _make(self, old: Any, keep_empty: bool) -> Any:
        """As an `access.shard_object.Make`."""
        options, path, key = self._options, self._target.path, self._target.key
        assert options is not None
        if path is None:
            return flush(
                self._gathered, None, old, key, options, write_empty=self._write_empty, keep_empty=keep_empty
            )
        exist: list[int] = []
        how: dict[str, Any] = {"write_empty": self._write_empty, "staging": staging_for(path), "exist": exist}
        flush(self._gathered, path, None, key, options, old_fd=old, **how)
        return not exist


def take(
    target: ShardObject,
    chain: Chain,
    where: Sequence[int],
    chunks: np.ndarray[Any, Any],
    options: Options,
    *,
    write_empty: bool,
) -> bool:
    """Gather inner chunks, if a block is open and it is worth that; False when they are to be stored at once.

    Parameters
    ----------
    chain
        Compiled chain of the shard, for the byte order of the chunks.
    where : sequence of int
        Positions of inner chunks, each once.
    chunks : ndarray, shape (n, *chunk shape)
        In the axes of the index.
    """
    group = None if _find is None else _find()
    if group is None or not 0 < len(where) < chain.n_chunks or chain.stage is not None or not chain.shape:
        return False

    def added(held: GatheredChunks | None) -> GatheredChunks:
        if held is None:
            held = GatheredChunks(target, chain, chunks.dtype, write_empty=write_empty)
        held.add(where, chunks, options)
        return held

    name = group.name_of(target)
    if target.path is not None and os.path.islink(target.path):  # named as its target; the write may end it
        group.settle_now(name)
        return False
    return group.hold_now(name, (chain, write_empty), added)


def has(target: ShardObject) -> bool:
    """Tell whether anything is gathered of a shard."""
    group = None if _find is None else _find()
    return group is not None and group.has(group.name_of(target))


def settle(target: ShardObject) -> None:
    """Store what was gathered of a shard, unless the caller changes it himself and holds its lock.

    Raises
    ------
    GroupWriteError
        It could not be stored; it is kept.
    """
    group = None if _find is None else _find()
    if group is None:
        return
    settle_named([group.name_of(target)])


def is_any() -> bool:
    """Tell whether anything is gathered of any object."""
    group = None if _find is None else _find()
    return group is not None and not group.is_empty


def settle_named(names: Sequence[str]) -> None:
    """As `settle`, for objects by their names."""
    group = None if _find is None else _find()
    if group is None:
        return
    for name in names:
        if group.has(name) and not locks.table().holds(name):
            group.settle_now(name)
