# test_chain_lowering.py - the arguments of the native chain, made from a spec and compared with numpy
# SPDX-License-Identifier: MIT
"""Lowering gives one permutation, runs to reverse and plain names; every default of the JSON is filled in."""

from __future__ import annotations

import sys
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from spec_checks import any_dtypes, counted_bytes, shard
from spec_json import BIG, CRC, LITTLE, named, sharding, transpose

from shardcodec.errors import UnsupportedError
from shardcodec.format.chain import MAX_ITEMSIZE, MAX_NDIM, MAX_OPS, lower
from shardcodec.format.codecs import Codec
from shardcodec.format.spec import ChainSpec, ShardSpec

NATIVE, FOREIGN = (LITTLE, BIG) if sys.byteorder == "little" else (BIG, LITTLE)


def test_array_without_shards_is_lowered() -> None:
    spec = ChainSpec((4, 6), "int32", 7, [NATIVE, named("zstd", level=3), CRC])
    assert lower(spec) == {
        "shape": (4, 6),
        "itemsize": 4,
        "swap": (),
        "perm": (0, 1),
        "fill": np.int32(7).tobytes(),
        "ops": (("zstd", {"level": 3, "checksum": False}), ("crc32c", {})),
        "inner": None,
        "index": None,
    }


def test_shard_is_lowered() -> None:
    spec = ShardSpec(
        (4, 6),
        (3, 2),
        "complex64",
        1 + 2j,
        [transpose(1, 0), FOREIGN, CRC],
        [transpose(2, 0, 1), BIG, CRC, CRC],
        "start",
        before=[transpose(1, 0)],
        after=[named("gzip", level=1)],
    )
    fill = np.complex64(1 + 2j).tobytes()
    assert lower(spec) == lower(spec.chain)
    assert lower(spec) == {
        "shape": (4, 6),
        "itemsize": 8,
        "swap": (),
        "perm": (1, 0),
        "fill": fill,
        "ops": (("gzip", {"level": 1}),),
        "inner": {
            "shape": (3, 2),
            "itemsize": 8,
            "swap": ((0, 4, 2),),
            "perm": (1, 0),
            "fill": fill,
            "ops": (("crc32c", {}),),
            "inner": None,
            "index": None,
        },
        "index": {"at_start": True, "big_endian": True, "n_checksums": 2, "perm": (2, 0, 1)},
    }


def test_nested_shards_are_lowered() -> None:
    inner = sharding(chunk_shape=[1, 3], codecs=[FOREIGN], index_codecs=[BIG], index_location="start")
    low = lower(shard(codecs=[inner, CRC]))
    middle = low["inner"]
    assert middle is not None
    leaf = middle["inner"]
    assert leaf is not None
    assert (low["shape"], middle["shape"], leaf["shape"]) == ((4, 6), (2, 3), (1, 3))
    assert (low["swap"], middle["swap"], leaf["swap"]) == ((), (), ((0, 4, 1),))
    assert (low["ops"], middle["ops"], leaf["ops"]) == ((), (("crc32c", {}),), ())
    assert low["index"] == {"at_start": False, "big_endian": False, "n_checksums": 1, "perm": None}
    assert middle["index"] == {"at_start": True, "big_endian": True, "n_checksums": 0, "perm": None}
    assert leaf["index"] is None


def test_shard_without_axes_is_lowered() -> None:
    low = lower(shard((), chunk_shape=[]))
    assert (low["shape"], low["perm"], low["index"]["perm"]) == ((), (), None)  # type: ignore[index]


@pytest.mark.parametrize(
    ("codec", "op"),
    [
        (named("zstd", level=-7, checksum=True), ("zstd", {"level": -7, "checksum": True})),
        (named("gzip", level=0), ("gzip", {"level": 0})),
        (named("numcodecs.gzip"), ("gzip", {"level": 1})),
        (named("numcodecs.zlib", level=4), ("zlib", {"level": 4})),
        (named("numcodecs.lz4", acceleration=8), ("lz4", {"level": 8})),
        ("crc32c", ("crc32c", {})),
        (
            named("blosc", cname="blosclz", clevel=1, shuffle="noshuffle", typesize=3, blocksize=256),
            (
                "blosc",
                {
                    "level": 1,
                    "compressor": "blosclz",
                    "shuffle": "noshuffle",
                    "typesize": 3,
                    "blocksize": 256,
                },
            ),
        ),
        (
            "blosc",
            (
                "blosc",
                {"level": 5, "compressor": "zstd", "shuffle": "shuffle", "typesize": 8, "blocksize": 0},
            ),
        ),
    ],
    ids=str,
)
def test_every_codec_is_lowered(codec: Any, op: Any) -> None:
    assert lower(ChainSpec((4,), "f8", 0, [LITTLE, codec]))["ops"] == (op,)


