# xarray_regions.py - worker processes of dask write regions of one data set, with dask chunks smaller than shards
# SPDX-License-Identifier: MIT
"""`to_zarr` with regions from the processes of a `distributed.LocalCluster`.

    python examples/xarray_regions.py [FOLDER]

The main process writes the metadata of the whole data set. Then each task computes some days and writes them to their region.
Regions and dask chunks end inside shards, so several processes change one shard at the same time. xarray refuses this
unless `safe_chunks=False`, because zarr alone would lose data. With shardcodec it is safe: its writers take turns.
The stored data are compared for equality, once with zarr alone and once with shardcodec; what zarr loses differs from run to
run. FOLDER is a new folder; default: a temporary one.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
from distributed import Client, LocalCluster

import shardcodec

N_DAYS, N_LAT, N_LON = 120, 36, 48
REGION = 25  # days of one task; a shard has 40
DASK_CHUNKS = (5, 18, 48)
ENCODING = {"heat": {"chunks": (10, 18, 24), "shards": (40, 36, 48)}}


def heat(first: int, end: int) -> npt.NDArray[np.float32]:
    """Return some days: the result of a computation."""
    days = np.arange(first, end, dtype=np.float32)
    place = np.arange(1, N_LAT * N_LON + 1, dtype=np.float32).reshape(N_LAT, N_LON)
    return days[:, None, None] + place / 4096


def dataset(values: da.Array | npt.NDArray[np.float32]) -> xr.Dataset:
    """Return the variable without coordinates: those are written once, not by each task."""
    return xr.Dataset({"heat": (("day", "lat", "lon"), values)})


def write_region(path: str, first: int) -> None:
    """Compute and write the days of one task; this runs in a worker."""
    end = min(first + REGION, N_DAYS)
    lazy = da.from_array(heat(first, end), chunks=DASK_CHUNKS)
    # Safe because all writers use shardcodec, and no element is written twice.
    dataset(lazy).to_zarr(path, region={"day": slice(first, end)}, consolidated=False, safe_chunks=False)


def n_lost(client: Client, path: str) -> int:
    """Write the data set; return the number of elements that are not stored."""
    template = dataset(da.zeros((N_DAYS, N_LAT, N_LON), dtype="float32", chunks=-1))
    template.to_zarr(path, mode="w", zarr_format=3, consolidated=False, encoding=ENCODING, compute=False)
    client.gather([client.submit(write_region, path, first) for first in range(0, N_DAYS, REGION)])
    stored = xr.open_zarr(path, consolidated=False)["heat"].values
    return int(np.count_nonzero(stored != heat(0, N_DAYS)))


def main() -> None:
    """Write the data set with two workers and each pipeline, compare it, and print a table."""
    with (
        tempfile.TemporaryDirectory() as temporary,
        LocalCluster(n_workers=2, threads_per_worker=2, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        lost = {"zarr": n_lost(client, str(folder / "heat-zarr.zarr"))}
        shardcodec.enable()
        client.run(shardcodec.enable)
        lost["shardcodec"] = n_lost(client, str(folder / "heat-shardcodec.zarr"))
    print(
        f"2 processes write {-(-N_DAYS // REGION)} regions of 3 shards:\n\n| pipeline | elements lost |\n|---|---|"
    )
    for pipeline, n in lost.items():
        print(f"| {pipeline} | {n:,} of {N_DAYS * N_LAT * N_LON:,} |")
    if lost["shardcodec"]:
        sys.exit("WRONG: shardcodec has lost elements")


if __name__ == "__main__":
    main()
