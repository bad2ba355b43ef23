# split_by_object.py - boxes of an array, split along its objects
# SPDX-License-Identifier: MIT
"""From a box of an array to its objects and the elements of each: arithmetic on one grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .regions import Box, Ints, whole

__all__ = ["along_objects", "as_coordinates", "box_rows", "object_boxes"]


def as_coordinates(values: Any, ndim: int, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the argument `name` as coordinates, int64, shape (n, ndim); TypeError if the values are not integers."""
    numbers = np.asarray(values)
    if numbers.size == 0 and numbers.dtype.kind == "f":  # an empty list
        numbers = numbers.astype(np.int64)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {numbers.dtype}")
    if numbers.shape != (len(numbers) if numbers.ndim else -1, ndim):
        if numbers.size or numbers.ndim > 2:
            raise ValueError(f"{name}: expected shape (n, {ndim}), got {numbers.shape}")
        numbers = numbers.reshape(0, ndim)
    return numbers.astype(np.int64)


def along_objects(start: int, count: int, step: int, extent: int) -> list[tuple[int, int, int, int]]:
    """Split a slice of one axis of an array along its objects, which have `extent` elements.

    Returns for each object its grid coordinate, the first selected element in it, the number of selected elements, and the
    number of the first one in the slice.
    """
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


def object_boxes(box: Box, extents: Sequence[int]) -> Iterator[tuple[Ints, Box]]:
    """Yield (grid position, box inside of the object) for each object of shape `extents` that a box touches; its `at` is not used."""
    steps = box.step or (1,) * len(extents)
    along = [along_objects(*of_axis) for of_axis in zip(box.start, box.count, steps, extents, strict=True)]
    for parts in itertools.product(*along):
        if not parts:
            yield (), whole(())
            continue
        coords, start, count, at = zip(*parts, strict=True)
        yield coords, Box(start, count, box.step, at)


def box_rows(
    begin: np.ndarray[Any, Any], count: np.ndarray[Any, Any], extents: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Split boxes of an array, all of shape `count`, along its objects of shape `extents`.

    Returns the grid position of the object of each piece, shape (m, ndim), and the pieces as rows of `Boxes`, shape (m, 4 *
    ndim + 1). The first axis of the array counts the boxes.
    """
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
