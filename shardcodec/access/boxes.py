# boxes.py - selections as boxes, and arrays as plain memory
# SPDX-License-Identifier: MIT
"""The form in which every surface hands work to the engine.

A `Box` is what of one chunk is wanted and where it goes: the same tuple on the way in and out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import native

__all__ = ["Box", "as_void", "covered", "is_filled", "n_touched", "touched", "whole"]

Ints = tuple[int, ...]


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


def whole(shape: Sequence[int]) -> Box:
    """All of a chunk, at the origin."""
    zeros = (0,) * len(shape)
    return Box(zeros, tuple(shape), None, zeros)


def as_void(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """View an array's elements as opaque bytes.

    The buffer protocol has no letter for datetimes and structs with padding; opaque elements it always takes.
    """
    return array.view(np.dtype((np.void, array.dtype.itemsize)))


def is_filled(box: Box, array: np.ndarray[Any, Any], axes: Sequence[int], fill: bytes) -> bool:
    """Tell whether all elements that a box takes from an array are the fill value, bit by bit."""
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


def n_touched(box: Box, chain: Any) -> int:
    """Count the inner chunks of a compiled shard that a box has elements in, without listing them."""
    n = 1
    for axis, extent in zip(chain.perm, chain.inner.shape, strict=True):
        step = 1 if box.step is None else box.step[axis]
        last = box.start[axis] + (box.count[axis] - 1) * step
        n *= min(last // extent - box.start[axis] // extent + 1, box.count[axis])
    return n


def touched(
    box: Box, perm: Ints, chunk_shape: Sequence[int], grid_shape: Sequence[int]
) -> np.ndarray[Any, Any]:
    """Which inner chunks a box has elements in.

    Parameters
    ----------
    perm : tuple of int
        Stored axis i is axis ``perm[i]`` of the box.
    chunk_shape, grid_shape : sequence of int
        Of the inner chunks, in stored axes.

    Returns
    -------
    ndarray of bool, shape (prod(grid_shape),)
    """
    mask = np.zeros(tuple(grid_shape), dtype=np.bool_)
    axes = []
    for axis, extent in zip(perm, chunk_shape, strict=True):
        step = 1 if box.step is None else box.step[axis]
        last = box.start[axis] + (box.count[axis] - 1) * step
        if step <= extent:
            axes.append(np.arange(box.start[axis] // extent, last // extent + 1))
        else:
            axes.append(np.unique(np.arange(box.start[axis], last + 1, step) // extent))
    mask[np.ix_(*axes)] = True
    return mask.reshape(-1)


def covered(
    box: Box, perm: Ints, chunk_shape: Sequence[int], grid_shape: Sequence[int]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which inner chunks a box has every element of. Arguments and result as for `touched`."""
    mask = np.zeros(tuple(grid_shape), dtype=np.bool_)
    axes = []
    for axis, extent in zip(perm, chunk_shape, strict=True):
        step = 1 if box.step is None else box.step[axis]
        start, end = box.start[axis], box.start[axis] + (box.count[axis] - 1) * step + 1
        if extent == 1:
            axes.append(np.arange(start, end, step))
        elif step == 1:
            axes.append(np.arange(-(-start // extent), end // extent))
        else:
            return mask.reshape(-1)
    mask[np.ix_(*axes)] = True
    return mask.reshape(-1)
