# test_concurrent.py - xarray and dask as writers, zarr and TensorStore as readers, at the same time
# SPDX-License-Identifier: MIT
"""Concurrent use of shards by shardcodec and by other programs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardcodec

pytestmark = pytest.mark.threads


def new_array(folder: Path, **arguments: Any) -> Any:
    defaults = {"shape": (40, 48), "shards": (16, 24), "chunks": (4, 6), "dtype": "int32", "fill_value": 0}
    return zarr.create_array(folder, **{**defaults, **arguments})


strategies = pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])


@strategies
@pytest.mark.parametrize("chunks", [(5, 7), (13, 48), (40, 1)])
def test_dask_chunks_across_shards_are_stored(tmp_path: Path, chunks: tuple[int, int], strategy: str) -> None:
    dask_array = pytest.importorskip("dask.array")
    values = np.arange(40 * 48, dtype="int32").reshape(40, 48)
    with shardcodec.enable(strict=True, write_strategy=strategy):
        target = new_array(tmp_path)
        dask_array.store(
            dask_array.from_array(values, chunks=chunks), target, lock=False, scheduler="threads"
        )
    assert (zarr.open_array(tmp_path, mode="r")[:] == values).all()


@pytest.mark.parametrize(
    "strategy",
    ["append", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("replace", "in_place"))],
)
def test_dask_processes_lose_no_update(tmp_path: Path, strategy: str) -> None:
    """Workers get the array with its pipeline and its options. Locks between processes keep every update."""
    dask_array = pytest.importorskip("dask.array")
    values = np.arange(40 * 48, dtype="int32").reshape(40, 48)
    target = shardcodec.attach(new_array(tmp_path), strict=True, write_strategy=strategy)
    parts = dask_array.from_array(values, chunks=(9, 7))
    dask_array.store(parts, target, lock=False, scheduler="processes", num_workers=2)
    assert (zarr.open_array(tmp_path, mode="r")[:] == values).all()


@strategies
@pytest.mark.parametrize("grouped", [False, True])
def test_xarray_regions_that_share_shards_are_stored(tmp_path: Path, grouped: bool, strategy: str) -> None:
    xarray = pytest.importorskip("xarray")
    values = np.arange(40 * 48, dtype="float64").reshape(40, 48)
    dataset = xarray.Dataset({"field": (("y", "x"), values)})
    encoding = {"field": {"chunks": (4, 6), "shards": (16, 24)}}
    with shardcodec.enable(write_strategy=strategy):
        xarray.zeros_like(dataset).to_zarr(
            tmp_path / "a.zarr", encoding=encoding, zarr_format=3, consolidated=False
        )

        def write(row: int) -> None:
            part = dataset.isel(y=slice(row, row + 5))
            part.to_zarr(tmp_path / "a.zarr", region={"y": slice(row, row + 5)}, consolidated=False)

        def write_all() -> None:
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(write, range(0, 40, 5)))

        if grouped:
            with shardcodec.group_writes():
                write_all()
        else:
            write_all()
    with xarray.open_zarr(tmp_path / "a.zarr", consolidated=False) as found:
        assert (found["field"].values == values).all()


@pytest.mark.parametrize("reader", ["zarr", "tensorstore"])
def test_other_readers_see_old_or_new_chunks(tmp_path: Path, reader: str) -> None:
    """Updates keep offsets or replace whole files: a reader that opens a shard twice still sees old or new inner
    chunks.
    """
    array = shardcodec.attach(new_array(tmp_path, shape=(16, 24), compressors=None), strict=True)
    array[:] = 1
    if reader == "zarr":
        other: Any = zarr.open_array(tmp_path, mode="r")

        def read() -> Any:
            return other[:]
    else:
        tensorstore = pytest.importorskip("tensorstore")
        kvstore = {"driver": "file", "path": f"{tmp_path}/"}
        context = {"cache_pool": {"total_bytes_limit": 0}}
        other = tensorstore.open({"driver": "zarr3", "kvstore": kvstore, "context": context}).result()

        def read() -> Any:
            return np.asarray(other.read().result())

    stop = threading.Event()
    wrong: list[Any] = []
    n_reads = n_errors = 0

    def look() -> None:
        nonlocal n_reads, n_errors
        while not stop.is_set():
            try:
                values = read()
            except Exception:  # an error is allowed, a wrong value is not
                n_errors += 1
                continue
            n_reads += 1
            chunks = values.reshape(4, 4, 4, 6).transpose(0, 2, 1, 3).reshape(16, 24)
            if (chunks != chunks[:, :1]).any() or not np.isin(chunks[:, 0] % 16, [1, *range(16)]).all():
                wrong.append(values)

    thread = threading.Thread(target=look)
    thread.start()
    for turn in range(20):
        for number in range(16):
            row, column = divmod(number, 4)
            array[4 * row : 4 * row + 4, 6 * column : 6 * column + 6] = 16 * turn + number
    stop.set()
    thread.join(60)
    assert not wrong
    assert n_reads > 0
    assert n_errors == 0
