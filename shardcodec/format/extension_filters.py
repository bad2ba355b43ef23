# extension_filters.py - the codecs scale_offset and cast_value of zarr-extensions
# SPDX-License-Identifier: MIT
"""Codecs of zarr-extensions that change each element: `ScaleOffset` and `CastValue`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from .. import native
from ..errors import CodecError
from .checks import as_items, as_mapping, check_keys, parse_named, show, unsupported, within, wrong
from .codec_classes import Bytes, Codec, RegistryPackBits, Shape, Transpose
from .dtypes import DType
from .fill_values import fill_from_document
from .filters import NUMBERS, Filter

__all__ = ["CastValue", "ScaleOffset"]

# `scale_offset` and `cast_value`: data types that the engine has, and further ones that the specification allows.
_FURTHER = ("int2", "int4", "uint2", "uint4", "bfloat16")
_ROUNDINGS = ("nearest-even", "towards-zero", "towards-positive", "towards-negative", "nearest-away")
_OUT_OF_RANGE = ("clamp", "wrap")
# The engine looks each element up in the whole map.
_MOST_MAPPED = 256


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
        if dtype.name not in NUMBERS:
            self._refuse("", f"elements of one of {', '.join(NUMBERS)}, got {dtype}")


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
            self._refuse("data_type", f"one of {', '.join(NUMBERS)}, got {name}")
        if name not in NUMBERS:
            wrong("data_type", f"expected one of {', '.join(NUMBERS)}, got {show(name)}", actual=name)
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
