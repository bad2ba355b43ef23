# test_stream_cuts.py - durability="fsync" of a stream when the file system is shut down
# SPDX-License-Identifier: MIT
"""After a power cut all frames that the stream had counted as stored are there, and the next stream goes on."""

from __future__ import annotations

import math
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest
from faults.loop_devices import formatted, mounted
from faults.real_cuts import shut_down
from live_frames import NUMBER, append_until_killed, frames_of, image_array
from workers import forked

import shardcodec
from shardcodec import tools

pytestmark = pytest.mark.slow


def stored_before_cut(folder: Path, path: Path, seconds: float, **arguments: Any) -> int:
    """Shut the file system down under a process that streams, some seconds after it has stored a frame; return how many it had counted as stored.

    On a busy machine the first frame took longer than the seconds, so five cuts in turn tested nothing.
    """
    read_end, write_end = os.pipe()

    def work() -> None:
        os.close(read_end)
        append_until_killed(path, write_end, **arguments)

    pid = forked(work)
    os.close(write_end)
    told, end = b"", math.inf
    while time.monotonic() < end:
        piece = os.read(read_end, 1 << 20)
        assert piece, "the process that streams has ended"
        told += piece
        if end == math.inf and last_number(told) > last_number(told[: NUMBER.size]):
            end = time.monotonic() + seconds
    shut_down(folder)
    os.close(read_end)
    os.waitpid(pid, 0)
    return last_number(told)


def last_number(told: bytes) -> int:
    """Return the last whole number that was told; 0 before the first."""
    whole = told[: len(told) // NUMBER.size * NUMBER.size]
    return int(NUMBER.unpack(whole[-NUMBER.size :])[0]) if whole else 0


@pytest.mark.parametrize("system", ["ext4", pytest.param("xfs", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("grow_every", [None, 1])
def test_power_cut_loses_no_stored_frame(tmp_path: Path, system: str, grow_every: int | None) -> None:
    image, folder = formatted(tmp_path, system)
    path = folder / "a"
    arguments: dict[str, Any] = {"grow_every": grow_every, "durability": "fsync"}
    with mounted(image, folder):
        image_array(path, 0 if grow_every else 50_000, in_shard=64, in_chunk=4)
        os.sync()
    chance, n = random.Random(1), 0
    for _ in range(5):
        with mounted(image, folder):
            sure = stored_before_cut(
                folder, path, chance.uniform(0.1, 0.4), max_delay=0.002, queue=60 * 192, **arguments
            )
        assert sure >= n
        with mounted(image, folder):
            stream: Any = shardcodec.stream(path, resume=True, **arguments)
            n = stream.position
            stream.close()
            assert n >= sure
            assert (shardcodec.open_array(path)[:n] == frames_of(n)).all()
            assert tools.verify(path, level="decode").n_findings == 0
    assert n > 50
