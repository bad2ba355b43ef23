# destination.py - the new hierarchy, and the mark of the job that writes it
# SPDX-License-Identifier: MIT
"""The new hierarchy, and the mark of the job that writes it.

`NewTree`: where new arrays are written. `NewArray`: one of them, before it has metadata.

Documents are written last, those of the root at the very end. Until then no program takes the objects for an array.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ... import native
from ...access.array_io import PARTS_NBYTES, Request, write_request_blocking
from ...access.box_reader import ArrayObjects, BoxReader, Folder, folder_at
from ...access.chunk_codec import compiled
from ...access.opened_shard import open_object
from ...access.read import ObjectSelection
from ...access.regions import Box, box_parts, whole
from ...access.shard_writer import ShardWriter
from ...compat import (
    LocalStore,
    StorePath,
    buffer_from,
    default_buffer_prototype,
    default_spec,
    on_zarrs_loop,
    unwrap,
)
from ...format.byte_document import byte_document
from ...format.metadata import KeyEncoding, key_encoding, parse_document
from ...format.spec import ChainSpec, ShardSpec
from ...options import Options, in_force
from ...storage.files import check_name, staging_folder
from ...storage.kinds import ZIP_SUFFIXES, at_url, introduce, is_url, is_zarr_store, object_at
from ...storage.store import Store
from ...storage.whole_file import put_file
from ...transformer.legacy_2022.convert import put
from ..backup import copy_stored
from ..documents import DOCUMENTS, is_own_name, node_path, object_name
from ..targets import ArrayTarget, lasting_state
from ..work import MemoryBudget
from .source import Ints, file_state

__all__ = [
    "MARK",
    "JobOver",
    "NewArray",
    "NewTree",
    "ShardState",
    "absolute",
    "check_apart",
    "check_new_place",
    "claim",
    "guard",
    "has_claim",
    "release",
]

# How the names of files begin that the engine has not finished; they are here only where no staging folder can be made.
PART = re.compile(r"\.shardcodec-[0-9a-f]{16}-")


@dataclass(frozen=True)
class ShardState:
    """What identifies a stored shard.

    Attributes
    ----------
    nbytes : int
        Its size; 0 if there is no object, because all elements have the fill value.
    state : str or None
        State of the file, or entity tag of the object; None if the store has neither.
    index_crc : int or None
        Checksum of the bytes of the index; None for a chunk that is no shard.
    """

    nbytes: int
    state: str | None = None
    index_crc: int | None = None


class NewTree:
    """A new hierarchy.

    Parameters
    ----------
    place : path-like, URL or zarr store
        Where it is written.
    storage_options : mapping, optional
        Only with a URL.

    Raises
    ------
    TypeError, ValueError, ImportError
        It cannot be opened.
    """

    def __init__(self, place: Any, storage_options: Mapping[str, Any] | None = None) -> None:
        found = at_url(place, storage_options if is_url(place) else None)
        if isinstance(found, str | os.PathLike):
            path = os.path.abspath(os.fspath(found))
            if path.lower().endswith(ZIP_SUFFIXES):
                raise ValueError(
                    f"{path}: expected a folder, a URL or a store: shards are replaced, and a zip file cannot do that"
                )
            found = LocalStore(path)  # its temporary files are beside the hierarchy
        elif not isinstance(found, StorePath) and not is_zarr_store(found):
            raise TypeError(
                f"destination: expected a path, a URL or a zarr store, got {type(place).__name__}"
            )
        self._base = found.store if isinstance(found, StorePath) else found
        introduce(self._base)
        self._prefix = found.path.rstrip("/") if isinstance(found, StorePath) else ""
        self.root: Folder = folder_at(found, "")
        self.place = os.fspath(place) if isinstance(place, os.PathLike) else str(place)
        self.before_store: Callable[[], None] = _nothing

    @property
    def path(self) -> str | None:
        """The local folder; None in any other store."""
        found = self.root.store.path(self.root.prefix.rstrip("/"))
        return None if found is None else found.rstrip("/")

    def check_free(self) -> None:
        """Raise `FileExistsError` if there is something already."""
        path = self.path
        if path is not None and os.path.lexists(path) and not os.path.isdir(path):
            raise FileExistsError(f"{path}: expected a new path or an empty folder, but it is a file")
        if path is not None and os.path.isdir(path) and _has_files(path):
            raise FileExistsError(
                f"{path}: expected a new path or an empty folder, but it has files; after a stopped run remove it, or resume its job"
            )
        if path is None and self.root.store.supports_listing:
            for key in self.root.store.keys(self.root.prefix):
                raise FileExistsError(f"{self.place}: expected a new place, but it has {key!r}")
        if self.is_complete:
            raise FileExistsError(f"{self.place}: expected a new place, but it has metadata")

    def has_objects(self, *, besides: str) -> bool:
        """Return True if there is an object or a file besides one of the root; also if the store cannot tell it."""
        if self.path is not None:
            files = (os.path.join(folder, name) for folder, _, names in os.walk(self.path) for name in names)
            return any(file != f"{self.path}/{besides}" for file in files)
        if not self.root.store.supports_listing:
            return True
        return any(key != self.root.prefix + besides for key in self.root.store.keys(self.root.prefix))

    @property
    def is_complete(self) -> bool:
        """True if the root has a document, which is written last."""
        return any(self.root.get(self.root.prefix + name) is not None for name in sorted(DOCUMENTS))

    def has_document(self, document: Mapping[str, Any] | None) -> bool:
        """Return True if the ``zarr.json`` of the root has these members."""
        stored = self.get("zarr.json")
        try:
            return stored is not None and json.loads(stored) == json.loads(json.dumps(document))
        except ValueError:
            return False

    # ---- single objects

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
        """Remove an object of the root, if it exists."""
        if self.path is not None:
            with suppress(FileNotFoundError):
                os.unlink(f"{self.path}/{name}")
        elif self.get(name) is not None:
            on_zarrs_loop(self._target(name).delete())

    def _target(self, key: str) -> StorePath:
        return StorePath(self._base, f"{self._prefix}/{key}" if self._prefix else key)

    # ---- arrays and documents

    def array(self, name: str, document: Mapping[str, Any], options: Options) -> NewArray:
        """Return a new array of the hierarchy.

        Raises
        ------
        ValueError
            The name cannot be written.
        """
        node_path(name)
        prefix = f"{self.root.prefix}{name}/" if name else self.root.prefix
        array = NewArray(name, Folder(self.root.store, prefix), self._base, document, options)
        array.before_store = self.before_store
        return array

    def write_documents(self, documents: Mapping[str, Any]) -> None:
        """Write the ``zarr.json`` of nodes, by path; the deepest first, the root last."""
        for name in sorted(documents, key=lambda one: (-one.count("/") - bool(one), one)):
            self._put(f"{name}/zarr.json" if name else "zarr.json", documents[name])

    def _put(self, key: str, document: Any) -> None:
        put(self._target(key), json.dumps(document, indent=2).encode(), durable=True)

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

    def copy_objects(self, array: ArrayTarget, budget: MemoryBudget, *, durable: bool) -> None:
        """Copy all objects of an array, except documents and shardcodec's own files, as they are.

        With `durable` each file and its name are on disk before the next one is copied.
        """
        for key in array.listed_keys():
            relative = key.removeprefix(array.folder.prefix)
            if not is_own_name(relative):
                name = object_name(f"{array.name}/{relative}" if array.name else relative)
                self.copy(array.store, key, name, budget, durable=durable, may_replace=True)


def _has_files(folder: str) -> bool:
    """Return True if there is something in a folder, except files that other workers begin to write."""
    return any(PART.match(name) is None for name in os.listdir(folder))


class JobOver(Exception):
    """The job must not write any more: its destination is complete, or belongs to another job."""


def _nothing() -> None:
    """Do nothing."""


class NewArray:
    """One new array.

    Parameters
    ----------
    name : str
        Its path in the hierarchy.
    folder : Folder
        Where its objects are written.
    base : zarr store
        The store of the folder.
    document : mapping
        Its ``zarr.json``.
    options : Options

    Attributes
    ----------
    before_store : callable
        Called before each shard is stored; raises `JobOver` if it must not be.
    """

    def __init__(
        self, name: str, folder: Folder, base: Any, document: Mapping[str, Any], options: Options
    ) -> None:
        self.name, self.folder, self._base, self._options = name, folder, base, options
        self.keys: KeyEncoding = key_encoding(document)
        self.bytes = byte_document(document)
        self.shape: Ints = parse_document(self.bytes.document).shape
        self.chain = ChainSpec.from_metadata(self.bytes.document)
        self.dtype = self.chain.dtype
        self._native = compiled(self.chain)
        self.before_store: Callable[[], None] = _nothing

    @cached_property
    def spec(self) -> ShardSpec | None:
        """Encoding of a shard; None if the array is not sharded."""
        return None if self.chain.sharding is None else ShardSpec.from_chain(self.chain)

    @property
    def grid(self) -> Ints:
        """Number of shards along each axis."""
        return tuple(-(-n // size) for n, size in zip(self.shape, self.chain.shape, strict=True))

    @property
    def n_shards(self) -> int:
        """Number of shards of the grid."""
        return math.prod(self.grid)

    @property
    def held_nbytes(self) -> int:
        """Memory of a new shard while a store of requests takes it, in bytes."""
        store = self.folder.store
        if store.is_near:
            return 0
        is_collected = self.chain.sharding is None or self.chain.sharding.index_location == "start"
        whole = self.chain.nbytes
        return whole if is_collected or not store.takes_parts else min(whole, PARTS_NBYTES)

    def key(self, coords: Ints) -> str:
        """Return the key of a shard in the store."""
        return self.folder.prefix + self.keys.key(coords)

    def describe(self, coords: Ints) -> str:
        """Return path or key of a shard, for messages."""
        return self.folder.store.path(self.key(coords)) or self.key(coords)

    # ---- writing

    def writer(self, coords: Ints) -> ShardWriter:
        """Return the writer of one shard."""
        assert self.spec is not None
        with in_force(self._options):
            return ShardWriter(self._base, self.spec, key=self.key(coords))

    def commit(self, writer: ShardWriter) -> None:
        """Store the shard of a writer."""
        self.before_store()
        writer.commit()

    def write(self, first: Ints, values: np.ndarray[Any, Any], wanted: Sequence[Ints]) -> None:
        """Write whole shards.

        Parameters
        ----------
        first : tuple of int
            Position of the first shard in the grid.
        values : ndarray
            Elements of a box of whole shards; cells outside of the array have the fill value.
        wanted : sequence of tuple of int
            The shards of the box that are written. A shard whose elements have the fill value is not stored.
        """
        start = tuple(at * n for at, n in zip(first, self.chain.shape, strict=True))
        box = Box(start, values.shape, None, (0,) * values.ndim)
        chosen = set(wanted)
        parts = [
            ObjectSelection(self.key(coords), self._native, part)
            for coords, part in (box_parts(box, self.chain.shape) if values.ndim else [((), whole(()))])
            if coords in chosen
        ]
        request = Request(
            self.folder.store, parts, range(len(parts)), tuple(range(values.ndim)), values, default_spec()
        )
        self.before_store()
        write_request_blocking(request, self._options)

    def put(self, coords: Ints, data: bytes) -> None:
        """Store the object of an array that is not sharded."""
        self.before_store()
        put(StorePath(self._base, self.key(coords)), data, durable=self._options.durability == "fsync")

    def remove(self, coords: Ints) -> None:
        """Remove a shard that a killed run may have stored."""
        self.before_store()
        key = self.key(coords)
        path = self.folder.store.path(key)
        if path is not None:
            with suppress(FileNotFoundError):
                os.unlink(path)
        elif (view := open_object(self.folder.store, key)) is not None:
            view.close()
            on_zarrs_loop(StorePath(self._base, key).delete())

    # ---- looking at what is stored

    def is_stored(self, coords: Ints) -> bool:
        """Return True if there is an object of a shard."""
        view = open_object(self.folder.store, self.key(coords))
        if view is not None:
            view.close()
        return view is not None

    def state(self, coords: Ints) -> ShardState:
        """Return what identifies a stored shard; it reads the index."""
        store, key = self.folder.store, self.key(coords)
        view = open_object(store, key)
        if view is None:
            return ShardState(0)
        try:
            index_crc = None
            if self.spec is not None and view.nbytes >= self.spec.index_nbytes:
                nbytes = self.spec.index_nbytes
                offset = 0 if self.spec.index_location == "start" else view.nbytes - nbytes
                index_crc = native.load().crc32c(view.range(offset, nbytes))
            return ShardState(view.nbytes, self._name_of_state(key), index_crc)
        finally:
            view.close()

    def _name_of_state(self, key: str) -> str | None:
        path = self.folder.store.path(key)
        if path is None:
            return lasting_state(self.folder.store, key)
        return file_state(path)

    def content_crc(self, coords: Ints) -> int:
        """Return the checksum of the bytes of a stored shard without its index; of an array without shards, of its object."""
        view = open_object(self.folder.store, self.key(coords))
        if view is None:
            return 0
        try:
            nbytes = 0 if self.spec is None else self.spec.index_nbytes
            at = nbytes if self.spec is not None and self.spec.index_location == "start" else 0
            end = at + view.nbytes - nbytes
            crc = 0
            while at < end:
                n = min(4 << 20, end - at)
                crc = native.load().crc32c(view.range(at, n), crc)
                at += n
            return crc
        finally:
            view.close()

    def read(self, coords: Ints, start: Ints, shape: Ints) -> np.ndarray[Any, Any]:
        """Read a box of a stored shard, also elements outside of the array."""
        out = np.empty(shape, self.dtype)
        reader = BoxReader(
            ArrayObjects(self.folder, self.keys, self.shape, self._native, self.dtype), self._options, None
        )
        part = ObjectSelection(self.key(coords), self._native, Box(start, shape, None, (0,) * len(shape)))
        reader.read([part], out, tuple(range(out.ndim)))
        return out


# ---------------------------------------------------------------- where source and destination are, independent of their spelling
#
# `absolute`: one spelling of a place. `check_new_place`: the destination must be free, and apart from the source.


def absolute(place: Any, storage_options: Mapping[str, Any] | None = None) -> Any:
    """Return the absolute path of a path or of a ``file://`` URL; any other place as it is."""
    if is_url(place):
        if place.partition("://")[0].lower() not in ("file", "local"):
            return place
        place = at_url(place, storage_options)
    return os.path.abspath(check_name(os.fspath(place))) if isinstance(place, str | os.PathLike) else place


