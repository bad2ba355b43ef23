# xarray_times.py - time of `to_zarr` and of a full read with xarray: zarr alone and with shardcodec
# SPDX-License-Identifier: MIT
"""Print the times that the README and docs/how-to/xarray.md name, measured on this machine.

    python examples/xarray_times.py [STEPS [FOLDER]]

STEPS is the number of time steps of 180 x 360 float32, by default 480: 124 MB. A shard holds 48 steps, an inner chunk 45 x 90
elements of one step. zarr and shardcodec take turns; the times are medians of 5 rounds. What is read is compared with what
was written. FOLDER is a new folder on the file system to try, by default a temporary one.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import xarray as xr

import shardcodec

# What selects each pipeline for a block.
PIPELINES = {"zarr": contextlib.nullcontext, "shardcodec": shardcodec.enable}
ROUNDS = 5
N_LAT, N_LON = 180, 360
ENCODING = {"heat": {"chunks": (1, 45, 90), "shards": (48, N_LAT, N_LON)}}


def dataset(n_steps: int) -> xr.Dataset:
    """Return the data: numbers with one decimal."""
    values = np.random.default_rng(0).normal(size=(n_steps, N_LAT, N_LON)).astype("float32").round(1)
    return xr.Dataset({"heat": (("time", "lat", "lon"), values)})


def times(path: Path, data: xr.Dataset) -> tuple[float, float]:
    """Write the data and read them again; return both times in seconds."""
    begin = time.perf_counter()
    data.to_zarr(path, mode="w", zarr_format=3, encoding=ENCODING, consolidated=False)
    written = time.perf_counter()
    again = xr.open_zarr(path, consolidated=False, chunks=None).load()
    end = time.perf_counter()
    if not again.equals(data):
        sys.exit(f"WRONG: {path.name} differs from what was written")
    return written - begin, end - written


def main() -> None:
    """Measure and print the table."""
    data = dataset(int(sys.argv[1]) if len(sys.argv) > 1 else 480)
    taken: dict[str, list[tuple[float, float]]] = {pipeline: [] for pipeline in PIPELINES}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[2] if len(sys.argv) > 2 else temporary)
        for _ in range(ROUNDS):
            for pipeline, select in PIPELINES.items():
                with select():
                    taken[pipeline].append(times(folder / f"{pipeline}.zarr", data))
    print(f"| {data.nbytes / 1e6:.0f} MB, s | zarr | zarr with shardcodec |\n|---|---|---|")
    for row, name in enumerate(("write", "read")):
        cells = (statistics.median(pair[row] for pair in taken[pipeline]) for pipeline in PIPELINES)
        print(f"| {name} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
