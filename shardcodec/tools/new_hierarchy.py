# new_hierarchy.py - a new hierarchy that a tool writes
# SPDX-License-Identifier: MIT
"""`NewHierarchy`: the new hierarchy for `repair --to` and `compact --to`. Metadata documents are written last.

So a hierarchy with documents is complete, and a stopped run leaves objects that no program takes for an array.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..access.box_reader import Folder
from ..access.shard_writer import ShardWriter
from ..format.spec import ShardSpec
from ..storage.kinds import object_at
from ..storage.urls import is_url
from .array_target import ArrayTarget, ShardTarget
from .backup import COPY_NBYTES, copy_object, write_object
from .consolidated import with_consolidated
from .documents import DOCUMENTS
from .memory_budget import MemoryBudget
from .stored_bytes import BLOCK_NBYTES, open_object

__all__ = ["NewHierarchy", "holds_whole_shards"]

Edit = Callable[[dict[str, Any]], dict[str, Any]]


class NewHierarchy:
    """A new hierarchy, or the new object of a single shard.

    Parameters
    ----------
    to : path-like, URL or zarr store
        Where it is written; nothing may be there.
    storage_options : mapping, optional
        Only with a URL.
    budget : MemoryBudget
        For stores that take only whole objects.
    source : path-like, URL or zarr store
        The old hierarchy, in which the new one must not be.

    Raises
    ------
    ValueError
        `to` is inside of `source`, or the name of a zip file.
    FileExistsError
        There is something already.
    """

    def __init__(
        self, to: Any, storage_options: Mapping[str, Any] | None, budget: MemoryBudget, source: Any
    ) -> None:
        _check_place(to, source)
        self._to, self._budget = to, budget
        self._options = storage_options if is_url(to) else None
        self._documents: dict[str, dict[str, bytes]] = {}
        if isinstance(to, str | os.PathLike) and not is_url(to):
            if os.path.lexists(to):
                raise FileExistsError(f"{os.fspath(to)}: expected a new path, but it exists")
            return
        for name in sorted(DOCUMENTS):
            store, key, _ = object_at(to, name, self._options)
            if open_object(store, key) is not None:
                raise FileExistsError(f"{to}: expected a new place, but it has a {name}")

    def holds_whole(self, array: ArrayTarget, key: str) -> bool:
        """Return True if a new object is in memory until it is stored: in a store that does not take parts."""
        store, new_key, _ = object_at(self._to, self._key(array, key), self._options)
        return store.path(new_key) is None and not store.takes_parts

    def check_memory(self, shard: ShardTarget, nbytes: int) -> None:
        """Raise `UnsupportedError` if a new object must be in memory as a whole, and does not fit."""
        if self.holds_whole(shard.array, shard.key):
            self._budget.check_whole(shard.name, nbytes)

    def writer(self, shard: ShardTarget, spec: ShardSpec, **how: Any) -> ShardWriter:
        """Return the writer of a new shard; `how` is passed to `ShardWriter`."""
        return ShardWriter(
            self._to, spec, key=self._key(shard.array, shard.key), storage_options=self._options, **how
        )

    def copy(self, array: ArrayTarget, key: str) -> int:
        """Copy an object of the old array as it is; return its size in bytes."""
        view = open_object(array.store, key)
        if view is None:
            return 0
        try:
            store, new_key, _ = object_at(self._to, self._key(array, key), self._options)
            if self.holds_whole(array, key):
                self._budget.check_whole(array.store.path(key) or key, view.nbytes)
            nbytes = COPY_NBYTES if array.store.is_near else BLOCK_NBYTES  # a request costs a round trip
            copy_object(view, store, new_key, block_nbytes=nbytes)
            return view.nbytes
        finally:
            view.close()

    def size(self, shard: ShardTarget) -> int:
        """Return the size of a new shard in bytes."""
        store, key, _ = object_at(self._to, self._key(shard.array, shard.key), self._options)
        view = open_object(store, key)
        return 0 if view is None else view.nbytes

    def copy_all(self, array: ArrayTarget) -> None:
        """Copy all objects of an array that is not sharded, except documents."""
        self.add(array)
        for key in array.store.keys(array.folder.prefix):
            if key.removeprefix(array.folder.prefix) not in DOCUMENTS:
                self.copy(array, key)

    def add(self, array: ArrayTarget, edit: Edit | None = None) -> None:
        """Note an array whose documents are to be written, with those of the groups above it.

        Parameters
        ----------
        array : ArrayTarget
        edit : callable, optional
            Returns the new document from the ``zarr.json`` of the array.
        """
        if array.only is not None:
            return
        parts = array.name.split("/") if array.name else []
        root = _root(array)
        for n in range(len(parts)):
            above = "/".join(parts[:n])
            prefix = f"{root}{above}/" if above else root
            self.add_group(above, replace(array.folder, prefix=prefix))
        self._documents[array.name] = {
            name: stored
            if edit is None or name != "zarr.json"
            else json.dumps(edit(json.loads(stored)), indent=2).encode()
            for name, stored in _stored_documents(array.folder).items()
        }

    def add_group(self, name: str, folder: Folder) -> None:
        """Note a group whose documents are to be written."""
        if name not in self._documents:
            self._documents[name] = _stored_documents(folder)

    def finish(self) -> None:
        """Write the documents, those of the root last. Consolidated metadata become those of the new nodes."""
        for node in sorted(self._documents, key=lambda one: (-one.count("/") - bool(one), one)):
            documents = with_consolidated(node, self._documents)
            for name in sorted(documents, reverse=True):
                store, key, _ = object_at(self._to, f"{node}/{name}" if node else name, self._options)
                write_object(iter([documents[name]]), len(documents[name]), store, key, sync=True)

    def _key(self, array: ArrayTarget, key: str) -> str | None:
        """Return the key below the new root; None for the object of a single shard."""
        return None if array.only is not None else key.removeprefix(_root(array))


def holds_whole_shards(array: ArrayTarget, to: NewHierarchy | None) -> bool:
    """Return True if new shards of an array, in its own place if `to` is None, are in memory as a whole."""
    key = f"{array.folder.prefix}zarr.json"  # all keys of an array are in one store
    return array.store.path(key) is None if to is None else to.holds_whole(array, key)


def _check_place(to: Any, source: Any) -> None:
    """Raise `ValueError` for a place inside of the source, which would change it, or a zip file."""
    if not isinstance(to, str | os.PathLike):
        return
    new = os.fspath(to)
    if new.lower().endswith(".zip") and not is_url(new):
        raise ValueError(f"to: expected a folder, because a zip file cannot be written here, got {new}")
    if not isinstance(source, str | os.PathLike):
        return
    old = os.fspath(source)
    if is_url(new) != is_url(old):
        return
    if not is_url(new):
        new, old = os.path.realpath(new), os.path.realpath(old)
    if new.startswith(old.rstrip("/") + "/"):
        raise ValueError(f"to: expected a place outside of {os.fspath(source)}, got {os.fspath(to)}")


def _root(array: ArrayTarget) -> str:
    """Return the prefix of the hierarchy in its store."""
    return array.folder.prefix.removesuffix(f"{array.name}/") if array.name else array.folder.prefix


def _stored_documents(folder: Folder) -> dict[str, bytes]:
    """Return the documents of a node by their names."""
    found = ((name, folder.get(folder.prefix + name)) for name in sorted(DOCUMENTS))
    return {name: stored for name, stored in found if stored is not None}
