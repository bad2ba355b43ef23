"""One epoch of the rows of a sparse matrix: annbatch, and `read_boxes`.

    python bench/csr_epoch.py [--chunk 8192] [--rounds 5]       needs annbatch (pip install annbatch)

20,480 rows with 8 million values, `data` of float32 and `indices` of int32, one shard each. annbatch reads 32 runs of 32 rows at a time
and mixes them. `read_boxes` does the same work ("runs as annbatch"), and other work, which touches most chunks in each batch: 256 random
rows in a call. The times are medians of later epochs, so a cache of everything is warm.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import annbatch
import anndata
import numpy as np
import program
import zarr
from data import Array, wait_until_old

import shardcodec

N_ROWS, N_COLUMNS, LENGTH, BATCH = 20_480, 20_000, 390, 256
RUN, N_RUNS = 32, 32  # rows of a run, and runs of a call
FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"


def make(path: Path, chunk: int) -> None:
    """Write the matrix, as AnnData stores it."""
    rng = np.random.default_rng(0)
    lengths = rng.poisson(LENGTH, N_ROWS)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.concatenate([np.sort(rng.choice(N_COLUMNS, n, replace=False)) for n in lengths])
    group = zarr.open_group(path, mode="w")
    kind = {"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [N_ROWS, N_COLUMNS]}
    group.attrs.update(kind)
    group.create_array("indptr", data=indptr, chunks=indptr.shape)
    layout: dict[str, Any] = {"chunks": (chunk,), "shards": (-(-len(indices) // chunk) * chunk,)}
    group.create_array("indices", data=indices.astype("int32"), **layout)
    group.create_array("data", data=rng.geometric(0.3, len(indices)).astype("float32"), **layout)


@contextmanager
def pipeline(path: str, cache: int) -> Iterator[None]:
    with zarr.config.set({"codec_pipeline.path": path}), shardcodec.options(cache=cache):
        yield


def by_annbatch(path: Path, name: str, cache: int) -> Callable[[], float]:
    """Return a function that reads an epoch and returns the sum of its values."""
    loader = annbatch.Loader(batch_size=BATCH, chunk_size=RUN, preload_nchunks=N_RUNS, shuffle=True, to=None)
    loader.add_dataset(anndata.io.sparse_dataset(zarr.open_group(path, mode="r")))

    def epoch() -> float:
        with pipeline(name, cache):
            return sum(float(batch["X"].data.sum(dtype="float64")) for batch in loader)

    return epoch


def random_rows(rng: np.random.Generator) -> Array:
    """Return the rows of each call: those of one batch."""
    return rng.permutation(N_ROWS).reshape(-1, BATCH)


def runs_as_annbatch(rng: np.random.Generator) -> Array:
    """Return the rows of each call: random runs of rows that lie side by side, and the rows of a call in mixed order."""
    firsts = RUN * rng.permutation(N_ROWS // RUN).reshape(-1, N_RUNS, 1)
    return rng.permuted((firsts + np.arange(RUN)).reshape(len(firsts), -1), axis=1)


def by_read_boxes(
    path: Path, order: Callable[[np.random.Generator], Array], cache: int
) -> Callable[[], float]:
    """Return a function that reads an epoch, the rows of a call at once, and returns the sum of the values of its batches."""
    kept = shardcodec.IndexCache(64 << 20, max_chunk_bytes=cache)
    arrays = [shardcodec.open_array(path, name, index_cache=kept) for name in ("indices", "data")]
    indptr = shardcodec.open_array(path, "indptr")[...]
    rng = np.random.default_rng(1)

    def epoch() -> float:
        total = 0.0
        for rows in order(rng):
            starts, lengths = indptr[rows, None], indptr[rows + 1, None] - indptr[rows, None]
            indices, data = (array.read_boxes(starts, lengths) for array in arrays)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            for i in range(0, len(rows), BATCH):
                part = slice(offsets[i], offsets[i + BATCH])
                batch = offsets[i : i + BATCH + 1] - offsets[i], indices[part], data[part]
                total += float(batch[-1].sum(dtype="float64"))
        return total

    return epoch


def measure(path: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of processor time of each way; RuntimeError if one gives other values."""
    everything = 9 * N_ROWS * LENGTH
    ours = "shardcodec.ShardCodecPipeline"
    ways = {
        "annbatch, zarr fused": by_annbatch(path, FUSED, 0),
        "annbatch, enable()": by_annbatch(path, ours, 0),
        "annbatch, enable(), cache of everything": by_annbatch(path, ours, everything),
        "read_boxes, runs as annbatch": by_read_boxes(path, runs_as_annbatch, 0),
        "read_boxes, runs as annbatch, cache of everything": by_read_boxes(
            path, runs_as_annbatch, everything
        ),
        "read_boxes, random rows": by_read_boxes(path, random_rows, 0),
        "read_boxes, random rows, cache of everything": by_read_boxes(path, random_rows, everything),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    expected = float(shardcodec.open_array(path, "data")[...].sum(dtype="float64"))
    for _ in range(rounds + 1):
        for name, epoch in ways.items():
            start = time.process_time()
            found = epoch()
            seconds[name].append(time.process_time() - start)
            if found != expected:
                raise RuntimeError(f"{name}: expected values with the sum {expected}, got {found}")
    return {name: times[1:] for name, times in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--chunk", type=program.positive, default=8192)
    parser.add_argument("--rounds", type=program.positive, default=5)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # annbatch advises another pipeline
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder) / "matrix.zarr", arguments.chunk)
        wait_until_old(Path(folder))
        for name, times in measure(Path(folder) / "matrix.zarr", arguments.rounds).items():
            print(f"{name}: {median(times):.3f} s of processor time, {N_ROWS / median(times):.0f} rows/s")


if __name__ == "__main__":
    main()
