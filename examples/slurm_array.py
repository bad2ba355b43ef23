# slurm_array.py - the tasks of a Slurm job array write one array
# SPDX-License-Identifier: MIT
"""Create an array, write one part of it, and compare it.

    python examples/slurm_array.py create PATH
    sbatch examples/slurm_array.sh PATH
    python examples/slurm_array.py check PATH

Each task of the job array writes its own rows. The rows of a task end inside a shard, so neighbouring tasks change one
shard. shardcodec's writers take turns on it, also on several nodes if the locks of the file system reach them.
"""

from __future__ import annotations

import os
import sys

import numpy as np
import numpy.typing as npt
import zarr

import shardcodec

SHAPE, SHARDS, CHUNKS = (400, 256), (128, 128), (32, 32)


def result(first: int, end: int) -> npt.NDArray[np.float32]:
    """Return the rows that a task has computed."""
    rows = np.arange(first, end, dtype=np.float32)
    return rows[:, None] + np.arange(1, SHAPE[1] + 1, dtype=np.float32) / 1024


def create(path: str) -> None:
    """Create the array, before the tasks begin."""
    zarr.create_array(path, shape=SHAPE, shards=SHARDS, chunks=CHUNKS, dtype="float32", overwrite=True)


def write(path: str) -> None:
    """Write the rows of this task."""
    try:
        task, n_tasks = (int(os.environ[f"SLURM_ARRAY_TASK_{name}"]) for name in ("ID", "COUNT"))
    except KeyError as error:
        sys.exit(f"{error.args[0]} is not set: start the tasks with sbatch, or set it by hand")
    first, end = task * SHAPE[0] // n_tasks, (task + 1) * SHAPE[0] // n_tasks
    array = zarr.open_array(path)
    array[first:end] = result(first, end)
    print(f"task {task} of {n_tasks}: rows {first} to {end - 1}")


def check(path: str) -> None:
    """Compare the array with what the tasks computed."""
    lost = int(np.count_nonzero(zarr.open_array(path, mode="r")[...] != result(0, SHAPE[0])))
    print(f"{lost:,} of {SHAPE[0] * SHAPE[1]:,} elements are lost")
    if lost:
        sys.exit("WRONG: run the missing tasks again")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in ("create", "write", "check"):
        sys.exit("usage: slurm_array.py create|write|check PATH")
    shardcodec.enable(threads=int(os.environ.get("SLURM_CPUS_PER_TASK", "1")))
    {"create": create, "write": write, "check": check}[sys.argv[1]](sys.argv[2])
