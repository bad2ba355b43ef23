# decoded_source.py - arrays that zarr decodes, as sources
# SPDX-License-Identifier: MIT
"""`DecodedSource`: an array with codecs or a grid that the engine does not have. An error of zarr names the object that caused it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ...access.box_reader import Folder
from ...errors import CodecError, ShardError
from ...format.chunk_keys import key_encoding
from ...storage.files import open_file
from .object_source import ObjectSource, fields_of
from .stored_objects import StoredObjects

__all__ = ["DecodedSource", "decoded_source"]

Ints = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class DecodedSource(ObjectSource):
    """An array that zarr decodes; its objects are in `folder`."""

    folder: Folder = field(kw_only=True)

    def read(self, start: Ints, out: np.ndarray[Any, Any]) -> None:
        parts = None if self.stored is None else self.stored.parts(start, out, self.fill_value)
        for first, part in [(start, out)] if parts is None else parts:
            self._check_objects(first, part.shape)
            super().read(first, part)

    def _check_objects(self, start: Ints, shape: Ints) -> None:
        """Open the objects of a box; zarr would read a folder or a link to nothing as an object that does not exist."""
        for coords in self._objects(start, shape):
            (key,) = self.folder.keys([self.values.metadata.encode_chunk_key(coords)])
            path = self.folder.store.path(key)
            if path is not None and (opened := open_file(path)) is not None:
                opened.close()

    def located(self, error: Exception, start: Ints, shape: Ints) -> Exception:
        """Return the error of the first object of a box that zarr cannot read, with path and position of the object."""
        for coords in self._objects(start, shape):
            try:
                self.values[self._inside(coords)]
            except MemoryError:
                break
            except Exception as cause:  # noqa: BLE001 - whatever a codec of zarr raises
                return self._of_object(cause, coords)
        return super().located(error, start, shape)

    def _of_object(self, error: Exception, coords: Ints) -> Exception:
        (key,) = self.folder.keys([self.values.metadata.encode_chunk_key(coords)])
        name = self.folder.store.describe(key)
        detail = f"object {name!r} at {coords} of the grid: {type(error).__name__}: {error}"
        if isinstance(error, OSError):
            return OSError(detail)
        return CodecError(detail, shard=name, chunk_coords=coords)

    def _objects(self, start: Ints, shape: Ints) -> Iterator[Ints]:
        """Yield the positions of the objects of a box; none if they have several shapes."""
        sizes = self.object_shape
        if sizes is not None:
            ranges = (range(a // n, -(-(a + k) // n)) for a, k, n in zip(start, shape, sizes, strict=True))
            yield from itertools.product(*ranges)

    def _inside(self, coords: Ints) -> tuple[slice, ...]:
        assert self.object_shape is not None
        sizes = zip(coords, self.object_shape, self.shape, strict=True)
        return tuple(slice(at * n, min((at + 1) * n, limit)) for at, n, limit in sizes)

    @property
    def shard_shape(self) -> Ints | None:
        try:
            return getattr(self.values, "shards", None)
        except NotImplementedError:  # shards of different shapes
            return None

    @property
    def object_shape(self) -> Ints | None:
        """Shape of the elements of one stored object; None if they have several."""
        try:
            return None if self.chunks is None else self.values.shards or self.chunks
        except NotImplementedError:
            return None


def decoded_source(values: Any, name: str, folder: Folder, **known: Any) -> DecodedSource:
    """Return the source for an opened array of zarr; `known` are fields that the caller knows better.

    Raises `UnsupportedError` for a data type that shardcodec does not have.
    """
    source = DecodedSource(name, repr(folder), **fields_of(values, **known), folder=folder)
    size = source.object_shape
    if size is None or not source.shape:
        return source
    try:
        keys = key_encoding(values.metadata.to_dict())
    except ShardError:  # zarr may have more encodings
        return source
    return replace(source, stored=StoredObjects(folder, keys, source.shape, size))
