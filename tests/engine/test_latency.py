# test_latency.py - the estimated cost of a call on each file system (csrc/io/sc_latency.h)
# SPDX-License-Identifier: MIT
"""Estimates are set by the tests, in another interpreter, so results do not depend on the machine."""

from __future__ import annotations

import textwrap
from pathlib import Path

import numpy as np
import pytest
from helpers import create, run_checked

pytestmark = pytest.mark.threads


def run(code: str) -> None:
    begin = "import os, shardcodec, zarr\nfrom shardcodec import native\nfrom shardcodec.storage import file_systems\n"
    run_checked(begin + textwrap.dedent(code))


def test_estimate_is_not_below_what_was_set() -> None:
    """Before the fix, it was rounded down, so a new FUSE mount, 100 us, was below the limit of 100 us from which writes are deep."""
    run(
        """
        values = [2e-6, 20e-6, 100e-6, 500e-6, 1e-9, 255e-9, 256e-9, 513e-9, 65535e-9, 65537e-9, 4e-3, 0.03, 7.0]
        for device, seconds in enumerate(values):
            native.load().seed_latency(device, seconds)
        for device, seconds in native.load().latencies().items():
            assert max(values[device], 2e-9) <= seconds < max(1.004 * values[device], 3e-9), (values[device], seconds)
        """
    )


def test_first_write_to_a_fuse_mount_is_deep(missing_shards: Path) -> None:
    run(
        f"""
        folder = {str(missing_shards)!r}
        native.load().seed_latency(os.stat(folder).st_dev, file_systems.FUSE_SECONDS)
        shardcodec.attach(zarr.open_array(folder), threads=2)[...] = 1
        assert native.load().pool_size() > 2, native.load().pool_size()
        """
    )


@pytest.mark.parametrize("opened", ["shardcodec.open_array(folder)", "shardcodec.chunk_state(folder)"])
def test_opening_an_array_looks_at_its_file_system(tmp_path: Path, opened: str) -> None:
    """Before the fix, only arrays of zarr's pipeline did, so the first call on another array knew nothing of its file system."""
    create(tmp_path / "a", shape=(4, 8), dtype="u1", shards=(4, 8), chunks=(1, 4), fill_value=0)[...] = (
        np.uint8(1)
    )
    run(
        f"""
        folder = {str(tmp_path / "a")!r}
        file_systems.LOCAL_SECONDS = file_systems.FUSE_SECONDS = file_systems.REMOTE_SECONDS = 3.0
        {opened}
        (seconds,) = native.load().latencies().values()
        assert seconds > 0.5, seconds
        """
    )
