# dask_workers.py - how the worker processes of dask get shardcodec, and which ways have no effect
# SPDX-License-Identifier: MIT
"""Write one shard from two worker processes, and count the elements that are lost, for each way to give them shardcodec.

    python examples/dask_workers.py [WAY...]

zarr chooses the pipeline in the process that opens the array. `shardcodec.enable()` reaches the processes that are started later,
`shardcodec.enable(client=client)` the workers of a cluster that runs. In other workers `zarr.open_array` gives an array of zarr,
without a warning. The names of the ways are printed; without arguments all are tried, which takes half a minute.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from distributed import Client, Event, LocalCluster

import shardcodec

EDGE = 64


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


@contextmanager
def cluster() -> Iterator[Client]:
    """Start two worker processes."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as workers,
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


def workers(folder: Path) -> tuple[str, int]:
    """`enable(client=client)`, when the workers run."""
    with cluster() as client, shardcodec.enable(client=client):
        return lost(client, folder)


def attach(folder: Path) -> tuple[str, int]:
    """An array of `shardcodec.attach`, which takes its pipeline along when it is pickled."""
    with cluster() as client:
        return lost(client, folder, attach=True)


WAYS: dict[str, Callable[[Path], tuple[str, int]]] = {
    way.__name__: way for way in (enable, workers, attach, too_late)
}
WITHOUT_EFFECT = {"too_late"}


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
