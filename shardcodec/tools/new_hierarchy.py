# new_hierarchy.py - a new hierarchy that a tool writes, documents last
# SPDX-License-Identifier: MIT
"""A new hierarchy, for `convert`, `repair` and `compact` with ``to``, and `convert_2022`: one place, mark and end for all four.

Documents are written last, those of the root at the very end. Until then no program takes the objects for an array.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..access.box_reader import Folder, folder_at
from ..access.shard_object import open_object
from ..access.shard_writer import ShardWriter
from ..compat import LocalStore, StorePath, buffer_from, default_buffer_prototype, on_zarrs_loop, unwrap
from ..errors import SpecError
from ..format.spec import ShardSpec
from ..options import Options
from ..storage import file_systems
from ..storage.files import check_name
from ..storage.kinds import (
    ZIP_SUFFIXES,
    at_url,
    introduce,
    is_zarr_store,
    object_at,
    service_of,
)
from ..storage.new_object import put_object
from ..storage.staging import remove_lock_folders, staging_folder
from ..storage.store import LeftFolder, Store
from ..storage.url_stores import is_url
from ..storage.whole_file import put_file
from .backup import UnreadableObject, copy_stored, holds_whole
from .documents import (
    NODE_DOCUMENTS,
    Document,
    StoredDocuments,
    document_of,
    is_group,
)
from .left_parts import LeftPart
from .memory import MemoryBudget
from .monitor import Monitor
from .names import is_own_name, node_path, object_name
from .other_objects import ObjectCounts, OtherObject, OtherObjects, copy_objects, left_folder, left_object
from .targets import ArrayTarget

__all__ = ["JobOver", "NewHierarchy", "absolute", "check_apart", "check_new_place"]

# How the names of files begin that the engine has not finished; they are here only where no staging folder can be made.
PART = re.compile(r"\.shardcodec-[0-9a-f]{16}-")


def absolute(place: Any, storage_options: Mapping[str, Any] | None = None) -> Any:
    """Return the absolute path of a path or of a ``file://`` URL; any other place unchanged."""
    if is_url(place):
        if place.partition("://")[0].lower() not in ("file", "local"):
            return place
        place = at_url(place, storage_options)
    return os.path.abspath(check_name(os.fspath(place))) if isinstance(place, str | os.PathLike) else place


def check_new_place(
    to: Any, storage_options: Mapping[str, Any] | None, source: Any, *, is_one_shard: bool = False
) -> None:
    """Check that `to` is free, and apart from the source; with `is_one_shard` it is the new object of a single shard."""
    options = storage_options if is_url(to) else None
    check_apart(source, to, storage_options, name="to")
    if not is_one_shard:
        NewHierarchy(to, options).check_free()
        return
    store, key, name = object_at(to, None, options)
    path = store.path(key)
    if open_object(store, key) is not None if path is None else os.path.lexists(path):
        raise FileExistsError(f"{path or name}: expected a new path, but it exists")


def check_apart(
    source: Any,
    destination: Any,
    storage_options: Mapping[str, Any] | None = None,
    *,
    name: str = "destination",
) -> None:
    """Raise `ValueError` if one of two places lies in the other one; `storage_options` are those of URLs."""
    old, new = (_location(absolute(place), storage_options) for place in (source, destination))
    if old is None or new is None or not _is_same_service(old[0], new[0]):
        return
    if old[0] is None:
        (_, a), (_, b) = old, new
        is_nested = a != b and (file_systems.is_inside(a, b) or file_systems.is_inside(b, a))
    else:
        a, b = (f"{path.strip('/')}/".lstrip("/") for _, path in (old, new))
        is_nested = a != b and (a.startswith(b) or b.startswith(a))
    if is_nested:
        raise ValueError(
            f"{name}: expected a place outside of the source {source}, which does not contain the source, got {destination}"
        )


def _location(place: Any, storage_options: Mapping[str, Any] | None) -> tuple[Any, str] | None:
    """Return what keeps the objects of a place, None for files, and their path there; None for an object in memory."""
    place = at_url(place, storage_options if is_url(place) else None)
    if isinstance(place, str):
        return None, os.path.realpath(place)
    if not isinstance(place, StorePath) and not is_zarr_store(place):
        return None
    folder = folder_at(place, "")
    path = folder.store.path(folder.prefix.rstrip("/"))
    if path is not None:
        return None, os.path.realpath(path)
    place_there = service_of(folder.store.place)
    if place_there is None:
        return folder, folder.prefix
    service, root = place_there
    path = f"{root.rstrip('/')}/{folder.prefix}"
    return (None, os.path.realpath(path)) if service is None else (service, path)


