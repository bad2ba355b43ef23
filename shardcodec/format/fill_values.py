# fill_values.py - fill values, as the bytes of one element
# SPDX-License-Identifier: MIT
"""Fill values: from JSON or Python to the exact bytes of one element.

An absent inner chunk reads as the fill value, and a write drops an inner chunk that equals it, so every bit of a fill
value counts: -0.0 differs from 0.0, and NaNs differ in their payloads. The functions avoid numpy's casts, which may change
a NaN.

Source: Zarr v3 core specification, "Fill value"; zarr-extensions, ``data-types``; the output of zarr-python 3.1 to 3.4.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import math
import re
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from .checks import as_int, as_items, show, within, wrong
from .dtypes import DType
from .ml_types import element_kind, ml_dtypes, ml_name

__all__ = [
    "fill_bytes",
    "fill_from_document",
    "fill_from_json",
    "fill_repr",
    "fill_scalar",
    "fill_to_json",
    "loose_base64",
]

_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAT = -(2**63)


def fill_from_json(dtype: DType, value: object) -> bytes:
    """Return the bytes of one element for the ``fill_value`` of a ``zarr.json``; `dtype` is one of `parse_data_type`.

    The value is a number, ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``, the bits of a float ``"0x7fc00000"``, a pair for
    a complex number, base64 or an array of numbers for bytes, base64 or an object for a struct.

    Raises
    ------
    SpecError
        The dtype cannot represent the value.
    """
    if dtype.names is not None:
        return _struct_bytes(dtype, value)
    match element_kind(dtype):
        case "b":
            if not isinstance(value, bool):
                wrong("", f"expected true or false, got {show(value)}", actual=value)
            return bytes([value])
        case "i" | "u":
            return _integer_bytes(dtype, value)
        case "f":
            return _float_bytes(dtype, value, "")
        case "c":
            return _complex_bytes(dtype, value)
        case "m" | "M":
            return _integer_bytes(np.dtype("int64"), _NAT if value == "NaT" else value)
        case "U":
            return _text_bytes(dtype, value)
    return _raw_bytes(dtype, value)


def fill_from_document(dtype: DType, value: object) -> bytes:
    """Return the bytes of one element for the ``fill_value`` of a stored document, in any spelling that zarr reads.

    Some writers spell fill values loosely: n5-zarr writes ``"0"`` for numbers, neuroglancer 0 for bool. The result is zarr's.
    A caller's own fill value goes to `fill_from_json`, which is strict.

    Raises
    ------
    SpecError
        zarr cannot read the value either.
    """
    return fill_from_json(dtype, _canonical(dtype, value))


def _canonical(dtype: DType, value: object) -> object:
    """Return the strict form of a loosely spelt fill value; return any other value unchanged."""
    kind = element_kind(dtype) if dtype.names is None else ""
    if kind == "b" and (value is None or isinstance(value, str | int | float)):
        return bool(value)
    if kind in ("i", "u", "f", "m", "M") and isinstance(value, bool):
        return int(value)
    if kind in ("i", "u") and isinstance(value, str):
        with contextlib.suppress(ValueError):
            return int(value)
    if kind == "f" and isinstance(value, str | int | float):
        with contextlib.suppress(ValueError, OverflowError):
            return _canonical_float(dtype, value)
    if kind == "U" and isinstance(value, str):
        return value[: dtype.itemsize // 4]
    if kind == "S" and isinstance(value, str):
        return loose_base64(value, dtype.itemsize)
    return value


def _canonical_float(dtype: DType, value: str | float) -> str | float:
    """Return a number: the bits of a float of another size are decoded, and too large numbers become infinity."""
    if isinstance(value, str) and value in _SPECIAL:
        return value
    if isinstance(value, str) and (
        digits := re.fullmatch(r"0x([0-9a-fA-F]{4}|[0-9a-fA-F]{8}|[0-9a-fA-F]{16})", value)
    ):
        nbytes = len(digits[1]) // 2
        if nbytes == dtype.itemsize:
            return value
        value = float(np.frombuffer(_hex_float_bytes(nbytes, value, ""), f"f{nbytes}")[0])
    with np.errstate(over="ignore"):
        number = float(np.array(float(value), dtype=dtype)[()])
    return number if math.isinf(number) else float(value)


def loose_base64(value: str, nbytes: int) -> str:
    """Return base64 of exactly `nbytes` bytes: invalid characters are skipped, bytes cut off or zeros added, as by numpy."""
    try:
        data = base64.b64decode(value)
    except (binascii.Error, ValueError):
        return value
    return base64.b64encode(data[:nbytes].ljust(nbytes, b"\0")).decode("ascii")


def _integer_bytes(dtype: DType, value: object) -> bytes:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # writers often store 0.0 for 0, which is unambiguous
    name = ml_name(dtype)
    info = np.iinfo(dtype) if name is None else ml_dtypes(name).iinfo(dtype)
    number = as_int(value, "", minimum=int(info.min), maximum=int(info.max))
    if name is not None:  # as in memory, where ml_dtypes decides about the bits above the number
        return np.array(number).astype(dtype).tobytes()
    return number.to_bytes(dtype.itemsize, sys.byteorder, signed=dtype.kind == "i")


def _float_bytes(dtype: DType, value: object, path: str) -> bytes:
    if isinstance(value, str) and value not in _SPECIAL:
        return _hex_float_bytes(dtype.itemsize, value, path)
    if isinstance(value, str):
        value = _SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        wrong(path, f"expected a number, got {show(value)}", actual=value)
    try:
        number = float(value)
    except OverflowError:
        wrong(path, f"cannot represent {show(value)} as a float", actual=value)
    if number == 0 and dtype.name == "float8_e8m0fnu":
        return b"\0"  # has no zero: TensorStore's default fill value, 0.0, is stored as its least number
    with np.errstate(over="ignore"):
        stored = np.array(number).astype(dtype)
    if not _is_near(number, stored):
        wrong(path, f"cannot represent {show(value)} as {dtype}", actual=value)
    return stored.tobytes()


def _is_near(number: float, stored: np.ndarray[Any, Any]) -> bool:
    """Return False if a number became another kind of number in its data type: infinity or NaN, or one of these a finite number."""
    as_stored = float(stored)
    if not math.isfinite(number):
        return as_stored == number or (math.isnan(number) and math.isnan(as_stored))
    name = ml_name(stored.dtype)
    if name is not None and name.startswith(
        ("float4", "float6")
    ):  # without infinity: a large number becomes the largest
        return abs(number) <= float(ml_dtypes(name).finfo(stored.dtype).max)
    return math.isfinite(as_stored)


def _hex_float_bytes(itemsize: int, value: str, path: str) -> bytes:
    """Return the bytes of ``0x7fc00000``, the bits as an unsigned number; only this form has the payload of a NaN."""
    n_digits = 2 * itemsize
    if re.fullmatch(rf"0x[0-9a-fA-F]{{{n_digits}}}", value) is None:
        reason = f"expected a number, {', '.join(_SPECIAL)} or 0x and {n_digits} digits, got {show(value)}"
        wrong(path, reason, actual=value)
    return int(value, 16).to_bytes(itemsize, sys.byteorder)


def _complex_bytes(dtype: DType, value: object) -> bytes:
    parts = as_items(value, "")
    if len(parts) != 2:
        reason = f"expected a real and an imaginary part, got {show(value)}"
        wrong("", reason, expected=2, actual=len(parts))
    half = np.dtype(f"f{dtype.itemsize // 2}")
    return b"".join(_float_bytes(half, part, f"[{i}]") for i, part in enumerate(parts))


def _text_bytes(dtype: DType, value: object) -> bytes:
    if not isinstance(value, str):
        wrong("", f"expected a string, got {show(value)}", actual=value)
    limit = dtype.itemsize // 4
    if len(value) > limit:
        wrong("", f"expected at most {limit} code points, got {len(value)}", actual=len(value), limit=limit)
    return np.array(value, dtype=dtype).tobytes()


def _raw_bytes(dtype: DType, value: object) -> bytes:
    """Return bytes of a fixed length from base64 (zarr-python) or an array of numbers (core specification, raw)."""
    if isinstance(value, str):
        return _fit(dtype, _unbase64(value))
    items = enumerate(as_items(value, ""))
    return _fit(dtype, bytes(as_int(item, f"[{i}]", minimum=0, maximum=255) for i, item in items))


def _unbase64(value: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError) as error:
        wrong("", f"expected base64, got {show(value)}: {error}", actual=value)


def _fit(dtype: DType, data: bytes) -> bytes:
    """Check the length of ``data``; pad null-terminated bytes with zeros."""
    if dtype.kind == "S" and len(data) <= dtype.itemsize:
        return data.ljust(dtype.itemsize, b"\0")
    if len(data) != dtype.itemsize:
        reason = f"expected an element of {dtype.itemsize} bytes, got {len(data)}"
        wrong("", reason, expected=dtype.itemsize, actual=len(data))
    return data


def _struct_bytes(dtype: DType, value: object) -> bytes:
    """Return a struct from an object (omitted fields are zero, times NaT) or from base64 of little-endian fields."""
    if isinstance(value, str):
        data = _fit(dtype, _unbase64(value))
        stored = np.frombuffer(data, dtype.newbyteorder("<"))
        return data if sys.byteorder == "little" else stored.astype(dtype).tobytes()
    if not isinstance(value, Mapping):
        wrong("", f"expected an object or base64, got {show(value)}", actual=value)
    for name in value:
        if name not in (dtype.names or ()):
            wrong(
                "",
                f"expected one of the fields {', '.join(dtype.names or ())}, got {show(name)}",
                actual=name,
            )
    given = {}
    for name in dtype.names or ():
        if name in value:
            with within(name):
                given[name] = fill_from_json(dtype[name], value[name])
        elif dtype[name].kind in "mM":
            given[name] = _NAT.to_bytes(8, sys.byteorder, signed=True)
    return _assemble(dtype, given)


def _assemble(dtype: DType, fields: Mapping[str, bytes]) -> bytes:
    element = bytearray(dtype.itemsize)
    for name, data in fields.items():
        offset = dtype.fields[name][1]  # type: ignore[index]
        element[offset : offset + len(data)] = data
    return bytes(element)


def fill_bytes(dtype: DType, value: object) -> bytes:
    """Return the bytes of one element for a fill value that is a Python, numpy or JSON value.

    The forms are unambiguous: for a type of bytes, a `str` is base64 and `bytes` are the raw bytes. For a struct, a
    `bytes` object is the element in native order, and a tuple has one value per field.

    Raises
    ------
    SpecError
        The dtype cannot represent the value.
    """
    if isinstance(value, np.generic | np.ndarray):
        return _numpy_bytes(dtype, value)
    kind = element_kind(dtype)
    if isinstance(value, bytes | bytearray | memoryview) and kind in "SV":
        return _fit(dtype, bytes(value))
    if dtype.names is not None and isinstance(value, tuple):
        return _tuple_bytes(dtype, value)
    if kind == "b" and type(value) is int and value in (0, 1):
        value = bool(value)
    elif kind in "iuf" and isinstance(value, bool):
        value = int(value)
    elif kind == "c" and isinstance(value, int | float | complex):
        value = (complex(value).real, complex(value).imag)
    elif kind in "mM" and value is not None and not isinstance(value, bool | int | float):
        return _time_bytes(dtype, value)
    return fill_from_json(dtype, value)


def _numpy_bytes(dtype: DType, value: np.generic | np.ndarray[Any, Any]) -> bytes:
    array = np.asarray(value)
    if array.ndim:
        wrong("", f"expected one element, got an array of shape {array.shape}", actual=array.shape)
    if array.dtype.newbyteorder("=") == dtype:
        # astype keeps the bits if only the byte order differs, but not between floats of different sizes
        return array.astype(dtype).tobytes()
    if array.dtype.kind in "mM":
        if array.dtype.kind != dtype.kind:
            # `item` of nanoseconds is an integer, which the code below accepts
            wrong("", f"cannot represent {show(value)} as {dtype}", actual=value)
        return _time_bytes(dtype, value)
    if element_kind(array.dtype) == "V" and array.dtype.names is None:
        return _fit(dtype, array.tobytes())
    item = array.item()
    return fill_bytes(dtype, _from_long_double(dtype, item) if isinstance(item, np.generic) else item)


def _from_long_double(dtype: DType, value: np.generic) -> float | complex:
    """Return a long double as a Python number; its `item` returns a numpy scalar, because Python has no such type."""
    number: float | complex = complex(value) if value.dtype.kind == "c" else float(value)  # type: ignore[arg-type]
    if np.isfinite(value) and not np.isfinite(number):
        wrong("", f"cannot represent {show(value)} as {dtype}", actual=value)
    return number


def _tuple_bytes(dtype: DType, value: tuple[object, ...]) -> bytes:
    names = dtype.names or ()
    if len(value) != len(names):
        reason = f"expected {len(names)} values, one per field, got {len(value)}"
        wrong("", reason, expected=len(names), actual=len(value))
    fields = {}
    for name, item in zip(names, value, strict=True):
        with within(name):
            fields[name] = _field_bytes(dtype[name], item)
    return _assemble(dtype, fields)


def _field_bytes(dtype: DType, value: object) -> bytes:
    if dtype.subdtype is None:
        return fill_bytes(dtype, value)
    element = np.zeros((), dtype=[("field", dtype)])
    try:
        element["field"] = value
    except (ValueError, TypeError, OverflowError) as error:
        wrong("", f"cannot represent {show(value)} as {dtype}: {error}", actual=value)
    return element.tobytes()


def _time_bytes(dtype: DType, value: object) -> bytes:
    """Return the bytes of a time or duration in any unit; this dtype must represent it exactly."""
    try:
        given = np.asarray(value, dtype=None if isinstance(value, np.generic) else dtype)
        stored = given.astype(dtype)
    except (ValueError, TypeError) as error:
        wrong("", f"cannot represent {show(value)} as {dtype}: {error}", actual=value)
    if not np.isnat(given) and stored != given:
        wrong(
            "", f"cannot represent {show(value)} as {dtype}: it is not a multiple of the unit", actual=value
        )
    return stored.tobytes()


def fill_scalar(dtype: DType, fill: bytes) -> Any:
    """Return the numpy scalar whose bytes are ``fill``."""
    return np.frombuffer(fill, dtype=dtype)[0]


def fill_to_json(dtype: DType, fill: bytes) -> Any:
    """Return the JSON that `fill_from_json` converts to exactly ``fill``, as zarr-python 3.4 writes it."""
    if dtype.names is not None:
        return {name: fill_to_json(dtype[name], _field(dtype, fill, name)) for name in dtype.names}
    match element_kind(dtype):
        case "f":
            return _float_to_json(dtype, fill)
        case "c":
            half = dtype.itemsize // 2
            part = np.dtype(f"f{half}")
            return [_float_to_json(part, fill[:half]), _float_to_json(part, fill[half:])]
        case "m" | "M":
            return int.from_bytes(fill, sys.byteorder, signed=True)
        case "S":
            return base64.b64encode(fill.rstrip(b"\0")).decode("ascii")
        case "V":
            return base64.b64encode(fill).decode("ascii")
    return int(fill_scalar(dtype, fill)) if ml_name(dtype) is not None else fill_scalar(dtype, fill).item()


def _field(dtype: DType, fill: bytes, name: str) -> bytes:
    field = dtype.fields[name]  # type: ignore[index]
    return fill[field[1] : field[1] + field[0].itemsize]


def _float_to_json(dtype: DType, fill: bytes) -> float | str:
    number = float(np.frombuffer(fill, dtype=dtype)[0])
    name = next((name for name, value in _SPECIAL.items() if value == number), None)
    if name is None and math.isnan(number):
        name = "NaN"
    json = number if name is None else name
    if _float_bytes(dtype, json, "") == fill:
        return json
    return f"0x{int.from_bytes(fill, sys.byteorder):0{2 * dtype.itemsize}x}"


def fill_repr(dtype: DType, fill: bytes) -> str:
    """Return an expression that `fill_bytes` converts to exactly ``fill``."""
    if dtype.names is not None or element_kind(dtype) in "SV":
        return repr(fill)
    return repr(fill_to_json(dtype, fill))
