# csr.py - batches of random rows of a sparse matrix, for training
# SPDX-License-Identifier: MIT
"""A sparse matrix (CSR) in shards, as AnnData stores it, and batches of its rows in random order.

    python examples/csr.py [GROUP]

A group has three arrays: `indptr` says where each row begins, `data` and `indices` have the values and the columns of all rows,
one row behind the other. `indptr` is small and is kept in memory. A row is a box of one axis, with a shape of its own, so one
call of `read_boxes` for each of the two arrays reads a whole batch. Each inner chunk is decoded once in a call, however many
rows are in it. Random rows are in nearly all inner chunks. So without a cache of everything (option `cache`), `Rows.mixed_runs`
is faster: it reads random runs of rows at once, mixes their rows, and cuts them into batches.

The flat results and the offsets of the rows are again a matrix (CSR), which needs no further work:

    scipy.sparse.csr_array((data, indices, indptr), shape=(len(indptr) - 1, n_columns))
    torch.sparse_csr_tensor(*map(torch.from_numpy, (indptr, indices, data)), size=(len(indptr) - 1, n_columns))

With PyTorch's loader, which calls ``__getitems__`` with the numbers of the rows of a batch:

    rows = Rows("matrix.zarr")
    order = shardcodec.ShardOrder(rows.data, rows.starts, batch=1024)
    loader = torch.utils.data.DataLoader(rows, batch_sampler=order, collate_fn=tuple, num_workers=4)

The program compares each batch with what numpy selects from the whole arrays, and the time with that of a slice for each row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import shardcodec

Array = np.ndarray[Any, Any]


class Rows:
    """The rows of a sparse matrix; a batch of them is (indptr, indices, data).

    Parameters
    ----------
    path : str or Path
        A group with the arrays `indptr`, `indices` and `data`.
    """

    def __init__(self, path: str | Path) -> None:
        self.indptr = shardcodec.open_array(path, "indptr")[...]
        self.indices = shardcodec.open_array(path, "indices", threads=1)
        self.data = shardcodec.open_array(path, "data", threads=1)

    @property
    def starts(self) -> Array:
        """Where each row begins, for `ShardOrder`."""
        return self.indptr[:-1, None]

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, row: int) -> tuple[Array, Array, Array]:
        return self.__getitems__([row])

    def __getitems__(self, rows: Sequence[int] | Array) -> tuple[Array, Array, Array]:
        """Read the rows of a batch at once."""
        begin = self.indptr[rows]
        length = self.indptr[np.add(rows, 1)] - begin
        boxes = begin[:, None], length[:, None]
        indptr = np.concatenate([[0], np.cumsum(length)])
        return indptr, self.indices.read_boxes(*boxes), self.data.read_boxes(*boxes)

    def mixed_runs(
        self, batch: int, *, run: int = 32, n_runs: int = 32, seed: int = 0
    ) -> Iterator[tuple[Array, tuple[Array, Array, Array]]]:
        """Yield the batches of an epoch, each after the numbers of its rows: `n_runs` runs of `run` rows are read at once, and mixed."""
        rng = np.random.default_rng(seed)
        firsts = rng.permutation(np.arange(0, len(self), run))
        for some in np.split(firsts, range(n_runs, len(firsts), n_runs)):
            rows = (some[:, None] + np.arange(run)).ravel()
            rows = rng.permutation(rows[rows < len(self)])
            indptr, indices, data = self.__getitems__(rows)
            for i in range(0, len(rows), batch):
                ends = indptr[i : i + batch + 1]
                part = slice(ends[0], ends[-1])
                yield rows[i : i + batch], (ends - ends[0], indices[part], data[part])


def by_slices(rows: Rows, numbers: Sequence[int]) -> tuple[Array, Array, Array]:
    """Read a batch row by row, as a program does that knows only slices."""
    parts = [slice(rows.indptr[row], rows.indptr[row + 1]) for row in numbers]
    indptr = np.concatenate([[0], np.cumsum([part.stop - part.start for part in parts])])
    return (
        indptr,
        np.concatenate([rows.indices[part] for part in parts]),
        np.concatenate([rows.data[part] for part in parts]),
    )


def from_memory(
    rows: Rows, indices: Array, data: Array, numbers: Sequence[int] | Array
) -> tuple[Array, Array, Array]:
    """Select a batch from the whole arrays in memory."""
    wanted = [np.arange(rows.indptr[row], rows.indptr[row + 1]) for row in numbers]
    at = np.concatenate(wanted)
    return np.concatenate([[0], np.cumsum(list(map(len, wanted)))]), indices[at], data[at]


def equal(one: tuple[Array, ...], other: tuple[Array, ...]) -> bool:
    """Return True if two batches are equal."""
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


def example_matrix(path: Path, n_rows: int = 20_000, n_columns: int = 2000) -> Path:
    """Make a matrix with about 50 values in a row, and some rows without any."""
    rng = np.random.default_rng(0)
    lengths = rng.poisson(50, n_rows) * (rng.random(n_rows) < 0.9)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    indices = np.concatenate([np.sort(rng.choice(n_columns, n, replace=False)) for n in lengths])
    data = rng.poisson(2, len(indices)).astype("float32")
    layout: dict[str, Any] = {"shards": (262_144,), "chunks": (8192,)}
    shardcodec.create_array(path, "indptr", data=indptr, chunks=(len(indptr),))
    shardcodec.create_array(path, "indices", data=indices.astype("int32"), **layout)
    shardcodec.create_array(path, "data", data=data, **layout)
    return path


def main() -> None:
    """Time one epoch in runs and one in random rows, and some batches row by row; compare all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("group", nargs="?", help="a group of Zarr; default: a small matrix that is made up")
    parser.add_argument("--batch", type=int, default=1024)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = Rows(arguments.group or example_matrix(Path(folder) / "matrix.zarr"))
        order = list(shardcodec.ShardOrder(rows.data, rows.starts, window=4, batch=arguments.batch))
        indices, data = rows.indices[...], rows.data[...]
        ways = {
            "one call for runs of rows, mixed": rows.mixed_runs(arguments.batch),
            "one call for a batch of random rows": ((part, rows.__getitems__(part)) for part in order),
            "a slice for each row": ((part, by_slices(rows, part)) for part in order[:2]),
        }
        seconds = {}
        n_wrong = 0
        for name, batches in ways.items():
            begin = time.perf_counter()
            found = list(batches)
            seconds[name] = (time.perf_counter() - begin) / sum(len(part) for part, _ in found)
            n_wrong += sum(not equal(batch, from_memory(rows, indices, data, part)) for part, batch in found)
        print("| read with | microseconds for a row |\n|---|---|")
        for name, value in seconds.items():
            print(f"| {name} | {1e6 * value:.1f} |")
        print(f"{len(rows)} rows in {len(order)} batches; {n_wrong} batches differ from the array")
        if n_wrong:
            sys.exit("WRONG: a batch differs from what numpy selects")


if __name__ == "__main__":
    main()
