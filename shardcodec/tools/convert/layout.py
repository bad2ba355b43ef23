# layout.py - the layout and the codecs of the new array; are chunks moved or encoded again?
# SPDX-License-Identifier: MIT
"""The layout and the codecs of the new array, and whether its chunks are moved or encoded again.

`new_layout` completes the `Choices` for one array: metadata, and whether chunks move.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...compat import READS_SHARDS_OF_STRUCTS, data_type_of, refusal_of
from ...errors import ShardError, UnsupportedError
from ...format.byte_document import byte_document, inner_codecs
from ...format.codecs import SERIALIZERS, Bytes, Codec, CodecLike, compose_transposes, parse_codecs
from ...format.dtypes import swap_fields
from ...format.spec import ChainSpec, ShardSpec
from ..foreign_chunks import ForeignChunks
from .choices import Choices, chunks_of_source
from .source import EncodedChunks, Ints, SourceArray
from .stored_objects import Coords

__all__ = [
    "NewLayout",
    "RecodedChunks",
    "chunks_of",
    "codec_names",
    "codec_notes",
    "has_shards",
    "kept_layout",
    "new_layout",
    "parse_codec_list",
]

# Default size of a shard, decoded.
SHARD_NBYTES = 512 << 20


@dataclass(frozen=True)
class NewLayout:
    """The encoding of one new array.

    Attributes
    ----------
    document : dict
        Its ``zarr.json``.
    method : {"move", "encode", "zarr"}
        Encoded chunks of the source become inner chunks; elements are encoded; or zarr's codecs encode them, for a data type that
        the engine does not have.
    reason : str
        Why chunks are not moved.
    kept : str
        Why the array keeps its layout, though the user wants another one; empty if it does not.
    """

    document: dict[str, Any]
    method: str
    reason: str = ""
    kept: str = ""


def parse_codec_list(text: str) -> tuple[CodecLike, ...]:
    """Return codecs from a JSON list, or from names such as ``zstd,crc32c``; the codec `bytes` is added later if it is missing."""
    if not text.lstrip().startswith("["):
        return tuple(name.strip() for name in text.split(",") if name.strip() not in ("", "none"))
    try:
        codecs = json.loads(text)
    except ValueError as error:
        raise ValueError(
            f"expected names such as zstd,crc32c or a JSON list, got {text!r}: {error}"
        ) from error
    return tuple(codecs)


def new_layout(source: SourceArray, choices: Choices) -> NewLayout:
    """Choose the encoding of one new array; errors name the array."""
    try:
        return _layout(source, choices)
    except ShardError as error:
        raise type(error)(f"array {source.place}: {error.message}", **error.context) from error


def kept_layout(source: SourceArray, kept: str) -> NewLayout:
    """Return the encoding of a new array that has chunks, shards and codecs of its source; `kept` says why."""
    shards = source.shard_shape if source.encoding is not None else None
    choices = Choices(shards=shards, has_shards=shards is not None)
    return replace(new_layout(source, choices), kept=kept)


def _without_shards(source: SourceArray, choices: Choices) -> NewLayout:
    chunks, reason = choices.chunks or chunks_of_source(source), "the array has no shards"
    if source.bytes is not None:
        chain = ChainSpec(chunks, source.dtype, source.fill_value, _opaque_codecs(source))
        can_move = source.encoding is not None and source.chunks == chunks
        return _completed(source, choices, None, chain, "" if can_move else reason)
    chain = ChainSpec(chunks, source.dtype, source.fill_value, _codecs(source, choices, None))
    return NewLayout(_document(source, chain), "encode", reason)


def _layout(source: SourceArray, choices: Choices) -> NewLayout:
    if not choices.has_shards and source.shape:
        return _without_shards(source, choices)
    like = _like(choices, source)
    before = _before(source, choices, like)
    is_opaque = source.bytes is not None and source.bytes.codec is not None
    codecs = _opaque_codecs(source) if is_opaque else _codecs(source, choices, like)
    if not source.shape:
        chain = ChainSpec((), source.dtype, source.fill_value, codecs)
        if source.bytes is not None and source.encoding is not None:
            return _completed(source, Choices(), None, chain, "")
        return _completed(source, choices, like, chain, "an array without axes has no shards")
    chunks = (
        _fitting(choices.chunks, "chunks", source) or (like and chunks_of(like)) or chunks_of_source(source)
    )
    shards = _shards(source, choices, like, chunks)
    perm = compose_transposes(before, len(chunks))
    stored = tuple(chunks[axis] for axis in perm)
    location = like.sharding.index_location if like and like.sharding else "end"
    spec = ShardSpec(
        shards, stored, source.dtype, source.fill_value, codecs, index_location=location, before=before
    )
    return _completed(source, choices, like, spec.chain, _obstacle(source, spec, chunks))


def _like(choices: Choices, source: SourceArray) -> ChainSpec | None:
    if choices.like is None:
        return None
    chain = ChainSpec.from_metadata(
        choices.like.document if choices.like.bytes is None else choices.like.bytes.document
    )
    if chain.ndim != len(source.shape):
        raise ValueError(
            f"like: expected an array with {len(source.shape)} axes, as {source.place} has, got {chain.ndim}"
        )
    return chain


def _before(source: SourceArray, choices: Choices, like: ChainSpec | None) -> tuple[Codec, ...]:
    """Return the transposes before the sharding."""
    if like is not None and choices.codecs is None:
        return ShardSpec.from_chain(like).before if like.sharding else ()
    if choices.codecs is None and source.encoding is not None:
        return source.encoding.before
    return ()


def _codecs(source: SourceArray, choices: Choices, like: ChainSpec | None) -> tuple[CodecLike, ...]:
    """Return the codecs of an inner chunk."""
    if choices.codecs is not None:
        return _with_bytes(choices.codecs, source)
    if like is not None:
        return like.sharding.codecs if like.sharding else like.codecs
    if source.encoding is not None:
        return source.encoding.codecs
    return _with_bytes(("zstd",), source)


def _with_bytes(codecs: tuple[CodecLike, ...], source: SourceArray) -> tuple[CodecLike, ...]:
    names = [_name(codec) for codec in codecs]
    endian = "little" if swap_fields(source.dtype) else None
    if not any(name in SERIALIZERS for name in names):
        n = sum(name == "transpose" for name in names)
        return (*codecs[:n], Bytes(endian), *codecs[n:])  # type: ignore[arg-type]
    return tuple(Bytes(endian) if codec == "bytes" else codec for codec in codecs)  # type: ignore[arg-type]


def _name(codec: CodecLike) -> str:
    if isinstance(codec, Codec):
        return codec.json_name
    return str(codec.get("name")) if isinstance(codec, Mapping) else codec


def _fitting(shape: Ints | None, name: str, source: SourceArray) -> Ints | None:
    if shape is not None and (len(shape) != len(source.shape) or min(shape) < 1):
        raise ValueError(
            f"{name}: expected {len(source.shape)} positive numbers for {source.place} of shape {source.shape}, got {shape}"
        )
    return shape


def chunks_of(chain: ChainSpec) -> Ints:
    """Return the shape of an inner chunk by axis of the array, or of a chunk."""
    if chain.inner is None:
        return chain.shape
    shape = [0] * chain.ndim
    for stored, axis in enumerate(chain.perm):
        shape[axis] = chain.inner.shape[stored]
    return tuple(shape)


def _shards(source: SourceArray, choices: Choices, like: ChainSpec | None, chunks: Ints) -> Ints:
    if isinstance(choices.shards, tuple):
        shards = _fitting(choices.shards, "shards", source)
        assert shards is not None
    elif choices.shards is None and like is not None and like.sharding is not None:
        shards = like.shape
    else:
        return _compact_shard(source, chunks, choices.shards or SHARD_NBYTES)
    for axis, (shard, chunk) in enumerate(zip(shards, chunks, strict=True)):
        if shard % chunk:
            raise ValueError(
                f"shards: expected a multiple of the inner chunk, {chunk}, along axis {axis} of {source.place}, got {shard}"
            )
    return shards


def _compact_shard(source: SourceArray, chunks: Ints, nbytes: int) -> Ints:
    """Return the largest compact shard of whole inner chunks within a number of bytes; it does not exceed the array."""
    most = [max(1, -(-n // size)) for n, size in zip(source.shape, chunks, strict=True)]
    counts = [1] * len(chunks)
    chunk_nbytes = math.prod(chunks) * source.dtype.itemsize
    while True:
        # the shortest side first, measured in elements; of equal ones the last axis
        axes = sorted(range(len(chunks)), key=lambda axis: (counts[axis] * chunks[axis], -axis))
        for axis in axes:
            more = min(2 * counts[axis], most[axis])
            if more > counts[axis] and math.prod(counts) // counts[axis] * more * chunk_nbytes <= nbytes:
                counts[axis] = more
                break
        else:
            return tuple(n * size for n, size in zip(counts, chunks, strict=True))


def _obstacle(source: SourceArray, spec: ShardSpec, chunks: Ints) -> str:
    """Return why encoded chunks of the source cannot become inner chunks; empty if they can."""
    if source.encoding is None:
        return "the source has no encoded chunks that shardcodec can move"
    if chunks != source.chunks:
        return f"inner chunks of {chunks} differ from the chunks of the source, {source.chunks}"
    if spec.dtype != source.dtype:
        return "the data type differs"
    old = compose_transposes(source.encoding.before, spec.ndim)
    if old != compose_transposes(spec.before, spec.ndim):
        return "the transposes before the sharding differ"
    try:
        inner = ChainSpec(spec.chunk_shape, source.dtype, source.fill_value, source.encoding.codecs)
    except ShardError as error:
        return error.message
    return "" if inner == spec.inner else "the codecs of the inner chunks differ"


def _opaque_codecs(source: SourceArray) -> tuple[Codec, ...]:
    """Return codecs that stand for those that the engine does not have."""
    assert source.bytes is not None
    if source.encoding is not None:
        return source.encoding.codecs
    return ChainSpec.from_metadata(source.bytes.document).codecs


def _completed(
    source: SourceArray, choices: Choices, like: ChainSpec | None, chain: ChainSpec, reason: str
) -> NewLayout:
    """Return the layout of new shards; `reason` says why chunks cannot be moved. Elements that nothing encodes must be moved."""
    document = _document(source, chain)
    stored = source.bytes
    if stored is None:
        return NewLayout(document, "encode" if reason else "move", reason)
    if stored.codec is None and not reason:
        return NewLayout(stored.restored(document), "move")
    if stored.codec is None and stored.has_fill:
        inner = chain.codecs if chain.inner is None else chain.inner.codecs
        is_raw = source.dtype.kind == "V"  # raw bytes have lost the byte order
        codecs = [
            stored.serializer if is_raw and isinstance(codec, Bytes) else codec.to_json() for codec in inner
        ]
        return NewLayout(stored.restored(document, codecs), "encode", reason)
    behind = _codecs_behind(source, choices, like)
    new = stored.restored(document, None if behind is None else [stored.serializer, *behind])
    if behind is not None and not reason:
        reason = "" if _normal(new) == _normal(stored.stored) else "the codecs of the inner chunks differ"
    if not reason:
        return NewLayout(stored.restored(document), "move")
    can_encode = stored.serializer is not None and stored.codec is not None
    if not can_encode or ForeignChunks.of(new) is None:
        raise UnsupportedError(
            f"expected a layout whose inner chunks are the chunks of the source, because shardcodec does not encode "
            f"{stored.data_type}: {reason}; choose other arrays with --only",
            data_type=stored.data_type,
        )
    return NewLayout(new, "zarr", reason)


def _codecs_behind(
    source: SourceArray, choices: Choices, like: ChainSpec | None
) -> list[dict[str, Any]] | None:
    """Return the bytes -> bytes codecs that the user wants; None for those of the source."""
    if choices.codecs is None and like is None:
        return None
    given = parse_codecs(_codecs(source, choices, like), "codecs")
    return [codec.to_json() for codec in given if codec.kind == "bytes -> bytes"]


def _normal(document: Mapping[str, Any]) -> list[Any]:
    """Return the codecs of an inner chunk with all defaults, as far as the engine has them."""
    codecs = []
    for codec in inner_codecs(document["codecs"]):
        try:
            codecs.append(parse_codecs((codec,), "codecs")[0].to_json())
        except ShardError:
            codecs.append({"name": _name(codec), **(codec.get("configuration") or {})})
    return codecs


def _document(source: SourceArray, chain: ChainSpec) -> dict[str, Any]:
    new = chain.to_metadata(
        source.shape, attributes=source.attributes, dimension_names=source.dimension_names
    )
    if source.bytes is not None and source.document is None:
        return new
    if source.document is not None:  # further members, and the data type as the source spells it
        kept = {
            name: value
            for name, value in source.document.items()
            if name not in ("shape", "chunk_grid", "codecs", "chunk_key_encoding", "storage_transformers")
        }
        return {**new, **kept}
    return new if source.dtype.names is None else _with_fields(source, new)


def _with_fields(source: SourceArray, document: dict[str, Any]) -> dict[str, Any]:
    """Return the document of an array of structs, whose data type has another name in each version of zarr."""
    kind, fill = data_type_of(source.dtype, source.fill_value)
    if kind != document["data_type"]:
        document = {**document, "data_type": kind, "fill_value": fill}
    if (reason := refusal_of(document)) is not None:
        raise UnsupportedError(f"this version of zarr cannot read structs of type {source.dtype}: {reason}")
    return document


# Codecs that every library of Zarr v3 should have, in place of those of numcodecs. zstd does for all others.
_CORE = {"numcodecs.zlib": "gzip", "numcodecs.gzip": "gzip", "numcodecs.blosc": "blosc"}
# They only say how elements are laid out.
_LAYOUT_CODECS = frozenset({"bytes", "vlen-utf8", "vlen-bytes", "transpose", "sharding_indexed"})


def has_shards(document: Mapping[str, Any]) -> bool:
    """Return True if the metadata of Zarr v3 are those of a sharded array."""
    return any(
        isinstance(codec, Mapping) and codec.get("name") == "sharding_indexed" for codec in document["codecs"]
    )


def codec_names(codecs: Any) -> list[str]:
    """Return the names of codecs in the metadata of Zarr v3; those in shards in place of the sharding codec."""
    names = []
    for codec in codecs:
        name = codec.get("name") if isinstance(codec, Mapping) else codec
        if name == "sharding_indexed":
            names += codec_names(codec["configuration"]["codecs"])
        else:
            names.append(str(name))
    return names


def codec_notes(source: SourceArray, document: Mapping[str, Any]) -> tuple[str, ...]:
    """Return sentences on codecs that the new array does not keep, and on codecs and shards that other libraries do not read."""
    names = codec_names(document["codecs"])
    notes = []
    has = {name.removeprefix("numcodecs.") for name in names}
    lost = [
        name
        for name in source.codec_names
        if name not in _LAYOUT_CODECS and name.removeprefix("numcodecs.") not in has
    ]
    if lost and source.encoding is None:  # otherwise the user has chosen other ones
        notes.append(
            f"codecs of the source that are not kept: {', '.join(lost)}; elements are stored as {source.data_type} with {', '.join(names)}"
        )
    foreign = [name for name in names if name.startswith("numcodecs.")]
    if foreign:
        known = [_CORE.get(name, "zstd") if name in foreign else name for name in names]
        core = ",".join(dict.fromkeys(name for name in known if name not in _LAYOUT_CODECS))
        notes.append(
            f"zarr-python reads {', '.join(foreign)}, TensorStore and others do not; all read chunks made with --codecs {core}"
        )
    if source.dtype.kind == "V" and has_shards(document) and not READS_SHARDS_OF_STRUCTS:
        what = "raw bytes" if source.dtype.names is None else "structs"
        notes.append(
            f"zarr-python before 3.2 reads shards of {what} only with `shardcodec.enable()` or `attach`"
        )
    return tuple(notes)


# `RecodedChunks`: elements of a type that the engine does not have, such as strings, encoded for new inner chunks.


class RecodedChunks(EncodedChunks):
    """The elements of a source as encoded chunks of a new array; `document` is its ``zarr.json``."""

    def __init__(self, source: SourceArray, document: Mapping[str, Any]) -> None:
        foreign = ForeignChunks.of(document)
        if foreign is None:
            raise UnsupportedError(f"{source.place}: zarr does not have the data type {source.data_type}")
        chain = byte_document(document).chain
        self._source, self._foreign, self._chunk = source, foreign, chunks_of(chain)
        self._perm = chain.perm if chain.sharding is not None else tuple(range(chain.ndim))
        self._values = source.elements()

    def joined(self, coords: Coords, most_nbytes: int) -> Iterator[tuple[Coords, Sequence[int], Any]]:
        for at in coords:
            data = self._encoded(tuple(at.tolist()))
            if data is not None:
                yield at[None], [len(data)], data

    def _encoded(self, at: tuple[int, ...]) -> bytes | None:
        """Return an encoded chunk; None if all its elements have the fill value."""
        fill = self._foreign.fill
        chunk = np.full(self._chunk, fill, fill.dtype)
        low = [i * size for i, size in zip(at, self._chunk, strict=True)]
        n = [
            min(size, limit - a) for a, size, limit in zip(low, self._chunk, self._source.shape, strict=True)
        ]
        chunk[tuple(map(slice, n))] = self._values[
            tuple(slice(a, a + k) for a, k in zip(low, n, strict=True))
        ]
        stored = chunk.transpose(self._perm)
        return self._foreign.encode(stored if stored.flags.c_contiguous else stored.copy())
