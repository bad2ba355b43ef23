# selection.py - what a caller selects of an array
# SPDX-License-Identifier: MIT
"""Selections as users write them: integers, slices, lists, coordinates, masks, whole objects.

`parse_selection` parses basic ones; its twin in the binding, `_native.parse_selection`, leaves unusual ones to it. The functions
of `KINDS` split a selection of any kind along the objects of an array, for handles without a zarr array.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .regions import Box, Lists, Points, Positions, Selection, as_range, whole
from .split_by_object import along_objects, object_boxes

__all__ = ["KINDS", "ArraySelection", "brackets", "is_list", "parse_selection", "selected"]

Ints = tuple[int, ...]


def selected(index: Any, extent: int) -> range | None:
    """Return the positions that a slice or an integer selects along an axis; None for any other index.

    An integer outside the axis and a slice with a negative step give None, too.
    """
    if isinstance(index, slice):
        positions = range(*index.indices(extent))
        return positions if positions.step > 0 else None
    position = index if type(index) is int else _as_integer(index)
    if position is None or not -extent <= position < extent:
        return None
    position %= extent
    return range(position, position + 1)


def parse_selection(selection: Any, shape: Ints) -> tuple[Box, Ints, Ints]:
    """Parse integers, slices with positive step, an ellipsis, or a tuple of them; None selects all.

    Returns the box, for each axis of the array its axis in the result (-1 for an integer), and the shape of the result.
    IndexError: the selection is of another kind, or it lies outside the array.
    """
    start, count, step, axes = [], [], [], []
    remaining: list[int] = []
    for axis, (index, extent) in enumerate(zip(_expand(selection, len(shape)), shape, strict=True)):
        positions = selected(index, extent)
        if positions is None:
            raise _refusal(index, extent, axis)
        n = len(positions)
        if isinstance(index, slice):
            axes.append(len(remaining))
            remaining.append(n)
        else:
            axes.append(-1)
        start.append(positions.start)
        count.append(n)
        step.append(positions.step if n > 1 else 1)
    steps = None if set(step) <= {1} else tuple(step)
    return Box(tuple(start), tuple(count), steps, (0,) * len(shape)), tuple(axes), tuple(remaining)


def _expand(selection: Any, ndim: int) -> tuple[Any, ...]:
    """Return one index for each axis."""
    if selection is None:
        selection = ()
    indices = selection if isinstance(selection, tuple) else (selection,)
    ellipses = sum(index is Ellipsis for index in indices)
    if ellipses > 1:
        raise IndexError(f"selection: expected at most one ellipsis, got {ellipses}")
    if len(indices) - ellipses > ndim:
        raise IndexError(
            f"selection: expected at most {ndim} indices, one per axis, got {len(indices) - ellipses}"
        )
    rest = (slice(None),) * (ndim - len(indices) + ellipses)
    if not ellipses:
        return (*indices, *rest)
    place = next(i for i, index in enumerate(indices) if index is Ellipsis)
    return (*indices[:place], *rest, *indices[place + 1 :])


def _as_integer(index: Any) -> int | None:
    """Return an integer of any type; None for anything else, and for a boolean, which numpy takes as a mask."""
    if isinstance(index, bool | np.bool_):
        return None
    try:
        return index.__index__()  # type: ignore[no-any-return]
    except (AttributeError, TypeError):
        return None


def _refusal(index: Any, extent: int, axis: int) -> IndexError:
    if isinstance(index, slice):
        return IndexError(f"axis {axis}: expected a positive step, got {index.step}")
    if _as_integer(index) is None:
        return IndexError(f"axis {axis}: expected an integer, a slice or an ellipsis, got {index!r}")
    return IndexError(f"axis {axis}: expected {-extent} <= index < {extent}, got {index!r}")


class ArraySelection(NamedTuple):
    """The elements of an array that a caller selects, object by object.

    parts: grid position of each object, and its elements; none if nothing is selected. axes: for each axis of the array its
    axis in the memory of the caller, -1 for none. shape: that of the memory. result: the shape that the caller sees, with as
    many elements.
    """

    parts: list[tuple[Ints, Selection]]
    axes: Ints
    shape: Ints
    result: Ints


def basic(selection: Any, shape: Ints, extents: Ints) -> ArraySelection:
    """Parse as `parse_selection`."""
    box, axes, remaining = parse_selection(selection, shape)
    return ArraySelection(
        [] if 0 in box.count else list(object_boxes(box, extents)), axes, remaining, remaining
    )


def block(selection: Any, shape: Ints, extents: Ints) -> ArraySelection:
    """Parse a selection of whole objects: integers and slices without a step count the objects along each axis."""
    slices = []
    for axis, (index, size, extent) in enumerate(
        zip(_expand(selection, len(shape)), shape, extents, strict=True)
    ):
        n = -(-size // extent)
        positions = selected(index, n)
        begins_outside = isinstance(index, slice) and index.start is not None and not -n <= index.start < n
        if isinstance(index, slice) and (positions is None or positions.step != 1 or begins_outside):
            raise IndexError(
                f"axis {axis}: expected a slice without a step that begins in {n} blocks, got {index}"
            )
        if positions is None:
            raise _refusal(index, n, axis)
        slices.append(slice(positions.start * extent, min(positions.stop * extent, size)))
    return basic(tuple(slices), shape, extents)


def orthogonal(selection: Any, shape: Ints, extents: Ints) -> ArraySelection:
    """Parse a selection with lists of positions, or masks, along axes; all combinations are selected, as with `numpy.ix_`."""
    along: list[list[_Piece]] = []
    axes: list[int] = []
    remaining: list[int] = []
    for axis, (index, size, extent) in enumerate(
        zip(_expand(selection, len(shape)), shape, extents, strict=True)
    ):
        if is_list(index):
            numbers = _positions(index, size, axis)
            if numbers.ndim != 1:
                raise IndexError(f"axis {axis}: expected a list with one axis, got shape {numbers.shape}")
            pieces, n = list(_list_pieces(numbers, extent)), len(numbers)
        elif (positions := selected(index, size)) is not None:
            n = len(positions)
            pieces = [
                _Piece(coordinate, start, count, positions.step if count > 1 else 1, at)
                for coordinate, start, count, at in along_objects(positions.start, n, positions.step, extent)
            ]
        else:
            raise _refusal(index, size, axis)
        along.append(pieces)
        is_kept = is_list(index) or isinstance(index, slice)
        axes.append(len(remaining) if is_kept else -1)
        if is_kept:
            remaining.append(n)
    parts = [_combined(pieces) for pieces in itertools.product(*along)]
    return ArraySelection(parts, tuple(axes), tuple(remaining), tuple(remaining))


def points(selection: Any, shape: Ints, extents: Ints) -> ArraySelection:
    """Parse coordinates: for each axis an array of positions, broadcast against each other; or one mask of all elements."""
    indices = selection if isinstance(selection, tuple) else (selection,)
    if len(indices) == 1 and np.asarray(indices[0]).dtype == bool and np.ndim(indices[0]) == len(shape):
        return mask(indices[0], shape, extents)
    if len(indices) != len(shape):
        raise IndexError(f"coordinates: expected {len(shape)} arrays, one per axis, got {len(indices)}")
    arrays = [
        np.atleast_1d(_positions(index, size, axis))  # zarr takes an integer as a list of one
        for axis, (index, size) in enumerate(zip(indices, shape, strict=True))
    ]
    if _is_mesh(arrays):
        return orthogonal(tuple(numbers.reshape(-1) for numbers in arrays), shape, extents)
    try:
        together = np.broadcast_arrays(*arrays)
    except ValueError:
        raise IndexError(
            f"coordinates: expected arrays of one shape, got {[a.shape for a in arrays]}"
        ) from None
    return _points(together, shape, extents)


def mask(selection: Any, shape: Ints, extents: Ints) -> ArraySelection:
    """Parse a mask: an array of booleans with the shape of the array."""
    indices = selection if isinstance(selection, tuple) else (selection,)
    if len(indices) != 1:
        raise IndexError(f"mask: expected one array of booleans, got {len(indices)} indices")
    flags = np.asarray(indices[0])
    if flags.dtype != bool or flags.shape != shape:
        raise IndexError(
            f"mask: expected booleans of shape {shape}, got {flags.dtype} of shape {flags.shape}"
        )
    return _points(np.nonzero(flags), shape, extents)


def brackets(selection: Any, shape: Ints, extents: Ints) -> ArraySelection:
    """Parse what zarr accepts in square brackets: a basic selection, a list or mask along one axis, coordinates, or a mask."""
    indices = selection if isinstance(selection, tuple) else (selection,)
    lists = [index for index in indices if is_list(index)]
    if not lists:
        return basic(selection, shape, extents)
    masks = [np.asarray(index).dtype == bool for index in lists]
    is_mask = len(indices) == 1 and masks[0] and np.ndim(lists[0]) == len(shape)
    are_lines = all(np.ndim(index) == 1 for index in lists)
    if are_lines and not is_mask and (len(lists) == 1 or (any(masks) and len(lists) == len(shape))):
        return orthogonal(selection, shape, extents)
    if is_mask or not (any(masks) or any(isinstance(index, slice) or index is Ellipsis for index in indices)):
        return points(selection, shape, extents)
    raise IndexError("selection: expected at most one list or mask beside slices; use `oindex` or `vindex`")


# The kinds of selections, as zarr names them.
KINDS: dict[str, Callable[[Any, Ints, Ints], ArraySelection]] = {
    "brackets": brackets,
    "basic": basic,
    "orthogonal": orthogonal,
    "coordinate": points,
    "mask": mask,
    "block": block,
}


class _Piece(NamedTuple):
    """The selected elements of one object along one axis; the fields are those of `Lists`, for one axis."""

    coordinate: int
    start: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    step: int
    at: int
    froms: Positions | None = None
    tos: Positions | None = None


def _combined(pieces: Sequence[_Piece]) -> tuple[Ints, Selection]:
    """Return the elements of one object from its pieces along all axes."""
    if not pieces:
        return (), whole(())
    coords, start, count, step, at, froms, tos = zip(*pieces, strict=True)
    steps = None if set(step) == {1} else step
    if all(numbers is None for numbers in froms):
        return coords, Box(start, count, steps, at)
    return coords, Lists(start, count, steps, at, froms, tos)


def is_list(index: Any) -> bool:
    """Return True for a list or an array with at least one axis."""
    return isinstance(index, list) or (isinstance(index, np.ndarray) and index.ndim > 0)


def _positions(index: Any, size: int, axis: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a list or a mask along an axis as positions; IndexError if one lies outside of the axis."""
    numbers = np.asarray(index)
    if numbers.dtype == bool:
        if numbers.shape != (size,):
            raise IndexError(f"axis {axis}: expected a mask of {size} booleans, got shape {numbers.shape}")
        return np.flatnonzero(numbers)
    if numbers.size == 0 and numbers.dtype.kind == "f":  # an empty list
        numbers = numbers.astype(np.int64)
    if numbers.dtype.kind not in "iu":
        raise IndexError(f"axis {axis}: expected integers or booleans, got {numbers.dtype}")
    is_outside = (numbers < -size) | (numbers >= size)
    if is_outside.any():
        raise IndexError(
            f"axis {axis}: expected {-size} <= index < {size}, got {numbers[is_outside].flat[0]}"
        )
    positions = numbers.astype(np.int64)
    return np.where(positions < 0, positions + size, positions)


