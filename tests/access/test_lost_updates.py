# test_lost_updates.py - many writers on one shard: no update is lost
# SPDX-License-Identifier: MIT
"""Threads and processes write to the same shards at the same time, each one its own elements.

Each writer reads its own elements after each of its writes. No other writer changes them, so any difference is a lost
update, and it is noticed where it happens. zarr itself keeps one or two of 64 such writes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, files_below, ours, zarrs_view
from workers import PATIENCE, Workers, in_processes, in_threads
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec import ShardSpec

pytestmark = [
    pytest.mark.threads,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here"),
]

ROUNDS = 20
PROCESSES = 8


def accepted(strategy: str) -> bool:
    try:
        with shardcodec.options(write_strategy=strategy):
            return True
    except ValueError:
        return False


STRATEGIES = [name for name in ("replace", "append", "in_place") if accepted(name)]

strategies = pytest.mark.parametrize("strategy", STRATEGIES)


def chosen(strategy: str) -> dict[str, Any]:
    return {"write_strategy": strategy}


def barrier(n: int) -> Any:
    return multiprocessing.get_context("fork").Barrier(n)


# ---- one shard that exists


@strategies
def test_64_threads_lose_no_update(tmp_path: Path, strategy: str) -> None:
    array = grid(tmp_path, 8, **chosen(strategy))
    array[:] = 0
    together = threading.Barrier(64)

    def work(number: int) -> None:
        row, column = divmod(number, 8)
        chunk = np.s_[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
        for turn in range(1, ROUNDS + 1):
            together.wait(10)
            array[chunk] = 100 * number + turn
            assert (array[chunk] == 100 * number + turn).all()

    in_threads(64, work)
    check_grid(array, 8, ROUNDS)


@pytest.mark.parametrize("place", ["memory", "files"])
@pytest.mark.parametrize("way", ["attached", "handle"])
def test_threads_that_write_without_an_event_loop_lose_no_update(
    tmp_path: Path, place: str, way: str
) -> None:
    """No lock between processes helps them: in memory there is none, and for files none is taken."""
    store = MemoryStore() if place == "memory" else LocalStore(tmp_path / "a")
    together = threading.Barrier(8)

    def work(number: int) -> None:
        for turn in range(1, ROUNDS + 1):
            together.wait(PATIENCE)
            if way == "attached":
                array[:, 4 * number : 4 * number + 4] = turn
            else:
                shard.write_chunks([(0, number)], np.full((1, 4, 4), turn, array.dtype))
            assert (array[:, 4 * number : 4 * number + 4] == turn).all()

    create(store, shape=(4, 32), shards=(4, 32), chunks=(4, 4), fill_value=0)
    with shardcodec.enable(locking="thread"):
        array: Any = shardcodec.attach(zarr.open_array(store))
        spec = ShardSpec.from_metadata(array.metadata.to_dict())
        shard = shardcodec.open_shard(store, "c/0/0", spec=spec, mode="r+")
        in_threads(8, work)
    assert (zarrs_view(array)[...] == ROUNDS).all()


@strategies
@pytest.mark.parametrize("at_start", [False, True])
def test_8_processes_lose_no_update(tmp_path: Path, strategy: str, at_start: bool) -> None:
    grid(tmp_path, 4, at_start=at_start)[:] = 0

    def work(number: int) -> None:
        array = ours(tmp_path, **chosen(strategy))
        for turn in range(1, ROUNDS + 1):
            for mine in (number, number + 8):
                row, column = divmod(mine, 4)
                chunk = np.s_[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
                array[chunk] = 100 * mine + turn
                assert (array[chunk] == 100 * mine + turn).all()

    in_processes(PROCESSES, work)
    check_grid(ours(tmp_path), 4, ROUNDS)


@strategies
def test_8_processes_within_the_same_inner_chunks_lose_no_update(tmp_path: Path, strategy: str) -> None:
    """Each process has one row of every inner chunk, so all of them read, change and encode each inner chunk again."""
    array = create(tmp_path, shape=(8, 24), shards=(8, 24), chunks=(8, 6), fill_value=0)
    array[:] = 0

    def work(number: int) -> None:
        array = ours(tmp_path, **chosen(strategy))
        for turn in range(1, ROUNDS + 1):
            array[number] = turn
            assert (array[number] == turn).all()

    in_processes(PROCESSES, work)
    assert (zarrs_view(array)[:] == ROUNDS).all()


def grid(folder: Path, n: int, *, at_start: bool = False, **options: Any) -> Any:
    """Make an array that is one shard of n x n inner chunks of 4 x 4."""
    create(
        folder,
        shape=(4 * n, 4 * n),
        chunks=(4, 4),
        shards={"shape": (4 * n, 4 * n), "index_location": "start" if at_start else "end"},
        fill_value=0,
        compressors="auto",
    )
    return ours(folder, **options)


def check_grid(array: Any, n: int, turn: int) -> None:
    numbers = np.arange(n * n).reshape(n, n).repeat(4, axis=0).repeat(4, axis=1)
    for view in (array, zarrs_view(array)):
        lost = (view[:] != 100 * numbers + turn).reshape(n, 4, n, 4).any(axis=(1, 3))
        assert not lost.any(), f"{lost.sum()} inner chunks lost"


# ---- shards that are created and deleted


@strategies
def test_processes_that_create_the_same_shard_lose_no_update(tmp_path: Path, strategy: str) -> None:
    """Each round starts without a shard: one process creates it, and the others add their inner chunks."""
    array = create(tmp_path, shape=(4 * ROUNDS, 32), shards=(4, 32), chunks=(4, 4), fill_value=0)
    together = barrier(PROCESSES)

    def work(number: int) -> None:
        array = ours(tmp_path, **chosen(strategy))
        for turn in range(ROUNDS):
            together.wait(10)
            array[4 * turn : 4 * turn + 4, 4 * number : 4 * number + 4] = number + 1

    in_processes(PROCESSES, work)
    expected = np.arange(1, 9).repeat(4)
    lost = (zarrs_view(array)[:] != expected).reshape(ROUNDS, 4, 8, 4).any(axis=(1, 3))
    assert not lost.any(), f"{lost.sum()} of {lost.size} inner chunks lost"


@strategies
def test_whole_and_partial_creation_lose_no_later_update(tmp_path: Path, strategy: str) -> None:
    """One process writes the whole shard, the others a part each: a part written after the whole shard is kept."""
    array = create(tmp_path, shape=(4 * ROUNDS, 32), shards=(4, 32), chunks=(4, 4), fill_value=0)
    together = barrier(PROCESSES)

    def work(number: int) -> None:
        array = ours(tmp_path, **chosen(strategy))
        for turn in range(ROUNDS):
            rows = slice(4 * turn, 4 * turn + 4)
            together.wait(10)
            if number == 0:
                array[rows] = 1
                assert (array[rows] > 0).all()
            else:
                array[rows, 4 * number : 4 * number + 4] = number + 1

    in_processes(PROCESSES, work)
    values = zarrs_view(array)[:]
    assert (values[:, :4] == 1).all()
    assert ((values == 1) | (values == np.arange(1, 9).repeat(4))).all()


@strategies
def test_processes_that_delete_the_shard_lose_no_update(tmp_path: Path, strategy: str) -> None:
    """All processes erase their inner chunks and write them again, so the shard is often empty and deleted."""
    array = create(tmp_path, shape=(4, 32), shards=(4, 32), chunks=(4, 4), fill_value=0)

    def work(number: int) -> None:
        array = ours(tmp_path, **chosen(strategy))
        mine = np.s_[:, 4 * number : 4 * number + 4]
        for turn in range(1, 2 * ROUNDS):
            value = 0 if turn % 2 else 100 * number + turn
            array[mine] = value
            assert (array[mine] == value).all()
        array[mine] = number

    in_processes(PROCESSES, work)
    assert (zarrs_view(array)[:] == np.arange(8).repeat(4)).all()
    array[:] = 0
    assert files_below(tmp_path) == ["zarr.json"]


def test_writes_by_zarrs_pipeline_lose_no_update(tmp_path: Path) -> None:
    """Half of the processes write through zarr's own pipeline, under our locks."""
    array = create(tmp_path, shape=(4 * ROUNDS, 32), shards=(4, 32), chunks=(4, 4), fill_value=0)
    together = barrier(PROCESSES)

    def decline(*_: Any) -> Any:
        from shardcodec.zarr_plugin.request import Refusal

        raise Refusal("for a test")

    def work(number: int) -> None:
        array = ours(tmp_path, strict=False)
        # zarr's reader opens a shard twice, and may find another file the second time
        reader = ours(tmp_path)
        if number % 2:
            array._async_array.codec_pipeline._prepare = decline
        for turn in range(ROUNDS):
            mine = np.s_[4 * turn : 4 * turn + 4, 4 * number : 4 * number + 4]
            together.wait(10)
            for value in (7, number + 1):
                array[mine] = value
                assert (reader[mine] == value).all()

    in_processes(PROCESSES, work)
    lost = (zarrs_view(array)[:] != np.arange(1, 9).repeat(4)).reshape(ROUNDS, 4, 8, 4).any(axis=(1, 3))
    assert not lost.any(), f"{lost.sum()} of {lost.size} inner chunks lost"