def check_new_place(
    to: Any, storage_options: Mapping[str, Any] | None, source: Any, *, is_one_shard: bool = False
) -> None:
    """Check the destination of `repair` and `compact`, as `convert` does with its own.

    Parameters
    ----------
    to : path-like, URL or zarr store
    storage_options : mapping or None
        Only with a URL.
    source : path-like, URL or zarr store
    is_one_shard : bool
        `source` is one shard, and `to` its new object.

    Raises
    ------
    ValueError
        One lies in the other one, or `to` is a zip file.
    FileExistsError
        There is something already.
    """
    options = storage_options if is_url(to) else None
    old = absolute(source, storage_options if is_url(source) else None)
    check_apart(old, absolute(to, options), name="to")
    if not is_one_shard:
        NewTree(to, options).check_free()
        return
    store, key, name = object_at(to, None, options)
    path = store.path(key)
    if open_object(store, key) is not None if path is None else os.path.lexists(path):
        raise FileExistsError(f"{path or name}: expected a new path, but it exists")


def check_apart(source: Any, destination: Any, *, name: str = "destination") -> None:
    """Raise `ValueError` if one of two places, which `absolute` has returned, lies in the other one."""
    old, new = _location(source), _location(destination)
    if old is None or new is None or not _is_same_store(old[0], new[0]):
        return
    a, b = (f"{path.rstrip('/')}/" if path.strip("/") else "" for path in (old[1], new[1]))
    if a != b and (a.startswith(b) or b.startswith(a)):
        raise ValueError(
            f"{name}: expected a place outside of the source {source}, which does not contain the source, got {destination}"
        )


