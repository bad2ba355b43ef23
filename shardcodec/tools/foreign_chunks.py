# foreign_chunks.py - chunks that a native chain does not decode
# SPDX-License-Identifier: MIT
"""Chunks that a native chain does not decode."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from zarr import Array, AsyncArray

from ..access.array_reader import ArrayReader
from ..access.text_chunks import TextCodecs
from ..compat import LocalStore, StorePath, inner_codecs_of, metadata_from, open_with_any_grid
from ..errors import SpecError, UnsupportedError
from ..format.text import text_array
from ..zarr_plugin.array_codecs import ZarrCodecs
from .targets import ArrayTarget

__all__ = ["ForeignChunks", "elements_of", "opened_by_zarr", "type_of"]


class ForeignChunks:
    """The codecs of the inner chunks of an array; of the innermost ones if inner chunks are shards. Those of text are native, others zarr's.

    Those of an array without shards are the codecs of its chunks.

    Attributes
    ----------
    shape : tuple of int
        Shape of a chunk, as it is stored.
    fill : ndarray
        The fill value, an array of rank 0 with the dtype of decoded chunks.
    """

    def __init__(self, codecs: ZarrCodecs | TextCodecs, shape: tuple[int, ...]) -> None:
        self._codecs = codecs
        self.shape = shape
        self.fill: np.ndarray[Any, Any] = codecs.fill

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self | None:
        """Return the codecs of a ``zarr.json`` or a ``.zarray``; None if this version of zarr lacks the data type or a codec."""
        with contextlib.suppress(SpecError, UnsupportedError):
            if (array := text_array(document)) is not None:
                spec = array.spec()
                return cls(TextCodecs.of(array, spec), (spec.inner or spec).shape)
        inner = inner_codecs_of(document)
        if inner is None:
            return None
        codecs, shape, dtype, fill_value = inner
        return cls(ZarrCodecs(codecs, shape, dtype, fill_value), shape)

    def decode(self, data: Any) -> np.ndarray[Any, Any]:
        """Decode a chunk. For a damaged chunk, zarr's codecs raise any exception."""
        (chunk,) = self._codecs.decode([data], [self.shape])
        if chunk.shape != self.shape:
            raise ValueError(f"expected a chunk of shape {self.shape}, got {chunk.shape}")
        return chunk

    def encode(self, chunk: np.ndarray[Any, Any]) -> bytes | None:
        """Encode a chunk; None if all elements have the fill value."""
        if self._codecs.is_fill(chunk):
            return None
        (data,) = self._codecs.encode([chunk], False)
        return None if data is None else bytes(data)


def opened_by_zarr(array: ArrayTarget) -> Any:
    """Return the `zarr.Array` of an array; errors are zarr's."""
    store, prefix = array.folder.store, array.folder.prefix.rstrip("/")
    root = store.path(prefix)
    taken = {} if array.folder.spare is None else array.folder.spare.taken
    if any(f"{array.folder!r}/{name}" in taken for name in ("zarr.json", ".zarray")):
        place = StorePath(store.place, prefix) if root is None else StorePath(LocalStore(root))
        return Array(AsyncArray(metadata_from(array.document), place))
    return open_with_any_grid(StorePath(store.place, prefix) if root is None else root)


def elements_of(array: ArrayTarget, threads: int | None = None) -> Any:
    """Return the elements of an array: an object with shape, dtype, chunks, shards and `__getitem__`.

    Elements of a type that numpy does not have, such as bfloat16, are raw bytes or integers of the same bits.

    Raises
    ------
    UnsupportedError
        Neither the engine nor zarr decodes the array.
    """
    document = None if array.bytes is None else array.counted(array.bytes.document)
    try:
        if array.foreign_codec is None and (array.bytes is None or array.bytes.has_fill):
            return ArrayReader(array.folder, threads, None, False, document=document)
    except UnsupportedError:
        pass  # zarr may have the codecs
    try:
        opened = opened_by_zarr(array)
        if array.layout is not None and any(len(edges) != 1 for edges in array.layout.edges):
            return _IrregularElements(opened, tuple(max(axis, default=1) for axis in array.layout.edges))
        return opened
    except Exception as error:
        raise UnsupportedError(
            f"array {array.place}: expected elements that shardcodec or zarr can decode, got {array.data_type}"
            f"{f' with the codec {array.foreign_codec}' if array.foreign_codec else ''} ({type(error).__name__})"
        ) from error


class _IrregularElements:
    """The elements of an array whose chunks have several shapes; `chunks` is as large as the largest."""

    shards = None

    def __init__(self, values: Any, chunks: tuple[int, ...]) -> None:
        self.shape, self.dtype, self.chunks = values.shape, values.dtype, chunks
        self._values = values

    def __getitem__(self, box: Any) -> Any:
        return self._values[box]


def type_of(array: ArrayTarget, elements: Any) -> str:
    """Return the name of the data type of the elements of an array, in native byte order."""
    if array.foreign_type is not None:
        return array.foreign_type
    return "string" if elements.dtype.kind in "OT" else str(elements.dtype.newbyteorder("="))
