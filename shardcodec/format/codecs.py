# codecs.py - the codecs of a chain, as immutable data, and their JSON
# SPDX-License-Identifier: MIT
"""One frozen dataclass per codec of Zarr v3 that shardcodec implements.

A codec checks its own values at construction. ``resolve`` checks the values that depend on the array (its rank,
its dtype, the shape of a shard) and replaces omitted values by their defaults. It returns the codec that runs.

Source: Zarr v3 codecs `bytes`, `transpose`, `sharding_indexed` 1.0, `blosc`, `gzip`, `zstd`, `crc32c`; for the
codecs of numcodecs, the names of zarr-python.
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
    "NUMCODECS",
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

# An index of 2^30 pairs takes 16 GiB. The limit, the same as TensorStore's, catches a mistyped shape before it
# exhausts the memory.
MAX_CHUNKS_PER_SHARD = 2**30

BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
BLOSC_SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
_INT32_MAX = 2**31 - 1
_INDEX_DTYPE: DType = np.dtype("uint64")

# Codecs whose encoded size does not depend on the data. An index may have only these, because a reader locates it by
# its size; the engine reads and writes an index with these.
_INDEX_CODECS = ("transpose", "bytes", "crc32c", "numcodecs.crc32c")


@dataclass(frozen=True)
class Codec:
    """Base class of all codecs."""

    json_name: ClassVar[str]
    kind: ClassVar[Literal["array -> array", "array -> bytes", "bytes -> bytes"]] = "bytes -> bytes"

    def resolve(self, shape: Shape, dtype: DType) -> Codec:
        """Check the codec against its input array; return it with omitted values filled in."""
        return self

    def configuration(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def to_json(self) -> dict[str, Any]:
        """Return the codec as a JSON object; the short form, a bare name, is read but never written."""
        configuration = self.configuration()
        return {"name": self.json_name, **({"configuration": configuration} if configuration else {})}


CodecLike = Codec | Mapping[str, Any] | str


@dataclass(frozen=True)
class Transpose(Codec):
    """A permutation of the axes: stored axis i is axis ``order[i]``."""

    json_name: ClassVar[str] = "transpose"
    kind = "array -> array"

    order: tuple[int, ...]

    def __post_init__(self) -> None:
        order = as_int_tuple(self.order, "order")
        object.__setattr__(self, "order", order)
        if sorted(order) != list(range(len(order))):
            reason = f"expected a permutation of 0 to {len(order) - 1}, got {show(order)}"
            wrong("order", reason, actual=order)

    def resolve(self, shape: Shape, dtype: DType) -> Transpose:
        if len(self.order) != len(shape):
            reason = f"expected {len(shape)} axes, as the array has, got {len(self.order)}"
            wrong("order", reason, expected=len(shape), actual=len(self.order))
        return self

    def apply(self, shape: Shape) -> Shape:
        """Return the shape after this codec."""
        return tuple(shape[axis] for axis in self.order)

    def configuration(self) -> dict[str, Any]:
        return {"order": list(self.order)}


@dataclass(frozen=True)
class Bytes(Codec):
    """The elements in C order; ``endian`` is None for elements without a byte order."""

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
            return Bytes("little")  # zarr before 3.2 omitted it for structs
        if self.endian is None:
            wrong("endian", f"expected little or big for elements of type {dtype}, got none", actual=None)
        return self

    def configuration(self) -> dict[str, Any]:
        return {} if self.endian is None else {"endian": self.endian}


@dataclass(frozen=True)
class Crc32c(Codec):
    """A checksum of four bytes after the data."""

    json_name: ClassVar[str] = "crc32c"


@dataclass(frozen=True)
class Zstd(Codec):
    """Zstandard frames; level 0 is the library's default."""

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
    """The decoded size in four bytes and one LZ4 block, as numcodecs writes them."""

    json_name: ClassVar[str] = "numcodecs.lz4"

    acceleration: int = 1

    def __post_init__(self) -> None:
        value = as_int(self.acceleration, "acceleration", minimum=-_INT32_MAX, maximum=_INT32_MAX)
        object.__setattr__(self, "acceleration", value)


