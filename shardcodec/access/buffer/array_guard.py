# array_guard.py - the layout of an array that has buffered writes
# SPDX-License-Identifier: MIT
"""`ArrayGuard`: compares the layout that the buffered writes of an array were made for with the one that is stored now."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from ...compat import ArrayMetadata, chunk_shape_of, is_regular, metadata_from, quiet, stored_document
from ...errors import ShardError
from ...format.chunk_keys import key_encoding
from ...format.ml_types import ML_NBYTES
from ...storage import budget
from ...storage.store import Store

if TYPE_CHECKING:
    from .buffered import StoredLayout

__all__ = ["ArrayGuard"]

Ints = tuple[int, ...]

# A data type and a fill value that zarr cannot read.
Replaced: TypeAlias = tuple[str, str] | None

# The members of a zarr.json and of a .zarray that say how elements become objects.
_LAYOUT_V3 = ("data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs", "storage_transformers")
_LAYOUT_V2 = ("dtype", "chunks", "dimension_separator", "fill_value", "order", "filters", "compressor")


class ArrayGuard:
    """The layout of an array, as its handle has it; a `LayoutGuard`. folder: path of the array in the store."""

    def __init__(self, metadata: ArrayMetadata, store: Store, folder: str) -> None:
        self._metadata = metadata
        self._replaced: Replaced = None
        self._store = store
        self._folder = folder

    @classmethod
    def of_document(cls, document: Mapping[str, Any], store: Store, folder: str) -> Self:
        """Return the guard of an array from its document."""
        metadata, replaced = _parsed(document)
        guard = cls(metadata, store, folder)
        guard._replaced = replaced
        return guard

    @property
    def name(self) -> str:
        """Name of the array for messages."""
        return self._store.describe(self._folder)

    @cached_property
    def identity(self) -> Hashable:
        """Equal for handles on one array with one layout."""
        return self.name, self._layout, self._replaced

    @cached_property
    def _layout(self) -> str:
        return _layout_of(self._metadata)

    async def look(self) -> StoredLayout:
        """Read the document of the array; see `LayoutGuard`."""
        name = "zarr.json" if self._metadata.zarr_format == 3 else ".zarray"
        permits = budget.of_store(self._store.budget_name).requests
        async with permits.hold(1, self._store.limits().n_requests):
            answer = await self._store.get(f"{self._folder}/{name}" if self._folder else name)
        document: Any = None if answer is None else json.loads(bytes(answer.data))
        if document is None or document.get("node_type", "array") != "array":
            return _Void("the array has been deleted")
        stored, replaced = _parsed(document)
        if replaced != self._replaced or not self._is_layout_of(stored):
            return _Void("the array has been made anew, with another layout")
        return _Grid(stored)

    def _is_layout_of(self, stored: ArrayMetadata) -> bool:
        if is_regular(stored) or stored.shape == self._metadata.shape:
            return _layout_of(stored) == self._layout
        # a resize has changed the grid
        return _layout_of(stored, grid=False) == _layout_of(self._metadata, grid=False)


def _parsed(document: Mapping[str, Any]) -> tuple[ArrayMetadata, Replaced]:
    """Return the metadata of an array as zarr reads them.

    If zarr does not have the data type, which is one of `ml_dtypes`, an integer of the same size replaces it; then the second
    result is the data type and the fill value.
    """
    member = "dtype" if document.get("zarr_format") == 2 else "data_type"
    name = document.get(member)
    try:
        return metadata_from(document), None
    except ValueError:
        if not isinstance(name, str) or name not in ML_NBYTES:
            raise
    integer = f"uint{8 * ML_NBYTES[name]}"
    known = {**document, member: integer if member == "data_type" else np.dtype(integer).str, "fill_value": 0}
    return metadata_from(known), (name, str(document.get("fill_value")))


def _layout_of(metadata: ArrayMetadata, *, grid: bool = True) -> str:
    with quiet():
        # zarr unpickles a codec "bytes" without byte order as one with "little", and parses it without
        document = stored_document(metadata_from(stored_document(metadata)))
    members = _LAYOUT_V3 if metadata.zarr_format == 3 else _LAYOUT_V2
    return json.dumps(
        {name: document.get(name) for name in members if grid or name != "chunk_grid"}, sort_keys=True
    )


class _Void:
    """An array that is another one by now."""

    def __init__(self, why: str) -> None:
        self._why = why

    def why_void(self, key: str) -> str | None:
        return self._why

    def inside(self, key: str) -> Ints | None:
        return None


class _Grid:
    """The chunk grid of an array as it is stored now."""

    def __init__(self, metadata: ArrayMetadata) -> None:
        self._shape = metadata.shape
        self._chunk_shape = chunk_shape_of(metadata)
        try:
            with quiet():
                self._keys = key_encoding(metadata.to_dict())
        except ShardError:  # an encoding of a third party
            self._chunk_shape = None

    def why_void(self, key: str) -> str | None:
        """Return why an object is not of the array; None if it is, or if only zarr can tell."""
        if all(n > 0 for n in self.inside(key) or ()):
            return None
        return f"the array has become smaller, its shape is {self._shape}"

    def inside(self, key: str) -> Ints | None:
        """Return the extents of the part of an object that lies within the array; None if only zarr can tell."""
        if self._chunk_shape is None:
            return None
        rank = len(self._shape)
        n_parts = self._keys.key((0,) * rank).count("/") + 1
        coords = self._keys.coords("/".join(key.split("/")[-n_parts:]), rank)
        if coords is None:
            return None
        rows = zip(coords, self._chunk_shape, self._shape, strict=True)
        return tuple(min(extent, size - at * extent) for at, extent, size in rows)