def _is_same_service(a: Any, b: Any) -> bool:
    if not isinstance(a, Folder) or not isinstance(b, Folder):
        return bool(a == b)
    if a.store.lock_names([""]) != b.store.lock_names([""]):
        return False
    # the names of some stores do not tell them apart, such as those of two memory stores
    store, other = unwrap(a.store.place), unwrap(b.store.place)
    return store is other or bool(store == other)


class NewHierarchy:
    """The place of a new hierarchy, and the objects in it; `storage_options` only with a URL, `path` is below the place.

    `before_store` is called before each object of a job is stored; it raises `JobOver` if it must not be.
    """

    def __init__(
        self, place: Any, storage_options: Mapping[str, Any] | None = None, *, path: str = ""
    ) -> None:
        store = at_url(place, storage_options if is_url(place) else None)
        if isinstance(store, str | os.PathLike):
            root = os.path.abspath(check_name(os.fspath(store)))
            if root.lower().endswith(ZIP_SUFFIXES):
                raise ValueError(
                    f"{root}: expected a folder, a URL or a store: shards are replaced, and a zip file cannot do that"
                )
            store = LocalStore(root)  # its temporary files are beside the hierarchy
        elif not isinstance(store, StorePath) and not is_zarr_store(store):
            raise TypeError(
                f"destination: expected a path, a URL or a zarr store, got {type(place).__name__}"
            )
        self._base = store.store if isinstance(store, StorePath) else store
        introduce(self._base)
        above = store.path.rstrip("/") if isinstance(store, StorePath) else ""
        self._prefix = "/".join(filter(None, (above, node_path(path))))
        self.root: Folder = folder_at(self.store_path, "")
        name = os.fspath(place) if isinstance(place, os.PathLike) else str(place)
        self.place: str = "/".join(filter(None, (name, path)))
        self.before_store: Callable[[], None] = _nothing

    @property
    def store_path(self) -> StorePath:
        """The root, for zarr."""
        return StorePath(self._base, self._prefix)

    @property
    def path(self) -> str | None:
        """The local folder; None in any other store."""
        path = self.root.store.path(self.root.prefix.rstrip("/"))
        return None if path is None else path.rstrip("/")

    def check_free(self, hint: str = "after a stopped run remove it, or resume its job") -> None:
        """Raise `FileExistsError` if there is something already; the error ends with what to do."""
        path = self.path
        if path is not None and os.path.lexists(path) and not os.path.isdir(path):
            raise FileExistsError(f"{path}: expected a new path or an empty folder, but it is a file")
        if path is not None and os.path.isdir(path) and _has_files(path):
            raise FileExistsError(f"{path}: expected a new path or an empty folder, but it has files; {hint}")
        for key in () if path is not None else self.root.store.listed(self.root.prefix) or ():
            raise FileExistsError(f"{self.place}: expected a new place, but it has {key!r}")
        # a listing may be older than the documents: clients of NFS and fsspec keep it; that of a local folder is not
        if (path is None or not self.root.store.is_prompt) and self.is_complete:
            raise FileExistsError(f"{self.place}: expected a new place, but it has metadata")
        self.check_around(is_empty=True)

    def check_around(self, *, is_empty: bool = False) -> None:
        """Raise if the store is read-only, or the place is in an array, whose chunks have such names, or a hierarchy of 2022.

        With `is_empty` the place itself has no documents.
        """
        self.root.store.check_writable()
        passed: list[Folder] = []
        for folder in itertools.islice(self._around(), int(is_empty), None):
            document = _readable(folder, ["zarr.json", ".zarray"])
            if document is None:
                passed.append(folder)
                continue
            is_old = isinstance(document.get("zarr_format"), str)
            may_hold = not is_old and (is_group(document) or folder is self.root)
            # the folders that were passed are asked for groups of Zarr v2 only where one makes a difference
            if may_hold or any(_readable(below, [".zgroup"]) for below in passed):
                return
            raise FileExistsError(
                f"{self.place}: expected a place outside of hierarchies of the 2022 format, got another format in {folder!r}"
                if is_old
                else f"{self.place}: expected a place outside of the array {folder!r}"
            )

    def _around(self) -> Iterator[Folder]:
        """Yield the root, and the folders around it from the inside out."""
        yield self.root
        if self.path is not None:
            yield from (folder_at(p, "") for p in Path(os.path.realpath(self.path)).parents)
            return
        names = self.root.prefix.split("/")[:-1]
        for n in reversed(range(len(names))):
            yield replace(self.root, prefix="".join(f"{name}/" for name in names[:n]))

    def has_objects(self, *, besides: str) -> bool:
        """Return True if there is an object or a file besides one of the root; also if the store cannot tell it."""
        if self.path is not None:
            files = (os.path.join(folder, name) for folder, _, names in os.walk(self.path) for name in names)
            return any(file != f"{self.path}/{besides}" for file in files)
        keys = self.root.store.listed(self.root.prefix)
        return keys is None or any(key != self.root.prefix + besides for key in keys)

    @property
    def is_complete(self) -> bool:
        """True if the root has the document of a node, which is written last, or a folder or a link of its name."""
        return any(self._has(name) for name in NODE_DOCUMENTS)

    def _has(self, name: str) -> bool:
        if self.path is None:
            return self.get(name) is not None
        try:
            os.lstat(f"{self.path}/{name}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def has_document(self, document: Mapping[str, Any] | None) -> bool:
        """Return True if the ``zarr.json`` of the root has these members."""
        stored = self.get("zarr.json")
        try:
            return stored is not None and json.loads(stored) == json.loads(json.dumps(document))
        except ValueError:
            return False

    def get(self, name: str) -> bytes | None:
        """Return an object of the root; None if it does not exist."""
        return self.root.get(self.root.prefix + name)

    def create(self, name: str, data: bytes) -> bool:
        """Store an object of the root in one step; return False if there is another one already."""
        self.root.store.check_writable()
        if self.path is not None:
            staging = staging_folder(self.path)
            return put_file(f"{self.path}/{name}", [data], sync=True, may_replace=False, staging=staging)
        target, new = self._target(name), buffer_from(default_buffer_prototype(), data)
        try:
            on_zarrs_loop(target.set_if_not_exists(new))
        except Exception:  # noqa: BLE001 - some services of objects refuse conditional writes
            if self.get(name) is None:
                on_zarrs_loop(target.set(new))
        return self.get(name) == data

    def remove(self, name: str) -> None:
        """Remove an object by its path below the root, if it exists."""
        if self.path is not None:
            with suppress(FileNotFoundError):
                os.unlink(f"{self.path}/{name}")
        elif (view := open_object(self.root.store, self.root.prefix + name)) is not None:
            view.close()
            on_zarrs_loop(self._target(name).delete())

    @property
    def can_clear(self) -> bool:
        """True if the store can list and delete."""
        return bool(self._base.supports_listing and self._base.supports_deletes)

    def names(self) -> Iterator[str]:
        """Yield the paths of all objects below the root; none if the store cannot list."""
        keys = self.root.store.listed(self.root.prefix) or ()
        yield from (key.removeprefix(self.root.prefix) for key in keys)

    def linked_folder(self) -> str | None:
        """Return a symbolic link to a folder below the root, whose objects may be those of another hierarchy; None without one."""
        for folder, below, _ in [] if self.path is None else os.walk(self.path):
            for name in below:
                if os.path.islink(path := os.path.join(folder, name)):
                    return path
        return None

    def clear(self, names: Iterable[str]) -> None:
        """Remove objects, and the folders below the root that are empty then."""
        for name in names:
            self.remove(name)
        for folder, below, _ in [] if self.path is None else os.walk(self.path, topdown=False):
            for name in below:
                with suppress(OSError):
                    os.rmdir(os.path.join(folder, name))

    def _target(self, name: str) -> StorePath:
        return StorePath(self._base, self._key(name))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def folder(self, name: str) -> Folder:
        """Return the folder of a node; raise `ValueError` if its name cannot be written."""
        prefix = f"{self.root.prefix}{node_path(name)}/" if name else self.root.prefix
        return Folder(self.root.store, prefix)

    def writer(self, name: str, spec: ShardSpec, **how: Any) -> ShardWriter:
        """Return the writer of a new shard by its path below the root; `how` is passed to `ShardWriter`."""
        return ShardWriter(self._base, spec, key=self._key(name), **how)

    def put(self, name: str, data: Any, **how: Any) -> None:
        """Store a small object by its path below the root, in one step; `how` is passed to `put_object`."""
        put_object(iter([data]), len(data), self.root.store, self.root.prefix + name, **how)

    def copy(
        self, store: Store, key: str, name: str, budget: MemoryBudget, *, durable: bool, may_replace: bool
    ) -> int | None:
        """Copy an object as it is to a path below the root, block by block; see `copy_stored`."""
        return copy_stored(
            store,
            key,
            self.root.store,
            self.root.prefix + name,
            budget,
            sync=durable,
            may_replace=may_replace,
            before_store=self.before_store,
        )

    def copy_array(
        self, array: ArrayTarget, budget: MemoryBudget, *, durable: bool, may_replace: bool
    ) -> list[LeftPart]:
        """Copy all objects of an array, except documents and shardcodec's own files, as they are; return what cannot be read.

        With `durable` each file and its name are on disk before the next one is copied.
        """
        folders: list[LeftFolder] = []
        left: list[LeftPart] = []
        listed = array.listed_keys(folders)
        for key in (shard.key for shard in array.shards()) if listed is None else listed:
            relative = key.removeprefix(array.folder.prefix)
            if not is_own_name(relative):
                name = object_name(f"{array.name}/{relative}" if array.name else relative)
                try:
                    self.copy(array.store, key, name, budget, durable=durable, may_replace=may_replace)
                except UnreadableObject as error:
                    left.append(left_object(name, error))
        for folder in folders:
            relative = f"{folder.key}/".removeprefix(array.folder.prefix)
            left.append(left_folder(f"{array.name}/{relative}" if array.name else relative, folder))
        return left

    def copy_others(
        self,
        others: OtherObjects,
        budget: MemoryBudget,
        options: Options,
        monitor: Monitor,
        *,
        may_replace: bool,
    ) -> ObjectCounts:
        """Copy the objects that belong to no array, in threads only if none of them holds a whole object.

        Another object of the name is an error unless `may_replace`.
        """
        durable = options.durability == "fsync"

        @functools.lru_cache
        def is_new(folder: str) -> bool:
            return bool(self.path and folder) and file_systems.is_inside(folder, str(self.path))

        def copy(entry: OtherObject) -> int | None:
            if is_new(os.path.dirname(others.store.path(entry.key) or "")):
                raise UnreadableObject("a link or a mount leads to the new hierarchy", is_data=False)
            if (mended := others.mended(entry)) is not None:
                self.before_store()
                self.put(entry.name, mended.data, sync=durable, may_replace=may_replace)
                return len(mended.data)
            return self.copy(
                others.store, entry.key, entry.name, budget, durable=durable, may_replace=may_replace
            )

        n_threads = 1 if holds_whole(self.root.store, self.root.prefix) else options.threads
        return copy_objects(others, copy, monitor, n_threads)

    def write_documents(self, nodes: Mapping[str, StoredDocuments], *, may_replace: bool) -> None:
        """Write the documents of nodes, by path and name, durably; the deepest nodes first, and the root when all others are on disk."""
        if self.path is not None and file_systems.loses_locks(self.path):
            remove_lock_folders(self.path)
        keys = [self.root.prefix + f"{node}/{name}".lstrip("/") for node in nodes for name in nodes[node]]
        for node in [*sorted(filter(None, nodes), key=lambda path: (-path.count("/"), path)), ""]:
            if not node:  # the folders of all documents, and what is above the root
                self.root.store.sync(keys)
            for name in sorted(nodes.get(node, ()), reverse=True):
                path, stored = f"{node}/{name}".lstrip("/"), nodes[node][name]
                # the bytes are on disk before the name
                self.put(path, stored, sync=True, may_replace=may_replace, above=False)


def _readable(folder: Folder, names: Sequence[str]) -> Document | None:
    """Return the document of a folder around a hierarchy; None also for one that cannot be read, because it is not of this hierarchy."""
    place = folder.store.path(folder.prefix)
    try:
        # a look at a name that is not there costs less than a try to open it
        return document_of(folder, [name for name in names if place is None or os.path.lexists(place + name)])
    except (OSError, SpecError):
        return None


def _has_files(folder: str) -> bool:
    """Return True if there is something in a folder, except files that other workers begin to write."""
    return any(PART.match(name) is None for name in os.listdir(folder))


class JobOver(Exception):
    """The job must not write any more: its destination is complete, or belongs to another job."""


def _nothing() -> None:
    """Do nothing."""
