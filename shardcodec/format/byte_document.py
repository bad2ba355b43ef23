# byte_document.py - arrays whose inner chunks the engine moves as bytes
# SPDX-License-Identifier: MIT
"""A document for the engine in place of one with a data type or codecs that the engine does not have.

Shards, indexes and checksums have no data type. So the new document has the same shards, index and keys, and elements and
codecs of inner chunks that the engine has:

    bfloat16, int4, float8 ...      integers of the same size and sign; the codecs stay, and are checked by decoding
    complex_bfloat16 ...            raw elements of the same size; the codecs stay if they take them
    string, variable_length_bytes   raw elements, and codecs that permit inner chunks of any size
    any other data type or codec    the same
    |O of Zarr v2 with vlen-utf8    the same, by way of the ``zarr.json`` of an array of strings with equal chunks

Source: zarr-extensions, ``data-types``; TensorStore, driver ``zarr3``; numcodecs (``vlen-utf8``, ``vlen-bytes``).
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..errors import ShardError, UnsupportedError
from .array_document import ArrayLayout, parse_document
from .checks import bounded_depth, parse_named, show, within
from .codecs import COMPRESSORS, SERIALIZERS, Codec, Filter, RegistryPackBits, Sharding, parse_codecs
from .dtypes import DType, parse_data_type
from .fill_values import fill_from_json
from .ml_types import COMPLEX_NBYTES, ML_NBYTES, ml_bits, ml_dtype, ml_kind
from .spec import ChainSpec
from .zarray_members import TEXT_CODECS, document_in_v3, has_text

__all__ = ["ByteDocument", "byte_document", "inner_codecs"]

Document = Mapping[str, Any]

# Bytes of an element of the types that the codec `bytes` stores, and numpy itself does not have. They are moved as bytes also if
# `ml_dtypes` is installed, so that a tool does the same everywhere.
_SIZES = ML_NBYTES | COMPLEX_NBYTES
# Assumed bytes of an element of any other type, to estimate sizes in memory.
_USUAL_NBYTES = 16

_BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
_ZSTD = {"name": "zstd", "configuration": {"level": 0}}
_FLOAT32: DType = np.dtype("float32")
_CHECKSUMS = frozenset({"crc32c", "numcodecs.crc32c"})


@dataclass(frozen=True)
class ByteDocument:
    """The metadata of an array, and a document that the engine can use.

    Attributes
    ----------
    stored : mapping
        The ``zarr.json`` of the array. For an array of Zarr v2, a ``zarr.json`` of the same chunks, or the ``.zarray`` if Zarr v3
        may not have its data type and filters.
    document : mapping
        The document for the engine; `stored` itself if the engine has the data type and all codecs.
    data_type : str or None
        Name of the data type that the engine does not have.
    codec : str or None
        Name of the codec, or of the first one, that the engine does not have.
    has_fill : bool
        The fill value of `document` has the bits of that of `stored`.
    """

    stored: Document
    document: Document
    data_type: str | None = None
    codec: str | None = None
    has_fill: bool = True

    @cached_property
    def layout(self) -> ArrayLayout:
        """Shape, grid, data type, fill value and codecs of `document`."""
        return parse_document(self.document)

    @cached_property
    def chain(self) -> ChainSpec:
        """The encoding of a chunk of `document`."""
        return ChainSpec.from_metadata(self.document)

    @property
    def is_foreign(self) -> bool:
        """True if the engine does not decode to the elements of the array."""
        return self.data_type is not None or self.codec is not None

    @property
    def has_item_size(self) -> bool:
        """False if elements have any number of bytes."""
        return self.data_type is None or self.data_type in _SIZES

    @property
    def serializer(self) -> Any:
        """The array -> bytes codec, as the metadata spell it; None if it is unknown."""
        codecs = inner_codecs(self.stored["codecs"])
        while any(map(_is_sharding, codecs)):
            codecs = inner_codecs(codecs)
        first = next((codec for codec in codecs if _codec_name(codec) != "transpose"), None)
        return first if _codec_name(first) in SERIALIZERS | TEXT_CODECS.keys() else None

    def restored(self, document: Document, codecs: Sequence[Any] | None = None) -> dict[str, Any]:
        """Return the ``zarr.json`` of a new array with elements of this data type.

        Parameters
        ----------
        document : mapping
            The engine's document of the new shards.
        codecs : sequence, optional
            Codecs of the new inner chunks. By default those of this array, whose encoded chunks are moved.
        """
        kept = {name: self.stored[name] for name in ("data_type", "fill_value")}
        inner = inner_codecs(self.stored["codecs"]) if codecs is None else codecs
        return {**document, **kept, "codecs": with_inner_codecs(document["codecs"], inner)}


@bounded_depth("metadata")
def byte_document(document: Document) -> ByteDocument:
    """Return the metadata of an array with a document that the engine can use.

    Raises
    ------
    SpecError
        The document is invalid.
    UnsupportedError
        The engine has no document with the same grid.
    """
    stored, name, has_fill = document, None, True
    if document.get("zarr_format") == 2:
        try:
            in_v3 = document_in_v3(document, _SIZES)
            if in_v3 is None:
                parse_document(document)
                return ByteDocument(document, document)
        except UnsupportedError as error:
            return _grid_of_v2(document, error)
        stored = in_v3
    with_data_type = stored
    if _is_foreign(stored.get("data_type")):
        name = _name_of(stored.get("data_type"))
        itemsize = _SIZES.get(name)
        nbytes = itemsize or _USUAL_NBYTES
        fill = _fill(name, nbytes, stored.get("fill_value"))
        with_data_type = _with_elements(stored, name, fill or bytes(nbytes))
        if itemsize is None:
            return ByteDocument(
                stored, _with_any_size(with_data_type), name, _first_codec(stored), has_fill=False
            )
        has_fill = fill is not None
    found = ByteDocument(stored, with_data_type, name, has_fill=has_fill)
    _ = found.layout
    try:
        _ = found.chain
    except UnsupportedError as error:
        codec = str(error.codec or error.message)
        return replace(found, document=_with_any_size(with_data_type), codec=codec)
    return found


def _with_elements(document: Document, name: str, fill: bytes) -> Document:
    """Return the document with elements that the engine has, of as many bytes as `fill`, in place of those of the data type `name`."""
    data_type, value = f"r{8 * len(fill)}", list(fill)
    codecs = _integer_codecs(document.get("codecs"), name)
    if codecs is None:
        changes: dict[str, Any] = {"data_type": data_type, "fill_value": value}
    else:
        is_signed = ml_kind(name) == "i"
        number = int.from_bytes(fill, sys.byteorder, signed=is_signed)
        data_type = f"{'int' if is_signed else 'uint'}{8 * len(fill)}"
        changes = {"data_type": data_type, "fill_value": number, "codecs": codecs}
    return {**document, **{key: changes[key] for key in changes if key in document}}


def _integer_codecs(codecs: Any, name: str) -> list[Any] | None:
    """Return codecs that do to integers what `codecs` do to elements of a type: the bits of the type are written into `packbits`.

    None for codecs that calculate with the elements, or that the engine does not have, and for complex numbers.
    """
    try:
        every = list(_every_codec(parse_codecs(codecs, "codecs")))
    except ShardError:  # `parse_document` explains it
        return None
    if name not in ML_NBYTES or any(isinstance(codec, Filter) for codec in every):
        return None
    n, written = ml_bits(name), {}
    for packbits in every:
        if isinstance(packbits, RegistryPackBits):
            with within("codecs"):
                packbits.check_bits(n, name)
            last = n - 1 if packbits.last_bit is None else packbits.last_bit
            written[packbits.json_name] = replace(packbits, last_bit=last).to_json()
    return _replaced(codecs, lambda inner: [written.get(_codec_name(codec), codec) for codec in inner])


def _every_codec(codecs: Sequence[Codec]) -> Iterator[Codec]:
    for codec in codecs:
        yield codec
        if isinstance(codec, Sharding):
            yield from _every_codec(codec.codecs)


def _is_foreign(data_type: Any) -> bool:
    """Return True for a data type whose elements are bytes to the engine; False if it is malformed, which `parse_document` explains."""
    if _name_of(data_type) in _SIZES:
        return True
    try:
        parse_data_type(data_type)
    except UnsupportedError:
        return True
    except ShardError:
        pass
    return False


def _grid_of_v2(document: Document, error: UnsupportedError) -> ByteDocument:
    """Return a document with the grid of an array of Zarr v2 whose chunks the engine cannot decode; `error` says why."""
    bare = {**document, "filters": None, "compressor": None}
    try:
        parse_document(bare)
        return ByteDocument(document, bare, codec=str(error.codec or error.message))
    except UnsupportedError:
        bare |= {"dtype": f"|V{_USUAL_NBYTES}", "fill_value": None}
    parse_document(bare)
    name = "string" if has_text(document) else show(document.get("dtype"))
    return ByteDocument(document, bare, name, str(error.codec or error.message), has_fill=False)


def _fill(name: str, nbytes: int, value: object) -> bytes | None:
    """Return one element of a type that numpy does not have, in native byte order.

    None for a nonzero number of fewer than 16 bits if `ml_dtypes`, which knows its bits, is not installed.
    """
    if isinstance(value, str) and re.fullmatch(rf"0x[0-9a-fA-F]{{{2 * nbytes}}}", value):
        return int(value, 16).to_bytes(nbytes, sys.byteorder)
    if name.startswith("complex_") and isinstance(value, list | tuple) and len(value) == 2:
        halves = [_fill(name.removeprefix("complex_"), nbytes // 2, half) for half in value]
        return None if None in halves else b"".join(half or b"" for half in halves)
    if isinstance(value, int) and name.startswith(("int", "uint")) and -128 <= value < 256:
        return (value & 0xFF).to_bytes(1, sys.byteorder)
    try:
        if name == "bfloat16":
            return fill_from_json(np.dtype("uint16"), _bits_of_bfloat16(fill_from_json(_FLOAT32, value)))
        if name in ("float16", "float32", "float64"):
            return fill_from_json(np.dtype(name), value)
        if name in ML_NBYTES:
            with contextlib.suppress(UnsupportedError):
                return fill_from_json(ml_dtype(name), value)
        return bytes(nbytes) if fill_from_json(_FLOAT32, value) == bytes(4) else None
    except ShardError:
        return None


def _bits_of_bfloat16(single: bytes) -> int:
    """Return the upper half of a float32, rounded to even."""
    bits = int.from_bytes(single, sys.byteorder)
    if bits & 0x7FFFFFFF > 0x7F800000:
        return bits >> 16 | 0x40  # a NaN stays one
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def _with_any_size(document: Document) -> Document:
    """Return the document with codecs that permit inner chunks of any size; the last codecs stay if the engine has them."""
    codecs = document.get("codecs")
    if not isinstance(codecs, Sequence) or isinstance(codecs, str):
        return document
    lenient = {**document, "codecs": _replaced(codecs, _last_codecs)}
    try:
        ChainSpec.from_metadata(lenient)
    except UnsupportedError:
        return {**document, "codecs": _replaced(codecs, _last_checksum)}
    return lenient


def _replaced(codecs: Sequence[Any], changed: Callable[[Sequence[Any]], list[Any]]) -> list[Any]:
    """Return codecs whose innermost list is what `changed` returns of it."""
    for place, codec in enumerate(codecs):
        if not _is_sharding(codec):
            continue
        configuration = codec.get("configuration")
        if isinstance(configuration, Mapping) and isinstance(configuration.get("codecs"), Sequence):
            inner = {**configuration, "codecs": _replaced(configuration["codecs"], changed)}
            return [*codecs[:place], {**codec, "configuration": inner}, *codecs[place + 1 :]]
    return changed(codecs)


def _last_codecs(codecs: Sequence[Any]) -> list[Any]:
    names = list(map(_codec_name, codecs))
    n = 0
    while n < len(names) and names[-1 - n] in COMPRESSORS | _CHECKSUMS:
        n += 1
    last = list(codecs[len(codecs) - n :])
    is_compressed = any(_codec_name(codec) not in _CHECKSUMS for codec in last)
    return [_BYTES, *last] if is_compressed else [_BYTES, _ZSTD, *last]


def _last_checksum(codecs: Sequence[Any]) -> list[Any]:
    return [_BYTES, _ZSTD, *(codec for codec in codecs[-1:] if _codec_name(codec) in _CHECKSUMS)]


def _is_sharding(codec: Any) -> bool:
    """Return True for a codec that has codecs of inner chunks; a malformed one is found where codecs are parsed."""
    how = codec.get("configuration") if isinstance(codec, Mapping) else None
    has_codecs = isinstance(how, Mapping) and isinstance(how.get("codecs"), list | tuple)
    return has_codecs and codec.get("name") == "sharding_indexed"


def _codec_name(codec: Any) -> str:
    return str(codec.get("name")) if isinstance(codec, Mapping) else str(codec)


def _first_codec(document: Document) -> str:
    """Return the name of the codec that encodes elements of a data type without a size."""
    codecs = document.get("codecs")
    for codec in inner_codecs(codecs if isinstance(codecs, list | tuple) else ()):
        if _codec_name(codec) not in ("transpose", "sharding_indexed"):
            return _codec_name(codec)
    return "of an unknown name"


def _name_of(data_type: Any) -> str:
    try:
        return parse_named(data_type)[0]
    except ShardError:
        return show(data_type)


def inner_codecs(codecs: Sequence[Any]) -> list[Any]:
    """Return the codecs of an inner chunk; without sharding, all codecs."""
    for codec in codecs:
        if _is_sharding(codec):
            return list(codec["configuration"]["codecs"])
    return list(codecs)


def with_inner_codecs(codecs: Sequence[Any], inner: Sequence[Any]) -> list[Any]:
    """Return codecs with those of the inner chunks replaced; without sharding, all are replaced."""
    if not any(map(_is_sharding, codecs)):
        return list(inner)
    return [
        {**codec, "configuration": {**codec["configuration"], "codecs": list(inner)}}
        if _is_sharding(codec)
        else codec
        for codec in codecs
    ]
