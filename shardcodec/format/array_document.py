# array_document.py - the metadata document of an array: zarr.json, or .zarray of Zarr v2
# SPDX-License-Identifier: MIT
"""The metadata document of an array: ``zarr.json``, or ``.zarray`` of Zarr v2.

A ``.zarray`` becomes the same `ArrayLayout` as a ``zarr.json``, so the rest of the code does not know the format:

    order "F"                           codec `transpose` that reverses the axes
    dtype "<i4" or ">i4"                dtype int32, codec `bytes` with that byte order
    filters, then the compressor        codecs of numcodecs in this order; `bytes` after those that change elements
    fill_value null                     zero bytes; NaT for times (the rule of zarr 3)
    dimension_separator                 chunk key encoding `v2` with that separator

Other filters and Python objects raise `UnsupportedError`. `zarray_members.document_in_v3`
describes the chunks of a column of text (``|O`` with the filter ``vlen-utf8`` or ``vlen-bytes``) as those of an array of Zarr v3.

Source: Zarr v3 core specification 3.1, "Array metadata" and "Chunk key encoding"; zarr-extensions,
``chunk-grids/rectilinear``; Zarr v2 specification; numcodecs; the output of zarr-python 3.1 to 3.4.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

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
    unsupported,
    within,
    wrong,
)
from .chunk_keys import is_v2
from .codecs import (
    BitRound,
    allow_clipping,
    parse_codecs,
)
from .dtypes import DType, as_dtype, parse_data_type
from .fill_values import fill_from_document, fill_scalar
from .same_text import parsed_once
from .zarray_members import (
    ZARRAY_REQUIRED,
    endian_of,
    parse_v2_dtype,
    v2_codecs,
    v2_fill,
    v2_transpose,
    with_bytes,
)

__all__ = [
    "ArrayLayout",
    "UserMetadata",
    "attributes_of",
    "encoded_document",
    "json_object",
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
    if not is_v2(document):
        return parse_array(document)
    document = as_mapping(document, "")
    for key in ZARRAY_REQUIRED:
        if key not in document:
            wrong(key, "missing required key")
    shape = as_int_tuple(document["shape"], "shape", minimum=0)
    with within("dtype"):
        stored = parse_v2_dtype(document["dtype"])
        endian = endian_of(stored)
    chunks = as_chunk_shape(document["chunks"], stored.itemsize, "chunks")
    if len(chunks) != len(shape):
        reason = f"expected {len(shape)} axes, as the array has, got {len(chunks)}"
        wrong("chunks", reason, expected=len(shape), actual=len(chunks))
    dtype = as_dtype(stored)
    with within("fill_value"):
        fill = v2_fill(document["fill_value"], stored, dtype)
    transposes = v2_transpose(document["order"], len(shape))
    codecs = [*transposes, *with_bytes(v2_codecs(document, stored.itemsize), endian)]
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


def attributes_of(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes in a ``zarr.json``; SpecError: they are not an object."""
    given = document.get("attributes")
    return {} if given is None else as_mapping(given, "attributes")
