# test_whole.py - encode and decode: one shard in memory
# SPDX-License-Identifier: MIT
"""The codec without zarr. Values are compared bit by bit, the layout with bytes written by hand.

Random specs are compared with the reference implementation in tests/property; here are cases that are rarely drawn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import (
    ABSENT,
    LETTERS,
    RAW,
    assemble,
    bits,
    chunk_bytes,
    entries_of,
    letters,
    letters_spec,
    random_array,
    text_of,
)
from spec_json import CRC, LITTLE, zstd

import shardcodec
from shardcodec import ShardSpec, decode, encode

ORDERS = {
    "morton": [0, 3, 1, 4, 2, 5],  # 2 x 3: the first axis varies fastest
    "lexicographic": [0, 1, 2, 3, 4, 5],
    "colexicographic": [0, 3, 1, 4, 2, 5],
}


# ---- layout


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize("crc", [False, True])
def test_letters_are_encoded_and_decoded(at_start: bool, crc: bool) -> None:
    spec = letters_spec(at_start=at_start, crc=crc)
    blob = letters(at_start=at_start, crc=crc)
    array = decode(blob, spec)
    assert text_of(array) == LETTERS
    assert encode(array, spec, order="lexicographic") == blob
    assert type(encode(array, spec)) is bytes


@pytest.mark.parametrize("order", ORDERS)
def test_orders_place_the_chunks(order: str) -> None:
    spec = ShardSpec((4, 6), (2, 2), "uint8", 0, RAW)
    array = np.arange(1, 25, dtype="uint8").reshape(4, 6)
    blob = encode(array, spec, order=order)
    offsets = [offset for offset, _ in entries_of(blob, 6)]
    assert np.argsort(offsets).tolist() == ORDERS[order]
    assert (decode(blob, spec) == array).all()


def test_morton_order_of_an_uneven_grid_equals_zarr() -> None:
    """The expected sequence for 3 x 5 is zarr's."""
    spec = ShardSpec((3, 5), (1, 1), "uint8", 0, RAW)
    blob = encode(np.arange(1, 16, dtype="uint8").reshape(3, 5), spec)
    expected = [0, 5, 1, 6, 10, 11, 2, 7, 3, 8, 12, 13, 4, 9, 14]
    assert np.argsort([offset for offset, _ in entries_of(blob, 15)]).tolist() == expected
    assert [b - 1 for b in blob[:15]] == expected


def test_order_of_the_options_is_used() -> None:
    spec = ShardSpec((4, 6), (2, 2), "uint8", 0, RAW)
    array = np.arange(1, 25, dtype="uint8").reshape(4, 6)
    with shardcodec.options(order="lexicographic"):
        assert encode(array, spec) == encode(array, spec, order="lexicographic")
        assert encode(array, spec, order="morton") != encode(array, spec)


def test_unknown_order_is_refused() -> None:
    with pytest.raises(ValueError, match="order"):
        encode(np.zeros((4, 4), "u1"), letters_spec(), order="hilbert")


@pytest.mark.parametrize("at_start", [False, True])
def test_empty_shard_is_only_an_index(at_start: bool) -> None:
    spec = letters_spec(at_start=at_start)
    blob = encode(np.full((4, 4), 46, "u1"), spec)
    assert blob == assemble(b"", [(ABSENT, ABSENT)] * 4)
    assert (decode(blob, spec) == 46).all()


def test_empty_chunks_are_left_out_or_stored() -> None:
    array = decode(letters(), letters_spec())
    array[2:, :2] = 46
    sparse = encode(array, letters_spec(), order="lexicographic")
    assert entries_of(sparse, 4) == [(0, 4), (4, 4), (ABSENT, ABSENT), (8, 4)]
    full = encode(array, letters_spec(), order="lexicographic", write_empty_chunks=True)
    assert chunk_bytes(full, entries_of(full, 4)[2]) == b"...."
    assert bits(decode(sparse, letters_spec())) == bits(decode(full, letters_spec())) == bits(array)


def test_gaps_headers_and_footers_are_skipped() -> None:
    body = b"HEADtres..one.zeroFOOT"
    blob = assemble(body, [(14, 4), (10, 4), (ABSENT, ABSENT), (4, 4)])
    assert text_of(decode(blob, letters_spec())) == "zero one. .... tres"


def test_shared_and_overlapping_ranges_are_read() -> None:
    blob = assemble(b"zerone.", [(0, 4), (3, 4), (0, 4), (1, 4)])
    assert text_of(decode(blob, letters_spec())) == "zero one. zero eron"


