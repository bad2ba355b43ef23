# foreign_codecs.py - `ZarrCodecs`: zarr's codec objects as the codecs of staged work
# SPDX-License-Identifier: MIT
"""Codecs without native code: the codec objects of zarr, called as zarr calls them.

Most codecs of zarr 3.3 and later can be called in any thread with one chunk at a time. The other ones are coroutines; they
run in batches on zarr's own event loop. Staged work never blocks that loop.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from .. import native
from ..access.regions import as_void
from ..compat import (
    ArraySpec,
    array_spec,
    batched_pipeline,
    buffer_from,
    evolve,
    is_synchronous,
    on_zarrs_loop,
    quiet,
)

__all__ = ["ZarrCodecs"]


class ZarrCodecs:
    """A chain of codecs for chunks of one shape; see `access.staged.read.ChunkCodecs`.

    Parameters
    ----------
    codecs : iterable of zarr.abc.codec.Codec
        The codecs, in the order of encoding.
    shape : tuple of int
        Shape of a chunk.
    dtype, fill_value
        Data type and fill value, as in zarr's metadata.
    """

    def __init__(self, codecs: Iterable[Any], shape: tuple[int, ...], dtype: Any, fill_value: Any) -> None:
        # the spec passes the option write_empty_chunks to a sharding codec in the chain
        self._specs = {flag: array_spec(shape, dtype, fill_value, write_empty=flag) for flag in (False, True)}
        links = {flag: list(evolve(codecs, spec)) for flag, spec in self._specs.items()}
        self._links: dict[bool, list[tuple[Any, ArraySpec]]] = links
        self._pipeline = batched_pipeline([codec for codec, _ in links[False]])
        self._prototype = self._specs[False].prototype
        self.fill = _element(dtype.to_native_dtype(), fill_value)
        self.one_by_one = all(is_synchronous(codec) for codec, _ in links[False])

    @cached_property
    def input_dtype(self) -> np.dtype[Any]:
        """The data type in which `encode` reads a chunk: it is the one in which `decode` returns it.

        The order differs from that of the array if a filter reinterprets memory and names a data type of the other order.
        Only then a chunk is encoded to find out.
        """
        dtype: np.dtype[Any] = self.fill.dtype
        order = "<" if (dtype.byteorder == "=" and sys.byteorder == "little") else dtype.byteorder
        if all(mentioned == order for codec, _ in self._links[False] for mentioned in _named_orders(codec)):
            return dtype
        chunk = np.empty(self._specs[False].shape, dtype=dtype)
        chunk[...] = self.fill
        with quiet():
            (decoded,) = self.decode(self.encode([chunk], True), [chunk.shape])
        named: np.dtype[Any] = decoded.dtype
        return named if named.newbyteorder("=") == dtype.newbyteorder("=") else dtype

    def decode(self, chunks: Sequence[Any], shapes: Sequence[tuple[int, ...]]) -> list[np.ndarray[Any, Any]]:
        """Decode buffers. `shapes` is not used: the codecs know their one shape."""
        buffers = [buffer_from(self._prototype, chunk) for chunk in chunks]
        if not self.one_by_one:
            spec = self._specs[False]
            buffers = list(on_zarrs_loop(self._pipeline.decode([(buffer, spec) for buffer in buffers])))
        else:
            for codec, spec in reversed(self._links[False]):
                buffers = [codec._decode_sync(buffer, spec) for buffer in buffers]
        return [buffer.as_numpy_array() for buffer in buffers]

    def encode(self, chunks: Sequence[np.ndarray[Any, Any]], write_empty: bool) -> list[Any]:
        """Encode arrays to buffers; None for a chunk that a codec does not store."""
        buffers: list[Any] = [self._prototype.nd_buffer.from_numpy_array(chunk) for chunk in chunks]
        links = self._links[write_empty]
        if not self.one_by_one:
            buffers = on_zarrs_loop(self._encode_batch(buffers, links))
        else:
            for codec, spec in links:
                buffers = self._in_c_order(buffers)
                buffers = [None if buffer is None else codec._encode_sync(buffer, spec) for buffer in buffers]
        return [None if buffer is None else buffer.as_numpy_array() for buffer in buffers]

    async def _encode_batch(self, buffers: list[Any], links: Sequence[tuple[Any, ArraySpec]]) -> list[Any]:
        for codec, spec in links:
            buffers = list(await codec.encode([(buffer, spec) for buffer in self._in_c_order(buffers)]))
        return buffers

    def _in_c_order(self, buffers: Sequence[Any]) -> list[Any]:
        """Copy arrays to C order if needed: a transpose returns a view, but codecs of numcodecs store elements in memory order."""
        return [
            buffer
            if buffer is None or (array := buffer.as_numpy_array()).flags.c_contiguous
            else self._prototype.nd_buffer.from_numpy_array(np.ascontiguousarray(array))
            for buffer in buffers
        ]

    def is_fill(self, chunk: np.ndarray[Any, Any]) -> bool:
        """Return True if all elements of a chunk equal the fill value: objects by value, any NaN as NaN, others bit by bit."""
        chunk = chunk.astype(self.fill.dtype, copy=False)
        if chunk.dtype.kind == "f" and np.isnan(self.fill):
            return bool(np.isnan(chunk).all())
        if chunk.dtype.kind in "OT":
            return bool(self._prototype.nd_buffer.from_numpy_array(chunk).all_equal(self.fill[()]))
        return bool(native.load().all_equal(np.ascontiguousarray(as_void(chunk)), self.fill.tobytes()))


def _named_orders(codec: Any) -> list[str]:
    """Return the byte orders in the data types that a codec's configuration names."""
    return re.findall(r"'([<>])[a-zA-Z]\d", str(codec.to_dict().get("configuration")))


def _element(dtype: np.dtype[Any], value: Any) -> np.ndarray[Any, Any]:
    """Return an element as an array of rank 0, which numpy copies bit by bit; a scalar could lose bits."""
    element = np.empty((), dtype=dtype)
    element[()] = value  # raises if the value does not fit the data type
    return element if dtype.kind in "OT" else np.asarray(value, dtype=dtype)
