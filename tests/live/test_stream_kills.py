# test_stream_kills.py - processes that stream are killed at random moments
# SPDX-License-Identifier: MIT
"""A kill loses no frame whose update has ended, nothing is torn, and the next process goes on."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import zarr
from helpers import tensorstores_view
from live_frames import NUMBER, append_until_killed, frames_of, image_array
from workers import forked

import shardcodec
from shardcodec import tools

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.environ.get("SHARDCODEC_TEST_SANITIZER") == "thread",
        reason="ThreadSanitizer ends a child that was forked beside threads",
    ),
]

KILLS = 20


def killed_stream(path: Path, seconds: float, **arguments: Any) -> int:
    """Kill a process that streams, some time after its first frame is stored; return how many frames it has seen stored."""
    read_end, write_end = os.pipe()
    pid = forked(lambda: append_until_killed(path, write_end, **arguments))
    os.close(write_end)
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        told = first = pipe.read(NUMBER.size)
        assert first, "the process has failed"
        while NUMBER.unpack(told)[0] == NUMBER.unpack(first)[0]:
            told = pipe.read(NUMBER.size)
            assert told, "the process has failed"
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        assert os.WIFSIGNALED(status)
        rest = told + pipe.readall()
    n: int = NUMBER.unpack(rest[: len(rest) // NUMBER.size * NUMBER.size][-NUMBER.size :])[0]
    return n


@pytest.mark.parametrize(("in_chunk", "grow_every", "durability"), [
    (1, None, None), (8, 5, None),
    pytest.param(8, None, None, marks=pytest.mark.nightly),
    pytest.param(1, 1, None, marks=pytest.mark.nightly),
    pytest.param(8, 1, "fsync", marks=pytest.mark.nightly),
])  # fmt: skip
def test_kill_at_a_random_time_loses_no_stored_frame(
    tmp_path: Path, in_chunk: int, grow_every: int | None, durability: str | None
) -> None:
    path = tmp_path / "a"
    n_room = 0 if grow_every else 100_000
    image_array(path, n_room, in_shard=64, in_chunk=in_chunk)
    chance = random.Random(in_chunk)
    n = 0
    arguments = {"grow_every": grow_every, "max_delay": 0.001, "durability": durability, "queue": 40 * 192}
    for kill in range(KILLS):
        before, n = n, killed_stream(path, chance.uniform(0, 0.03), **arguments)
        assert n > before
        stream: Any = shardcodec.stream(path, resume=True, grow_every=grow_every)
        assert stream.position >= n  # an update may have ended unseen
        n = stream.position
        stream.close()
        arrays: list[Any] = [shardcodec.open_array(path)]
        if kill % 5 == 4:  # zarr takes a hundred times as long
            arrays.append(zarr.open_array(path))
        for array in arrays:
            assert not grow_every or array.shape[0] == n
            assert (array[:n] == frames_of(n)).all()
        assert tools.verify(path, level="decode").n_findings == 0
    if (theirs := tensorstores_view(path)) is not None:
        assert (theirs[:n] == frames_of(n)).all()
    assert sum(1 for _ in shardcodec.tail(path)) == n
