# test_whole_kinds.py - encode and decode: ranks, nesting, codecs around the sharding, data types
# SPDX-License-Identifier: MIT
"""Each part that a shard can be made of occurs at least once; values are compared bit by bit."""

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
from spec_json import BIG, CRC, LITTLE, config, named, transpose, zstd
from workers import in_threads

from shardcodec import ChainSpec, ShardSpec, decode, encode


@pytest.mark.parametrize("ndim", range(6))
@pytest.mark.parametrize("at_start", [False, True])
def test_every_rank_is_encoded_and_decoded(ndim: int, at_start: bool) -> None:
    shape = (4, 6, 2, 3, 4)[:ndim]
    chunk = (2, 3, 1, 3, 2)[:ndim]
    location: Any = "start" if at_start else "end"
    spec = ShardSpec(shape, chunk, "uint16", 9, [LITTLE, CRC], index_location=location)
    array = random_array(shape, "uint16")
    array[(slice(0, 2),) * ndim] = 9
    assert bits(decode(encode(array, spec), spec)) == bits(array)
    part = tuple([slice(1, None, 2), 1, slice(0, 1), slice(1, 3), -1][:ndim])
    assert bits(decode(encode(array, spec), spec, part)) == bits(array[part])


def test_rank_0_shard_has_one_chunk() -> None:
    spec = ShardSpec((), (), "int32", 0, [LITTLE])
    blob = encode(np.int32(-5), spec)
    assert entries_of(blob, 1) == [(0, 4)]
    result = decode(blob, spec)
    assert result.shape == () and result == -5
    assert decode(blob, spec, ...) == decode(blob, spec, ()) == -5
    assert entries_of(encode(0, spec), 1) == [(ABSENT, ABSENT)]


NESTED = named("sharding_indexed", **config(chunk_shape=[1, 3], codecs=[LITTLE, zstd()]))


def test_nested_shards_are_encoded_and_decoded() -> None:
    spec = ShardSpec((4, 12), (2, 6), "int32", 7, [NESTED, CRC])
    array = random_array((4, 12), "int32")
    array[:2, :6] = 7  # an empty nested shard
    array[2, 6:9] = 7  # an empty inner chunk of a nested shard
    blob = encode(array, spec)
    assert entries_of(blob, 4)[0] == (ABSENT, ABSENT)
    assert bits(decode(blob, spec)) == bits(array)
    for part in (np.s_[3, 5:8], np.s_[::3, ::5], np.s_[0], np.s_[2, 8]):
        assert bits(decode(blob, spec, part)) == bits(array[part])


def test_empty_but_stored_nested_shard_is_read() -> None:
    spec = ShardSpec((4, 12), (2, 6), "int32", 7, [NESTED])
    inner = assemble(b"", [(ABSENT, ABSENT)] * 4)
    blob = assemble(inner, [(0, len(inner)), *[(ABSENT, ABSENT)] * 3])
    assert (decode(blob, spec) == 7).all()
    assert (decode(blob, spec, np.s_[0, 1:3]) == 7).all()


def test_transpose_before_the_shard_is_applied() -> None:
    spec = ShardSpec((4, 6, 2), (1, 2, 3), "int16", 0, [BIG, CRC], before=[transpose(2, 0, 1)])
    array = random_array((4, 6, 2), "int16")
    blob = encode(array, spec)
    # stored as (2, 4, 6): the first inner chunk holds [0, 0:2, 0:3] of that
    first = chunk_bytes(blob, entries_of(blob, 8)[0])
    assert first[:-4] == bits(array.transpose(2, 0, 1)[0, :2, :3].astype(">i2"))
    assert bits(decode(blob, spec)) == bits(array)
    assert bits(decode(blob, spec, np.s_[1:4, 3, ::1])) == bits(array[1:4, 3])


def test_transpose_inside_the_shard_is_applied() -> None:
    spec = ShardSpec((4, 6), (2, 3), "int16", 0, [transpose(1, 0), LITTLE])
    array = random_array((4, 6), "int16")
    blob = encode(array, spec)
    assert chunk_bytes(blob, entries_of(blob, 4)[0]) == bits(array[:2, :3].T)
    assert bits(decode(blob, spec)) == bits(array)
    assert bits(decode(blob, spec, np.s_[1:, 2:5:2])) == bits(array[1:, 2:5:2])


@pytest.mark.parametrize("after", [[CRC], [named("gzip", level=1)], [zstd(), CRC]])
def test_codecs_after_the_shard_are_applied(after: Any) -> None:
    spec = ShardSpec((4, 6), (2, 3), "int32", 0, [LITTLE], after=after)
    array = random_array((4, 6), "int32")
    blob = encode(array, spec)
    assert bits(decode(blob, spec)) == bits(array)
    assert bits(decode(blob, spec, np.s_[1, 2:6:2])) == bits(array[1, 2:6:2])
    assert bits(decode(encode(np.zeros((4, 6), "int32"), spec), spec)) == bytes(96)


