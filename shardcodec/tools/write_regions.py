# write_regions.py - divide an array among writers
# SPDX-License-Identifier: MIT
"""`plan_writes`: regions of an array for several writers, such that no two writers share a shard or an inner chunk.

A *cell* is a shard or an inner chunk. The array is cut along each axis into one box of cells for each writer, if such boxes
have nearly equal sizes. Else each writer gets a run of cells in C order, which is a few boxes. Pure arithmetic on the
metadata: every process gets the same result, in a time that does not depend on the number of cells.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Literal, SupportsIndex

from ..arguments import checked
from ..errors import UnsupportedError
from ..readable import Fact, format_count
from .capped import NAMED
from .hierarchy import find_arrays
from .inspect.inspect import chunk_shape_of_shards
from .report import Report
from .targets import ArrayTarget

__all__ = ["Region", "WritePlan", "plan_writes"]

Ints = tuple[int, ...]
Region = tuple[slice, ...]
Span = tuple[int, int]

# A plan lists the regions of all workers.
MAX_WORKERS = 1_000_000
# The largest of the boxes, one for each worker, has at most this many times the elements of the mean.
BOX_TOLERANCE = 1.1
Alignment = Literal["shard", "subchunk"]


@dataclass(frozen=True)
class WritePlan(Report):
    """The regions that each worker writes.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array, in elements.
    align : {"shard", "subchunk"}
        What no two workers share.
    cell_shape : tuple of int
        Shape of a shard or of an inner chunk, in elements.
    regions : tuple of tuple of tuple of slice
        For each worker its regions, as ``array[region] = values`` takes them; none if there are more workers than cells.
    """

    schema: ClassVar[str] = "shardcodec.plan_writes"

    shape: Ints
    align: str
    cell_shape: Ints
    regions: tuple[tuple[Region, ...], ...]

    def facts(self) -> Iterator[Fact]:
        """Yield the array, and the regions of the first workers.

        Yields
        ------
        name, text : str
        """
        shape, cell = (" x ".join(map(str, each)) or "scalar" for each in (self.shape, self.cell_shape))
        yield "", f"array of {shape} for {format_count(len(self.regions), 'worker')}"
        yield "cells", f"{cell}, each a {self.align}"
        for rank, regions in enumerate(self.regions[:NAMED]):
            yield f"worker {rank}", ", ".join(map(_text, regions)) or "nothing"
        if len(self.regions) > NAMED:
            yield "", f"and {format_count(len(self.regions) - NAMED, 'further worker')}"


def _text(region: Region) -> str:
    return f"[{', '.join(f'{span.start}:{span.stop}' for span in region)}]"


@checked
def plan_writes(
    array: Any,
    *,
    workers: SupportsIndex,
    align: Alignment = "shard",
    storage_options: Mapping[str, Any] | None = None,
) -> WritePlan:
    """Divide an array among writers. Only metadata are read.

    The regions of all workers together cover the array, and no two overlap. A worker gets at most as many elements as the mean
    and one cell more, or 10 % more than the mean. It has one region if the array can be divided so, else at most
    ``2 * ndim - 1``. The result depends on the arguments only, so each process may call the function and take its own.

    Parameters
    ----------
    array : zarr array, path-like, URL, zarr store or StorePath
        The array. One that is not sharded has its chunks in place of shards and of inner chunks.
    workers : int
        Number of writers, from 1 to 1,000,000.
    align : {"shard", "subchunk"}
        ``"shard"``: no two workers write to the same shard, so they need no locks, with any library.
        ``"subchunk"``: no two workers write to the same inner chunk. Writers of one shard must then take turns, as those of
        shardcodec do.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.

    Returns
    -------
    WritePlan
        ``plan.regions[rank]`` has the regions of one worker.

    Raises
    ------
    FileNotFoundError
        The path does not lead to an array.
    SpecError, UnsupportedError
        The metadata are malformed, or the grid is rectilinear.
    TypeError, ValueError, ImportError
        An argument is invalid, or no package can open the URL.

    Examples
    --------
    >>> plan = tools.plan_writes("a.zarr", workers=2, align="subchunk")
    >>> plan.regions[1]
    ((slice(2, 4, None), slice(0, 6, None)),)
    """
    n_workers = _checked_workers(workers)
    target = _one_array(array, storage_options)
    assert target.layout is not None
    shape, cell = target.layout.shape, _cell_shape(target, align)
    if 0 in shape:
        return WritePlan(shape, align, cell, ((),) * n_workers)
    parts = _box_counts(shape, cell, n_workers)
    regions = _runs(shape, cell, n_workers) if parts is None else _boxes(shape, cell, parts)
    return WritePlan(shape, align, cell, tuple(regions))


def _checked_workers(workers: SupportsIndex) -> int:
    try:
        n = operator.index(workers)
    except TypeError:
        raise TypeError(f"workers: expected a whole number, got {workers!r}") from None
    if not 1 <= n <= MAX_WORKERS:
        raise ValueError(f"workers: expected a number from 1 to {MAX_WORKERS}, got {n}")
    return n


def _one_array(array: Any, storage_options: Mapping[str, Any] | None) -> ArrayTarget:
    """Return the array that the caller means; raise a typed error if it has no regular grid."""
    target = next(find_arrays(getattr(array, "store_path", array), storage_options=storage_options), None)
    if target is None or target.name:
        raise ValueError(f"expected an array, got the group {array!r}")
    if target.only is not None:
        raise ValueError(f"expected an array, got one shard of {target.place}")
    if target.layout is None:
        raise UnsupportedError(f"array {target.place}: {target.problem}")
    given = getattr(array, "shape", target.layout.shape)
    if tuple(given) != target.layout.shape:
        raise ValueError(
            f"array {target.place}: expected the stored shape {target.layout.shape}, got {tuple(given)}; open the array again"
        )
    if any(len(edges) != 1 for edges in target.layout.edges):
        raise UnsupportedError(f"array {target.place}: expected shards of one shape, got a rectilinear grid")
    return target


def _cell_shape(target: ArrayTarget, align: str) -> Ints:
    assert target.layout is not None
    if align == "subchunk" and target.spec is not None:
        return chunk_shape_of_shards(target.spec)
    if align == "subchunk" and target.problem is not None:
        raise UnsupportedError(f"array {target.place}: {target.problem}")
    return tuple(edges[0] for edges in target.layout.edges)


def _box_counts(shape: Ints, cell: Ints, workers: int) -> Ints | None:
    """Return into how many parts each axis is cut, the first axes into as many as possible; None if boxes are unequal."""

    @cache
    def excess(axis: int, n: int) -> float:
        """Return by which factor, at least, the largest box exceeds the mean if the axes from this one on are cut into n."""
        if axis == len(shape):
            return 1.0 if n == 1 else math.inf
        return min(of_axis(axis, k) * excess(axis + 1, n // k) for k in divisors if n % k == 0)

    @cache
    def of_axis(axis: int, k: int) -> float:
        spans = -(-shape[axis] // cell[axis])
        if k > spans:
            return math.inf
        return min(shape[axis], -(-spans // k) * cell[axis]) * k / shape[axis]

    divisors = [k for k in range(workers, 0, -1) if workers % k == 0]
    counts: list[int] = []
    rest, factor = workers, 1.0
    for axis in range(len(shape)):
        for k in divisors:
            if rest % k == 0 and factor * of_axis(axis, k) * excess(axis + 1, rest // k) <= BOX_TOLERANCE:
                break
        else:
            return None
        counts.append(k)
        rest //= k
        factor *= of_axis(axis, k)
    return tuple(counts) if rest == 1 else None


def _boxes(shape: Ints, cell: Ints, counts: Ints) -> Iterator[tuple[Region, ...]]:
    axes = [list(_spans(-(-n // size), k)) for n, size, k in zip(shape, cell, counts, strict=True)]
    for spans in itertools.product(*axes):
        yield (_region(spans, shape, cell),)


def _spans(n: int, parts: int) -> Iterator[Span]:
    """Divide n cells into parts; the first ones have one cell more, because the last cell may be clipped."""
    least, more = divmod(n, parts)
    for i in range(parts):
        yield i * least + min(i, more), (i + 1) * least + min(i + 1, more)


def _runs(shape: Ints, cell: Ints, workers: int) -> Iterator[tuple[Region, ...]]:
    grid = tuple(-(-n // size) for n, size in zip(shape, cell, strict=True))
    total = math.prod(shape)
    begin = 0
    for worker in range(1, workers + 1):
        end = math.prod(grid) if worker == workers else _nearest_cut(shape, cell, total * worker // workers)
        yield tuple(_region(spans, shape, cell) for spans in _boxes_of_run(begin, end, grid))
        begin = end


def _nearest_cut(shape: Ints, cell: Ints, n_elements: int) -> int:
    """Return the number of cells, in C order, whose number of elements is nearest to the given one."""
    index, left, extent = 0, n_elements, 1
    for axis, (n, size) in enumerate(zip(shape, cell, strict=True)):
        behind = math.prod(shape[axis + 1 :])
        at = min(left // (extent * size * behind), -(-n // size) - 1)
        left -= at * extent * size * behind
        index = index * -(-n // size) + at
        extent *= min(size, n - at * size)
    return index + (2 * left >= extent)


def _boxes_of_run(begin: int, end: int, grid: Ints) -> Iterator[tuple[Span, ...]]:
    """Yield the boxes of the cells from number `begin` to before number `end`, in C order: at most ``2 * ndim - 1``."""
    if begin == end:
        return
    if not grid:
        yield ()
        return
    inner = math.prod(grid[1:])
    (first, head), (last, tail) = divmod(begin, inner), divmod(end, inner)
    if first == last:
        yield from (((first, first + 1), *box) for box in _boxes_of_run(head, tail, grid[1:]))
        return
    if head:
        yield from (((first, first + 1), *box) for box in _boxes_of_run(head, inner, grid[1:]))
        first += 1
    if first < last:
        yield ((first, last), *((0, n) for n in grid[1:]))
    if tail:
        yield from (((last, last + 1), *box) for box in _boxes_of_run(0, tail, grid[1:]))


def _region(spans: tuple[Span, ...], shape: Ints, cell: Ints) -> Region:
    return tuple(
        slice(first * size, min(end * size, n))
        for (first, end), n, size in zip(spans, shape, cell, strict=True)
    )
