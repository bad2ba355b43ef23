# filters.py - the array -> array codecs that change elements
# SPDX-License-Identifier: MIT
"""The filters of numcodecs, and those of zarr-extensions, that map elements to elements, or to bits.

They run on the elements in the order in which they are stored. numcodecs reinterprets memory instead of converting it, so an
array is left to zarr (`UnsupportedError`) unless all of this is so: the configuration names the data type of the filter's input
and its byte order, that of the output is the one of `bytes`, and nothing but `bytes` and further filters follows. `scale_offset`
and `cast_value` have no such limits.

Source: zarr-extensions, ``codecs/scale_offset`` and ``codecs/cast_value``; numcodecs 0.16.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from .checks import as_int, show, unsupported, wrong
from .codec_classes import Bytes, Codec, Endian, Kind, Shape
from .dtypes import DType

__all__ = [
    "NUMBERS",
    "AsType",
    "BitRound",
    "Delta",
    "Filter",
    "FixedScaleOffset",
    "PackBits",
    "Quantize",
    "RegistryBitRound",
]

# Data types that the engine computes with, and those whose bits it rounds with the bits of their mantissa.
NUMBERS = (
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
)
_MANTISSAS = {"float16": 10, "float32": 23, "float64": 52}
# Integers up to here are exact as doubles.
_MOST_EXACT = 2**53
_UINT8: DType = np.dtype("uint8")


@dataclass(frozen=True)
class Filter(Codec):
    """Base class of the filters."""

    kind: ClassVar[Kind] = "array -> array"

    def resolve(self, shape: Shape, dtype: DType) -> Codec:
        if sys.byteorder != "little":
            self._refuse("", f"a little-endian machine, got a {sys.byteorder}-endian one")
        return self

    def check_follower(self, codec: Codec) -> None:
        """Refuse a codec anywhere after this one if numcodecs would reinterpret its elements, or the engine has another order."""
        if isinstance(codec, Filter) or (isinstance(codec, Bytes) and codec.endian in (None, self._endian())):
            return
        self._refuse("", f"{self._endian()}-endian bytes after {self.json_name}, got {codec.json_name}")

    def _endian(self) -> Endian:
        return "little"

    def from_order(self, endian: Endian) -> tuple[Codec, Endian]:
        """Return the filter for elements in native order in place of `endian`, as in Zarr v2, and the byte order of its output."""
        if endian != "little":
            self._refuse("", f"little-endian elements for {self.json_name}")
        return self, self._endian()

    def output(self, shape: Shape, dtype: DType) -> tuple[Shape, DType]:
        """Return the shape and the data type of the elements after this codec."""
        return shape, dtype

    def encoded_itemsize(self, itemsize: int) -> int:
        """Return the bytes of an element after this codec, from those before it."""
        return itemsize

    def encoded_fill(self, fill: bytes) -> bytes | None:
        """Return the fill value after this codec; None if the codec says nothing about fill values."""
        return None

    def _refuse(self, key: str, what: str, **numbers: Any) -> None:
        unsupported(key, f"expected {what}", codec=self.json_name, **numbers)


@dataclass(frozen=True)
class _Typed(Filter):
    """A filter whose configuration names the data types before and after it, as numpy writes them."""

    # names of the fields: the decoded and the encoded data type
    decoded: ClassVar[str] = "dtype"
    encoded: ClassVar[str] = "astype"

    def __post_init__(self) -> None:
        for key in (self.decoded, self.encoded):
            if getattr(self, key) is not None:
                object.__setattr__(self, key, self._parse(key))

    def _parse(self, key: str) -> str:
        given = getattr(self, key)
        if not isinstance(given, str):
            wrong(key, f"expected the name of a data type, got {show(given)}", actual=given)
        try:
            dtype = np.dtype(given)
        except (TypeError, ValueError) as error:
            wrong(key, f"expected the name of a data type, got {show(given)}: {error}", actual=given)
        if dtype.name not in NUMBERS:
            self._refuse(key, f"one of {', '.join(NUMBERS)}, got {show(given)}")
        return str(dtype.str)

    def _endian(self) -> Endian:
        return _endian_of(getattr(self, self.encoded) or getattr(self, self.decoded)) or "little"

    def from_order(self, endian: Endian) -> tuple[Codec, Endian]:
        decoded = getattr(self, self.decoded)
        if decoded is None:
            return super().from_order(endian)
        if _endian_of(decoded) not in (None, endian):
            self._refuse(self.decoded, f"{endian}-endian elements, as the array has, got {decoded}")
        encoded = getattr(self, self.encoded) or decoded
        names = {self.decoded: decoded.replace(">", "<"), self.encoded: encoded}
        return type(self)(**{**self.__dict__, **names}), self._endian()

    def resolve(self, shape: Shape, dtype: DType) -> Codec:
        super().resolve(shape, dtype)
        decoded = getattr(self, self.decoded)
        if dtype.name not in NUMBERS:
            self._refuse("", f"elements of one of {', '.join(NUMBERS)}, got {dtype}")
        if decoded is not None and np.dtype(decoded) != dtype:
            self._refuse(self.decoded, f"{dtype}, the type of the elements, got {decoded}")
        names = {self.decoded: dtype.str, self.encoded: getattr(self, self.encoded) or dtype.str}
        return type(self)(**{**self.__dict__, **names})

    def output(self, shape: Shape, dtype: DType) -> tuple[Shape, DType]:
        return shape, np.dtype(getattr(self, self.encoded))

    def encoded_nbytes(self, nbytes: int) -> int:
        decoded, encoded = (np.dtype(getattr(self, key)) for key in (self.decoded, self.encoded))
        return nbytes // int(decoded.itemsize) * int(encoded.itemsize)

    def encoded_itemsize(self, itemsize: int) -> int:
        encoded = getattr(self, self.encoded)
        return itemsize if encoded is None else int(np.dtype(encoded).itemsize)

    def _items(self) -> dict[str, Any]:
        decoded, encoded = (np.dtype(getattr(self, key)).name for key in (self.decoded, self.encoded))
        return {"item": decoded, "encoded_item": encoded}


def _endian_of(name: str | None) -> Endian | None:
    """Return the byte order in a name of numpy; None if it has none."""
    orders: dict[str, Endian] = {">": "big", "<": "little"}
    return orders.get((name or "|")[0])


@dataclass(frozen=True)
class Delta(_Typed):
    """The first element, then the differences of neighbours."""

    json_name: ClassVar[str] = "numcodecs.delta"

    dtype: str | None = None
    astype: str | None = None

    def resolve(self, shape: Shape, dtype: DType) -> Codec:
        resolved = super().resolve(shape, dtype)
        encoded = resolved.output(shape, dtype)[1]  # type: ignore[attr-defined]
        if encoded.name != dtype.name and (encoded.kind == "f" or dtype.kind == "f"):
            self._refuse("astype", f"an integer for integers, or {dtype}, got {encoded}")
        if "uint64" in (encoded.name, dtype.name) and "i" in (
            encoded.kind,
            dtype.kind,
        ):  # numpy adds these as floats
            self._refuse("astype", f"another data type than {encoded} for {dtype}")
        return resolved

    def native(self) -> tuple[str, dict[str, Any]]:
        return "delta", self._items()


@dataclass(frozen=True)
class FixedScaleOffset(_Typed):
    """Elements minus ``offset`` times ``scale``, rounded, in another data type."""

    json_name: ClassVar[str] = "numcodecs.fixedscaleoffset"

    offset: float
    scale: float
    dtype: str | None = None
    astype: str | None = None
    numbers: str = field(default="", repr=False)  # integers and floats give different results; 1 == 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "numbers", repr((self.offset, self.scale)))
        for key in ("offset", "scale"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, int | float):
                wrong(key, f"expected a number, got {show(value)}", actual=value)
            if not abs(value) <= (_MOST_EXACT if isinstance(value, int) else math.inf):
                self._refuse(key, f"an integer of at most 2^53 or a float, got {show(value)}", actual=value)

    def configuration(self) -> dict[str, Any]:
        configuration = super().configuration()
        del configuration["numbers"]
        return configuration

    def resolve(self, shape: Shape, dtype: DType) -> Codec:
        resolved = super().resolve(shape, dtype)
        encoded = resolved.output(shape, dtype)[1]  # type: ignore[attr-defined]
        # numpy refuses Python integers that do not fit the data type of the other operand
        for key, into in (("offset", dtype), ("scale", dtype), ("scale", encoded)):
            value = getattr(self, key)
            if isinstance(value, int) and into.kind in "iu":
                info = np.iinfo(into)
                if not info.min <= value <= info.max:
                    self._refuse(key, f"a number that {into} can have, got {value}", actual=value)
        return resolved

    def native(self) -> tuple[str, dict[str, Any]]:
        return "fixedscaleoffset", self._items() | {"offset": self.offset, "scale": self.scale}


@dataclass(frozen=True)
class Quantize(_Typed):
    """Floats rounded to a number of decimal digits; decoding changes nothing."""

    json_name: ClassVar[str] = "numcodecs.quantize"

    digits: int
    dtype: str | None = None
    astype: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "digits", as_int(self.digits, "digits", minimum=-300, maximum=300))

    def resolve(self, shape: Shape, dtype: DType) -> Codec:
        resolved = super().resolve(shape, dtype)
        if dtype.kind != "f" or resolved.output(shape, dtype)[1].name != dtype.name:  # type: ignore[attr-defined]
            self._refuse("astype", f"floats, the same as dtype, for {dtype}; zarr forgets another one")
        return resolved

    def native(self) -> tuple[str, dict[str, Any]]:
        # as numcodecs computes it, so that the rounded numbers are the same
        exponent = math.log10(10.0**-self.digits)
        exponent = math.floor(exponent) if exponent < 0 else math.ceil(exponent)
        return "quantize", self._items() | {"scale": 2.0 ** math.ceil(math.log2(10.0**-exponent))}


@dataclass(frozen=True)
class AsType(_Typed):
    """Elements in another data type."""

    json_name: ClassVar[str] = "numcodecs.astype"
    decoded: ClassVar[str] = "decode_dtype"
    encoded: ClassVar[str] = "encode_dtype"

    encode_dtype: str
    decode_dtype: str | None = None

    def native(self) -> tuple[str, dict[str, Any]]:
        return "astype", self._items()


@dataclass(frozen=True)
class BitRound(Filter):
    """Floats whose mantissa is rounded to ``keepbits`` bits; decoding changes nothing."""

    json_name: ClassVar[str] = "numcodecs.bitround"

    keepbits: int
    item: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "keepbits", as_int(self.keepbits, "keepbits", minimum=0, maximum=2**31 - 1))

    def configuration(self) -> dict[str, Any]:
        return {"keepbits": self.keepbits}

    def resolve(self, shape: Shape, dtype: DType) -> Codec:
        super().resolve(shape, dtype)
        if self.keepbits > _MANTISSAS.get(dtype.name, -1):
            most = ", ".join(f"{bits} bits of {name}" for name, bits in _MANTISSAS.items())
            self._refuse("keepbits", f"at most {most}, got {self.keepbits} of {dtype}", actual=self.keepbits)
        return replace(self, item=dtype.name)

    def encoded_nbytes(self, nbytes: int) -> int:
        return nbytes

    def native(self) -> tuple[str, dict[str, Any]]:
        return "bitround", {"item": self.item, "encoded_item": self.item, "level": self.keepbits}


@dataclass(frozen=True)
class RegistryBitRound(BitRound):
    """The same under its name in zarr-extensions, which zarr-python does not know; rounding integers is not implemented."""

    json_name: ClassVar[str] = "bitround"


@dataclass(frozen=True)
class PackBits(Filter):
    """Truth values, eight to a byte, after the number of unused bits."""

    json_name: ClassVar[str] = "numcodecs.packbits"

    def resolve(self, shape: Shape, dtype: DType) -> Codec:
        super().resolve(shape, dtype)
        if dtype.kind != "b":
            self._refuse("", f"elements of type bool, got {dtype}")
        return self

    def output(self, shape: Shape, dtype: DType) -> tuple[Shape, DType]:
        return (self.encoded_nbytes(math.prod(shape)),), _UINT8

    def encoded_nbytes(self, nbytes: int) -> int:
        return 1 + (nbytes + 7) // 8

    def encoded_itemsize(self, itemsize: int) -> int:
        return 1

    def native(self) -> tuple[str, dict[str, Any]]:
        return "packbits", {}
