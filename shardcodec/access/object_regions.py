# object_regions.py - boxes of an array, cut at the edges of its objects
# SPDX-License-Identifier: MIT
"""From elements of an array to objects, and elements of these: arithmetic on one grid."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

__all__ = ["axis_parts", "box_rows"]


def axis_parts(start: int, count: int, step: int, extent: int) -> list[tuple[int, int, int, int]]:
    """Cut one axis: (object, first element in it, number of elements, where they go) for each object."""
    parts = []
    done = 0
    while done < count:
        first = start + done * step
        position = first // extent
        within = first - position * extent
        n = min(count - done, (extent - 1 - within) // step + 1)
        parts.append((position, within, n, done))
        done += n
    return parts


def box_rows(
    begin: np.ndarray[Any, Any], count: np.ndarray[Any, Any], extents: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Cut boxes at the edges of objects: the objects' grid positions, and rows as `Boxes` has them."""
    ndim = begin.shape[1]
    end = begin + count
    first, last = begin // extents, (end - 1) // extents
    coords, rows = [], []
    for more in itertools.product(*(range(k) for k in ((last - first).max(axis=0) + 1).tolist())):
        at = first + np.array(more, dtype=np.int64)
        touched = (at <= last).all(axis=1)
        if not touched.any():
            continue
        number = np.flatnonzero(touched)
        at = at[touched]
        low = np.maximum(begin[touched], at * extents)
        high = np.minimum(end[touched], (at + 1) * extents)
        row = np.empty((len(number), 4 * ndim + 1), dtype=np.uint64)
        row[:, :ndim] = low - at * extents
        row[:, ndim : 2 * ndim] = high - low
        row[:, 2 * ndim : 3 * ndim] = 1
        row[:, 3 * ndim] = number
        row[:, 3 * ndim + 1 :] = low - begin[touched]
        coords.append(at)
        rows.append(row)
    return np.concatenate(coords), np.concatenate(rows)
