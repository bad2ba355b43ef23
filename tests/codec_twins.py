# codec_twins.py - cast_value as its specification describes it, number by number
# SPDX-License-Identifier: MIT
"""A twin of the engine's `cast_value` that computes with exact fractions, and tables of all numbers of 16 bits for exhaustive tests.

Source: zarr-extensions, ``codecs/cast_value``. Rounding comes first and knows no limits: the numbers of a float type go on beyond its
largest one.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

__all__ = ["FLOATS", "INTEGERS", "ROUNDINGS", "Refused", "cast_number", "cast_table"]

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = ("float16", "float32", "float64")
ROUNDINGS = ("nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away")

# bits of the mantissa, the exponent of the least normal number, and that of the number above all
_FORMATS = {"float16": (10, -14, 16), "float32": (23, -126, 128), "float64": (52, -1022, 1024)}


class Refused(Exception):
    """The specification says that the codec must fail."""


def _unit(size: Fraction, target: str) -> Fraction:
    """Return the distance of neighbouring numbers of the type around `size`."""
    if target in INTEGERS:
        return Fraction(1)
    mantissa, least, _ = _FORMATS[target]
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    return Fraction(2) ** (max(exponent, least) - mantissa)


def _rounded(x: Fraction, target: str, rounding: str) -> Fraction:
    unit = _unit(abs(x), target)
    below = x // unit  # the number of units
    rest = x / unit - below
    if rest == 0:
        return x
    up = {
        "towards-zero": x < 0,
        "towards-positive": True,
        "towards-negative": False,
        "nearest-even": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and below % 2 == 1),
        "nearest-away": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and x > 0),
    }[rounding]
    return (below + up) * unit


def cast_number(x: float, target: str, rounding: str, out_of_range: str | None) -> float:
    """Return a Python number cast to `target`, which is a number of that type; raise `Refused`."""
    if not isinstance(x, int) and not math.isfinite(x):
        if target in INTEGERS:
            raise Refused
        return x
    if x == 0:
        return math.copysign(0.0, x) if target in FLOATS else 0
    result = _rounded(Fraction(x), target, rounding)
    if target in FLOATS:
        if abs(result) >= Fraction(2) ** _FORMATS[target][2]:
            if out_of_range != "clamp":
                raise Refused
            return math.copysign(math.inf, x)
        return math.copysign(float(result), x)
    info = np.iinfo(target)
    if info.min <= result <= info.max:
        return int(result)
    if out_of_range is None:
        raise Refused
    if out_of_range == "clamp":
        return int(info.max) if result > info.max else int(info.min)
    wrapped = int(result) % 2**info.bits
    return wrapped - 2**info.bits if wrapped > info.max else wrapped


def _neighbours(values: np.ndarray[Any, Any], target: str) -> tuple[Any, Any, Any]:
    """Return the greatest number of the type that is not above each value, the least that is not below, and if the first one is even."""
    if target in INTEGERS:
        low = np.floor(values)
        return low, np.ceil(values), low % 2 == 0
    bits = np.arange(0x7C01, dtype=np.uint16)
    sizes = bits.view(np.float16).astype(np.float64)
    sizes[-1] = 65536.0  # where the next number would be
    sizes = np.append(sizes, 65536.0 + 64)  # no value is above
    table = np.concatenate([-sizes[:0:-1], sizes])
    even = np.append(bits, 1) % 2 == 0
    evens = np.concatenate([even[:0:-1], even])
    low = np.searchsorted(table, values, side="right") - 1
    high = np.searchsorted(table, values, side="left")
    return table[low], table[high], evens[low]


def cast_table(
    values: np.ndarray[Any, Any], target: str, rounding: str, out_of_range: str | None
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return values of a type of 8 or 16 bits cast to `target`, and for which of them the codec must fail."""
    exact = values.astype(np.float64)
    finite = np.isfinite(exact)
    if target in ("float32", "float64"):
        return exact.astype(target), np.zeros(values.shape, bool)
    low, high, low_is_even = _neighbours(np.where(finite, exact, 0), target)
    below, above = exact - low, high - exact
    with np.errstate(invalid="ignore"):
        result = {
            "towards-zero": np.where(exact < 0, high, low),
            "towards-positive": high,
            "towards-negative": low,
            "nearest-even": np.where((below < above) | ((below == above) & low_is_even), low, high),
            "nearest-away": np.where((below < above) | ((below == above) & (exact < 0)), low, high),
        }[rounding]
    result = np.where(finite, np.copysign(result, exact), exact)
    if target == "float16":
        too_large = finite & (np.abs(result) > 65504)
        result = np.where(too_large, np.copysign(np.inf, exact), result)
        refused = too_large & (out_of_range != "clamp")
    else:
        info = np.iinfo(target)
        too_large = finite & ((result < float(info.min)) | (result > float(info.max)))
        refused = ~finite | (too_large & (out_of_range is None))
        if out_of_range == "clamp":
            result = np.clip(np.where(finite, result, 0), float(info.min), float(min(info.max, 2**53)))
    with np.errstate(all="ignore"):
        if target == "float16":
            return result.astype(target), refused
        return np.where(finite, result, 0).astype(np.int64).astype(target), refused
