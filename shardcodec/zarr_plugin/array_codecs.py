# array_codecs.py - which arrays are native, staged, or left to zarr; zarr's codec objects
# SPDX-License-Identifier: MIT
"""`kind_of`: whether an array is native, staged, or left to zarr.

`NativeKind`: every codec has native code. `TextKind`: the same for elements of any length. `StagedKind`: a sharded array with
other codecs. Its shard part is native if possible:

    codecs within the shards        inner chunks are fetched natively and decoded by zarr's codec objects, one by one
    codecs around the sharding      the object is one chunk; our `ShardingCodec` decodes the shard between them

The chunks of a rectilinear grid have several shapes. Each shape has its own chain; the last used ones are kept.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..access.compiled_chains import compiled, memory_order, staged_shard, staged_whole
from ..access.regions import as_void
from ..compat import (
    ArrayMetadata,
    ArraySpec,
    array_spec,
    batched_pipeline,
    buffer_from,
    codecs_of,
    dtype_of,
    evolve,
    foreign_codec,
    is_sharding,
    is_synchronous,
    is_transpose,
    on_zarrs_loop,
    quiet,
    replaced_part,
)
from ..errors import ShardError, SpecError, UnsupportedError, is_of_signal_handler
from .request import Refusal

if TYPE_CHECKING:
    from .._native import Chain


__all__ = [
    "Kind",
    "NativeKind",
    "StagedKind",
    "TextKind",
    "ZarrCodecs",
    "kind_of",
]


# Codecs without native code: the codec objects of zarr, called as zarr calls them.
#
# Most codecs of zarr 3.3 and later can be called in any thread with one chunk per call. The other ones are coroutines; they
# run in batches on zarr's own event loop. Staged work never blocks that loop.


class ZarrCodecs:
    """A chain of codecs for chunks of one shape, in the order of encoding; see `access.staged.read.ChunkCodecs`.

    dtype, fill_value: as in zarr's metadata.
    """

    def __init__(self, codecs: Iterable[Any], shape: tuple[int, ...], dtype: Any, fill_value: Any) -> None:
        # the spec passes the option write_empty_chunks to a sharding codec in the chain
        self._specs = {flag: array_spec(shape, dtype, fill_value, write_empty=flag) for flag in (False, True)}
        links = {flag: list(evolve(codecs, spec)) for flag, spec in self._specs.items()}
        self._links: dict[bool, list[tuple[Any, ArraySpec]]] = links
        self._pipeline = batched_pipeline([codec for codec, _ in links[False]])
        self._prototype = self._specs[False].prototype
        self.fill: np.ndarray[Any, Any] = _element(dtype.to_native_dtype(), fill_value)
        self.one_by_one: bool = all(is_synchronous(codec) for codec, _ in links[False])

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


# Number of chains kept for one array, by shape and byte order; a rectilinear grid may have any number of shapes.
MAX_CHAINS = 64


class Kind:
    """Common base of the kinds of arrays. dtype: that of the elements, in either byte order.

    chain: takes the shape of a chunk, and True if the elements in memory have native byte order; returns the compiled chain or
    raises `Refusal`.
    """

    dtype: Any
    chain: Callable[[tuple[int, ...], bool], Chain]

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        self.chain = functools.lru_cache(MAX_CHAINS)(self._checked_chain)

    def chain_for(self, shape: tuple[int, ...], dtype: Any) -> Chain | None:
        """Return the chain for chunks of this shape and elements of `dtype` in memory; None if zarr handles them."""
        native_order = memory_order(dtype, self.dtype)
        if native_order is None:
            return None
        try:
            return self.chain(shape, native_order)
        except Refusal:
            return None

    def _checked_chain(self, shape: tuple[int, ...], native_order: bool) -> Chain:
        try:
            return self._make_chain(shape, native_order)
        except ShardError as error:
            if isinstance(error, SpecError) and _is_indivisible(error):
                raise
            raise Refusal(str(error)) from error

    def _make_chain(self, shape: tuple[int, ...], native_order: bool) -> Chain:
        raise NotImplementedError


class NativeKind(Kind):
    """An array whose codecs all have native code."""

    def __init__(self, metadata: ArrayMetadata) -> None:
        from ..format.spec import ChainSpec  # here, for the same reason as in `access.inner_chunks`

        self._spec = ChainSpec.from_metadata(metadata.to_dict())
        if metadata.fill_value is not None:
            # JSON has one NaN; the fill value in memory has the exact bits
            self._spec = replace(self._spec, fill_value=metadata.fill_value)
        if memory_order(dtype_of(metadata), self._spec.dtype) is None:
            raise UnsupportedError(f"expected a packed data type, got {dtype_of(metadata)}")
        super().__init__(self._spec.dtype)

    def _make_chain(self, shape: tuple[int, ...], native_order: bool) -> Chain:
        spec = self._spec if self._spec.shape == shape else self._spec.with_shape(shape)
        return compiled(spec, native_order, any_nan=True)


class TextKind(Kind):
    """An array of text or bytes of any length, sharded or not, whose codecs all have native code."""

    def __init__(self, metadata: ArrayMetadata) -> None:
        from ..access.text_chunks import TextCodecs
        from ..format.text import text_array

        super().__init__(dtype_of(metadata))
        array = text_array(metadata.to_dict())
        if array is None:
            raise UnsupportedError(f"expected text or bytes of any length, got {self.dtype}")
        fill = array.fill_value if metadata.fill_value is None else metadata.fill_value
        self._spec = array.spec()
        self._codecs = TextCodecs(
            self._spec.inner or self._spec,
            array.is_text,
            _element(self.dtype, fill),
            skips_fill=metadata.fill_value is not None,
        )

    def _make_chain(self, shape: tuple[int, ...], native_order: bool) -> Chain:
        from ..access.text_chunks import text_chain

        return text_chain(self._spec.with_shape(shape), self._codecs)


class StagedKind(Kind):
    """A sharded array with codecs that have no native code."""

    def __init__(self, metadata: Any) -> None:
        super().__init__(dtype_of(metadata))
        self._zdtype = metadata.data_type
        self._fill_value = metadata.fill_value
        place = next(i for i, codec in enumerate(metadata.codecs) if is_sharding(codec))
        sharding: Any = metadata.codecs[place]
        self._sharding = sharding
        if foreign := foreign_codec(sharding.index_codecs):
            raise Refusal(f"codec class {foreign} for an index")
        self._before = metadata.codecs[:place]
        self._after = metadata.codecs[place + 1 :]
        self._inner = self._codecs(sharding.codecs, sharding.chunk_shape)

    def _codecs(self, codecs: Any, shape: tuple[int, ...]) -> ZarrCodecs:
        return ZarrCodecs(codecs, tuple(shape), self._zdtype, self._fill_value)

    def _make_chain(self, shape: tuple[int, ...], native_order: bool) -> Chain:
        if self._after or not all(is_transpose(codec) for codec in self._before):
            return staged_whole(shape, self._codecs(self._all_codecs(), shape))
        from ..format.spec import ShardSpec

        config = self._sharding.to_dict()["configuration"]
        nbytes = self.dtype.itemsize
        spec = ShardSpec(  # only its geometry is used: the elements are opaque
            shape,
            config["chunk_shape"],
            f"V{nbytes}",
            bytes(nbytes),
            ["bytes"],
            config["index_codecs"],
            config["index_location"],
            before=[codec.to_dict() for codec in self._before],
        )
        return staged_shard(spec, self._inner)

    def _all_codecs(self) -> list[Any]:
        """Return all codecs, with our sharding codec in place of zarr's."""
        from .codec import ShardingCodec  # here, because most arrays have only native codecs

        with quiet():
            ours = ShardingCodec.from_dict(self._sharding.to_dict())
        return [*self._before, ours, *self._after]


