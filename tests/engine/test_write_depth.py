# test_write_depth.py - many shards written at a time where a call costs a round trip (csrc/plan/sc_write_depth.c)
# SPDX-License-Identifier: MIT
"""The option ``io_latency`` forces depth, so results do not depend on the machine; with 0, two threads write."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from delays import run_delayed
from helpers import bits, bytes_of_files, create, in_child, ours, shard_path

import shardcodec
from shardcodec import native

pytestmark = pytest.mark.threads

DEEP: dict[str, Any] = {"io_latency": 1.0, "threads": 2}
FLAT: dict[str, Any] = {"io_latency": 0.0, "threads": 2}

Array = np.ndarray[Any, Any]


def new_array(folder: Path, **options: Any) -> Any:
    """Return an array of 24 shards with 27 inner chunks each."""
    create(
        folder,
        shape=(24, 24, 36),
        dtype="u2",
        shards=(12, 12, 6),
        chunks=(4, 4, 2),
        compressors=zarr.codecs.ZstdCodec(level=1),
        fill_value=0,
    )
    return ours(folder, **options)


@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_deep_writes_store_what_flat_writes_store(tmp_path: Path, strategy: str) -> None:
    """Whole shards, parts of shards, index lists, fill values: each file has the same bytes, and each array numpy's values."""
    rng = np.random.default_rng(3)
    arrays = {name: new_array(tmp_path / name, write_strategy=strategy) for name in ("deep", "flat")}
    values = np.zeros((24, 24, 36), "u2")
    for turn in range(12):
        begin = rng.integers(0, 20, 3)
        box = tuple(
            slice(int(b), int(rng.integers(b + 1, n + 1))) for b, n in zip(begin, values.shape, strict=True)
        )
        box = (slice(None),) * 3 if turn in (0, 7) else box
        part = rng.integers(0, 3 if turn % 4 else 1, values[box].shape).astype("u2")
        values[box] = part
        for name, how in (("deep", DEEP), ("flat", FLAT)):
            with shardcodec.options(**how):
                arrays[name][box] = part
    lists = np.ix_([3, 9, 20], [0, 5, 23], [1, 30])
    values[lists] = 7
    for name, how in (("deep", DEEP), ("flat", FLAT)):
        with shardcodec.options(**how):
            arrays[name].oindex[[3, 9, 20], [0, 5, 23], [1, 30]] = 7
        assert bits(arrays[name][...]) == bits(values)
    assert bytes_of_files(tmp_path / "deep") == bytes_of_files(tmp_path / "flat")


def test_the_lowest_failure_is_reported(tmp_path: Path) -> None:
    """A folder has the name of a shard; the error names this shard at any depth."""
    values = np.ones((24, 24, 36), "u2")
    told = set()
    for number, how in enumerate((FLAT, *[DEEP] * 5)):
        array = new_array(tmp_path / str(number))
        for key in ("c/0/1/3", "c/1/0/0"):
            shard_path(array, key).mkdir(parents=True)
        with shardcodec.options(**how), pytest.raises(OSError, match="c/0/1/3") as caught:
            array[...] = values
        told.add(type(caught.value))
    assert len(told) == 1


def test_one_shard_of_a_damaged_chunk_fails_alone(tmp_path: Path) -> None:
    """Old inner chunks are read by several threads; the first damaged one in C order is named."""
    array = new_array(tmp_path / "a")
    array[...] = np.random.default_rng(0).integers(0, 9, array.shape).astype("u2")
    path = shard_path(array, "c/0/0/0")
    data = bytearray(path.read_bytes())
    data[: len(data) - 27 * 16 - 4] = bytes(len(data) - 27 * 16 - 4)
    path.write_bytes(data)
    told = set()
    for how in (FLAT, *[DEEP] * 5):
        with shardcodec.options(**how), pytest.raises(shardcodec.ShardError) as caught:
            array[1:11, 1:11, 1:5] = 1
        told.add((caught.value.shard, caught.value.entry))
    assert told == {("c/0/0/0", 0)}
    assert path.read_bytes() == data


@pytest.mark.skipif(
    os.environ.get("SHARDCODEC_TEST_SANITIZER") == "thread",
    reason="ThreadSanitizer ends a child that was forked beside threads",
)
def test_forked_child_writes_deep(tmp_path: Path) -> None:
    array = new_array(tmp_path / "a")
    values = np.random.default_rng(0).integers(0, 9, array.shape).astype("u2")

    def write() -> None:
        with shardcodec.options(**DEEP):
            array[...] = values
        assert bits(array[...]) == bits(values)

    write()
    in_child(write)
    write()


def test_a_flat_run_writes_batches_also_where_calls_wait(tmp_path: Path) -> None:
    """With depth 1 the inner chunks of an old shard are not divided among threads, so each batch stays one call."""
    n_calls = {}
    for latency in (0.0, 1.0):
        array = create(
            tmp_path / str(latency),
            shape=(512, 512),
            dtype="u1",
            shards=(512, 512),
            chunks=(32, 32),
            compressors=None,
            fill_value=0,
        )
        array[...] = 1
        with shardcodec.options(io_latency=latency, io_depth=1, threads=1):
            native.load().set_fault(0, "count")
            ours(tmp_path / str(latency))[1:511, 1:511] = 7
            n_calls[latency] = native.load().end_fault().count("pwrite")
    assert n_calls[1.0] == n_calls[0.0] < 10


@pytest.mark.parametrize("latency", [-1.0, float("inf"), float("nan")])
def test_cost_of_a_call_is_a_finite_number(latency: float) -> None:
    with pytest.raises(ValueError, match="io_latency: expected a finite number"):
        native.load().read([], np.zeros(1, "u1"), (0,), n_threads=1, io_latency=latency)


WRITE = """
import json, time, numpy as np, zarr, shardcodec
from shardcodec.options import override
shardcodec.enable(threads=2, strict=True)
array = zarr.open_array(folder, mode="r+")
values = np.random.default_rng(0).integers(0, 9, array.shape).astype("u2")
seconds = []
for number, how in enumerate(({"io_depth": 1}, {}, {"io_latency": 0.04})):
    box = np.s_[:, :, 12 * number : 12 * number + 12]
    with override(how):
        begin = time.perf_counter()
        array[box] = values[box]
        seconds.append(time.perf_counter() - begin)
print(json.dumps(seconds))
"""


@pytest.mark.slow
def test_files_are_made_at_the_same_time(tmp_path: Path, delays: str) -> None:
    """8 new shards take 8 opens for their locks, of which 7 wait at the same time, and 2 each for the first file of a folder.

    Two threads make them in 4 steps of 2 opens. Without an option the first two files show that calls wait.
    """
    new_array(tmp_path / "a")
    flat, found_out, deep = json.loads(run_delayed(WRITE, delays, tmp_path / "a", 40_000))
    assert flat > 6 * 0.04 and found_out < 0.95 * flat and deep < 0.75 * flat