def _list_pieces(numbers: np.ndarray[Any, np.dtype[np.int64]], extent: int) -> Iterator[_Piece]:
    """Split positions along one axis into pieces; a piece with a constant step becomes a slice, which is faster."""
    is_sorted = bool((numbers[1:] >= numbers[:-1]).all())
    order = None if is_sorted else np.argsort(numbers, kind="stable")
    ordered = numbers if order is None else numbers[order]
    coordinates, first = np.unique(ordered // extent, return_index=True)
    for coordinate, a, b in zip(coordinates.tolist(), first, [*first[1:], len(ordered)], strict=False):
        froms = (ordered[a:b] - coordinate * extent).astype(np.uint64)
        tos = None if order is None else order[a:b].astype(np.uint64)
        if tos is None and (positions := as_range(froms)) is not None:
            yield _Piece(coordinate, positions.start, len(positions), positions.step, int(a))
        else:
            yield _Piece(coordinate, 0, int(b - a), 1, int(a) if tos is None else 0, froms, tos)


def _is_mesh(arrays: Sequence[np.ndarray[Any, Any]]) -> bool:
    """Return True for arrays as `numpy.ix_` makes them: each has its positions along its own axis."""
    return len(arrays) > 1 and all(
        numbers.ndim == len(arrays) and numbers.shape[axis] == numbers.size
        for axis, numbers in enumerate(arrays)
    )


def _points(arrays: Sequence[np.ndarray[Any, Any]], shape: Ints, extents: Ints) -> ArraySelection:
    """Return single elements; the objects are in the order of the grid."""
    result: Ints = arrays[0].shape if arrays else ()
    numbers = [array.reshape(-1) for array in arrays]
    if len(shape) < 2:
        return orthogonal(tuple(numbers), shape, extents)._replace(result=result)
    coordinates = np.array([array // extent for array, extent in zip(numbers, extents, strict=True)])
    order = np.lexsort(coordinates[::-1])
    is_new = (np.diff(coordinates[:, order]) != 0).any(axis=0)
    parts: list[tuple[Ints, Selection]] = []
    for chosen in np.split(order, np.flatnonzero(is_new) + 1) if len(order) else ():
        coords = tuple(coordinates[:, chosen[0]].tolist())
        froms = tuple(
            (array[chosen] - coordinate * extent).astype(np.uint64)
            for array, coordinate, extent in zip(numbers, coords, extents, strict=True)
        )
        parts.append((coords, Points(0, froms, chosen.astype(np.uint64))))
    return ArraySelection(parts, (-1,) * len(shape), (len(order),), result)
