# metadata.py - the metadata document of an array: zarr.json, or .zarray of Zarr v2; chunk keys
# SPDX-License-Identifier: MIT
"""The metadata document of an array: ``zarr.json``, or ``.zarray`` of Zarr v2; chunk keys.

A ``.zarray`` becomes the same `ArrayLayout` as a ``zarr.json``, so the rest of the code does not know the format:

    order "F"                           codec `transpose` that reverses the axes
    dtype "<i4" or ">i4"                dtype int32, codec `bytes` with that byte order
    filters, then the compressor        codecs of numcodecs in this order; `bytes` after those that change elements
    fill_value null                     zero bytes; NaT for times (the rule of zarr 3)
    dimension_separator                 chunk key encoding `v2` with that separator

Other filters and Python objects raise `UnsupportedError`. `document_in_v3`
describes the chunks of a column of text (``|O`` with the filter ``vlen-utf8`` or ``vlen-bytes``) as those of an array of Zarr v3.

Source: Zarr v3 core specification 3.1, "Array metadata" and "Chunk key encoding"; zarr-extensions,
``chunk-grids/rectilinear``; Zarr v2 specification; numcodecs; the output of zarr-python 3.1 to 3.4.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from ..errors import SpecError
from .checks import (
    MAX_EXTENT,
    as_chunk_shape,
    as_int,
    as_int_tuple,
    as_items,
    as_mapping,
    bounded_depth,
    check_keys,
    parse_named,
    show,
    unknown_codec,
    unsupported,
    within,
    wrong,
)
from .codecs import (
    NUMCODECS,
    BitRound,
    Bytes,
    Codec,
    Filter,
    Transpose,
    allow_clipping,
    parse_codecs,
    resolve_codecs,
)
from .dtypes import DType, as_dtype, parse_data_type
from .fill_values import fill_from_document, fill_from_json, fill_scalar, loose_base64
from .ml_types import ML_NBYTES, element_kind, ml_dtype
from .same_text import parsed_once

__all__ = [
    "TEXT_CODECS",
    "ArrayLayout",
    "KeyEncoding",
    "UserMetadata",
    "document_in_v3",
    "encoded_document",
    "has_objects",
    "has_text",
    "json_object",
    "key_encoding",
    "parse_array",
    "parse_document",
    "spec_of",
]

# Characters of a member whose indented text is kept, and number of such members.
MAX_MEMBER = 1 << 12
N_MEMBERS = 256

Edges = tuple[tuple[int, ...], ...]


class UserMetadata(TypedDict, total=False):
    """Keywords of `ShardSpec.to_metadata`, for type checkers: members of the metadata that are not part of the encoding."""

    attributes: Mapping[str, Any] | None
    dimension_names: Iterable[str | None] | None


_ZARR_JSON_REQUIRED = ("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "fill_value", "codecs")
_ZARR_JSON_KNOWN = (
    *_ZARR_JSON_REQUIRED,
    "chunk_key_encoding",
    "attributes",
    "dimension_names",
    "storage_transformers",
)


@dataclass(frozen=True)
class ArrayLayout:
    """An array and its chunk grid; the chunks of a sharded array are its shards.

    ``edges[axis]`` has the distinct chunk sizes along an axis, in the order of their first occurrence. A regular grid
    has exactly one size per axis.
    """

    shape: tuple[int, ...]
    edges: Edges
    dtype: DType
    fill_value: Any
    codecs: Any


def json_object(stored: bytes, name: str) -> Mapping[str, Any]:
    """Parse a stored document; `name` is for errors.

    Raises
    ------
    SpecError
        It is not a JSON object.
    """
    try:
        with bounded_depth(name):
            return as_mapping(json.loads(stored), "")
    except ValueError as error:
        raise SpecError(f"{name}: expected JSON, got invalid text: {error}", path="") from error


def encoded_document(document: Mapping[str, Any]) -> bytes:
    """Return a document as it is stored: indented by two spaces, as zarr does it.

    Python indents with a call for each value, so members that are equal in many documents, as the codecs are, are indented once.
    """
    members = [f"  {_quoted(name)}: {_member(value)}" for name, value in document.items()]
    return ("{\n" + ",\n".join(members) + "\n}" if members else "{}").encode()


_quoted = functools.lru_cache(256)(json.dumps)

# Members with more than one line, by their text in one line.
_indented: dict[str, str] = {}


def _member(value: Any) -> str:
    text = json.dumps(value)
    if text[0] not in "[{":
        return text
    if (indented := _indented.get(text)) is None:
        indented = json.dumps(value, indent=2).replace("\n", "\n  ")  # a string of JSON has no line break
        if len(_indented) >= N_MEMBERS:
            _indented.clear()
        if len(text) <= MAX_MEMBER:
            _indented[text] = indented
    return indented


def parse_array(metadata: object) -> ArrayLayout:
    """Read a whole ``zarr.json``, except its codecs.

    Raises
    ------
    SpecError
        A member is missing or invalid; ``.path`` names it. An unknown key is invalid, unless its value has
        ``"must_understand": false``.
    UnsupportedError
        The data type or chunk grid is unknown, or there is a storage transformer.
    """
    metadata = as_mapping(metadata, "")
    for key, only in (("zarr_format", 3), ("node_type", "array")):
        if key in metadata and (metadata[key] != only or type(metadata[key]) is not type(only)):
            wrong(key, f"expected {only!r}, got {show(metadata[key])}", expected=only, actual=metadata[key])
    ignored = [
        key for key, value in metadata.items() if key not in _ZARR_JSON_KNOWN and _may_be_ignored(value)
    ]
    check_keys(metadata, "", required=_ZARR_JSON_REQUIRED, optional=(*_ZARR_JSON_KNOWN, *ignored))
    if metadata.get("storage_transformers"):
        given = show(metadata["storage_transformers"])
        unsupported("storage_transformers", f"expected none, got {given}; shardcodec implements none")
    with within("data_type"):
        dtype = parse_data_type(metadata["data_type"])
    with within("fill_value"):
        fill = fill_from_document(dtype, metadata["fill_value"])
    shape = as_int_tuple(metadata["shape"], "shape", minimum=0)
    _check_dimension_names(metadata.get("dimension_names"), len(shape))
    with within("chunk_grid"):
        edges = _parse_grid(metadata["chunk_grid"], shape)
    return ArrayLayout(shape, edges, dtype, fill_scalar(dtype, fill), metadata["codecs"])


def _check_dimension_names(names: object, ndim: int) -> None:
    """Refuse names that zarr refuses: other values than texts and null, and another number than that of the axes."""
    if names is None:
        return
    given = as_items(names, "dimension_names")
    for axis, name in enumerate(given):
        if name is not None and not isinstance(name, str):
            wrong(f"dimension_names[{axis}]", f"expected a string or null, got {show(name)}", actual=name)
    if len(given) != ndim:
        reason = f"expected {ndim} names, one for each axis, got {len(given)}"
        wrong("dimension_names", reason, expected=ndim, actual=len(given))


def _may_be_ignored(value: object) -> bool:
    return isinstance(value, Mapping) and value.get("must_understand") is False


def _parse_grid(data: object, shape: tuple[int, ...]) -> Edges:
    name, configuration = parse_named(data)
    if name not in ("regular", "rectilinear"):
        unsupported("", f"expected chunk grid regular or rectilinear, got {show(name)}", chunk_grid=name)
    with within("configuration"):
        key = "chunk_shape" if name == "regular" else "chunk_shapes"
        check_keys(configuration, "", required=(key,) if name == "regular" else (key, "kind"))
        if name == "regular":
            edges: Edges = tuple((size,) for size in as_int_tuple(configuration[key], key, minimum=1))
        else:
            edges = _parse_rectilinear(configuration, shape)
        if len(edges) != len(shape):
            reason = f"expected {len(shape)} axes, as the array has, got {len(edges)}"
            wrong(key, reason, expected=len(shape), actual=len(edges))
    return edges


def _parse_rectilinear(configuration: Mapping[str, Any], shape: tuple[int, ...]) -> Edges:
    if configuration["kind"] != "inline":
        wrong("kind", f"expected inline, got {show(configuration['kind'])}", actual=configuration["kind"])
    edges: list[tuple[int, ...]] = []
    for axis, item in enumerate(as_items(configuration["chunk_shapes"], "chunk_shapes")):
        path = f"chunk_shapes[{axis}]"
        if isinstance(item, int):
            edges.append((as_int(item, path, minimum=1, maximum=MAX_EXTENT),))
            continue
        sizes, total = _parse_runs(item, path)
        if axis < len(shape) and total < shape[axis]:
            reason = f"expected chunk sizes with a sum of at least {shape[axis]}, the size of the axis, got {total}"
            wrong(path, reason, axis=axis, actual=total, limit=shape[axis])
        edges.append(sizes)
    return tuple(edges)


def _parse_runs(item: object, path: str) -> tuple[tuple[int, ...], int]:
    """Return the distinct sizes and their sum; an item is a size or ``[size, count]``.

    Runs are not expanded, because a count may be huge.
    """
    sizes: dict[int, None] = {}
    total = 0
    for i, run in enumerate(as_items(item, path)):
        here = f"{path}[{i}]"
        size, count = (run, 1) if isinstance(run, int) else _pair(run, here)
        sizes[as_int(size, here, minimum=1, maximum=MAX_EXTENT)] = None
        total += size * count
    if not sizes:
        wrong(path, "expected at least one chunk size, got none")
    return tuple(sizes), total


def _pair(run: object, path: str) -> tuple[int, int]:
    pair = as_int_tuple(run, path, minimum=1)
    if len(pair) != 2:
        wrong(path, f"expected a size and a count, got {show(run)}", expected=2, actual=len(pair))
    return pair[0], pair[1]


# ---------------------------------------------------------------- keys of chunks in a store


@dataclass(frozen=True)
class KeyEncoding:
    """A chunk key encoding: the rule that maps the grid position of a chunk to its key.

    ``default`` gives ``c/1/2`` or ``c.1.2``; ``v2`` gives ``1.2`` or ``1/2``. The key of a chunk of rank 0 is ``c`` or
    ``0``, respectively.
    """

    is_default: bool
    separator: str

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> KeyEncoding:
        """Read the encoding from a whole ``zarr.json``.

        Raises
        ------
        SpecError
            The encoding is missing or invalid.
        UnsupportedError
            shardcodec does not implement the encoding.
        """
        with within("chunk_key_encoding"):
            name, configuration = parse_named(as_mapping(metadata, "").get("chunk_key_encoding"))
            if name not in ("default", "v2"):
                unsupported("", f"expected chunk key encoding default or v2, got {show(name)}")
            with within("configuration"):
                check_keys(configuration, "", optional=("separator",))
                separator = configuration.get("separator", "/" if name == "default" else ".")
                if separator not in ("/", "."):
                    wrong("separator", f'expected "/" or ".", got {show(separator)}', actual=separator)
        return cls(name == "default", separator)

    @property
    def prefix(self) -> str:
        """The common prefix of all keys of rank 1 and more."""
        return f"c{self.separator}" if self.is_default else ""

    def key(self, coords: tuple[int, ...]) -> str:
        """Return the key of the chunk at a grid position."""
        if not coords:
            return "c" if self.is_default else "0"
        separator = self.separator
        numbers = separator.join(map(str, coords))
        return f"c{separator}{numbers}" if self.is_default else numbers

    def coords(self, key: str, ndim: int) -> tuple[int, ...] | None:
        """Return the grid position of a key; None for a key that is not one of a chunk with `ndim` axes."""
        numbers = key.split(self.separator)
        if ndim == 0:
            return () if key == self.key(()) else None
        if self.is_default:
            if numbers[0] != "c":
                return None
            numbers = numbers[1:]
        if len(numbers) != ndim or not all(number.isascii() and number.isdecimal() for number in numbers):
            return None
        coords = tuple(map(int, numbers))
        return coords if self.key(coords) == key else None  # no leading zeros


# ---------------------------------------------------------------- documents of Zarr v2

_ZARRAY_REQUIRED = ("shape", "chunks", "dtype", "fill_value", "order")
# Codecs of text and bytes of any length, and their data types. The filters of Zarr v2 with these names store the same bytes.
TEXT_CODECS = {"vlen-utf8": "string", "vlen-bytes": "variable_length_bytes"}
_BYTE: DType = np.dtype("uint8")
_TIME_UNIT = r"(\[\d*(Y|M|W|D|h|m|s|ms|us|μs|ns|ps|fs|as)\])?"
_V2_DTYPE = re.compile(
    rf"\|b1|\|[iu]1|[<>][iuf][248]|[<>]c(8|16)|[<>][mM]8{_TIME_UNIT}|\|[SV][1-9]\d*|[<>]U[1-9]\d*",
)


@parsed_once
@bounded_depth("metadata")
def parse_document(document: object) -> ArrayLayout:
    """Read a ``zarr.json`` or a ``.zarray``, except the codecs of a ``zarr.json``.

    Raises
    ------
    SpecError
        A member is missing or invalid; ``.path`` names it.
    UnsupportedError
        The engine does not support the data type, the chunk grid, a compressor or a filter.
    """
    if not _is_v2(document):
        return parse_array(document)
    document = as_mapping(document, "")
    for key in _ZARRAY_REQUIRED:
        if key not in document:
            wrong(key, "missing required key")
    shape = as_int_tuple(document["shape"], "shape", minimum=0)
    with within("dtype"):
        stored = _parse_v2_dtype(document["dtype"])
        endian = _endian(stored)
    chunks = as_chunk_shape(document["chunks"], stored.itemsize, "chunks")
    if len(chunks) != len(shape):
        reason = f"expected {len(shape)} axes, as the array has, got {len(chunks)}"
        wrong("chunks", reason, expected=len(shape), actual=len(chunks))
    dtype = as_dtype(stored)
    with within("fill_value"):
        fill = _v2_fill(document["fill_value"], stored, dtype)
    transposes = _v2_transpose(document["order"], len(shape))
    codecs = [*transposes, *_with_bytes(_v2_codecs(document, stored.itemsize), endian)]
    if transposes and any(isinstance(codec, BitRound) for codec in codecs):
        reason = "expected no bitround with order F, for which numcodecs stores another order"
        unsupported("filters", reason, codec="bitround")
    return ArrayLayout(shape, tuple((n,) for n in chunks), dtype, fill_scalar(dtype, fill), codecs)


@parsed_once
@bounded_depth("metadata")
def spec_of(metadata: Mapping[str, Any], *, make: Callable[..., Any], lenient: bool, clip: bool) -> Any:
    """Return what `make`, which is `ChainSpec`, makes of the first chunk of an array; it also takes the other chunk sizes of the grid."""
    layout = parse_document(metadata)
    codecs = parse_codecs(layout.codecs, "codecs", lenient=lenient)
    if clip:
        codecs = allow_clipping(codecs)
    first = tuple(edges[0] for edges in layout.edges)
    as_chunk_shape(first, layout.dtype.itemsize, "chunk_grid.configuration.chunk_shape")
    spec = make(first, layout.dtype, layout.fill_value, codecs)
    for axis, edges in enumerate(layout.edges):
        for edge in edges[1:]:
            spec.with_shape((*first[:axis], edge, *first[axis + 1 :]))
    return spec


def key_encoding(document: Mapping[str, Any]) -> KeyEncoding:
    """Return the chunk key encoding of a ``zarr.json`` or a ``.zarray``.

    Raises
    ------
    SpecError
        The encoding is missing or invalid.
    UnsupportedError
        shardcodec does not implement the encoding.
    """
    if not _is_v2(document):
        return KeyEncoding.from_metadata(document)
    separator = document.get("dimension_separator", ".")
    if separator not in (".", "/"):
        wrong("dimension_separator", f'expected "/" or ".", got {show(separator)}', actual=separator)
    return KeyEncoding(is_default=False, separator=separator)


def has_text(document: Mapping[str, Any]) -> bool:
    """Return True for the ``.zarray`` of an array of strings of any length."""
    return document.get("zarr_format") == 2 and _text_filter(document) == "vlen-utf8"


def has_objects(document: Mapping[str, Any]) -> bool:
    """Return True for the ``.zarray`` of an array of Python objects, which are strings or anything else."""
    return document.get("zarr_format") == 2 and document.get("dtype") == "|O"


def _text_filter(document: Mapping[str, Any]) -> str | None:
    """Return the name of the filter that encodes strings; None if there is none."""
    filters = as_items(document.get("filters") or (), "filters")
    first = filters[0] if filters and isinstance(filters[0], Mapping) else {}
    name = str(first.get("id"))
    return name if document.get("dtype") == "|O" and name in TEXT_CODECS else None


def document_in_v3(document: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the ``zarr.json`` of the chunks of a ``.zarray`` whose data type numpy does not have; None for other data types.

    Filters and codecs named ``vlen-utf8`` or ``vlen-bytes`` store the same bytes. `sizes` has the bytes of an element of
    further data types, which TensorStore has in both formats.

    Raises
    ------
    SpecError
        A member is missing or invalid.
    UnsupportedError
        The engine does not have the compressor or another filter; Zarr v3 may not have it either.
    """
    name, dtype = _text_filter(document), document.get("dtype")
    itemsize = sizes.get(dtype) if isinstance(dtype, str) else None
    if name is None and itemsize is None:
        return None
    for key in _ZARRAY_REQUIRED:
        if key not in document:
            wrong(key, "missing required key")
    shape = as_int_tuple(document["shape"], "shape", minimum=0)
    chunks = as_int_tuple(document["chunks"], "chunks", minimum=1)
    fill = document["fill_value"]
    if name is None:
        assert itemsize is not None
        data_type, fill = dtype, 0 if fill is None else fill
        serializer = {"name": "bytes", **({"configuration": {"endian": "little"}} if itemsize > 1 else {})}
        others = document
    else:
        fill = fill or ""  # null, and the 0 of zarr-python 2, read as empty
        if not isinstance(fill, str):
            unsupported("fill_value", f"expected a string, got {show(fill)}", actual=fill)
        itemsize, data_type, serializer = 1, TEXT_CODECS[name], {"name": name}
        others = {**document, "filters": document["filters"][1:]}
    bytes_codecs = resolve_codecs(tuple(_v2_codecs(others, itemsize)), (1,), _BYTE, "codecs")
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(chunks)}},
        "chunk_key_encoding": {
            "name": "v2",
            "configuration": {"separator": key_encoding(document).separator},
        },
        "fill_value": fill,
        "codecs": [
            *(codec.to_json() for codec in _v2_transpose(document["order"], len(shape))),
            serializer,
            *(codec.to_json() for codec in bytes_codecs),
        ],
        "attributes": {},
    }


