# codecs.py - the codecs that a chain can hold, as plain data, and their JSON
# SPDX-License-Identifier: MIT
"""One frozen dataclass per codec of Zarr v3 that shardcodec implements.

A codec checks its own values when it is made. What depends on the array (its rank, its dtype, the shape of a
shard) is checked by ``resolve``, which also fills in what the JSON left open and so returns the codec that
really runs.

Source: Zarr v3 codecs `bytes`, `transpose`, `sharding_indexed` 1.0, `blosc`, `gzip`, `zstd`, `crc32c`; the
names that zarr-python gives to the codecs of numcodecs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np

from .checks import as_int, as_int_tuple, as_items, check_keys, parse_named, show, unsupported, within, wrong
from .dtypes import DType, swap_fields

__all__ = [
    "Blosc",
    "Bytes",
    "Codec",
    "CodecLike",
    "Crc32c",
    "Gzip",
    "Lz4",
    "Sharding",
    "Transpose",
    "Zlib",
    "Zstd",
    "allow_clipping",
    "compose_transposes",
    "parse_codecs",
    "parse_sharding",
    "resolve_codecs",
]

Endian = Literal["little", "big"]
IndexLocation = Literal["start", "end"]
Shape = tuple[int, ...]

# An index of 2^30 pairs takes 16 GiB. TensorStore draws the line at the same place, and beyond it a slip in a
# shape would cost more memory than a machine has.
MAX_CHUNKS_PER_SHARD = 2**30

BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_INT32_MAX = 2**31 - 1
_INDEX_DTYPE: DType = np.dtype("uint64")

# Known names whose output is not of one size, so that nobody could find an index encoded with them.
_VARIABLE_SIZE = (
    *("zstd", "gzip", "blosc", "sharding_indexed", "vlen-utf8", "vlen-bytes", "vlen-array"),
    *("numcodecs.zstd", "numcodecs.gzip", "numcodecs.zlib", "numcodecs.lz4", "numcodecs.blosc"),
    *("numcodecs.bz2", "numcodecs.lzma", "numcodecs.pcodec", "numcodecs.zfpy"),
)


@dataclass(frozen=True)
class Codec:
    """What all codecs share."""

    json_name: ClassVar[str]
    kind: ClassVar[Literal["array -> array", "array -> bytes", "bytes -> bytes"]] = "bytes -> bytes"

    def resolve(self, shape: Shape, dtype: DType) -> Codec:
        """Check against the array that the codec is handed, and fill in what was left open."""
        return self

    def configuration(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_json(self) -> dict[str, Any]:
        """Return the codec as an object: the short form, a bare name, is read but never written."""
        configuration = self.configuration()
        return {"name": self.json_name, **({"configuration": configuration} if configuration else {})}


CodecLike = Codec | Mapping[str, Any] | str


@dataclass(frozen=True)
class Transpose(Codec):
    """Permute the axes: stored axis i is axis ``order[i]``."""

    json_name: ClassVar[str] = "transpose"
    kind = "array -> array"

    order: tuple[int, ...]

    def __post_init__(self) -> None:
        order = as_int_tuple(self.order, "order")
        object.__setattr__(self, "order", order)
        if sorted(order) != list(range(len(order))):
            wrong("order", f"{show(order)} is not a permutation of 0 to {len(order) - 1}", actual=order)

    def resolve(self, shape: Shape, dtype: DType) -> Transpose:
        if len(self.order) != len(shape):
            reason = f"{len(self.order)} axes given for an array of {len(shape)}"
            wrong("order", reason, expected=len(shape), actual=len(self.order))
        return self

    def apply(self, shape: Shape) -> Shape:
        """Return the shape behind this codec."""
        return tuple(shape[axis] for axis in self.order)

    def configuration(self) -> dict[str, Any]:
        return {"order": list(self.order)}


@dataclass(frozen=True)
class Bytes(Codec):
    """Elements as they lie in memory, C order; None stands for elements whose bytes have no order."""

    json_name: ClassVar[str] = "bytes"
    kind = "array -> bytes"

    endian: Endian | None = None

    def __post_init__(self) -> None:
        if self.endian not in ("little", "big", None):
            wrong("endian", f"expected little or big, got {show(self.endian)}", actual=self.endian)

    def resolve(self, shape: Shape, dtype: DType) -> Bytes:
        if not swap_fields(dtype):
            return Bytes()
        if self.endian is None and dtype.names is not None:
            return Bytes("little")  # zarr before 3.2 wrote structs without it
        if self.endian is None:
            wrong("endian", f"missing, but elements of {dtype} have several bytes", actual=None)
        return self

    def configuration(self) -> dict[str, Any]:
        return {} if self.endian is None else {"endian": self.endian}


@dataclass(frozen=True)
class Crc32c(Codec):
    """Four bytes of checksum behind the data."""

    json_name: ClassVar[str] = "crc32c"


@dataclass(frozen=True)
class Zstd(Codec):
    """Zstandard frames. Level 0 means the default of the library."""

    json_name: ClassVar[str] = "zstd"

    level: int = 0
    checksum: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", as_int(self.level, "level", minimum=-131072, maximum=22))
        if not isinstance(self.checksum, bool):
            wrong("checksum", f"expected true or false, got {show(self.checksum)}", actual=self.checksum)


@dataclass(frozen=True)
class Gzip(Codec):
    """Gzip members."""

    json_name: ClassVar[str] = "gzip"

    level: int = 5

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", as_int(self.level, "level", minimum=0, maximum=9))


@dataclass(frozen=True)
class Zlib(Codec):
    """A zlib stream, as numcodecs writes it."""

    json_name: ClassVar[str] = "numcodecs.zlib"

    level: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "level", as_int(self.level, "level", minimum=0, maximum=9))


@dataclass(frozen=True)
class Lz4(Codec):
    """One LZ4 block behind its decoded size in four bytes, as numcodecs writes it."""

    json_name: ClassVar[str] = "numcodecs.lz4"

    acceleration: int = 1

    def __post_init__(self) -> None:
        value = as_int(self.acceleration, "acceleration", minimum=-_INT32_MAX, maximum=_INT32_MAX)
        object.__setattr__(self, "acceleration", value)


@dataclass(frozen=True)
class Blosc(Codec):
    """A Blosc 1 container. None for ``typesize`` and ``shuffle`` means: by the itemsize, as zarr does."""

    json_name: ClassVar[str] = "blosc"

    cname: str = "zstd"
    clevel: int = 5
    shuffle: str | None = None
    typesize: int | None = None
    blocksize: int = 0

    def __post_init__(self) -> None:
        if self.cname == "snappy":
            unsupported("cname", "snappy is not built in", codec="blosc")
        if self.cname not in BLOSC_COMPRESSORS:
            known = ", ".join(BLOSC_COMPRESSORS)
            wrong("cname", f"expected one of {known}, got {show(self.cname)}", actual=self.cname)
        if self.shuffle is not None and self.shuffle not in BLOSC_SHUFFLES:
            known = ", ".join(BLOSC_SHUFFLES)
            wrong("shuffle", f"expected one of {known}, got {show(self.shuffle)}", actual=self.shuffle)
        for name, low, high in (("clevel", 0, 9), ("typesize", 1, _INT32_MAX), ("blocksize", 0, _INT32_MAX)):
            if getattr(self, name) is not None:
                value = as_int(getattr(self, name), name, minimum=low, maximum=high)
                object.__setattr__(self, name, value)

    def resolve(self, shape: Shape, dtype: DType) -> Blosc:
        typesize = dtype.itemsize if self.typesize is None else self.typesize
        shuffle = self.shuffle or ("bitshuffle" if dtype.itemsize == 1 else "shuffle")
        return replace(self, typesize=typesize, shuffle=shuffle)


@dataclass(frozen=True)
class Sharding(Codec):
    """Inner chunks and an index, in one object.

    Where `clip` is set, `chunk_shape` need not divide the shard (draft 1.1 of the codec): the last inner chunks along an
    axis are clipped to the shard. It is a permission, no part of the JSON or of equality: the shapes say what is stored.
    """

    json_name: ClassVar[str] = "sharding_indexed"
    kind = "array -> bytes"

    chunk_shape: tuple[int, ...]
    codecs: tuple[Codec, ...] = (Bytes("little"),)
    index_codecs: tuple[Codec, ...] = (Bytes("little"), Crc32c())
    index_location: IndexLocation = "end"
    clip: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunk_shape", as_int_tuple(self.chunk_shape, "chunk_shape", minimum=1))
        object.__setattr__(self, "codecs", parse_codecs(self.codecs, "codecs"))
        object.__setattr__(self, "index_codecs", _parse_index_codecs(self.index_codecs))
        if self.index_location not in ("start", "end"):
            reason = f"expected start or end, got {show(self.index_location)}"
            wrong("index_location", reason, actual=self.index_location)

    def resolve(self, shape: Shape, dtype: DType) -> Sharding:
        grid = self.grid_shape(shape)
        if self.clips(shape) and any(isinstance(codec, Sharding) for codec in self.codecs):
            unsupported("codecs", "shards in inner chunks that are clipped", codec=self.json_name)
        if any(isinstance(codec, Sharding) and codec.clip for codec in self.codecs):
            unsupported("codecs", "clip=True for a nested shard", codec=self.json_name)
        codecs = resolve_codecs(self.codecs, self.chunk_shape, dtype, "codecs")
        index_codecs = resolve_codecs(self.index_codecs, (*grid, 2), _INDEX_DTYPE, "index_codecs")
        return replace(self, codecs=codecs, index_codecs=index_codecs)

    def grid_shape(self, shape: Shape) -> Shape:
        """Return the number of inner chunks along each axis of a shard of that (transposed) shape.

        Raises
        ------
        SpecError
            The ranks differ, an axis is not divided (and `clip` not set), or there are too many inner chunks for any index.
        """
        if len(self.chunk_shape) != len(shape):
            reason = f"{len(self.chunk_shape)} axes given for a shard of {len(shape)}"
            wrong("chunk_shape", reason, expected=len(shape), actual=len(self.chunk_shape))
        for axis, (chunk, shard) in enumerate(zip(self.chunk_shape, shape, strict=True)):
            if shard % chunk and not self.clip:
                reason = f"inner chunk size {chunk} does not divide shard size {shard} on axis {axis}"
                reason += " (draft 1.1 clips inner chunks of shards that are not nested: clip=True)"
                wrong(f"chunk_shape[{axis}]", reason, axis=axis, actual=chunk, limit=shard)
        grid = tuple(-(-shard // chunk) for chunk, shard in zip(self.chunk_shape, shape, strict=True))
        n_chunks = math.prod(grid)
        if n_chunks > MAX_CHUNKS_PER_SHARD:
            reason = f"{n_chunks} inner chunks in one shard; at most {MAX_CHUNKS_PER_SHARD} are allowed"
            wrong("chunk_shape", reason, actual=n_chunks, limit=MAX_CHUNKS_PER_SHARD)
        return grid

    def clips(self, shape: Shape) -> bool:
        """Tell whether some inner chunks of a shard of that (transposed) shape are clipped."""
        return any(shard % chunk for chunk, shard in zip(self.chunk_shape, shape, strict=True))

    def configuration(self) -> dict[str, Any]:
        return {
            "chunk_shape": list(self.chunk_shape),
            "codecs": [codec.to_json() for codec in self.codecs],
            "index_codecs": [codec.to_json() for codec in self.index_codecs],
            "index_location": self.index_location,
        }


def allow_clipping(codecs: Iterable[Codec]) -> tuple[Codec, ...]:
    """Return the codecs with `Sharding.clip` set where there is a shard, but not in nested ones."""
    return tuple(replace(codec, clip=True) if isinstance(codec, Sharding) else codec for codec in codecs)


def parse_codecs(data: object, path: str, *, lenient: bool = False) -> tuple[Codec, ...]:
    """Read a list of codecs and check that they can follow one another.

    Parameters
    ----------
    data
        JSON objects, bare names, or codecs of this module, in any mixture.
    path : str
        What the list is called in error messages.
    lenient : bool
        Let a shard go without ``codecs`` and ``index_codecs``, which the specification requires, and take
        for them what zarr-python takes.

    Raises
    ------
    SpecError
        A known codec is configured wrongly, or the order is impossible.
    UnsupportedError
        A codec is not known; ``.codec`` is its name.
    """
    codecs = []
    for i, item in enumerate(as_items(data, path)):
        with within(f"{path}[{i}]"):
            codecs.append(_parse_codec(item, lenient))
    _check_order(codecs, path)
    return tuple(codecs)


def _parse_codec(data: object, lenient: bool) -> Codec:
    if isinstance(data, Codec):
        return data
    name, configuration = parse_named(data)
    if name not in _PARSERS:
        unsupported("", f"codec {show(name)} is not one that shardcodec implements", codec=name)
    with within("configuration"):
        return _PARSERS[name](configuration, lenient)


def _check_order(codecs: Sequence[Codec], path: str) -> None:
    """array -> array codecs, then exactly one array -> bytes, then bytes -> bytes."""
    serializer: int | None = None
    for i, codec in enumerate(codecs):
        here = f"{path}[{i}]"
        if codec.kind == "array -> bytes" and serializer is not None:
            wrong(here, f"{codec.json_name} is a second array -> bytes codec after {path}[{serializer}]")
        if codec.kind == "array -> array" and serializer is not None:
            wrong(here, f"{codec.json_name} takes an array, but {path}[{serializer}] has made bytes of it")
        if codec.kind == "bytes -> bytes" and serializer is None:
            wrong(here, f"{codec.json_name} takes bytes, but no codec before it makes bytes of the array")
        if codec.kind == "array -> bytes":
            serializer = i
    if serializer is None:
        wrong(path, "no array -> bytes codec, such as bytes or sharding_indexed; exactly one is required")


def _parse_index_codecs(data: object) -> tuple[Codec, ...]:
    """Codecs of an index: its place in the shard follows from its size, so only fixed sizes will do."""
    items = as_items(data, "index_codecs")
    for i, item in enumerate(items):
        name = item.get("name") if isinstance(item, Mapping) else getattr(item, "json_name", item)
        if isinstance(name, str) and name in _VARIABLE_SIZE:
            reason = f"{name} has no fixed size, so the index could not be found"
            wrong(f"index_codecs[{i}]", reason, codec=name)
    return parse_codecs(items, "index_codecs")


def resolve_codecs(codecs: Sequence[Codec], shape: Shape, dtype: DType, path: str) -> tuple[Codec, ...]:
    """Check codecs against the array they are handed, each against what the ones before it make of it."""
    resolved = []
    for i, codec in enumerate(codecs):
        with within(f"{path}[{i}].configuration"):
            codec = codec.resolve(shape, dtype)
        if isinstance(codec, Transpose):
            shape = codec.apply(shape)
        resolved.append(codec)
    return tuple(resolved)


def compose_transposes(codecs: Sequence[Codec], ndim: int) -> Shape:
    """Return all transposes among ``codecs`` in one: stored axis i is axis ``result[i]`` of the array."""
    perm = tuple(range(ndim))
    for codec in codecs:
        if isinstance(codec, Transpose):
            perm = codec.apply(perm)
    return perm


# --- JSON of each codec ---

_Parser = Callable[[Mapping[str, Any], bool], Codec]


def _plain(codec: Callable[..., Codec], *keys: str, required: Sequence[str] = ()) -> _Parser:
    """A parser for a configuration whose keys are the fields of the dataclass."""

    def parse(configuration: Mapping[str, Any], lenient: bool) -> Codec:
        check_keys(configuration, "", required=required, optional=keys)
        for key, value in configuration.items():
            if value is None:
                wrong(key, "null is not a value")
        return codec(**configuration)

    return parse


def _numcodecs(name: str, codec: Callable[..., Codec], **defaults: Any) -> _Parser:
    """A parser for a codec under its numcodecs name, with the defaults of numcodecs."""

    def parse(configuration: Mapping[str, Any], lenient: bool) -> Codec:
        check_keys(configuration, "", optional=("id", *defaults))
        if configuration.get("id", name) != name:
            wrong("id", f"expected {name}, got {show(configuration['id'])}", actual=configuration["id"])
        given = {key: value for key, value in configuration.items() if key != "id" and value is not None}
        return codec(**(defaults | given))

    return parse


def _numcodecs_gzip(level: int) -> Codec:
    return Gzip(6 if level == -1 else level)  # zlib's name for its default


def _numcodecs_zlib(level: int) -> Codec:
    return Zlib(6 if level == -1 else level)


def _numcodecs_blosc(cname: str, clevel: int, shuffle: int, blocksize: int, typesize: int) -> Codec:
    """The container is the same; the shuffle is a number, and without a typesize numcodecs sees bytes."""
    as_int(shuffle, "shuffle", minimum=-1, maximum=2)
    name = "bitshuffle" if shuffle == -1 else BLOSC_SHUFFLES[shuffle]
    return Blosc(cname, clevel, name, typesize, blocksize)


def _numcodecs_crc32c(location: str) -> Codec:
    if location == "start":
        unsupported("location", "the checksum lies in front of the data", codec="numcodecs.crc32c")
    if location != "end":
        wrong("location", f"expected start or end, got {show(location)}", actual=location)
    return Crc32c()


def parse_sharding(configuration: Mapping[str, Any], lenient: bool) -> Sharding:
    """Read the configuration of `sharding_indexed`; see `parse_codecs` for ``lenient``."""
    lists = ("codecs", "index_codecs")
    required = ("chunk_shape",) if lenient else ("chunk_shape", *lists)
    check_keys(configuration, "", required=required, optional=(*lists, "index_location"))
    given = dict(configuration)
    if "codecs" in given:
        given["codecs"] = parse_codecs(given["codecs"], "codecs", lenient=lenient)
    return Sharding(**given)


_PARSERS: dict[str, _Parser] = {
    "bytes": _plain(Bytes, "endian"),
    "transpose": _plain(Transpose, required=("order",)),
    "sharding_indexed": parse_sharding,
    "crc32c": _plain(Crc32c),
    "zstd": _plain(Zstd, "level", "checksum"),
    "gzip": _plain(Gzip, "level"),
    "blosc": _plain(Blosc, "cname", "clevel", "shuffle", "typesize", "blocksize"),
    # Under these names zarr-python runs numcodecs. Where there is a codec above for the same bytes, it is
    # that one's name which is written back.
    "numcodecs.zstd": _numcodecs("zstd", Zstd, level=0, checksum=False),
    "numcodecs.gzip": _numcodecs("gzip", _numcodecs_gzip, level=1),
    "numcodecs.zlib": _numcodecs("zlib", _numcodecs_zlib, level=1),
    "numcodecs.lz4": _numcodecs("lz4", Lz4, acceleration=1),
    "numcodecs.crc32c": _numcodecs("crc32c", _numcodecs_crc32c, location="end"),
    "numcodecs.blosc": _numcodecs(
        "blosc", _numcodecs_blosc, cname="lz4", clevel=5, shuffle=1, blocksize=0, typesize=1
    ),
}
