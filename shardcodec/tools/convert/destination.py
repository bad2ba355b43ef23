# destination.py - one new array that convert writes
# SPDX-License-Identifier: MIT
"""`NewArray`: the shards of one new array, before it has metadata."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ... import native
from ...access.box_reader import ArrayObjects, Folder
from ...access.compiled_chains import compiled
from ...access.shard_object import open_object
from ...access.shard_writer import ShardWriter
from ...format.byte_document import ByteDocument, byte_document
from ...format.chunk_keys import KeyEncoding, key_encoding
from ...format.dtypes import DType
from ...format.spec import ChainSpec, ShardSpec
from ...options import Options, in_force
from ..new_hierarchy import NewHierarchy
from ..report import Record
from ..targets import lasting_state
from .layout import chunks_of
from .source import Ints, file_state

__all__ = ["NewArray", "ShardState"]


@dataclass(frozen=True)
class ShardState(Record):
    """The identity of a stored shard: its size, 0 without an object; the state of its file or entity tag, if the store has one.

    `index_crc` is the CRC-32C of the stored checksum of the index, followed by the entries. In the stored order it would be the same
    number for all indexes. None for a chunk that is not a shard.
    """

    nbytes: int
    state: str | None = None
    index_crc: int | None = None


class NewArray:
    """One new array of a hierarchy, before it has metadata; `name` is its path there, `document` its ``zarr.json``."""

    def __init__(
        self, hierarchy: NewHierarchy, name: str, document: Mapping[str, Any], options: Options
    ) -> None:
        self._hierarchy, self._options = hierarchy, options
        self.name = name
        self.folder: Folder = hierarchy.folder(name)
        self.keys: KeyEncoding = key_encoding(document)
        self.bytes: ByteDocument = byte_document(document)
        self.shape: Ints = self.bytes.layout.shape
        self.chain: ChainSpec = self.bytes.chain
        self.dtype: DType = self.chain.dtype
        self._objects = ArrayObjects(self.folder, self.keys, self.shape, compiled(self.chain), self.dtype)

    @cached_property
    def spec(self) -> ShardSpec | None:
        """Encoding of a shard; None if the array is not sharded."""
        return None if self.chain.sharding is None else ShardSpec.from_chain(self.chain)

    @cached_property
    def chunk_shape(self) -> Ints:
        """Shape of an inner chunk by axis of the array, or of a chunk."""
        return chunks_of(self.chain)

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
        return self._objects.held_nbytes

    def key(self, coords: Ints) -> str:
        """Return the key of a shard in the store."""
        return self.folder.prefix + self.keys.key(coords)

    def _path(self, coords: Ints) -> str:
        """Return the path of a shard below the root of the hierarchy."""
        key = self.keys.key(coords)
        return f"{self.name}/{key}" if self.name else key

    def describe(self, coords: Ints) -> str:
        """Return path or key of a shard, for messages."""
        return self.folder.store.path(self.key(coords)) or self.key(coords)

    @contextmanager
    def writer(self, coords: Ints) -> Iterator[ShardWriter]:
        """Open the writer of one shard in a with block, at whose end the shard is stored; without inner chunks none is, and an old one is removed."""
        assert self.spec is not None
        with in_force(self._options):
            writer = self._hierarchy.writer(self._path(coords), self.spec)
        try:
            yield writer
            if self.has_chunks(writer):
                self._hierarchy.before_store()
                writer.commit()
            else:
                self.remove(coords)
        finally:
            writer.abort()  # it does nothing after a commit

    @staticmethod
    def has_chunks(writer: ShardWriter) -> bool:
        """Return True if a writer without header has got inner chunks."""
        spec = writer.spec
        return writer.nbytes > (spec.index_nbytes if spec.index_location == "start" else 0)

    def write(self, first: Ints, values: np.ndarray[Any, Any], shards: Sequence[Ints]) -> None:
        """Write some shards of a box of whole ones that begins at shard `first`; those with the fill value only are not stored.

        Cells of `values` outside of the array have the fill value.
        """
        self._hierarchy.before_store()
        self._objects.write(first, values, set(shards), self._options)

    def put(self, coords: Ints, data: bytes) -> None:
        """Store the object of an array that is not sharded."""
        self._hierarchy.before_store()
        self._hierarchy.put(
            self._path(coords), data, sync=self._options.durability == "fsync", may_replace=True
        )

    def remove(self, coords: Ints) -> None:
        """Remove a shard that a killed run may have stored."""
        self._hierarchy.before_store()
        self._hierarchy.remove(self._path(coords))

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
                nbytes, n_pairs = self.spec.index_nbytes, 16 * self.spec.n_chunks
                offset = 0 if self.spec.index_location == "start" else view.nbytes - nbytes
                index = memoryview(view.range(offset, nbytes))
                index_crc = native.load().crc32c(index[:n_pairs], native.load().crc32c(index[n_pairs:]))
            return ShardState(view.nbytes, self._name_of_state(key), index_crc)
        finally:
            view.close()

    def _name_of_state(self, key: str) -> str | None:
        path = self.folder.store.path(key)
        return lasting_state(self.folder.store, key) if path is None else file_state(path)

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
        return self._objects.read(coords, start, shape, self._options)
