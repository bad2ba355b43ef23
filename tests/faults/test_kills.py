# test_kills.py - writers that are killed at random times, again and again
# SPDX-License-Identifier: MIT
"""Kills at random moments: inside a system call, between two instructions, with several threads at work.

Complements the kills of test_faults.py at each system call. A writer updates one inner chunk after the other, and
reports the start and the end of each update.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import files_below, ours, quiet, zarrs_view
from workers import forked
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

import shardcodec

N, SIDE = 4, 8  # inner chunks along an axis of a shard, elements along an axis of an inner chunk
ROUNDS = 25


def new_array(folder: Path) -> Any:
    codec = ShardingCodec(chunk_shape=(SIDE, SIDE), codecs=[BytesCodec(), ZstdCodec(level=1), Crc32cCodec()])
    shard = (N * SIDE, N * SIDE)
    with quiet():
        zarr.create_array(
            folder, shape=shard, chunks=shard, dtype="int32", fill_value=0, serializer=codec, compressors=None
        )
    return ours(folder)


def box(k: int) -> Any:
    row, column = divmod(k % (N * N), N)
    return np.s_[row * SIDE : (row + 1) * SIDE, column * SIDE : (column + 1) * SIDE]


def texture(value: int) -> Any:
    """Return elements whose compressed length depends on the value, so that most new chunks do not fit their old
    slot.
    """
    return np.where(np.arange(SIDE * SIDE).reshape(SIDE, SIDE) % (value % 7 + 2) == 0, value, -value).astype(
        "int32"
    )


def write_until_killed(folder: Path, strategy: str, first: int, report: int) -> None:
    array = ours(folder)
    with shardcodec.options(write_strategy=strategy, threads=2):
        for value in range(first, 2**31):
            os.write(report, struct.pack("=ci", b"b", value))
            array[box(value)] = texture(value)
            os.write(report, struct.pack("=ci", b"d", value))


def killed_writer(folder: Path, strategy: str, first: int, seconds: float) -> bytes:
    """Kill a writer and return its reports. The time starts after its first update, so the kill always hits a
    running writer.
    """
    read_end, write_end = os.pipe()
    pid = forked(lambda: write_until_killed(folder, strategy, first, write_end))
    os.close(write_end)
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        told = b""
        while len(told) < 2 * struct.calcsize("=ci"):
            told += pipe.read(1)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status)
        return told + pipe.readall()


@pytest.mark.skipif(
    os.environ.get("SHARDCODEC_TEST_SANITIZER") == "thread",
    reason="ThreadSanitizer ends a child that was forked beside threads",
)
@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_kill_at_a_random_time_loses_no_finished_update(tmp_path: Path, strategy: str) -> None:
    """Finished updates are stored. The update in progress is stored completely or not at all. The next writer
    succeeds.
    """
    array = new_array(tmp_path / "a")
    chance = random.Random(strategy)
    expected = np.zeros(array.shape, "int32")
    value, n_done = 1, 0
    for _ in range(ROUNDS):
        told = killed_writer(tmp_path / "a", strategy, value, chance.uniform(0, 0.03))
        reports = list(struct.iter_unpack("=ci", told))
        for kind, number in reports:
            if kind == b"d":
                expected[box(number)] = texture(number)
                n_done += 1
        found = array[...]
        kind, last = reports[-1]
        value = last + 1
        if kind == b"b" and (found[box(last)] == texture(last)).all():
            expected[box(last)] = texture(last)
        assert (found == expected).all(), (kind, last)
        if strategy != "in_place":
            assert (zarrs_view(array)[...] == expected).all()
    assert n_done >= ROUNDS
    with shardcodec.options(write_strategy=strategy):
        array[0, 0] = 5
    assert array[0, 0] == 5
    # In place, a chunk that has outgrown its slot is appended. An append writes no journal, hence does not delete
    # one that was never published. Writing the same bytes again has a slot, writes a journal and so deletes such a
    # leftover.
    with shardcodec.options(write_strategy=strategy):
        array[box(0)] = array[box(0)]
    assert files_below(tmp_path) == ["a/c/0/0", "a/zarr.json"]
