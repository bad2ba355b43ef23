"""Rows that write an array with dask: one task for each shard, in threads, and in processes of `distributed`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask_processes
import data
import numpy as np
import peers
import sampler
import suite
from data import Array
from peers import Peer
from suite import Context, Row

GROUP = "end to end"
PEERS = ("shardcodec", "shardcodec attach", "zarr batched", "zarr fused", "zarrs", "tensorstore")


def _block(path: str, block_info: Any = None) -> Array:
    """Return one block of the field; the file is mapped, so that no task carries elements."""
    box = tuple(slice(start, stop) for start, stop in block_info[None]["array-location"])
    return np.array(np.load(path, mmap_mode="r")[box])


def _store(source: Any, target: Any, **how: Any) -> None:
    """Store a dask array with `to_zarr`. If the target is not a zarr array, call `dask.array.store`, as `to_zarr` does."""
    import dask.array as da
    import zarr

    if isinstance(target, zarr.Array):
        da.to_zarr(source, target, **how)
    else:
        da.store(source, target, lock=False, **how)


@dataclass(frozen=True)
class DaskWrite(Row):
    """Writes a whole array into an empty folder, with dask's threads."""

    most_rounds = 5

    def takes(self, peer: Peer) -> bool:
        return peer.name in PEERS

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        prepared = self.prepare(context, peer, 0)
        try:
            self.operate(peer, prepared)
            suite.assert_equal(peer, context.read_back(prepared[0], self.case), context.values(self.case))
            return {"stored_nbytes": data.stored_nbytes(prepared[0])}
        finally:
            self.finish(prepared)

    def prepare(self, context: Context, peer: Peer, number: int) -> tuple[Path, Any, Any]:
        import dask.array as da

        context.values(self.case)  # makes the file
        field = str(data.field_path(self.case, context.folder))
        blocks = tuple(
            (extent,) * (n // extent) for n, extent in zip(self.case.shape, self.case.shard, strict=True)
        )
        source = da.map_blocks(
            _block, field, chunks=blocks, dtype=self.case.dtype, meta=np.empty((0, 0, 0), self.case.dtype)
        )
        path = self.case.create(context.folder / f"stored-{peer.name.replace(' ', '-')}")
        return path, source, peer.open(path, self.case)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        import dask

        with dask.config.set(scheduler="threads", num_workers=peers.N_THREADS):
            _store(prepared[1], prepared[2])

    def finish(self, prepared: Any) -> None:
        shutil.rmtree(prepared[0])


@dataclass(frozen=True)
class DistributedWrite(DaskWrite):
    """Writes with worker processes, which get the handle pickled. They run until the row ends."""

    most_rounds = 3

    def prepare(self, context: Context, peer: Peer, number: int) -> Any:
        client = context.keep("cluster", lambda: dask_processes.start(peers.N_THREADS))
        client.run(dask_processes.configure, peer.settings())
        prepared = super().prepare(context, peer, number)
        client.run(_receive, prepared[2])
        return (*prepared, client)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        with prepared[3].as_current():
            import dask

            with dask.config.set(scheduler=prepared[3].get):
                _store(prepared[1], prepared[2])

    def profile(self, context: Context, peer: Peer) -> sampler.Samples:
        prepared = self.prepare(context, peer, 0)
        client = prepared[3]
        client.run(sampler.start)
        try:
            with sampler.Sampler() as here:
                self.operate(peer, prepared)
        finally:
            there = client.run(sampler.stop)
            self.finish(prepared)
        return sum(there.values(), here.samples)


def _receive(target: Any) -> None:
    """Take a handle, which imports its packages, so that no timed task has to."""


def rows(edge: int) -> list[Row]:
    """Return the rows: the cube of uint16, by shards, in threads and in processes."""
    case = data.big(edge).with_codec("zstd 1")
    return [
        DaskWrite(GROUP, "dask to_zarr, threads, zstd 1", case),
        DistributedWrite(GROUP, "dask to_zarr, processes, zstd 1", case),
    ]