def _location(place: Any) -> tuple[Any, str] | None:
    """Return a store and the path in it; in place of the store None for files, and the scheme for URLs."""
    if is_url(place):
        scheme, _, rest = place.partition("://")
        return scheme.lower(), rest
    if isinstance(place, str):
        return None, os.path.realpath(place)
    if not isinstance(place, StorePath) and not is_zarr_store(place):
        return None
    folder = folder_at(place, "")
    path = folder.store.path(folder.prefix.rstrip("/"))
    return (folder, folder.prefix) if path is None else (None, os.path.realpath(path))


def _is_same_store(a: Any, b: Any) -> bool:
    if not isinstance(a, Folder) or not isinstance(b, Folder):
        return not isinstance(a, Folder) and not isinstance(b, Folder) and a == b
    if a.store.lock_names([""]) != b.store.lock_names([""]):
        return False
    # the names of some stores do not tell them apart, such as those of two memory stores
    one, other = unwrap(a.store.place), unwrap(b.store.place)
    return one is other or bool(one == other)


# ---------------------------------------------------------------- the mark of the job that writes a new hierarchy
#
# `claim` marks a new hierarchy for one job, so that no other one writes into it; `release` removes the mark at the end.

# Name of the mark in the folder of the new hierarchy.
MARK = ".shardcodec-job"


