# job_files.py - a source for tests of jobs, and what a job has stored
# SPDX-License-Identifier: MIT
"""An array of twelve new shards, of which one is not stored, and comparisons of what is stored."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import zarr
from helpers import bits, quiet

from shardcodec.tools import verify
from shardcodec.tools.job_mark import MARK
from shardcodec.tools.jobs.job_files import ledger_folder

__all__ = ["N_SHARDS", "SHARDS", "VALUES", "check", "files", "shards_by_ledger", "source_array"]

VALUES = np.random.default_rng(3).integers(0, 50, (64, 48)).astype("int32")
VALUES[:16, :16] = 0  # a shard that is not stored
SHARDS = (16, 16)
N_SHARDS = 12


def source_array(path: Path) -> Path:
    with quiet():
        array = zarr.create_array(path, shape=VALUES.shape, chunks=(8, 8), dtype="int32")
        array[...] = VALUES
    return path


def check(new: Path) -> None:
    with quiet():
        assert bits(zarr.open_array(new, mode="r")[...]) == bits(VALUES)
    assert verify(new, level="decode").n_findings == 0


def files(new: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of each shard."""
    found = {}
    for file in new.rglob("*"):
        if file.is_file() and file.name not in ("zarr.json", MARK):
            facts = file.stat()
            found[file.relative_to(new).as_posix()] = facts.st_ino, facts.st_mtime_ns
    return found


def shards_by_ledger(job: Path) -> dict[str, list[tuple[int, ...]]]:
    """Return the shards in the ledgers of each process."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for file in Path(ledger_folder(str(job))).glob("*.jsonl"):
        whole, _, _ = file.read_bytes().rpartition(b"\n")  # a worker may just write another line
        lines = [json.loads(line.rpartition(b" ")[0]) for line in whole.splitlines()[1:]]
        shards = found.setdefault(file.name.split("-")[-2], [])
        shards += [tuple(line["coords"]) for line in lines if "coords" in line]
    return found
