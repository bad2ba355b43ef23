# test_opens.py - how often files are opened, counted by the kernel
# SPDX-License-Identifier: MIT
"""A call opens each shard once, for any number of chunks and boxes: parallel file systems are slow at opening files."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from helpers import create
from system_calls import MARK, calls_of

pytestmark = pytest.mark.slow


def opens_of(tmp_path: Path, code: str) -> list[str]:
    """Return the names below a/c that the code opened between its two marks; the checkout may have a folder c in its path."""
    lines = calls_of(tmp_path, code, "openat,open")
    return [
        line.split('"')[1]
        for line in lines
        if re.search(f'"({tmp_path}/)?a/c/', line) and " = -1" not in line
    ]


@pytest.fixture
def array(tmp_path: Path) -> Path:
    """Make four shards of 64 inner chunks."""
    made = create(tmp_path / "a", shape=(64, 64), shards=(32, 32), chunks=(4, 4), dtype="u1", fill_value=0)
    made[...] = np.arange(64 * 64).reshape(64, 64) % 251
    return tmp_path / "a"


SHARDS = ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]


@pytest.mark.parametrize(
    "selection",
    [
        "array[...]",
        "array[3:61, 5:60:7]",
        "array.oindex[[60, 3, 3, 33], [1, 40, 63]]",
        "array.vindex[[60, 3, 3, 33, 4, 40], [1, 40, 63, 2, 5, 50]]",
        "array.vindex[np.arange(64 * 64).reshape(64, 64) % 97 == 0]",
        "lean.read_boxes([(i, j) for i in range(0, 60, 5) for j in range(0, 60, 5)], (4, 4))",
        "lean.read_chunks([(i, j) for i in range(16) for j in range(16)])",
    ],
)
def test_each_call_opens_each_shard_once(tmp_path: Path, array: Path, selection: str) -> None:
    code = (
        MARK
        + f"""
array = zarr.open_array("a", mode="r")
lean = shardcodec.open_array("a")
mark()
{selection}
mark()
"""
    )
    assert sorted(name.partition("/a/")[2] or name[2:] for name in opens_of(tmp_path, code)) == SHARDS


def test_cached_files_are_not_opened_again(tmp_path: Path, array: Path) -> None:
    code = (
        MARK
        + """
os.environ["SHARDCODEC_OPEN_FILES"] = "16"
shardcodec.enable()
array = zarr.open_array(os.path.abspath("a"), mode="r")
array[...]
mark()
assert (array[...] == np.arange(64 * 64).reshape(64, 64) % 251).all()
array[5:40, 3]
mark()
"""
    )
    assert opens_of(tmp_path, code) == []
