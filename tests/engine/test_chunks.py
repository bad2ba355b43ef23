# test_chunks.py - decoded inner chunks that the cache keeps
# SPDX-License-Identifier: MIT
"""csrc/plan/sc_chunks.c, tested through reads: equal elements, what is a hit, what must be a miss, and the bound of the memory."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import in_child, quiet, random_array
from workers import forked, in_threads
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

import shardcodec
from shardcodec import IndexCache
from shardcodec.access.array import Array

SHAPE, SHARD, CHUNK = (40, 30), (20, 15), (5, 5)
ZSTD: list[Any] = [BytesCodec(), ZstdCodec(level=1)]
CODECS: dict[str, list[Any]] = {
    "zstd": ZSTD,
    "crc32c": [BytesCodec(), Crc32cCodec()],
    "gzip, big-endian": [BytesCodec(endian="big"), GzipCodec(level=1)],
    "blosc": [BytesCodec(), BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=4)],
    "transposed": [TransposeCodec(order=(1, 0)), *ZSTD],
    "raw": [BytesCodec()],
    "nested": [ShardingCodec(chunk_shape=(5, 1), codecs=ZSTD)],
}
KEPT = [name for name in CODECS if name not in ("raw", "nested")]
N_CHUNKS = 48


def cache_of(max_chunk_bytes: int = 1 << 20) -> IndexCache:
    """Return a cache for which every file counts as stable at once."""
    return IndexCache(1 << 20, max_chunk_bytes=max_chunk_bytes, _grain_ns=0)


def new_array(folder: Path, codecs: list[Any], values: Any) -> None:
    serializer = ShardingCodec(chunk_shape=CHUNK, codecs=codecs)
    with quiet():
        array = zarr.create_array(
            folder,
            shape=SHAPE,
            chunks=SHARD,
            dtype=values.dtype,
            fill_value=-1,
            serializer=serializer,
            compressors=None,
        )
    array[...] = values


def opened(folder: Path, cache: IndexCache, **arguments: Any) -> Array:
    return shardcodec.open_array(folder, index_cache=cache, **arguments)


def counted(cache: IndexCache) -> dict[str, int]:
    return cache.info()["chunks"]  # type: ignore[no-any-return]


def hits() -> int:
    """Return how often this process has found an inner chunk."""
    return shardcodec.stats()["chunk_hits"]  # type: ignore[no-any-return]


VALUES = random_array(SHAPE, "int32")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    new_array(tmp_path / "a.zarr", ZSTD, VALUES)
    return tmp_path / "a.zarr"


# ---- elements


SELECTIONS: dict[str, tuple[str, Any]] = {
    "box": ("basic", np.s_[3:17, 2:28]),
    "steps": ("basic", np.s_[1:39:3, 2:28:7]),
    "element": ("basic", np.s_[7, 8]),
    "inner chunk": ("basic", np.s_[5:10, 5:10]),
    "shard": ("basic", np.s_[:20, :15]),
    "lists": ("orthogonal", ([1, 5, 22], [0, 3, 29])),
    "points": ("coordinate", ([1, 39, 22, 1], [0, 3, 29, 0])),
    "mask": ("mask", VALUES % 7 == 0),
}


@pytest.mark.parametrize("max_chunk_bytes", [1 << 20, 1500, 200])
@pytest.mark.parametrize("name", CODECS)
def test_elements_are_equal_at_each_read(tmp_path: Path, name: str, max_chunk_bytes: int) -> None:
    new_array(tmp_path / "a.zarr", CODECS[name], VALUES)
    cache = cache_of(max_chunk_bytes)
    array = opened(tmp_path / "a.zarr", cache)
    before = hits()
    for _ in range(3):
        for kind, selection in SELECTIONS.values():
            expected = VALUES[np.ix_(*selection)] if kind == "orthogonal" else VALUES[selection]
            np.testing.assert_array_equal(array.read(selection, kind=kind), expected)  # type: ignore[arg-type]
            assert counted(cache)["nbytes"] <= max_chunk_bytes
    assert (hits() > before) == (name in KEPT and max_chunk_bytes > 1000)


def test_chunks_of_an_array_without_shards_are_kept(tmp_path: Path) -> None:
    zarr.create_array(tmp_path / "a.zarr", data=VALUES, chunks=(20, 15))
    array = opened(tmp_path / "a.zarr", cache_of())
    before = hits()
    for _ in range(3):
        np.testing.assert_array_equal(array[3:25, 4:17], VALUES[3:25, 4:17])
    assert hits() == before + 8


def test_two_chains_of_one_object_have_chunks_of_their_own(tmp_path: Path) -> None:
    """The key has the chain: the same bytes have other elements for another data type."""
    new_array(tmp_path / "a.zarr", ZSTD, VALUES)
    cache = cache_of()
    text = (tmp_path / "a.zarr/zarr.json").read_text()
    assert opened(tmp_path / "a.zarr", cache)[7, 8] == VALUES[7, 8]
    (tmp_path / "a.zarr/zarr.json").write_text(text.replace("int32", "uint32").replace("-1", "1"))
    assert opened(tmp_path / "a.zarr", cache)[7, 8] == VALUES[7, 8].astype("uint32")
    (tmp_path / "a.zarr/zarr.json").write_text(text.replace("int32", "float32").replace("-1", "1.0"))
    assert opened(tmp_path / "a.zarr", cache)[7, 8].view("int32") == VALUES[7, 8]
    assert counted(cache)["n_chunks"] == 3


# ---- what is kept


def test_second_read_decodes_nothing(folder: Path) -> None:
    cache = cache_of()
    array = opened(folder, cache)
    array[1:4, 1:4]
    before = shardcodec.stats()
    array[1:4, 1:4]
    after = shardcodec.stats()
    assert after["chunk_hits"] - before["chunk_hits"] == 1
    assert after["chunks_decoded"] == before["chunks_decoded"]
    assert after["requests"] == before["requests"], "nothing of the file is read, not even its index"
    assert after["chunk_bytes"] >= 100


def test_chunks_of_several_sizes_share_the_memory(tmp_path: Path, folder: Path) -> None:
    """Memory of an evicted chunk is used again only for one of its size."""
    zarr.create_array(tmp_path / "b.zarr", data=VALUES, shards=(40, 30), chunks=(20, 10))
    cache = cache_of(3000)
    arrays = [opened(path, cache, threads=1) for path in (folder, tmp_path / "b.zarr")]
    for row, column in np.random.default_rng(3).integers(0, 28, (2000, 2)).tolist():
        for array in arrays:
            np.testing.assert_array_equal(array[row, column : column + 2], VALUES[row, column : column + 2])
    assert counted(cache)["evictions"] > 1000


def test_a_read_of_a_whole_shard_keeps_nothing(folder: Path) -> None:
    cache = cache_of()
    array = opened(folder, cache)
    for _ in range(3):
        array[...]
    assert counted(cache)["n_chunks"] == 0
    assert counted(cache)["nbytes"] == 0


def test_a_whole_inner_chunk_is_kept_when_it_is_wanted_again(folder: Path) -> None:
    """Otherwise a scan of whole inner chunks would fill memory that is never read."""
    cache = cache_of()
    array = opened(folder, cache)
    before = hits()
    for n_chunks in (0, 1, 1):
        array[5:10, 5:10]
        assert counted(cache)["n_chunks"] == n_chunks
    assert hits() == before + 1


def test_blocks_of_a_container_are_decoded_alone_at_first(tmp_path: Path) -> None:
    new_array(tmp_path / "a.zarr", CODECS["blosc"], VALUES)
    cache = cache_of()
    array = opened(tmp_path / "a.zarr", cache)
    for n_chunks in (0, 1, 1):
        assert array[7, 8] == VALUES[7, 8]
        assert counted(cache)["n_chunks"] == n_chunks


def test_a_scan_leaves_the_chunks_that_are_used_again(folder: Path) -> None:
    """S3-FIFO: a new chunk is in the short queue; what was used there is in the main one when others are evicted."""
    cache = cache_of(16 * 600)
    array = opened(folder, cache, threads=1)
    evicted = shardcodec.stats()["chunk_evictions"]
    for _ in range(3):
        array[1, 1], array[1, 6], array[6, 1]
    for row, column in itertools.product(range(10, 40, 5), range(0, 30, 5)):
        array[row, column]
    before = hits()
    array[1, 1], array[1, 6], array[6, 1]
    assert hits() == before + 3
    assert counted(cache)["evictions"] == shardcodec.stats()["chunk_evictions"] - evicted > 10


def test_a_loop_over_more_than_the_cache_holds_finds_what_it_holds(tmp_path: Path) -> None:
    """Chunks that are there are copied before others are loaded, which would evict them just before their turn."""
    values = random_array((64, 65536), "int16")  # so that a group of the plan has a few chunks
    zarr.create_array(tmp_path / "a.zarr", data=values, shards=(64, 65536), chunks=(1, 65536))
    cache = cache_of(32 * (2 * 65536 + 300))
    array = opened(tmp_path / "a.zarr", cache, threads=1)
    for _ in range(20):
        np.testing.assert_array_equal(array[:, 1:], values[:, 1:])
    before, n_chunks = hits(), counted(cache)["n_chunks"]
    for _ in range(4):
        np.testing.assert_array_equal(array[:, 1:], values[:, 1:])
    assert hits() - before >= 4 * 0.9 * n_chunks


def test_bytes_never_exceed_the_bound(folder: Path) -> None:
    rng = np.random.default_rng(3)
    for bound in (0, 100, 400, 1000, 5000):
        cache = cache_of(bound)
        array = opened(folder, cache)
        for row, column in rng.integers(0, 26, (200, 2)).tolist():
            np.testing.assert_array_equal(
                array[row : row + 4, column : column + 4], VALUES[row : row + 4, column : column + 4]
            )
            assert counted(cache)["nbytes"] <= bound
    before = shardcodec.stats()["chunk_bytes"]
    assert before >= counted(cache)["nbytes"]
    cache.clear()
    assert counted(cache)["nbytes"] == counted(cache)["n_chunks"] == 0
    assert shardcodec.stats()["chunk_bytes"] < before


def test_keys_of_small_chunks_leave_room_for_a_large_one(tmp_path: Path, folder: Path) -> None:
    """They were never forgotten for another chunk, so one that needs most of the memory was not kept as long as they were there."""
    zarr.create_array(tmp_path / "b.zarr", data=VALUES, shards=(30, 30), chunks=(15, 10))
    cache = cache_of(1000)
    small, large = opened(folder, cache), opened(tmp_path / "b.zarr", cache)
    for row in range(0, 40, 5):
        small[row : row + 5, 5:10]  # whole inner chunks: only their keys are kept
    assert counted(cache)["n_chunks"] == 0 < counted(cache)["nbytes"]
    before = hits()
    large[3, 4], large[3, 4]
    assert hits() == before + 1
    assert counted(cache)["nbytes"] <= 1000


# ---- what must be a miss


def test_a_write_of_this_process_is_seen(folder: Path) -> None:
    cache = cache_of()
    array = opened(folder, cache, mode="r+")
    for value in range(5):
        array[7, 8] = value
        assert [int(array[7, 8]), int(array[7, 8]), int(array[7, 9])] == [value, value, VALUES[7, 9]]


@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_a_write_of_another_process_is_seen(folder: Path, strategy: str) -> None:
    array = opened(folder, cache_of())
    before = hits()
    for value in range(1, 4):
        assert array[7, 8] == array[7, 8]
        time.sleep(0.02)  # longer than a tick of the file system's clock

        def write(value: int = value) -> None:
            with shardcodec.options(write_strategy=strategy):  # type: ignore[arg-type]
                shardcodec.open_array(folder, mode="r+")[7, 8] = value

        in_child(write)
        assert array[7, 8] == value
    assert hits() >= before + 3


def test_a_file_that_another_program_replaces_is_read_again(folder: Path) -> None:
    cache = cache_of()
    array = opened(folder, cache)
    assert array[7, 8] == array[7, 8] == VALUES[7, 8]
    path = folder / "c/0/0"
    stamps = path.stat()
    other = folder.with_name("b.zarr")
    new_array(other, ZSTD, VALUES + 1)
    os.utime(other / "c/0/0", ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    (other / "c/0/0").replace(path)
    assert array[7, 8] == VALUES[7, 8] + 1
    path.unlink()
    assert array[7, 8] == -1


def test_a_file_changed_just_now_is_not_kept(folder: Path) -> None:
    cache = IndexCache(1 << 20, max_chunk_bytes=1 << 20)
    array = opened(folder, cache)
    array[7, 8], array[7, 8]
    assert counted(cache)["n_chunks"] == 0


def test_a_damaged_chunk_is_an_error_each_time_and_is_not_kept(tmp_path: Path) -> None:
    new_array(tmp_path / "a.zarr", CODECS["crc32c"], VALUES)
    path = tmp_path / "a.zarr/c/0/0"
    damaged = bytearray(path.read_bytes())
    damaged[3] ^= 1  # of some inner chunk
    path.write_bytes(damaged)
    cache = cache_of()
    array = opened(tmp_path / "a.zarr", cache)
    for _ in range(2):
        with pytest.raises(shardcodec.ChecksumError):
            array[1:20, 1:15]
    info = counted(cache)
    assert info["n_chunks"] <= 11
    assert info["nbytes"] < info["n_chunks"] * 400 + 1, "the memory of the damaged one was given back"


# ---- threads, processes and pickles


@pytest.mark.threads
def test_threads_that_want_one_chunk_decode_it_once(tmp_path: Path) -> None:
    shape = 400, 3000  # so that decoding takes some milliseconds, in which all threads come
    values = np.random.default_rng(0).integers(0, 9, shape).astype("int32")
    zarr.create_array(
        tmp_path / "a.zarr", data=values, shards=shape, chunks=shape, compressors=GzipCodec(level=1)
    )
    n_threads, n_rounds = 4, 5
    for _ in range(n_rounds):
        cache = cache_of(8 << 20)
        array = opened(tmp_path / "a.zarr", cache, threads=1)
        before = shardcodec.stats()["chunks_decoded"]

        def work(number: int, array: Array = array) -> None:
            for row in range(number, 40, n_threads):
                np.testing.assert_array_equal(array[row, 1:29], values[row, 1:29])

        in_threads(n_threads, work)
        assert shardcodec.stats()["chunks_decoded"] - before == 1
        assert counted(cache)["n_chunks"] == 1


@pytest.mark.threads
def test_threads_that_read_write_and_clear_see_only_elements_that_were_stored(folder: Path) -> None:
    cache = cache_of(3000)
    array = opened(folder, cache, mode="r+", threads=2)
    end = time.monotonic() + 1.5

    def work(number: int) -> None:
        rng = np.random.default_rng(number)
        while time.monotonic() < end:
            row, column = (int(at) for at in rng.integers(0, (39, 29)))
            if number == 0 and rng.random() < 0.1:
                cache.clear()
            if number == 1 and rng.random() < 0.3:
                array[row, column] = VALUES[row, column] + int(rng.integers(0, 3)) * (1 << 20)
            got = array[row : row + 2, column : column + 2]
            assert ((got - VALUES[row : row + 2, column : column + 2]) % (1 << 20) == 0).all()

    in_threads(4, work)
    assert counted(cache)["nbytes"] <= 3000


@pytest.mark.threads
def test_a_cache_that_is_cleared_while_chunks_are_loaded_has_only_loaded_ones(tmp_path: Path) -> None:
    """A thread that has loaded a chunk which was forgotten meanwhile must not declare that of another thread loaded."""
    n = 1 << 17
    values = np.random.default_rng(0).integers(1, 9, (4, n), "int32")  # none is 0, as those of new memory
    zarr.create_array(
        tmp_path / "a.zarr", data=values, shards=(4, n), chunks=(4, n), compressors=GzipCodec(level=1)
    )
    cache = cache_of(1 << 24)
    array = opened(tmp_path / "a.zarr", cache, threads=1)
    end = time.monotonic() + 1.5

    def work(number: int) -> None:
        while time.monotonic() < end:
            if number == 0:
                time.sleep(0.002)
                cache.clear()
            else:
                np.testing.assert_array_equal(array[number % 4, 1:], values[number % 4, 1:])

    in_threads(5, work)


def test_chunks_are_of_one_state_beside_updates_in_place(tmp_path: Path) -> None:
    """Without checksums, half of an update may be decoded and kept. The read that finds it out must not take that from the cache."""
    n_rows, n = 48, 1 << 14
    # zstd stores noise as it is: each state has the same size, and a mixture of two states is decoded, too
    noise = np.random.default_rng(0).integers(0, 1 << 63, (n_rows, n))
    path = tmp_path / "a.zarr"
    zarr.create_array(path, data=noise, shards=(n_rows, n), chunks=(1, n), compressors=ZstdCodec())
    inode = (path / "c/0/0").stat().st_ino
    cache = cache_of(1 << 24)
    array = opened(path, cache)

    def write() -> None:
        with shardcodec.options(write_strategy="in_place"):
            writer = shardcodec.open_array(path, mode="r+")
            for number in range(1, 1 << 20):
                writer[-3:] = noise[-3:] ^ number
                time.sleep(0.002)

    pid = forked(write)
    try:
        end = time.monotonic() + 2
        numbers = [0]
        while time.monotonic() < end:
            found = (array[:, 1:] ^ noise[:, 1:])[-3:]
            assert (found == found[:, :1]).all(), "a mixture of two states"
            assert found.min() >= numbers[-1], "an older state"
            numbers.append(int(found.min()))
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert len(set(numbers)) > 2
    assert (path / "c/0/0").stat().st_ino == inode
    assert counted(cache)["n_chunks"] > 0


def test_evicted_chunks_are_freed(tmp_path: Path) -> None:
    """Each read, and each hit, gives back the chunk that it holds."""
    n = 1 << 18
    values = np.arange(8 * n, dtype="u1").reshape(8, n)
    zarr.create_array(tmp_path / "a.zarr", data=values, shards=(8, n), chunks=(1, n), compressors=ZstdCodec())
    cache = cache_of(4 * n)
    array = opened(tmp_path / "a.zarr", cache, threads=1)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before, hits_before = resident(), hits()
    for row in [*range(8), *range(8)] * 20:
        for _ in range(2):
            assert array[row, 1:9].tolist() == values[row, 1:9].tolist()
    assert counted(cache)["evictions"] > 100 < hits() - hits_before
    assert resident() - before < 20 * n


def test_a_forked_child_begins_with_an_empty_cache(folder: Path) -> None:
    cache = cache_of()
    array = opened(folder, cache)
    array[1:4, 1:4], array[1:4, 1:4]

    def look() -> None:
        before = hits()
        assert counted(cache)["n_chunks"] == 0
        assert shardcodec.stats()["chunk_bytes"] == 0
        np.testing.assert_array_equal(array[1:4, 1:4], VALUES[1:4, 1:4])
        np.testing.assert_array_equal(array[1:4, 1:4], VALUES[1:4, 1:4])
        assert hits() == before + 1

    in_child(look)
    assert counted(cache)["n_chunks"] == 1


def test_a_pickled_handle_keeps_its_bounds(folder: Path) -> None:
    array = pickle.loads(pickle.dumps(opened(folder, cache_of(5000))))
    assert array[7, 8] == VALUES[7, 8]
    assert counted(array._index_cache)["max_nbytes"] == 5000
    array = pickle.loads(pickle.dumps(shardcodec.open_array(folder, cache="2MiB")))
    assert counted(array._index_cache)["max_nbytes"] == 2 << 20


# ---- the option


def test_the_option_is_a_number_or_a_text(folder: Path) -> None:
    assert shardcodec.open_array(folder, cache="1.5 MiB")._opened.cache == 3 << 19
    with shardcodec.options(cache=4096):
        assert shardcodec.open_array(folder)._opened.cache == 4096
    for wrong in (-1, "much", 1.5, True):
        with pytest.raises((ValueError, TypeError), match="cache"):
            shardcodec.open_array(folder, cache=wrong)  # type: ignore[arg-type]


def test_arrays_of_zarr_use_it(folder: Path) -> None:
    with shardcodec.options(cache="1MiB"):
        array = shardcodec.attach(zarr.open_array(folder, mode="r"))
        time.sleep(max(0.0, (folder / "c/0/0").stat().st_mtime + 2.1 - time.time()))
        before = shardcodec.stats()["chunk_hits"]
        for _ in range(3):
            np.testing.assert_array_equal(array[1:4, 1:4], VALUES[1:4, 1:4])
            np.testing.assert_array_equal(
                array.oindex[np.array([1, 9]), np.array([2, 3])], VALUES[np.ix_([1, 9], [2, 3])]
            )
    assert shardcodec.stats()["chunk_hits"] >= before + 4
