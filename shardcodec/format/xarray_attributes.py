# xarray_attributes.py - attributes by which xarray finds axes and missing values
# SPDX-License-Identifier: MIT
"""`masked_attributes`: xarray takes the mask of Zarr v2 from the fill value, and that of Zarr v3 from an attribute.

Source: xarray 2026.9, ``backends/zarr.py:FillValueCoder``: it encodes the attribute ``_FillValue`` by data type, because JSON
has no NaN.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Any

from ..errors import ShardError
from .dtypes import DType
from .fill import fill_from_json, fill_scalar

__all__ = ["DIMENSIONS", "MASK", "MISSING", "masked_attributes"]

# Names of the axes in formats without a member for them.
DIMENSIONS = "_ARRAY_DIMENSIONS"
MASK = "_FillValue"
# The older name. xarray applies it to text, of which it cannot decode `MASK`.
MISSING = "missing_value"

Attributes = dict[str, Any]


def masked_attributes(
    attributes: Mapping[str, Any], dtype: DType, fill: Any
) -> tuple[Attributes, tuple[str, ...]]:
    """Return attributes with which xarray finds the same elements missing in Zarr v3, and sentences on what changes.

    Parameters
    ----------
    attributes : mapping
        Those of an array whose mask is not in the form of Zarr v3.
    dtype : dtype
    fill : Any
        The value that xarray masks: the fill value of Zarr v2, a scalar; None if there is none. A mask among the attributes is
        kept instead, in the form of Zarr v3.

    Returns
    -------
    attributes : dict
    notes : tuple of str
    """
    found = dict(attributes)
    if MASK not in found:
        return _with_mask(found, dtype, fill)
    given = found.pop(MASK)
    if isinstance(given, list) and len(given) == 1:  # as HDF5 and netCDF have attributes
        given = given[0]
    if _is_encoded(given, dtype):
        return {**found, MASK: given}, ()
    try:
        value = fill_scalar(dtype, fill_from_json(dtype, given)) if dtype.kind in "biufcU" else None
    except ShardError as error:
        return found, (f"left out: the attribute {MASK} of {given!r}: {error.message}",)
    if value is None:
        return found, (
            f"left out: the attribute {MASK} of {given!r}: xarray has no mask of {dtype} in Zarr v3",
        )
    masked, notes = _with_mask(found, dtype, value)
    if fill is not None and masked != _with_mask(found, dtype, fill)[0]:
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
    """Return True for what xarray can decode as a mask of Zarr v3."""
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
