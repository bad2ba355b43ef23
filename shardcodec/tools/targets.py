# targets.py - what a tool works on: arrays, their objects, single shards
# SPDX-License-Identifier: MIT
"""The arrays on which a tool works, with their objects and shards.

Shards are found by listing the array's folder, key by key. For a store that cannot list, such as HTTP, they are the keys of the
whole grid, whether the shards exist or not. The chunks of an array without shards are its shards here: each is one inner chunk
without an index (`ArrayTarget.plain`).
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from .. import native
from ..access.box_reader import Folder
from ..access.shard import Shard
from ..access.shard_object import StoreObject, open_object
from ..errors import ShardError, SpecError, UnsupportedError, as_os_error
from ..format.array_document import ArrayLayout
from ..format.byte_document import ByteDocument, byte_document, inner_codecs
from ..format.chunk_keys import KeyEncoding, key_encoding
from ..format.spec import ChainSpec, ShardSpec
from ..live.record import NAME as RECORD_NAME
from ..live.record import counted_shape
from ..storage.staging import LOCK_FOLDER, kept_number
from ..storage.store import LeftFolder, Store
from ..storage.undo_journal import is_old_name, is_stray_journal, pending_journal
from .documents import DOCUMENTS, Document, is_2022

__all__ = [
    "ArrayTarget",
    "ForeignObject",
    "ShardTarget",
    "array_target",
    "lasting_state",
    "lone_shard",
]

_LOCKS = f"{LOCK_FOLDER}/"


Ints = tuple[int, ...]

_PROBLEM_2022 = (
    "a hierarchy of the 2022 format, which only `shardcodec convert` reads; it makes a hierarchy of Zarr v3"
)


@dataclass(frozen=True)
class ForeignObject:
    """An object in the folder of an array that is neither metadata nor a shard of its grid.

    Attributes
    ----------
    name : str
        Path or key of the object, for messages.
    key : str
        Key of the object in the store.
    reason : str
        Why the object is not a shard of the array.
    is_journal : bool
        True for the undo journal of another file: the folder was copied during an update.
    is_unreadable : bool
        True for a folder whose objects cannot be listed.
    """

    name: str
    key: str
    reason: str
    is_journal: bool = False
    is_unreadable: bool = False


@dataclass(frozen=True)
class ShardTarget:
    """One shard, which may be missing.

    Attributes
    ----------
    array : ArrayTarget
        Array of the shard.
    key : str
        Key of the shard in the store.
    coords : tuple of int or None
        Position in the grid of shards; None for a shard without an array.
    old_key : str or None
        Key that a client of NFS has given to it, if it has no other (`ArrayTarget.unnamed`).
    """

    array: ArrayTarget
    key: str
    coords: Ints | None
    old_key: str | None = None

    @property
    def name(self) -> str:
        """Path or key of the shard, for messages."""
        return self.array.store.path(self.key) or self.key

    @property
    def relative(self) -> str:
        """Key of the shard in the folder of its array."""
        return self.key.removeprefix(self.array.folder.prefix)

    @property
    def place(self) -> StoreObject:
        """The object in the store."""
        return StoreObject(self.array.store, self.key, self.name)

    @property
    def is_stored(self) -> bool:
        """True if there is an object, also one that cannot be read: a dangling link, a folder, a refused object."""
        try:
            view = open_object(self.array.store, self.key)
        except (ShardError, OSError):
            return True
        if view is not None:
            view.close()
        return view is not None

    @property
    def has_journal(self) -> bool:
        """True if an update in place of the shard is not finished."""
        path = self.array.store.path(self.key)
        return path is not None and pending_journal(path) is not None

    def roll_back(self) -> bool:
        """Roll back an unfinished update in place after its writer has ended; return False if there is none."""
        if not self.has_journal:
            return False
        with self.open("r+") as handle:
            handle.roll_back()
        return True

    def open(self, mode: str = "r") -> Shard:
        """Open the shard.

        Parameters
        ----------
        mode : {"r", "r+"}
            Read only, or read and write.

        Returns
        -------
        Shard

        Raises
        ------
        UnsupportedError
            The shards of the array cannot be opened; ``array.problem`` says why.
        ValueError
            The store is read-only, but `mode` is "r+".
        """
        if mode != "r":
            self.array.store.check_writable()
        return Shard(self.place, self.array.shard_spec, mode)


@dataclass(frozen=True)
class ArrayTarget:
    """An array that a tool works on.

    Attributes
    ----------
    name : str
        Path of the array in the hierarchy that was given; empty for its root.
    folder : Folder
        The objects of the array.
    document : mapping
        Its ``zarr.json`` or ``.zarray``; empty for a shard without an array, and if it cannot be parsed.
    layout : ArrayLayout or None
        Shape, chunks and data type; None if the document is invalid, and for a shard without an array. If the engine does not
        have the data type (`foreign_type`), elements are bytes.
    keys : KeyEncoding or None
        Keys of its chunks.
    spec : ShardSpec or None
        Encoding of its shards; None if the array is not sharded, or the engine does not support it.
    problem : str or None
        Why the shards cannot be read; None if they can be, or if the array is not sharded.
    is_malformed : bool
        The document is malformed, so no program can read the array.
    is_refused : bool
        The file system or the store refuses the document, which may be sound; the array counts as malformed.
    is_group : bool
        It is a group whose document cannot be read, which is malformed too. The arrays in it are targets of their own.
    bytes : ByteDocument or None
        The metadata, and a document that the engine can use; None without valid metadata.
    only : tuple of (str, tuple of int or None), or None
        Key and position of the single shard that was given, instead of the whole array.
    """

    name: str
    folder: Folder
    document: Document
    layout: ArrayLayout | None = None
    keys: KeyEncoding | None = None
    spec: ShardSpec | None = None
    problem: str | None = None
    bytes: ByteDocument | None = None
    only: tuple[str, Ints | None] | None = None
    is_malformed: bool = False
    is_refused: bool = False
    is_group: bool = False

    @property
    def foreign_codec(self) -> str | None:
        """Name of a codec of the inner chunks that the engine does not have; None if it has all.

        `spec` then describes only the index: the engine cannot decode inner chunks.
        """
        return None if self.bytes is None else self.bytes.codec

    @property
    def foreign_type(self) -> str | None:
        """Name of the data type if the engine does not have it, otherwise None."""
        return None if self.bytes is None else self.bytes.data_type

    @property
    def data_type(self) -> str:
        """Name of the data type, for reports."""
        return self.foreign_type or ("" if self.layout is None else str(self.layout.dtype))

    @property
    def encoding(self) -> tuple[Any, ...]:
        """Equal for two arrays if each can use the encoded inner chunks, or the chunks without shards, of the other."""
        spec = (self.spec, self.plain)
        if self.bytes is None or not self.bytes.is_foreign:
            return spec
        stored = self.bytes.stored
        # data types and codecs that the engine does not have are compared as spelt in the metadata
        if stored.get("zarr_format") == 2:
            return *spec, *(
                stored.get(name) for name in ("dtype", "fill_value", "order", "filters", "compressor")
            )
        return *spec, stored.get("data_type"), stored.get("fill_value"), inner_codecs(stored["codecs"])

    @property
    def store(self) -> Store:
        """The store that has the objects."""
        return self.folder.store

    @property
    def place(self) -> str:
        """Path or URL of the array, for messages."""
        return repr(self.folder)

    @property
    def is_sharded(self) -> bool:
        """True if the shards can be read."""
        return self.spec is not None and self.problem is None

    @property
    def shard_spec(self) -> ShardSpec:
        """Encoding of the shards; raises `UnsupportedError` if they cannot be read."""
        if self.spec is None or self.problem is not None:
            raise UnsupportedError(
                f"array {self.place}: {self.problem or 'expected shards, but it is not sharded'}"
            )
        return self.spec

    @cached_property
    def plain(self) -> ShardSpec | None:
        """The encoding of a chunk of an array without shards, as a shard that is one inner chunk and has no index.

        None for a sharded array, and if the chunks have several shapes.
        """
        if self.bytes is None or self.layout is None or self.keys is None or self.spec is not None:
            return None
        try:
            chain = ChainSpec.from_metadata(self.bytes.document)
            if chain.sharding is not None or any(len(edges) != 1 for edges in self.layout.edges):
                return None
            return ShardSpec(chain.shape, chain.shape, chain.dtype, chain.fill_value, codecs=chain.codecs)
        except ShardError:
            return None

    @property
    def is_2022(self) -> bool:
        """True for a hierarchy of the 2022 format, in which no node has the documents of Zarr v2 or v3."""
        return is_2022(self.document)

    @property
    def is_plain(self) -> bool:
        """True for an array without shards whose chunks can be read one by one."""
        return self.plain is not None

    @property
    def is_readable(self) -> bool:
        """True if the objects of the array, shards or chunks, can be read one by one."""
        return self.is_sharded or self.is_plain

    @property
    def object_spec(self) -> ShardSpec:
        """`shard_spec`, or for an array without shards `plain`."""
        return self.shard_spec if self.plain is None else self.plain

    @property
    def why_unread(self) -> str:
        """Why the objects of an array that is not readable cannot be read."""
        if self.problem is not None:
            return self.problem
        if self.layout is not None and any(len(edges) != 1 for edges in self.layout.edges):
            return "its chunks have several shapes (a rectilinear grid), which the tools do not support"
        return "it is not sharded"

    @property
    def shard_grid(self) -> Ints:
        """Number of shards, or of chunks without shards, along each axis; empty without an array."""
        spec = self.plain if self.spec is None else self.spec
        if self.layout is None or spec is None:
            return ()
        return _grid(self.counted_shape, spec.shard_shape)

    @cached_property
    def counted_shape(self) -> Ints:
        """The shape, and along the axis of a killed stream its stored frames beyond it, which belong to the array too."""
        shape = () if self.layout is None else self.layout.shape
        try:
            return shape if self.only is not None else counted_shape(self.folder, shape)
        except OSError:  # the record of a stream that is refused; `verify` finds it
            return shape

    def counted(self, document: Document) -> Document:
        """Return a document of the array with `counted_shape`."""
        return {**document, "shape": list(self.counted_shape)} if self.layout is not None else document

    @property
    def n_grid_shards(self) -> int:
        """Number of shards of the grid, stored or not; 1 for a single shard."""
        return 1 if self.only is not None else math.prod(self.shard_grid)

    def listed_keys(self, left: list[LeftFolder] | None = None) -> Iterator[str] | None:
        """Return the keys of all objects in the folder except metadata, and of folders at the key of a chunk; None without a listing.

        `left` is as for `Store.keys`.
        """
        keys = self.store.listed(self.folder.prefix, with_folders=True, all_of_them=True, left=left)
        return None if keys is None else self._keys_of_objects(keys)

    def _keys_of_objects(self, keys: Iterator[str]) -> Iterator[str]:
        for key in keys:
            name = key.rstrip("/")
            if name != key:
                if self.store.path(key) is not None and self.is_chunk(name):
                    yield name
            elif not self._is_beside_shards(name.removeprefix(self.folder.prefix)):
                yield name

    def _is_beside_shards(self, relative: str) -> bool:
        return relative in DOCUMENTS or (
            relative.startswith(_LOCKS) and kept_number(_name_of(relative)) is None
        )

    def is_chunk_with(self, keys: KeyEncoding, key: str) -> bool:
        """Return True if another key encoding maps a chunk, or the folder of all chunks, to this key."""
        relative = key.removeprefix(self.folder.prefix)
        ndim = 0 if self._geometry is None else self._geometry[1]
        return keys.coords(relative, ndim) is not None or f"{relative}{keys.separator}" == keys.prefix

    def is_chunk(self, key: str) -> bool:
        """Return True for the key of a chunk of the array, sharded or not, stored or not."""
        coords, grid = self._coords(key), self._chunk_grid
        return coords is not None and (grid is None or all(i < n for i, n in zip(coords, grid, strict=True)))

    def may_hold(self, key: str) -> bool:
        """Return True for the key of a chunk, and for that of a folder, with a slash at its end, in which chunks may be."""
        if not key.endswith("/") or self._geometry is None or self._chunk_grid is None:
            return self.is_chunk(key) or key.endswith("/")
        keys = (self._geometry[0].key(at) for at in itertools.product(*map(range, self._chunk_grid)))
        return any(f"{self.folder.prefix}{one}".startswith(key) for one in keys)

    def grid_without(self, key: str) -> Ints | None:
        """Return the grid of the array for the key of a chunk outside of it; None for any other key."""
        return None if self._coords(key) is None or self.is_chunk(key) else self._chunk_grid

    def _coords(self, key: str) -> Ints | None:
        if self._geometry is None:
            return None
        keys, ndim, _ = self._geometry
        return keys.coords(key.removeprefix(self.folder.prefix), ndim)

    @property
    def _chunk_grid(self) -> Ints | None:
        """Number of chunks along each axis; None if the grid is rectilinear, or not known."""
        return None if self._geometry is None else self._geometry[2]

    @cached_property
    def _geometry(self) -> tuple[KeyEncoding, int, Ints | None] | None:
        """Keys, number of axes and grid of the chunks, even if codecs or data type are not supported; None if unknown."""
        if self.layout is not None and self.keys is not None:
            sizes = [axis[0] for axis in self.layout.edges]
            is_regular = all(len(axis) == 1 for axis in self.layout.edges)
            return self.keys, len(self.layout.shape), _grid(self.counted_shape, sizes) if is_regular else None
        try:
            keys = key_encoding(self.document)
        except ShardError:
            return None
        shape: Any = self.document.get("shape")
        chunks: Any = self.document.get("chunks")
        if not _are_sizes(shape, 0) or not (chunks is None or _are_sizes(chunks, 1)):
            return None
        return keys, len(shape), _grid(shape, chunks or ()) if len(chunks or ()) == len(shape) else None

    def shard(self, coords: Ints) -> ShardTarget:
        """Return the shard at a position of the grid, which may be missing."""
        assert self.keys is not None
        return ShardTarget(self, self.folder.prefix + self.keys.key(coords), coords)

    def shards(self) -> Iterator[ShardTarget]:
        """Yield the shards, in the order of the listing; without a listing, also shards that do not exist."""
        return (target for target in self.objects() if isinstance(target, ShardTarget))

    def objects(self) -> Iterator[ShardTarget | ForeignObject]:
        """Yield the shards and all other objects in the folder except metadata, one by one, so that memory is bounded.

        Without shards the chunks take their place.
        """
        left: list[LeftFolder] = []
        if self.only is not None:
            yield ShardTarget(self, *self.only)
        elif not self.is_readable or self.keys is None:
            return
        elif (keys := self.listed_keys(left)) is not None:
            yield from filter(None, map(self._listed, keys))
            for folder in left:
                yield from self._in_left(folder)
        else:
            yield from map(self.shard, itertools.product(*map(range, self.shard_grid)))

    def unnamed(self, other: ForeignObject) -> list[ShardTarget]:
        """Return the shards that a file may be whose name is not that of a shard, and that are not stored.

        For a name of NFS they are those of its folder, for a second name (csrc/io/sc_kept.h) the one whose number it has.
        """
        path = self.store.path(other.key)
        if path is None:
            return []
        shards = map(self.shard, itertools.product(*map(range, self.shard_grid)))
        if is_old_name(other.key):
            folder = other.key.rpartition("/")[0]
            found = (shard for shard in shards if shard.key.rpartition("/")[0] == folder)
        elif (number := kept_number(_name_of(other.key))) is not None:
            locks, of = os.path.dirname(os.path.realpath(path)), native.load().shard_number
            found = (shard for shard in shards if of(locks, os.path.realpath(shard.name)) == number)
        else:
            return []
        return [replace(shard, old_key=other.key) for shard in found if not os.path.lexists(shard.name)]

    def _in_left(self, folder: LeftFolder) -> Iterator[ShardTarget | ForeignObject]:
        """Yield a folder that the listing has not entered, and the shards that it may have."""
        name = self.store.path(folder.key) or folder.key
        is_unreadable = folder.error is not None
        yield ForeignObject(name, folder.key, folder.reason, is_unreadable=is_unreadable)
        if is_unreadable:
            for shard in map(self.shard, itertools.product(*map(range, self.shard_grid))):
                if shard.key.startswith(f"{folder.key}/" if folder.key else ""):
                    yield shard

    def _listed(self, key: str) -> ShardTarget | ForeignObject | None:
        """Return the target for a key; None for the undo journal of a shard beside it, and for the record of a stream."""
        assert self.keys is not None
        grid = self.shard_grid
        coords = self.keys.coords(key.removeprefix(self.folder.prefix), len(grid))
        if coords is not None and all(i < n for i, n in zip(coords, grid, strict=True)):
            return ShardTarget(self, key, coords)
        if key == self.folder.prefix + RECORD_NAME:
            return None
        path = self.store.path(key)
        if _LOCKS in key and kept_number(_name_of(key)) is not None:
            second = ForeignObject(path or key, key, "it is a second name of a shard")
            return second if self.unnamed(second) else None
        if (is_stray := is_stray_journal(key, path)) is not None:
            reason = "it is the undo journal of another file"
            return ForeignObject(path or key, key, reason, is_journal=True) if is_stray else None
        name = "chunk" if self.is_plain else "shard"
        reason = (
            f"its key is not the key of a {name}"
            if coords is None
            else f"it is outside the grid of {name}s {grid}"
        )
        return ForeignObject(path or key, key, reason)


def _name_of(key: str) -> str:
    return key.rpartition("/")[2]


def _are_sizes(given: Any, least: int) -> bool:
    return isinstance(given, list | tuple) and all(type(n) is int and n >= least for n in given)


def _grid(shape: Ints, sizes: Sequence[int]) -> Ints:
    return tuple(-(-n // size) for n, size in zip(shape, sizes, strict=True))


def array_target(name: str, folder: Folder, document: Document) -> ArrayTarget:
    """Return the target for an array and its document. An array that cannot be read has a `problem`."""
    target = ArrayTarget(name, folder, document)
    if target.is_2022:
        return replace(target, problem=_PROBLEM_2022)
    try:
        parsed = byte_document(document)
        layout = parsed.layout
        target = replace(target, layout=layout, keys=key_encoding(document), bytes=parsed)
        spec = _spec(parsed)
    except ShardError as error:
        return replace(target, problem=error.message, is_malformed=isinstance(error, SpecError))
    if spec is None:
        return target
    problem = None
    if any(len(edges) != 1 for edges in layout.edges):
        problem = "expected shards of one shape, got a rectilinear grid, which the tools do not support"
    elif not spec.supports_partial_access:
        problem = "codecs after sharding_indexed encode whole shards and hide their inner chunks"
    return replace(target, spec=spec, problem=problem)


def _spec(parsed: ByteDocument) -> ShardSpec | None:
    """Return the encoding of the shards; None if the array is not sharded."""
    chain = parsed.chain
    if chain.sharding is not None:
        return ShardSpec.from_chain(chain)
    is_moved = parsed.data_type is not None and parsed.stored.get("zarr_format") == 3
    if parsed.codec is not None and not is_moved:
        ChainSpec.from_metadata(parsed.stored)  # raises the error of this codec or data type
    return None


def lone_shard(folder: Folder, key: str, spec: ShardSpec) -> ArrayTarget:
    """Return the target for a shard without an array."""
    return ArrayTarget("", folder, {}, spec=spec, only=(key, None))


def lasting_state(store: Store, key: str) -> str | None:
    """Return the name of the state of an object that is valid in all processes; None if there is none."""
    states = store.states_of([key])
    if states is not None:
        return states[0]
    if not store.has_lasting_states:
        return None
    with as_os_error(store.describe, key):
        answer = store.wait(store.get_range(key, 0, 1))
    return (
        None if answer is None or answer.nbytes is None else store.lasting_state(answer.nbytes, answer.state)
    )
