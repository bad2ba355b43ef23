# zarray_members.py - documents of Zarr v2
# SPDX-License-Identifier: MIT
"""Parse the members of a ``.zarray``, and express them as those of a ``zarr.json``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import SpecError
from .checks import (
    as_int_tuple,
    as_items,
    as_mapping,
    show,
    unknown_codec,
    unsupported,
    within,
    wrong,
)
from .chunk_keys import key_encoding
from .codecs import (
    NUMCODECS,
    Bytes,
    Codec,
    Filter,
    Transpose,
    resolve_codecs,
)
from .dtypes import DType
from .fill_values import fill_from_document, fill_from_json, loose_base64
from .ml_types import ML_NBYTES, element_kind, ml_dtype

__all__ = [
    "TEXT_CODECS",
    "ZARRAY_REQUIRED",
    "document_in_v3",
    "endian_of",
    "has_objects",
    "has_text",
    "parse_v2_dtype",
    "v2_codecs",
    "v2_fill",
    "v2_transpose",
    "with_bytes",
]

ZARRAY_REQUIRED = ("shape", "chunks", "dtype", "fill_value", "order")
# Codecs of text and bytes of any length, and their data types. The filters of Zarr v2 with these names store the same bytes.
TEXT_CODECS = {"vlen-utf8": "string", "vlen-bytes": "variable_length_bytes"}
_BYTE: DType = np.dtype("uint8")
_TIME_UNIT = r"(\[\d*(Y|M|W|D|h|m|s|ms|us|μs|ns|ps|fs|as)\])?"
_V2_DTYPE = re.compile(
    rf"\|b1|\|[iu]1|[<>][iuf][248]|[<>]c(8|16)|[<>][mM]8{_TIME_UNIT}|\|[SV][1-9]\d*|[<>]U[1-9]\d*",
)


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
    for key in ZARRAY_REQUIRED:
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
    bytes_codecs = resolve_codecs(tuple(v2_codecs(others, itemsize)), (1,), _BYTE, "codecs")
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
            *(codec.to_json() for codec in v2_transpose(document["order"], len(shape))),
            serializer,
            *(codec.to_json() for codec in bytes_codecs),
        ],
        "attributes": {},
    }


def v2_transpose(order: object, ndim: int) -> list[Codec]:
    """Return the transposition of an array whose order is ``"F"``."""
    if order not in ("C", "F"):
        wrong("order", f'expected "C" or "F", got {show(order)}', actual=order)
    return [Transpose(tuple(reversed(range(ndim))))] if order == "F" and ndim > 1 else []


def parse_v2_dtype(data: object) -> DType:
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
            fields.append((pair[0], parse_v2_dtype(pair[1])))
    if not fields:
        wrong("", "expected at least one field, got none")
    return _v2_numpy_dtype(fields, data)


def _v2_numpy_dtype(description: Any, data: object) -> DType:
    try:
        dtype: DType = np.dtype(description)
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecError(f"expected a data type, got {show(data)}: {error}", path="", actual=data) from error
    return dtype


def endian_of(stored: DType) -> Any:
    """Return the byte order of all numbers of an element."""
    is_little = stored == stored.newbyteorder("<")
    if not is_little and stored != stored.newbyteorder(">"):
        unsupported("", f"expected fields of one byte order, got {stored}", data_type=str(stored))
    return "little" if is_little else "big"


def v2_fill(value: object, stored: DType, dtype: DType) -> bytes:
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


def with_bytes(codecs: Iterable[Codec], endian: Any) -> list[Codec]:
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


def v2_codecs(document: Mapping[str, Any], itemsize: int) -> Iterator[Codec]:
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
