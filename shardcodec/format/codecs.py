# codecs.py - the table of codecs; from JSON to the codecs of a chain, and their order
# SPDX-License-Identifier: MIT
"""The table of codecs, and `Sharding`, whose JSON has lists of codecs.

`format/codec_classes.py` has the classes of all other codecs, whose names are importable from here, too.

Source: Zarr v3 codec `sharding_indexed` 1.0; for the codecs of numcodecs, the names of zarr-python.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from .checks import (
    as_int,
    as_int_tuple,
    as_items,
    check_keys,
    parse_named,
    show,
    unknown_codec,
    unsupported,
    within,
    wrong,
)
from .codec_classes import (
    BLOSC_COMPRESSORS,
    BLOSC_SHUFFLES,
    Adler32,
    Blosc,
    Bytes,
    Checksum,
    Codec,
    CodecLike,
    Crc32,
    Crc32c,
    Crc32cAtStart,
    Endian,
    Fletcher32,
    Gzip,
    JenkinsLookup3,
    Kind,
    Lz4,
    RegistryPackBits,
    Shape,
    Shuffle,
    Transpose,
    Zlib,
    Zstd,
)
from .dtypes import DType
from .extension_filters import CastValue, ScaleOffset
from .filters import (
    AsType,
    BitRound,
    Delta,
    Filter,
    FixedScaleOffset,
    PackBits,
    Quantize,
    RegistryBitRound,
)

__all__ = [
    "BLOSC_COMPRESSORS",
    "BLOSC_SHUFFLES",
    "COMPRESSORS",
    "NUMCODECS",
    "ROWS",
    "SERIALIZERS",
    "Adler32",
    "AsType",
    "BitRound",
    "Blosc",
    "Bytes",
    "CastValue",
    "Checksum",
    "Codec",
    "CodecLike",
    "Crc32",
    "Crc32c",
    "Crc32cAtStart",
    "Delta",
    "Endian",
    "Filter",
    "FixedScaleOffset",
    "Fletcher32",
    "Gzip",
    "JenkinsLookup3",
    "Lz4",
    "PackBits",
    "Quantize",
    "RegistryBitRound",
    "RegistryPackBits",
    "ScaleOffset",
    "Shape",
    "Sharding",
    "Shuffle",
    "Transpose",
    "Zlib",
    "Zstd",
    "allow_clipping",
    "check_fill",
    "check_filters",
    "compose_transposes",
    "parse_codecs",
    "parse_sharding",
    "resolve_codecs",
]

IndexLocation = Literal["start", "end"]

# An index of 2^30 pairs takes 16 GiB. The limit, the same as TensorStore's, catches a mistyped shape before it
# exhausts the memory.
MAX_CHUNKS_PER_SHARD = 2**30

# Shards inside each other that the engine permits (SC_MAX_DEPTH of csrc/chain/sc_chain.h is one more).
MAX_LEVELS = 7

_INDEX_DTYPE: DType = np.dtype("uint64")

# Codecs whose encoded size does not depend on the data. An index may have only these, because a reader locates it by
# its size; the engine reads and writes an index with these.
_INDEX_CODECS = ("transpose", "bytes", "crc32c", "numcodecs.crc32c")


@dataclass(frozen=True)
class Sharding(Codec):
    """Inner chunks and an index in one object.

    With `clip`, `chunk_shape` need not divide the shard (draft 1.1 of the codec): the last inner chunks along an axis are
    clipped to the shard. `clip` is a permission. JSON and equality ignore it, because the shapes define the stored bytes.
    """

    json_name: ClassVar[str] = "sharding_indexed"
    kind: ClassVar[Kind] = "array -> bytes"

    chunk_shape: tuple[int, ...]
    codecs: tuple[Codec, ...] = (Bytes("little"),)
    index_codecs: tuple[Codec, ...] = (Bytes("little"), Crc32c())
    index_location: IndexLocation = "end"
    clip: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunk_shape", as_int_tuple(self.chunk_shape, "chunk_shape", minimum=1))
        object.__setattr__(self, "codecs", parse_codecs(self.codecs, "codecs"))
        if self.levels > MAX_LEVELS:
            what = f"expected at most {MAX_LEVELS} shards inside each other, got more"
            unsupported("codecs", what, codec=self.json_name, limit=MAX_LEVELS)
        object.__setattr__(self, "index_codecs", _parse_index_codecs(self.index_codecs))
        location: object = self.index_location
        if not isinstance(location, str) or location not in ("start", "end"):
            reason = f"expected start or end, got {show(self.index_location)}"
            wrong("index_location", reason, actual=self.index_location)

    @property
    def levels(self) -> int:
        """Number of shards inside each other, with this one."""
        return 1 + max((codec.levels for codec in self.codecs if isinstance(codec, Sharding)), default=0)

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
        if isinstance(item, Codec):
            codecs.append(item)
            continue
        with within(f"{path}[{i}]"):
            codecs.append(_parse_codec(item, lenient))
    _check_order(codecs, path)
    return tuple(codecs)


def _parse_codec(data: object, lenient: bool) -> Codec:
    name, configuration = parse_named(data)
    if name not in _PARSERS:
        unknown_codec("", name, _PARSERS)
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
    codecs = parse_codecs(items, "index_codecs")
    for i, codec in enumerate(codecs):
        if isinstance(codec, Crc32cAtStart):
            unsupported(
                f"index_codecs[{i}]", "expected the checksum of an index behind it", codec=codec.json_name
            )
    return codecs


def _check_index_codec(item: object, path: str) -> None:
    """Refuse a codec that is not in `_INDEX_CODECS`; leave malformed items to `parse_codecs`."""
    name = item.get("name") if isinstance(item, dict | Mapping) else getattr(item, "json_name", item)
    if not isinstance(name, str) or name in _INDEX_CODECS:
        return
    reason = f"expected a codec of fixed size for an index ({', '.join(_INDEX_CODECS)})"
    if name in _PARSERS and name not in _OF_FIXED_SIZE:
        wrong(
            path, f"{reason}, but {name} has no fixed size, so a reader cannot locate the index", codec=name
        )
    where = " for an index" if name in _PARSERS else ""
    unsupported(path, f"{reason}, but shardcodec does not implement codec {show(name)}{where}", codec=name)


def resolve_codecs(codecs: Sequence[Codec], shape: Shape, dtype: DType, path: str) -> tuple[Codec, ...]:
    """Check each codec for chunks of this shape and data type; return the codecs with omitted values filled in.

    A codec gets the shape and the data type that the codecs before it return. A byte order is removed if the elements have none. Errors
    (`SpecError`, `UnsupportedError`) name the codec as ``path[i]``.
    """
    resolved: list[Codec] = []
    filters: dict[type[Codec], Codec] = {}  # the first one of each class: the others permit the same codecs
    last: tuple[Codec, ...] = ()
    nbytes: int | None = math.prod(shape) * dtype.itemsize
    for i, codec in enumerate(codecs):
        if filters:
            check_filters((*filters.values(), *last), codec, f"{path}[{i}].configuration")
        with within(f"{path}[{i}].configuration"):
            codec = codec.resolve(shape, dtype)
            if isinstance(codec, Shuffle):
                codec.check_input(nbytes)
        if isinstance(codec, Transpose):
            shape = codec.apply(shape)
        if isinstance(codec, Filter):
            shape, dtype = codec.output(shape, dtype)
            filters.setdefault(type(codec), codec)
            last = (codec,)
        nbytes = None if nbytes is None else codec.encoded_nbytes(nbytes)
        resolved.append(codec)
    return tuple(resolved)


def check_filters(before: Iterable[Codec], codec: Codec, path: str) -> None:
    """Refuse a codec of arrays that one of the filters before it does not permit; the byte order is that of the last one."""
    filters = [earlier for earlier in before if isinstance(earlier, Filter)]
    for earlier in filters[-1:] if isinstance(codec, Bytes) else filters:
        if codec.kind != "bytes -> bytes":
            with within(path):
                earlier.check_follower(codec)


def check_fill(codecs: Iterable[Codec], fill: bytes, path: str) -> None:
    """Refuse a fill value that a filter cannot encode; `codecs` are resolved, `fill` is an element in native byte order."""
    for i, codec in enumerate(codecs):
        if isinstance(codec, Sharding):
            check_fill(codec.codecs, fill, f"{path}[{i}].configuration.codecs")
        if not isinstance(codec, Filter):
            continue
        with within(f"{path}[{i}]"):
            encoded = codec.encoded_fill(fill)
        if encoded is None:
            return
        fill = encoded


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


def _numcodecs(name: str, codec: Callable[..., Codec], required: Sequence[str], **defaults: Any) -> _Parser:
    """Return a parser for a codec under its numcodecs name, with the defaults of numcodecs."""

    def parse(configuration: Mapping[str, Any], lenient: bool) -> Codec:
        check_keys(configuration, "", required=required, optional=("id", *defaults))
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
    if location not in ("start", "end"):
        wrong("location", f"expected start or end, got {show(location)}", actual=location)
    return Crc32cAtStart() if location == "start" else Crc32c()


def _jenkins(initval: int, prefix: object) -> Codec:
    if initval or prefix:
        key = "initval" if initval else "prefix"
        unsupported(key, "expected none, the default", codec=JenkinsLookup3.json_name)
    return JenkinsLookup3()


def _registry_packbits(configuration: Mapping[str, Any], lenient: bool) -> Codec:
    given = {
        key: value for key, value in configuration.items() if value is not None or not key.endswith("_bit")
    }
    return _plain(RegistryPackBits, "padding_encoding", "first_bit", "last_bit")(given, lenient)


def parse_sharding(configuration: Mapping[str, Any], lenient: bool) -> Sharding:
    """Read the configuration of `sharding_indexed`; see `parse_codecs` for ``lenient``."""
    lists = ("codecs", "index_codecs")
    required = ("chunk_shape",) if lenient else ("chunk_shape", *lists)
    check_keys(configuration, "", required=required, optional=(*lists, "index_location"))
    given = dict(configuration)
    if "codecs" in given:
        given["codecs"] = parse_codecs(given["codecs"], "codecs", lenient=lenient)
    return Sharding(**given)


class Row(NamedTuple):
    """A codec in the table: its class, the parser of its own configuration, and that of numcodecs with its ``id``."""

    codec: type[Codec]
    parse: _Parser | None = None
    numcodecs_id: str | None = None
    parse_numcodecs: _Parser | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """All names in Zarr v3."""
        name = self.codec.json_name
        alias = f"numcodecs.{self.numcodecs_id}"
        return (name,) if self.numcodecs_id is None or alias == name else (name, alias)


def _numcodecs_row(
    codec: type[Codec],
    name: str,
    make: Callable[..., Codec] | None = None,
    parse: _Parser | None = None,
    required: Sequence[str] = (),
    **defaults: Any,
) -> Row:
    return Row(codec, parse, name, _numcodecs(name, make or codec, required, **defaults))


# The one table of codecs. All tables below follow from it, and tests compare it with the engine and the docs.
ROWS: tuple[Row, ...] = (
    Row(Bytes, _plain(Bytes, "endian")),
    Row(Transpose, _plain(Transpose, required=("order",))),
    Row(Sharding, parse_sharding),
    _numcodecs_row(Crc32c, "crc32c", _numcodecs_crc32c, _plain(Crc32c), location="end"),
    _numcodecs_row(Zstd, "zstd", None, _plain(Zstd, "level", "checksum"), level=0, checksum=False),
    _numcodecs_row(Gzip, "gzip", _deflate(Gzip), _plain(Gzip, "level"), level=1),
    _numcodecs_row(
        Blosc,
        "blosc",
        _numcodecs_blosc,
        _plain(Blosc, "cname", "clevel", "shuffle", "typesize", "blocksize"),
        cname="lz4",
        clevel=5,
        shuffle=1,
        blocksize=0,
        typesize=1,
    ),
    _numcodecs_row(Zlib, "zlib", _deflate(Zlib), level=1),
    _numcodecs_row(Lz4, "lz4", acceleration=1),
    _numcodecs_row(Shuffle, "shuffle", elementsize=None),
    _numcodecs_row(Fletcher32, "fletcher32"),
    _numcodecs_row(Crc32, "crc32", location="start"),
    _numcodecs_row(Adler32, "adler32", location="start"),
    _numcodecs_row(JenkinsLookup3, "jenkins_lookup3", _jenkins, initval=0, prefix=None),
    _numcodecs_row(Delta, "delta", dtype=None, astype=None),
    _numcodecs_row(
        FixedScaleOffset, "fixedscaleoffset", required=("offset", "scale"), dtype=None, astype=None
    ),
    _numcodecs_row(BitRound, "bitround", required=("keepbits",)),
    Row(RegistryBitRound, _plain(RegistryBitRound, required=("keepbits",))),
    _numcodecs_row(Quantize, "quantize", required=("digits",), dtype=None, astype=None),
    _numcodecs_row(AsType, "astype", required=("encode_dtype",), decode_dtype=None),
    _numcodecs_row(PackBits, "packbits"),
    Row(RegistryPackBits, _registry_packbits),
    Row(ScaleOffset, _plain(ScaleOffset, "offset", "scale")),
    Row(CastValue, _plain(CastValue, "rounding", "out_of_range", "scalar_map", required=("data_type",))),
)

# Names of the codecs whose encoded chunks have any size.
COMPRESSORS = frozenset(
    name
    for row in ROWS
    if row.codec.encoded_nbytes is Codec.encoded_nbytes and row.codec is not Sharding
    for name in row.names
)
# Names of the codecs that turn elements into bytes.
SERIALIZERS = frozenset(row.codec.json_name for row in ROWS if row.codec.kind == "array -> bytes")
_OF_FIXED_SIZE = frozenset(name for row in ROWS for name in row.names) - COMPRESSORS - {Sharding.json_name}

# The parsers of the configurations of numcodecs, by their ``id``.
NUMCODECS: dict[str, _Parser] = {
    row.numcodecs_id: row.parse_numcodecs for row in ROWS if row.numcodecs_id and row.parse_numcodecs
}

_PARSERS: dict[str, _Parser] = {
    **{row.codec.json_name: row.parse for row in ROWS if row.parse},
    # Names under which zarr-python runs numcodecs. If a codec above has the same stored bytes, its name is written.
    **{f"numcodecs.{name}": parser for name, parser in NUMCODECS.items()},
}