def claim(destination: NewTree, job: str, path: str | None, *, is_begun: bool) -> None:
    """Mark an incomplete hierarchy for a job. Several workers of the job may call it.

    Parameters
    ----------
    destination : NewTree
    job : str
        Name of the job, which no other job has.
    path : str or None
        Path of its plan, for messages; None if it has none.
    is_begun : bool
        A ledger shows that the job has written shards; only then may there be objects without the mark.

    Raises
    ------
    FileExistsError
        Another job writes there, or there are objects that are not of this job.
    """
    if has_claim(destination, job):
        return
    if not is_begun:
        try:
            destination.check_free()
        except FileExistsError:
            if has_claim(destination, job):  # another worker was faster
                return
            raise
    mark = json.dumps({"job": job, "plan": path}).encode()
    with _optional(destination):
        if destination.create(MARK, mark):
            return
    if _stored(destination) is not None and not has_claim(destination, job):
        raise FileExistsError(
            f"{destination.place}: expected a place that no other job writes, but one began"
        )


def has_claim(destination: NewTree, job: str) -> bool:
    """Return True if the mark is that of a job, False if there is none.

    Raises
    ------
    FileExistsError
        It is the mark of another job.
    """
    stored = _stored(destination)
    if stored is None:
        return False
    try:
        found = json.loads(stored)
    except ValueError:
        found = None
    if isinstance(found, dict) and found.get("job") == job:
        return True
    plan = found.get("plan") if isinstance(found, dict) else None
    whose = "another conversion" if plan is None else f"the job {plan}"
    raise FileExistsError(
        f"{destination.place}: expected a new place, but {whose} writes there; finish that one, or remove all that is there"
    )


def guard(destination: NewTree, job: str) -> Callable[[], None]:
    """Return a check for the time just before an object is stored: the destination must still be that of the job.

    A worker that was taken for lost may wake up long after others have done its work, and users have written since.

    Returns
    -------
    callable
        Raises `JobOver` if the destination is complete, or has no longer the mark of the job.
    """
    has_mark = has_claim(destination, job)

    def check() -> None:
        try:
            is_ours = not destination.is_complete and (not has_mark or has_claim(destination, job))
        except FileExistsError:
            is_ours = False
        if not is_ours:
            raise JobOver(f"{destination.place}: expected the mark of the job {job}, but the job is over")

    return check


def release(destination: NewTree) -> None:
    """Remove the mark of a complete hierarchy. It is harmless if it stays, because the metadata are there."""
    with _optional(destination):
        destination.remove(MARK)


def _stored(destination: NewTree) -> bytes | None:
    with _optional(destination):
        return destination.get(MARK)
    return None


@contextmanager
def _optional(destination: NewTree) -> Iterator[None]:
    """Ignore errors of a store without files: some, such as that of icechunk, take only keys of Zarr and have no mark."""
    try:
        yield
    except Exception:
        if destination.path is not None:
            raise
