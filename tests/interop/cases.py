# cases.py - the arrays that implementations exchange
# SPDX-License-Identifier: MIT
"""Arrays as plain metadata, written by no implementation: all get the same ``zarr.json``."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from spec_json import BIG, BYTE, CRC, GZIP, LITTLE, Json, blosc, named, sharding, transpose, zstd

Array = npt.NDArray[Any]
Box = tuple[slice, ...]


@dataclass(frozen=True)
class Case:
    """One sharded array.

    The default has ragged edges: 2 x 2 shards of 2 x 3 inner chunks, of which the last ones reach out of the array.
    """

    id: str
    codecs: tuple[Json, ...] = (LITTLE,)
    data_type: str = "int16"
    fill_value: Any = 0
    shape: tuple[int, ...] = (13, 20)
    shard: tuple[int, ...] = (8, 12)
    chunk: tuple[int, ...] = (4, 4)
    index_codecs: tuple[Json, ...] = (LITTLE, CRC)
    index_location: str = "end"
    outer: tuple[Json, ...] = ()  # bytes -> bytes, after sharding

    def metadata(self) -> Json:
        """Return the content of zarr.json."""
        shards = sharding(
            self.chunk, self.codecs, index_codecs=self.index_codecs, index_location=self.index_location
        )
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": self.data_type,
            "chunk_grid": named("regular", chunk_shape=list(self.shard)),
            "chunk_key_encoding": named("default", separator="/"),
            "fill_value": self.fill_value,
            "codecs": [shards, *self.outer],
            "attributes": {},
        }

    def create(self, folder: Path) -> Path:
        """Write the metadata of the array into an empty folder, without shards."""
        folder.mkdir()
        (folder / "zarr.json").write_text(json.dumps(self.metadata()))
        return folder

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.data_type)

    @property
    def whole(self) -> Box:
        """Return the box of the whole array."""
        return tuple(slice(0, n) for n in self.shape)

    @property
    def region(self) -> Box:
        """Return a box that starts and ends within inner chunks and, if there are several shards, crosses them."""
        return tuple(slice(1, max(2, n - 2)) for n in self.shape)

    @property
    def corner(self) -> Box:
        """Return a box within the first inner chunk."""
        return tuple(slice(0, max(1, n - 1)) for n in self.chunk)

    def fill(self) -> Array:
        """Return the values of the array before any write."""
        if self.dtype.kind == "c":
            real, imaginary = map(float, self.fill_value)
            return np.full(self.shape, complex(real, imaginary), self.dtype)
        value = float(self.fill_value) if self.dtype.kind == "f" else self.fill_value
        return np.full(self.shape, value, self.dtype)

    def values(self, seed: int = 0) -> Array:
        """Return values of the whole array, with the extreme values of its type and one inner chunk of fill values."""
        rng = np.random.default_rng(seed)
        items = rng.integers(0, 256, (math.prod(self.shape), self.dtype.itemsize), np.uint8)
        if self.dtype.kind in "fc":
            # Not random bits: implementations may change the payload of a NaN.
            part = np.dtype(f"f{self.dtype.itemsize // 2}") if self.dtype.kind == "c" else self.dtype
            awkward = np.array([0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, -2.75e-3], part)
            flat = rng.choice(awkward, len(items) * self.dtype.itemsize // part.itemsize).view(self.dtype)
        elif self.dtype.kind == "b":
            flat = items[:, 0] % 2 == 1
        else:
            flat = items.view(self.dtype)[:, 0]
        out = flat.reshape(self.shape)
        inside = tuple(slice(c, 2 * c) for c in self.chunk)
        out[inside] = self.fill()[inside]
        return out


def _data_types() -> list[Case]:
    fills: dict[str, Any] = {
        "bool": True,
        "int8": -3,
        "uint8": 200,
        "int16": -300,
        "uint16": 65535,
        "int32": 7,
        "uint32": 2**32 - 1,
        "int64": -(2**40),
        "uint64": 2**64 - 1,
        "float16": 1.5,
        "float32": -0.1875,
        "float64": 1e300,
        "complex64": [1.5, -2.0],
        "complex128": [0.0, 1.0],
    }
    cases = []
    for name, fill in fills.items():
        one_byte = np.dtype(name).itemsize == 1
        for codec in [BYTE] if one_byte else [LITTLE, BIG]:
            order = "" if one_byte else f"-{codec['configuration']['endian']}"
            cases.append(Case(f"{name}{order}", (codec, zstd()), data_type=name, fill_value=fill))
    return cases


def _codecs() -> list[Case]:
    chains: dict[str, tuple[Json, ...]] = {
        "raw": (LITTLE,),
        "zstd-default-level": (LITTLE, zstd(0)),
        "zstd-checksum": (LITTLE, zstd(3, checksum=True)),
        "zstd-negative-level": (LITTLE, zstd(-5)),
        "gzip": (LITTLE, GZIP),
        "gzip-stored": (LITTLE, named("gzip", level=0)),
        "crc32c": (LITTLE, CRC),
        "zstd-crc32c": (LITTLE, zstd(), CRC),
        "crc32c-gzip": (LITTLE, CRC, GZIP),
        "two-compressors": (LITTLE, blosc("lz4", "shuffle", 2), zstd()),
        "transpose": (transpose(1, 0), LITTLE),
        "transpose-big-zstd-crc32c": (transpose(1, 0), BIG, zstd(), CRC),
        "transpose-twice": (transpose(1, 0), transpose(1, 0), LITTLE),
        "blosc-clevel-0": (LITTLE, blosc("lz4", "shuffle", 2, clevel=0)),
        "blosc-typesize-7": (LITTLE, blosc("zstd", "shuffle", typesize=7)),
    }
    return [Case(name, chain) for name, chain in chains.items()]


def _blosc() -> list[Case]:
    cnames = ("blosclz", "lz4", "lz4hc", "zlib", "zstd")
    shuffles = ("noshuffle", "shuffle", "bitshuffle")
    # Inner chunks of 2 KiB, since Blosc stores shorter ones uncompressed.
    large = Case("", shape=(50, 70), shard=(64, 64), chunk=(32, 32))
    return [
        replace(large, id=f"blosc-{cname}-{shuffle}", codecs=(LITTLE, blosc(cname, shuffle, 2)))
        for cname, shuffle in itertools.product(cnames, shuffles)
    ]


def _layouts() -> list[Case]:
    plain = Case("plain", (LITTLE, zstd()), fill_value=-1)
    cases = []
    for at, endian, crc in itertools.product(("start", "end"), ("little", "big"), (True, False)):
        index_codecs = (named("bytes", endian=endian), *([CRC] if crc else []))
        name = f"index-{at}-{endian}{'' if crc else '-no-crc32c'}"
        cases.append(replace(plain, id=name, index_codecs=index_codecs, index_location=at))
    solid = replace(plain, id="3-d", shape=(5, 6, 7), shard=(4, 4, 6), chunk=(2, 1, 3))
    inner = sharding((2, 2), (LITTLE, CRC))
    at_start = sharding((2, 1), (transpose(1, 0), BIG), index_codecs=(BIG,), index_location="start")
    return [
        *cases,
        replace(plain, id="1-d", shape=(50,), shard=(16,), chunk=(4,)),
        solid,
        replace(solid, id="3-d-transposed", codecs=(transpose(2, 0, 1), LITTLE, zstd())),
        replace(plain, id="4-d", shape=(3, 4, 5, 3), shard=(2, 4, 2, 2), chunk=(1, 2, 2, 1)),
        replace(plain, id="odd-grid", shape=(30, 35), shard=(30, 35), chunk=(6, 5)),
        replace(plain, id="one-inner-chunk", chunk=(8, 12)),
        replace(plain, id="shard-larger-than-array", shape=(5, 6), shard=(64, 64)),
        replace(plain, id="items-as-chunks", shard=(4, 4), chunk=(1, 1)),
        replace(plain, id="nested", codecs=(inner,)),
        replace(plain, id="nested-zstd", codecs=(inner, zstd())),
        replace(plain, id="nested-start", codecs=(at_start, CRC), index_location="start"),
        replace(plain, id="zstd-around-shard", outer=(zstd(),)),
        replace(plain, id="crc32c-around-shard", outer=(CRC,), index_location="start"),
    ]


def _fills() -> list[Case]:
    fills: dict[str, tuple[str, Any]] = {
        "nan": ("float32", "NaN"),
        "minus-zero": ("float64", -0.0),
        "infinity": ("float32", "Infinity"),
        "minus-infinity": ("float64", "-Infinity"),
        "zero": ("float32", 0.0),
        "complex-nan": ("complex64", ["NaN", 1.0]),
        "complex-minus-zero": ("complex128", [-0.0, 0.0]),
        "false": ("bool", False),
        "negative": ("int32", -(2**31)),
    }
    return [
        Case(f"fill-{name}", (BYTE if data_type == "bool" else LITTLE,), data_type=data_type, fill_value=fill)
        for name, (data_type, fill) in fills.items()
    ]


DATA_TYPES = _data_types()
CODECS = _codecs()
BLOSC = _blosc()
LAYOUTS = _layouts()
FILLS = _fills()
ALL = [*DATA_TYPES, *CODECS, *BLOSC, *LAYOUTS, *FILLS]
