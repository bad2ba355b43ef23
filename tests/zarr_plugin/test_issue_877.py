# test_issue_877.py - the seven requirements that started sharding, through zarr
# SPDX-License-Identifier: MIT
"""zarr-python issue 877, "Sharding prototype": one test for each requirement of its list (IS-1 to IS-7).

Other tests check each requirement in detail. These show the part that a user sees.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from helpers import (
    chunk_bytes,
    create,
    entries_of,
    files_below,
    quiet,
    random_array,
    shard_path,
    zarrs_view,
)
from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

import shardcodec


def test_1_several_chunks_are_one_object(tmp_path: Path) -> None:
    array = create(tmp_path, shape=(64, 96), fill_value=0)
    array[:] = 1
    chunks, shards = (64 // 4) * (96 // 3), (64 // 8) * (96 // 12)
    assert (chunks, shards) == (512, 64)
    assert len([name for name in files_below(tmp_path) if name.startswith("c/")]) == shards


COMPRESSORS: dict[str, Any] = {
    "zstd": ZstdCodec(),
    "gzip": GzipCodec(),
    "blosc": BloscCodec(cname="lz4"),
    "of numcodecs": {"name": "numcodecs.bz2", "configuration": {"level": 1}},
}


@pytest.mark.parametrize("name", COMPRESSORS)
def test_2_chunks_stay_compressible_with_any_codec(tmp_path: Path, name: str) -> None:
    values = np.arange(16 * 24, dtype="int32").reshape(16, 24) // 50
    with shardcodec.enable(), quiet():
        array = create(tmp_path, own=True, compressors=COMPRESSORS[name], fill_value=0)
        array[:] = values
        assert (array[:] == values).all()
    with quiet():
        assert (zarr.open_array(tmp_path)[:] == values).all()


def test_3_a_chunk_is_one_run_of_bytes(tmp_path: Path) -> None:
    """Only the codec can decode it."""
    array = create(tmp_path, compressors=ZstdCodec())
    values = random_array((16, 24), "int32", seed=3)
    array[:] = values
    blob = shard_path(array).read_bytes()
    for (i, j), entry in zip(itertools.product(range(2), range(4)), entries_of(blob, 8), strict=True):
        decoded = np.frombuffer(numcodecs.Zstd().decode(chunk_bytes(blob, entry)), "<i4").reshape(4, 3)
        assert (decoded == values[4 * i : 4 * i + 4, 3 * j : 3 * j + 3]).all()


def test_4_users_of_the_array_see_no_shards(tmp_path: Path) -> None:
    values = random_array((16, 24), "int32", seed=4)
    sharded, plain = create(tmp_path / "s"), create(tmp_path / "p", shards=None)
    for array in (sharded, plain):
        array[:] = values
        array[3:9, ::5] = 7
        array.oindex[[1, 5], [0, 23]] = 8
        array.vindex[[0, 15], [0, 23]] = 9
    for choose in (np.s_[:], np.s_[2:7, 5], np.s_[..., -1], np.s_[::3, 4:9:2]):
        assert (sharded[choose] == plain[choose]).all()
    assert (sharded.oindex[[3, 1], 2:4] == plain.oindex[[3, 1], 2:4]).all()
    assert sharded.chunks == plain.chunks


@pytest.mark.parametrize("shape", [(1, 1), (7, 11), (8, 12), (9, 13), (100, 5), (0, 5)])
def test_5_arrays_of_any_size(tmp_path: Path, shape: tuple[int, int]) -> None:
    array = create(tmp_path, shape=shape)
    values = random_array(shape, "int32", seed=5)
    array[:] = values
    assert (array[:] == values).all() and (zarrs_view(array)[:] == values).all()


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5, 6, 7, 8, 31])
def test_6_arrays_of_any_rank(tmp_path: Path, rank: int) -> None:
    edge, shard = (3, 2) if rank <= 8 else (1, 1)
    array = create(tmp_path, shape=(edge,) * rank, shards=(shard,) * rank, chunks=(1,) * rank)
    values = random_array((edge,) * rank, "int32", seed=rank)
    array[...] = values
    assert (array[...] == values).all()
    assert shardcodec.chunk_state(array).exists.all()


def test_7_neighbouring_chunks_are_stored_close_together(tmp_path: Path) -> None:
    """In Morton order with the first axis fastest, as zarr writes them."""
    array = create(tmp_path, shape=(16, 12), shards=(16, 12), chunks=(4, 3))
    array[:] = random_array((16, 12), "int32", seed=7)
    entries = entries_of(shard_path(array).read_bytes(), 16)
    order = sorted(range(16), key=lambda position: entries[position][0])
    assert [divmod(position, 4) for position in order[:8]] == [
        (0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (3, 0), (2, 1), (3, 1)
    ]  # fmt: skip
