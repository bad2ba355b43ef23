# chain_spec.py - the encoding of one chunk, as immutable data
# SPDX-License-Identifier: MIT
"""`ChainSpec`: shape, data type, fill value and codecs of one chunk, checked at construction and then immutable.

It describes any chunk: a chunk of an array without shards, a whole shard, or an inner chunk of a shard. Two specs are
equal if their shapes and codecs are equal and their fill values have the same bits. This module reads no data and does
not import zarr.

Source: Zarr v3 core specification 3.1, "Array metadata".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

from ..arguments import check_argument
from .array_document import parse_document
from .checks import as_chunk_shape, as_int_tuple, as_items, bounded_depth, within, wrong
from .codecs import (
    Bytes,
    Codec,
    CodecLike,
    Crc32c,
    Shape,
    Sharding,
    Zstd,
    allow_clipping,
    compose_transposes,
    parse_codecs,
    resolve_codecs,
)
from .dtypes import DType, SwapField, as_dtype, dtype_repr, dtype_to_json, swap_fields
from .fill import fill_bytes, fill_repr, fill_scalar, fill_to_json

__all__ = ["ChainSpec", "assign", "element", "spec_repr"]


def element(dtype: object, fill_value: object) -> tuple[DType, bytes]:
    """Check a data type and its fill value; return the native-order dtype and the bytes of the fill value."""
    with within("dtype"):
        native = as_dtype(dtype)
    with within("fill_value"):
        return native, fill_bytes(native, fill_value)


def assign(spec: object, **values: Any) -> None:
    """Set fields of a frozen spec during its construction."""
    for name, value in values.items():
        object.__setattr__(spec, name, value)


def spec_repr(spec: Any, names: Iterable[str]) -> str:
    """Return an expression that evaluates to an equal spec; numpy's repr of dtypes and scalars does not."""
    special = {"dtype": dtype_repr(spec.dtype), "fill_value": fill_repr(spec.dtype, spec.fill)}
    values = (f"{name}={special.get(name) or repr(getattr(spec, name))}" for name in names)
    return f"{type(spec).__name__}({', '.join(values)})"


