# test_depth_memory.py - memory of a deep run (csrc/plan/sc_depth.h), that of indexes too, and what a failed read of a group leaves
# SPDX-License-Identifier: MIT
"""Shards have 2^15 inner chunks of one byte, so their indexes are far larger than the two inner chunks that are stored."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import assemble, create, ours
from workers import in_threads
from zarr.codecs import Crc32cCodec

import shardcodec
from shardcodec import native
from shardcodec.access.compiled_chains import compiled
from shardcodec.format.spec import ChainSpec
from shardcodec.storage.indexes import IndexCache

pytestmark = pytest.mark.threads

N_SHARDS, N_CHUNKS = 8, 1 << 15
INDEX_NBYTES = 16 * N_CHUNKS + 4
WINDOW_NBYTES = 16 * 20_000  # from inner chunk 5 to the one that is read last
NEVER = 2**63

Counters = dict[str, int]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    array = create(
        tmp_path / "a",
        shape=(N_SHARDS, N_CHUNKS),
        dtype="u1",
        shards=(1, N_CHUNKS),
        chunks=(1, 1),
        compressors=None,
        fill_value=0,
    )
    array[:, 5:20005:19999] = np.arange(2 * N_SHARDS, dtype="u1").reshape(N_SHARDS, 2)
    return tmp_path / "a"


def chain_of(folder: Path) -> Any:
    return compiled(ChainSpec.from_metadata(json.loads((folder / "zarr.json").read_text())))


def read(folder: Path, **how: Any) -> Counters:
    """Read both inner chunks of each shard, 300 kB of an index at a time; return the counters."""
    chain = chain_of(folder)
    out = np.full((N_SHARDS, 2), 99, "u1")
    items = [(chain, str(folder / f"c/{i}/0"), ((0, 5), (1, 2), (1, 19999), (i, 0))) for i in range(N_SHARDS)]
    how = {"io_depth": N_SHARDS, "io_latency": 600e-6} | how
    _, counters = native.load().read(items, out, (0, 1), n_threads=1, **how)
    assert (out == np.arange(2 * N_SHARDS).reshape(N_SHARDS, 2)).all()
    return dict(counters)


@pytest.mark.parametrize("bound", [1, 700_000, 1_500_000, 64 << 20])
def test_indexes_count_within_the_bound_of_a_deep_run(folder: Path, bound: int) -> None:
    """Before the fix, each thread held the needed part of an index and a block of it besides the bound."""
    counters = read(folder, io_nbytes=bound)
    least = WINDOW_NBYTES + (300_000 if bound > 1 else 256 << 10)
    assert least <= counters["peak_nbytes"] <= max(bound, least)


@pytest.mark.parametrize(
    "how",
    [{"io_latency": 570e-6}, {"io_latency": 1e-3, "io_nbytes": 300_008}],
    ids=["285,000 bytes", "300,008 bytes"],
)
def test_blocks_of_an_index_have_whole_pairs(folder: Path, how: dict[str, Any]) -> None:
    """Each block is checked alone. Blocks that began in the middle of a pair made a sound index half empty."""
    read(folder, **how)


@pytest.mark.parametrize("bound", [1, 1_200_000])
def test_indexes_that_are_kept_count_while_they_are_read(folder: Path, bound: int) -> None:
    """A large index is kept at its second reading, as a whole."""
    cache = IndexCache(16 << 20, _grain_ns=0)
    first, second, third = (read(folder, io_nbytes=bound, cache=cache.native) for _ in range(3))
    assert first["peak_nbytes"] <= max(bound, WINDOW_NBYTES + 300_000)
    assert INDEX_NBYTES <= second["peak_nbytes"] <= max(bound, INDEX_NBYTES)
    assert third["index_hits"] == N_SHARDS and third["peak_nbytes"] < 100


@pytest.mark.parametrize("max_nbytes", [0, 600_000, 16 << 20])
def test_runs_that_share_a_cache_do_not_deadlock(folder: Path, max_nbytes: int) -> None:
    """A thread may wait for an index that another run loads, while it has the only room of its own run; one loads for all."""
    cache = IndexCache(max_nbytes, _grain_ns=0)

    def work(number: int) -> None:
        for latency in (600e-6, 3e-3, 1.0)[number % 3 :]:  # blocks of an index, larger ones, whole shards
            for bound in (1, 600_000, 1_500_000):
                read(folder, io_latency=latency, io_nbytes=bound, cache=cache.native)

    in_threads(4, work)
    shards = ours(folder, index_cache=0, io_latency=1.0, threads=2)
    assert int(shards[...].sum()) == sum(range(2 * N_SHARDS))


def peak_of(call: Callable[[], Any]) -> int:
    """Return the most bytes that C code had allocated at a time."""
    engine = native.load()
    engine.set_memory_fault(NEVER)
    try:
        call()
    finally:
        *_, peak = engine.end_memory_fault()
    return peak


def test_memory_of_indexes_is_that_of_one_if_one_fits(folder: Path) -> None:
    """Before the fix, blocks were as large as a call is worth, 500 kB here, in each thread and to the end of the run."""
    peak = peak_of(lambda: read(folder, io_latency=1e-3, io_nbytes=1))
    least = WINDOW_NBYTES + (256 << 10)
    assert least < peak < least + (150 << 10), "the rest: lists, objects and a worker"


def test_memory_of_large_inner_chunks_is_that_of_one_if_one_fits(tmp_path: Path) -> None:
    """Their checksum needs all bytes for one element of each. Before the fix, each thread kept its buffer to the end of the run."""
    array = create(
        tmp_path / "a",
        shape=(64, 1 << 19),
        dtype="u1",
        shards=(1, 1 << 19),
        chunks=(1, 1 << 18),
        compressors=Crc32cCodec(),
        fill_value=0,
    )
    array[...] = 7
    chain, out = chain_of(tmp_path / "a"), np.empty((64, 1), "u1")
    items = [(chain, str(tmp_path / f"a/c/{i}/0"), ((0, 9), (1, 1), None, (i, 0))) for i in range(64)]
    how = {"n_threads": 1, "io_depth": 16, "io_latency": 100e-6, "io_nbytes": 1}
    peak = peak_of(lambda: native.load().read(items, out, (0, 1), **how))
    assert (out == 7).all()
    assert 1 << 18 < peak < (1 << 18) + (200 << 10)


# ---- a group that cannot be read


@pytest.mark.parametrize(
    "how", [{"io_latency": 0.0}, {"io_latency": 100e-6, "io_depth": 4}], ids=["flat", "deep"]
)
def test_group_that_could_not_be_read_is_not_decoded(tmp_path: Path, how: dict[str, Any]) -> None:
    """The files are truncated. The memory to sort a group of inner chunks is refused, so each inner chunk is read alone. Before
    the fix, they were decoded from bytes that were never read, and in a deep run without a worker."""
    spec = shardcodec.ShardSpec((32, 1024), (1, 1024), "u1", 0, [{"name": "bytes"}, {"name": "crc32c"}])
    chain, engine = compiled(spec.chain), native.load()
    stored = bytes(shardcodec.encode(np.ones((32, 1024), "u1"), spec))[: 32 * 1028]
    items, cache = [], IndexCache(1 << 20, max_open_files=2, _grain_ns=0)
    for i in range(2):
        (tmp_path / f"{i}").write_bytes(assemble(stored, [(1028 * (31 - k), 1028) for k in range(32)]))
        items.append((chain, str(tmp_path / f"{i}"), ((0, 0), (32, 1024), None, (32 * i, 0))))

    def work() -> None:
        out = np.empty((64, 1024), "u1")
        engine.read(items, out, (0, 1), n_threads=1, cache=cache.native, immutable=True, **how)
        assert (out == 1).all()

    def fails(n: int) -> int:
        engine.set_memory_fault(n)
        try:
            with pytest.raises((MemoryError, shardcodec.ShardError)) as caught:
                work()
        finally:
            n_asked, *_ = engine.end_memory_fault()
        if not isinstance(caught.value, MemoryError):
            assert "expected 32896 bytes" in str(caught.value) and caught.value.entry == 0, caught.value
        return n_asked

    work()
    for i in range(2):
        os.truncate(tmp_path / f"{i}", 0)
    for n in range(fails(NEVER) + 2):
        fails(n)
