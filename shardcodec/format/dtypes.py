# dtypes.py - data types: from JSON or Python to numpy
# SPDX-License-Identifier: MIT
"""Data types: from JSON or Python to numpy.

Zarr v3 keeps the byte order in the `bytes` codec, so a dtype here is always in native order. Types of variable length
(`string`, `variable_length_bytes`) and unknown names raise `UnsupportedError`.

Source: Zarr v3 core specification, "Data types"; zarr-extensions, ``data-types``; the output of zarr-python 3.1 to 3.4.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .checks import as_int, as_items, as_mapping, check_keys, parse_named, show, unsupported, within, wrong
from .ml_types import COMPLEX_NBYTES, ML_NBYTES, element_kind, ml_dtype, ml_name, refuse_complex

__all__ = [
    "DType",
    "SwapField",
    "as_dtype",
    "dtype_repr",
    "dtype_to_json",
    "ml_name",
    "packed",
    "parse_data_type",
    "swap_fields",
]

# (offset, unit, count): `count` units of `unit` bytes, starting at byte `offset`; struct sc_swap_field in C.
SwapField = tuple[int, int, int]

DType = np.dtype[Any]

_CORE = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_TIME = {"numpy.datetime64": "datetime64", "numpy.timedelta64": "timedelta64"}
_STRUCT = ("struct", "structured")
_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as", "generic")
_LENGTH_CODES = {"fixed_length_utf32": "U", "null_terminated_bytes": "S", "raw_bytes": "V"}
_LENGTH_NAMES = {code: name for name, code in _LENGTH_CODES.items()}
_MAX_LENGTH = 2**31 - 1  # numpy keeps an itemsize in a C int
# Names that numpy does not know, or knows only after `ml_dtypes` has been imported.
_ONLY_ZARR = frozenset({"string", "variable_length_bytes", *ML_NBYTES, *COMPLEX_NBYTES})


def parse_data_type(data: object) -> DType:
    """Return the native-order numpy dtype of the ``data_type`` of a ``zarr.json``.

    Raises
    ------
    SpecError
        The configuration of a known type is invalid.
    UnsupportedError
        The type is unknown, its elements have no fixed size, or it needs the package `ml_dtypes`, which is not installed.
    """
    name, configuration = parse_named(data)
    if name in COMPLEX_NBYTES:
        refuse_complex(name)
    if name not in (*_CORE, *_LENGTH_CODES, *_TIME, *_STRUCT, *ML_NBYTES) and not _is_raw_bits(name):
        unsupported("", f"shardcodec does not implement data type {show(name)}", data_type=name)
    with within("configuration"):
        if name in _LENGTH_CODES:
            return _parse_length(name, configuration)
        if name in _TIME:
            return _parse_time(name, configuration)
        if name in _STRUCT:
            return _parse_struct(configuration)
        check_keys(configuration, "")
    if name in ML_NBYTES:
        return ml_dtype(name)
    return _raw_bits(name) if _is_raw_bits(name) else np.dtype(name)


def _is_raw_bits(name: str) -> bool:
    return name.startswith("r") and name[1:].isdecimal()


def _raw_bits(name: str) -> DType:
    """Return the dtype of ``r16`` and the like (core specification); zarr-python writes ``raw_bytes`` instead."""
    bits = int(name[1:11])  # a longer number is out of range
    if bits < 8 or bits % 8 or len(name) > 11 or bits // 8 > _MAX_LENGTH:
        wrong("", f"expected a raw type of a positive multiple of 8 bits, got {show(name)}", actual=name)
    return np.dtype(f"V{bits // 8}")


def _parse_length(name: str, configuration: Mapping[str, Any]) -> DType:
    check_keys(configuration, "", required=("length_bytes",))
    nbytes = as_int(configuration["length_bytes"], "length_bytes", minimum=1, maximum=_MAX_LENGTH)
    if name != "fixed_length_utf32":
        return np.dtype(f"{_LENGTH_CODES[name]}{nbytes}")
    if nbytes % 4:
        reason = f"expected a multiple of 4, the size of a code point, got {nbytes}"
        wrong("length_bytes", reason, actual=nbytes)
    return np.dtype(f"U{nbytes // 4}")


def _parse_time(name: str, configuration: Mapping[str, Any]) -> DType:
    check_keys(configuration, "", required=("unit", "scale_factor"))
    unit = configuration["unit"]
    if unit == "\N{GREEK SMALL LETTER MU}s":
        unit = "us"
    if unit not in _UNITS:
        wrong("unit", f"expected one of {', '.join(_UNITS)}, got {show(unit)}", actual=unit)
    scale = as_int(configuration["scale_factor"], "scale_factor", minimum=1, maximum=_MAX_LENGTH)
    return np.dtype(f"{_TIME[name]}[{scale}{unit}]")


def _parse_struct(configuration: Mapping[str, Any]) -> DType:
    """Return the dtype of a struct; its fields are contiguous, without padding."""
    check_keys(configuration, "", required=("fields",))
    fields: dict[str, DType] = {}
    for i, item in enumerate(as_items(configuration["fields"], "fields")):
        with within(f"fields[{i}]"):
            name, dtype = _parse_field(item)
            if name in fields:
                wrong("", f"expected distinct field names, got {show(name)} a second time", actual=name)
            fields[name] = dtype
    if not fields:
        wrong("fields", "expected at least one field, got none")
    nbytes = sum(dtype.itemsize for dtype in fields.values())
    if nbytes > _MAX_LENGTH:
        reason = f"expected at most {_MAX_LENGTH} bytes (limit of numpy), got {nbytes}"
        wrong("fields", reason, actual=nbytes, limit=_MAX_LENGTH)
    return np.dtype(list(fields.items()))


def _parse_field(item: object) -> tuple[str, DType]:
    """Return name and dtype of a field: an object (`struct`) or a pair (the older `structured`), accepted in both."""
    if isinstance(item, Mapping):
        check_keys(as_mapping(item, ""), "", required=("name", "data_type"))
        name, data_type, place = item["name"], item["data_type"], "data_type"
    else:
        pair = as_items(item, "")
        if len(pair) != 2:
            wrong("", f"expected a name and a data type, got {show(item)}", expected=2, actual=len(pair))
        (name, data_type), place = pair, "[1]"
    if not isinstance(name, str) or not name:
        wrong("name" if place == "data_type" else "[0]", f"expected a name, got {show(name)}", actual=name)
    with within(place):
        dtype = parse_data_type(data_type)
        if ml_name(dtype) is not None:
            unsupported("", f"shardcodec does not implement fields of type {dtype}", data_type=str(dtype))
        return name, dtype


def as_dtype(value: object) -> DType:
    """Return a native-order dtype for ``value``: JSON of a Zarr data type, or anything that `numpy.dtype` accepts.

    Raises
    ------
    SpecError
        ``value`` is not a data type, its elements have 0 bytes, or the JSON is invalid.
    UnsupportedError
        The elements are Python objects, of variable length, or of a kind that Zarr does not name.
    """
    if isinstance(value, Mapping) and "name" in value:
        return parse_data_type(value)
    if isinstance(value, str) and (_is_raw_bits(value) or value in _ONLY_ZARR):
        return parse_data_type(value)
    if value is None:  # numpy.dtype(None) is float64
        wrong("", "expected a data type, got None", actual=value)
    try:
        dtype: DType = np.dtype(value)  # type: ignore[call-overload]
    except (TypeError, ValueError) as error:
        wrong("", f"expected a data type, got {show(value)}: {error}", actual=value)
    if dtype.subdtype is not None:
        unsupported("", f"expected the type of one element, got the array type {dtype}", data_type=str(dtype))
    checked = dtype if ml_name(dtype) is not None else _check_element(dtype)
    return checked.newbyteorder("=")


def _check_element(dtype: DType) -> DType:
    """Return ``dtype``; raise if its elements, or nested fields of a struct, have no fixed size or byte layout."""
    if dtype.subdtype is not None:
        _check_element(dtype.subdtype[0])
    elif dtype.names is not None:
        for name in dtype.names:
            _check_element(dtype[name])
    elif dtype.kind not in "biufcmMSUV":
        unsupported("", f"expected elements of a fixed size, got {dtype}", data_type=str(dtype))
    elif dtype.char in "gG" or dtype.type.__module__ != "numpy":
        # The format of long double depends on the platform; types of other packages may report the kind of any other type.
        unsupported("", f"shardcodec does not know the byte layout of {dtype}", data_type=str(dtype))
    if dtype.itemsize == 0:
        wrong("", f"expected elements of at least 1 byte, got {dtype} with 0 bytes", actual=0)
    return dtype


def dtype_to_json(dtype: DType) -> Any:
    """Return the ``data_type`` for a ``zarr.json``, in the spelling that zarr-python 3.4 writes.

    Raises
    ------
    UnsupportedError
        A struct has padding, titles or array fields. numpy and shards can hold them, Zarr metadata cannot.
    """
    if dtype.name in _CORE or ml_name(dtype) is not None:
        return dtype.name
    if dtype.kind in "mM":
        unit, scale = np.datetime_data(dtype)
        name = "numpy.datetime64" if dtype.kind == "M" else "numpy.timedelta64"
        return {"name": name, "configuration": {"unit": unit, "scale_factor": scale}}
    if dtype.names is None and dtype.kind in "USV" and dtype.subdtype is None:
        name = _LENGTH_NAMES[dtype.kind]
        return {"name": name, "configuration": {"length_bytes": dtype.itemsize}}
    if dtype.names is None or not _is_packed(dtype):
        unsupported("data_type", f"Zarr v3 has no data type for {dtype}", data_type=str(dtype))
    fields = [{"name": name, "data_type": dtype_to_json(dtype[name])} for name in dtype.names]
    return {"name": "struct", "configuration": {"fields": fields}}


def _is_packed(dtype: DType) -> bool:
    end = 0
    for name in dtype.names or ():
        field = dtype.fields[name]  # type: ignore[index]
        if field[1] != end or len(field) > 2:
            return False
        end += field[0].itemsize
    return end == dtype.itemsize


def packed(dtype: DType) -> DType:
    """Return the dtype of a struct whose fields follow one another without gaps, as zarr stores it; any other dtype as it is."""
    if dtype.names is None:
        return dtype
    return np.dtype([(name, packed(dtype[name])) for name in dtype.names])


def dtype_repr(dtype: DType) -> str:
    """Return an expression that `numpy.dtype` accepts for this dtype, without its byte order."""
    if dtype.names is not None:
        # descr represents padding as fields without a name, which numpy.dtype rejects
        return repr(dtype.descr) if _is_packed(dtype) else repr(dtype).replace("dtype(", "np.dtype(", 1)
    if element_kind(dtype) in "USV":
        return repr(dtype.str[1:])
    if dtype.kind in "mM":
        unit, scale = np.datetime_data(dtype)
        name = "datetime64" if dtype.kind == "M" else "timedelta64"
        return repr(f"{name}[{scale if scale > 1 else ''}{unit}]")
    return repr(dtype.name)


def swap_fields(dtype: DType) -> tuple[SwapField, ...]:
    """Return the runs of units that a change of byte order reverses, in ascending order of offset.

    The result is empty for elements of single bytes. Adjacent runs with the same unit size are merged: two adjacent
    int32 fields are one run of two units.
    """
    merged: list[SwapField] = []
    for offset, unit, count in sorted(_unmerged_swap_fields(dtype, 0)):
        if merged and merged[-1][1] == unit and merged[-1][0] + unit * merged[-1][2] == offset:
            merged[-1] = (merged[-1][0], unit, merged[-1][2] + count)
        else:
            merged.append((offset, unit, count))
    return tuple(merged)


def _unmerged_swap_fields(dtype: DType, base: int) -> list[SwapField]:
    if dtype.subdtype is not None:
        item, n = dtype.subdtype[0], dtype.itemsize // dtype.subdtype[0].itemsize
        item_fields = _unmerged_swap_fields(item, base)
        if len(item_fields) == 1 and item_fields[0][1] * item_fields[0][2] == item.itemsize:
            return [
                (base, item_fields[0][1], item_fields[0][2] * n)
            ]  # fast path: an array of plain numbers is one run
        return [
            (offset + i * item.itemsize, unit, count) for i in range(n) for offset, unit, count in item_fields
        ]
    if dtype.names is not None:
        fields = [dtype.fields[name] for name in dtype.names]  # type: ignore[index]
        return [f for field in fields for f in _unmerged_swap_fields(field[0], base + field[1])]
    if dtype.kind == "U":
        return [(base, 4, dtype.itemsize // 4)]
    unit = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    if element_kind(dtype) in "SV" or unit == 1:
        return []
    return [(base, unit, dtype.itemsize // unit)]