@dataclass(frozen=True, repr=False, init=False)
class ChainSpec:
    """The encoding of a chunk: its shape, data type, fill value and codecs.

    Parameters
    ----------
    shape : tuple of int
        Shape of the chunk, each at least 1; empty for an array without axes.
    dtype : dtype-like or JSON
        Anything that `numpy.dtype` accepts, or the JSON of a Zarr data type. Stored in native byte order.
    fill_value : scalar or JSON
        A Python or numpy scalar, or the JSON of a Zarr fill value. Stored as a numpy scalar of ``dtype``.
    codecs : iterable
        Codecs of `shardcodec.format.codecs`, JSON objects or names. Stored as codecs, with the defaults
        of the JSON filled in.

    Attributes
    ----------
    fill : bytes
        The fill value, bit by bit: one element in native byte order.

    Raises
    ------
    SpecError
        A value is invalid; ``.path`` names it.
    UnsupportedError
        shardcodec does not implement a codec or the data type.

    Examples
    --------
    >>> ChainSpec((2, 2), "uint8", 0, ["bytes", "crc32c"]).fixed_nbytes
    8
    """

    shape: tuple[int, ...]
    dtype: DType
    fill_value: Any = field(compare=False)
    codecs: tuple[Codec, ...]
    fill: bytes = field(init=False)

    def __init__(
        self, shape: Iterable[int], dtype: Any, fill_value: Any, codecs: Iterable[CodecLike]
    ) -> None:
        dtype, fill = element(dtype, fill_value)
        shape = as_chunk_shape(shape, dtype.itemsize, "shape")
        codecs = resolve_codecs(parse_codecs(codecs, "codecs"), shape, dtype, "codecs")
        assign(self, shape=shape, dtype=dtype, codecs=codecs, fill=fill)
        assign(self, fill_value=fill_scalar(dtype, fill))

    @classmethod
    def from_json(
        cls,
        codecs: Any,
        *,
        shape: Iterable[int],
        dtype: Any,
        fill_value: Any,
        lenient: bool = False,
        clip: bool = False,
    ) -> Self:
        """Make a spec from the ``codecs`` of a ``zarr.json``.

        Parameters
        ----------
        codecs : sequence
            The list of codecs.
        shape, dtype, fill_value
            As for the class.
        lenient : bool
            Accept a shard without ``codecs`` and ``index_codecs``, as zarr-python does.
        clip : bool
            Accept a ``chunk_shape`` that does not divide the shard; see `ShardSpec`.

        Returns
        -------
        ChainSpec

        Raises
        ------
        SpecError, UnsupportedError
            As for the class; ``.path`` is the place in the JSON.
        """
        check_argument("lenient", lenient, bool)
        check_argument("clip", clip, bool)
        with bounded_depth("codecs"):
            parsed = parse_codecs(codecs, "codecs", lenient=lenient)
            return cls(shape, dtype, fill_value, allow_clipping(parsed) if clip else parsed)

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        *,
        shape: Iterable[int] | None = None,
        lenient: bool = False,
        clip: bool = False,
    ) -> Self:
        """Make a spec from a whole ``zarr.json`` or ``.zarray``.

        Parameters
        ----------
        metadata : mapping
            The parsed JSON, or the result of ``to_dict()`` of zarr's metadata.
        shape : tuple of int, optional
            Shape of the chunk, for a rectilinear grid; by default the shape of the first chunk. Every chunk size of
            the grid is checked in both cases.
        lenient : bool
            Accept a shard without ``codecs`` and ``index_codecs``, as zarr-python does.
        clip : bool
            Accept a ``chunk_shape`` that does not divide the shard; see `ShardSpec`.

        Returns
        -------
        ChainSpec

        Raises
        ------
        SpecError, UnsupportedError
            As for the class; ``.path`` is the place in the JSON.
        """
        check_argument("lenient", lenient, bool)
        check_argument("clip", clip, bool)
        with bounded_depth("metadata"):
            layout = parse_document(metadata)
            codecs = parse_codecs(layout.codecs, "codecs", lenient=lenient)
            if clip:
                codecs = allow_clipping(codecs)
            first = tuple(edges[0] for edges in layout.edges)
            as_chunk_shape(first, layout.dtype.itemsize, "chunk_grid.configuration.chunk_shape")
            spec = cls(first, layout.dtype, layout.fill_value, codecs)
            for axis, edges in enumerate(layout.edges):
                for edge in edges[1:]:
                    spec.with_shape((*first[:axis], edge, *first[axis + 1 :]))
        return spec if shape is None else spec.with_shape(shape)

    def with_shape(self, shape: Iterable[int]) -> Self:
        """Return the spec of a chunk of another shape.

        Parameters
        ----------
        shape : tuple of int
            Shape of the other chunk, in elements.

        Returns
        -------
        ChainSpec

        Raises
        ------
        SpecError, UnsupportedError
            The codecs do not permit this shape.
        """
        return replace(self, shape=as_items(shape, "shape"))

    def to_json(self) -> list[dict[str, Any]]:
        """Return the ``codecs`` of a ``zarr.json``.

        Returns
        -------
        list of dict
        """
        return [codec.to_json() for codec in self.codecs]

    def to_metadata(
        self,
        array_shape: Iterable[int],
        *,
        attributes: Mapping[str, Any] | None = None,
        dimension_names: Iterable[str | None] | None = None,
    ) -> dict[str, Any]:
        """Return the ``zarr.json`` of an array on a regular grid of such chunks.

        Parameters
        ----------
        array_shape : tuple of int
            Shape of the array.
        attributes : mapping, optional
            User attributes.
        dimension_names : iterable of (str or None), optional
            Name of each axis.

        Returns
        -------
        dict

        Raises
        ------
        SpecError
            The array and the chunk differ in their number of axes.
        """
        check_argument("attributes", attributes, Mapping[str, Any] | None)
        check_argument("dimension_names", dimension_names, Iterable[str | None] | None)
        array_shape = as_int_tuple(array_shape, "shape", minimum=0)
        if len(array_shape) != self.ndim:
            reason = f"expected {self.ndim} axes, as the chunks have, got {len(array_shape)}"
            wrong("shape", reason, expected=self.ndim, actual=len(array_shape))
        metadata = {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(array_shape),
            "data_type": dtype_to_json(self.dtype),
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.shape)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": fill_to_json(self.dtype, self.fill),
            "codecs": self.to_json(),
            "attributes": dict(attributes or {}),
        }
        if dimension_names is not None:
            metadata["dimension_names"] = list(dimension_names)
        return metadata

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the decoded chunk in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def serializer(self) -> Bytes | Sharding:
        """The array -> bytes codec."""
        return next(codec for codec in self.codecs if isinstance(codec, Bytes | Sharding))

    @property
    def bytes_codecs(self) -> tuple[Codec, ...]:
        """The bytes -> bytes codecs."""
        return tuple(codec for codec in self.codecs if codec.kind == "bytes -> bytes")

    @property
    def sharding(self) -> Sharding | None:
        """The sharding codec, or None."""
        return self.serializer if isinstance(self.serializer, Sharding) else None

    @cached_property
    def perm(self) -> tuple[int, ...]:
        """Composition of all transposes: stored axis i is axis ``perm[i]`` of the chunk."""
        return compose_transposes(self.codecs, self.ndim)

    @property
    def stored_shape(self) -> Shape:
        """Shape after the transposes."""
        return tuple(self.shape[axis] for axis in self.perm)

    @cached_property
    def inner(self) -> ChainSpec | None:
        """Encoding of an inner chunk, or None without sharding."""
        sharding = self.sharding
        if sharding is None:
            return None
        return ChainSpec(sharding.chunk_shape, self.dtype, self.fill_value, sharding.codecs)

    @property
    def is_clipped(self) -> bool:
        """True for a shard with clipped inner chunks; see `ShardSpec`."""
        return self.sharding is not None and self.sharding.clips(self.stored_shape)

    @property
    def fixed_nbytes(self) -> int | None:
        """Size of an encoded chunk in bytes, or None if it depends on the data."""
        if self.sharding is None and all(isinstance(codec, Crc32c) for codec in self.bytes_codecs):
            return self.nbytes + 4 * len(self.bytes_codecs)
        return None

    @property
    def has_checksum(self) -> bool:
        """True if the encoded chunk has a checksum, which detects a damaged bit."""
        return any(isinstance(c, Crc32c) or (isinstance(c, Zstd) and c.checksum) for c in self.bytes_codecs)

    @property
    def swap(self) -> tuple[SwapField, ...]:
        """Runs of units that a swap of the byte order reverses; see `swap_fields`."""
        return swap_fields(self.dtype)

    def __repr__(self) -> str:
        return spec_repr(self, ("shape", "dtype", "fill_value", "codecs"))
