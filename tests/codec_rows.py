# codec_rows.py - one row per native codec that zarr has: configurations and data types for the tests that compare with zarr
# SPDX-License-Identifier: MIT
"""`ROWS`: every native codec beside `bytes`, `transpose` and `sharding_indexed`, which all tests use.

A test fails if a codec of `shardcodec.format.codecs.ROWS` has no row here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from helpers import ZARR_IS_31

__all__ = ["ROWS", "CodecRow", "cases_of"]


class CodecRow(NamedTuple):
    """A codec as numcodecs and zarr configure it.

    name: in Zarr v3. configurations: of Zarr v3; in v2 the same with `id`. dtypes: that it takes. is_exact: two encoders write the
    same bytes. zarr_has_it: this zarr has it.
    """

    name: str
    configurations: tuple[dict[str, Any], ...]
    dtypes: tuple[str, ...] = ("int32", "uint8", "float64", "complex64", "bool", "int16")
    is_exact: bool = True
    in_v2: bool = True
    zarr_has_it: bool = True


def cases_of(row: CodecRow) -> Iterator[Any]:
    """Yield a case for each configuration and type: by day some with each of them, and at night all."""
    n, m = len(row.configurations), len(row.dtypes)
    by_day = {(i % n, i % m) for i in range(max(n, m))}
    for i, configuration in enumerate(row.configurations):
        for j, dtype in enumerate(row.dtypes):
            marks = [pytest.mark.nightly] * ((i, j) not in by_day)
            yield pytest.param(row, configuration, dtype, id=f"{row.name}-{i}-{dtype}", marks=marks)


ANY = ("int16", "bool")
ROWS: tuple[CodecRow, ...] = (
    CodecRow("crc32c", ({},), in_v2=False),
    CodecRow("zstd", ({"level": 1, "checksum": True},), dtypes=ANY, is_exact=False, in_v2=False),
    CodecRow("gzip", ({"level": 1},), dtypes=ANY, is_exact=False, in_v2=False),
    CodecRow(
        "blosc",
        ({"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0},),
        dtypes=ANY,
        is_exact=False,
        in_v2=False,
    ),
    CodecRow("numcodecs.zstd", ({"level": 1},), dtypes=ANY, is_exact=False),
    CodecRow("numcodecs.gzip", ({"level": 1},), dtypes=ANY, is_exact=False),
    CodecRow("numcodecs.zlib", ({"level": 1},), dtypes=ANY, is_exact=False),
    CodecRow(
        "numcodecs.blosc",
        ({"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},),
        dtypes=ANY,
        is_exact=False,
    ),
    CodecRow("numcodecs.lz4", ({"acceleration": 1},), dtypes=ANY, is_exact=False),
    CodecRow("numcodecs.crc32c", ({}, {"location": "end"}, {"location": "start"})),
    CodecRow(
        "numcodecs.shuffle", ({"elementsize": 4}, {"elementsize": 1}, {"elementsize": 0}, {"elementsize": 12})
    ),
    CodecRow("numcodecs.fletcher32", ({},)),
    CodecRow("numcodecs.crc32", ({}, {"location": "start"}, {"location": "end"})),
    CodecRow("numcodecs.adler32", ({}, {"location": "start"}, {"location": "end"})),
    CodecRow(
        "numcodecs.delta",
        ({"dtype": "<i4"}, {"dtype": "<i4", "astype": "<i2"}, {"dtype": "<i4", "astype": "<u4"}),
        ("int32",),
    ),
    CodecRow("numcodecs.delta", ({"dtype": "|u1"}, {"dtype": "|u1", "astype": "|i1"}), ("uint8",)),
    CodecRow("numcodecs.delta", ({"dtype": "<f4"},), ("float32",)),
    CodecRow("numcodecs.delta", ({"dtype": "<f8"},), ("float64",)),
    CodecRow(
        "numcodecs.fixedscaleoffset",
        (
            {"offset": 3.5, "scale": 10, "dtype": "<f4", "astype": "<i2"},
            {"offset": 1, "scale": 0.1, "dtype": "<f4", "astype": "|u1"},
            {"offset": 0, "scale": 4, "dtype": "<f4"},
        ),
        ("float32",),
    ),
    CodecRow(
        "numcodecs.fixedscaleoffset",
        ({"offset": -2, "scale": 100, "dtype": "<f8", "astype": "<u4"},),
        ("float64",),
    ),
    CodecRow(
        "numcodecs.fixedscaleoffset",
        (
            {"offset": 3, "scale": 1, "dtype": "<i4"},
            {"offset": 3, "scale": 2, "dtype": "<i4", "astype": "<i8"},
            {"offset": 3, "scale": 0.5, "dtype": "<i4", "astype": "<i2"},
            {"offset": 0.5, "scale": 2, "dtype": "<i4", "astype": "<f4"},
        ),
        ("int32",),
    ),
    CodecRow(
        "numcodecs.bitround",
        ({"keepbits": 3}, {"keepbits": 0}, {"keepbits": 10}),
        ("float16", "float32", "float64"),
    ),
    CodecRow(
        "numcodecs.quantize",
        ({"digits": 1, "dtype": "<f4"},),
        ("float32",),
    ),
    CodecRow(
        "numcodecs.quantize",
        ({"digits": 3, "dtype": "<f8"}, {"digits": -1, "dtype": "<f8"}),
        ("float64",),
    ),
    CodecRow(
        "numcodecs.astype",
        tuple(
            {"encode_dtype": to, "decode_dtype": "<i4"} for to in ("|i1", "<u2", "<i8", "<f4", "<f8", "<i4")
        ),
        ("int32",),
    ),
    CodecRow(
        "numcodecs.astype",
        tuple(
            {"encode_dtype": to, "decode_dtype": "<f8"} for to in ("|i1", "<u2", "<i8", "<f4", "<f8", "<i4")
        ),
        ("float64",),
    ),
    CodecRow("numcodecs.packbits", ({},), ("bool",)),
    CodecRow("numcodecs.jenkins_lookup3", ({}, {"initval": 0}), ("uint8", "int16", "float64")),
    CodecRow(
        "packbits",
        ({}, {"padding_encoding": "first_byte"}, {"padding_encoding": "last_byte", "last_bit": 0}),
        ("uint8", "bool", "int16", "float64"),
        in_v2=False,
        zarr_has_it=False,
    ),
    CodecRow("bitround", ({"keepbits": 6},), ("float32",), in_v2=False, zarr_has_it=False),
    CodecRow(
        "scale_offset",
        ({}, {"offset": 3}, {"offset": -3, "scale": 2}, {"scale": "0.5"}),
        ("float32", "float64", "float16"),
        in_v2=False,
        zarr_has_it=not ZARR_IS_31,
    ),
    CodecRow(
        "scale_offset",
        ({"offset": 10, "scale": 3}, {"offset": -7}),
        ("int16", "int32", "int64"),
        in_v2=False,
        zarr_has_it=not ZARR_IS_31,
    ),
    CodecRow(
        "cast_value",
        (
            {"data_type": "int16"},
            {"data_type": "uint8", "rounding": "towards-zero", "out_of_range": "clamp"},
            {"data_type": "int8", "out_of_range": "wrap", "scalar_map": {"encode": [["NaN", -1]]}},
            {"data_type": "uint16", "scalar_map": {"encode": [["NaN", 65535]], "decode": [[65535, "NaN"]]}},
            {"data_type": "float16", "rounding": "nearest-away"},
            {"data_type": "float64"},
        ),
        ("float32", "float64"),
        in_v2=False,
        zarr_has_it=not ZARR_IS_31,
    ),
    CodecRow(
        "cast_value",
        ({"data_type": "int8"}, {"data_type": "float32"}, {"data_type": "uint64", "out_of_range": "wrap"}),
        ("int32", "uint16"),
        in_v2=False,
        zarr_has_it=not ZARR_IS_31,
    ),
)
