# dask_workers.py - how the worker processes of dask get shardcodec, and which ways have no effect
# SPDX-License-Identifier: MIT
"""Write one shard from two worker processes, and count the elements that are lost, for each way to start the workers.

    python examples/dask_workers.py [WAY...]

zarr chooses the pipeline in the process that opens the array. `shardcodec.enable()` in the main process says nothing to
workers that run already: there `zarr.open_array` gives an array of zarr, without a warning. The names of the ways are printed;
without arguments all are tried, which takes half a minute.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import numpy as np
import zarr
from distributed import Client, Event, LocalCluster, WorkerPlugin

import shardcodec

EDGE = 64
VARIABLE = {"ZARR_CODEC_PIPELINE__PATH": "shardcodec.ShardCodecPipeline"}


def write_half(target: Any, half: int, event: str) -> str:
    """Write every second row, in a worker; return the class of the pipeline that has done it."""
    array = zarr.open_array(target) if isinstance(target, str) else target
    if half:
        Event(event).set()
    else:
        Event(event).wait(30)
    for row in range(half, EDGE, 2):
        array[row] = row + 1
    return type(array.async_array.codec_pipeline).__name__


class EnablePlugin(WorkerPlugin):
    """Calls `shardcodec.enable` in each worker, also in those that join later."""

    def setup(self, worker: Any) -> None:
        """Run when a worker joins, or at once in the workers that exist."""
        shardcodec.enable()


@contextmanager
def cluster(**arguments: Any) -> Iterator[Client]:
    """Start two worker processes."""
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, **arguments
        ) as workers,
        Client(workers) as client,
    ):
        yield client


def lost(client: Client, folder: Path, *, attach: bool = False) -> tuple[str, int]:
    """Let two workers write one shard; return the class of their pipeline, and the number of lost elements."""
    path = str(folder / "shared.zarr")
    array = zarr.create_array(
        path, shape=(EDGE, EDGE), shards=(EDGE, EDGE), chunks=(8, 8), dtype="uint16", overwrite=True
    )
    target = shardcodec.attach(array) if attach else path
    addresses = list(client.scheduler_info()["workers"])
    event = f"start {os.urandom(4).hex()}"
    tasks = [
        client.submit(write_half, target, half, event, workers=addresses[half], pure=False)
        for half in range(2)
    ]
    (pipeline, _) = client.gather(tasks)
    rows = np.arange(1, EDGE + 1, dtype="uint16")[:, None]
    return pipeline, int(np.count_nonzero(zarr.open_array(path, mode="r")[...] != rows))


def enable(folder: Path) -> tuple[str, int]:
    """`enable()` in the main process, before the workers start."""
    with shardcodec.enable(), cluster() as client:
        return lost(client, folder)


def too_late(folder: Path) -> tuple[str, int]:
    """`enable()` in the main process, when the workers run."""
    with cluster() as client, shardcodec.enable():
        return lost(client, folder)


def cluster_env(folder: Path) -> tuple[str, int]:
    """`LocalCluster(env=...)`, in a program that imports zarr."""
    with cluster(env=VARIABLE) as client:
        return lost(client, folder)


def environment(folder: Path) -> tuple[str, int]:
    """The environment variable, set before the workers start."""
    os.environ.update(VARIABLE)
    try:
        with cluster() as client:
            return lost(client, folder)
    finally:
        for name in VARIABLE:
            del os.environ[name]


def pre_spawn(folder: Path) -> tuple[str, int]:
    """dask's setting `distributed.nanny.pre-spawn-environ`."""
    with dask.config.set({"distributed.nanny.pre-spawn-environ": VARIABLE}), cluster() as client:
        return lost(client, folder)


def client_run(folder: Path) -> tuple[str, int]:
    """`client.run(shardcodec.enable)`: the workers that exist at this moment."""
    with cluster() as client:
        client.run(shardcodec.enable)
        return lost(client, folder)


def plugin(folder: Path) -> tuple[str, int]:
    """`client.register_plugin`: the workers that exist, and those that join later."""
    with cluster() as client:
        client.register_plugin(EnablePlugin())
        return lost(client, folder)


def preload(folder: Path) -> tuple[str, int]:
    """dask's setting `distributed.worker.preload`."""
    code = "import shardcodec; shardcodec.enable()"
    with dask.config.set({"distributed.worker.preload": [code]}), cluster() as client:
        return lost(client, folder)


def attach(folder: Path) -> tuple[str, int]:
    """An array of `shardcodec.attach`, which takes its pipeline along when it is pickled."""
    with cluster() as client:
        return lost(client, folder, attach=True)


WAYS: dict[str, Callable[[Path], tuple[str, int]]] = {
    way.__name__: way
    for way in (enable, too_late, cluster_env, environment, pre_spawn, client_run, plugin, preload, attach)
}
WITHOUT_EFFECT = {"too_late", "cluster_env"}


def main() -> None:
    """Try the ways that are named, and print a table."""
    print(f"| way | pipeline in the workers | lost of {EDGE * EDGE:,} |\n|---|---|---|")
    wrong = []
    for name in sys.argv[1:] or WAYS:
        with tempfile.TemporaryDirectory() as folder:
            pipeline, n = WAYS[name](Path(folder))
        print(f"| {name} | {pipeline} | {n:,} |", flush=True)
        if name not in WITHOUT_EFFECT and (pipeline != "ShardCodecPipeline" or n):
            wrong.append(name)
    if wrong:
        sys.exit(f"WRONG: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
