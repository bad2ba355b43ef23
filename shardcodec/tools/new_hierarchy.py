# new_hierarchy.py - a new hierarchy that a tool writes, documents last
# SPDX-License-Identifier: MIT
"""A new hierarchy that a tool writes, documents last.

`NewHierarchy`: the documents of a new hierarchy for `repair --to` and `compact --to`, which are written last.

So a hierarchy with documents is complete, and a stopped run leaves objects that no program takes for an array.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ..access.box_reader import Folder
from ..access.opened_shard import open_object
from ..access.shard_writer import ShardWriter
from ..format.spec import ShardSpec
from ..options import Options
from ..storage.kinds import is_url, object_at
from ..storage.store import Store
from .backup import copy_stored, holds_whole, same_bytes, write_object
from .convert.destination import JobOver, NewTree, check_new_place, claim, guard, has_claim, release
from .documents import DOCUMENTS, is_own_name, node_path
from .other_objects import ObjectCounts, OtherObject, OtherObjects, copy_objects
from .targets import ArrayTarget, ShardTarget
from .work import MemoryBudget, Monitor

__all__ = [
    "NewHierarchy",
    "NewObjects",
    "NewPlace",
    "holds_whole_shards",
    "root_prefix",
    "with_consolidated",
]


# ---------------------------------------------------------------- the objects of a new hierarchy that a tool writes
#
# `NewObjects`: writes the shards of a new hierarchy in any process, for `repair --to` and `compact --to`.
#
# Several processes write under a mark (`convert.claim`), which `NewHierarchy` makes and removes. A task that is repeated stores the
# same bytes; a worker that was taken for lost, and goes on when the run is over, stores nothing.


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


# ---------------------------------------------------------------- consolidated metadata of a new hierarchy
#
# `with_consolidated`: the consolidated metadata of a group, made again from the documents of the nodes below it.
#
# Zarr v3 has them in the ``zarr.json`` of a group, Zarr v2 in ``.zmetadata``.

Documents = Mapping[str, bytes]

_EMPTY = {"kind": "inline", "must_understand": False, "metadata": {}}


def with_consolidated(node: str, nodes: Mapping[str, Documents]) -> dict[str, bytes]:
    """Return the documents of a node; those with consolidated metadata have the ones of the given nodes.

    Parameters
    ----------
    node : str
        Path of the node in the hierarchy.
    nodes : mapping
        The documents of all nodes, by path and name.

    Returns
    -------
    dict
        By name. A document without consolidated metadata, or that is not JSON, stays as it is.
    """
    found = dict(nodes[node])
    document = _parsed(found.get("zarr.json"))
    if document is not None and isinstance(document.get("consolidated_metadata"), Mapping):
        new = {**document["consolidated_metadata"], "metadata": _of_v3(node, nodes)}
        found["zarr.json"] = _encoded({**document, "consolidated_metadata": new})
    stored = _parsed(found.get(".zmetadata"))
    if stored is not None:
        found[".zmetadata"] = _encoded({**stored, "metadata": _of_v2(node, nodes)})
    return found


def _of_v3(node: str, nodes: Mapping[str, Documents]) -> dict[str, Any]:
    found = {}
    for path in sorted(nodes):
        document = _parsed(nodes[path].get("zarr.json"))
        if document is not None and _is_below(path, node):
            if document.get("node_type") == "group":  # the list is flat, as zarr-python writes it
                document = {**document, "consolidated_metadata": _EMPTY}
            found[_relative(path, node)] = document
    return found


def _of_v2(node: str, nodes: Mapping[str, Documents]) -> dict[str, Any]:
    found = {}
    for path in sorted(nodes):
        if path != node and not _is_below(path, node):
            continue
        for name in (".zattrs", ".zgroup", ".zarray"):
            document = _parsed(nodes[path].get(name))
            if document is not None:
                found[name if path == node else f"{_relative(path, node)}/{name}"] = document
    return found


def _is_below(path: str, node: str) -> bool:
    return path != node and (not node or path.startswith(f"{node}/"))


def _relative(path: str, node: str) -> str:
    return path.removeprefix(f"{node}/") if node else path


def _parsed(stored: bytes | None) -> dict[str, Any] | None:
    """Return a JSON object; None if there is none."""
    try:
        document = None if stored is None else json.loads(stored)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode()


# ---------------------------------------------------------------- a new hierarchy that a tool writes

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
    options : Options
    job : str, optional
        Name of the run, if several processes write: the hierarchy has its mark until it is complete.
    is_one_shard : bool
        `source` is one shard, and `to` its new object.

    Attributes
    ----------
    place : NewPlace
        For `NewObjects` in other processes.
    objects : NewObjects
        For this process.

    Raises
    ------
    ValueError
        `to` is inside of `source` or contains it, or is the name of a zip file.
    FileExistsError
        There is something already.
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
    ) -> None:
        check_new_place(to, storage_options, source, is_one_shard=is_one_shard)
        self.place = NewPlace(to, storage_options, job)
        self._documents: dict[str, dict[str, bytes]] = {}
        self._budget, self._options = budget, options
        if job is not None:
            claim(self.place.tree(), job, None, is_begun=False)
        self.objects = NewObjects(self.place, budget, options)

    def copy_all(self, array: ArrayTarget) -> None:
        """Copy all objects of an array that is not sharded, except documents."""
        self.add(array)
        for key in array.listed_keys():
            if not is_own_name(key.removeprefix(array.folder.prefix)):
                self.objects.copy(array, key)

    def copy_others(self, others: OtherObjects, monitor: Monitor) -> ObjectCounts:
        """Copy the objects that belong to no array.

        Raises
        ------
        OSError
            An object cannot be read or written, or another program has stored one of this name.
        Stopped
            `monitor` stopped the work.
        """
        new, durable = self.place.tree(), self._options.durability == "fsync"
        if self.place.job is not None:
            new.before_store = guard(new, self.place.job)

        def copy(one: OtherObject) -> int | None:
            return new.copy(others.store, one.key, one.name, self._budget, durable=durable, may_replace=False)

        n_threads = 1 if holds_whole(new.root.store, new.root.prefix) else self._options.threads
        return copy_objects(others, copy, monitor, n_threads)

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
        parts = node_path(array.name).split("/") if array.name else []
        root = root_prefix(array)
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
        if node_path(name) not in self._documents:
            self._documents[name] = _stored_documents(folder)

    def finish(self, groups: Iterable[tuple[str, Folder]]) -> None:
        """Write the documents, those of the root last. Consolidated metadata become those of the new nodes.

        Parameters
        ----------
        groups : iterable of (str, Folder)
            Groups to write besides those that have an array.
        """
        for name, folder in groups:
            self.add_group(name, folder)
        for node in sorted(self._documents, key=lambda one: (-one.count("/") - bool(one), one)):
            documents = with_consolidated(node, self._documents)
            for name in sorted(documents, reverse=True):
                store, key, _ = object_at(
                    self.place.to, f"{node}/{name}" if node else name, self.place.options
                )
                write_object(iter([documents[name]]), len(documents[name]), store, key, sync=True)
        if self.place.job is not None:
            release(self.place.tree())


def _stored_documents(folder: Folder) -> dict[str, bytes]:
    """Return the documents of a node by their names."""
    found = ((name, folder.get(folder.prefix + name)) for name in sorted(DOCUMENTS))
    return {name: stored for name, stored in found if stored is not None}
