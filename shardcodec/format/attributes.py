# attributes.py - attributes as JSON has them, and as xarray reads them
# SPDX-License-Identifier: MIT
"""Attributes: numpy's and HDF5's values as JSON, and xarray's mask in the form of Zarr v3.

xarray takes the mask of Zarr v2 from the fill value, and that of Zarr v3 from the attribute ``_FillValue``, which it encodes by
data type, because JSON has no NaN (xarray 2026.9, ``backends/zarr.py:FillValueCoder``).
"""

from __future__ import annotations

import base64
import binascii
import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ShardError
from .dtypes import DType
from .fill_values import fill_from_json, fill_scalar

__all__ = ["DIMENSIONS", "MASK", "as_json_attributes", "masked_attributes", "with_finite_missing"]

# Names of the axes in formats without a member for them.
DIMENSIONS = "_ARRAY_DIMENSIONS"
MASK = "_FillValue"
# The older name. xarray applies it to text, of which it cannot decode `MASK`.
MISSING = "missing_value"

Attributes = dict[str, Any]

# Changes of values that JSON cannot hold.
_SPECIAL = "NaN and infinity are written as text, because JSON has no such numbers"
_COMPLEX = "complex numbers are written as pairs of numbers"
_LATIN = "text that is not UTF-8 is read as Latin-1"
_OPAQUE = "bytes without a type are written as base64"


def as_json_attributes(given: Mapping[str, Any]) -> tuple[Attributes, tuple[str, ...]]:
    """Return the JSON form of attributes, and one sentence for each lossy change.

    Numbers and arrays of numpy become plain ones, and structs become objects.
    """
    attributes: Attributes = {}
    notes: list[str] = []
    for name, value in given.items():
        changes: dict[str, None] = {}
        attributes[_text(str(name), changes)] = _as_json(value, changes)
        notes += [f"attribute {name!r}: {change}" for change in changes]
    return attributes, tuple(notes)


def _as_json(value: Any, changes: dict[str, None]) -> Any:
    match value:
        case None | bool() | int():
            return value
        case str():
            return _text(value, changes)
        case bytes():
            return _text(value.decode("utf-8", "surrogateescape"), changes)
        case float():
            if math.isfinite(value):
                return float(value)
            changes[_SPECIAL] = None
            return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        case complex():
            changes[_COMPLEX] = None
            return [_as_json(float(value.real), changes), _as_json(float(value.imag), changes)]
        case Mapping():
            return {_text(str(name), changes): _as_json(item, changes) for name, item in value.items()}
        case np.ndarray() | np.generic():
            return _numpy_as_json(value, changes)
        case Sequence() | set() | frozenset():
            return [_as_json(item, changes) for item in value]
    changes[f"a {type(value).__name__} is written as text"] = None
    return _text(str(value), changes)


def _numpy_as_json(value: Any, changes: dict[str, None]) -> Any:
    if value.shape:
        return [_as_json(item, changes) for item in value]
    if value.dtype.names is not None:
        return {name: _as_json(value[name], changes) for name in value.dtype.names}
    match value[()]:
        case np.void():
            changes[_OPAQUE] = None
            return base64.b64encode(value.tobytes()).decode("ascii")
        case np.datetime64() | np.timedelta64() as time:
            changes[f"a {type(time).__name__} is written as text"] = None
            return str(time)
        case np.floating() as number:  # the `item` of a long double is no Python number
            return _as_json(float(number), changes)
        case np.complexfloating() as number:
            return _as_json(complex(number), changes)
    return _as_json(value.item(), changes)