# ---- input


@pytest.mark.parametrize(
    ("value", "dtype"), [(7, "uint8"), (7, "int32"), (1.5, "float32"), (True, "bool"), (3, "float64")]
)
def test_scalar_fills_the_shard(value: Any, dtype: str) -> None:
    spec = ShardSpec((4, 4), (2, 2), dtype, 0, RAW if np.dtype(dtype).itemsize == 1 else [LITTLE])
    array = decode(encode(value, spec), spec)
    assert array.dtype == dtype and (array == value).all()


def test_scalar_out_of_range_is_refused() -> None:
    spec = ShardSpec((4, 4), (2, 2), "uint8", 0, RAW)
    for value in (1.5, 300, -1, "x"):
        with pytest.raises((TypeError, ValueError, OverflowError)):
            encode(value, spec)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("U3", "abcdef"),
        ("S3", b"abcdef"),
        ("S3", "YWJj"),  # base64 of b"abc", as in JSON fill values
        ("V4", b"abcdef"),
        ("M8[D]", np.datetime64("2020-01-01T12:00:01")),
        ("m8[s]", np.timedelta64(1500, "ms")),
        ("f4", np.complex128(1 + 2j)),
        ("f4", 1e300),
        ("f4", 10**400),
        ("f8", np.longdouble("1e400") if np.finfo(np.longdouble).maxexp > 1024 else 10**400),
        ("f8", np.datetime64(5, "ns")),
        ("f4", "1.5"),
        ("uint8", np.float64(1.5)),
        (
            [("a", "i2"), ("b", "f4")],
            np.array((70000, 2.5), dtype=[("a", "i8"), ("b", "f8")])[()],
        ),
    ],
)
def test_scalar_that_would_lose_information_is_refused(dtype: Any, value: Any) -> None:
    """Only integers were checked: text was cut to its length, times to their unit, complex numbers to the real part."""
    spec = ShardSpec((2,), (1,), dtype, np.zeros((), dtype)[()], RAW if dtype in ("S3", "V4") else [LITTLE])
    with pytest.raises(TypeError, match="cannot represent"):
        encode(value, spec)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("U3", "ab"),
        ("S3", b"ab"),
        ("V4", b"abcd"),
        ("M8[D]", np.datetime64("2020-01-01T00:00:00")),
        ("M8[D]", np.datetime64("NaT", "s")),
        ("m8[s]", np.timedelta64(2000, "ms")),
        ("f4", 0.1),
        ("f4", np.float64(0.1)),
        ("f4", float("nan")),
        ("f4", np.longdouble(0.1)),  # was converted to a Python value endlessly
        ("c8", np.clongdouble(1 + 2j)),
        ("c8", 1 + 2j),
        ("c8", 3),
        ("uint8", 3.0),
        ([("a", "i2"), ("b", "f4")], np.array((7, 2.5), dtype=[("a", "i8"), ("b", "f8")])[()]),
    ],
)
def test_scalar_of_another_type_that_fits_is_accepted(dtype: Any, value: Any) -> None:
    spec = ShardSpec((2,), (1,), dtype, np.zeros((), dtype)[()], RAW if dtype in ("S3", "V4") else [LITTLE])
    expected = np.full(2, value, dtype) if spec.dtype.names is None else np.array([(7, 2.5)] * 2, dtype)
    assert bits(decode(encode(value, spec), spec)) == bits(expected)


def test_array_of_rank_0_is_cast_like_other_arrays() -> None:
    """It is the whole array of a shard without axes; it was cut like scalars were."""
    spec = ShardSpec((), (), "U3", "", [LITTLE])
    assert decode(encode(np.array("ab"), spec), spec) == np.array("ab")
    for value, dtype in (("abcdef", "U3"), (0.1, "f4"), (5, "i4")):
        spec = ShardSpec((), (), dtype, np.zeros((), dtype)[()], [LITTLE])
        with pytest.raises(TypeError, match="safe"):
            encode(np.array(value), spec)


def test_arguments_of_wrong_type_are_named() -> None:
    for spec in (None, {"name": "sharding_indexed"}):
        with pytest.raises(TypeError, match="expected a ShardSpec or a ChainSpec"):
            encode(np.zeros(2, "u1"), spec)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="memory numpy can use, got list"):
        decode(letters(), letters_spec(), out=[])  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"expected shape \(4, 4\), got \(16,\)"):
        decode(letters(), letters_spec(), out=bytearray(16))  # type: ignore[call-overload]


