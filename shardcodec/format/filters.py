# filters.py - the array -> array codecs that change elements
# SPDX-License-Identifier: MIT
"""The filters of zarr-extensions and of numcodecs that map elements to elements, or to bits.

They run on the elements in the order in which they are stored. numcodecs reinterprets memory instead of converting it, so an
array is left to zarr (`UnsupportedError`) unless all of this is so: the configuration names the data type of the filter's input
and its byte order, that of the output is the one of `bytes`, and nothing but `bytes` and further filters follows. `scale_offset`
and `cast_value` have no such limits.

Source: zarr-extensions, ``codecs/scale_offset`` and ``codecs/cast_value``; numcodecs 0.16.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from .. import native
from ..errors import CodecError
from .checks import as_int, as_items, as_mapping, check_keys, parse_named, show, unsupported, within, wrong
from .codec_classes import Bytes, Codec, Endian, Kind, RegistryPackBits, Shape, Transpose
from .dtypes import DType
from .fill_values import fill_from_document

__all__ = [
    "AsType",
    "BitRound",
    "CastValue",
    "Delta",
    "Filter",
    "FixedScaleOffset",
    "PackBits",
    "Quantize",
    "RegistryBitRound",
    "ScaleOffset",
]

# Data types that the engine computes with, and those whose bits it rounds with the bits of their mantissa.
_NUMBERS = (
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

# `scale_offset` and `cast_value`: data types that the engine has, and further ones that the specification allows.
_FURTHER = ("int2", "int4", "uint2", "uint4", "bfloat16")
_ROUNDINGS = ("nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away")
_OUT_OF_RANGE = ("clamp", "wrap")
# The engine looks each element up in the whole map.
_MOST_MAPPED = 256


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
        if dtype.name not in _NUMBERS:
            self._refuse(key, f"one of {', '.join(_NUMBERS)}, got {show(given)}")
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
        if dtype.name not in _NUMBERS:
            self._refuse("", f"elements of one of {', '.join(_NUMBERS)}, got {dtype}")
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


# ---------------------------------------------------------------- codecs of zarr-extensions


@dataclass(frozen=True)
class _Elementwise(Filter):
    """A filter that gives each element alone, whatever its place: its order with transposes and byte orders is free."""

    def check_follower(self, codec: Codec) -> None:
        if not isinstance(codec, Filter | Bytes | RegistryPackBits | Transpose):
            what = f"filters, transposes, bytes and packbits after {self.json_name}, got {codec.json_name}"
            self._refuse("", what)

    def encoded_fill(self, fill: bytes) -> bytes:
        name, parameters = self.native()
        try:
            encoded: bytes = native.load().codec_encode(name, fill, **parameters)
        except CodecError as error:
            reason = error.message.partition("element 0: ")[2] or error.message
            wrong("", f"{self.json_name} cannot encode the fill value: {reason}", codec=self.json_name)
        return encoded

    def _check_dtype(self, dtype: DType) -> None:
        if dtype.name not in _NUMBERS:
            self._refuse("", f"elements of one of {', '.join(_NUMBERS)}, got {dtype}")


@dataclass(frozen=True)
class ScaleOffset(_Elementwise):
    """Elements minus ``offset`` times ``scale``, in their own data type."""

    json_name: ClassVar[str] = "scale_offset"

    offset: Any = 0
    scale: Any = 1
    item: str | None = None
    numbers: bytes = field(default=b"", repr=False)  # their bits: 0.0 == -0.0

    def configuration(self) -> dict[str, Any]:
        given = {"offset": (self.offset, 0), "scale": (self.scale, 1)}
        return {key: value for key, (value, default) in given.items() if value != default}

    def resolve(self, shape: Shape, dtype: DType) -> Codec:
        super().resolve(shape, dtype)
        self._check_dtype(dtype)
        numbers = b""
        for key in ("offset", "scale"):
            with within(key):
                numbers += fill_from_document(dtype, getattr(self, key))
        resolved = ScaleOffset(self.offset, self.scale, dtype.name, numbers)
        if resolved._scalars()[1] == 0:
            wrong("scale", "expected another number than 0", actual=self.scale)
        return resolved

    def _scalars(self) -> list[float]:
        numbers: list[float] = np.frombuffer(self.numbers, self.item).tolist()
        return numbers

    def encoded_nbytes(self, nbytes: int) -> int:
        return nbytes

    def native(self) -> tuple[str, dict[str, Any]]:
        offset, scale = self._scalars()
        return "scale_offset", {
            "item": self.item,
            "encoded_item": self.item,
            "offset": offset,
            "scale": scale,
        }


@dataclass(frozen=True)
class CastValue(_Elementwise):
    """The numbers of the elements in another data type; ``scalar_map`` has pairs, as in JSON."""

    json_name: ClassVar[str] = "cast_value"

    data_type: Any
    rounding: str = "nearest-even"
    out_of_range: str | None = None
    scalar_map: Any = None
    item: str | None = None
    mapped: tuple[bytes, bytes] = field(default=(b"", b""), repr=False)  # bits of scalar_map: 0.0 == -0.0

    def __post_init__(self) -> None:
        name = self.data_type
        if isinstance(name, Mapping):
            with within("data_type"):
                name, configuration = parse_named(name)
                check_keys(configuration, "configuration")
            object.__setattr__(self, "data_type", name)
        if not isinstance(name, str):
            wrong("data_type", f"expected a data type, got {show(name)}", actual=name)
        if name in _FURTHER or name.startswith(("float4_", "float6_", "float8_")):
            self._refuse("data_type", f"one of {', '.join(_NUMBERS)}, got {name}")
        if name not in _NUMBERS:
            wrong("data_type", f"expected one of {', '.join(_NUMBERS)}, got {show(name)}", actual=name)
        for key, known in (("rounding", _ROUNDINGS), ("out_of_range", _OUT_OF_RANGE)):
            value = getattr(self, key)
            if value not in known and not (key == "out_of_range" and value is None):
                wrong(key, f"expected one of {', '.join(known)}, got {show(value)}", actual=value)
        if self.out_of_range == "wrap" and self._encoded.kind == "f":
            wrong("out_of_range", f"expected wrap only for integers, got it for {name}", actual="wrap")
        if self.scalar_map is not None:
            object.__setattr__(self, "scalar_map", _parse_scalar_map(self.scalar_map))

    @cached_property
    def _encoded(self) -> DType:
        dtype: DType = np.dtype(self.data_type)
        return dtype

    def configuration(self) -> dict[str, Any]:
        configuration: dict[str, Any] = {"data_type": self.data_type}
        if self.rounding != "nearest-even":
            configuration["rounding"] = self.rounding
        if self.out_of_range is not None:
            configuration["out_of_range"] = self.out_of_range
        if self.scalar_map is not None:
            configuration["scalar_map"] = {
                key: [list(pair) for pair in pairs] for key, pairs in self.scalar_map
            }
        return configuration

    def resolve(self, shape: Shape, dtype: DType) -> Codec:
        super().resolve(shape, dtype)
        self._check_dtype(dtype)
        maps = dict(self.scalar_map or ())
        mapped = (
            _mapped_bits(maps.get("encode", ()), "scalar_map.encode", dtype, self._encoded),
            _mapped_bits(maps.get("decode", ()), "scalar_map.decode", self._encoded, dtype),
        )
        return replace(self, item=dtype.name, mapped=mapped)

    def output(self, shape: Shape, dtype: DType) -> tuple[Shape, DType]:
        return shape, self._encoded

    def encoded_nbytes(self, nbytes: int) -> int:
        return nbytes // np.dtype(self.item).itemsize * self._encoded.itemsize

    def encoded_itemsize(self, itemsize: int) -> int:
        return self._encoded.itemsize

    def native(self) -> tuple[str, dict[str, Any]]:
        return "cast_value", {
            "item": self.item,
            "encoded_item": self.data_type,
            "rounding": self.rounding,
            "out_of_range": self.out_of_range,
            "mapped": self.mapped,
        }


_ScalarMap = tuple[tuple[str, tuple[tuple[Any, Any], ...]], ...]


def _parse_scalar_map(data: object) -> _ScalarMap:
    """Return pairs of numbers for each direction, as tuples that are hashable."""
    if isinstance(data, tuple):  # it was parsed before
        data = dict(data)
    with within("scalar_map"):
        data = as_mapping(data, "")
        check_keys(data, "", optional=("encode", "decode"))
        parsed = []
        for direction, items in data.items():
            pairs = []
            for i, item in enumerate(as_items(items, direction)):
                pair = as_items(item, f"{direction}[{i}]")
                if len(pair) != 2:
                    wrong(f"{direction}[{i}]", f"expected two numbers, got {show(item)}", actual=item)
                pairs.append((pair[0], pair[1]))
            parsed.append((direction, tuple(pairs)))
    return tuple(parsed)


def _mapped_bits(pairs: Any, path: str, source: DType, target: DType) -> bytes:
    if len(pairs) > _MOST_MAPPED:
        unsupported(path, f"expected at most {_MOST_MAPPED} entries, got {len(pairs)}", codec="cast_value")
    bits = bytearray()
    for i, pair in enumerate(pairs):
        for k, dtype in enumerate((source, target)):
            with within(f"{path}[{i}][{k}]"):
                bits += fill_from_document(dtype, pair[k]).ljust(8, b"\0")
    return bytes(bits)