@dataclass(frozen=True)
class Blosc(Codec):
    """A Blosc 1 container; a ``typesize`` or ``shuffle`` of None follows from the itemsize, as in zarr."""

    json_name: ClassVar[str] = "blosc"

    cname: str = "zstd"
    clevel: int = 5
    shuffle: str | None = None
    typesize: int | None = None
    blocksize: int = 0

    def __post_init__(self) -> None:
        if self.cname == "snappy":
            known = ", ".join(BLOSC_COMPRESSORS)
            unsupported(
                "cname", f"expected one of {known}, got snappy, which is not supported", codec="blosc"
            )
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
    """Inner chunks and an index in one object.

    With `clip`, `chunk_shape` need not divide the shard (draft 1.1 of the codec): the last inner chunks along an axis are
    clipped to the shard. `clip` is a permission. JSON and equality ignore it, because the shapes define the stored bytes.
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
        location: object = self.index_location
        if not isinstance(location, str) or location not in ("start", "end"):
            reason = f"expected start or end, got {show(self.index_location)}"
            wrong("index_location", reason, actual=self.index_location)

    def resolve(self, shape: Shape, dtype: DType) -> Sharding:
        grid = self.grid_shape(shape)
        if self.clips(shape) and any(isinstance(codec, Sharding) for codec in self.codecs):
            unsupported("codecs", "clipped inner chunks cannot contain shards", codec=self.json_name)
        if any(isinstance(codec, Sharding) and codec.clip for codec in self.codecs):
            unsupported("codecs", "a nested shard cannot have clip=True", codec=self.json_name)
        codecs = resolve_codecs(self.codecs, self.chunk_shape, dtype, "codecs")
        index_codecs = resolve_codecs(self.index_codecs, (*grid, 2), _INDEX_DTYPE, "index_codecs")
        return replace(self, codecs=codecs, index_codecs=index_codecs)

    def grid_shape(self, shape: Shape) -> Shape:
        """Return the number of inner chunks along each axis of a shard of that (transposed) shape.

        Raises
        ------
        SpecError
            The ranks differ, an axis is not divisible (without `clip`), or the shard has more than 2^30 inner chunks.
        """
        if len(self.chunk_shape) != len(shape):
            reason = f"expected {len(shape)} axes, as the shard has, got {len(self.chunk_shape)}"
            wrong("chunk_shape", reason, expected=len(shape), actual=len(self.chunk_shape))
        for axis, (chunk, shard) in enumerate(zip(self.chunk_shape, shape, strict=True)):
            if shard % chunk and not self.clip:
                reason = f"inner chunk size {chunk} does not divide shard size {shard} on axis {axis}"
                reason += "; for clipped inner chunks (draft 1.1, shards that are not nested) pass clip=True"
                wrong(f"chunk_shape[{axis}]", reason, axis=axis, actual=chunk, limit=shard)
        grid = tuple(-(-shard // chunk) for chunk, shard in zip(self.chunk_shape, shape, strict=True))
        n_chunks = math.prod(grid)
        if n_chunks > MAX_CHUNKS_PER_SHARD:
            reason = f"expected at most {MAX_CHUNKS_PER_SHARD} inner chunks in one shard, got {n_chunks}"
            wrong("chunk_shape", reason, actual=n_chunks, limit=MAX_CHUNKS_PER_SHARD)
        return grid

    def clips(self, shape: Shape) -> bool:
        """Return True if a shard of that (transposed) shape has clipped inner chunks."""
        return any(shard % chunk for chunk, shard in zip(self.chunk_shape, shape, strict=True))

    def configuration(self) -> dict[str, Any]:
        return {
            "chunk_shape": list(self.chunk_shape),
            "codecs": [codec.to_json() for codec in self.codecs],
            "index_codecs": [codec.to_json() for codec in self.index_codecs],
            "index_location": self.index_location,
        }


def allow_clipping(codecs: Iterable[Codec]) -> tuple[Codec, ...]:
    """Return the codecs with `Sharding.clip` set on the outermost shard, not on nested shards."""
    return tuple(replace(codec, clip=True) if isinstance(codec, Sharding) else codec for codec in codecs)


def parse_codecs(data: object, path: str, *, lenient: bool = False) -> tuple[Codec, ...]:
    """Read a list of codecs and check their order.

    Parameters
    ----------
    data
        JSON objects, bare names, or codecs of this module, in any mixture.
    path : str
        Name of the list in error messages.
    lenient : bool
        Accept a shard without ``codecs`` and ``index_codecs``, which the specification requires, and use the
        defaults of zarr-python.

    Returns
    -------
    tuple of Codec

    Raises
    ------
    SpecError
        The configuration of a known codec or the order of the codecs is invalid.
    UnsupportedError
        A codec is unknown; ``.codec`` is its name.
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
        unsupported("", f"shardcodec does not implement codec {show(name)}", codec=name)
    with within("configuration"):
        return _PARSERS[name](configuration, lenient)


