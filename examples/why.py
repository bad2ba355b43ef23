# why.py - elements lost by parallel writers, cost of a small write, time of a full read: zarr alone and with shardcodec
# SPDX-License-Identifier: MIT
"""Print the table of the README, measured on this machine.

Four processes write to one array at the same time. Each region ends inside a shard, so neighbouring regions share shards.
zarr alone reads such a shard, changes it and writes it back, and so undoes what another process has stored meanwhile.

Run it with `python examples/why.py [FOLDER]`; FOLDER is a new folder on the file system to try, by default a temporary one.
`python examples/why.py --writers [NAME ...]` prints the table of docs/alternatives.md instead: the elements that these libraries, by
default all that are installed, lose.
"""

from __future__ import annotations

import contextlib
import importlib.util
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zarr

import shardcodec

PIPELINES = ("zarr", "shardcodec")
# Other libraries that write shards, and their packages.
OTHERS = {"zarr fused": "zarr", "zarrs": "zarrs", "TensorStore": "tensorstore", "zarrista": "zarrista"}
N_PROCESSES = 4
EDGE, ROWS = 256, 20  # 13 regions of 20 rows; shards have 32
CUBE = 256
ROUNDS = 5


def use(pipeline: str) -> None:
    """Choose the pipeline of the arrays that this process opens from now on."""
    shardcodec.disable()
    if pipeline == "shardcodec":
        shardcodec.enable()


def opened(path: Path, writer: str) -> Callable[[slice, int], Any]:
    """Open the array with a library; return a function that fills rows with a value."""
    if writer == "TensorStore":
        import tensorstore

        store = tensorstore.open(
            {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/"}}
        ).result()
        return lambda rows, value: store[rows].write(value).result()
    if writer == "zarrista":
        import zarrista
        from zarrista.store import FilesystemStore

        stored = zarrista.Array.open(FilesystemStore(path))
        every = slice(0, EDGE)
        return lambda rows, value: stored.store_array_subset(
            (rows, every), np.full((rows.stop - rows.start, EDGE), value, "uint16")
        )
    use(writer)
    if writer in OTHERS:
        classes = {
            "zarrs": "zarrs.ZarrsCodecPipeline",
            "zarr fused": "zarr.core.codec_pipeline.FusedCodecPipeline",
        }
        zarr.config.set({"codec_pipeline.path": classes[writer]})
    array = zarr.open_array(path)
    return array.__setitem__


def write_regions(path: Path, writer: str, rank: int, start: Any) -> None:
    """Write every fourth region, one after the other."""
    fill = opened(path, writer)
    start.wait()
    for number in range(rank, -(-EDGE // ROWS), N_PROCESSES):
        fill(slice(number * ROWS, min((number + 1) * ROWS, EDGE)), number + 1)


def lost_elements(folder: Path, writer: str) -> int:
    """Return how many of the elements that four processes wrote are missing afterwards."""
    use("zarr")
    path = folder / f"parallel-{writer.replace(' ', '-')}"
    zarr.create_array(
        path, shape=(EDGE, EDGE), shards=(32, 32), chunks=(8, 8), dtype="uint16", overwrite=True
    )
    processes = multiprocessing.get_context("spawn")
    start = processes.Barrier(N_PROCESSES)
    workers = [
        processes.Process(target=write_regions, args=(path, writer, rank, start))
        for rank in range(N_PROCESSES)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        sys.exit(f"a writer has failed with {writer}")
    expected = np.repeat(np.arange(EDGE) // ROWS + 1, EDGE).reshape(EDGE, EDGE)
    return int(np.count_nonzero(zarr.open_array(path, mode="r")[...] != expected))


def cube(folder: Path, pipeline: str, values: npt.NDArray[np.uint16]) -> zarr.Array[Any]:
    """Return an array of one shard of 32 MiB, which holds the values."""
    use(pipeline)
    array = zarr.create_array(
        folder / f"cube-{pipeline}",
        shape=values.shape,
        shards=values.shape,
        chunks=(32, 32, 32),
        dtype=values.dtype,
        overwrite=True,
    )
    array[...] = values
    return array


def milliseconds(work: Callable[[], Any]) -> float:
    """Return the time of one call."""
    begin = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - begin)


def write_one(array: zarr.Array[Any], values: npt.NDArray[np.uint16]) -> None:
    """Write one inner chunk."""
    array[32:64, 64:96, 96:128] = values[32:64, 64:96, 96:128]


def times(folder: Path) -> dict[str, dict[str, float]]:
    """Return the median time of a small write and of a full read with each pipeline; they take turns."""
    rng = np.random.default_rng(0)
    values = np.cumsum(rng.integers(0, 3, (CUBE, CUBE, CUBE), dtype=np.uint16), axis=2, dtype=np.uint16)
    arrays = {pipeline: cube(folder, pipeline, values) for pipeline in PIPELINES}
    taken: dict[str, dict[str, list[float]]] = {name: {"write": [], "read": []} for name in PIPELINES}
    for _ in range(ROUNDS):
        for name, array in arrays.items():
            taken[name]["write"].append(milliseconds(lambda array=array: write_one(array, values)))  # type: ignore[misc]
            taken[name]["read"].append(milliseconds(lambda array=array: array[...]))  # type: ignore[misc]
    for name, array in arrays.items():
        if not np.array_equal(array[...], values):
            sys.exit(f"WRONG: {name} does not return what was written")
    return {name: {row: statistics.median(t) for row, t in rows.items()} for name, rows in taken.items()}


def print_losses(folder: Path, writers: list[str]) -> None:
    """Print the most elements that each installed library loses in one of several rounds; after a failed write, no count is right."""
    print(
        f"| four processes write with | elements lost of {EDGE * EDGE:,} | rounds with an error |\n|---|---|---|"
    )
    installed = [name for name, package in OTHERS.items() if importlib.util.find_spec(package) is not None]
    for writer in writers or ["zarr", *installed, "shardcodec"]:
        lost = []
        for _ in range(ROUNDS):
            with contextlib.suppress(SystemExit):
                lost.append(lost_elements(folder, writer))
        print(f"| {writer} | {max(lost, default=EDGE * EDGE):,} | {ROUNDS - len(lost)} of {ROUNDS} |")


def main() -> None:
    """Measure and print the table."""
    if sys.argv[1:2] == ["--writers"]:
        with tempfile.TemporaryDirectory() as temporary:
            print_losses(Path(temporary), sys.argv[2:])
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(sys.argv[1] if len(sys.argv) > 1 else temporary)
        lost = {name: lost_elements(folder, name) for name in PIPELINES}
        measured = times(folder)
    n = f"{EDGE * EDGE:,}"
    rows = [
        (f"elements lost of {n}, when 4 processes write regions that share shards", "{:,}", lost),
        (
            "change one inner chunk of a shard of 32 MiB, ms",
            "{:.1f}",
            {k: v["write"] for k, v in measured.items()},
        ),
        ("read this shard, ms", "{:.1f}", {k: v["read"] for k, v in measured.items()}),
    ]
    print("| | zarr | zarr with shardcodec |\n|---|---|---|")
    for label, form, cells in rows:
        print(f"| {label} | " + " | ".join(form.format(cells[name]) for name in PIPELINES) + " |")
    if lost["shardcodec"]:
        sys.exit("WRONG: shardcodec has lost elements")


if __name__ == "__main__":
    main()
