# selection.py - zarr's selections as boxes
# SPDX-License-Identifier: MIT
"""From the pair of selections that zarr gives for a chunk to a `Box`.

zarr says for each chunk what to take of it, and where that is in the array of the whole request: slices and integers
for basic indexing, index arrays for the other kinds. An integer takes an axis away from the array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..access.boxes import Box

__all__ = ["array_axes", "to_box"]


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
