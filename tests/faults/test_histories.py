# test_histories.py - all writers, readers and kills on one array, recorded and checked
# SPDX-License-Identifier: MIT
"""Processes write to one array in place, by appending and by replacing, pack it, read it, and die at random calls."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from faults.histories import ERASED, FIRST, Recorder, check, note_death
from helpers import ours, quiet
from workers import forked

import shardcodec
from shardcodec import native, tools

N_SHARDS, SHARD_CHUNKS, CHUNK = 2, 8, 8192
N_CHUNKS = N_SHARDS * SHARD_CHUNKS
STRATEGIES = ("in_place", "in_place", "append", "replace")
CODECS: dict[str, Any] = {"raw": None, "zstd": "auto"}


def make(path: Path, codecs: str) -> None:
    shardcodec.enable(threads=1)
    with quiet():
        array = zarr.create_array(
            path,
            # two axes, so that two orders of inner chunks differ
            shape=(N_SHARDS * 2, SHARD_CHUNKS // 2 * CHUNK),
            chunks=(1, CHUNK),
            shards=(2, SHARD_CHUNKS // 2 * CHUNK),
            dtype="int32",
            compressors=CODECS[codecs],
            fill_value=ERASED,
        )
        array[...] = FIRST


def place(chunk: int) -> tuple[int, slice]:
    """Return the elements of an inner chunk."""
    row, column = divmod(chunk, SHARD_CHUNKS // 2)
    return row, slice(column * CHUNK, (column + 1) * CHUNK)


def write(path: Path, recorder: Recorder, chance: random.Random) -> None:
    array = ours(path)
    strategy = chance.choice(STRATEGIES)
    durability = "fsync" if chance.random() < 0.02 else "rename"
    compact = chance.random() < 0.5
    with shardcodec.options(write_strategy=strategy, durability=durability, compact=compact):
        for _ in range(chance.randrange(1, 30)):
            first = chance.randrange(N_CHUNKS)
            width = chance.randrange(1, SHARD_CHUNKS // 2 - first % (SHARD_CHUNKS // 2) + 1)
            chunks = list(range(first, first + width))
            row, column = place(first)
            value = recorder.begin(chunks, erase=chance.random() < 0.05)
            array[row, column.start : column.start + width * CHUNK] = value
            recorder.end()


def pack(path: Path, recorder: Recorder, chance: random.Random) -> None:
    for order in ("lexicographic", "colexicographic", None):
        report = tools.compact(str(path), min_dead=0.0, order=order)
        recorder.packed(report.n_packed)
        time.sleep(chance.random() * 0.02)


def read(path: Path, recorder: Recorder, chance: random.Random) -> None:
    how: Callable[[], Any] = chance.choice([_by_zarr, _by_handle, _by_shards])(path)
    for _ in range(chance.randrange(1, 40)):
        begin = time.monotonic_ns()
        found = how()
        recorder.read(begin, np.asarray(found).reshape(N_CHUNKS, CHUNK))


def _by_zarr(path: Path) -> Callable[[], Any]:
    array = zarr.open_array(path, mode="r")
    return lambda: array[...]


def _by_handle(path: Path) -> Callable[[], Any]:
    array = shardcodec.open_array(path)
    return lambda: array[...]


def _by_shards(path: Path) -> Callable[[], Any]:
    spec = shardcodec.ShardSpec.from_metadata(zarr.open_array(path, mode="r").metadata.to_dict())

    def all_shards() -> Any:
        parts = []
        for i in range(N_SHARDS):
            with shardcodec.open_shard(path / f"c/{i}/0", None, spec) as shard:
                parts.append(shard.read_region())
        return np.concatenate(parts)

    return all_shards


def work(job: Callable[..., None], path: Path, records: Path, worker: int, seed: int) -> None:
    """Do one job again and again until a fault kills this process."""
    chance = random.Random(f"{seed} {worker}")
    recorder = Recorder(records, worker)
    if job is not read:
        action = chance.choice(["kill", "kill", "torn"])
        native.load().set_fault(chance.randrange(6000), action, chance.choice([0, 1, 100, 2048]))
    while True:
        job(path, recorder, chance)


def start(job: Callable[..., None], path: Path, records: Path, worker: int, seed: int) -> int:
    def run_job() -> None:
        try:
            shardcodec.enable(threads=1)
            work(job, path, records, worker, seed)
        except BaseException:
            (records / f"{worker}.error").write_text(traceback.format_exc())
            raise

    return forked(run_job)


def run(folder: Path, seconds: float, codecs: str, seed: int) -> str:
    """Run all processes for a time and check what they have recorded; return a summary."""
    path, records = folder / "a", folder / "records"
    records.mkdir()
    # in a process of its own: threads of this one would not survive the forks
    assert os.waitpid(forked(lambda: make(path, codecs)), 0)[1] == 0
    jobs = [write, write, write, write, pack, read, read, read]
    alive: dict[int, tuple[int, Callable[..., None]]] = {}
    end, worker, n_kills = time.monotonic() + seconds, 0, 0
    chance = random.Random(seed)
    try:
        while time.monotonic() < end and not list(records.glob("*.error")):
            for job in jobs[len(alive) :] if not alive else _missing(jobs, alive):
                worker += 1
                alive[start(job, path, records, worker, seed)] = worker, job
            time.sleep(0.01)
            if chance.random() < 0.01:  # also at moments between two calls
                os.kill(chance.choice(list(alive)), signal.SIGKILL)
            for pid in list(alive):
                if os.waitpid(pid, os.WNOHANG)[0]:
                    note_death(records, alive.pop(pid)[0])
                    n_kills += 1
    finally:
        for pid, (number, _) in alive.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            note_death(records, number)
    errors = [one.read_text() for one in records.glob("*.error")]
    result = check(records, N_CHUNKS)
    summary = f"{result}, {n_kills} kills"
    assert not errors and not result.wrong, "\n".join([summary, *errors[:3], *result.wrong[:10]])
    assert result.n_writes and result.n_read and result.n_packed, summary
    return summary


def _missing(jobs: list[Any], alive: dict[int, tuple[int, Any]]) -> list[Any]:
    left = list(jobs)
    for _, job in alive.values():
        left.remove(job)
    return left


@pytest.mark.parametrize("codecs", CODECS)
@pytest.mark.parametrize(
    "seconds",
    [pytest.param(4, marks=pytest.mark.slow), pytest.param(300, marks=pytest.mark.nightly)],
)
def test_no_read_is_torn_or_older_than_an_acknowledged_write(
    tmp_path: Path, seconds: int, codecs: str
) -> None:
    """Four writers of all strategies, one packer and three readers work on two shards; kills end them at any call."""
    native.load()
    run(tmp_path, seconds, codecs, seed=1)


if __name__ == "__main__":  # a longer run: folder, seconds, codecs, seed
    native.load()
    print(run(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
