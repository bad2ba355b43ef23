# test_failed_allocations.py - one allocation of a call fails, or one and all that follow
# SPDX-License-Identifier: MIT
"""Failed allocations in C code.

One run counts the allocations of a call. Then the call is repeated, once for each allocation, and this allocation
fails. The call returns the right answer or raises MemoryError; the files hold the old values or the new ones; no
litter is left; and all memory is freed.

The allocations of Python and of the codec libraries do not fail, except those that make codec contexts.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import files_below, ours, quiet, random_array, shard_path, zarrs_view
from pairs import pairs
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec

import shardcodec
from shardcodec import native

SHAPE, SHARD, CHUNK = (16, 24), (8, 24), (4, 4)
CODECS: dict[str, list[Any]] = {
    "raw": [BytesCodec(endian="big")],
    "zstd": [BytesCodec(), ZstdCodec(level=1), Crc32cCodec()],
    "gzip": [BytesCodec(), GzipCodec(level=1)],
    "blosc": [BytesCodec(), BloscCodec(cname="lz4", shuffle="bitshuffle", typesize=4)],
    "nested": [ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec(), Crc32cCodec()])],
}
OLD = random_array(SHAPE, "int32")
NEW = OLD + 1000
NEVER = 2**63
BOX = np.s_[2:11, 3:14]  # partial and whole inner chunks of both shards

pytestmark = pytest.mark.native
one_or_all = pytest.mark.parametrize("and_all_after", [False, True], ids=["one", "all"])
codecs = pytest.mark.parametrize("name", CODECS)


def new_array(folder: Path, name: str, location: str = "end") -> Any:
    codec = ShardingCodec(chunk_shape=CHUNK, codecs=CODECS[name], index_location=location)
    with quiet():
        zarr.create_array(
            folder,
            shape=SHAPE,
            chunks=SHARD,
            dtype="int32",
            fill_value=-1,
            serializer=codec,
            compressors=None,
        )
    array = ours(folder)
    array[...] = OLD
    return array


def outcome(work: Callable[[], None]) -> bool:
    """Return True if the work succeeded. The error and the objects that it refers to are freed on return."""
    try:
        work()
    except MemoryError:
        return False
    return True


def fail_each(work: Callable[[], None], after: Callable[[bool], None], and_all_after: bool) -> int:
    """Count the allocations of `work`, then fail each of them.

    `after` gets True if the work succeeded. It checks the result and prepares the next run.
    """
    engine = native.load()
    work()  # one-time allocations are not tested
    after(True)
    engine.set_memory_fault(NEVER)
    work()
    n_allocations, *_ = engine.end_memory_fault()
    after(True)
    gc.collect()
    gc.freeze()  # few new objects make the search for cycles fast
    try:
        for n in range(n_allocations):
            engine.set_memory_fault(n, and_all_after)
            done = outcome(work)
            gc.collect()
            _, n_live, nbytes, _ = engine.end_memory_fault()
            assert (n_live, nbytes) == (0, 0), f"allocation {n} of {n_allocations} failed"
            after(done)
    finally:
        engine.end_memory_fault()
        gc.unfreeze()
    assert outcome(work), "the work must succeed after the last fault"
    after(True)
    return n_allocations


@one_or_all
@codecs
@pytest.mark.parametrize("threads", [1, 2])
def test_read_without_memory_is_right_or_raises(
    tmp_path: Path, name: str, threads: int, and_all_after: bool
) -> None:
    array = new_array(tmp_path, name)
    found: list[Any] = []

    def read() -> None:
        with shardcodec.options(index_cache=0, threads=threads):
            found.append(array[BOX])
            found.append(array.oindex[[0, 5, 9], 2:20])

    def check(done: bool) -> None:
        if done:
            assert (found[0] == OLD[BOX]).all()
            assert (found[1] == OLD[[0, 5, 9], 2:20]).all()
        found.clear()

    assert fail_each(read, check, and_all_after) > 3


@pairs(
    "name, strategy, and_all_after",
    [*CODECS, "index at the start"],
    ["replace", "append", "in_place"],
    [False, True],
)
def test_update_without_memory_leaves_the_old_or_the_new_shard(
    tmp_path: Path, name: str, strategy: str, and_all_after: bool
) -> None:
    codec, location = (name, "end") if name in CODECS else ("zstd", "start")
    array = new_array(tmp_path / "a", codec, location)
    blobs = {file: (tmp_path / "a" / file).read_bytes() for file in files_below(tmp_path / "a")}

    def write() -> None:
        with shardcodec.options(write_strategy=strategy, threads=1):
            array[BOX] = NEW[BOX]

    def check(done: bool) -> None:
        expected = OLD.copy()
        expected[BOX] = NEW[BOX]
        found = array[...]
        for rows in (np.s_[:8], np.s_[8:]):  # each shard is old or new
            as_new = (found[rows] == expected[rows]).all()
            assert as_new or (not done and (found[rows] == OLD[rows]).all())
        if strategy != "in_place":
            assert (zarrs_view(array)[...] == found).all()
            assert files_below(tmp_path) == [f"a/{file}" for file in sorted(blobs)]
        array[...] = OLD
        for file, blob in blobs.items():
            (tmp_path / "a" / file).write_bytes(blob)
        assert files_below(tmp_path) == [f"a/{file}" for file in sorted(blobs)]

    assert fail_each(write, check, and_all_after) > 3


@one_or_all
@codecs
@pytest.mark.parametrize("latency", [0.0, 1.0], ids=["batches", "pieces"])
def test_whole_shard_write_without_memory_leaves_the_old_or_the_new_shard(
    tmp_path: Path, name: str, latency: float, and_all_after: bool
) -> None:
    """Overwrites of stored shards, and new shards. Where calls wait, they are written in pieces by more threads."""
    array = new_array(tmp_path, name)
    (first, second) = (shard_path(array, key) for key in ("c/0/0", "c/1/0"))

    def write() -> None:
        with shardcodec.options(threads=2, io_latency=latency):
            array[...] = NEW

    def check(done: bool) -> None:
        found = array[...]
        kinds = [("new", NEW, np.s_[8:]), ("none", np.full_like(OLD, -1), np.s_[8:]), ("new", NEW, np.s_[:8])]
        seen = [kind for kind, values, rows in kinds if (found[rows] == values[rows]).all()]
        old = (found[:8] == OLD[:8]).all()
        assert seen == ["new", "new"] if done else (old or "new" in seen)
        assert set(files_below(tmp_path)) <= {"c/0/0", "c/1/0", "zarr.json"}
        array[...] = OLD
        second.unlink()

    assert fail_each(write, check, and_all_after) > 3
    assert first.exists()


@one_or_all
@pytest.mark.parametrize("name", ["zstd", "blosc"])
def test_what_does_not_fit_into_memory_is_not_cached(tmp_path: Path, name: str, and_all_after: bool) -> None:
    """The index or the inner chunk is not cached, and the answer is the same."""
    new_array(tmp_path, name)
    found: list[Any] = []

    def read() -> None:
        cache = shardcodec.IndexCache(1 << 20, max_open_files=4, max_chunk_bytes=2000, _grain_ns=0)
        array = shardcodec.open_array(tmp_path, index_cache=cache)
        for _ in range(3):
            found.append(array[BOX])

    def check(done: bool) -> None:
        assert len(found) == 3 or not done
        assert all((part == OLD[BOX]).all() for part in found)
        found.clear()

    assert fail_each(read, check, and_all_after) > 3


@one_or_all
def test_single_shard_without_memory_is_right_or_raises(tmp_path: Path, and_all_after: bool) -> None:
    """Reads, and writes of decoded and of encoded chunks."""
    array = new_array(tmp_path, "gzip")
    path = shard_path(array)
    blob = path.read_bytes()
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    expected = OLD[:8].copy()
    expected[:4, :4] = 7

    def work() -> None:
        with shardcodec.open_shard(path, None, spec, mode="r+") as shard:
            assert (shard.read_region() == OLD[:8]).all()
            assert (shard.read_chunks([(0, 1)])[0] == OLD[:4, 4:8]).all()
            stored = shard.read_encoded([(1, 1)])
            shard.write_encoded([(1, 1)], stored)
            shard.write_chunks([(0, 0)], np.full((1, 4, 4), 7, "int32"))

    def check(done: bool) -> None:
        found = array[:8]
        assert (found == expected).all() or (not done and (found == OLD[:8]).all())
        assert files_below(tmp_path) == ["c/0/0", "c/1/0", "zarr.json"]
        path.write_bytes(blob)

    assert fail_each(work, check, and_all_after) > 3


@one_or_all
@codecs
def test_encode_without_memory_is_right_or_raises(name: str, and_all_after: bool) -> None:
    inner = [codec.to_dict() for codec in CODECS[name]]
    spec = shardcodec.ShardSpec(SHARD, CHUNK, "int32", -1, inner)
    blob = bytes(shardcodec.encode(OLD[:8], spec))

    def work() -> None:
        assert bytes(shardcodec.encode(OLD[:8], spec)) == blob
        assert (shardcodec.decode(blob, spec) == OLD[:8]).all()

    fail_each(work, lambda done: None, and_all_after)