def _is_v2(document: object) -> bool:
    return isinstance(document, Mapping) and document.get("zarr_format") == 2


def _v2_transpose(order: object, ndim: int) -> list[Codec]:
    if order not in ("C", "F"):
        wrong("order", f'expected "C" or "F", got {show(order)}', actual=order)
    return [Transpose(tuple(reversed(range(ndim))))] if order == "F" and ndim > 1 else []


def _parse_v2_dtype(data: object) -> DType:
    """Return the dtype in its stored byte order; `data` is a name such as ``<i4``, or pairs of a field and its type."""
    if isinstance(data, str):
        if data in ML_NBYTES:  # as TensorStore writes them, always little-endian
            return ml_dtype(data).newbyteorder("<")
        if _V2_DTYPE.fullmatch(data) is None:
            unsupported("", f"shardcodec does not implement data type {show(data)}", data_type=data)
        return _v2_numpy_dtype(data, data)
    fields = []
    for i, item in enumerate(as_items(data, "")):
        pair = as_items(item, f"[{i}]")
        if len(pair) == 3:
            unsupported(f"[{i}]", "shardcodec does not implement fields that are arrays", actual=item)
        if len(pair) != 2 or not isinstance(pair[0], str) or not pair[0]:
            wrong(f"[{i}]", f"expected a name and a data type, got {show(item)}", actual=item)
        with within(f"[{i}][1]"):
            fields.append((pair[0], _parse_v2_dtype(pair[1])))
    if not fields:
        wrong("", "expected at least one field, got none")
    return _v2_numpy_dtype(fields, data)


