# basic_selection.py - integers, slices and an ellipsis as a box
# SPDX-License-Identifier: MIT
"""The parser of basic selections in Python. Its twin in the binding, `_native.parse_selection`, leaves unusual ones to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .regions import Box

__all__ = ["parse_selection", "selected"]

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