def test_group_writes_of_8_processes_lose_no_update(tmp_path: Path) -> None:
    array = create(tmp_path, shape=(16, 32), shards=(16, 32), chunks=(8, 8), fill_value=0)

    def work(number: int) -> None:
        array = ours(tmp_path)
        for turn in range(1, ROUNDS + 1):
            with shardcodec.group_writes():
                for column in range(number, 32, PROCESSES):
                    array[:, column] = turn
            assert (array[:, number::PROCESSES] == turn).all()

    in_processes(PROCESSES, work)
    assert (zarrs_view(array)[:] == ROUNDS).all()


# ---- killed writers and readers


@strategies
def test_killed_writer_blocks_no_other_writer(tmp_path: Path, strategy: str) -> None:
    array = grid(tmp_path, 4)
    array[:] = 0

    def work(number: int) -> None:
        array = ours(tmp_path, **chosen(strategy))
        row, column = divmod(number, 4)
        chunk = np.s_[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
        turn = 0
        while number < 4 or turn < ROUNDS:  # the first four run until they are killed
            turn += 1
            array[chunk] = 10_000 * number + turn
            assert (array[chunk] == 10_000 * number + turn).all()

    workers = Workers(PROCESSES, work)
    for member in workers.members[:4]:
        member.join(0.05)
        assert member.pid is not None
        os.kill(member.pid, signal.SIGKILL)
    workers.join()
    values = zarrs_view(array)[:]
    for number in range(PROCESSES):
        row, column = divmod(number, 4)
        chunk = values[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
        assert (chunk == chunk[0, 0]).all()
        assert (
            chunk[0, 0] == 10_000 * number + ROUNDS
            if number >= 4
            else chunk[0, 0] // 10_000 == number or not chunk[0, 0]
        )


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "in_place"])
@pytest.mark.parametrize("checksums", [True, False])
def test_readers_see_the_old_or_the_new_shard(tmp_path: Path, strategy: str, checksums: bool) -> None:
    """Each inner chunk holds one number, numbers never decrease, and no read fails."""
    array = create(
        tmp_path,
        shape=(4, 32),
        shards=(4, 32),
        chunks=(4, 4),
        fill_value=0,
        compressors=[] if not checksums else "auto",
    )
    array[:] = 1
    stop = multiprocessing.get_context("fork").Event()

    def work(number: int) -> None:
        array = ours(tmp_path, **chosen(strategy))
        if number < 3:
            for turn in range(2, 60):
                array[:, 8 * number : 8 * number + 8] = turn
            return
        before = np.ones((4, 32))
        while not stop.is_set():
            values = array[:]
            assert (values.reshape(4, 8, 4) == values[0, ::4].reshape(1, 8, 1)).all()
            assert (values >= before).all()
            before = values

    workers = Workers(5, work)
    for member in workers.members[:3]:
        member.join(PATIENCE)
    stop.set()
    workers.join()
    assert (array[:, :24] == 59).all()
