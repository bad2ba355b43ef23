# test_threads.py - many threads at once on one array and on one shard
# SPDX-License-Identifier: MIT
"""No update is lost, no read is torn, no thread waits forever."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import RecordingStore, bits, create, ours, random_array, shard_path, zarrs_view
from workers import in_threads
from zarr.storage import MemoryStore

import shardcodec

pytestmark = pytest.mark.threads


STORES = ["local", "memory", "remote"]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return {"local": tmp_path, "memory": MemoryStore(), "remote": RecordingStore(MemoryStore())}[
        request.param
    ]


ONE_SHARD: dict[str, Any] = {"shape": (64, 64), "shards": (64, 64), "chunks": (8, 8), "dtype": "int64"}


@pytest.mark.parametrize("round_no", range(3))
def test_64_threads_write_one_inner_chunk_each(store: Any, round_no: int) -> None:
    array = create(store, **ONE_SHARD)

    def write(number: int) -> None:
        row, column = number // 8 * 8, number % 8 * 8
        array[row : row + 8, column : column + 8] = number

    in_threads(64, write)
    expected = np.kron(np.arange(64).reshape(8, 8), np.ones((8, 8), int))
    assert bits(zarrs_view(array)[...]) == bits(expected.astype("int64"))


def test_64_threads_write_one_element_each_of_one_inner_chunk(store: Any) -> None:
    array = create(store, shape=(8, 8), shards=(8, 8), chunks=(8, 8), dtype="int64")
    in_threads(64, lambda number: array.__setitem__((number // 8, number % 8), number))
    assert array[...].ravel().tolist() == list(range(64))


def test_handles_of_one_array_share_its_locks(tmp_path: Path) -> None:
    """The array is opened again, through a link, with options, with writes left to zarr: still one writer at a time."""
    create(tmp_path / "a", **ONE_SHARD)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    handles = [
        ours(tmp_path / ("link" if i % 2 else "a"), strict=False, threads=1 + i % 3) for i in range(64)
    ]

    def write(number: int) -> None:
        row, column = number // 8 * 8, number % 8 * 8
        if number % 4 == 3:
            handles[number].oindex[[row, row + 7], slice(column, column + 8)] = number
        else:
            handles[number][row : row + 8, column : column + 8] = number

    in_threads(64, write)
    first = zarrs_view(handles[0])[::8, ::8]
    assert first.ravel().tolist() == list(range(64))


def test_codec_and_pipeline_share_locks(tmp_path: Path) -> None:
    import zarr

    array = create(tmp_path, **ONE_SHARD)
    with zarr.config.set({"codecs.sharding_indexed": "shardcodec.ShardingCodec"}):
        other = zarr.open_array(tmp_path, mode="r+")

    def write(number: int) -> None:
        row, column = number // 8 * 8, number % 8 * 8
        (array if number % 2 else other)[row : row + 8, column : column + 8] = number

    in_threads(64, write)
    assert zarrs_view(array)[::8, ::8].ravel().tolist() == list(range(64))


def test_threads_write_different_shards(store: Any) -> None:
    array = create(store, shape=(64, 64), shards=(8, 64), chunks=(4, 8), dtype="int64")
    values = random_array((64, 64), "int64")
    in_threads(8, lambda n: array.__setitem__(np.s_[8 * n : 8 * n + 8], values[8 * n : 8 * n + 8]))
    assert bits(zarrs_view(array)[...]) == bits(values)


def test_writers_of_several_shards_do_not_deadlock(store: Any) -> None:
    """Each request covers all shards, in different rows."""
    array = create(store, shape=(64, 64), shards=(64, 16), chunks=(8, 8), dtype="int64")
    in_threads(8, lambda n: array.__setitem__(np.s_[8 * n : 8 * n + 8], n))
    assert array[::8, 0].tolist() == list(range(8))


def test_readers_see_the_old_or_the_new_shard(store: Any) -> None:
    """The array is overwritten as a whole, so at any time all elements have the same value."""
    array = create(store, shape=(64, 64), shards=(64, 64), chunks=(16, 16), dtype="int64")
    array[...] = 0
    done = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for generation in range(1, 40):
                array[...] = generation
            done.set()
            return
        last = 0
        while not done.is_set():
            seen = np.unique(array[...])
            assert len(seen) == 1 and seen[0] >= last
            last = int(seen[0])

    in_threads(4, work)


def test_readers_of_untouched_chunks_are_not_disturbed_by_a_writer(tmp_path: Path) -> None:
    """The chunks have no checksums, so a moved chunk would be read as another one."""
    array = create(tmp_path, **ONE_SHARD)
    values = np.kron(np.arange(64).reshape(8, 8), np.ones((8, 8), int)).astype("int64")
    array[...] = values
    plain = zarrs_view(array)
    done = threading.Event()

    def work(number: int) -> None:
        if number == 0:
            for generation in range(20):  # too few to cause packing
                array[0, 0] = generation
            done.set()
            return
        reader = array if number % 2 else plain
        while not done.is_set():
            assert bits(reader[32:40, 24:56]) == bits(values[32:40, 24:56])

    in_threads(4, work)


def test_large_requests_of_many_threads_share_the_pool(tmp_path: Path) -> None:
    array = create(
        tmp_path, shape=(128, 128, 64), shards=(64, 64, 64), chunks=(16, 16, 16), dtype="u2", fill_value=0
    )
    values = random_array(array.shape, "u2")
    array[...] = values

    def work(number: int) -> None:
        with shardcodec.options(threads=1 + number % 4):
            for _ in range(3):
                assert bits(array[...]) == bits(values)
                assert bits(array[5:100, ::3, number]) == bits(values[5:100, ::3, number])

    in_threads(8, work)


def test_error_is_raised_only_in_the_thread_that_caused_it(tmp_path: Path) -> None:
    array = create(tmp_path, shape=(64, 64), shards=(8, 64), chunks=(4, 8), dtype="int64")
    array[...] = 5
    shard_path(array, "c/3/0").write_bytes(b"broken")

    def work(number: int) -> None:
        rows = np.s_[8 * number : 8 * number + 8]
        for _ in range(5):
            if number == 3:
                with pytest.raises(shardcodec.ShardFormatError, match="c/3/0"):
                    array[rows]
                with pytest.raises(shardcodec.ShardFormatError, match="c/3/0"):
                    array[24, 0] = 1
            else:
                array[8 * number, 0] = number
                assert array[rows].sum() == 5 * 511 + number

    in_threads(8, work)