def _check_order(codecs: Sequence[Codec], path: str) -> None:
    """Check the order: first array -> array codecs, then exactly one array -> bytes codec, then bytes -> bytes codecs.

    Raises `SpecError` at the first wrong codec. `path` is the place of the list in the metadata, for the message.
    """
    serializer: int | None = None
    for i, codec in enumerate(codecs):
        here = f"{path}[{i}]"
        if codec.kind == "array -> bytes" and serializer is not None:
            wrong(here, f"{codec.json_name} is a second array -> bytes codec after {path}[{serializer}]")
        if codec.kind == "array -> array" and serializer is not None:
            wrong(here, f"{codec.json_name} takes an array, but {path}[{serializer}] returns bytes")
        if codec.kind == "bytes -> bytes" and serializer is None:
            wrong(here, f"{codec.json_name} takes bytes, but no codec before it returns bytes")
        if codec.kind == "array -> bytes":
            serializer = i
    if serializer is None:
        wrong(path, "expected exactly one array -> bytes codec, such as bytes or sharding_indexed, got none")


def _parse_index_codecs(data: object) -> tuple[Codec, ...]:
    """Read the codecs of an index; their size must be fixed, because a reader locates the index by its size."""
    items = as_items(data, "index_codecs")
    for i, item in enumerate(items):
        _check_index_codec(item, f"index_codecs[{i}]")
    return parse_codecs(items, "index_codecs")


def _check_index_codec(item: object, path: str) -> None:
    """Refuse a codec that is not in `_INDEX_CODECS`; leave malformed items to `parse_codecs`."""
    name = item.get("name") if isinstance(item, Mapping) else getattr(item, "json_name", item)
    if not isinstance(name, str) or name in _INDEX_CODECS:
        return
    reason = f"expected a codec of fixed size for an index ({', '.join(_INDEX_CODECS)})"
    if name in _PARSERS:
        wrong(
            path, f"{reason}, but {name} has no fixed size, so a reader cannot locate the index", codec=name
        )
    unsupported(path, f"{reason}, but shardcodec does not implement codec {show(name)}", codec=name)


def resolve_codecs(codecs: Sequence[Codec], shape: Shape, dtype: DType, path: str) -> tuple[Codec, ...]:
    """Check each codec for chunks of this shape and data type; return the codecs with omitted values filled in.

    A codec gets the shape after the transposes before it. A byte order is removed if the elements have none. Errors
    (`SpecError`, `UnsupportedError`) name the codec as ``path[i]``.
    """
    resolved = []
    for i, codec in enumerate(codecs):
        with within(f"{path}[{i}].configuration"):
            codec = codec.resolve(shape, dtype)
        if isinstance(codec, Transpose):
            shape = codec.apply(shape)
        resolved.append(codec)
    return tuple(resolved)


