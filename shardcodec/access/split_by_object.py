# split_by_object.py - boxes of an array, split along its objects
# SPDX-License-Identifier: MIT
"""From boxes of an array to its objects and the elements of each: arithmetic on one grid."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..arguments import check_argument
from .regions import Box, Ints, grid_positions, whole

__all__ = [
    "along_objects",
    "as_boxes",
    "as_coordinates",
    "box_rows",
    "check_boxes",
    "flat_parts",
    "object_boxes",
    "shape_of_boxes",
]


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


def as_boxes(starts: Any, shape: Any, limits: Ints) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the arguments `starts` and `shape` for an array of shape `limits`: first elements, and one shape or that of each box."""
    begin = as_coordinates(starts, len(limits), "starts")
    if np.ndim(shape) == 2:
        count = as_coordinates(shape, len(limits), "shape")
        if len(count) != len(begin):
            raise ValueError(
                f"shape: expected one shape, or one for each of {len(begin)} boxes, got {len(count)} shapes"
            )
    else:
        check_argument("shape", shape, Sequence[int])
        count = np.array([int(extent) for extent in shape], dtype=np.int64)
    if count.shape[-1] != len(limits) or (count < 0).any():
        wrong = count if count.ndim == 1 else count[(count < 0).any(axis=1)][0]
        raise ValueError(
            f"shape: expected {len(limits)} numbers that are not negative, got {tuple(wrong.tolist())}"
        )
    check_boxes(begin, count, limits)
    return begin, count


def check_boxes(begin: np.ndarray[Any, Any], count: np.ndarray[Any, Any], limits: Ints) -> None:
    """Check that boxes lie inside an array of shape `limits`; IndexError for the first one that does not."""
    wrong = ((begin < 0) | (begin > np.array(limits, dtype=np.int64) - count)).any(axis=1)
    if wrong.any():
        n = int(wrong.argmax())
        shape = count[n] if count.ndim == 2 else count
        raise IndexError(
            f"starts: expected boxes inside the array of shape {limits}, but box {n} at "
            f"{tuple(begin[n].tolist())} of shape {tuple(shape.tolist())} reaches outside"
        )


def shape_of_boxes(begin: np.ndarray[Any, Any], count: np.ndarray[Any, Any]) -> Ints:
    """Return the shape of the result for boxes of one shape, or of the flat one for a shape of each box."""
    if count.ndim == 1:
        return len(begin), *count.tolist()
    # integers could overflow; more elements than a float64 can count do not fit into memory
    return (int(count.prod(axis=1, dtype=np.float64).sum()),)


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
    """Split boxes of an array along its objects of shape `extents`.

    count: shape of all boxes, or of each. Returns the grid position of the object of each piece, shape (m, ndim), and the pieces
    in the order of their boxes, as rows of `Boxes`, shape (m, 4 * ndim + 1). The first axis of the caller's array counts the boxes.
    """
    ndim = begin.shape[1]
    end = begin + count
    first = begin // extents
    number, coords = grid_positions((end - 1) // extents - first + 1)
    coords += first[number]
    begin, end = begin[number], end[number]
    low = np.maximum(begin, coords * extents)
    rows = np.empty((len(number), 4 * ndim + 1), dtype=np.uint64)
    rows[:, :ndim] = low - coords * extents
    rows[:, ndim : 2 * ndim] = np.minimum(end, (coords + 1) * extents) - low
    rows[:, 2 * ndim : 3 * ndim] = 1
    rows[:, 3 * ndim] = number
    rows[:, 3 * ndim + 1 :] = low - begin
    return coords, rows


def flat_parts(
    begin: np.ndarray[Any, Any], count: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, Any], int]:
    """Split boxes of several shapes so that their elements lie one behind the other in an array without their leading axes.

    count: shape of each box, without zeros. Returns the first elements and the shapes of the parts, the place of each part along
    the first axis of that array, and the axis of the boxes to which it belongs. The axes behind it have one extent in all boxes.
    """
    differs = (count != count[0]).any(axis=0)
    axis = int(np.flatnonzero(differs).max(initial=0))
    number, at = grid_positions(count[:, :axis])
    begin, count = begin[number], count[number]
    begin[:, :axis] += at
    count[:, :axis] = 1
    return begin, count, np.cumsum(count[:, axis]) - count[:, axis], axis
