# test_missing_depth.py - calls for shards that are missing wait at the same time, too (csrc/plan/sc_depth.h)
# SPDX-License-Identifier: MIT
"""Threads that join a deep run stay in the pool, so their number shows how deep it was, on a machine of any speed."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
from delays import run_delayed
from helpers import run_checked

pytestmark = pytest.mark.threads

BEGIN = """
import os, zarr, shardcodec
from shardcodec import native
from shardcodec.options import override
engine, device = native.load(), os.stat(folder).st_dev

def read(**options):
    array = shardcodec.attach(zarr.open_array(folder, mode="r"), threads=1, index_cache=0)
    with override(options):
        assert (array[...] == 0).all()

def scan(**options):
    with override({"threads": 1, **options}):
        assert not shardcodec.chunk_state(folder).exists.any()
"""

both = pytest.mark.parametrize("call", ["read", "scan"])


def run(folder: Path, code: str) -> None:
    run_checked(f"folder = {str(folder)!r}\n{BEGIN}{textwrap.dedent(code)}")


@both
def test_missing_shards_are_deep_with_a_given_latency(missing_shards: Path, call: str) -> None:
    """Before the fix, a missing file had no latency, so only a file that exists began a deep run."""
    run(
        missing_shards,
        f"{call}(io_latency=1.0, io_depth=9)\nassert engine.pool_size() == 8, engine.pool_size()",
    )


@both
def test_missing_shards_are_deep_where_calls_are_known_to_wait(missing_shards: Path, call: str) -> None:
    """The device of a missing file is that of a folder above it."""
    run(
        missing_shards,
        f"""
        engine.seed_latency(device, 2e-3)
        {call}(io_depth=9)
        assert engine.pool_size() == 8, engine.pool_size()
        """,
    )


@both
def test_missing_shards_are_flat_where_calls_are_cheap(missing_shards: Path, call: str) -> None:
    run(
        missing_shards,
        f"""
        {call}(io_latency=0.0, io_depth=9)
        {call}(io_latency=1.0, io_depth=1)
        assert engine.pool_size() == 0, engine.pool_size()
        """,
    )


def test_fast_opens_of_missing_shards_do_not_lower_the_estimate(missing_shards: Path) -> None:
    """The kernel may remember that a name does not exist, so they do not show that a call is cheap."""
    run(
        missing_shards,
        """
        engine.seed_latency(device, 3.0)
        read(io_depth=1)
        scan(io_depth=1)
        assert abs(engine.latencies()[device] - 3.0) < 0.03
        """,
    )


def test_scan_remembers_the_file_system_for_the_next_one(missing_shards: Path) -> None:
    """While the first of two shards is read, only one is left, and no thread joins for it. So a second thread shows that the scan
    was deep from its beginning."""
    run(
        missing_shards,
        """
        engine.seed_latency(device, 2e-3)
        array = zarr.open_array(folder, mode="r")
        for n_readers in (0, 1):
            with override({"threads": 1, "io_depth": 9}):
                shardcodec.chunk_state(array, region=slice(2))
            assert engine.pool_size() == n_readers, engine.pool_size()
        """,
    )


@pytest.mark.parametrize("source", ["None", "bytes(84)"])
def test_objects_in_memory_are_never_deep(source: str) -> None:
    run_checked(
        f"""
        import numpy as np, shardcodec
        from shardcodec import native
        from shardcodec.access.compiled_chains import compiled
        shard = shardcodec.ShardSpec((4, 4), (2, 2), "u1", 0, [{{"name": "bytes"}}])
        chain, engine = compiled(shard.chain), native.load()
        blob = bytes(shardcodec.encode(np.ones((4, 4), "u1"), shard))
        sources = [blob if {source} else None] * 40
        engine.scan(chain, sources, np.empty((40, 4), "u8"), io_latency=1.0, io_depth=9)
        boxes = [((0, 0), (4, 4), None, (4 * i, 0)) for i in range(40)]
        out = np.empty((160, 4), "u1")
        engine.read([(chain, s, box) for s, box in zip(sources, boxes)], out, (0, 1), io_latency=1.0, io_depth=9)
        assert (out == (1 if {source} else 0)).all()
        assert engine.pool_size() == 0, engine.pool_size()
        """
    )


DELAYED = """
engine.seed_latency(device, 2e-6)
{call}()
assert engine.pool_size() == 31, engine.pool_size()
assert 0.01 <= engine.latencies()[device] < 10, engine.latencies()
"""


@pytest.mark.slow
@both
def test_slow_opens_of_missing_shards_raise_the_estimate(
    missing_shards: Path, delays: str, call: str
) -> None:
    """Four slow opens of a thread in a row are enough. Before the fix, opens that find nothing were not timed."""
    run_delayed(BEGIN + DELAYED.format(call=call), delays, missing_shards, 10_000)
