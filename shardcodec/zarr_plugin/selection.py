# selection.py - zarr's selections as what the engine takes
# SPDX-License-Identifier: MIT
"""From the pair of selections that zarr gives for a chunk to `Parts` of it.

zarr says for each chunk what to take of it, and where that is in the array of the whole request:

=============  ==========================================================  ================================
kind           of the chunk                                                in the array
=============  ==========================================================  ================================
basic, block   slices, and integers, which take an axis away               a slice for each axis
orthogonal     one array among slices; or arrays for all axes, shaped as   slices; or arrays, of rank 1 or
               by `numpy.ix_`, and then integers are arrays too, whose     shaped as by `numpy.ix_`
               axes are named to be dropped. zarr 3.1 knows only the
               latter. An array of booleans is as long as the chunk
coordinates,   arrays of rank 1, one for each axis, all of one length      a slice or an array of rank 1, not
mask                                                                       in a tuple; the array has rank 1
=============  ==========================================================  ================================

Arrays that are slices in disguise become slices again, so that what they select costs no more than a box.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..access.regions import Box, Lists, Parts, Points, Positions, sorted_list

__all__ = ["array_axes", "fits", "selected_axes", "to_box", "to_parts"]

Ints = tuple[int, ...]


def array_axes(chunk_selection: Any) -> tuple[int, ...] | None:
    """Return which axis of the array each axis of the chunk is, -1 for integers; None when it is no basic selection."""
    if not isinstance(chunk_selection, tuple):
        return None
    axes = []
    n = 0
    for part in chunk_selection:
        if isinstance(part, slice):
            axes.append(n)
            n += 1
        elif isinstance(part, int):
            axes.append(-1)
        else:
            return None
    return tuple(axes)


def to_box(
    chunk_selection: Any, array_selection: Any, axes: Sequence[int], shape: Sequence[int]
) -> Box | None:
    """Turn one chunk's selections into a box.

    Parameters
    ----------
    chunk_selection, array_selection : tuple
        As zarr passes them.
    axes : sequence of int
        From `array_axes` of the first chunk of the request.
    shape : sequence of int
        Of the chunk.

    Returns
    -------
    Box or None
        None for anything but a basic selection of that pattern.
    """
    if (
        not isinstance(chunk_selection, tuple)
        or not isinstance(array_selection, tuple)
        or len(chunk_selection) != len(axes)
        or len(axes) != len(shape)
    ):
        return None
    start, count, step, at = [], [], [], []
    plain = True
    for part, axis, extent in zip(chunk_selection, axes, shape, strict=True):
        if axis < 0:
            if not isinstance(part, int):
                return None
            start.append(part)
            count.append(1)
            step.append(1)
            at.append(0)
            continue
        target = array_selection[axis] if axis < len(array_selection) else None
        if not isinstance(part, slice) or not isinstance(target, slice):
            return None
        first, stop, stride = part.indices(extent)
        n = len(range(first, stop, stride))
        if (
            stride < 1
            or target.start is None
            or n != target.stop - target.start
            or target.step not in (None, 1)
        ):
            return None
        if n <= 1:
            stride = 1  # there is no second element for it to lead to
        plain = plain and stride == 1
        start.append(first)
        count.append(n)
        step.append(stride)
        at.append(target.start)
    return Box(tuple(start), tuple(count), None if plain else tuple(step), tuple(at))


def selected_axes(
    chunk_selection: Any, array_selection: Any, drop_axes: Sequence[int] = ()
) -> tuple[Ints, int] | None:
    """Return which axis of the array each axis of the chunk is, -1 for none, and the rank of the array.

    None when it is no selection that zarr is known to make.
    """
    axes = None if drop_axes else array_axes(chunk_selection)
    if axes is not None:
        return axes, sum(axis >= 0 for axis in axes)
    if not isinstance(chunk_selection, tuple) or not chunk_selection:
        return None
    if not isinstance(array_selection, tuple):  # coordinates
        return ((0,), 1) if len(chunk_selection) == 1 else ((-1,) * len(chunk_selection), 1)
    dropped = {*drop_axes, *(i for i, part in enumerate(chunk_selection) if isinstance(part, int))}
    found = []
    n = 0
    for i in range(len(chunk_selection)):
        found.append(-1 if i in dropped else n)
        n += i not in dropped
    return tuple(found), n


def to_parts(
    chunk_selection: Any, array_selection: Any, axes: Sequence[int], shape: Sequence[int]
) -> Parts | None:
    """Turn one chunk's selections, of whatever kind, into parts of it; None where `selected_axes` is.

    Parameters
    ----------
    chunk_selection, array_selection
        As zarr passes them.
    axes : sequence of int
        From `selected_axes` of the first chunk of the request.
    shape : sequence of int
        Of the chunk.
    """
    box = to_box(chunk_selection, array_selection, axes, shape)
    if box is not None:
        return box
    if not isinstance(chunk_selection, tuple) or not 0 < len(chunk_selection) == len(axes) == len(shape):
        return None
    if isinstance(array_selection, tuple):
        return _to_lists(chunk_selection, array_selection, axes, shape)
    if len(shape) == 1:
        return _to_lists(chunk_selection, (array_selection,), axes, shape)
    return _to_points(chunk_selection, array_selection)


def fits(parts: Parts, axes: Sequence[int], array_shape: Sequence[int]) -> bool:
    """Tell whether the places of parts are inside the array; if not, the array is one that numpy would repeat."""
    if isinstance(parts, Points):
        end = len(parts.froms[0]) if parts.to is None else int(parts.to.max(initial=0)) + 1
        return parts.at + end <= array_shape[0]
    assert isinstance(parts, Box | Lists)
    for i, axis in enumerate(axes):
        places = parts.tos[i] if isinstance(parts, Lists) else None
        end = parts.count[i] if places is None else int(places.max(initial=0)) + 1
        if axis >= 0 and parts.at[i] + end > array_shape[axis]:
            return False
    return True


def _to_points(chunk_selection: tuple[Any, ...], array_selection: Any) -> Points | None:
    froms = [
        _positions(part) if isinstance(part, np.ndarray) and part.ndim == 1 and part.dtype != bool else None
        for part in chunk_selection
    ]
    if any(numbers is None or froms[0] is None or len(numbers) != len(froms[0]) for numbers in froms):
        return None
    place = _places(array_selection, 0, 1, len(chunk_selection[0]))
    return None if place is None else Points(place[0], tuple(froms), place[1])  # type: ignore[arg-type]


def _to_lists(
    chunk_selection: tuple[Any, ...],
    array_selection: tuple[Any, ...],
    axes: Sequence[int],
    shape: Sequence[int],
) -> Box | Lists | None:
    """Axis by axis; a `Box` when all of them turn out to be slices."""
    if sum(isinstance(part, np.ndarray) and part.ndim == 1 for part in chunk_selection) > 1:
        return None  # several arrays of rank 1 are coordinates for numpy
    n_axes = sum(axis >= 0 for axis in axes)
    start, count, step, at = [], [], [], []
    froms: list[Positions | None] = []
    tos: list[Positions | None] = []
    for i, (part, axis, extent) in enumerate(zip(chunk_selection, axes, shape, strict=True)):
        numbers = _numbers(part, i, len(shape), extent)
        if numbers is None or axis >= len(array_selection):
            return None
        place = (0, None) if axis < 0 else _places(array_selection[axis], axis, n_axes, len(numbers))
        if place is None or (axis < 0 and len(numbers) != 1):
            return None
        first, places = place
        if isinstance(numbers, range) and places is not None:
            numbers = np.arange(numbers.start, numbers.stop, numbers.step).astype(np.uint64)
        if not isinstance(numbers, range):
            numbers, places = sorted_list(numbers, places)
        chosen = numbers if isinstance(numbers, range) else None
        start.append(chosen.start if chosen else 0)
        count.append(len(numbers))
        step.append(chosen.step if chosen and len(chosen) > 1 else 1)
        at.append(first)
        froms.append(None if isinstance(numbers, range) else numbers)
        tos.append(places)
    steps = None if set(step) <= {1} else tuple(step)
    if all(numbers is None for numbers in froms):
        return Box(tuple(start), tuple(count), steps, tuple(at))
    return Lists(tuple(start), tuple(count), steps, tuple(at), tuple(froms), tuple(tos))


def _numbers(part: Any, axis: int, ndim: int, extent: int) -> range | Positions | None:
    """Positions along one axis of the chunk: a range where they go up by one step, however they are written."""
    if isinstance(part, slice):
        chosen = range(*part.indices(extent))
        return chosen if chosen.step > 0 else None
    if isinstance(part, int):
        return range(part, part + 1)
    if not isinstance(part, np.ndarray) or not _is_along(part, axis, ndim):
        return None
    numbers = _positions(np.flatnonzero(part) if part.dtype == bool else part)
    return None if numbers is None else _as_range(numbers) or numbers


def _places(part: Any, axis: int, ndim: int, n: int) -> tuple[int, Positions | None] | None:
    """Where n elements are along one axis of the array: the first place, and from there on a list, or None."""
    if isinstance(part, slice):
        if part.start is None or part.stop - part.start != n or part.step not in (None, 1):
            return None
        return int(part.start), None
    if not isinstance(part, np.ndarray) or part.size != n or not _is_along(part, axis, ndim):
        return None
    places = _positions(part)
    if places is None:
        return None
    chosen = _as_range(places)
    return (0, places) if chosen is None or chosen.step != 1 else (chosen.start, None)


def _is_along(array: np.ndarray[Any, Any], axis: int, ndim: int) -> bool:
    """Whether an array is of rank 1, or shaped for this axis as by `numpy.ix_`."""
    return array.ndim == 1 or (array.ndim == ndim and array.shape[axis] == array.size)


def _positions(array: np.ndarray[Any, Any]) -> Positions | None:
    """Integers as the engine takes them. Negative ones become huge, and are refused there."""
    if array.dtype.kind not in "iu":
        return None
    return np.ascontiguousarray(array.reshape(-1), dtype=np.int64).view(np.uint64)


def _as_range(numbers: Positions) -> range | None:
    """The same numbers as a range that goes up; None where there is none."""
    n = len(numbers)
    if n == 0:
        return range(0)
    first, last = int(numbers[0]), int(numbers[-1])
    step = int(numbers[1]) - first if n > 1 else 1
    if step < 1 or last - first != step * (n - 1) or not (numbers[1:] - numbers[:-1] == step).all():
        return None
    return range(first, last + 1, step)
