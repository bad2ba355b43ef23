# stored_objects.py - which objects of a source exist
# SPDX-License-Identifier: MIT
"""`StoredObjects`: the listing of a nearly empty array, so that a conversion costs what is stored, and not the grid."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...access.box_reader import Folder
from ...format.chunk_keys import KeyEncoding
from ...storage.store import LeftFolder
from ..targets import ArrayTarget

__all__ = ["Coords", "StoredObjects", "stored_positions"]

Ints = tuple[int, ...]
Coords = np.ndarray[Any, np.dtype[np.int64]]

# Smaller grids are not listed: each object is asked for.
LEAST_GRID = 64
# A listing ends at the larger of this number of objects and the grid divided by the divisor: the array is then not sparse.
MAX_LISTED = 10_000
LISTED_DIVISOR = 16


class StoredObjects:
    """The objects of an array that exist, by their positions in its grid; `size` is the shape of the elements of one object.

    All answers are None if the store cannot list, or if many objects exist. The objects are listed once, and again after `forget`.
    """

    def __init__(self, folder: Folder | None, keys: KeyEncoding | None, shape: Ints, size: Ints) -> None:
        self._folder, self._keys, self._shape, self._size = folder, keys, shape, size
        self.grid: Ints = tuple(-(-n // step) for n, step in zip(shape, size, strict=True))
        self.n_grid: int = math.prod(self.grid)
        self._turn = threading.Lock()
        self._is_listed = False
        self._listed: Coords | None = None

    @property
    def coords(self) -> Coords | None:
        """Positions of the objects, in the order of the grid."""
        with self._turn:
            if not self._is_listed:
                self._listed, self._is_listed = self._list(), True
            return self._listed

    def forget(self) -> None:
        """List the objects again at the next question."""
        with self._turn:
            self._is_listed, self._listed = False, None

    def may_list(self, number: int) -> bool:
        """Return True if so few objects of the grid exist that a list of them is of use."""
        return LEAST_GRID <= self.n_grid < 2**62 and number <= max(MAX_LISTED, self.n_grid // LISTED_DIVISOR)

    def _list(self) -> Coords | None:
        assert self._folder is not None and self._keys is not None
        store, prefix = self._folder.store, self._folder.prefix
        # the objects of a view have other keys in its store
        if not self.may_list(0) or self._folder.base is not None:
            return None
        left: list[LeftFolder] = []
        keys = store.listed(prefix, with_folders=True, all_of_them=True, left=left)
        if keys is None:
            return None
        positions: list[Ints] = []
        for key in keys:  # a folder in the place of an object is an error of its read
            coords = self._keys.coords(key.removeprefix(prefix).rstrip("/"), len(self.grid))
            if coords is not None and all(i < n for i, n in zip(coords, self.grid, strict=True)):
                positions.append(coords)
                if not self.may_list(len(positions)):
                    return None
        if any(folder.error is not None for folder in left):  # reads of what it may have are errors
            return None
        return np.array(sorted(positions), dtype=np.int64).reshape(len(positions), len(self.grid))

    def which(self, coords: Coords) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
        """Return for each position whether the object exists."""
        existing = self.coords
        if existing is None:
            return None
        if not len(existing):
            return np.zeros(len(coords), np.bool_)
        known = np.ravel_multi_index(tuple(existing.T), self.grid)
        asked = np.ravel_multi_index(tuple(coords.T), self.grid)
        at = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        return np.asarray(known[at] == asked)

    def in_box(self, start: Ints, stop: Ints) -> tuple[Coords, int] | None:
        """Return the objects that touch a box of elements, and the number of all positions of the grid there."""
        existing = self.coords
        if existing is None:
            return None
        low = [a // n for a, n in zip(start, self._size, strict=True)]
        high = [-(-b // n) for b, n in zip(stop, self._size, strict=True)]
        first, last = np.searchsorted(existing[:, 0], [low[0], high[0]])
        inside = existing[first:last]
        inside = inside[((inside >= low) & (inside < high)).all(axis=1)]
        return inside, math.prod(max(0, b - a) for a, b in zip(low, high, strict=True))

    def parts(
        self, start: Ints, out: np.ndarray[Any, Any], fill: Any
    ) -> list[tuple[Ints, np.ndarray[Any, Any]]] | None:
        """Return first elements and views of the parts of a box that existing objects store; the rest gets the fill value.

        None, and nothing is written, unless most of the box is not stored.
        """
        stop = tuple(a + n for a, n in zip(start, out.shape, strict=True))
        box = self.in_box(start, stop)
        if box is None or 4 * len(box[0]) > box[1]:
            return None
        out[...] = fill
        size = np.array(self._size, dtype=np.int64)
        low = np.maximum(box[0] * size, start)
        high = np.minimum((box[0] + 1) * size, stop)
        parts = []
        for first, end in zip(low.tolist(), high.tolist(), strict=True):
            inside = tuple(slice(a - s, b - s) for a, b, s in zip(first, end, start, strict=True))
            parts.append((tuple(first), out[inside]))
        return parts

    def touched(self, size: Ints) -> Coords | None:
        """Return the positions of boxes of this size, in a grid of them, that have elements of existing objects."""
        existing = self.coords
        if existing is None:
            return None
        mine, steps = np.array(self._size, dtype=np.int64), np.array(size, dtype=np.int64)
        low = existing * mine // steps
        high = (np.minimum((existing + 1) * mine, np.array(self._shape, dtype=np.int64)) - 1) // steps
        for axis in range(len(size)):  # an object may reach into several boxes
            counts = (high - low)[:, axis] + 1
            if len(counts) and counts.max() > 1:
                first = np.cumsum(counts) - counts
                step = np.arange(counts.sum()) - np.repeat(first, counts)
                low, high = np.repeat(low, counts, axis=0), np.repeat(high, counts, axis=0)
                low[:, axis] += step
                high[:, axis] = low[:, axis]
        return np.unique(low, axis=0)


def stored_positions(other: Any, array: ArrayTarget) -> Iterator[Ints]:
    """Yield the positions in the grid of an array of which another one, a target or a source, stores elements; all if it does not tell."""
    size = array.object_spec.shard_shape
    stored: StoredObjects | None = getattr(other, "stored", None)
    if isinstance(other, ArrayTarget) and other.is_readable:
        if other.object_spec.shard_shape == size:
            yield from (shard.coords for shard in other.shards() if shard.coords is not None)
            return
        assert other.keys is not None
        stored = StoredObjects(other.folder, other.keys, other.counted_shape, other.object_spec.shard_shape)
    touched = None if stored is None or not size else stored.touched(size)
    if touched is None:
        yield from itertools.product(*map(range, array.shard_grid))
    else:
        yield from (tuple(map(int, at)) for at in touched)
