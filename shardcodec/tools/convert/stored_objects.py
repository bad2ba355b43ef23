# stored_objects.py - which objects of a source exist
# SPDX-License-Identifier: MIT
"""`StoredObjects`: the listing of a nearly empty array, so that a conversion costs what is stored, and not the grid."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np

from ...access.box_reader import Folder
from ...format.metadata import KeyEncoding

__all__ = ["StoredObjects"]

Ints = tuple[int, ...]
Coords = np.ndarray[Any, np.dtype[np.int64]]

# Smaller grids are not listed: each object is asked for.
LEAST_GRID = 64
# A listing ends at this number of objects, or this part of the grid: the array is then not nearly empty.
MOST_LISTED = 10_000
MOST_PART = 16


class StoredObjects:
    """The objects of an array that exist, by their positions in its grid.

    All answers are None if the store cannot list, or if many objects exist. The objects are listed once, and again after
    `forget`.

    Parameters
    ----------
    folder : Folder
        The objects of the array.
    keys : KeyEncoding
    shape, size : tuple of int
        Shapes of the array and of the elements of one object.
    """

    def __init__(self, folder: Folder, keys: KeyEncoding, shape: Ints, size: Ints) -> None:
        self._folder, self._keys, self._shape, self._size = folder, keys, shape, size
        self.grid: Ints = tuple(-(-n // step) for n, step in zip(shape, size, strict=True))
        self.n_grid = math.prod(self.grid)
        self._turn = threading.Lock()
        self._is_listed = False
        self._found: Coords | None = None

    @property
    def coords(self) -> Coords | None:
        """Positions of the objects, in the order of the grid."""
        with self._turn:
            if not self._is_listed:
                self._found, self._is_listed = self._list(), True
            return self._found

    def forget(self) -> None:
        """List the objects again at the next question."""
        with self._turn:
            self._is_listed, self._found = False, None

    def _list(self) -> Coords | None:
        store, prefix = self._folder.store, self._folder.prefix
        # the objects of a view have other keys in its store
        if (
            not LEAST_GRID <= self.n_grid < 2**62
            or self._folder.base is not None
            or not store.supports_listing
        ):
            return None
        most = max(MOST_LISTED, self.n_grid // MOST_PART)
        found: list[Ints] = []
        for key in store.keys(
            prefix, with_folders=True
        ):  # a folder in the place of an object is an error of its read
            coords = self._keys.coords(key.removeprefix(prefix).rstrip("/"), len(self.grid))
            if coords is not None and all(i < n for i, n in zip(coords, self.grid, strict=True)):
                found.append(coords)
                if len(found) > most:
                    return None
        return np.array(sorted(found), dtype=np.int64).reshape(len(found), len(self.grid))

    def which(self, coords: Coords) -> np.ndarray[tuple[int], np.dtype[np.bool_]] | None:
        """Return for each position whether the object exists."""
        found = self.coords
        if found is None:
            return None
        if not len(found):
            return np.zeros(len(coords), np.bool_)
        known = np.ravel_multi_index(tuple(found.T), self.grid)
        asked = np.ravel_multi_index(tuple(coords.T), self.grid)
        at = np.minimum(np.searchsorted(known, asked), len(known) - 1)
        return np.asarray(known[at] == asked)

    def in_box(self, start: Ints, stop: Ints) -> tuple[Coords, int] | None:
        """Return the objects that touch a box of elements, and the number of all positions of the grid there."""
        found = self.coords
        if found is None:
            return None
        low = [a // n for a, n in zip(start, self._size, strict=True)]
        high = [-(-b // n) for b, n in zip(stop, self._size, strict=True)]
        first, last = np.searchsorted(found[:, 0], [low[0], high[0]])
        some = found[first:last]
        some = some[((some >= low) & (some < high)).all(axis=1)]
        return some, math.prod(max(0, b - a) for a, b in zip(low, high, strict=True))

    def parts(
        self, start: Ints, out: np.ndarray[Any, Any], fill: Any
    ) -> list[tuple[Ints, np.ndarray[Any, Any]]] | None:
        """Return first elements and views of the parts of a box that existing objects store; the rest gets the fill value.

        None, and nothing is written, unless most of the box is not stored.
        """
        stop = tuple(a + n for a, n in zip(start, out.shape, strict=True))
        found = self.in_box(start, stop)
        if found is None or 4 * len(found[0]) > found[1]:
            return None
        out[...] = fill
        size = np.array(self._size, dtype=np.int64)
        low = np.maximum(found[0] * size, start)
        high = np.minimum((found[0] + 1) * size, stop)
        parts = []
        for first, end in zip(low.tolist(), high.tolist(), strict=True):
            inside = tuple(slice(a - s, b - s) for a, b, s in zip(first, end, start, strict=True))
            parts.append((tuple(first), out[inside]))
        return parts

    def touched(self, size: Ints) -> Coords | None:
        """Return the positions of boxes of this size, in a grid of them, that have elements of existing objects."""
        found = self.coords
        if found is None:
            return None
        mine, steps = np.array(self._size, dtype=np.int64), np.array(size, dtype=np.int64)
        low = found * mine // steps
        high = (np.minimum((found + 1) * mine, np.array(self._shape, dtype=np.int64)) - 1) // steps
        for axis in range(len(size)):  # an object may reach into several boxes
            counts = (high - low)[:, axis] + 1
            if len(counts) and counts.max() > 1:
                first = np.cumsum(counts) - counts
                step = np.arange(counts.sum()) - np.repeat(first, counts)
                low, high = np.repeat(low, counts, axis=0), np.repeat(high, counts, axis=0)
                low[:, axis] += step
                high[:, axis] = low[:, axis]
        return np.unique(low, axis=0)
