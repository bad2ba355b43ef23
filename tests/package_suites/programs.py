# programs.py - short programs for packages that bring no tests with zarr arrays
# SPDX-License-Identifier: MIT
"""Write, change and read arrays through one package, and print the results as one line of JSON.

Each program is run with shardcodec and without it, and its results are compared: elements, metadata, and the chunks that
exist. ``is_native`` says whether shardcodec has served the arrays.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr

import shardcodec

SHAPE, SHARDS, CHUNKS = (90, 70), (32, 32), (8, 16)
VALUES = np.random.default_rng(0).integers(0, 50, SHAPE, dtype="int32")
SERVER = Path(__file__).resolve().parents[1] / "servers" / "s3_process.py"


def digest(values: Any) -> str:
    """Return dtype, shape and a hash of an array."""
    array = np.ascontiguousarray(values)
    return f"{array.dtype} {array.shape} {hashlib.sha256(array.tobytes()).hexdigest()}"


def on_store(store: Any, path: str = "a") -> dict[str, Any]:
    """Write an array with shards and one without, change parts, and read them."""
    found = {}
    for name, shards in (("sharded", SHARDS), ("plain", None)):
        array = zarr.create_array(
            store, name=f"{path}/{name}", shape=SHAPE, shards=shards, chunks=CHUNKS, dtype="int32"
        )
        array[...] = VALUES
        array[5:40, 3:60:7] = 99
        array.oindex[[1, 80], :] = 7
        array[32:64, :32] = 0  # a shard of fill values
        again = zarr.open_array(store, path=f"{path}/{name}", mode="r")
        found[name] = digest(again[...])
        found[f"{name}, points"] = digest(again.vindex[[3, 89, 3], [0, 69, 0]])
        found[f"{name}, chunks"] = again.nchunks_initialized
        found[f"{name}, metadata"] = json.dumps(again.metadata.to_dict(), default=str)
    return found


def icechunk(folder: Path) -> dict[str, Any]:
    """Commit two versions of a repository, and read both."""
    from icechunk import Repository, local_filesystem_storage

    repository = Repository.create(local_filesystem_storage(str(folder)))
    session = repository.writable_session("main")
    found = on_store(session.store)
    first = session.commit("first")
    session = repository.writable_session("main")
    zarr.open_array(session.store, path="a/sharded")[10:20] = 3
    session.commit("second")
    for name, store in (
        ("old", repository.readonly_session(snapshot_id=first).store),
        ("new", repository.readonly_session("main").store),
    ):
        found[name] = digest(zarr.open_array(store, path="a/sharded", mode="r")[...])
    return found


def obstore(folder: Path) -> dict[str, Any]:
    """Use zarr's `ObjectStore` in memory and in a local folder."""
    from obstore.store import LocalStore, MemoryStore
    from zarr.storage import ObjectStore

    folder.mkdir()
    stores = {"memory": ObjectStore(MemoryStore()), "local": ObjectStore(LocalStore(str(folder)))}
    return {f"{where}, {k}": v for where, store in stores.items() for k, v in on_store(store).items()}


@contextmanager
def s3_server() -> Iterator[str]:
    """Start moto's S3 on this machine; give its URL."""
    with subprocess.Popen(
        [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


def s3fs(folder: Path) -> dict[str, Any]:
    """Use zarr's `FsspecStore` on a bucket."""
    from s3fs import S3FileSystem

    with s3_server() as url:
        options = {"endpoint_url": url, "key": "a", "secret": "b"}
        S3FileSystem(**options).mkdir("bucket")
        return on_store(zarr.storage.FsspecStore.from_url("s3://bucket", storage_options=options))


def dask(folder: Path) -> dict[str, Any]:
    """Store a dask array whose chunks are shards, and compute from it."""
    import dask.array as da

    lazy = da.from_array(VALUES, chunks=SHARDS)
    array = zarr.create_array(folder, shape=SHAPE, shards=SHARDS, chunks=CHUNKS, dtype="int32")
    lazy.store(array, lock=False)
    again = da.from_zarr(str(folder))
    return {"elements": digest(again.compute()), "sum": digest(again.sum(axis=0).compute())}


def xarray(folder: Path) -> dict[str, Any]:
    """Write a data set, append to it, write a region, and compute from it."""
    import xarray as xr

    data = xr.Dataset({"t": (("time", "x"), VALUES.astype("f4"))}, coords={"time": np.arange(SHAPE[0])})
    encoding = {"t": {"shards": SHARDS, "chunks": CHUNKS}}
    data.isel(time=slice(0, 60)).to_zarr(folder, zarr_format=3, consolidated=False, encoding=encoding)
    data.isel(time=slice(60, None)).to_zarr(folder, append_dim="time", consolidated=False)
    region = (data.isel(time=slice(10, 20)) + 1).drop_vars("time")
    region.to_zarr(folder, region={"time": slice(10, 20)}, consolidated=False)
    again = xr.open_zarr(folder, consolidated=False, chunks=None)
    return {"elements": digest(again["t"].values), "mean": digest(again["t"].mean("time").values)}


PROGRAMS: dict[str, Callable[[Path], dict[str, Any]]] = {
    program.__name__: program for program in (dask, icechunk, obstore, s3fs, xarray)
}


def main() -> None:
    """Run one program."""
    with tempfile.TemporaryDirectory() as folder:
        found = PROGRAMS[sys.argv[1]](Path(folder) / "data")
    done = shardcodec.stats()
    is_native = done["chunks_encoded"] > 0 and done["chunks_decoded"] > 0 and not done["fallbacks"]
    print(json.dumps(found | {"is_native": is_native}))


if __name__ == "__main__":
    main()
