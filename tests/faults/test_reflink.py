# test_reflink.py - file systems with shared blocks: an update clones the inner chunks that it does not touch
# SPDX-License-Identifier: MIT
"""Each kind of file system with reflinks, in a file: carried inner chunks take no additional space."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from faults.loop_devices import formatted, mounted
from helpers import create, random_array, shard_path, zarrs_view

import shardcodec
from shardcodec import native

NBYTES = 32 << 20


def used(folder: Path) -> int:
    os.sync()
    state = os.statvfs(folder)
    return (state.f_blocks - state.f_bfree) * state.f_frsize


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["rename", "fsync"])
@pytest.mark.parametrize("system", ["xfs", "btrfs"])
def test_carried_chunks_are_cloned(tmp_path: Path, system: str, durability: str) -> None:
    image, folder = formatted(tmp_path, system)
    with mounted(image, folder):
        side = NBYTES >> 12
        array = create(
            folder / "a", shape=(4096, side), shards=(4096, side), chunks=(64, side), dtype="u1", fill_value=0
        )
        values = random_array(array.shape, "u1")
        array[...] = values
        before = used(folder)
        old = shard_path(array).open("rb")  # keep its blocks allocated
        native.load().set_fault(0, "count")
        with shardcodec.options(durability=durability):
            array[64:128] = values[64:128] = 7
        calls = native.load().end_fault()
        assert "ioctl" in calls
        assert used(folder) - before < NBYTES / 4
        old.close()
        assert np.array_equal(array[...], values)
        assert np.array_equal(zarrs_view(array)[...], values)
        del array