def test_transposed_big_endian_index_is_read() -> None:
    spec = ShardSpec((4, 4), (2, 2), "uint8", 46, RAW, [transpose(2, 1, 0), BIG, CRC, CRC])
    array = decode(letters(), letters_spec())
    blob = encode(array, spec, order="lexicographic")
    pairs = np.frombuffer(blob[16:-8], dtype=">u8").reshape(2, 2, 2).transpose(2, 1, 0)
    assert pairs.reshape(-1, 2).tolist() == [[0, 4], [4, 4], [8, 4], [12, 4]]
    assert text_of(decode(blob, spec)) == LETTERS


def test_chain_without_a_shard_is_encoded_and_decoded() -> None:
    chain = ChainSpec((4, 6), "int32", 0, [transpose(1, 0), LITTLE, CRC])
    array = random_array((4, 6), "int32")
    blob = encode(array, chain)
    assert blob[:-4] == bits(array.T)
    assert bits(decode(blob, chain, np.s_[1:, ::2])) == bits(array[1:, ::2])


# ---- data types

NAN_PAYLOAD = np.array([0x7FF8000000000123, 0xFFF0000000000001, 0x8000000000000000, 0], dtype="u8").view("f8")


@pytest.mark.parametrize("fill", [0.0, -0.0, np.nan, 1.5])
def test_nan_payloads_and_negative_zero_are_kept(fill: float) -> None:
    spec = ShardSpec((4, 4), (1, 1), "float64", fill, [LITTLE])
    array = np.resize(NAN_PAYLOAD, (4, 4))
    assert bits(decode(encode(array, spec), spec)) == bits(array)


def test_empty_chunks_are_found_by_comparing_bits() -> None:
    spec = ShardSpec((2,), (1,), "float64", 0.0, [LITTLE])
    assert [n for _, n in entries_of(encode(np.array([0.0, -0.0]), spec), 2)] == [ABSENT, 8]
    spec = ShardSpec((2,), (1,), "float64", np.nan, [LITTLE])
    blob = encode(np.array([np.nan, NAN_PAYLOAD[0]]), spec)
    assert [n for _, n in entries_of(blob, 2)] == [ABSENT, 8]


DTYPES: list[tuple[Any, Any]] = [
    ("bool", True),
    ("int8", -1),
    ("float16", np.float16("nan")),
    ("complex64", 1 + 2j),
    ("complex128", complex(float("nan"), -0.0)),
    ("M8[ns]", np.datetime64("NaT", "ns")),
    ("m8[10s]", np.timedelta64(30, "s")),
    ("U3", "ab"),
    ("S5", b"xyz"),
    ("V4", b"\0\1\2\3"),
    ([("a", "u1"), ("b", "f8"), ("c", "S3")], (1, 2.5, b"no")),
]


@pytest.mark.parametrize(("dtype", "fill"), DTYPES, ids=[str(np.dtype(d)) for d, _ in DTYPES])
@pytest.mark.parametrize("endian", [LITTLE, BIG])
def test_every_data_type_is_encoded_and_decoded(dtype: Any, fill: Any, endian: Any) -> None:
    dtype = np.dtype(dtype)
    rng = np.random.default_rng(1)
    if dtype.kind in "US":
        array = np.array(["", "a", "bc", "def"], dtype=dtype)[rng.integers(0, 4, (4, 6))]
    elif dtype.kind == "b":
        array = rng.integers(0, 2, (4, 6)).astype(dtype)
    else:
        array = np.frombuffer(rng.bytes(24 * dtype.itemsize), dtype=dtype).reshape(4, 6).copy()
    array[:2, :3] = np.array(fill, dtype=dtype)
    spec = ShardSpec((4, 6), (2, 3), dtype, fill, [endian, CRC])
    blob = encode(array, spec)
    assert entries_of(blob, 4)[0] == (ABSENT, ABSENT)
    result = decode(blob, spec)
    assert result.dtype == dtype and bits(result) == bits(array)
    swapped = np.empty((4, 6), dtype=dtype.newbyteorder())
    decode(blob, spec, out=swapped)
    assert bits(swapped.astype(dtype)) == bits(array) or dtype.kind in "fc"
    assert encode(swapped, spec) == blob


@pytest.mark.threads
def test_any_number_of_threads_gives_equal_bytes() -> None:
    spec = ShardSpec((64, 64, 64), (8, 8, 8), "uint16", 0, [LITTLE, zstd(), CRC])
    array = random_array(spec.shard_shape, "uint16")
    blobs: list[bytes] = []
    in_threads(3, lambda n: blobs.append(encode(array, spec, threads=2**n)))
    assert len(blobs) == 3 and len(set(blobs)) == 1
    for n in (1, 2, 4):
        assert bits(decode(blobs[0], spec, threads=n)) == bits(array)
