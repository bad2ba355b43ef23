# test_pieces.py - a shard is written in several pieces at a time, and the writer is killed or a call fails
# SPDX-License-Identifier: MIT
"""A kill or an error at each call of a write whose pieces are written by many threads. The order of their calls is not fixed,
so after each fault only the state of the shard counts: old or new, and the next write succeeds."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from faults.scenes import run_in_child, was_killed
from helpers import files_below, ours, zarrs_view

import shardcodec
from shardcodec import native

pytestmark = pytest.mark.threads

SIDE = 2048  # elements along an axis of the shard: 4 pieces
SLOW: dict[str, Any] = {"io_latency": 1.0, "io_depth": 8, "threads": 2}


class Overwrite:
    """A shard of ones, all of which a write replaces by noise."""

    def __init__(self, folder: Path) -> None:
        codec = zarr.codecs.ShardingCodec(chunk_shape=(64, 1024), codecs=[zarr.codecs.BytesCodec()])
        zarr.create_array(
            folder,
            shape=(SIDE, SIDE),
            dtype="u1",
            chunks=(SIDE, SIDE),
            serializer=codec,
            compressors=None,
            fill_value=0,
        )
        self.folder = folder
        self.new = np.random.default_rng(0).integers(0, 256, (SIDE, SIDE)).astype("u1")
        self.restore()

    def restore(self) -> None:
        ours(self.folder)[...] = 1

    def write(self) -> None:
        with shardcodec.options(**SLOW):
            ours(self.folder)[...] = self.new

    def state(self) -> str:
        """Return which elements every reader sees."""
        found = ours(self.folder)[...]
        assert (zarrs_view(ours(self.folder))[...] == found).all()
        return "new" if (found == self.new).all() else "old" if (found == 1).all() else "mixed"

    def n_calls(self) -> int:
        native.load().set_fault(0, "count")
        self.write()
        made = native.load().end_fault()
        assert made.count("pwrite") == 5
        self.restore()
        return len(made)

    def check_next_write(self) -> None:
        self.write()
        assert self.state() == "new"
        assert files_below(self.folder) == ["c/0/0", "zarr.json"]
        assert [path.name for path in self.folder.parent.iterdir()] == [self.folder.name]


def outcome(work: Callable[[], None]) -> tuple[int | None, str] | None:
    """Return None, or the number of the error and the key of the shard that it names."""
    try:
        work()
    except OSError as error:
        return error.errno, str(error.filename)[-5:]
    return None


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_error_at_any_call_leaves_the_old_shard(tmp_path: Path, error: int) -> None:
    """The error names the shard. EXCHANGE and the removal of temporary names have fallbacks, so the write may succeed."""
    scene = Overwrite(tmp_path / "a")
    failed = []
    for n in range(scene.n_calls()):
        native.load().set_fault(n, "error", error)
        told = outcome(scene.write)
        call = native.load().end_fault()[n]
        if told is not None:
            assert told == (error, "c/0/0")
            failed.append(call)
        assert scene.state() == ("new" if told is None else "old"), call
        scene.check_next_write()
        scene.restore()
    assert failed.count("pwrite") == 5


def test_short_writes_of_pieces_are_continued(tmp_path: Path) -> None:
    """A short write is one more call: 6 for 4 pieces and an index, which is shorter than 4,097 bytes."""
    scene = Overwrite(tmp_path / "a")
    n_writes = set()
    for n in range(scene.n_calls()):
        native.load().set_fault(n, "short", 4097)
        scene.write()
        n_writes.add(native.load().end_fault().count("pwrite"))
        assert scene.state() == "new"
        scene.restore()
    assert n_writes == {5, 6}


@pytest.mark.slow
@pytest.mark.parametrize("action", ["kill", "torn"])
def test_kill_at_any_call_leaves_the_old_or_the_new_shard(tmp_path: Path, action: str) -> None:
    if os.environ.get("SHARDCODEC_TEST_SANITIZER") == "thread":
        pytest.skip("ThreadSanitizer ends a child that was forked beside threads")
    scene = Overwrite(tmp_path / "a")
    seen = []
    n_calls = scene.n_calls()
    for n in range(n_calls):

        def work(n: int = n) -> None:
            native.load().set_fault(n, action, 4097)
            scene.write()

        status, told = run_in_child(work)
        if action == "torn" and n == n_calls - 1:  # the kill comes with the next call, and there is none
            assert status == 0, told
        else:
            assert was_killed(status), told
        seen.append(scene.state())
        scene.check_next_write()
        scene.restore()
    assert set(seen) == {"old", "new"}
