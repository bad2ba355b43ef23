# new_hierarchy.py - a new hierarchy that a tool writes
# SPDX-License-Identifier: MIT
"""`NewHierarchy`: the documents of a new hierarchy for `repair --to` and `compact --to`, which are written last.

So a hierarchy with documents is complete, and a stopped run leaves objects that no program takes for an array.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..access.box_reader import Folder
from ..options import Options
from ..storage.kinds import object_at
from .array_target import ArrayTarget
from .backup import holds_whole, write_object
from .consolidated import with_consolidated
from .convert.claim import claim, guard, release
from .convert.places import check_new_place
from .documents import DOCUMENTS
from .memory_budget import MemoryBudget
from .monitor import Monitor
from .names import is_own_name, node_path
from .new_objects import NewObjects, NewPlace, root_prefix
from .other_objects import ObjectCounts, OtherObject, OtherObjects, copy_objects

__all__ = ["NewHierarchy"]

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
