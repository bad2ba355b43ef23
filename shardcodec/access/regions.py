# regions.py - selections of one object, and arrays as plain memory
# SPDX-License-Identifier: MIT
"""The form in which every surface hands work to the engine.

`Parts` are what of one object is wanted and where it goes, the same on the way in and out: a `Box`; or, where that is
not enough, many `Boxes`, `Lists` of positions along axes, or `Points`. Positions are arrays of uint64, which are handed
on as they are and must not change while the engine works.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from .. import native

if TYPE_CHECKING:
    from .._native import Chain

__all__ = [
    "PLAIN_KINDS",
    "Box",
    "Boxes",
    "Lists",
    "Parts",
    "Points",
    "Positions",
    "as_void",
    "covered",
    "covers",
    "is_empty",
    "is_filled",
    "n_touched",
    "outline",
    "pack_boxes",
    "sorted_list",
    "touched",
    "whole",
]

# Kinds of elements that the buffer protocol has letters for.
PLAIN_KINDS = "biufc"

Ints = tuple[int, ...]
Positions: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]


class Box(NamedTuple):
    """A part of a chunk, and its place in an array.

    Attributes
    ----------
    start, count : tuple of int
        First element and number of elements along each axis of the chunk.
    step : tuple of int or None
        Distance of the elements; None is 1 everywhere.
    at : tuple of int
        Where the first element is in the array, by axis of the chunk (axes that the array lacks: 0).
    """

    start: Ints
    count: Ints  # type: ignore[assignment]  # hides tuple.count, which nobody wants of a box
    step: Ints | None
    at: Ints


class Boxes(NamedTuple):
    """Several boxes of one object; see `pack_boxes`.

    Attributes
    ----------
    rows : ndarray of uint64, shape (n, 3 * ndim + array_ndim), C order
        In each row start, count and step by axis of the object, then where the first element is in the array, by axis
        of the array.
    """

    rows: Positions


class Lists(NamedTuple):
    """A box some of whose axes are lists of positions: all combinations of them, as with `numpy.ix_`.

    Attributes
    ----------
    start, count, step, at : tuple of int
        As in `Box`; along an axis with a list only its length `count` and `at` matter.
    froms : tuple of (ndarray of uint64 or None)
        By axis of the object: positions in ascending order; they may repeat.
    tos : tuple of (ndarray of uint64 or None)
        Where each of them is in the array, from `at` on; None: one after the other.
    """

    start: Ints
    count: Ints  # type: ignore[assignment]
    step: Ints | None
    at: Ints
    froms: tuple[Positions | None, ...]
    tos: tuple[Positions | None, ...]


class Points(NamedTuple):
    """Single elements, to an array of rank 1.

    Attributes
    ----------
    at : int
        Where the first of them is in the array.
    froms : tuple of ndarray of uint64
        By axis of the object: the position of each point.
    to : ndarray of uint64 or None
        Where each of them is in the array, from `at` on; None: one after the other.
    """

    at: int
    froms: tuple[Positions, ...]
    to: Positions | None


Parts: TypeAlias = Box | Boxes | Lists | Points


def pack_boxes(start: Any, count: Any, step: Any, at: Any) -> Boxes:
    """Pack many boxes of one object.

    Parameters
    ----------
    start, count : array_like of int, shape (n, ndim)
        First element and number of elements; `count` may be of shape (ndim,), the same for all.
    step : array_like of int or None
        As `count`; None is 1 everywhere.
    at : array_like of int, shape (n, array_ndim)
        Where the first element is, by axis of the *array*, which may have axes that the object has not.
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


def sorted_list(positions: Positions, places: Positions | None) -> tuple[Positions, Positions | None]:
    """Bring a list of positions in ascending order, its places with it; equal positions keep theirs."""
    if bool((positions[1:] >= positions[:-1]).all()):
        return positions, places
    order = np.argsort(positions, kind="stable")
    return positions[order], order.astype(np.uint64) if places is None else places[order]


def whole(shape: Sequence[int]) -> Box:
    """All of a chunk, at the origin."""
    zeros = (0,) * len(shape)
    return Box(zeros, tuple(shape), None, zeros)