@pytest.mark.parametrize(("typesize", "lowered"), [(1, 1), (255, 255), (256, 1), (2**31 - 1, 1)])
def test_blosc_typesize_above_255_becomes_1(typesize: int, lowered: int) -> None:
    codec = named("blosc", cname="lz4", clevel=1, shuffle="shuffle", typesize=typesize, blocksize=0)
    spec = ChainSpec((4,), "i4", 0, [LITTLE, codec])
    assert spec.to_json()[1] == codec
    assert lower(spec)["ops"][0][1]["typesize"] == lowered


def test_blosc_typesize_of_large_elements_becomes_1() -> None:
    assert lower(ChainSpec((4,), "V255", bytes(255), ["bytes", "blosc"]))["ops"][0][1]["typesize"] == 255
    assert lower(ChainSpec((4,), "V256", bytes(256), ["bytes", "blosc"]))["ops"][0][1]["typesize"] == 1


def test_ops_are_in_the_order_of_encoding() -> None:
    spec = ChainSpec((4,), "u1", 0, ["bytes", "crc32c", "gzip", "crc32c", "zstd"])
    assert [name for name, _ in lower(spec)["ops"]] == ["crc32c", "gzip", "crc32c", "zstd"]


@pytest.mark.parametrize("dtype", ["bool", "i1", "u1", "S5", "V5", [("a", "i1"), ("b", "S3")]], ids=str)
@pytest.mark.parametrize("codec", [LITTLE, BIG, {"name": "bytes"}], ids=["little", "big", "none"])
def test_single_bytes_are_never_reversed(dtype: Any, codec: Any) -> None:
    fill = bytes(np.dtype(dtype).itemsize) if np.dtype(dtype).kind in "SV" else 0
    assert lower(ChainSpec((4,), dtype, fill, [codec]))["swap"] == ()


@pytest.mark.parametrize(
    ("dtype", "swap"),
    [
        ("i2", ((0, 2, 1),)),
        ("f8", ((0, 8, 1),)),
        ("c16", ((0, 8, 2),)),
        ("U3", ((0, 4, 3),)),
        ("M8[s]", ((0, 8, 1),)),
        ([("a", "i1"), ("b", "f4"), ("c", [("d", "u2"), ("e", "S3")])], ((1, 4, 1), (5, 2, 1))),
    ],
    ids=str,
)
def test_other_byte_order_is_reversed(dtype: Any, swap: Any) -> None:
    fill = "" if dtype == "U3" else (0, 0, (0, b"")) if isinstance(dtype, list) else 0
    assert lower(ChainSpec((4,), dtype, fill, [FOREIGN]))["swap"] == swap
    assert lower(ChainSpec((4,), dtype, fill, [NATIVE]))["swap"] == ()
    assert (
        lower(ChainSpec((4,), f">{dtype}" if isinstance(dtype, str) else dtype, fill, [NATIVE]))["swap"] == ()
    )


def test_array_in_the_other_byte_order_swaps_the_other_way() -> None:
    """For a big-endian array on a little-endian machine, the other stored order needs a swap."""
    fill = np.array(1 + 2j, "c8")
    other = fill.astype(fill.dtype.newbyteorder("S")).tobytes()
    spec = shard(dtype="c8", fill_value=1 + 2j, codecs=[FOREIGN])
    leaf = lower(spec, native_order=False)["inner"]
    assert leaf is not None
    assert (leaf["swap"], leaf["fill"]) == ((), other)
    leaf = lower(shard(dtype="c8", fill_value=1 + 2j, codecs=[NATIVE]), native_order=False)["inner"]
    assert leaf is not None
    assert (leaf["swap"], leaf["fill"]) == (((0, 4, 2),), other)
    assert lower(ChainSpec((4,), "u1", 7, ["bytes"]), native_order=False) == lower(
        ChainSpec((4,), "u1", 7, ["bytes"])
    )


