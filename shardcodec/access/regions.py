# regions.py - selections of one object as plain data
# SPDX-License-Identifier: MIT
"""Selections of one object, in the form that the engine takes.

A selection (`Selection`) says which elements of an object are read or written, and where they are in the array of the
caller. It is a `Box`, several `Boxes`, `Lists` of positions along axes, or `Points`. Positions are arrays of uint64. The
engine does not copy them, so they must not change while it works.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from .. import native

if TYPE_CHECKING:
    from .._native import Chain

__all__ = [
    "Box",
    "Boxes",
    "Ints",
    "Lists",
    "Points",
    "Positions",
    "Selection",
    "as_range",
    "as_void",
    "covered",
    "covers",
    "grid_positions",
    "has_buffer_format",
    "is_empty",
    "is_filled",
    "n_touched",
    "outline",
    "pack_boxes",
    "sorted_list",
    "touched",
    "whole",
]

Ints = tuple[int, ...]
Positions: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


class Box(NamedTuple):
    """A box of elements of an object, and its place in an array. start, count and step are by axis of the object.

    step: None means 1 along all axes. at: position of the first element in the array, by axis of the object; 0 for an axis that
    the array does not have.
    """

    start: Ints
    count: Ints  # type: ignore[assignment]  # hides tuple.count, which is not needed for a box
    step: Ints | None
    at: Ints


class Boxes(NamedTuple):
    """Several boxes of one object; see `pack_boxes`.

    rows: uint64, shape (n, 3 * ndim + array_ndim): start, count and step by axis of the object, then the position of the first
    element by axis of the array.
    """

    rows: Positions


class Lists(NamedTuple):
    """A box with lists of positions along some axes; all combinations are selected, as with `numpy.ix_`.

    start, count, step, at: as in `Box`; along an axis with a list, `count` is the length of the list, and `start` and `step`
    are not used. froms: for each axis its list of positions in ascending order, repeats allowed; None for an axis without a
    list. tos: for each list the position of each element in the array, counted from `at`; None means one after the other.
    """

    start: Ints
    count: Ints  # type: ignore[assignment]
    step: Ints | None
    at: Ints
    froms: tuple[Positions | None, ...]
    tos: tuple[Positions | None, ...]


class Points(NamedTuple):
    """Single elements of an object, and their places in an array of rank 1.

    at: position of the first point in the array. froms: for each axis of the object the position of each point. to: position of
    each point in the array, counted from `at`; None means one after the other.
    """

    at: int
    froms: tuple[Positions, ...]
    to: Positions | None


Selection: TypeAlias = Box | Boxes | Lists | Points


def pack_boxes(start: Any, count: Any, step: Any, at: Any) -> Boxes:
    """Return several boxes of one object as `Boxes`.

    start, count, step: shape (n, ndim); `count` may have shape (ndim,) if it is the same for all boxes. at: shape (n,
    array_ndim), by axis of the *array*, which may have axes that the object does not have.
    """
    start = np.asarray(start)
    ndim = start.shape[1]
    at = np.asarray(at)
    rows = np.empty((len(start), 3 * ndim + at.shape[1]), dtype=np.uint64)
    rows[:, :ndim] = start
    rows[:, ndim : 2 * ndim] = count
    rows[:, 2 * ndim : 3 * ndim] = 1 if step is None else step
    rows[:, 3 * ndim :] = at
    return Boxes(rows)


def grid_positions(shapes: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return all positions of n grids, grid after grid and each in C order.

    shapes: int64, shape (n, ndim). Returns the number of the grid of each position, shape (m,), and the positions, shape (m,
    ndim).
    """
    sizes = shapes.prod(axis=1)
    number = np.repeat(np.arange(len(shapes)), sizes)
    rest = np.arange(len(number)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    at = np.empty((len(number), shapes.shape[1]), dtype=np.int64)
    for axis in range(shapes.shape[1] - 1, -1, -1):
        rest, at[:, axis] = np.divmod(rest, shapes[number, axis])
    return number, at


def sorted_list(positions: Positions, places: Positions | None) -> tuple[Positions, Positions | None]:
    """Sort a list of positions, and reorder its places in the array accordingly; equal positions keep their order."""
    if bool((positions[1:] >= positions[:-1]).all()):
        return positions, places
    order = np.argsort(positions, kind="stable")
    return positions[order], order.astype(np.uint64) if places is None else places[order]


def as_range(numbers: Positions) -> range | None:
    """Return numbers as an ascending range; None if they do not have a constant positive step."""
    n = len(numbers)
    if n == 0:
        return range(0)
    first, last = int(numbers[0]), int(numbers[-1])
    step = int(numbers[1]) - first if n > 1 else 1
    if step < 1 or last - first != step * (n - 1) or not (numbers[1:] - numbers[:-1] == step).all():
        return None
    return range(first, last + 1, step)


def whole(shape: Sequence[int]) -> Box:
    """Return the box of all elements of an object, at the origin of the array."""
    zeros = (0,) * len(shape)
    return Box(zeros, tuple(shape), None, zeros)


def has_buffer_format(dtype: np.dtype[Any]) -> bool:
    """Return True if the buffer protocol has a letter for such elements; it has none for those of `ml_dtypes`."""
    return dtype.kind in "biufc" and dtype.type.__module__ == "numpy"


def as_void(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view of an array whose elements are opaque bytes.

    The buffer protocol has no format for datetimes and padded structs, but it supports opaque elements of any size.
    """
    return array.view(np.dtype((np.void, array.dtype.itemsize)))


def outline(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array of the same shape and element size, for code that uses only the shape and not the elements.

    numpy cannot view references to elements of variable length as bytes, so one dummy element stands for all of them.
    """
    if array.dtype.kind not in "OT":
        return as_void(array)
    element = np.empty((), dtype=(np.void, array.dtype.itemsize))
    return np.lib.stride_tricks.as_strided(element, array.shape, (0,) * array.ndim)


def is_empty(selection: Selection) -> bool:
    """Return True if a selection has no elements; the engine does not accept such a selection."""
    if isinstance(selection, Points):
        return len(selection.froms[0]) == 0
    return len(selection.rows) == 0 if isinstance(selection, Boxes) else 0 in selection.count


def covers(selection: Selection, shape: Sequence[int]) -> bool:
    """Return True if a selection has all elements of an object, so that their old content is not needed.

    With a smaller shape only the first elements along each axis are asked for.
    """
    if isinstance(selection, Box):
        if selection.count == shape and not any(selection.start):
            return True  # the usual case; no step fits
        step = selection.step or (1,) * len(shape)
        for start, k, by, n in zip(selection.start, selection.count, step, shape, strict=True):
            if n and (start or k < n or (by != 1 and n != 1)):
                return False
        return True
    if isinstance(selection, Lists):
        return all(_has_first(selection, axis, n) for axis, n in enumerate(shape))
    ndim, size = len(shape), math.prod(shape)
    if isinstance(selection, Points):
        if len(selection.froms[0]) < size:  # a mask would cost more
            return False
        inside = np.logical_and.reduce([at < n for at, n in zip(selection.froms, shape, strict=True)])
        mask = np.zeros(tuple(shape), dtype=np.bool_)
        mask[tuple(at[inside].astype(np.intp) for at in selection.froms)] = True
        return bool(mask.all())
    if int(selection.rows[:, ndim : 2 * ndim].prod(axis=1).sum()) < size:
        return False
    mask = np.zeros(tuple(shape), dtype=np.bool_)
    for row in selection.rows.tolist():
        parts = zip(row[:ndim], row[ndim : 2 * ndim], row[2 * ndim : 3 * ndim], strict=True)
        mask[tuple(slice(start, start + (k - 1) * by + 1, by) for start, k, by in parts)] = True
    return bool(mask.all())


def _has_first(selection: Lists, axis: int, n: int) -> bool:
    """Return True if a selection has the first n positions of an axis."""
    positions = selection.froms[axis]
    if positions is not None:
        return len(positions) >= n and int(np.count_nonzero(np.unique(positions) < n)) == n
    step = 1 if selection.step is None else selection.step[axis]
    return n == 0 or (selection.start[axis] == 0 and selection.count[axis] >= n and (step == 1 or n == 1))


def is_filled(box: Selection, array: np.ndarray[Any, Any], axes: Sequence[int], fill: bytes) -> bool:
    """Return True if all elements that a box takes from an array equal the fill value bit by bit.

    For other selections the whole array is compared. The result may then be False although the selected elements are
    equal.
    """
    if not isinstance(box, Box):
        box = whole([array.shape[axis] for axis in range(array.ndim)])
        axes = range(array.ndim)
    where = tuple(
        slice(box.at[axis], box.at[axis] + box.count[axis])
        for axis in sorted(range(len(axes)), key=axes.__getitem__)
        if axes[axis] >= 0
    )
    values = as_void(array)[where]
    if values[(0,) * values.ndim].tobytes() != fill:  # the usual case: one element suffices
        return False
    rows = values if values.ndim else values.reshape(1)
    return all(native.load().all_equal(np.ascontiguousarray(row), fill) for row in rows)


def n_touched(selection: Selection, chain: Chain) -> int:
    """Return the number of inner chunks that a selection of a compiled shard touches.

    An inner chunk that several boxes touch is counted once for each box.
    """
    if isinstance(selection, Points):
        return _n_touched_by_points(selection, chain)
    if isinstance(selection, Boxes):
        return min(int(_n_touched_by_rows(selection.rows, chain)), int(chain.n_chunks))
    n = 1
    for axis, extent in zip(chain.perm, chain.inner.shape, strict=True):
        if (positions := _list_of(selection, axis)) is not None:
            n *= 1 + int(np.count_nonzero(np.diff(positions.view(np.int64) // extent)))
            continue
        step = 1 if selection.step is None else selection.step[axis]
        last = selection.start[axis] + (selection.count[axis] - 1) * step
        n *= min(last // extent - selection.start[axis] // extent + 1, selection.count[axis])
    return n


def _list_of(selection: Box | Lists, axis: int) -> Positions | None:
    return selection.froms[axis] if isinstance(selection, Lists) else None


def _n_touched_by_points(points: Points, chain: Chain) -> int:
    entries = np.zeros(len(points.froms[0]), dtype=np.int64)
    for axis, extent, n in zip(chain.perm, chain.inner.shape, chain.grid_shape, strict=True):
        entries *= n
        entries += points.froms[axis].view(np.int64) // extent
    if chain.n_chunks > 8 * len(entries):
        return len(np.unique(entries))
    mask = np.zeros(chain.n_chunks, dtype=np.bool_)
    mask[entries] = True
    return int(np.count_nonzero(mask))


def _n_touched_by_rows(rows: Positions, chain: Chain) -> Any:
    ndim = len(chain.perm)
    numbers = rows.view(np.int64)
    n = np.ones(len(rows), dtype=np.int64)
    for axis, extent in zip(chain.perm, chain.inner.shape, strict=True):
        start, count, step = numbers[:, axis], numbers[:, ndim + axis], numbers[:, 2 * ndim + axis]
        n *= np.minimum((start + (count - 1) * step) // extent - start // extent + 1, count)
    return n.sum()


def touched(
    selection: Selection, perm: Ints, chunk_shape: Sequence[int], grid_shape: Sequence[int]
) -> np.ndarray[Any, Any]:
    """Return flags of the inner chunks that a selection touches, in C order over the stored grid.

    perm: stored axis i is axis ``perm[i]`` of the object. chunk_shape and grid_shape are along the stored axes.
    """
    mask = np.zeros(tuple(grid_shape), dtype=np.bool_)
    if isinstance(selection, Points):
        mask[
            tuple(
                selection.froms[axis].view(np.int64) // extent
                for axis, extent in zip(perm, chunk_shape, strict=True)
            )
        ] = True
    elif isinstance(selection, Boxes):
        mask[_touched_by_rows(selection.rows.view(np.int64), perm, chunk_shape)] = True
    elif isinstance(selection, Box) and (ranges := _touched_ranges(selection, perm, chunk_shape)) is not None:
        mask[ranges] = True
    else:
        mask[np.ix_(*_touched_coordinates(selection, perm, chunk_shape))] = True
    return mask.reshape(-1)


def _touched_ranges(box: Box, perm: Ints, chunk_shape: Sequence[int]) -> tuple[slice, ...] | None:
    """Return ranges of grid coordinates of touched inner chunks along each stored axis; None if a step skips some."""
    ranges = []
    for axis, extent in zip(perm, chunk_shape, strict=True):
        step = 1 if box.step is None else box.step[axis]
        if step > extent:
            return None
        last = box.start[axis] + (box.count[axis] - 1) * step
        ranges.append(slice(box.start[axis] // extent, last // extent + 1))
    return tuple(ranges)


def _touched_by_rows(
    rows: np.ndarray[Any, Any], perm: Ints, chunk_shape: Sequence[int]
) -> tuple[np.ndarray[Any, Any], ...]:
    """Return the grid coordinates of inner chunks that boxes touch, along each stored axis."""
    start, count, step = (rows[:, k * len(perm) : (k + 1) * len(perm)][:, list(perm)] for k in range(3))
    extents = np.array(chunk_shape, dtype=np.int64)
    # With a longer step each element lies in an inner chunk of its own.
    is_long = step > extents
    first = start // extents
    sizes = np.where(is_long, count, (start + (count - 1) * step) // extents - first + 1)
    number, at = grid_positions(sizes)
    places = np.where(is_long[number], (start[number] + at * step[number]) // extents, first[number] + at)
    return tuple(places.T)


def _touched_coordinates(
    selection: Box | Lists, perm: Ints, chunk_shape: Sequence[int]
) -> list[np.ndarray[Any, Any]]:
    """Return the grid coordinates of touched inner chunks along each stored axis."""
    axes = []
    for axis, extent in zip(perm, chunk_shape, strict=True):
        if (positions := _list_of(selection, axis)) is not None:
            axes.append(np.unique(positions.view(np.int64) // extent))
            continue
        step = 1 if selection.step is None else selection.step[axis]
        last = selection.start[axis] + (selection.count[axis] - 1) * step
        if step <= extent:
            axes.append(np.arange(selection.start[axis] // extent, last // extent + 1))
        else:
            axes.append(np.unique(np.arange(selection.start[axis], last + 1, step) // extent))
    return axes


def covered(
    selection: Selection,
    perm: Ints,
    chunk_shape: Sequence[int],
    grid_shape: Sequence[int],
    inside: Ints | None = None,
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return a mask of the inner chunks that a box contains completely; False for all with another selection.

    A write replaces these, so their old entries may be damaged.

    Parameters and shape of the result are those of `touched`. inside: extents of the part of the object that lies within the
    array; of an inner chunk at its edge, only these elements are asked for.
    """
    mask = np.zeros(tuple(grid_shape), dtype=np.bool_)
    if not isinstance(selection, Box):
        return mask.reshape(-1)
    ranges = []
    for axis, extent in zip(perm, chunk_shape, strict=True):
        step = 1 if selection.step is None else selection.step[axis]
        start, end = selection.start[axis], selection.start[axis] + (selection.count[axis] - 1) * step + 1
        if extent == 1:
            ranges.append(slice(start, end, step))
        elif step == 1:
            past_edge = inside is not None and end >= inside[axis]
            ranges.append(slice(-(-start // extent), -(-end // extent) if past_edge else end // extent))
        else:
            return mask.reshape(-1)
    mask[tuple(ranges)] = True
    return mask.reshape(-1)