def _is_indivisible(error: SpecError) -> bool:
    """Return True if a chunk_shape does not divide its shard.

    Such an array must not be left to zarr, which (up to 3.4) silently stores nothing if a transpose comes before the sharding.
    """
    return "chunk_shape" in (error.path or "") and error.context.get("axis") is not None


def _names_after_sharding(codecs: Sequence[Any]) -> str:
    """Return the names of the codecs after the sharding, which hide the inner chunks."""
    place = next((i for i, codec in enumerate(codecs) if is_sharding(codec)), len(codecs))
    return ", ".join(str(codec.to_dict()["name"]) for codec in codecs[place + 1 :])


@functools.lru_cache(256)
def _log_once(text: str) -> None:
    logging.getLogger("shardcodec").info(text)


def kind_of(metadata: ArrayMetadata) -> Kind:
    """Return the kind of an array; `Refusal` if zarr's own pipeline must do the work.

    That is so if the array has no shards and a codec without native code, if its sharding codec is of a third party, or if a
    function of zarr's codec classes was replaced (by a test or a profiler).
    """
    codecs = codecs_of(metadata)
    if replaced := replaced_part(codecs):
        raise Refusal(f"{replaced} has been replaced")
    if names := _names_after_sharding(codecs):
        _log_once(f"codecs after sharding_indexed ({names}): every access reads or writes whole shards")
    foreign = foreign_codec(codecs)
    reason = f"codec class {foreign}"
    if not foreign:
        try:
            return NativeKind(metadata)
        except (SpecError, UnsupportedError) as error:
            reason = str(error)
        if dtype_of(metadata).kind in "OT":
            with contextlib.suppress(SpecError, UnsupportedError):
                return TextKind(metadata)
    if not any(is_sharding(codec) for codec in codecs):
        raise Refusal(reason)
    try:
        return StagedKind(metadata)
    except Exception as error:  # codecs of third parties may raise any exception
        if is_of_signal_handler(error):
            raise
        raise Refusal(f"{reason}; {error}") from error