@given(any_dtypes)
def test_any_dtype_decodes_as_in_numpy(dtype: np.dtype[Any]) -> None:
    """Reversing the lowered runs of the stored bytes gives the element; zarr gets it with newbyteorder."""
    stored = counted_bytes(dtype.itemsize)
    zero = bytes(dtype.itemsize)
    low = lower(ChainSpec((1,), dtype, np.frombuffer(zero, dtype)[0], [FOREIGN]))
    element = bytearray(stored)
    for offset, unit, count in low["swap"]:
        for at in range(offset, offset + unit * count, unit):
            element[at : at + unit] = stored[at : at + unit][::-1]
    # byteswap() does not support structs, so the fields are swapped one by one
    assert bytes(element) == byteswapped(dtype, stored)


def byteswapped(dtype: np.dtype[Any], data: bytes) -> bytes:
    if dtype.subdtype is not None:
        size = dtype.subdtype[0].itemsize
        return b"".join(byteswapped(dtype.subdtype[0], data[i : i + size]) for i in range(0, len(data), size))
    if dtype.names is not None:
        out = bytearray(data)
        for name in dtype.names:
            field, offset = dtype.fields[name][:2]  # type: ignore[index]
            out[offset : offset + field.itemsize] = byteswapped(field, data[offset : offset + field.itemsize])
        return bytes(out)
    if dtype.kind == "U":
        return np.frombuffer(data, "u4").byteswap().tobytes()
    return np.frombuffer(data, dtype).byteswap().tobytes()


@given(st.data(), st.integers(0, 5))
def test_permutations_compose_as_in_numpy(data: st.DataObject, ndim: int) -> None:
    orders = data.draw(st.lists(st.permutations(range(ndim)), max_size=4))
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=ndim, max_size=ndim)))
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    stored = array
    for order in orders:
        stored = stored.transpose(order)
    spec = ChainSpec(shape, "i8", 0, [*(transpose(*order) for order in orders), LITTLE])
    np.testing.assert_array_equal(array.transpose(lower(spec)["perm"]), stored)
    assert spec.stored_shape == stored.shape

    index = [transpose(*order) for order in data.draw(st.lists(st.permutations(range(ndim + 1)), max_size=3))]
    pairs = np.arange(2 * np.prod(stored.shape, dtype=int)).reshape(*stored.shape, 2)
    expected = pairs
    for codec in index:
        expected = expected.transpose(codec["configuration"]["order"])
    before = [transpose(*order) for order in orders]
    low = lower(ShardSpec(shape, (1,) * ndim, "i8", 0, [LITTLE], [*index, LITTLE], before=before))
    perm = low["index"]["perm"]  # type: ignore[index]
    np.testing.assert_array_equal(pairs if perm is None else pairs.transpose(perm), expected)
    assert perm is None or perm != tuple(range(ndim + 1))


@pytest.mark.parametrize(
    ("spec", "actual", "limit"),
    [
        (ChainSpec((1,) * (MAX_NDIM + 1), "u1", 0, ["bytes"]), 33, 32),
        (ChainSpec((1,), f"V{MAX_ITEMSIZE + 1}", bytes(MAX_ITEMSIZE + 1), ["bytes"]), 2**20 + 1, 2**20),
        (ChainSpec((1,), "u1", 0, ["bytes", *["crc32c"] * (MAX_OPS + 1)]), 9, 8),
        (ShardSpec((1,), (1,), "u1", 0, ["bytes", *["crc32c"] * (MAX_OPS + 1)]), 9, 8),
    ],
    ids=["axes", "itemsize", "ops", "inner ops"],
)
def test_spec_beyond_the_native_limits_is_unsupported(spec: Any, actual: int, limit: int) -> None:
    """The format has no such limits, so this is not a SpecError."""
    with pytest.raises(UnsupportedError) as caught:
        lower(spec)
    assert (caught.value.actual, caught.value.limit) == (actual, limit)
    assert str(actual) in str(caught.value)


def test_spec_at_the_native_limits_is_lowered() -> None:
    lower(ChainSpec((1,) * MAX_NDIM, "u1", 0, ["bytes", *["crc32c"] * MAX_OPS]))
    lower(ChainSpec((1,), f"V{MAX_ITEMSIZE}", bytes(MAX_ITEMSIZE), ["bytes"]))


def test_codec_without_native_code_is_unsupported() -> None:
    class Custom(Codec):
        json_name = "custom"

    with pytest.raises(UnsupportedError, match="no native code for codec custom"):
        lower(ChainSpec((1,), "u1", 0, ["bytes", Custom()]))