def _text(value: str, changes: dict[str, None]) -> str:
    """Return valid JSON text; a lone surrogate, which stands for a byte that is not UTF-8, is read as Latin-1."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        changes[_LATIN] = None
        return value.encode("utf-8", "surrogateescape").decode("latin-1")
    return str(value)


def with_finite_missing(
    given: Mapping[str, Any], dtype: DType, fill: Any = None
) -> tuple[Attributes, tuple[str, ...]]:
    """Return attributes whose `MISSING` has only finite numbers, as JSON has them, and one sentence for each change.

    xarray takes NaN for missing without it. Beside a text such as "NaN" it would take the other numbers for texts, too. Infinity
    becomes the number of `MASK`, which xarray encodes, and the number there goes to `MISSING`; without `MASK` that is `fill`.
    """
    numbers = np.ravel(given.get(MISSING, ()))
    if numbers.dtype.kind != "f" or np.isfinite(numbers).all():
        return dict(given), ()
    result = {name: given[name] for name in given if name != MISSING}
    notes = [f"attribute {MISSING!r}: NaN is left out, because it is missing all the same"]
    infinite, finite = list(dict.fromkeys(numbers[np.isinf(numbers)])), list(numbers[np.isfinite(numbers)])
    masked = np.ravel(given.get(MASK, () if fill is None else fill))
    if infinite and dtype.kind == "f" and masked.dtype.kind in "fiu":
        result[MASK] = infinite.pop(0)
        finite += list(masked[np.isfinite(masked)])
        notes.append(f"attribute {MISSING!r}: {result[MASK]} is written as the attribute {MASK}")
    if finite:
        result[MISSING] = finite if len(finite) > 1 else finite[0]
    if infinite:
        notes.append(
            f"attribute {MISSING!r}: left out: {', '.join(map(str, infinite))}, which JSON does not have"
        )
    return result, tuple(notes[not np.isnan(numbers).any() :])


def masked_attributes(
    attributes: Mapping[str, Any], dtype: DType, fill: Any
) -> tuple[Attributes, tuple[str, ...]]:
    """Return attributes with which xarray masks the same elements in Zarr v3, and one sentence for each change.

    `fill` is the scalar that xarray masks, the fill value of Zarr v2; None if there is none. A mask among the attributes
    wins over it.
    """
    result = dict(attributes)
    if MASK not in result:
        return _with_mask(result, dtype, fill)
    given = result.pop(MASK)
    if isinstance(given, list) and len(given) == 1:  # as HDF5 and netCDF have attributes
        given = given[0]
    if _is_encoded(given, dtype):
        return {**result, MASK: given}, ()
    try:
        value = fill_scalar(dtype, fill_from_json(dtype, given)) if dtype.kind in "biufcU" else None
    except ShardError as error:
        return result, (f"left out: the attribute {MASK} of {given!r}: {error.message}",)
    if value is None:
        return result, (
            f"left out: the attribute {MASK} of {given!r}: xarray has no mask of {dtype} in Zarr v3",
        )
    masked, notes = _with_mask(result, dtype, value)
    if fill is not None and masked != _with_mask(result, dtype, fill)[0]:
        notes = (
            f"xarray masks {given!r}, the attribute {MASK}; in Zarr v2 it masked the fill value, {fill}",
        )
    return masked, notes


def _with_mask(attributes: Attributes, dtype: DType, fill: Any) -> tuple[Attributes, tuple[str, ...]]:
    if fill is None or dtype.kind in "mMV":  # NaT is missing without a mask, and structs have none
        return attributes, ()
    if dtype.kind == "S":
        return attributes, (f"xarray masked {bytes(fill)!r}; it has no mask of {dtype} in Zarr v3",)
    if dtype.kind == "U":
        return {MISSING: str(fill), **attributes}, ()
    return {**attributes, MASK: _encoded(fill, dtype)}, ()


def _encoded(value: Any, dtype: DType) -> Any:
    match dtype.kind:
        case "b":
            return bool(value)
        case "i" | "u":
            return int(value)
        case "f":
            return _base64(float(value))
    return [_base64(float(value.real)), _base64(float(value.imag))]


def _base64(value: float) -> str:
    return base64.b64encode(struct.pack("<d", value)).decode("ascii")


def _is_encoded(value: Any, dtype: DType) -> bool:
    """Return True if xarray can decode the value as a mask of Zarr v3."""
    match dtype.kind:
        case "b":
            return isinstance(value, bool)
        case "i" | "u":
            return isinstance(value, int | float) and value == value and abs(value) != float("inf")
        case "f":
            return _is_base64(value)
        case "c":
            return isinstance(value, list) and len(value) == 2 and all(map(_is_base64, value))
    return False


def _is_base64(value: Any) -> bool:
    try:
        return isinstance(value, str) and len(base64.b64decode(value, validate=True)) == 8
    except binascii.Error:
        return False