def compose_transposes(codecs: Sequence[Codec], ndim: int) -> Shape:
    """Return the composition of all transposes in ``codecs``: stored axis i is axis ``result[i]`` of the array."""
    perm = tuple(range(ndim))
    for codec in codecs:
        if isinstance(codec, Transpose):
            perm = codec.apply(perm)
    return perm


# --- JSON of each codec ---

_Parser = Callable[[Mapping[str, Any], bool], Codec]


def _plain(codec: Callable[..., Codec], *keys: str, required: Sequence[str] = ()) -> _Parser:
    """Return a parser for a configuration whose keys are the fields of the dataclass."""

    def parse(configuration: Mapping[str, Any], lenient: bool) -> Codec:
        check_keys(configuration, "", required=required, optional=keys)
        for key, value in configuration.items():
            if value is None:
                wrong(key, "expected a value, got null")
        return codec(**configuration)

    return parse


def _numcodecs(name: str, codec: Callable[..., Codec], **defaults: Any) -> _Parser:
    """Return a parser for a codec under its numcodecs name, with the defaults of numcodecs."""

    def parse(configuration: Mapping[str, Any], lenient: bool) -> Codec:
        check_keys(configuration, "", optional=("id", *defaults))
        if configuration.get("id", name) != name:
            wrong("id", f"expected {name}, got {show(configuration['id'])}", actual=configuration["id"])
        given = {key: value for key, value in configuration.items() if key != "id" and value is not None}
        return codec(**(defaults | given))

    return parse


def _deflate(codec: Callable[[int], Codec]) -> Callable[..., Codec]:
    return lambda level: codec(6 if level == -1 else level)  # zlib's default level, 6, is also spelled -1


def _numcodecs_blosc(cname: str, clevel: int, shuffle: int, blocksize: int, typesize: int) -> Codec:
    """Return the `Blosc` codec for numcodecs' configuration: the shuffle is a number, the typesize is 1 by default."""
    as_int(shuffle, "shuffle", minimum=-1, maximum=2)
    automatic = "bitshuffle" if typesize == 1 else "shuffle"
    name = automatic if shuffle == -1 else BLOSC_SHUFFLES[shuffle]
    return Blosc(cname, clevel, name, typesize, blocksize)


def _numcodecs_crc32c(location: str) -> Codec:
    if location == "start":
        unsupported("location", "expected end, got start, which is not supported", codec="numcodecs.crc32c")
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


# The parsers of the configurations of numcodecs, by their ``id``.
NUMCODECS: dict[str, _Parser] = {
    "zstd": _numcodecs("zstd", Zstd, level=0, checksum=False),
    "gzip": _numcodecs("gzip", _deflate(Gzip), level=1),
    "zlib": _numcodecs("zlib", _deflate(Zlib), level=1),
    "lz4": _numcodecs("lz4", Lz4, acceleration=1),
    "crc32c": _numcodecs("crc32c", _numcodecs_crc32c, location="end"),
    "blosc": _numcodecs("blosc", _numcodecs_blosc, cname="lz4", clevel=5, shuffle=1, blocksize=0, typesize=1),
}

_PARSERS: dict[str, _Parser] = {
    "bytes": _plain(Bytes, "endian"),
    "transpose": _plain(Transpose, required=("order",)),
    "sharding_indexed": parse_sharding,
    "crc32c": _plain(Crc32c),
    "zstd": _plain(Zstd, "level", "checksum"),
    "gzip": _plain(Gzip, "level"),
    "blosc": _plain(Blosc, "cname", "clevel", "shuffle", "typesize", "blocksize"),
    # Names under which zarr-python runs numcodecs. If a codec above has the same stored bytes, its name is written.
    **{f"numcodecs.{name}": parser for name, parser in NUMCODECS.items()},
}
