# test_staged_damage.py - errors in shards whose codecs have no native code
# SPDX-License-Identifier: MIT
"""Damaged shards and failing codecs: the error names the shard and the inner chunk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import assemble, entries_of, random_array, shard_path
from staged_codecs import INNER, SHAPE, TurnedAtOnce, make
from zarr.codecs import BytesCodec
from zarr.codecs import numcodecs as of_numcodecs
from zarr.registry import register_codec
from zarr.storage import LocalStore

import shardcodec
from shardcodec import CodecError, ShardFormatError


def damage(path: Path, entry: int, change: Any) -> None:
    """Change an entry of the index of a shard of 8 inner chunks, and the checksum to match."""
    blob = path.read_bytes()
    entries = entries_of(blob, 8)
    entries[entry] = change(*entries[entry])
    path.write_bytes(assemble(blob[: len(blob) - 132], entries))


@pytest.mark.parametrize("codecs", ["at once", "awaited"])
def test_damaged_entry_is_named(tmp_path: Path, codecs: str) -> None:
    array = make(LocalStore(tmp_path / "a"), INNER[codecs]())
    array[...] = random_array(SHAPE, "int32")
    damage(shard_path(array), 5, lambda offset, nbytes: (offset, 10**6))
    with shardcodec.options(allow_in_index=True):
        assert array[0:4, 0:12].shape == (4, 12)
    for selection in (np.s_[...], np.s_[0:4, 0:12]):
        with pytest.raises(ShardFormatError, match="claims 1000000 bytes") as info:
            array[selection]
        assert (info.value.shard, info.value.chunk_coords) == ("c/0/0", (1, 1))
    stored = shard_path(array).read_bytes()
    with pytest.raises(ShardFormatError):
        array[0, 0] = 1
    assert shard_path(array).read_bytes() == stored


@pytest.mark.parametrize("codecs", ["bz2", "at once", "awaited"])
@pytest.mark.parametrize("threads", [1, 4])
def test_failing_codec_names_the_lowest_chunk(tmp_path: Path, codecs: str, threads: int) -> None:
    array = make(LocalStore(tmp_path / "a"), INNER[codecs]())
    array[...] = random_array(SHAPE, "int32")
    for entry in (6, 3):
        damage(shard_path(array), entry, lambda offset, nbytes: (offset, nbytes - 1))
    with shardcodec.options(threads=threads), pytest.raises(CodecError) as info:
        array[...]
    assert (info.value.shard, info.value.chunk_coords, info.value.entry) == ("c/0/0", (0, 3), 3)
    assert info.value.__cause__ is not None
    stored = shard_path(array).read_bytes()
    with pytest.raises(CodecError) as info:
        array[0:4, 10] = 1
    assert info.value.chunk_coords == (0, 3)
    assert shard_path(array).read_bytes() == stored
    array[0:8, 0:12] = 1  # fully overwritten inner chunks are not decoded
    assert np.all(array[0:8, 0:12] == 1)


def test_damaged_object_with_codecs_after_sharding_is_named(tmp_path: Path) -> None:
    array = make(LocalStore(tmp_path / "a"), [BytesCodec()], after=[of_numcodecs.BZ2(level=1)])
    array[...] = 1
    path = shard_path(array, "c/1/1")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CodecError) as info:
        array[...]
    assert info.value.shard == "c/1/1"


def test_error_of_the_lowest_object_is_reported(tmp_path: Path) -> None:
    """A later object has a bad entry, an earlier one a chunk that cannot be decoded."""
    array = make(LocalStore(tmp_path / "a"), INNER["bz2"]())
    array[...] = random_array(SHAPE, "int32")
    damage(shard_path(array, "c/1/0"), 0, lambda offset, nbytes: (offset, 10**6))
    damage(shard_path(array, "c/0/1"), 2, lambda offset, nbytes: (offset, nbytes - 1))
    with pytest.raises(CodecError) as info:
        array[...]
    assert info.value.shard == "c/0/1"


class FailingEncoder(TurnedAtOnce):
    """A codec that cannot encode."""

    def to_dict(self) -> Any:
        return {"name": "failing_encoder", "configuration": {}}

    def _encode_sync(self, data: Any, spec: Any) -> Any:
        raise ZeroDivisionError("cannot")

    async def _encode_single(self, data: Any, spec: Any) -> Any:
        raise ZeroDivisionError("cannot")


register_codec("failing_encoder", FailingEncoder)


def test_codec_that_cannot_encode_stops_the_write(tmp_path: Path) -> None:
    array = make(LocalStore(tmp_path / "a"), [BytesCodec(), FailingEncoder()])
    with pytest.raises(CodecError, match="ZeroDivisionError: cannot") as info:
        array[5, 7] = 1
    assert info.value.chunk_coords == (1, 2)
    assert isinstance(info.value.__cause__, ZeroDivisionError)
    assert not shard_path(array).exists()
