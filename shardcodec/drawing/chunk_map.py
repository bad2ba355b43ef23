# chunk_map.py - which inner chunks of an array exist and how large they are, on a plane
# SPDX-License-Identifier: MIT
"""`ChunkMap`: the numbers of a picture of at most 400 x 400 cells, whatever the size of the array.

A cell covers some inner chunks of the two shown axes, and all inner chunks along the other axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["ChunkMap"]

MAX_CELLS = 400
ABSENT = 2**64 - 1

Ints = tuple[int, ...]
Numbers = np.ndarray[Any, Any]


class ChunkMap:
    """Number and encoded sizes of the existing inner chunks in each cell.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array, in elements.
    chunk_shape : tuple of int
        Shape of an inner chunk, in elements.
    first, grid_shape : tuple of int
        The first inner chunk of the region that is shown, and the number of inner chunks along each axis.
    shard_shape : tuple of int, optional
        Shape of a shard, in elements.
    names : sequence of (str or None), optional
        Names of the axes.
    max_cells : int
        Maximum number of cells along an axis.

    Attributes
    ----------
    axes : tuple of int
        The axes that are shown: the last two with more than one inner chunk. Fewer for an array of rank 0 or 1.
    n_stored, nbytes : ndarray of int64, of the shape of the cells
        Number of existing inner chunks in each cell, and their size in bytes.
    n_grid : ndarray of int64
        Number of inner chunks in each cell, existing or not.
    """

    def __init__(
        self,
        shape: Ints,
        chunk_shape: Ints,
        first: Ints,
        grid_shape: Ints,
        shard_shape: Ints | None = None,
        names: Sequence[str | None] | None = None,
        max_cells: int = MAX_CELLS,
    ) -> None:
        self.shape, self.chunk_shape, self.shard_shape = shape, chunk_shape, shard_shape
        self.first, self.grid_shape = first, grid_shape
        last = sorted(range(len(shape)), key=lambda axis: (grid_shape[axis] > 1, axis))[-2:]
        self.axes: Ints = tuple(sorted(last))
        self._names = names
        self._steps = tuple(max(1, -(-grid_shape[axis] // max_cells)) for axis in self.axes)
        cells = [-(-grid_shape[axis] // step) for axis, step in zip(self.axes, self._steps, strict=True)]
        self.n_stored = np.zeros(cells, np.int64)
        self.nbytes = np.zeros(cells, np.int64)
        hidden = math.prod(n for axis, n in enumerate(grid_shape) if axis not in self.axes)
        self.n_grid = np.full(cells, hidden, np.int64)
        for k, (axis, step) in enumerate(zip(self.axes, self._steps, strict=True)):
            along = np.diff(np.minimum(np.arange(cells[k] + 1) * step, grid_shape[axis]))
            self.n_grid *= along.reshape([-1 if k == i else 1 for i in range(len(cells))])

    def add(self, place: Ints, sizes: Numbers) -> None:
        """Add a block of inner chunks.

        Parameters
        ----------
        place : tuple of int
            Coordinates of its first inner chunk.
        sizes : ndarray of uint64
            Encoded sizes in bytes along the axes of the array; 2^64-1 for an absent inner chunk. Inner chunks outside of
            the region are ignored.
        """
        begin = [max(f - p, 0) for p, f in zip(place, self.first, strict=True)]
        ends = [f + n - p for p, f, n in zip(place, self.first, self.grid_shape, strict=True)]
        sizes = sizes[tuple(slice(b, max(b, e)) for b, e in zip(begin, ends, strict=True))]
        if not sizes.size:
            return
        hidden = tuple(axis for axis in range(sizes.ndim) if axis not in self.axes)
        exists = sizes != ABSENT
        counts = np.atleast_1d(exists.sum(axis=hidden, dtype=np.int64))
        nbytes = np.atleast_1d(np.where(exists, sizes, 0).sum(axis=hidden, dtype=np.int64))
        where = []
        for k, (axis, step) in enumerate(zip(self.axes, self._steps, strict=True)):
            at = place[axis] + begin[axis] - self.first[axis] + np.arange(sizes.shape[axis])
            where.append((at // step).reshape([-1 if k == i else 1 for i in range(len(self.axes))]))
        index = tuple(where) or (np.zeros(1, np.intp),)
        np.add.at(np.atleast_1d(self.n_stored), index, counts)
        np.add.at(np.atleast_1d(self.nbytes), index, nbytes)

    @property
    def total_stored(self) -> int:
        """Number of all existing inner chunks."""
        return int(self.n_stored.sum())

    @property
    def share(self) -> Numbers:
        """Share of the inner chunks of each cell that exist."""
        return self.n_stored / np.maximum(self.n_grid, 1)

    @property
    def mean_nbytes(self) -> Numbers:
        """Mean encoded size of the existing inner chunks of each cell, in bytes; NaN without any."""
        with np.errstate(invalid="ignore"):
            return np.where(self.n_stored > 0, self.nbytes / np.maximum(self.n_stored, 1), np.nan)

    def edges(self, k: int) -> Numbers:
        """Return the edges of the cells along a shown axis, in elements of the array."""
        axis, step = self.axes[k], self._steps[k]
        first, n = self.first[axis], self.grid_shape[axis]
        cells = np.minimum(np.arange(self.n_stored.shape[k] + 1) * step, n) + first
        edges: Numbers = np.minimum(cells * self.chunk_shape[axis], max(self.shape[axis], 1))
        return edges

    def lines(self, k: int, size: int) -> Numbers:
        """Return the multiples of `size` elements inside of the region, along a shown axis."""
        low, high = self.edges(k)[[0, -1]].tolist()
        return np.arange(-(-(low + 1) // size), -(-high // size)) * size

    def label(self, k: int) -> str:
        """Return the label of a shown axis."""
        name = self._names[self.axes[k]] if self._names else None
        return f"{name or f'axis {self.axes[k]}'} (elements)"

    def hidden(self) -> str:
        """Return the words of the title about the axes that are not shown; empty if there are none."""
        axes = [axis for axis, n in enumerate(self.grid_shape) if axis not in self.axes and n > 1]
        if not axes:
            return ""
        names = [(self._names[axis] if self._names else None) or str(axis) for axis in axes]
        return (
            f"; mean along axis {', '.join(names)}"
            if len(names) == 1
            else f"; mean along axes {', '.join(names)}"
        )
