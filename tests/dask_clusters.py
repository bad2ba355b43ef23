# dask_clusters.py - clusters of dask for tests
# SPDX-License-Identifier: MIT
"""Local clusters of worker processes, in this program or in one that a test may kill. Import it after `importorskip`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
import distributed
import zarr
from helpers import python_environment

__all__ = ["cluster_process", "fill", "hide", "local_workers", "make_older", "two_workers", "used"]

# On a loaded machine a worker needs longer to start again than dask waits; then its cluster drops it, and a test waited for ever.
PATIENT = {"distributed.deploy.lost-worker-timeout": 600.0}
CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(n_workers=int(sys.argv[1]), threads_per_worker=1, dashboard_address="127.0.0.1:0")
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


@contextmanager
def local_workers(n: int, *, processes: bool = True) -> Iterator[Any]:
    """Start workers of one thread each, and yield a client of them. A nanny starts a process again that was killed."""
    with (
        dask.config.set(PATIENT),
        distributed.LocalCluster(
            n_workers=n,
            threads_per_worker=1,
            processes=processes,
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        yield client


def two_workers() -> Any:
    """Start two worker processes; use it in a with block."""
    return local_workers(2)


@contextmanager
def cluster_process(
    n_workers: int, preload: str | None = None, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a scheduler, and workers that end with it, in another process; yield it and its address.

    Parameters
    ----------
    n_workers : int
    preload : str, optional
        Text of Python that each worker runs first.
    **environment
        Variables of the process.
    """
    environment["DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT"] = "600s"
    if preload is not None:
        environment["DASK_DISTRIBUTED__WORKER__PRELOAD"] = json.dumps([preload])
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", CLUSTER, str(n_workers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=python_environment(**environment),
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


# ---- what tests run in the workers, which cannot import a file of tests by its name


def used(threads: int | None = None) -> tuple[str, int | None]:
    """Return the pipeline of a new array, and the option ``threads`` of zarr's configuration."""
    array = zarr.create_array({}, shape=(4,), chunks=(2,), dtype="u1")
    return type(array.async_array.codec_pipeline).__name__, zarr.config.get("shardcodec.threads", None)


def hide() -> None:
    sys.modules["shardcodec"] = None  # type: ignore[assignment]


def make_older() -> None:
    import shardcodec

    shardcodec.build_info = lambda: {"version": "0.0.1"}


def fill(block: Any, path: str, block_info: Any = None) -> Any:
    """Open the array in the task, as users do in `map_blocks`, and write one block."""
    array = zarr.open_array(path)
    array[tuple(slice(*edges) for edges in block_info[0]["array-location"])] = block
    return block[:0, :0]
