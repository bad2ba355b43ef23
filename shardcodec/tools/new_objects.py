# new_objects.py - the objects of a new hierarchy that a tool writes
# SPDX-License-Identifier: MIT
"""`NewObjects`: writes the shards of a new hierarchy in any process, for `repair --to` and `compact --to`.

Several processes write under a mark (`convert.claim`), which `NewHierarchy` makes and removes. A task that is repeated stores the
same bytes; a worker that was taken for lost, and goes on when the run is over, stores nothing.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ..access.shard_writer import ShardWriter
from ..format.spec import ShardSpec
from ..options import Options
from ..storage.kinds import is_url, object_at
from ..storage.store import Store
from .array_target import ArrayTarget, ShardTarget
from .backup import copy_stored, holds_whole, same_bytes
from .convert.claim import guard, has_claim
from .convert.destination import JobOver, NewTree
from .memory_budget import MemoryBudget
from .stored_bytes import open_object

__all__ = ["NewObjects", "NewPlace", "holds_whole_shards", "root_prefix"]


@dataclass(frozen=True)
class NewPlace:
    """Where a new hierarchy is written.

    Attributes
    ----------
    to : path-like, URL or zarr store
    storage_options : mapping or None
        Only with a URL.
    job : str or None
        Name of the run whose processes write there; None for one process.
    """

    to: Any
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    job: str | None = None

    @property
    def options(self) -> Mapping[str, Any] | None:
        """The options of the store of `to`."""
        return self.storage_options if is_url(self.to) else None

    def tree(self) -> NewTree:
        """Return the hierarchy, for its mark."""
        return NewTree(self.to, self.options)


class NewObjects:
    """Writes objects of a new hierarchy, or the new object of a single shard.

    Parameters
    ----------
    place : NewPlace
    budget : MemoryBudget
        For stores that take only whole objects.
    options : Options
        Those of the process that runs the tool.

    Raises
    ------
    FileNotFoundError
        This machine does not see the mark of the run.
    """

    def __init__(self, place: NewPlace, budget: MemoryBudget, options: Options) -> None:
        self._place, self._budget, self._durability = place, budget, options.durability
        self._check_mark: Callable[[], None] | None = None
        if place.job is not None:
            tree = place.tree()
            if not has_claim(tree, place.job):
                raise FileNotFoundError(
                    f"{tree.place}: expected the mark of this run on the worker at {socket.gethostname()}, but there is none; all "
                    "workers must reach the new hierarchy under the same path"
                )
            self._check_mark = guard(tree, place.job)

    def holds_whole(self, array: ArrayTarget, key: str) -> bool:
        """Return True if a new object is in memory until it is stored."""
        store, new_key, _ = self._object(array, key)
        return holds_whole(store, new_key)

    def check_memory(self, shard: ShardTarget, nbytes: int) -> None:
        """Raise `UnsupportedError` if a new object must be in memory as a whole, and does not fit."""
        if self.holds_whole(shard.array, shard.key):
            self._budget.check_whole(shard.name, nbytes)

    @contextmanager
    def writer(self, shard: ShardTarget, spec: ShardSpec, **how: Any) -> Iterator[ShardWriter]:
        """Open the writer of a new shard in a with block; `how` is passed to `ShardWriter`.

        Raises
        ------
        OSError
            The run is over, or the shard cannot be written.
        """
        with ShardWriter(
            self._place.to,
            spec,
            key=_new_key(shard.array, shard.key),
            storage_options=self._place.options,
            durability=self._durability,
            **how,
        ) as writer:
            yield writer
            self._before_store()

    def copy(self, array: ArrayTarget, key: str) -> int:
        """Copy an object of the old array as it is; return its size in bytes.

        Raises
        ------
        FileExistsError
            There is another object already.
        OSError
            The run is over, or the object cannot be written.
        """
        store, new_key, _ = self._object(array, key)
        try:
            copied = copy_stored(
                array.store,
                key,
                store,
                new_key,
                self._budget,
                sync=self._durability == "fsync",
                before_store=self._before_store,
            )
            return copied or 0
        except FileExistsError:
            # a task that was repeated, or that runs twice, has copied it
            if self._check_mark is None or not _are_equal(array.store, key, store, new_key):
                raise
            return self._size(store, new_key)

    def size(self, shard: ShardTarget) -> int:
        """Return the size of a new shard in bytes."""
        store, key, _ = self._object(shard.array, shard.key)
        return self._size(store, key)

    @staticmethod
    def _size(store: Store, key: str) -> int:
        view = open_object(store, key)
        if view is None:
            return 0
        view.close()
        return view.nbytes

    def _before_store(self) -> None:
        try:
            if self._check_mark is not None:
                self._check_mark()
        except JobOver as error:
            raise OSError(str(error)) from error

    def _object(self, array: ArrayTarget, key: str) -> tuple[Any, str, str]:
        return object_at(self._place.to, _new_key(array, key), self._place.options)


def _are_equal(store: Store, key: str, other_store: Store, other_key: str) -> bool:
    one, other = open_object(store, key), open_object(other_store, other_key)
    try:
        return one is not None and other is not None and same_bytes(one, other)
    finally:
        for view in (one, other):
            if view is not None:
                view.close()


def holds_whole_shards(array: ArrayTarget, to: NewObjects | None) -> bool:
    """Return True if new shards of an array, in its own place if `to` is None, are in memory as a whole."""
    key = f"{array.folder.prefix}zarr.json"  # all keys of an array are in one store
    return array.store.path(key) is None if to is None else to.holds_whole(array, key)


def _new_key(array: ArrayTarget, key: str) -> str | None:
    """Return the key below the new root; None for the object of a single shard."""
    return None if array.only is not None else key.removeprefix(root_prefix(array))


def root_prefix(array: ArrayTarget) -> str:
    """Return the prefix of the hierarchy in its store."""
    return array.folder.prefix.removesuffix(f"{array.name}/") if array.name else array.folder.prefix
