# hierarchy_copy.py - a copy of a hierarchy, shard by shard
# SPDX-License-Identifier: MIT
"""A copy of a hierarchy, which `repair` and `compact` write with ``to``. The tool makes the shards.

Several processes write under the mark of the run. A task that is repeated stores the same bytes; a worker that was taken for lost, and
goes on when the run is over, stores nothing.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ..access.box_reader import Folder, is_malformed
from ..access.shard_object import open_object
from ..access.shard_writer import ShardWriter
from ..format.array_document import encoded_document
from ..format.spec import ShardSpec
from ..options import Options
from ..storage.kinds import object_at
from ..storage.new_object import put_object
from ..storage.store import Store
from ..storage.url_stores import is_url
from .backup import copy_stored, holds_whole, same_bytes
from .consolidated import with_consolidated
from .conventions.all_conventions import mended_documents
from .documents import (
    DOCUMENTS,
    NODE_DOCUMENTS,
    Document,
    is_group,
    parsed,
)
from .job_mark import claim, guard, release
from .left_parts import LeftKind, LeftPart
from .memory import MemoryBudget
from .monitor import Monitor
from .names import node_path
from .new_hierarchy import JobOver, NewHierarchy, check_new_place
from .other_objects import ObjectCounts, OtherObjects
from .targets import ArrayTarget, ShardTarget

__all__ = ["CopyPlace", "CopyWriter", "HierarchyCopy", "holds_whole_shards", "root_prefix"]


@dataclass(frozen=True)
class CopyPlace:
    """Where a copy is written, as plain data for other processes; `to` is the new object of a single shard.

    `job` is the name of the run whose processes write there; None for one process.
    """

    to: Any
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    job: str | None = None

    @property
    def options(self) -> Mapping[str, Any] | None:
        """The options of the store of `to`."""
        return self.storage_options if is_url(self.to) else None

    @cached_property
    def hierarchy(self) -> NewHierarchy:
        """The hierarchy."""
        return NewHierarchy(self.to, self.options)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "hierarchy"}


class CopyWriter:
    """Writes shards of a new hierarchy, or the new object of a single shard, in any process that sees the mark of the run."""

    def __init__(self, place: CopyPlace, budget: MemoryBudget, options: Options) -> None:
        self._place, self._budget, self._durability = place, budget, options.durability
        if place.job is not None:
            hierarchy = place.hierarchy
            if not guard(hierarchy, place.job):
                raise FileNotFoundError(
                    f"{hierarchy.place}: expected the mark of this run on the worker at {socket.gethostname()}, but there is none; all "
                    "workers must reach the new hierarchy under the same path"
                )

    def holds_whole(self, array: ArrayTarget, key: str) -> bool:
        """Return True if a new object is in memory until it is stored."""
        return holds_whole(*self._object(array, key))

    def check_memory(self, shard: ShardTarget, nbytes: int) -> None:
        """Raise `UnsupportedError` if a new object must be in memory as a whole, and does not fit."""
        if self.holds_whole(shard.array, shard.key):
            self._budget.check_whole(shard.name, nbytes)

    @contextmanager
    def writer(self, shard: ShardTarget, spec: ShardSpec, **how: Any) -> Iterator[ShardWriter]:
        """Open the writer of a new shard in a with block; `OSError` if the run is over. `how` is passed to `ShardWriter`."""
        how["durability"] = self._durability
        if shard.array.only is not None:
            writer = ShardWriter(self._place.to, spec, storage_options=self._place.options, **how)
        else:
            writer = self._place.hierarchy.writer(_new_name(shard.array, shard.key), spec, **how)
        with writer, _over_is_error():
            yield writer
            if shard.array.only is None:
                self._place.hierarchy.before_store()

    def put(self, shard: ShardTarget, data: bytes) -> None:
        """Store the object of a chunk without shards; `OSError` if the run is over."""
        store, key = self._object(shard.array, shard.key)
        before_store = None if shard.array.only is not None else self._place.hierarchy.before_store
        with _over_is_error():
            how: dict[str, Any] = {"sync": self._durability == "fsync", "before_store": before_store}
            # a task that is repeated stores the same bytes
            put_object(iter([data]), len(data), store, key, may_replace=self._place.job is not None, **how)

    def copy(self, array: ArrayTarget, key: str, old_key: str | None = None) -> int:
        """Copy an object of the old array, from `old_key` if it is given; return its size. Another object of its name is an error, and so is the end of the run."""
        source = key if old_key is None else old_key
        store, new_key = self._object(array, key)
        before_store = None if array.only is not None else self._place.hierarchy.before_store
        durable = self._durability == "fsync"
        try:
            with _over_is_error():
                n = copy_stored(
                    array.store, source, store, new_key, self._budget, sync=durable, before_store=before_store
                )
            return n or 0
        except FileExistsError:
            # a task that was repeated, or that runs twice, has copied it
            if self._place.job is None or not _are_equal(array.store, source, store, new_key):
                raise
            return _size(store, new_key)

    def size(self, shard: ShardTarget) -> int:
        """Return the size of a new shard in bytes."""
        return _size(*self._object(shard.array, shard.key))

    def _object(self, array: ArrayTarget, key: str) -> tuple[Store, str]:
        if array.only is not None:
            return object_at(self._place.to, None, self._place.options)[:2]
        root = self._place.hierarchy.root
        return root.store, root.prefix + _new_name(array, key)


@contextmanager
def _over_is_error() -> Iterator[None]:
    """Raise `OSError` in place of `JobOver`: the results of such a run are discarded."""
    try:
        yield
    except JobOver as error:
        raise OSError(str(error)) from error


def _size(store: Store, key: str) -> int:
    view = open_object(store, key)
    if view is None:
        return 0
    view.close()
    return view.nbytes


def _are_equal(store: Store, key: str, other_store: Store, other_key: str) -> bool:
    a, b = open_object(store, key), open_object(other_store, other_key)
    try:
        return a is not None and b is not None and same_bytes(a, b)
    finally:
        for view in (a, b):
            if view is not None:
                view.close()


def holds_whole_shards(array: ArrayTarget, to: CopyWriter | None) -> bool:
    """Return True if new shards of an array, in its own place if `to` is None, are in memory as a whole."""
    key = f"{array.folder.prefix}zarr.json"  # all keys of an array are in one store
    return array.store.path(key) is None if to is None else to.holds_whole(array, key)


def _new_name(array: ArrayTarget, key: str) -> str:
    """Return the path of an object below the new root."""
    return key.removeprefix(root_prefix(array))


def root_prefix(array: ArrayTarget) -> str:
    """Return the prefix of the hierarchy in its store."""
    return array.folder.prefix.removesuffix(f"{array.name}/") if array.name else array.folder.prefix


Edit = Callable[[dict[str, Any]], dict[str, Any]]


class HierarchyCopy:
    """A copy of the hierarchy `source` at a free place `to`, or with `is_one_shard` the new object of a single shard.

    With the name of a `job` several processes write: the hierarchy has its mark until it is complete. `found` is `Hierarchy.found`.
    """

    def __init__(
        self,
        to: Any,
        storage_options: Mapping[str, Any] | None,
        budget: MemoryBudget,
        source: Any,
        options: Options,
        job: str | None = None,
        *,
        is_one_shard: bool = False,
        found: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        check_new_place(to, storage_options, source, is_one_shard=is_one_shard)
        self.place: CopyPlace = CopyPlace(to, storage_options, job)
        self._documents: dict[str, dict[str, bytes]] = {}
        self._stand_ins: dict[str, dict[str, bytes]] = {}
        self.left: list[LeftPart] = []  # what the copy does not have, in the order in which it was found
        self._found = {} if found is None else found
        self._budget, self._options = budget, options
        if job is not None:
            claim(self.place.hierarchy, job, None, is_begun=False)
        self.objects: CopyWriter = CopyWriter(self.place, budget, options)

    def copy_all(self, array: ArrayTarget) -> list[LeftPart]:
        """Copy all objects of an array that is not sharded, except documents; return those that cannot be read."""
        self.add(array)
        durable = self._options.durability == "fsync"
        return self.place.hierarchy.copy_array(array, self._budget, durable=durable, may_replace=False)

    def copy_others(self, others: OtherObjects, monitor: Monitor) -> ObjectCounts:
        """Copy the objects that belong to no array; see `NewHierarchy.copy_others`."""
        return self.place.hierarchy.copy_others(
            others, self._budget, self._options, monitor, may_replace=False
        )

    def add(self, array: ArrayTarget, edit: Edit | None = None) -> None:
        """Note an array whose documents are to be written, its ``zarr.json`` after `edit`, with those of the groups above it."""
        if array.only is not None:
            return
        parts = node_path(array.name).split("/") if array.name else []
        root = root_prefix(array)
        for n in range(len(parts)):
            above = "/".join(parts[:n])
            prefix = f"{root}{above}/" if above else root
            self.add_group(above, replace(array.folder, prefix=prefix))
        self._documents[array.name] = {
            name: stored
            if edit is None or name != "zarr.json"
            else encoded_document(edit(json.loads(stored)))
            for name, stored in self._stored(array.name, array.folder, is_named=array.is_malformed)
        }
        if array.folder.spare is not None and array.folder.spare.known:
            self._add_stand_in(array.name, array.folder)

    def add_group(self, name: str, folder: Folder) -> None:
        """Note a group whose documents are to be written."""
        if node_path(name) not in self._documents:
            self._documents[name] = dict(self._stored(name, folder))
            own = parsed(self._documents[name].get("zarr.json")) or {}
            if is_group(own) and is_malformed("zarr.json", own):  # any other is among the arrays
                sentence = f"{name or '/'!r}: its zarr.json is malformed; no consolidated metadata have it"
                self.left.append(LeftPart(LeftKind.METADATA, name, sentence, is_unreadable=True))
            if folder.spare is not None and folder.spare.known:
                self._add_stand_in(name, folder)

    def _add_stand_in(self, node: str, folder: Folder) -> None:
        """Note the document that the old consolidated metadata have for a node, if its own one is of another format."""
        for name in NODE_DOCUMENTS:
            own = parsed(self._documents[node].get(name))
            spare = None if folder.spare is None else folder.spare.known.get(f"{folder!r}/{name}")
            if own is None or spare is None or spare[2]:
                continue
            if own.get("zarr_format") != spare[0].get("zarr_format"):
                self._stand_ins[node] = {**self._documents[node], name: encoded_document(spare[0])}

    def _stored(self, node: str, folder: Folder, *, is_named: bool = False) -> Iterator[tuple[str, bytes]]:
        """Yield the documents of a node by their names; those that cannot be read are noted, unless the report names the node."""
        for name in sorted(self._names(node, folder)):
            try:
                stored = folder.get(folder.prefix + name)
            except OSError as error:
                if not is_named:
                    path = f"{node}/{name}" if node else name
                    self.left.append(LeftPart.object(path, f"it cannot be read: {error}", is_unreadable=True))
                continue
            if stored is not None:
                yield name, stored

    def _names(self, node: str, folder: Folder) -> Collection[str]:
        """Return the names of the documents that a node may have: those in the listing, and lost ones that others stand in for."""
        found = self._found.get(node, ())
        if not any(name in found for name in NODE_DOCUMENTS) or not folder.store.lists_all:
            return DOCUMENTS  # the folder may be closed to listings, but not its documents
        if folder.spare is None:
            return found
        place = repr(folder)
        return {name for name in DOCUMENTS if name in found or f"{place}/{name}" in folder.spare.known}

    def finish(self, groups: Iterable[tuple[str, Folder, Document]], *, is_part: bool = False) -> None:
        """Write the documents, also of groups without arrays. Consolidated metadata become those of the new nodes.

        With `is_part` groups name only the new nodes, too; `left` says where this changes them.
        """
        for name, folder, _ in groups:
            self.add_group(name, folder)
        nodes, notes = mended_documents(self._documents) if is_part else (self._documents, [])
        documents = {node: with_consolidated(node, nodes, self._stand_ins) for node in nodes}
        if documents:
            self.place.hierarchy.write_documents(documents, may_replace=False)
        if self.place.job is not None:
            release(self.place.hierarchy)
        self.left += LeftPart.notes("", notes)
