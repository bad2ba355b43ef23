# foreign_chunks.py - elements and inner chunks of arrays that only zarr decodes
# SPDX-License-Identifier: MIT
"""Elements and inner chunks of arrays with data types or codecs that the engine does not have, decoded by zarr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from ..access.array_reader import ArrayReader
from ..compat import StorePath, inner_codecs_of, open_with_any_grid
from ..errors import UnsupportedError
from ..zarr_plugin.array_codecs import ZarrCodecs
from .targets import ArrayTarget

__all__ = ["ForeignChunks", "elements_of", "opened_by_zarr", "type_of"]


class ForeignChunks:
    """Zarr's codecs of the inner chunks of an array; of the innermost ones if inner chunks are shards.

    Attributes
    ----------
    shape : tuple of int
        Shape of a chunk, as it is stored.
    fill : ndarray
        The fill value, an array of rank 0 with the dtype of decoded chunks.
    """

    def __init__(self, codecs: ZarrCodecs, shape: tuple[int, ...]) -> None:
        self._codecs, self.shape, self.fill = codecs, shape, codecs.fill

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self | None:
        """Return the codecs of a ``zarr.json``; None if this version of zarr lacks the data type or a codec."""
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
        return None if data is None else data.tobytes()


def opened_by_zarr(array: ArrayTarget) -> Any:
    """Return the `zarr.Array` of an array; errors are zarr's."""
    store = array.store
    root = store.path(array.folder.prefix.rstrip("/"))
    base: Any = root if root is not None else StorePath(store.place, array.folder.prefix.rstrip("/"))
    return open_with_any_grid(base)


def elements_of(array: ArrayTarget, threads: int | None = None) -> Any:
    """Return the elements of an array: an object with shape, dtype, chunks, shards and `__getitem__`.

    Elements of a type that numpy does not have, such as bfloat16, are raw bytes.

    Raises
    ------
    UnsupportedError
        Neither the engine nor zarr decodes the array.
    """
    document = None if array.bytes is None else array.bytes.document
    try:
        if array.foreign_codec is None and (array.bytes is None or array.bytes.has_fill):
            return ArrayReader(array.folder, threads, None, False, document=document)
    except UnsupportedError:
        pass  # zarr may have the codecs
    try:
        return opened_by_zarr(array)
    except Exception as error:
        raise UnsupportedError(
            f"array {array.place}: expected elements that shardcodec or zarr can decode, got {array.data_type} with the codec "
            f"{array.foreign_codec or 'bytes'} ({type(error).__name__})"
        ) from error


def type_of(array: ArrayTarget, elements: Any) -> str:
    """Return the name of the data type of the elements of an array, in native byte order."""
    if array.foreign_type is not None:
        return array.foreign_type
    return "string" if elements.dtype.kind in "OT" else str(elements.dtype.newbyteorder("="))
