# cases_2022.py - arrays of the 2022 format; imported by the tests and, in another interpreter, for zarr-python 2
# SPDX-License-Identifier: MIT
"""The arrays in the fixtures of `test_format_2022`. Imports only numpy, since zarr 2 and zarr 3 exclude each other."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LZMA_FILTERS = [{"id": 3, "dist": 4}, {"id": 0x21, "preset": 1}]
BLOSC = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}


class Case(NamedTuple):
    """One array; `per_shard` has one entry for each transformer."""

    name: str
    shape: tuple[int, ...] = (21, 13)
    chunks: tuple[int, ...] = (4, 3)
    per_shard: tuple[tuple[int, ...], ...] = ((2, 3),)
    dtype: Any = "<i4"
    order: str = "C"
    separator: str = "/"
    compressor: dict[str, Any] | None = BLOSC
    filters: tuple[dict[str, Any], ...] = ()
    fill: Any = 7
    object_codec: str | None = None
    is_written_whole: bool = False
    speaks_tensorstore: bool = True

    def data(self, salt: int = 0) -> np.ndarray:
        """Return elements that depend on their position."""
        n = int(np.prod(self.shape, dtype=int))
        numbers = (np.arange(n) * 3 + salt) % 101
        if self.object_codec == "vlen-utf8":
            values = np.array([f"ü{k}" * (k % 3) for k in numbers], dtype=object)
        elif self.object_codec:
            values = np.array([b"\0x%d" % k * (k % 3) for k in numbers], dtype=object)
        elif isinstance(self.dtype, list) or np.dtype(self.dtype).kind == "V":
            dtype = np.dtype(self.dtype)
            values = np.resize(numbers.astype("u1"), n * dtype.itemsize).view(dtype)
        elif np.dtype(self.dtype).kind in "mM":
            values = numbers.astype("i8").astype(self.dtype)
        else:
            values = numbers.astype(self.dtype)
        return values.reshape(self.shape)


def _dtypes() -> list[Case]:
    plain = ["b1", "i1", "u1", "<i2", ">u2", ">i4", "<u8", ">i8", "<f2", "<f4", ">f8"]
    extended = ["<c8", ">c16", "<M8[s]", ">m8[ms]", "|S5", "<U4", ">U3"]
    cases = [Case(f"type-{t.strip('<>|')}{'-big' * (t[0] == '>')}", dtype=t, fill=1) for t in plain]
    cases += [Case(f"type-{t.strip('<>|')}{'-big' * (t[0] == '>')}", dtype=t, fill=0) for t in extended]
    cases += [
        Case("type-V7", dtype="|V7", fill=None, is_written_whole=True, compressor=None),
        Case("type-struct", dtype=[("a", "<i2"), ("b", [("c", "<f4"), ("d", "|S3")])], fill=0),
        Case("type-struct-big", dtype=[("a", ">i2"), ("b", ">f8")], fill=0, order="F"),
        Case("type-str", dtype=object, object_codec="vlen-utf8", fill="-"),
        Case("type-bytes", dtype=object, object_codec="vlen-bytes", fill=0, is_written_whole=True),
    ]
    return [
        case._replace(name="".join(c if c.isalnum() or c == "-" else "" for c in case.name)) for case in cases
    ]


def _codecs() -> list[Case]:
    blosc = {"id": "blosc", "clevel": 5, "blocksize": 0}
    configs = {
        "raw": None,
        "blosc-zstd-bit": {**blosc, "cname": "zstd", "shuffle": 2},
        "blosc-auto": {**blosc, "cname": "blosclz", "shuffle": -1},
        "blosc-zlib-none": {**blosc, "cname": "zlib", "shuffle": 0},
        "blosc-lz4hc-blocks": {**blosc, "cname": "lz4hc", "shuffle": 1, "blocksize": 64},
        "gzip": {"id": "gzip", "level": 3},
        "zlib": {"id": "zlib", "level": 2},
        "lz4": {"id": "lz4", "acceleration": 2},
        "bz2": {"id": "bz2", "level": 3},
        "lzma": {"id": "lzma", "format": 1, "check": -1, "preset": None, "filters": None},
        "lzma-raw": {"id": "lzma", "format": 3, "check": -1, "preset": None, "filters": LZMA_FILTERS},
        "zstd": {"id": "zstd", "level": 3},
        "zstd-checksum": {"id": "zstd", "level": 1, "checksum": True},
    }
    foreign = ("zlib", "lz4", "bz2", "lzma", "lzma-raw", "blosc-auto")
    return [
        Case(
            f"codec-{name}",
            compressor=c,
            order="FC"[i % 2],
            dtype="<>"[i // 2 % 2] + "i4",
            speaks_tensorstore=name not in foreign,
        )
        for i, (name, c) in enumerate(configs.items())
    ]


def _filters() -> list[Case]:
    def case(name: str, *filters: dict[str, Any], **given: Any) -> Case:
        return Case(f"filter-{name}", filters=filters, speaks_tensorstore=False, **given)

    return [
        case("delta", {"id": "delta", "dtype": "<i4", "astype": "<i4"}),
        case("delta-big-F", {"id": "delta", "dtype": ">i4", "astype": ">i2"}, dtype=">i4", order="F"),
        case(
            "scale",
            {"id": "fixedscaleoffset", "scale": 2, "offset": 0, "dtype": "<f8", "astype": "<i2"},
            dtype="<f8",
        ),
        case(
            "astype", {"id": "astype", "encode_dtype": "<i2", "decode_dtype": "<i8"}, dtype="<i8", order="F"
        ),
        case("packbits", {"id": "packbits"}, dtype="b1", fill=False, compressor=None),
        case("shuffle", {"id": "shuffle", "elementsize": 4}, compressor={"id": "zlib", "level": 1}),
        case("two", {"id": "delta", "dtype": "<i4", "astype": "<i4"}, {"id": "shuffle", "elementsize": 4}),
    ]


CASES = [
    Case("plain"),
    Case("order-F", order="F"),
    Case("order-F-3d", (7, 9, 5), (2, 3, 2), ((2, 2, 2),), order="F", compressor=None),
    Case("dots", separator="."),
    Case("one-axis", (50,), (4,), ((3,),)),
    Case("one-axis-dots", (50,), (4,), ((3,),), separator="."),
    Case("no-axes", (), (), ((),), compressor=None, is_written_whole=True),
    Case("short", per_shard=((2,),)),
    Case("one-chunk", per_shard=((1, 1),)),
    Case("unsharded", per_shard=()),
    Case("unsharded-F-dots", per_shard=(), order="F", separator=".", dtype=">f4"),
    Case("unsharded-no-axes", (), (), (), compressor=None, is_written_whole=True),
    Case("stack", per_shard=((2, 1), (2, 2))),
    Case("stack-F-big", per_shard=((1, 2), (2, 2), (2, 1)), order="F", dtype=">i2", compressor=None),
    Case("group/within/array"),
    Case("fill-null", fill=None, is_written_whole=True),
    Case("fill-nan", dtype="<f4", fill=float("nan")),
    Case("fill-inf", dtype=">f8", fill=float("-inf")),
    Case("fill-complex", dtype="<c16", fill=complex(float("inf"), 2)),
    *_dtypes(),
    *_codecs(),
    *_filters(),
]
BY_NAME = {case.name: case for case in CASES}
assert len(BY_NAME) == len(CASES)


def to_file(array: np.ndarray) -> Any:
    """Return bytes for an array of objects, which a .npy file cannot hold without pickle."""
    if array.dtype != object:
        return array
    return np.array(
        [
            item.encode("utf-8", "surrogatepass").hex()
            if isinstance(item, str)
            else f"b{bytes(item).hex()}"
            if not isinstance(item, int)
            else f"int{item}"
            for item in array.ravel()
        ]
    ).reshape(array.shape)
