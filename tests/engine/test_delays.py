# test_delays.py - the preloaded library that delays calls, as on a network mount
# SPDX-License-Identifier: MIT
"""What the library does not delay looks free in the benchmark, although it is a round trip on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from delays import count_delayed

LOOKS = """
import os
from shardcodec import native
engine = native.load()
path = folder + "/file"
fd = os.open(path, os.O_RDWR)
at = os.open(folder, os.O_RDONLY)
os.stat(path), os.lstat(path), os.stat("file", dir_fd=at)  # three of a name
os.fstat(fd), os.fstat(at)  # two of an open file
engine.file_system_magic(fd)  # fstatfs
assert engine.FileLock().try_acquire(path) == "held"  # statx of the open file, then of its name
"""


@pytest.mark.parametrize("more", ["STATS", "WRITES"])
def test_each_look_at_a_file_and_its_file_system_waits(tmp_path: Path, delays: str, more: str) -> None:
    below = tmp_path / "slow"
    below.mkdir()
    (below / "file").write_bytes(b"some bytes")
    calls = count_delayed(LOOKS, delays, below, 100, more=more)
    assert calls["stats"] == (8, 1)
    assert (calls["locks"][0] > 0) == (more == "WRITES")
