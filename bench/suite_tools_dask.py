"""Rows that convert an array with the workers of dask: one or two processes of one thread each, and dask's own rechunk."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import dask_processes
from data import Case
from peers import Peer
from suite import Context, Row
from suite_tools import Convert

GROUP = "end to end"
# Workers of each peer.
N_WORKERS = {"shardcodec 1 worker": 1, "shardcodec 2 workers": 2, "dask rechunk 2 workers": 2}
# So high that encoding takes most of the time.
LEVEL = 15


def _codecs() -> list[dict[str, Any]]:
    return [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": LEVEL, "checksum": False}},
    ]


@dataclass(frozen=True)
class ConvertInWorkers(Convert):
    """Converts an array in worker processes of dask, which run until the row ends."""

    most_rounds: ClassVar[int] = 3

    def takes(self, peer: Peer) -> bool:
        return peer.name in N_WORKERS

    def prepare(self, context: Context, peer: Peer, number: int) -> tuple[Any, ...]:
        n = N_WORKERS[peer.name]
        client = context.keep(f"{n} workers", lambda: dask_processes.start(n))
        client.run(
            dask_processes.configure, peer.settings(), ["dask.array", "shardcodec.tools.jobs.dask_workers"]
        )
        return (*super().prepare(context, peer, number), client)

    def operate(self, peer: Peer, prepared: Any) -> Any:
        source, path, client = prepared
        if peer.name.startswith("shardcodec"):
            return self._convert_with(client, source, path)
        return self._rechunk(source, path, client)

    def _convert_with(self, client: Any, source: Path, path: Path) -> Any:
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
        super().finish(prepared)
        job = prepared[1].with_name(f"{prepared[1].name}.job.json")
        shutil.rmtree(job.with_name(f"{job.name}.ledger"), ignore_errors=True)
        job.unlink(missing_ok=True)


def rows(edge: int) -> list[Row]:
    """Return the row: the cube of uint16 without shards, to 64 shards of slow zstd."""
    shape, chunk, shard = (edge,) * 3, (edge // 8,) * 3, (edge // 4,) * 3
    source = Case(shape, chunk, chunk, "uint16", "raw")
    target = Case(shape, shard, (edge // 16,) * 3, "uint16", f"zstd {LEVEL}", codecs=_codecs())
    return [ConvertInWorkers(GROUP, f"convert with dask workers, zstd {LEVEL}", source, target=target)]
