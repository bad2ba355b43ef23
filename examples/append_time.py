# append_time.py - append to an array along time, step by step: bytes written by each way
# SPDX-License-Identifier: MIT
"""Append steps to an array, one after the other, and print what each way of writing costs.

    python examples/append_time.py [FOLDER]

A shard holds 64 steps, so most steps change a shard that exists.

- `replace` (the default) writes the shard again for each step.
- `append` writes the new inner chunks and the index behind the old ones, where the file system is safe for it.
- `group_writes` keeps 64 steps in memory and writes each shard once. A killed process loses what it has kept.

The arrays are compared for equality. FOLDER is a new folder; default: a temporary one.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr

import shardcodec

N_STEPS, SHARD_STEPS, EDGE = 128, 64, 96
SHARD, CHUNK = (SHARD_STEPS, EDGE, EDGE), (1, 48, 48)


def field(step: int) -> npt.NDArray[np.float32]:
    """Return one step: what a model or a camera has produced."""
    return np.random.default_rng(step).normal(size=(EDGE, EDGE)).astype("float32")


def append_step(array: zarr.Array, step: int) -> None:
    """Make the array one step longer and write it."""
    array.resize((step + 1, EDGE, EDGE))
    array[step] = field(step)


def append_all(array: zarr.Array, at_once: int) -> None:
    """Append all steps; keep some in memory if `at_once` is larger than 1."""
    for first in range(0, N_STEPS, at_once):
        with shardcodec.group_writes() if at_once > 1 else contextlib.nullcontext():
            for step in range(first, first + at_once):
                append_step(array, step)


def measure(path: Path, strategy: str, at_once: int) -> tuple[int, float]:
    """Append all steps in one way, and compare; return bytes written and milliseconds, for one step."""
    array = shardcodec.attach(
        zarr.create_array(path, shape=(0, EDGE, EDGE), shards=SHARD, chunks=CHUNK, dtype="float32"),
        write_strategy=strategy,
    )
    before, begin = shardcodec.stats()["bytes_written"], time.perf_counter()
    append_all(array, at_once)
    seconds = time.perf_counter() - begin
    written = shardcodec.stats()["bytes_written"] - before
    if not np.array_equal(zarr.open_array(path, mode="r")[...], np.stack([*steps()])):
        sys.exit(f"WRONG: {path.name} differs from what was appended")
    return written // N_STEPS, 1e3 * seconds / N_STEPS


def steps() -> Iterable[npt.NDArray[np.float32]]:
    """Yield all steps."""
    return (field(step) for step in range(N_STEPS))


WAYS = {
    "`replace`": ("replace", 1),
    "`append`": ("append", 1),
    f"`group_writes`, {SHARD_STEPS} steps": ("replace", SHARD_STEPS),
}


def main() -> None:
    """Print the table."""
    print(f"| a step of {4 * EDGE * EDGE:,} bytes | bytes written | ms |\n|---|---|---|")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        for number, (name, (strategy, at_once)) in enumerate(WAYS.items()):
            written, milliseconds = measure(folder / str(number), strategy, at_once)
            print(f"| {name} | {written:,} | {milliseconds:.2f} |")
    if refused := shardcodec.stats()["strategy_refused"]:
        print(f"\nnot used here: {', '.join(refused)}")


if __name__ == "__main__":
    main()
