# spec.py - the encoding of a shard and of one chunk, as immutable data
# SPDX-License-Identifier: MIT
"""The encoding of a shard and of one chunk, as immutable data that is checked at construction.

`ShardSpec` describes a shard, its inner chunks, and the geometry of its index:

    shard_shape --before--> stored_shape --cut into--> grid_shape of inner chunks --after--> object
              (transposes)                             each through `codecs`  (bytes -> bytes)

The inner ``chunk_shape`` divides the *stored* shape, the shape after the transposes, because that is the input of
the sharding codec. `ChainSpec` describes any chunk: of an array without shards, a whole shard, or an inner chunk.
Two specs are equal if their shapes and codecs are equal and their fill values have the same bits.

Sources: Zarr v3 core specification 3.1, "Array metadata"; Zarr v3 codec `sharding_indexed` 1.0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self, Unpack

from ..arguments import check_argument
from ..readable import Fact, Readable
from .array_document import UserMetadata, spec_of
from .checks import (
    as_chunk_shape,
    as_int_tuple,
    as_items,
    as_mapping,
    bounded_depth,
    parse_named,
    show,
    within,
    wrong,
)
from .codecs import (
    Bytes,
    Codec,
    CodecLike,
    Crc32c,
    Endian,
    IndexLocation,
    RegistryPackBits,
    Shape,
    Sharding,
    allow_clipping,
    check_fill,
    check_filters,
    compose_transposes,
    parse_codecs,
    parse_sharding,
    resolve_codecs,
)
from .dtypes import DType, SwapField, as_dtype, dtype_to_json, swap_fields
from .fill_values import fill_bytes, fill_scalar, fill_to_json
from .spec_text import chain_facts, shard_facts, spec_repr

__all__ = ["ChainSpec", "ShardSpec", "assign", "element"]


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


@dataclass(frozen=True, repr=False, init=False)
class ChainSpec(Readable):
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
    >>> shardcodec.ChainSpec((2, 2), "uint8", 0, ["bytes", "crc32c"]).fixed_nbytes
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
        check_fill(codecs, fill, "codecs")
        assign(self, shape=shape, dtype=dtype, codecs=codecs, fill=fill, fill_value=fill_scalar(dtype, fill))

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
        spec: Self = spec_of(metadata, make=cls, lenient=lenient, clip=clip)
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
    def serializer(self) -> Bytes | RegistryPackBits | Sharding:
        """The array -> bytes codec."""
        return self._serializer

    @cached_property
    def _serializer(self) -> Bytes | RegistryPackBits | Sharding:
        return next(codec for codec in self.codecs if codec.kind == "array -> bytes")  # type: ignore[return-value]

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
        if (sharding := self.sharding) is None:
            return None
        spec = object.__new__(ChainSpec)  # `sharding` was resolved with this spec
        assign(spec, shape=sharding.chunk_shape, codecs=sharding.codecs)
        assign(spec, dtype=self.dtype, fill_value=self.fill_value, fill=self.fill)
        return spec

    @cached_property
    def _as_shard(self) -> ShardSpec:
        if (sharding := self.sharding) is None:
            name = self.serializer.json_name
            wrong("codecs", f"expected a sharding_indexed codec, got {name}", actual=name)
        place = self.codecs.index(sharding)
        spec = object.__new__(ShardSpec)
        assign(spec, shard_shape=self.shape, dtype=self.dtype, fill_value=self.fill_value, fill=self.fill)
        assign(spec, before=self.codecs[:place], after=self.codecs[place + 1 :])
        assign(spec, sharding=sharding, chain=self, **_sharding_options(sharding))
        return spec

    @property
    def is_clipped(self) -> bool:
        """True for a shard with clipped inner chunks; see `ShardSpec`."""
        return self.sharding is not None and self.sharding.clips(self.stored_shape)

    @property
    def fixed_nbytes(self) -> int | None:
        """Size of an encoded chunk in bytes, or None if it depends on the data."""
        nbytes: int | None = self.nbytes
        for codec in self.codecs:
            nbytes = None if nbytes is None else codec.encoded_nbytes(nbytes)
        return nbytes

    @property
    def has_checksum(self) -> bool:
        """True if the encoded chunk has a checksum, which detects a damaged bit."""
        return any(codec.detects_damage() for codec in self.bytes_codecs)

    @property
    def swap(self) -> tuple[SwapField, ...]:
        """Runs of units that a swap of the byte order reverses; see `swap_fields`."""
        return swap_fields(self.dtype)

    def facts(self) -> Iterator[Fact]:
        return chain_facts(self)

    def __repr__(self) -> str:
        return spec_repr(self, ("shape", "dtype", "fill_value", "codecs"))


_SHARDING_FIELDS = ("chunk_shape", "codecs", "index_codecs", "index_location", "clip")


def _sharding_options(sharding: Any) -> dict[str, Any]:
    """Return the values of the sharding codec in a codec or spec, as keyword arguments."""
    return {name: getattr(sharding, name) for name in _SHARDING_FIELDS}


@dataclass(frozen=True, repr=False, init=False)
class ShardSpec(Readable):
    """The encoding of a shard: its inner chunks, their codecs, and the index.

    Parameters
    ----------
    shard_shape : tuple of int
        Shape of the shard, which is a chunk of the array's grid.
    chunk_shape : tuple of int
        Shape of an inner chunk. It divides the shape of the shard after the transposes of ``before``.
    dtype, fill_value
        As in `ChainSpec`.
    codecs, index_codecs : iterable
        As ``codecs`` of `ChainSpec`. An index permits only `transpose`, `bytes` and `crc32c`, whose size is fixed.
    index_location : {"end", "start"}
        Position of the index in the shard.
    before, after : iterable, keyword-only
        The codecs around `sharding_indexed` in the array's list: transposes before it, bytes -> bytes codecs
        after it.
    clip : bool, keyword-only
        Accept a ``chunk_shape`` that does not divide the shard, as in draft 1.1 of the codec: the last inner chunks
        along an axis are stored clipped to the shard. Other shards are not affected.

    Attributes
    ----------
    fill : bytes
        The fill value, bit by bit: one element in native byte order.
    sharding : Sharding
        The `sharding_indexed` codec.

    Raises
    ------
    SpecError
        A value is invalid; ``.path`` names it.
    UnsupportedError
        shardcodec does not implement a codec or the data type.

    Examples
    --------
    >>> spec = shardcodec.ShardSpec((4, 6), (2, 3), "uint8", 0, codecs=["bytes", "crc32c"])
    >>> spec.grid_shape, spec.index_nbytes
    ((2, 2), 68)
    """

    shard_shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    dtype: DType
    fill_value: Any = field(compare=False)
    codecs: tuple[Codec, ...]
    index_codecs: tuple[Codec, ...]
    index_location: IndexLocation
    before: tuple[Codec, ...]
    after: tuple[Codec, ...]
    clip: bool = field(compare=False)
    fill: bytes = field(init=False)
    sharding: Sharding = field(init=False, compare=False)

    def __init__(
        self,
        shard_shape: Iterable[int],
        chunk_shape: Iterable[int],
        dtype: Any,
        fill_value: Any,
        codecs: Iterable[CodecLike] = Sharding.codecs,
        index_codecs: Iterable[CodecLike] = Sharding.index_codecs,
        index_location: IndexLocation = "end",
        *,
        before: Iterable[CodecLike] = (),
        after: Iterable[CodecLike] = (),
        clip: bool = False,
    ) -> None:
        dtype, fill = element(dtype, fill_value)
        shape = as_chunk_shape(shard_shape, dtype.itemsize, "shard_shape")
        check_argument("clip", clip, bool)
        sharding = Sharding(chunk_shape, codecs, index_codecs, index_location, clip)  # type: ignore[arg-type]
        parsed = parse_codecs((*as_items(before, "before"), sharding, *as_items(after, "after")), "codecs")
        place = parsed.index(sharding)
        before = resolve_codecs(parsed[:place], shape, dtype, "before")
        check_filters(before, sharding, "before")
        after = resolve_codecs(parsed[place + 1 :], shape, dtype, "after")
        perm = compose_transposes(before, len(shape))
        sharding = sharding.resolve(tuple(shape[axis] for axis in perm), dtype)
        check_fill(sharding.codecs, fill, "codecs")
        assign(self, shard_shape=shape, dtype=dtype, fill_value=fill_scalar(dtype, fill), fill=fill)
        assign(self, before=before, after=after, sharding=sharding, **_sharding_options(sharding))

    @classmethod
    def from_json(
        cls,
        config: Mapping[str, Any],
        *,
        shard_shape: Iterable[int],
        dtype: Any,
        fill_value: Any,
        lenient: bool = False,
        clip: bool = False,
    ) -> Self:
        """Make a spec from the JSON of a `sharding_indexed` codec, or from its configuration alone.

        Parameters
        ----------
        config : mapping
            ``{"name": "sharding_indexed", "configuration": {...}}``, or the value of ``configuration``.
        shard_shape : tuple of int
            The shape that the codec receives, after any transposes.
        dtype, fill_value
            As in `ChainSpec`.
        lenient : bool
            Accept missing ``codecs`` and ``index_codecs``, as zarr-python does.
        clip : bool
            Accept a ``chunk_shape`` that does not divide the shard; see the class.

        Returns
        -------
        ShardSpec

        Raises
        ------
        SpecError, UnsupportedError
            As for the class; ``.path`` is the place in the JSON.
        """
        check_argument("lenient", lenient, bool)
        place = ""
        if "name" in as_mapping(config, ""):
            name, config = parse_named(config)
            place = "configuration"
            if name != Sharding.json_name:
                wrong("name", f"expected {Sharding.json_name}, got {show(name)}", actual=name)
        dtype, _ = element(dtype, fill_value)
        shape = as_chunk_shape(shard_shape, dtype.itemsize, "shard_shape")
        with bounded_depth("codecs"), within(place):
            options = _sharding_options(parse_sharding(config, lenient))
            return cls(shape, dtype=dtype, fill_value=fill_value, **(options | {"clip": clip}))

    @classmethod
    def from_chain(cls, chain: ChainSpec) -> Self:
        """Make a spec from the `ChainSpec` of a shard.

        Parameters
        ----------
        chain : ChainSpec
            Encoding of the shard as a chunk of the array.

        Returns
        -------
        ShardSpec

        Raises
        ------
        SpecError
            The codecs do not contain `sharding_indexed`.
        """
        check_argument("chain", chain, ChainSpec)
        return chain._as_shard  # type: ignore[return-value]

    @classmethod
    def from_metadata(
        cls,
        metadata: Mapping[str, Any],
        *,
        shard_shape: Iterable[int] | None = None,
        lenient: bool = False,
        clip: bool = False,
    ) -> Self:
        """Make a spec from a whole ``zarr.json`` of a sharded array.

        Parameters
        ----------
        metadata : mapping
            The parsed JSON, or the result of ``to_dict()`` of zarr's metadata.
        shard_shape : tuple of int, optional
            Shape of the shard, for a rectilinear grid; by default the shape of the first shard.
        lenient, clip : bool
            As in `from_json`.

        Returns
        -------
        ShardSpec

        Raises
        ------
        SpecError, UnsupportedError
            As for the class; ``.path`` is the place in the JSON.
        """
        chain = ChainSpec.from_metadata(metadata, shape=shard_shape, lenient=lenient, clip=clip)
        return cls.from_chain(chain)

    def with_shard_shape(self, shard_shape: Iterable[int]) -> Self:
        """Return the spec of a shard of another shape, for rectilinear grids.

        Parameters
        ----------
        shard_shape : tuple of int
            Shape of the other shard, in elements.

        Returns
        -------
        ShardSpec

        Raises
        ------
        SpecError, UnsupportedError
            The codecs do not permit this shape; for example, the inner chunks do not divide it.
        """
        return replace(self, shard_shape=as_items(shard_shape, "shard_shape"))

    def to_json(self) -> dict[str, Any]:
        """Return the `sharding_indexed` codec for a ``zarr.json``; ``chain.to_json()`` includes the codecs around it.

        Returns
        -------
        dict
        """
        return self.sharding.to_json()

    def to_metadata(self, array_shape: Iterable[int], **keywords: Unpack[UserMetadata]) -> dict[str, Any]:
        """Return the ``zarr.json`` of an array of such shards.

        Parameters
        ----------
        array_shape : tuple of int
            Shape of the array.
        **keywords
            As in `ChainSpec.to_metadata`.

        Returns
        -------
        dict

        Raises
        ------
        SpecError
            The array and the shard differ in their number of axes.
        """
        return self.chain.to_metadata(array_shape, **keywords)

    @cached_property
    def chain(self) -> ChainSpec:
        """Encoding of the shard as a chunk of the array, with all codecs."""
        spec = object.__new__(ChainSpec)  # the codecs were resolved with this spec
        assign(spec, shape=self.shard_shape, codecs=(*self.before, self.sharding, *self.after))
        assign(spec, dtype=self.dtype, fill_value=self.fill_value, fill=self.fill)
        return spec

    @cached_property
    def inner(self) -> ChainSpec:
        """Encoding of an inner chunk."""
        return self.chain.inner  # type: ignore[return-value]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shard_shape)

    @property
    def stored_shape(self) -> Shape:
        """Shape of the shard after the transposes; it is divided into inner chunks."""
        return self.chain.stored_shape

    @cached_property
    def grid_shape(self) -> Shape:
        """Number of inner chunks along each stored axis."""
        return self.sharding.grid_shape(self.stored_shape)

    @property
    def n_chunks(self) -> int:
        """Number of inner chunks in a full shard."""
        return math.prod(self.grid_shape)

    @property
    def index_shape(self) -> Shape:
        """Shape of the index: offset and size for each inner chunk."""
        return (*self.grid_shape, 2)

    @cached_property
    def n_index_checksums(self) -> int:
        """Number of crc32c codecs of the index; if 0, damage to the index may stay undetected."""
        return sum(isinstance(codec, Crc32c) for codec in self.index_codecs)

    @property
    def index_nbytes(self) -> int:
        """Size of the stored index in bytes."""
        return 16 * self.n_chunks + 4 * self.n_index_checksums

    @property
    def index_endian(self) -> Endian:
        """Byte order of the stored index."""
        return "big" if Bytes("big") in self.index_codecs else "little"

    @property
    def index_perm(self) -> tuple[int, ...]:
        """Composition of the index's transposes: its stored axis i is axis ``index_perm[i]`` of ``index_shape``."""
        return compose_transposes(self.index_codecs, self.ndim + 1)

    @property
    def supports_partial_access(self) -> bool:
        """True if an inner chunk can be read without the rest of the shard.

        Codecs after the sharding codec encode the whole shard; a reader must decode all of it before it can read the
        index.
        """
        return not self.after

    def facts(self) -> Iterator[Fact]:
        return shard_facts(self)

    def __repr__(self) -> str:
        first = ("shard_shape", "chunk_shape", "dtype", "fill_value")
        others = (name for name in ("before", "after", "clip") if getattr(self, name))
        return spec_repr(self, (*first, *_SHARDING_FIELDS[1:-1], *others))
