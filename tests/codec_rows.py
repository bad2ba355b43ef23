# codec_rows.py - one row per native codec that zarr has: configurations and data types for the tests that compare with zarr
# SPDX-License-Identifier: MIT
"""`ROWS`: every native codec beside `bytes`, `transpose` and `sharding_indexed`, which all tests use.

A test fails if a codec of `shardcodec.format.codecs.ROWS` has no row here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

__all__ = ["ROWS", "CodecRow"]


class CodecRow(NamedTuple):
    """A codec as numcodecs and zarr configure it.

    name: in Zarr v3. configurations: of Zarr v3; in v2 the same with `id`. dtypes: that it takes. is_exact: two encoders write the
    same bytes.
    """

    name: str
    configurations: tuple[dict[str, Any], ...]
    dtypes: tuple[str, ...] = ("int32", "uint8", "float64", "complex64", "bool", "int16")
    is_exact: bool = True
    in_v2: bool = True


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
    CodecRow("numcodecs.crc32c", ({}, {"location": "end"})),
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
)
