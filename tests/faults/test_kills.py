# test_kills.py - writers that are killed at random times, again and again
# SPDX-License-Identifier: MIT
"""What test_faults.py does at each call by design, at moments that nobody chose: in the middle of a system call, between two
instructions, with several threads at work. A writer goes round the inner chunks and says what it begins and what is done.
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
from crew import forked
from helpers import files_below, ours, quiet, zarrs_view
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
    """Elements that compress to a length of their own for each value, so that inner chunks do not fit each other's place."""
    return np.where(np.arange(SIDE * SIDE).reshape(SIDE, SIDE) % (value % 7 + 2) == 0, value, -value).astype(
        "int32"
    )


def write_for_ever(folder: Path, strategy: str, first: int, report: int) -> None:
    array = ours(folder)
    with shardcodec.options(write_strategy=strategy, threads=2):
        for value in range(first, 2**31):
            os.write(report, struct.pack("=ci", b"b", value))
            array[box(value)] = texture(value)
            os.write(report, struct.pack("=ci", b"d", value))


def killed_writer(folder: Path, strategy: str, first: int, seconds: float) -> bytes:
    """Its reports. The time runs from the end of its first write, so that it is always killed at work."""
    read_end, write_end = os.pipe()
    pid = forked(lambda: write_for_ever(folder, strategy, first, write_end))
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
    os.environ.get("SHARDCODEC_TEST_SANITIZER") == "thread", reason="it ends children forked beside threads"
)
@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_killed_at_random_times(tmp_path: Path, strategy: str) -> None:
    """All that was reported is there, what was under way is there wholly or not at all, and the next writer goes on."""
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
    # In place, what has outgrown its slot is appended: that makes no name, and so takes away none, such as a journal that was
    # never published. The same bytes again have a slot.
    with shardcodec.options(write_strategy=strategy):
        array[box(0)] = array[box(0)]
    assert files_below(tmp_path) == ["a/c/0/0", "a/zarr.json"]
