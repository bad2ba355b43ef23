"""Rows that convert an array with the workers of dask: one or two processes of one thread each, and dask's own rechunk."""

from __future__ import annotations

import importlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import data
import numpy as np
import suite
from data import Case
from peers import Peer
from suite import Context, Row

GROUP = "end to end"
# Workers of each peer.
N_WORKERS = {"shardcodec 1 worker": 1, "shardcodec 2 workers": 2, "dask rechunk 2 workers": 2}
# So high that encoding takes most of the time.
LEVEL = 15


@dataclass(frozen=True)
class PlainCase(Case):
    """The same field in format 3 without shards; `shard` is the chunk."""

    def metadata(self) -> dict[str, Any]:
        """Return the zarr.json."""
        return super().metadata() | {"codecs": data.codec_chain(self.codec, np.dtype(self.dtype).itemsize)}

    def slug(self) -> str:
        return f"without-shards-{super().slug()}"


@dataclass(frozen=True)
class SlowCase(Case):
    """An array with zstd of a high level."""

    def metadata(self) -> dict[str, Any]:
        """Return the zarr.json."""
        document = super().metadata()
        document["codecs"][0]["configuration"]["codecs"] = _codecs()
        return document


def _codecs() -> list[dict[str, Any]]:
    return [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": LEVEL, "checksum": False}},
    ]


@dataclass(frozen=True)
class ConvertInWorkers(Row):
    """Converts an array in an empty folder; the processes run before, until the row ends."""

    target: Case | None = None

    most_rounds: ClassVar[int] = 3

    def takes(self, peer: Peer) -> bool:
        return peer.name in N_WORKERS

    @property
    def made(self) -> Case:
        assert self.target is not None
        return self.target

    def check(self, context: Context, peer: Peer) -> dict[str, Any]:
        prepared = self.prepare(context, peer, 0)
        try:
            self.operate(peer, prepared)
            suite.assert_equal(peer, context.read_back(prepared[1], self.made), context.values(self.case))
            return {"stored_nbytes": data.stored_nbytes(prepared[1])}
        finally:
            self.finish(prepared)

    def prepare(self, context: Context, peer: Peer, number: int) -> tuple[Path, Path, Any]:
        n = N_WORKERS[peer.name]
        client = context.keep(f"{n} workers", lambda: _start_cluster(n))
        client.run(_configure, peer.settings())
        path = context.folder / f"converted-{peer.name.replace(' ', '-')}"
        if not peer.name.startswith("shardcodec"):  # which makes the array itself
            self.made.create(path)
        return context.source(self.case), path, client

    def operate(self, peer: Peer, prepared: Any) -> Any:
        source, path, client = prepared
        if peer.name.startswith("shardcodec"):
            return self._convert(source, path, client)
        return self._rechunk(source, path, client)

    def _convert(self, source: Path, path: Path, client: Any) -> Any:
        from shardcodec import tools

        report = tools.convert(
            source, path, chunks=self.made.inner, shards=self.made.shard, codecs=_codecs(), dask=client
        )
        assert report.is_complete, report
        return report

    def _rechunk(self, source: Path, path: Path, client: Any) -> None:
        import dask
        import dask.array as da
        import zarr

        with client.as_current(), dask.config.set(scheduler=client.get):
            old = da.from_zarr(zarr.open_array(source, mode="r"))
            da.to_zarr(old.rechunk(self.made.shard), zarr.open_array(path, mode="r+"))

    def finish(self, prepared: Any) -> None:
        path = prepared[1]
        for one in (path, path.with_name(f"{path.name}.job.json.ledger")):
            shutil.rmtree(one, ignore_errors=True)
        path.with_name(f"{path.name}.job.json").unlink(missing_ok=True)


def _start_cluster(n: int) -> Any:
    from distributed import Client, LocalCluster

    cluster = LocalCluster(
        n_workers=n, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", silence_logs=50
    )
    client = Client(cluster, set_as_default=False)
    close = client.close

    def close_both() -> None:
        close()
        cluster.close()

    client.close = close_both
    return client


def _configure(settings: dict[str, Any]) -> None:
    """Set the pipeline, and import what tasks need, so that no timed task has to."""
    import zarr

    zarr.config.set(settings)
    for name in ("dask.array", "shardcodec.tools.jobs.plan_worker"):
        importlib.import_module(name)


def rows(edge: int) -> list[Row]:
    """Return the row: the cube of uint16 without shards, to 64 shards of slow zstd."""
    shape, chunk, shard = (edge,) * 3, (edge // 8,) * 3, (edge // 4,) * 3
    source = PlainCase(shape, chunk, chunk, "uint16", "raw")
    target = SlowCase(shape, shard, (edge // 16,) * 3, "uint16", "zstd 1")
    return [ConvertInWorkers(GROUP, f"convert with dask workers, zstd {LEVEL}", source, target=target)]
