# test_closer.py - replaced files are closed in the background
# SPDX-License-Identifier: MIT
"""A large replaced shard is closed by a thread; callers notice only a shorter time."""

from __future__ import annotations

import inspect
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import zarr
from helpers import run_checked

import shardcodec

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="descriptors are read from /proc"
)

NBYTES = 4 << 20


def files_without_a_name(pid: int | str = "self") -> list[str]:
    found = []
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except FileNotFoundError:
            continue  # the descriptor of the folder itself
        if target.endswith(" (deleted)"):
            found.append(target)
    return found


def large_shard(folder: Path) -> zarr.Array:
    array = zarr.create_array(
        folder, shape=(NBYTES,), shards=(NBYTES,), chunks=(NBYTES // 8,), dtype="uint8", compressors=None
    )
    array[:] = 1
    return array


def test_replaced_files_are_closed_eventually(tmp_path: Path) -> None:
    array = shardcodec.attach(large_shard(tmp_path / "a"))
    for i in range(20):
        array[i] = i
        # earlier replaced files are closed before a new file is made: at most the last one is open
        assert sum(str(tmp_path) in name for name in files_without_a_name()) <= 1
    deadline = time.monotonic() + 60
    while any(str(tmp_path) in name for name in files_without_a_name()):
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert np.array_equal(array[:20], np.arange(20))


FORK = """
array = shardcodec.attach(large_shard(FOLDER))
for i in range(8):
    array[i] = i
    child = os.fork()
    if not child:
        os._exit(any(str(FOLDER.parent) in name for name in files_without_a_name()))
    assert os.waitpid(child, 0)[1] == 0, "a child holds a deleted file"
"""


@pytest.mark.skipif(
    bool(os.environ.get("SHARDCODEC_TEST_SANITIZER")),
    reason="sanitizers hold their own locks during a fork",
)
def test_forked_child_holds_no_replaced_file(tmp_path: Path) -> None:
    program = [
        "from __future__ import annotations",
        "import os, pathlib, zarr, shardcodec",
        f"NBYTES, FOLDER = {16 * NBYTES}, pathlib.Path({str(tmp_path / 'a')!r})",
        inspect.getsource(files_without_a_name),
        inspect.getsource(large_shard),
        FORK,
    ]
    run_checked("\n".join(program))