def _v2_numpy_dtype(description: Any, data: object) -> DType:
    try:
        dtype: DType = np.dtype(description)
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecError(f"expected a data type, got {show(data)}: {error}", path="", actual=data) from error
    return dtype


def _endian(stored: DType) -> Any:
    """Return the byte order of all numbers of an element."""
    is_little = stored == stored.newbyteorder("<")
    if not is_little and stored != stored.newbyteorder(">"):
        unsupported("", f"expected fields of one byte order, got {stored}", data_type=str(stored))
    return "little" if is_little else "big"


def _v2_fill(value: object, stored: DType, dtype: DType) -> bytes:
    """Return the bytes of one element in native byte order."""
    if value is None:
        return _v2_default(dtype)
    if dtype.names is None:
        if element_kind(dtype) == "V" and isinstance(value, str):
            value = loose_base64(value, dtype.itemsize)
        return fill_from_document(dtype, value)
    if not isinstance(value, str):
        wrong("", f"expected base64, got {show(value)}", actual=value)
    element = fill_from_json(np.dtype(f"V{stored.itemsize}"), value)  # in the byte order of the array
    return np.frombuffer(element, stored).astype(dtype).tobytes()


def _v2_default(dtype: DType) -> bytes:
    """Return the bytes of one element of an array without a fill value, as zarr reads it."""
    if dtype.names is None:
        return fill_from_json(dtype, "NaT") if dtype.kind in "mM" else bytes(dtype.itemsize)
    from ..compat import parse_dtype, quiet  # here, because it imports zarr

    try:
        with quiet():  # zarr 3.1 has the digit 0 in a field of text
            return np.asarray(parse_dtype(dtype, zarr_format=2).default_scalar(), dtype).tobytes()
    except (TypeError, ValueError):  # a field of bytes without a type; zarr cannot read it
        return bytes(dtype.itemsize)


