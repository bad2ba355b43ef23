# test_spec_fill.py - fill values: from JSON and Python to the bits of one element, and compared with zarr
# SPDX-License-Identifier: MIT
"""Fill values are compared bit by bit."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import sys
from typing import Any

import numpy as np
import pytest
from helpers import quiet
from hypothesis import example, given
from spec_checks import elements, stored_json
from spec_json import named
from zarr.core.metadata import ArrayV2Metadata, ArrayV3Metadata

from shardcodec.compat import dtype_of
from shardcodec.errors import SpecError
from shardcodec.format.fill_values import fill_bytes, fill_from_json, fill_repr, fill_scalar, fill_to_json
from shardcodec.format.spec import ChainSpec, ShardSpec

NAT = -(2**63)
LITTLE_ENDIAN = sys.byteorder == "little"


def native(data: bytes) -> bytes:
    """Return little-endian bytes in the order of this machine."""
    return data if LITTLE_ENDIAN else data[::-1]


# --- fill values from JSON ---

FILLS = [
    ("bool", True, b"\x01"),
    ("bool", False, b"\x00"),
    ("i1", -1, b"\xff"),
    ("u2", 0x1234, native(b"\x34\x12")),
    ("i8", -(2**63), native(bytes(7) + b"\x80")),
    ("u8", 2**64 - 1, b"\xff" * 8),
    ("i4", 3.0, native(b"\x03\0\0\0")),
    ("f2", 1, native(b"\x00\x3c")),
    ("f4", 0.1, native(b"\xcd\xcc\xcc\x3d")),
    ("f4", -0.0, native(b"\0\0\0\x80")),
    ("f4", "NaN", native(b"\0\0\xc0\x7f")),
    ("f4", "0x7fc00000", native(b"\0\0\xc0\x7f")),
    ("f4", "0x7fC00001", native(b"\x01\0\xc0\x7f")),
    ("f4", "0x7f800001", native(b"\x01\0\x80\x7f")),  # a signalling NaN, which arithmetic would make quiet
    ("f4", "0xffc00000", native(b"\0\0\xc0\xff")),
    ("f4", "0x3f800000", native(b"\0\0\x80\x3f")),
    ("f4", "Infinity", native(b"\0\0\x80\x7f")),
    ("f4", "-Infinity", native(b"\0\0\x80\xff")),
    ("f2", "NaN", native(b"\x00\x7e")),
    ("f8", "NaN", native(bytes(6) + b"\xf8\x7f")),
    ("f8", "0x7ff0000000000001", native(b"\x01" + bytes(5) + b"\xf0\x7f")),
    ("f8", 1e308, np.float64(1e308).tobytes()),
    ("c8", [1, -0.0], native(b"\0\0\x80\x3f") + native(b"\0\0\0\x80")),
    ("c8", ["0x7fc00001", "-Infinity"], native(b"\x01\0\xc0\x7f") + native(b"\0\0\x80\xff")),
    ("c16", ["NaN", 2.5], np.array([np.nan, 2.5]).tobytes()),
    ("M8[ns]", 5, np.int64(5).tobytes()),
    ("M8[ns]", "NaT", np.int64(NAT).tobytes()),
    ("M8[ns]", NAT, np.int64(NAT).tobytes()),
    ("m8[7D]", -3, np.int64(-3).tobytes()),
    ("U3", "h\u00e9", np.array("h\u00e9", "U3").tobytes()),
    ("U2", "\U0001f600", np.array("\U0001f600", "U2").tobytes()),
    ("U3", "", bytes(12)),
    ("S4", "YWI=", b"ab\0\0"),
    ("S4", "", bytes(4)),
    ("S3", [97, 0, 98], b"a\0b"),
    ("V3", "AAEC", b"\x00\x01\x02"),
    ("V3", [0, 1, 255], b"\x00\x01\xff"),
    ([("a", "i4"), ("b", "f4")], {"a": 1, "b": "NaN"}, np.int32(1).tobytes() + np.float32("nan").tobytes()),
    ([("a", "i4"), ("b", "f4")], {"b": 1.0}, bytes(4) + np.float32(1).tobytes()),
    ([("a", "i1"), ("t", "M8[s]")], {"a": 1}, b"\x01" + np.int64(NAT).tobytes()),
    ([("a", "i1"), ("b", [("c", "i2"), ("d", "S2")])], {"b": {"d": "eHk="}}, b"\0\0\0xy"),
]


@pytest.mark.parametrize(("dtype", "value", "expected"), FILLS, ids=lambda value: str(value)[:40])
def test_fill_is_read_from_json(dtype: Any, value: Any, expected: bytes) -> None:
    dtype = np.dtype(dtype)
    assert fill_from_json(dtype, value) == expected
    assert fill_bytes(dtype, value) == expected
    assert np.asarray(fill_scalar(dtype, expected), dtype).tobytes() == expected
    again = fill_to_json(dtype, expected)
    assert fill_from_json(dtype, json.loads(json.dumps(again, allow_nan=False))) == expected


def test_struct_from_base64_is_little_endian() -> None:
    dtype = np.dtype([("a", "i4"), ("b", "f8")])
    stored = np.array((1, 2.5), dtype.newbyteorder("<")).tobytes()
    fill = fill_from_json(dtype, base64.b64encode(stored).decode())
    assert fill == np.array((1, 2.5), dtype).tobytes()


@pytest.mark.parametrize(
    ("dtype", "value", "path", "words"),
    [
        ("bool", 1, "", "expected true or false, got 1"),
        ("bool", None, "", "expected true or false, got None"),
        ("i1", 128, "", "expected at most 127, got 128"),
        ("u1", -1, "", "expected at least 0, got -1"),
        ("i4", 0.5, "", "expected an integer, got 0.5"),
        ("i4", "1", "", "expected an integer, got '1'"),
        ("i4", True, "", "expected an integer, got True"),
        ("i4", None, "", "expected an integer, got None"),
        ("u8", 2**64, "", "expected at most 18446744073709551615, got 18446744073709551616"),
        ("f4", None, "", "expected a number, got None"),
        ("f4", True, "", "expected a number, got True"),
        ("f4", [1.0], "", "expected a number, got [1.0]"),
        ("f4", "nan", "", "expected a number, NaN, Infinity, -Infinity or 0x and 8 digits, got 'nan'"),
        ("f4", "0x7fc0", "", "0x and 8 digits, got '0x7fc0'"),
        ("f4", "0x7fc0000g", "", "0x and 8 digits"),
        ("f4", "0x7fc00000\n", "", "0x and 8 digits"),
        ("f4", 1e39, "", "cannot represent 1e+39 as float32"),
        ("f8", 10**400, "", "as a float"),
        ("c8", 1.0, "", "expected an array, got 1.0"),
        ("c8", [1.0], "", "expected a real and an imaginary part, got [1.0]"),
        ("c8", [1.0, "x"], "[1]", "got 'x'"),
        ("M8[s]", "2020-01-01", "", "expected an integer, got '2020-01-01'"),
        ("M8[s]", 2**63, "", "expected at most 9223372036854775807, got"),
        ("U2", "abc", "", "expected at most 2 code points, got 3"),
        ("U2", 0, "", "expected a string, got 0"),
        ("S2", "YWJj", "", "expected an element of 2 bytes, got 3"),
        ("S2", "Y!", "", "expected base64, got"),
        ("S2", "Y\u00e9", "", "expected base64, got"),
        ("V3", "YWI=", "", "expected an element of 3 bytes, got 2"),
        ("V3", [0, 1], "", "expected an element of 3 bytes, got 2"),
        ("V3", [0, 1, 256], "[2]", "expected at most 255, got 256"),
        ("V3", 0, "", "expected an array, got 0"),
        ([("a", "i4")], 0, "", "expected an object or base64, got 0"),
        ([("a", "i4")], "AAA=", "", "expected an element of 4 bytes, got 2"),
        ([("a", "i4")], {"b": 0}, "", "expected one of the fields a, got 'b'"),
        ([("a", "i4"), ("b", [("c", "u1")])], {"b": {"c": 256}}, "b.c", "expected at most 255, got 256"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_fill_in_json_is_refused(dtype: Any, value: Any, path: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        fill_from_json(np.dtype(dtype), value)
    assert (caught.value.path, words in str(caught.value)) == (path, True), str(caught.value)


# --- fill values from Python ---


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("bool", 1, np.bool_(True)),
        ("bool", np.True_, np.bool_(True)),
        ("i4", True, np.int32(1)),
        ("i4", np.int64(7), np.int32(7)),
        ("i4", np.array(7, ">i8"), np.int32(7)),
        ("f4", np.float64(0.1), np.float32(0.1)),
        ("f4", np.longdouble(0.1), np.float32(0.1)),  # was a RecursionError: its Python value is itself
        ("f4", float("nan"), np.float32("nan")),
        ("f8", float("-inf"), np.float64("-inf")),
        ("f4", 7, np.float32(7)),
        ("c8", 1 - 2j, np.complex64(1 - 2j)),
        ("c8", -0.0, np.array(-0.0, "c8")),
        ("c16", np.complex64(1 - 2j), np.complex128(1 - 2j)),
        ("M8[s]", datetime.datetime(2020, 1, 1), np.datetime64("2020-01-01", "s")),
        ("M8[s]", datetime.date(2020, 1, 1), np.datetime64("2020-01-01", "s")),
        ("M8[ns]", np.datetime64("2020-01-01", "D"), np.datetime64("2020-01-01", "ns")),
        ("M8[ns]", np.datetime64("NaT", "D"), np.datetime64("NaT", "ns")),
        ("M8[D]", "2020-01-01", np.datetime64("2020-01-01", "D")),
        ("m8[s]", datetime.timedelta(minutes=1), np.timedelta64(60, "s")),
        ("U3", np.str_("ab"), np.array("ab", "U3")),
        ("S3", b"ab", np.array(b"ab", "S3")),
        ("S3", bytearray(b"ab"), np.array(b"ab", "S3")),
        ("S3", np.bytes_(b"ab"), np.array(b"ab", "S3")),
        ("V2", b"ab", np.void(b"ab")),
        ("V2", np.void(b"ab"), np.void(b"ab")),
        ([("a", "i4"), ("b", "S2")], (1, b"x"), np.array((1, b"x"), [("a", "i4"), ("b", "S2")])),
        ([("a", "i4"), ("b", "S2")], np.array((1, b"x"), [("a", ">i4"), ("b", "S2")])[()], None),
        ([("a", "i2"), ("b", [("c", "M8[s]")])], (1, ("2020-01-01",)), None),
        ([("a", "i2", (2,)), ("b", "i1")], ([1, 2], 3), None),
    ],
    ids=lambda value: str(value)[:40],
)
def test_fill_is_taken_from_python(dtype: Any, value: Any, expected: Any) -> None:
    dtype = np.dtype(dtype)
    if expected is None:
        expected = np.array(value, dtype)
    fill = fill_bytes(dtype, value)
    assert fill == np.asarray(expected, dtype).tobytes()
    assert fill_bytes(dtype, eval(fill_repr(dtype, fill))) == fill


@pytest.mark.parametrize("bits", [0x7FC00001, 0x7F800001, 0xFFC00000, 0x80000000])
def test_bits_of_a_numpy_scalar_are_kept(bits: int) -> None:
    for order in "<>":
        scalar = np.array(bits, np.uint32).view("f4").astype(f"{order}f4")
        assert fill_bytes(np.dtype("f4"), scalar) == np.uint32(bits).tobytes()
    spec = ChainSpec((1,), "f4", np.array(bits, np.uint32).view("f4")[()], [named("bytes", endian="big")])
    assert spec.fill == np.uint32(bits).tobytes()
    assert spec.with_shape((2,)).fill == spec.fill


@pytest.mark.parametrize(
    ("dtype", "value", "words"),
    [
        ("i4", np.zeros(2, "i4"), "got an array of shape (2,)"),
        ("i4", np.float32(0.5), "expected an integer"),
        ("i1", np.int16(300), "expected at most 127, got 300"),
        ("f4", 1j, "expected a number"),
        ("M8[s]", np.datetime64(1, "ms"), "is not a multiple of the unit"),
        ("M8[s]", "yesterday", "as datetime64[s]"),
        ("M8[s]", None, "expected an integer, got None"),
        ("m8[s]", np.datetime64(1, "s"), "as timedelta64[s]"),
        ("S2", b"abc", "expected an element of 2 bytes, got 3"),
        ("V2", b"a", "expected an element of 2 bytes, got 1"),
        ([("a", "i4"), ("b", "i4")], (1,), "expected 2 values, one per field, got 1"),
        ([("a", "i4")], b"abc", "expected an element of 4 bytes, got 3"),
        ([("a", "i4"), ("b", [("c", "i1")])], (1, (300,)), "b.c: expected at most 127, got 300"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_fill_from_python_is_refused(dtype: Any, value: Any, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        fill_bytes(np.dtype(dtype), value)
    assert words in str(caught.value)


@given(elements)
@example((np.dtype("f4"), b"\x01\0\x80\x7f"))
def test_any_element_survives_json_and_repr(element: tuple[np.dtype[Any], bytes]) -> None:
    dtype, fill = element
    data = json.loads(json.dumps(fill_to_json(dtype, fill), allow_nan=False))
    assert fill_from_json(dtype, data) == fill
    assert fill_bytes(dtype, eval(fill_repr(dtype, fill))) == fill
    assert fill_bytes(dtype, fill_scalar(dtype, fill)) == fill


# --- compared with zarr ---

ZARR_ARRAYS: list[tuple[Any, Any]] = [
    ("bool", True),
    ("int8", -3),
    ("uint8", 200),
    ("int16", -300),
    ("uint16", 60000),
    ("int32", 7),
    ("uint32", 2**32 - 1),
    ("int64", -(2**63)),
    ("uint64", 2**64 - 1),
    ("float16", 0.1),
    ("float32", 0.1),
    ("float32", float("nan")),
    ("float64", -0.0),
    ("float64", float("-inf")),
    ("complex64", 1 + 2j),
    ("complex128", complex(float("nan"), float("inf"))),
    ("U5", "h\u00e9ll"),
    ("S4", b"ab"),
    ("V6", b"abc\0ef"),
    ("M8[ns]", 5),
    ("M8[10us]", 5),
    ("M8[ns]", np.datetime64("NaT", "ns")),
    ("m8[7D]", 3),
    ("m8", np.int64(NAT).view("m8")),
    (">i4", 7),
    (">f8", 2.5),
    ([("a", "<i4"), ("b", "<f8")], (1, 2.5)),
    ([("a", "<i4"), ("c", [("x", "<i2"), ("y", "S3")]), ("t", "<M8[s]")], (1, (2, b"z"), 3)),
]


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore:.*Zarr V3 specification", "ignore::DeprecationWarning:zarr")
@pytest.mark.parametrize(("dtype", "fill"), ZARR_ARRAYS, ids=lambda value: str(value)[:50])
def test_metadata_of_zarr_is_read_and_written_back(dtype: Any, fill: Any) -> None:
    zarr = pytest.importorskip("zarr", minversion="3.1")
    dtype = np.dtype(dtype)
    value = np.array(fill, dtype)[()] if dtype.names else fill
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store, shape=(8,), chunks=(2,), shards=(4,), dtype=dtype, fill_value=value)
    metadata = stored_json(array)
    spec = ShardSpec.from_metadata(metadata)
    assert spec.dtype == dtype.newbyteorder("=")
    assert spec.fill == np.asarray(array.fill_value, spec.dtype).tobytes()
    assert spec.chain.codecs == ChainSpec.from_metadata(metadata).codecs
    for key in ("data_type", "fill_value", "codecs", "chunk_grid"):
        if not (dtype.names and metadata["data_type"]["name"] == "structured"):  # the spelling up to zarr 3.1
            assert spec.to_metadata((8,))[key] == metadata[key]
    assert ShardSpec.from_metadata(spec.to_metadata((8,))) == spec
    assert ShardSpec.from_metadata(array.metadata.to_dict()) == spec


@pytest.mark.interop
@pytest.mark.filterwarnings("ignore:.*Zarr V3 specification", "ignore::DeprecationWarning:zarr")
@pytest.mark.parametrize(("dtype", "fill"), ZARR_ARRAYS, ids=lambda value: str(value)[:50])
def test_zarr_reads_our_metadata(dtype: Any, fill: Any) -> None:
    zarr = pytest.importorskip("zarr", minversion="3.1")
    dtype = np.dtype(dtype)
    if dtype.names and not hasattr(zarr.dtype, "Struct"):
        pytest.skip("this zarr reads only the older spelling of structs")
    from zarr.core.buffer import cpu

    # no shards: zarr 3.1 hashes the fill value of a shard, and cannot hash raw bytes
    spec = ChainSpec((4,), dtype, fill, [named("bytes", endian="big"), "crc32c"])
    store = zarr.storage.MemoryStore()
    blob = cpu.Buffer.from_bytes(json.dumps(spec.to_metadata((8,))).encode())
    asyncio.run(store.set("zarr.json", blob))
    array = zarr.open_array(store, mode="r")
    assert array.dtype == spec.dtype
    assert np.asarray(array.fill_value, spec.dtype).tobytes() == spec.fill
    assert array[:].tobytes() == spec.fill * 8


# ---- documents of other writers

V3_TYPES: list[Any] = [
    *("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", "r16"),
    {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}},
    {"name": "numpy.timedelta64", "configuration": {"unit": "s", "scale_factor": 1}},
    {"name": "fixed_length_utf32", "configuration": {"length_bytes": 16}},
    {"name": "null_terminated_bytes", "configuration": {"length_bytes": 4}},
]
V2_TYPES = [
    *("|b1", "|i1", "|u1", "<i2", ">u2", "<i4", "<u4", "<i8", ">u8"),
    *("<f2", "<f4", ">f8", "<c8", "<c16", "|V2", "<M8[s]", "<m8[s]", "<U4", "|S4"),
]
SPELLINGS: list[Any] = [
    *(0, 1, -1, 2, 255, 300, 10**20, 0.0, 1.0, 1.5, -0.0, 1e300, True, False, None),
    *(
        "0",
        "1",
        "-1",
        "0.0",
        "1.5",
        "1e3",
        "",
        " 1 ",
        "1_0",
        "NaN",
        "nan",
        "Infinity",
        "-Infinity",
        "inf",
        "NaT",
    ),
    *("true", "AAA=", "AAAA", "AAAAAA==", "abc", "0x00", "0x7e00", "0x7fc00000", "0x7ff8000000000000"),
    *([0, 0], [1.5, 2], ["NaN", "NaN"]),
]


def document(data_type: Any, fill: Any) -> dict[str, Any]:
    if data_type in V2_TYPES:
        rest = {"compressor": None, "filters": None, "dimension_separator": ".", "order": "C"}
        return {"zarr_format": 2, "shape": [4], "chunks": [4], "dtype": data_type, "fill_value": fill, **rest}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4],
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "attributes": {},
    }


def fill_by_zarr(stored: dict[str, Any]) -> bytes | None:
    """Return the bytes of the fill value that zarr reads; None if zarr refuses the document or has no fill value."""
    kind: Any = ArrayV2Metadata if stored["zarr_format"] == 2 else ArrayV3Metadata
    try:
        with quiet():
            metadata = kind.from_dict(json.loads(json.dumps(stored)))
    except Exception:
        return None
    if metadata.fill_value is None or np.ndim(metadata.fill_value):
        return None
    dtype = dtype_of(metadata)
    return np.asarray(metadata.fill_value, dtype=dtype).astype(dtype.newbyteorder("=")).tobytes()


@pytest.mark.parametrize("data_type", [*V3_TYPES, *V2_TYPES], ids=str)
def test_every_spelling_that_zarr_reads_is_read(data_type: Any) -> None:
    """n5-zarr writes "0" for numbers, and neuroglancer 0 for bool; the handles refused what zarr reads."""
    for value in SPELLINGS:
        stored = document(data_type, value)
        expected = fill_by_zarr(stored)
        if expected is not None:
            assert ChainSpec.from_metadata(stored).fill == expected, value
