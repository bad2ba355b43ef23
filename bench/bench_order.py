# bench_order.py - how long does it take to know the order of the inner chunks?
# SPDX-License-Identifier: MIT
"""List the positions of all inner chunks of a grid in Morton order; compared with zarr in the same run.

Parameters
----------
grid
    Inner chunks along each axis. 8^3 and 32^3 are powers of two. 33^3 is the worst case, where most Morton codes lie
    outside the grid. 100 x 37 x 5 is a grid of unequal extents.
peer
    "zarr": zarr's first computation for a grid. "zarr, remembered": the second one; zarr caches the 16 grids used last.

How to read the results: a writer needs the order once for each shard, whose other work usually takes milliseconds. zarr
returns Python tuples and shardcodec a buffer of integers, which is part of the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from shardcodec import _native as native

Grid = tuple[int, ...]
Positions = npt.NDArray[np.uint64]

GRIDS: list[Grid] = [(8, 8, 8), (32, 32, 32), (33, 33, 33), (100, 37, 5)]
ORDERS = ("morton", "lexicographic", "colexicographic")


def name_of(grid: Grid) -> str:
    return "x".join(map(str, grid))


def zarr_order(grid: Grid, *, remembered: bool) -> Callable[[], Any]:
    """Call the function of this version of zarr that computes the order, with or without emptying its caches before."""
    indexing = pytest.importorskip("zarr.core.indexing")
    order = getattr(indexing, "morton_order_coords", None) or indexing.morton_order_iter
    caches = [f for f in vars(indexing).values() if hasattr(f, "cache_clear")]

    def run() -> Any:
        if not remembered:
            for function in caches:
                function.cache_clear()
        return tuple(order(grid))

    return run


def flat(coords: Any, grid: Grid) -> Positions:
    return np.asarray(np.ravel_multi_index(np.array(coords).T, grid), dtype=np.uint64)


@pytest.mark.parametrize("grid", GRIDS, ids=name_of)
@pytest.mark.parametrize("peer", ["shardcodec", "zarr", "zarr, remembered"])
def bench_morton(benchmark: Any, peer: str, grid: Grid) -> None:
    """Order the whole grid, as a writer of complete shards does."""
    benchmark.group = f"morton {name_of(grid)}"
    benchmark.extra_info["positions"] = math.prod(grid)
    out = np.empty(math.prod(grid), dtype=np.uint64)
    native.order(out, grid)
    run = zarr_order(grid, remembered=peer == "zarr, remembered")
    assert (flat(run(), grid) == out).all()
    if peer == "shardcodec":
        benchmark(native.order, out, grid)
    else:
        benchmark(run)


@pytest.mark.parametrize("grid", GRIDS, ids=name_of)
@pytest.mark.parametrize("name", ORDERS)
def bench_orders(benchmark: Any, name: Any, grid: Grid) -> None:
    """Compare the default order with the other orders."""
    benchmark.group = f"orders {name_of(grid)}"
    out = np.empty(math.prod(grid), dtype=np.uint64)
    assert native.order(out, grid, name) == math.prod(grid)
    assert (np.sort(out) == np.arange(math.prod(grid), dtype=np.uint64)).all()
    benchmark(native.order, out, grid, name)


@pytest.mark.parametrize("side", [1, 8, 33])
def bench_box(benchmark: Any, side: int) -> None:
    """Order a part of a grid of 1000^3; the rest is skipped, so the time depends on the part."""
    grid, first = (1000, 1000, 1000), (333, 444, 555)
    last = tuple(c + side - 1 for c in first)
    out = np.empty(side**3, dtype=np.uint64)
    assert native.order(out, grid, "morton", first, last) == side**3
    benchmark.group = "box in 1000x1000x1000"
    benchmark(native.order, out, grid, "morton", first, last)