def _with_bytes(codecs: Iterable[Codec], endian: Any) -> list[Codec]:
    """Return filters that change elements, `bytes`, and the codecs of bytes; `endian` is the order before filters."""
    codecs = list(codecs)
    n_filters = next((i for i, codec in enumerate(codecs) if codec.kind == "bytes -> bytes"), len(codecs))
    for codec in codecs[n_filters:]:
        if codec.kind != "bytes -> bytes":
            unsupported(
                "filters", f"expected {codec.json_name} before codecs of bytes", codec=codec.json_name
            )
    for i, codec in enumerate(codecs[:n_filters]):
        assert isinstance(codec, Filter)
        with within(f"filters[{i}]"):
            in_native_order, endian = codec.from_order(endian)
        codecs[i] = codec if i else in_native_order  # a further one gets what the filter before it names
    return [*codecs[:n_filters], Bytes(endian), *codecs[n_filters:]]


def _v2_codecs(document: Mapping[str, Any], itemsize: int) -> Iterator[Codec]:
    """Yield the filters and the compressor; filters may return elements of another size."""
    filters = document.get("filters")
    steps = [(f"filters[{i}]", data) for i, data in enumerate(as_items(filters or (), "filters"))]
    if document.get("compressor") is not None:
        steps.append(("compressor", document["compressor"]))
    for path, data in steps:
        with within(path):
            codec = _numcodec(as_mapping(data, ""), itemsize)
        yield codec
        itemsize = codec.encoded_itemsize(itemsize) if isinstance(codec, Filter) else 1


def _numcodec(data: Mapping[str, Any], itemsize: int) -> Codec:
    name = data.get("id")
    if not isinstance(name, str):
        wrong("id", f"expected the name of a codec, got {show(name)}", actual=name)
    if name not in NUMCODECS:
        unknown_codec("id", name, NUMCODECS)
    if name == "blosc" and data.get("typesize") is None:
        data = {**data, "typesize": itemsize}  # numcodecs takes it from its input
    if name == "shuffle":
        data = {
            "elementsize": 4,
            **data,
        }  # numcodecs' default; that of zarr's codec of Zarr v3 is the itemsize
    return NUMCODECS[name](data, False)