def test_only_safe_casts_are_accepted() -> None:
    spec = ShardSpec((4, 4), (2, 2), "int32", 0, [LITTLE])
    array = np.arange(16, dtype="int16").reshape(4, 4)
    assert (decode(encode(array, spec), spec) == array).all()
    for dtype in ("int64", "float32", "U3"):
        with pytest.raises(TypeError):
            encode(array.astype(dtype), spec)


def test_other_shapes_are_refused() -> None:
    for shape in ((4, 5), (4,), (1, 4, 4), (0,), (1, 1)):
        with pytest.raises(ValueError, match="shape"):
            encode(np.zeros(shape, "u1"), letters_spec())


@pytest.mark.parametrize("layout", ["C", "F", "reversed", "strided", "broadcast", "swapped", "read-only"])
def test_memory_layout_of_the_input_does_not_matter(layout: str) -> None:
    spec = ShardSpec((4, 6), (2, 3), "int32", 0, [LITTLE, CRC])
    array = random_array((4, 6), "int32")
    given = array
    if layout == "F":
        given = np.asfortranarray(array)
    elif layout == "reversed":
        given = array[::-1, ::-1].copy()[::-1, ::-1]
    elif layout == "strided":
        given = np.zeros((8, 18), "int32")[::2, ::3]
        given[...] = array
    elif layout == "broadcast":
        array = np.broadcast_to(array[:1], (4, 6))
        given = array
    elif layout == "swapped":
        given = array.astype(array.dtype.newbyteorder())
    elif layout == "read-only":
        given = array.copy()
        given.flags.writeable = False
    assert encode(given, spec) == encode(array.copy(), spec)
    assert bits(decode(encode(given, spec), spec)) == bits(array)


# ---- output

ARRAY = random_array((6, 8), "int32", seed=3)
SPEC = ShardSpec((6, 8), (3, 2), "int32", -1, [LITTLE, zstd()])
BLOB = encode(ARRAY, SPEC)


@pytest.mark.parametrize("layout", ["C", "F", "reversed", "strided", "transposed"])
@pytest.mark.parametrize("swapped", [False, True])
def test_out_may_have_any_memory_layout(layout: str, swapped: bool) -> None:
    dtype = ARRAY.dtype.newbyteorder() if swapped else ARRAY.dtype
    memory = np.full((2 * 6, 3 * 8), -9, dtype)
    out = {
        "C": np.empty((6, 8), dtype),
        "F": np.empty((6, 8), dtype, order="F"),
        "reversed": np.empty((6, 8), dtype)[::-1, ::-1],
        "strided": memory[1::2, 2::3],
        "transposed": np.empty((8, 6), dtype).T,
    }[layout]
    assert decode(BLOB, SPEC, out=out) is out
    assert out.dtype == dtype and (out == ARRAY).all()
    outside = np.ones(memory.shape, dtype=np.bool_)
    outside[1::2, 2::3] = False
    assert (memory[outside] == -9).all()


def test_out_of_a_selection_is_filled() -> None:
    out = np.zeros((2, 3), "int32")
    assert decode(BLOB, SPEC, np.s_[1:5:3, 2:5], out=out) is out
    assert (out == ARRAY[1:5:3, 2:5]).all()
    single = np.zeros((), "int32")
    decode(BLOB, SPEC, (4, 5), out=single)
    assert single == ARRAY[4, 5]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, "numpy", "offset", "int32"])
def test_any_buffer_is_accepted(kind: Any) -> None:
    blob: Any
    if kind == "numpy":
        blob = np.frombuffer(BLOB, dtype="u1")
    elif kind == "offset":
        blob = memoryview(b"x" + BLOB)[1:]
    elif kind == "int32":
        blob = np.frombuffer(BLOB + bytes(-len(BLOB) % 4), dtype="int32")
        if len(BLOB) % 4:
            pytest.skip("the size of the shard is not a multiple of the item size")
    else:
        blob = kind(BLOB)
    assert bits(decode(blob, SPEC)) == bits(ARRAY)


@pytest.mark.parametrize("what", [None, "a path", 7, [1, 2], np.zeros((4, 4), "u1")[:, ::2]])
def test_other_objects_are_refused(what: Any) -> None:
    """In particular, None is not an empty shard, and a string is not a file to open."""
    with pytest.raises((TypeError, ValueError, BufferError)):
        decode(what, SPEC)


def test_zero_bytes_are_not_a_shard() -> None:
    with pytest.raises(shardcodec.ShardFormatError, match="at least 132 bytes, got 0"):
        decode(b"", SPEC)
