# object_regions.py - boxes of an array, split along its objects
# SPDX-License-Identifier: MIT
"""Translate elements of an array to objects and elements of these objects: arithmetic on one grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .regions import Box, whole

__all__ = ["as_coordinates", "box_parts", "box_rows"]

Ints = tuple[int, ...]


def as_coordinates(values: Any, ndim: int, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return an argument as an array of coordinates, shape (n, ndim).

    Parameters
    ----------
    values : array_like
        The argument.
    ndim : int
        Number of axes of the array.
    name : str
        Name of the argument, for errors.

    Returns
    -------
    ndarray of int64, shape (n, ndim)

    Raises
    ------
    TypeError
        The values are not integers.
    ValueError
        They have another shape.
    """
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


def _axis_parts(start: int, count: int, step: int, extent: int) -> list[tuple[int, int, int, int]]:
    """Split a slice of one axis of an array along its objects.

    Parameters
    ----------
    start, count, step : int
        First element, number of elements and distance between elements of the slice.
    extent : int
        Number of elements of an object along this axis.

    Returns
    -------
    list of (int, int, int, int)
        For each object: its grid coordinate, the first selected element in it, the number of selected elements, and
        the index of the first one in the slice.
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


def box_parts(box: Box, extents: Sequence[int]) -> Iterator[tuple[Ints, Box]]:
    """Yield (grid position, box inside of the object) for each object that a box of an array touches.

    Parameters
    ----------
    box : Box
        Elements of the array; its `at` is not used.
    extents : sequence of int
        Shape of an object, in elements.
    """
    steps = box.step or (1,) * len(extents)
    along = [_axis_parts(*of_axis) for of_axis in zip(box.start, box.count, steps, extents, strict=True)]
    for parts in itertools.product(*along):
        if not parts:
            yield (), whole(())
            continue
        coords, start, count, at = zip(*parts, strict=True)
        yield coords, Box(start, count, box.step, at)


def box_rows(
    begin: np.ndarray[Any, Any], count: np.ndarray[Any, Any], extents: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Split boxes of an array along its objects.

    Parameters
    ----------
    begin : ndarray of int, shape (n, ndim)
        First element of each box.
    count : ndarray of int, shape (ndim,)
        Number of elements of every box along each axis.
    extents : ndarray of int, shape (ndim,)
        Shape of an object, in elements.

    Returns
    -------
    coords : ndarray of int, shape (m, ndim)
        Grid position of the object of each part.
    rows : ndarray of uint64, shape (m, 4 * ndim + 1)
        The parts as rows of `Boxes`. The first axis of the array counts the boxes.
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
