# row_writers.py - a program whose workers write rows of one shard; tests run it with each way to start a process
# SPDX-License-Identifier: MIT
"""Write the rows of one shard from four workers, and print what was lost.

    python row_writers.py WAY FOLDER [enable | handle]

It prints a JSON object: ``pipelines``, the classes that have written in the workers, and ``lost``, of 4,096 elements. With "enable"
the main program calls `shardcodec.enable`; the workers never do. With "handle" the workers write with `shardcodec.open_array`.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

EDGE, N_WORKERS = 64, 4


def write_rows(folder: str, worker: int) -> str:
    """Write every fourth row when all workers are ready; return the class of the pipeline, or of the handle."""
    array: Any
    if Path(f"{folder}/handle").exists():
        import shardcodec

        array = writer = shardcodec.open_array(f"{folder}/rows.zarr", mode="r+")
    else:
        import zarr

        array = zarr.open_array(f"{folder}/rows.zarr")
        writer = array.async_array.codec_pipeline
    Path(f"{folder}/ready-{worker}").touch()
    deadline = time.monotonic() + 60
    while len(list(Path(folder).glob("ready-*"))) < N_WORKERS and time.monotonic() < deadline:
        time.sleep(0.001)
    for row in range(worker, EDGE, N_WORKERS):
        array[row] = row + 1
    return type(writer).__name__


def by_start_method(folder: str, method: str) -> list[str]:
    """Processes of multiprocessing."""
    with multiprocessing.get_context(method).Pool(N_WORKERS) as pool:
        return pool.starmap(write_rows, [(folder, worker) for worker in range(N_WORKERS)], chunksize=1)


def by_executor(folder: str) -> list[str]:
    """An executor with the start method that this Python prefers."""
    with ProcessPoolExecutor(N_WORKERS) as executor:
        return list(executor.map(write_rows, [folder] * N_WORKERS, range(N_WORKERS)))


def by_subprocess(folder: str) -> list[str]:
    """Other programs."""
    command = [sys.executable, "-P", __file__, "worker", folder]
    started = [
        subprocess.Popen([*command, str(worker)], stdout=subprocess.PIPE, text=True)
        for worker in range(N_WORKERS)
    ]
    return [process.communicate()[0].strip() for process in started]


def by_mpiexec(folder: str) -> list[str]:
    """Ranks of MPI."""
    command = ["mpiexec", "-n", str(N_WORKERS), sys.executable, "-P", __file__, "worker", folder]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()


def by_dask(folder: str) -> list[str]:
    """Workers of dask in processes of their own."""
    from distributed import Client, LocalCluster

    arguments = {"n_workers": N_WORKERS, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(processes=True, silence_logs=50, **arguments) as cluster, Client(cluster) as client:
        names = list(client.scheduler_info(n_workers=-1)["workers"])
        tasks = [
            client.submit(write_rows, folder, worker, workers=names[worker]) for worker in range(N_WORKERS)
        ]
        return list(client.gather(tasks))


class Rows:
    """A data set of torch, whose items are the workers."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return N_WORKERS

    def __getitem__(self, worker: int) -> str:
        return write_rows(self.folder, worker)


def by_torch(folder: str) -> list[str]:
    """Workers of a loader, which are spawned."""
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        Rows(folder), batch_size=None, num_workers=N_WORKERS, multiprocessing_context="spawn"
    )
    return list(loader)


WAYS: dict[str, Callable[[str], list[str]]] = {
    "fork": lambda folder: by_start_method(folder, "fork"),
    "spawn": lambda folder: by_start_method(folder, "spawn"),
    "forkserver": lambda folder: by_start_method(folder, "forkserver"),
    "executor": by_executor,
    "subprocess": by_subprocess,
    "mpiexec": by_mpiexec,
    "dask": by_dask,
    "torch": by_torch,
}


def main(way: str, folder: str, *rest: str) -> None:
    """Run one way, or be a worker of it."""
    if way == "worker":
        worker = int(rest[0] if rest else os.environ["PMI_RANK"])
        print(
            f" {write_rows(folder, worker)} ", flush=True
        )  # mpiexec may join what several ranks have printed
        return
    import numpy as np
    import zarr

    import shardcodec

    if "enable" in rest:
        shardcodec.enable()
    if "handle" in rest:
        Path(f"{folder}/handle").touch()
    array = zarr.create_array(
        f"{folder}/rows.zarr", shape=(EDGE, EDGE), shards=(EDGE, EDGE), chunks=(8, 8), dtype="uint16"
    )
    pipelines = WAYS[way](folder)
    expected = np.arange(1, EDGE + 1)[:, None]
    print(json.dumps({"pipelines": pipelines, "lost": int(np.count_nonzero(array[...] != expected))}))


if __name__ == "__main__":
    main(*sys.argv[1:])