def as_void(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """View an array's elements as opaque bytes.

    The buffer protocol has no letter for datetimes and structs with padding; opaque elements it always takes.
    """
    return array.view(np.dtype((np.void, array.dtype.itemsize)))


def outline(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array of the same shape for who asks where parts are, and touches no element.

    Elements of variable length are references, of which there is no view as bytes: one element stands for all of them.
    """
    if array.dtype.kind not in "OT":
        return as_void(array)
    element = np.empty((), dtype=(np.void, array.dtype.itemsize))
    return np.lib.stride_tricks.as_strided(element, array.shape, (0,) * array.ndim)


def is_empty(parts: Parts) -> bool:
    """Tell whether parts have no element at all. The engine takes none such."""
    if isinstance(parts, Points):
        return len(parts.froms[0]) == 0
    return len(parts.rows) == 0 if isinstance(parts, Boxes) else 0 in parts.count


def covers(parts: Parts, shape: Sequence[int]) -> bool:
    """Tell whether parts are all of an object, so that its old content does not matter.

    Only a box is asked: what covers an object in pieces is stored all the same, over what was there.
    """
    return isinstance(parts, Box) and parts.count == tuple(shape)


def is_filled(box: Parts, array: np.ndarray[Any, Any], axes: Sequence[int], fill: bytes) -> bool:
    """Tell whether all elements that a box takes from an array are the fill value, bit by bit.

    Of other parts the whole array is asked: one that is not filled elsewhere is taken for one that is not filled.
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
    if values[(0,) * values.ndim].tobytes() != fill:  # the usual case, told by one element
        return False
    rows = values if values.ndim else values.reshape(1)
    return all(native.load().all_equal(np.ascontiguousarray(row), fill) for row in rows)


def n_touched(parts: Parts, chain: Chain) -> int:
    """Count the inner chunks of a compiled shard that parts have elements in; boxes that share some count them twice."""
    if isinstance(parts, Points):
        return _n_touched_by_points(parts, chain)
    if isinstance(parts, Boxes):
        return min(int(_n_touched_by_rows(parts.rows, chain)), int(chain.n_chunks))
    n = 1
    for axis, extent in zip(chain.perm, chain.inner.shape, strict=True):
        if (positions := _list_of(parts, axis)) is not None:
            n *= 1 + int(np.count_nonzero(np.diff(positions.view(np.int64) // extent)))
            continue
        step = 1 if parts.step is None else parts.step[axis]
        last = parts.start[axis] + (parts.count[axis] - 1) * step
        n *= min(last // extent - parts.start[axis] // extent + 1, parts.count[axis])
    return n


def _list_of(parts: Box | Lists, axis: int) -> Positions | None:
    return parts.froms[axis] if isinstance(parts, Lists) else None


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
    parts: Parts, perm: Ints, chunk_shape: Sequence[int], grid_shape: Sequence[int]
) -> np.ndarray[Any, Any]:
    """Which inner chunks parts have elements in.

    Parameters
    ----------
    perm : tuple of int
        Stored axis i is axis ``perm[i]`` of the object.
    chunk_shape, grid_shape : sequence of int
        Of the inner chunks, in stored axes.

    Returns
    -------
    ndarray of bool, shape (prod(grid_shape),)
    """
    mask = np.zeros(tuple(grid_shape), dtype=np.bool_)
    if isinstance(parts, Points):
        mask[
            tuple(
                parts.froms[axis].view(np.int64) // extent
                for axis, extent in zip(perm, chunk_shape, strict=True)
            )
        ] = True
    elif isinstance(parts, Boxes):
        ndim = len(perm)
        for row in parts.rows.tolist():
            box = Box(tuple(row[:ndim]), tuple(row[ndim : 2 * ndim]), tuple(row[2 * ndim : 3 * ndim]), ())
            mask[np.ix_(*_touched_coordinates(box, perm, chunk_shape))] = True
    elif isinstance(parts, Box) and (ranges := _touched_ranges(parts, perm, chunk_shape)) is not None:
        mask[ranges] = True
    else:
        mask[np.ix_(*_touched_coordinates(parts, perm, chunk_shape))] = True
    return mask.reshape(-1)


def _touched_ranges(box: Box, perm: Ints, chunk_shape: Sequence[int]) -> tuple[slice, ...] | None:
    """Grid coordinates of touched inner chunks along each stored axis; None where a step leaps over some."""
    ranges = []
    for axis, extent in zip(perm, chunk_shape, strict=True):
        step = 1 if box.step is None else box.step[axis]
        if step > extent:
            return None
        last = box.start[axis] + (box.count[axis] - 1) * step
        ranges.append(slice(box.start[axis] // extent, last // extent + 1))
    return tuple(ranges)


def _touched_coordinates(
    parts: Box | Lists, perm: Ints, chunk_shape: Sequence[int]
) -> list[np.ndarray[Any, Any]]:
    """Grid coordinates of touched inner chunks along each stored axis."""
    axes = []
    for axis, extent in zip(perm, chunk_shape, strict=True):
        if (positions := _list_of(parts, axis)) is not None:
            axes.append(np.unique(positions.view(np.int64) // extent))
            continue
        step = 1 if parts.step is None else parts.step[axis]
        last = parts.start[axis] + (parts.count[axis] - 1) * step
        if step <= extent:
            axes.append(np.arange(parts.start[axis] // extent, last // extent + 1))
        else:
            axes.append(np.unique(np.arange(parts.start[axis], last + 1, step) // extent))
    return axes


def covered(
    parts: Parts, perm: Ints, chunk_shape: Sequence[int], grid_shape: Sequence[int]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which inner chunks a box has every element of; of other parts none counts. As for `touched`."""
    mask = np.zeros(tuple(grid_shape), dtype=np.bool_)
    if not isinstance(parts, Box):
        return mask.reshape(-1)
    ranges = []
    for axis, extent in zip(perm, chunk_shape, strict=True):
        step = 1 if parts.step is None else parts.step[axis]
        start, end = parts.start[axis], parts.start[axis] + (parts.count[axis] - 1) * step + 1
        if extent == 1:
            ranges.append(slice(start, end, step))
        elif step == 1:
            ranges.append(slice(-(-start // extent), end // extent))
        else:
            return mask.reshape(-1)
    mask[tuple(ranges)] = True
    return mask.reshape(-1)
