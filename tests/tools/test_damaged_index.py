# test_damaged_index.py - what repair believes of a damaged index
# SPDX-License-Identifier: MIT
"""An index whose checksum is wrong, or that has impossible entries and no checksum, proves nothing by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import checked, quiet
from spec_json import LITTLE

import shardcodec
from shardcodec import ShardSpec
from shardcodec.tools import repair

CONTENT = np.arange(16 * 24, dtype=np.int32).reshape(16, 24)


def elements(path: Any) -> Any:
    with quiet():
        return zarr.open_array(path, mode="r")[...]


@pytest.mark.parametrize("has_copy", [False, True], ids=["no copy", "copy"])
@pytest.mark.parametrize("is_sparse", [False, True], ids=["full", "sparse"])
@pytest.mark.parametrize(("low", "high"), [(80, 128), (0, 132), (16, 32)])
def test_absent_entry_of_a_damaged_index_is_no_proof_of_absence(
    tmp_path: Path, low: int, high: int, is_sparse: bool, has_copy: bool
) -> None:
    """Bytes of 0xFF over entries of an index read as absent: `repair` reported "restored completely" for an empty shard."""
    content = CONTENT.copy()
    if is_sparse:
        content[4:8, :6] = -1
    for name in ("a.zarr", "copy.zarr"):
        checked(tmp_path / name)[...] = content
    path = tmp_path / "a.zarr/c/0/0"
    data = bytearray(path.read_bytes())
    n = 16 * 8 + 4
    data[len(data) - n + low : len(data) - n + high] = b"\xff" * (high - low)
    path.write_bytes(data)
    copy = tmp_path / "copy.zarr" if has_copy else None
    report = repair(tmp_path / "a.zarr", to=tmp_path / "b.zarr", copy=copy)
    after = elements(tmp_path / "b.zarr")
    lost = {at for one in report.shards for at in one.lost}
    wrong = {
        (i, j)
        for i in range(2)
        for j in range(4)
        if (
            after[4 * i : 4 * i + 4, 3 * j : 3 * j + 3] != content[4 * i : 4 * i + 4, 3 * j : 3 * j + 3]
        ).any()
    }
    assert wrong <= lost and report.n_lost_chunks == len(lost)
    if has_copy or high - low < 100:
        assert not lost and report.n_restored == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-16],
        lambda data: data[:-48],
        lambda data: data + bytes(16),
        lambda data: data + b"\xff" * 16,
        lambda data: data + b"\xff" * 32,
        lambda data: data + bytes(range(16)),
    ],
    ids=["16 cut", "48 cut", "16 zeros", "16 ones", "32 ones", "16 others"],
)
@pytest.mark.parametrize("n_rows", [8, 4], ids=["full", "sparse"])
def test_index_without_checksum_is_not_read_one_entry_off(tmp_path: Path, damage: Any, n_rows: int) -> None:
    """After a cut of 16 bytes each entry was read in the place of its neighbour, and 15 of 16 inner chunks went there."""
    spec = ShardSpec((8, 8), (2, 2), "uint16", 0, [LITTLE, "crc32c"], [LITTLE])
    content = np.arange(1, 65, dtype=np.uint16).reshape(8, 8)
    content[n_rows:] = 0
    path = tmp_path / "shard"
    path.write_bytes(damage(bytes(shardcodec.encode(content, spec))))
    report = repair(path, spec=spec, to=tmp_path / "new")
    assert report.n_damaged == 1
    (one,) = report.shards
    if not (tmp_path / "new").exists():
        assert one.n_lost >= 16 * n_rows // 8
        return
    with shardcodec.open_shard(tmp_path / "new", None, spec) as shard:
        found, present = shard.read_region(), shard.state()
    assert one.n_kept == present.sum()
    for at in np.ndindex(4, 4):
        box = tuple(slice(2 * i, 2 * i + 2) for i in at)
        assert at in one.lost or (found[box] == content[box]).all(), at
