# lost_updates.py - three reported cases in which dask and zarr lose data, with and without shardcodec
# SPDX-License-Identifier: MIT
"""Count the elements that are lost in three cases that users have reported.

    python examples/lost_updates.py [FOLDER]

- dask/dask#12583: `dask.array.to_zarr` with `chunks` or `shards` that do not match the chunks of the dask array.
- zarr-developers/zarr-python#3682: `dask.array.store` with dask chunks that are smaller than the shards.
- pydata/xarray#10501: `to_zarr` appends along time, and dask chunks do not begin where stored chunks begin. xarray
  refuses this today; with `safe_chunks=False` it writes.

In each case several tasks change one chunk or one shard at the same time. zarr alone reads it, changes it and writes it
back, and so undoes what another task has stored meanwhile. With shardcodec the tasks take turns, and nothing is lost.

dask or xarray may refuse a case, or change the chunks before they write: the table then says so. FOLDER is a new folder;
default: a temporary one.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr
import zarr

import shardcodec

Array = npt.NDArray[Any]

PIPELINES = ("zarr", "shardcodec")
N_THREADS = 4
ROUNDS = 3  # a race is not lost every time


def dask_12583_shards(path: Path) -> tuple[Array, Array]:
    """Store tiles of 2 x 2 into shards of 4 x 4."""
    values = da.arange(1, 101).reshape((10, 10)).rechunk((2, 2))
    da.to_zarr(values, str(path), shards=(4, 4), overwrite=True)
    return values.compute(), zarr.open_array(path, mode="r")[...]


def dask_12583_chunks(path: Path) -> tuple[Array, Array]:
    """Store tiles of 2 x 2 into chunks of 4 x 4, without shards."""
    values = da.arange(1, 101).reshape((10, 10)).rechunk((2, 2))
    da.to_zarr(values, str(path), chunks=(4, 4), overwrite=True)
    return values.compute(), zarr.open_array(path, mode="r")[...]


def zarr_3682(path: Path) -> tuple[Array, Array]:
    """Store cubes of 25 into shards of 50."""
    values = np.arange(1, 100**3 + 1, dtype=np.float64).reshape(100, 100, 100)
    array = zarr.create_array(
        path, shape=values.shape, dtype=values.dtype, chunks=(25, 25, 25), shards=(50, 50, 50), overwrite=True
    )
    da.store(da.from_array(values, chunks=(25, 25, 25)), array, lock=False)
    return values, zarr.open_array(path, mode="r")[...]


def spectra(first: int, end: int) -> xr.Dataset:
    """Return measurements: one variable of time alone, and one of time and wavelength."""
    time = np.arange(first, end)
    return xr.Dataset(
        {
            "temperature": ("time", time + 1.0),
            "radiance": (("time", "wavelength"), time[:, None] + np.arange(1.0, 65.0)),
        },
        coords={"time": time, "wavelength": np.arange(64.0)},
    )


def xarray_10501(path: Path) -> tuple[Array, Array]:
    """Append 130 times behind 50, in dask chunks of 10, to chunks and shards of 40 times."""
    encoding: dict[str, Any] = {
        "temperature": {"chunks": (40,)},
        "radiance": {"chunks": (20, 32), "shards": (40, 64)},
    }
    spectra(0, 50).to_zarr(path, mode="w", zarr_format=3, consolidated=False, encoding=encoding)
    more = spectra(50, 180).chunk({"time": 10})
    more.to_zarr(path, mode="a-", append_dim="time", consolidated=False, safe_chunks=False)
    stored, expected = xr.open_zarr(path, consolidated=False), spectra(0, 180)
    names = list(expected.data_vars)
    return (
        np.concatenate([expected[name].values.ravel() for name in names]),
        np.concatenate([stored[name].values.ravel() for name in names]),
    )


CASES: dict[str, Callable[[Path], tuple[Array, Array]]] = {
    "dask/dask#12583, shards": dask_12583_shards,
    "dask/dask#12583, chunks": dask_12583_chunks,
    "zarr-python#3682": zarr_3682,
    "xarray#10501": xarray_10501,
}


def use(pipeline: str) -> None:
    """Choose the pipeline of the arrays that this process opens from now on."""
    shardcodec.disable()
    if pipeline == "shardcodec":
        shardcodec.enable()


def lost(case: Callable[[Path], tuple[Array, Array]], path: Path, pipeline: str) -> str:
    """Return the most elements that were lost in one of several rounds, as text; or why the case cannot be written."""
    use(pipeline)
    worst = n = 0
    for _ in range(ROUNDS):
        try:
            expected, stored = case(path)
        except (ValueError, NotImplementedError) as error:
            return f"refused: {str(error).splitlines()[0][:60]}"
        worst, n = max(worst, int(np.count_nonzero(stored != expected))), expected.size
    return f"{worst:,} of {n:,}"


def main() -> None:
    """Run each case with each pipeline and print a table."""
    dask.config.set(scheduler="threads", num_workers=N_THREADS)
    warnings.simplefilter("ignore")  # of dask, that the chunks do not match
    print(f"| case | lost with {PIPELINES[0]} | lost with {PIPELINES[1]} |\n|---|---|---|")
    wrong = False
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        for number, (name, case) in enumerate(CASES.items()):
            cells = [lost(case, folder / f"{number}-{pipeline}", pipeline) for pipeline in PIPELINES]
            print(f"| {name} | " + " | ".join(cells) + " |")
            wrong |= not cells[1].startswith(("0 of", "refused"))
    if wrong:
        sys.exit("WRONG: shardcodec has lost elements")


if __name__ == "__main__":
    main()
