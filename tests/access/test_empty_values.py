# test_empty_values.py - inner chunks of no bytes, wherever their entries point
# SPDX-License-Identifier: MIT
"""A value of zero bytes is present: changes of other values keep it, and the shard stays readable."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from spec_json import CRC, LITTLE

import shardcodec
from shardcodec.kv import ShardedKeyValueStore


def key(*indices: int) -> bytes:
    return struct.pack(f">{len(indices)}I", *indices)


@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
@pytest.mark.parametrize("location", ["end", "start"])
def test_empty_value_survives_changes_of_the_bytes_before_it(
    tmp_path: Path, location: str, strategy: str
) -> None:
    store = ShardedKeyValueStore(
        tmp_path / "shard", grid_shape=(4,), index_codecs=[LITTLE, CRC], index_location=location
    )
    with shardcodec.options(write_strategy=strategy):
        with store.transaction() as t:
            t[key(0)], t[key(1)], t[key(2)] = b"a" * 1000, b"x" * 500, b""
        del store[key(1)]
        for value in (b"c", b"", b"d" * 2000, b"e"):
            store[key(3)] = value
            assert dict(store) == {key(0): b"a" * 1000, key(2): b"", key(3): value}


@pytest.mark.parametrize("location", ["end", "start"])
def test_empty_value_and_footer_survive_updates(tmp_path: Path, location: str) -> None:
    spec = shardcodec.ShardSpec((4,), (1,), "uint8", 0, ["bytes", "gzip"], [LITTLE, CRC], location)
    shard = shardcodec.open_shard(tmp_path / "shard", None, spec, mode="r+")
    shard.write_encoded([(0,), (1,), (2,)], [b"a" * 100, b"x" * 500, b""], footer=b"foot")
    for _ in range(2):
        shard.write_encoded([(1,)], [b"y"], keep_user_bytes=True)
        shard.erase([(1,)], keep_user_bytes=True)
        assert shard.read_encoded([(0,), (1,), (2,)]) == [b"a" * 100, None, b""]
        assert shard.footer == b"foot"
        shard.check()


@pytest.mark.parametrize("location", ["end", "start"])
def test_empty_values_are_not_aligned(tmp_path: Path, location: str) -> None:
    spec = shardcodec.ShardSpec((6,), (1,), "uint8", 0, ["bytes", "gzip"], [LITTLE, CRC], location)
    values = [b"a" * 100, b"b" * 7, b"c" * 600, b"", b"e" * 5, b"f" * 900]
    shard = shardcodec.open_shard(tmp_path / "shard", None, spec, mode="r+")
    for i, value in enumerate(values):
        shard.write_encoded([(i,)], [value])
    shard.write_encoded([(5,), (3,)], [b"g", b""], alignment=512, footer=b"foot")
    for value in (b"", b"h" * 40):
        assert shard.read_encoded([(i,) for i in range(6)]) == [*values[:5], b"g"]
        assert shard.footer == b"foot"
        shard.check()
        values[3] = value
        shard.write_encoded([(3,)], [value], keep_user_bytes=True)
    shard.write_encoded([(2,)], [b""], alignment=512)
    shard.compact()
    values[2] = b""
    assert shard.read_encoded([(i,) for i in range(6)]) == [*values[:5], b"g"]
    assert shard.footer == b"foot"


@pytest.mark.parametrize("location", ["end", "start"])
def test_aligning_adjacent_chunks_moves_each_one(tmp_path: Path, location: str) -> None:
    spec = shardcodec.ShardSpec((4,), (1,), "uint8", 0, ["bytes", "gzip"], [LITTLE, CRC], location)
    shard = shardcodec.open_shard(tmp_path / "shard", None, spec, mode="r+")
    shard.write_encoded([(0,), (1,), (2,), (3,)], [b"x" * 9000, b"a" * 100, b"b" * 7, b"c" * 600])
    shard.write_encoded([(0,)], [b"y"], alignment=512)
    assert shard.read_encoded([(i,) for i in range(4)]) == [b"y", b"a" * 100, b"b" * 7, b"c" * 600]
    assert shard.alignment == 512
