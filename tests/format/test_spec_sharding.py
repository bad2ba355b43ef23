# test_spec_sharding.py - the configuration of sharding_indexed: each rule, with the numbers in its message
# SPDX-License-Identifier: MIT
"""At least one test for each rule; SC numbers refer to docs/requirements.md."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from spec_checks import AT, refused, shard
from spec_json import BIG, CRC, LITTLE, config, metadata, named, sharding, transpose

from shardcodec.errors import SpecError, UnsupportedError
from shardcodec.format.codecs import (
    _PARSERS,
    Bytes,
    Crc32c,
    Gzip,
    Sharding,
    Transpose,
    Zstd,
)
from shardcodec.format.spec import ChainSpec, ShardSpec


@pytest.mark.parametrize(
    "name", ["sharding", "Sharding_indexed", "sharding_indexed ", "https://x/sharding_indexed"]
)
def test_sc1_name_must_match_exactly(name: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        ChainSpec.from_metadata(metadata({**sharding(), "name": name}))
    assert caught.value.codec == name
    assert caught.value.path == "codecs[0]"
    with pytest.raises(SpecError, match="name: expected sharding_indexed"):
        ShardSpec.from_json({**sharding(), "name": name}, shard_shape=(4, 6), dtype="i4", fill_value=0)


@pytest.mark.parametrize(
    ("chunk_shape", "where", "words"),
    [
        (..., "", "missing"),
        (None, "", "expected an array, got None"),
        (2, "", "expected an array, got 2"),
        ("23", "", "expected an array, got '23'"),
        ({"0": 2}, "", "expected an array"),
        ([2], "", "expected 2 axes, as the shard has, got 1"),
        ([2, 3, 1], "", "expected 2 axes, as the shard has, got 3"),
        ([], "", "expected 2 axes, as the shard has, got 0"),
    ],
    ids=str,
)
def test_sc2_chunk_shape_has_the_rank_of_the_shard(chunk_shape: Any, where: str, words: str) -> None:
    refused(metadata(sharding(chunk_shape=chunk_shape)), f"{AT}.chunk_shape{where}", words)


def test_sc2_error_has_the_numbers() -> None:
    refused(metadata(sharding(chunk_shape=[2])), f"{AT}.chunk_shape", expected=2, actual=1)


@pytest.mark.parametrize("value", [0, -2, 2.0, 2.5, "2", True, None, [2]], ids=repr)
def test_sc3_every_entry_is_a_positive_integer(value: Any) -> None:
    refused(metadata(sharding(chunk_shape=[2, value])), f"{AT}.chunk_shape[1]", actual=value)


@pytest.mark.parametrize(
    ("chunk_shape", "axis", "actual", "limit"), [([3, 3], 0, 3, 4), ([2, 4], 1, 4, 6), ([2, 12], 1, 12, 6)]
)
def test_sc4_every_entry_divides_the_shard(chunk_shape: Any, axis: int, actual: int, limit: int) -> None:
    words = f"inner chunk size {actual} does not divide shard size {limit} on axis {axis}"
    place = f"{AT}.chunk_shape[{axis}]"
    refused(metadata(sharding(chunk_shape=chunk_shape)), place, words, axis=axis, actual=actual, limit=limit)


def test_sc5_shard_shape_is_taken_after_the_transpose() -> None:
    spec = ShardSpec.from_metadata(metadata(transpose(1, 0), sharding(chunk_shape=[3, 4])))
    assert spec.shard_shape == (4, 6)
    assert spec.stored_shape == (6, 4)
    assert spec.grid_shape == (2, 1)
    assert spec.before == (Transpose((1, 0)),)
    data = metadata(transpose(1, 0), sharding(chunk_shape=[4, 3]))
    place = "codecs[1].configuration.chunk_shape[0]"
    refused(data, place, "inner chunk size 4 does not divide shard size 6 on axis 0")


def test_sc5_two_transposes_are_combined() -> None:
    data = metadata(
        *(transpose(1, 2, 0), transpose(1, 2, 0), sharding(chunk_shape=[5, 2, 3])),
        shape=[2, 3, 5],
        chunk_grid=named("regular", chunk_shape=[2, 3, 5]),
    )
    spec = ShardSpec.from_metadata(data)
    assert spec.stored_shape == np.zeros((2, 3, 5)).transpose(1, 2, 0).transpose(1, 2, 0).shape == (5, 2, 3)
    assert spec.n_chunks == 1


@pytest.mark.parametrize(
    ("codecs", "where", "words"),
    [
        (..., "", "missing"),
        ([], "", "expected exactly one array -> bytes codec"),
        ([transpose(1, 0)], "", "expected exactly one array -> bytes codec"),
        ([CRC], "[0]", "crc32c takes bytes, but no codec before it returns bytes"),
        ([LITTLE, LITTLE], "[1]", "bytes is a second array -> bytes codec after codecs[0]"),
        (
            [LITTLE, CRC, sharding()],
            "[2]",
            "sharding_indexed is a second array -> bytes codec after codecs[0]",
        ),
        ([LITTLE, transpose(1, 0)], "[1]", "transpose takes an array, but codecs[0] returns bytes"),
        ([transpose(1, 0), CRC, LITTLE], "[1]", "crc32c takes bytes, but no codec before it"),
        (LITTLE, "", "expected an array"),
        (None, "", "expected an array, got None"),
        ([None], "[0]", "expected an object, got None"),
    ],
    ids=str,
)
def test_sc6_exactly_one_array_to_bytes_codec_in_order(codecs: Any, where: str, words: str) -> None:
    refused(metadata(sharding(codecs=codecs)), f"{AT}.codecs{where}", words)
    if codecs is not ...:
        refused(metadata(codecs=codecs), f"codecs{where}", words)


@pytest.mark.parametrize("key", ["codecs", "index_codecs"])
def test_sc7_missing_codecs_are_refused_unless_lenient(key: str) -> None:
    data = metadata(sharding(**{key: ...}))
    refused(data, f"{AT}.{key}", "missing")
    spec = ShardSpec.from_metadata(data, lenient=True)
    assert spec.codecs == (Bytes("little"),)
    assert spec.index_codecs == (Bytes("little"), Crc32c())
    assert (
        ChainSpec.from_json(data["codecs"], shape=(4, 6), dtype="i4", fill_value=0, lenient=True)
        == spec.chain
    )
    bare = config(**{key: ...})
    assert ShardSpec.from_json(bare, shard_shape=(4, 6), dtype="i4", fill_value=0, lenient=True) == spec


def test_sc7_lenient_applies_to_nested_shards_only() -> None:
    inner = {"name": "sharding_indexed", "configuration": {"chunk_shape": [1, 3]}}
    data = metadata(sharding(codecs=[inner]))
    refused(data, f"{AT}.codecs[0].configuration.codecs", "missing")
    assert ShardSpec.from_metadata(data, lenient=True).inner.sharding == Sharding((1, 3))
    with pytest.raises(SpecError, match="chunk_shape: missing"):
        ShardSpec.from_json({}, shard_shape=(4,), dtype="i4", fill_value=0, lenient=True)


@pytest.mark.parametrize(
    "codec",
    [
        named("gzip", level=1),
        named("zstd", level=1, checksum=False),
        named("blosc", cname="lz4", clevel=5, shuffle="noshuffle", typesize=1, blocksize=0),
        named("numcodecs.zlib", level=1),
        "zstd",
    ],
    ids=lambda codec: codec if isinstance(codec, str) else codec["name"],
)
def test_sc8_codecs_of_variable_size_cannot_hold_an_index(codec: Any) -> None:
    name = codec if isinstance(codec, str) else codec["name"]
    words = f"{name} has no fixed size"
    refused(metadata(sharding(index_codecs=[LITTLE, codec])), f"{AT}.index_codecs[1]", words, codec=name)


def test_sc8_another_shard_cannot_hold_an_index() -> None:
    refused(metadata(sharding(index_codecs=[sharding()])), f"{AT}.index_codecs[0]", "has no fixed size")
    with pytest.raises(SpecError, match="zstd has no fixed size"):
        Sharding((1,), index_codecs=(Bytes("little"), Zstd()))


@pytest.mark.parametrize(
    ("index_codecs", "nbytes", "endian", "perm"),
    [
        ([LITTLE], 64, "little", (0, 1, 2)),
        ([BIG, CRC], 68, "big", (0, 1, 2)),
        ([LITTLE, CRC, CRC], 72, "little", (0, 1, 2)),
        ([transpose(2, 1, 0), LITTLE, CRC], 68, "little", (2, 1, 0)),
        ([transpose(1, 2, 0), transpose(1, 2, 0), BIG], 64, "big", (2, 0, 1)),
    ],
    ids=str,
)
def test_sc8_codecs_of_fixed_size_can_hold_an_index(
    index_codecs: Any, nbytes: int, endian: str, perm: tuple[int, ...]
) -> None:
    spec = shard(index_codecs=index_codecs)
    assert spec.index_shape == (2, 2, 2)
    assert (spec.index_nbytes, spec.index_endian, spec.index_perm) == (nbytes, endian, perm)
    assert spec.n_index_checksums == (nbytes - 64) // 4


def test_sc8_index_transpose_has_one_axis_more() -> None:
    data = metadata(sharding(index_codecs=[transpose(1, 0), LITTLE]))
    place = f"{AT}.index_codecs[0].configuration.order"
    refused(data, place, "expected 3 axes, as the array has, got 2", expected=3, actual=2)


@pytest.mark.parametrize("name", ["numcodecs.adler32", "numcodecs.bz2", "vlen-utf8", "mine"])
def test_sc8_unknown_index_codec_is_unsupported(name: str) -> None:
    with pytest.raises(UnsupportedError, match=r"transpose, bytes, crc32c, numcodecs\.crc32c") as caught:
        ChainSpec.from_metadata(metadata(sharding(index_codecs=[LITTLE, named(name)])))
    assert (caught.value.path, caught.value.codec) == (f"{AT}.index_codecs[1]", name)


def test_sc8_new_codec_cannot_hold_an_index_until_its_size_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(_PARSERS, "new", lambda configuration, lenient: Crc32c())
    index = [LITTLE, named("new")]
    refused(
        metadata(sharding(index_codecs=index)), f"{AT}.index_codecs[1]", "new has no fixed size", codec="new"
    )


@pytest.mark.parametrize("codec", [{"name": "bytes"}, "bytes", named("bytes")], ids=str)
def test_sc9_index_needs_a_byte_order(codec: Any) -> None:
    data = metadata(sharding(index_codecs=[codec, CRC]), data_type="int8")
    refused(
        data,
        f"{AT}.index_codecs[0].configuration.endian",
        "expected little or big for elements of type uint64, got none",
    )


def test_sc10_index_location_is_start_or_end() -> None:
    assert shard(index_location=...).index_location == "end"
    assert shard(index_location="start").index_location == "start"
    for value in ("middle", "END", None, 0):
        data = metadata(sharding(index_location=value))
        refused(data, f"{AT}.index_location", f"expected start or end, got {value!r}", actual=value)


@pytest.mark.parametrize("value", [1, {"must_understand": False}, None], ids=repr)
def test_sc11_unknown_keys_are_refused(value: Any) -> None:
    refused(metadata(sharding(subchunk_write_order=value)), f"{AT}.subchunk_write_order", "unknown key")
    known = "expected one of chunk_shape, codecs, index_codecs, index_location"
    refused(metadata(sharding(subchunk_write_order=value)), f"{AT}.subchunk_write_order", known)
    refused(metadata({**sharding(), "alias": value}), "codecs[0].alias", "unknown key")
    refused(metadata(sharding(), codec_options=1), "codec_options", "unknown key")
    data = metadata(sharding(codecs=[named("bytes", endian="little", order="C")]))
    refused(
        data, f"{AT}.codecs[0].configuration.order", "unknown key; expected one of endian", actual="order"
    )


def test_sc12_short_names_and_must_understand_are_read_but_not_written() -> None:
    data = metadata(
        {**sharding(codecs=["bytes", "crc32c"]), "must_understand": True},
        data_type="uint8",
    )
    data["codecs"][0]["configuration"]["index_codecs"] = [
        {**LITTLE, "must_understand": False},
        {"name": "crc32c", "configuration": {}},
    ]
    spec = ShardSpec.from_metadata(data)
    assert spec == shard(dtype="u1", codecs=[{"name": "bytes"}, CRC])
    written = json.dumps(spec.to_metadata((10, 20)))
    assert "must_understand" not in written
    assert spec.to_json()["configuration"]["codecs"] == [{"name": "bytes"}, {"name": "crc32c"}]
    bad = metadata({**sharding(), "must_understand": "no"})
    refused(bad, "codecs[0].must_understand", "expected true or false, got 'no'")


@pytest.mark.parametrize(
    "name",
    ["bytes", "crc32c", "zstd", "gzip", "blosc", "numcodecs.zlib", "numcodecs.lz4", "numcodecs.crc32c"],
)
def test_sc12_short_names_of_all_codecs_are_read(name: str) -> None:
    codecs = [name] if name == "bytes" else ["bytes", name]
    spec = ChainSpec((4,), "u1", 0, codecs)
    assert spec == ChainSpec.from_json(
        json.loads(json.dumps(spec.to_json())), shape=(4,), dtype="u1", fill_value=0
    )
    assert all(isinstance(codec, dict) for codec in spec.to_json())


def test_sc12_short_name_lacks_required_keys() -> None:
    refused(metadata("sharding_indexed"), f"{AT}.chunk_shape", "missing")
    refused(metadata("transpose", LITTLE), f"{AT}.order", "missing")


def test_sc13_all_four_keys_are_written() -> None:
    written = shard(index_location=...).to_json()
    assert written == sharding()
    assert set(written["configuration"]) == {"chunk_shape", "codecs", "index_codecs", "index_location"}


def test_sc14_codecs_around_the_shard_are_kept() -> None:
    spec = ShardSpec.from_metadata(
        metadata(transpose(1, 0), sharding(chunk_shape=[3, 2]), named("gzip", level=1), CRC)
    )
    assert spec.after == (Gzip(1), Crc32c())
    assert not spec.supports_partial_access
    assert ShardSpec.from_metadata(metadata(sharding())).supports_partial_access
    assert ShardSpec.from_metadata(
        metadata(transpose(1, 0), sharding(chunk_shape=[3, 2]))
    ).supports_partial_access
    assert [codec["name"] for codec in spec.chain.to_json()] == [
        "transpose",
        "sharding_indexed",
        "gzip",
        "crc32c",
    ]
    assert spec.to_json()["name"] == "sharding_indexed"
    assert ShardSpec.from_metadata(spec.to_metadata((10, 20))) == spec


@pytest.mark.parametrize(
    ("shape", "chunk", "words", "actual", "limit"),
    [
        (
            [2**40],
            [1],
            "expected at most 1073741824 inner chunks in one shard, got 1099511627776",
            2**40,
            2**30,
        ),
        ([2**31], [1], "expected at most 1073741824 inner chunks in one shard, got 2147483648", 2**31, 2**30),
        (
            [2**20, 2**20],
            [1, 1],
            "expected at most 1073741824 inner chunks in one shard, got 1099511627776",
            2**40,
            2**30,
        ),
    ],
)
def test_sc15_number_of_chunks_is_limited(
    shape: Any, chunk: Any, words: str, actual: int, limit: int
) -> None:
    grid = named("regular", chunk_shape=shape)
    data = metadata(sharding(chunk_shape=chunk), shape=shape, chunk_grid=grid)
    refused(data, f"{AT}.chunk_shape", words, actual=actual, limit=limit)


def test_sc15_largest_grid_takes_no_memory() -> None:
    spec = shard((2**30,), chunk_shape=[1])
    assert spec.index_nbytes == 2**34 + 4


@pytest.mark.parametrize(
    ("shape", "where"),
    [([2**33, 2**33], ""), ([2**62], ""), ([2**63], "[0]"), ([10**4000] * 2, "[0]")],
    ids=str,
)
def test_sc15_sizes_beyond_64_bits_are_refused(shape: Any, where: str) -> None:
    grid = named("regular", chunk_shape=shape)
    data = metadata(sharding(chunk_shape=shape), shape=[1] * len(shape), chunk_grid=grid)
    refused(data, f"chunk_grid.configuration.chunk_shape{where}")


def test_sc15_too_many_axes_are_unsupported() -> None:
    with pytest.raises(UnsupportedError, match=r"expected at most 64 axes .*, got 65"):
        ChainSpec((1,) * 65, "u1", 0, ["bytes"])


def test_sc38_nested_shards_are_checked_at_every_level() -> None:
    levels = [sharding(chunk_shape=[2, 3], codecs=[sharding(chunk_shape=[1, 3])])]
    spec = ShardSpec.from_metadata(metadata(*levels))
    nested = ShardSpec.from_chain(spec.inner)
    assert (spec.grid_shape, nested.grid_shape) == ((2, 2), (2, 1))
    assert nested.inner.shape == (1, 3)
    bad = metadata(sharding(codecs=[transpose(1, 0), sharding(chunk_shape=[2, 3])]))
    place = f"{AT}.codecs[1].configuration.chunk_shape[0]"
    refused(bad, place, "inner chunk size 2 does not divide shard size 3 on axis 0", axis=0)


def test_sc39_shard_without_axes_has_one_chunk() -> None:
    spec = shard((), chunk_shape=[], dtype="float64")
    assert (spec.ndim, spec.grid_shape, spec.n_chunks, spec.index_shape, spec.index_nbytes) == (
        0,
        (),
        1,
        (2,),
        20,
    )
    data = metadata(sharding(chunk_shape=[]), shape=[], chunk_grid=named("regular", chunk_shape=[]))
    assert ShardSpec.from_metadata(data).shard_shape == ()


def test_sc40_array_axis_may_have_length_0() -> None:
    assert ShardSpec.from_metadata(metadata(sharding(), shape=[0, 20])).shard_shape == (4, 6)
