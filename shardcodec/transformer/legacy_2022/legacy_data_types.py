# legacy_data_types.py - data types and fill values of the 2022 format
# SPDX-License-Identifier: MIT
"""Parse the data type and the fill value of a 2022 array."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import SpecError
from ...format.checks import as_items, check_keys, show, unsupported, within, wrong
from ...format.fill_values import fill_from_json
from .metadata import DType

__all__ = ["parse_data_type", "parse_fill"]

_CORE_TYPE = re.compile(r"bool|\|b1|\|?[iu]1|[<>][iu][248]|[<>]f[248]")
_EXTENDED_TYPE = re.compile(
    r"[<>]c(8|16)|[<>][mM]8\[(Y|M|W|D|h|m|s|ms|us|μs|ns|ps|fs|as)\]|\|S\d+|[<>]U\d+|\|V\d+|\|O"
)


def parse_data_type(data: object) -> DType:
    """Return the numpy data type of the elements; SpecError if the document has none."""
    if isinstance(data, Mapping):
        check_keys(data, "", required=("type",), optional=("extension", "fallback", "must_understand"))
        with within("type"):
            return (
                _named_type(data["type"], _EXTENDED_TYPE)
                if isinstance(data["type"], str)
                else _struct(data["type"])
            )
    return _named_type(data, _CORE_TYPE)


def _named_type(name: object, known: re.Pattern[str]) -> DType:
    if not isinstance(name, str):
        wrong("", f"expected the name of a data type, got {show(name)}", actual=name)
    if known.fullmatch(name) is None and _CORE_TYPE.fullmatch(name) is None:
        unsupported("", f"expected a data type of zarr-python 2.18, got {show(name)}", data_type=name)
    try:
        dtype: DType = np.dtype(name)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{show(name)}: {error}", path="", actual=name) from error
    if dtype.itemsize == 0:
        wrong("", f"expected a data type with a size above 0, got {show(name)}", actual=name)
    return dtype


def _struct(data: object) -> DType:
    """Return a packed struct. A single field without a name stands for raw bytes."""
    fields: list[tuple[str, DType]] = []
    items = as_items(data, "")
    for i, item in enumerate(items):
        pair = as_items(item, f"[{i}]")
        if len(pair) == 3:
            unsupported(f"[{i}]", "shardcodec does not implement fields that are arrays", actual=pair)
        if len(pair) != 2 or not isinstance(pair[0], str):
            wrong(f"[{i}]", f"expected a name and a type, got {show(item)}", actual=item)
        name, kind = pair
        with within(f"[{i}][1]"):
            dtype = _named_type(kind, _EXTENDED_TYPE) if isinstance(kind, str) else _struct(kind)
        if dtype.hasobject:
            unsupported(f"[{i}][1]", "shardcodec does not implement fields of Python objects", actual=kind)
        if not name and len(items) == 1 and dtype.kind == "V" and dtype.names is None:
            return dtype
        fields.append((name, dtype))
    if not fields:
        wrong("", "expected a struct with at least one field, got none")
    try:
        return np.dtype(fields)
    except (TypeError, ValueError) as error:
        raise SpecError(f"{show(data)}: {error}", path="", actual=data) from error


def parse_fill(value: object, dtype: DType) -> Any:
    """Return the fill value as an element of the data type; None if the document has null."""
    if value is None:
        return None
    if dtype.hasobject:
        return value
    if dtype.kind == "V":
        return _raw_fill(value, dtype)
    native = dtype.newbyteorder("=")
    if dtype.kind == "S" and not isinstance(value, str):
        wrong("", f"expected base64, got {show(value)}", actual=value)
    return np.frombuffer(fill_from_json(native, value), dtype=native)[0]


def _raw_fill(value: object, dtype: DType) -> Any:
    """Return the fill value from base64 bytes in the byte order of the array."""
    try:
        data = base64.b64decode(value, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error):
        wrong("", f"expected base64, got {show(value)}", actual=value)
    if len(data) != dtype.itemsize:
        reason = f"expected {dtype.itemsize} bytes, got {len(data)}"
        wrong("", reason, expected=dtype.itemsize, actual=len(data))
    return np.frombuffer(data, dtype=dtype).astype(dtype.newbyteorder("="))[0]
