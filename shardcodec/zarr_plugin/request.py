# request.py - from a batch of zarr's pipeline to a request of the engine
# SPDX-License-Identifier: MIT
"""`prepare`: from a batch of zarr's pipeline to an `access.array_request.Request`, with zarr's selections as those of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from ..access.array_request import Request
from ..access.compiled_chains import memory_order
from ..access.read import ObjectSelection
from ..access.regions import Box, Lists, Points, Positions, Selection, as_range, is_empty, sorted_list
from ..access.selection import selected
from ..compat import StorePath, as_numpy
from ..storage.kinds import is_zarr_store, store_of
from ..storage.store import Store

if TYPE_CHECKING:
    from .._native import Chain


__all__ = [
    "Refusal",
    "array_axes",
    "fits",
    "prepare",
    "selected_axes",
    "to_box",
    "to_selection",
]


# For each chunk, zarr passes a selection of the chunk and a selection of the array. In this module, *the array* is the array
# in memory that a read fills or a write stores.
#
# =============  ==========================================================  ================================
# kind           of the chunk                                                of the array
# =============  ==========================================================  ================================
# basic, block   slices, and integers, which remove an axis                  a slice for each axis
# orthogonal     one index array among slices; or index arrays for all       slices; or index arrays, of rank 1
#                axes, shaped as by `numpy.ix_`. zarr 3.1 passes only the    or shaped as by `numpy.ix_`
#                latter. It passes integers as arrays then, and their axes
#                as `drop_axes`. An array of booleans is as long as the
#                chunk
# coordinates,   arrays of rank 1, one for each axis, all of one length      a slice or an array of rank 1, not
# mask                                                                       in a tuple; the array has rank 1
# =============  ==========================================================  ================================
#
# Index arrays with a constant step become slices, so that they are as fast as a box.

Ints = tuple[int, ...]


def array_axes(chunk_selection: Any) -> tuple[int, ...] | None:
    """Return the axis of the array for each axis of the chunk, -1 for an integer; None if the selection is not basic."""
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
    """Translate the two selections that zarr passes for one chunk to a `Box`, if they are slices and integers.

    axes: from `array_axes` for the first chunk of the request. shape: that of the chunk. None if the selection is not basic,
    has a step below 1, or takes away other axes than that of the first chunk.
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
    for index, axis, extent in zip(chunk_selection, axes, shape, strict=True):
        positions = selected(index, extent)
        if positions is None or isinstance(index, slice) is (axis < 0):
            return None
        n = len(positions)
        by = positions.step
        if by != 1:
            by = by if n > 1 else 1  # a step has no effect on one element
            plain = plain and by == 1
        if axis < 0:
            at.append(0)
        else:
            target = array_selection[axis] if axis < len(array_selection) else None
            if (
                not isinstance(target, slice)
                or target.start is None
                or n != target.stop - target.start
                or target.step not in (None, 1)
            ):
                return None
            at.append(target.start)
        start.append(positions.start)
        count.append(n)
        step.append(by)
    return Box(tuple(start), tuple(count), None if plain else tuple(step), tuple(at))


def selected_axes(
    chunk_selection: Any, array_selection: Any, drop_axes: Sequence[int] = ()
) -> tuple[Ints, int] | None:
    """Map each axis of the chunk to an axis of the array, for a selection of any kind, and count the axes of the array.

    drop_axes: axes of the chunk that the array does not have, because an orthogonal selection has an integer there. An axis
    that the array does not have is -1. Coordinates and masks of two or more axes select single elements, so all are -1. None
    for a selection that no known version of zarr passes.
    """
    axes = None if drop_axes else array_axes(chunk_selection)
    if axes is not None:
        return axes, sum(axis >= 0 for axis in axes)
    if not isinstance(chunk_selection, tuple) or not chunk_selection:
        return None
    if not isinstance(array_selection, tuple):  # coordinates
        return ((0,), 1) if len(chunk_selection) == 1 else ((-1,) * len(chunk_selection), 1)
    dropped = {*drop_axes, *(i for i, part in enumerate(chunk_selection) if isinstance(part, int))}
    numbered = []
    n = 0
    for i in range(len(chunk_selection)):
        numbered.append(-1 if i in dropped else n)
        n += i not in dropped
    return tuple(numbered), n


def to_selection(
    chunk_selection: Any, array_selection: Any, axes: Sequence[int], shape: Sequence[int]
) -> Selection | None:
    """Translate the two selections that zarr passes for one chunk to one selection of the engine.

    The table at the top of this file lists the forms that zarr uses. Positions outside the chunk raise nothing here: the engine
    refuses them. axes: from `selected_axes`; they are the same for all chunks of the request. shape: that of the chunk. None
    for a negative step, and for a selection that no known version of zarr passes; zarr's own code handles these.
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


def fits(parts: Selection, axes: Sequence[int], array_shape: Sequence[int]) -> bool:
    """Return True if the array has an element for each selected one; if not, numpy would broadcast the array."""
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
    """Translate coordinates: one array of integers for each axis, all of one length. None for any other selection."""
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
    """Translate axis by axis; return a `Box` if each axis is, or equals, a slice. None if an axis cannot be translated."""
    if sum(isinstance(part, np.ndarray) and part.ndim == 1 for part in chunk_selection) > 1:
        return None  # numpy takes several arrays of rank 1 as coordinates
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
    """Return the selected positions along one axis of the chunk, as a range if they have a constant positive step.

    Returns None if the selection is not of a known kind.
    """
    if not isinstance(part, np.ndarray):
        return selected(part, extent)
    if not _is_along(part, axis, ndim):
        return None
    numbers = _positions(np.flatnonzero(part) if part.dtype == bool else part)
    return None if numbers is None else as_range(numbers) or numbers


def _places(part: Any, axis: int, ndim: int, n: int) -> tuple[int, Positions | None] | None:
    """Return where n elements lie along one axis of the array, as `at` and `to` of `Points`.

    Consecutive elements are the first position and None. Others are 0 and an array of n positions. None is returned if the
    selection is not of a known kind.
    """
    if isinstance(part, slice):
        if part.start is None or part.stop - part.start != n or part.step not in (None, 1):
            return None
        return int(part.start), None
    if not isinstance(part, np.ndarray) or part.size != n or not _is_along(part, axis, ndim):
        return None
    places = _positions(part)
    if places is None:
        return None
    chosen = as_range(places)
    return (0, places) if chosen is None or chosen.step != 1 else (chosen.start, None)


def _is_along(array: np.ndarray[Any, Any], axis: int, ndim: int) -> bool:
    """Return True if an array has rank 1, or the shape that `numpy.ix_` gives it for this axis."""
    return array.ndim == 1 or (array.ndim == ndim and array.shape[axis] == array.size)


def _positions(array: np.ndarray[Any, Any]) -> Positions | None:
    """Return integers as uint64, the type of the engine; None for another type, such as bool.

    Negative integers become very large, so the engine refuses them.
    """
    if array.dtype.kind not in "iu":
        return None
    return np.ascontiguousarray(array.reshape(-1), dtype=np.int64).view(np.uint64)


GetChain: TypeAlias = "Callable[[tuple[int, ...], bool], Chain]"


class Refusal(Exception):
    """The engine cannot handle a request; the message states the reason."""


def prepare(
    batch: Sequence[Any],
    buffer: Any,
    drop_axes: Sequence[int],
    dtype: np.dtype[Any],
    get_chain: GetChain,
    usual: tuple[Any, Store],
    *,
    is_plain: bool = False,
) -> Request:
    """Translate a batch of `CodecPipeline.read` or `write`, which is not empty; `Refusal` if the engine cannot handle it.

    buffer: destination or source; a source of rank 0 is the value of every element. drop_axes: axes that zarr removes
    afterwards; only orthogonal selections have some. get_chain: takes a chunk shape and whether the memory has the native byte
    order. usual: the zarr store of the array, and its `Store`. is_plain: zarr writes objects of this array as a whole, and not
    by inner chunks. The request has the selections with at least one element.
    """
    array = as_numpy(buffer)
    if array is None:
        raise Refusal("expected buffers of numpy")
    native_order = memory_order(array.dtype, dtype)
    if native_order is None:
        raise Refusal(f"expected memory of dtype {dtype}, got {array.dtype}")
    selected = selected_axes(batch[0][2], batch[0][3], drop_axes)
    if selected is None:
        raise Refusal("selection of an unknown kind")
    axes, rank = selected
    scalar = array.ndim == 0
    if not scalar and array.ndim != rank:
        raise Refusal(f"expected an array of rank {rank} for the selection, got rank {array.ndim}")
    base = _common_store(batch)
    store = usual[1] if base is usual[0] else store_of(base)
    store = store.with_prototype(batch[0][1].prototype)
    items, positions = [], []
    chain: Chain | None = None
    chain_shape: tuple[int, ...] = ()
    for position, (target, chunk_spec, chunk_selection, array_selection, is_complete) in enumerate(batch):
        if chain is None or chunk_spec.shape != chain_shape:
            chain_shape = chunk_spec.shape
            chain = get_chain(chain_shape, native_order)
        box = to_selection(chunk_selection, array_selection, axes, chain_shape)
        if box is None:
            raise Refusal("selection of an unknown kind")
        if not scalar and not fits(box, axes, array.shape):
            raise Refusal(f"an array of shape {array.shape} would have to be broadcast")
        if not is_empty(box):
            # zarr says of boxes only that they have all elements within the array
            inside = box.count if is_complete and isinstance(box, Box) and not is_plain else None
            items.append(
                ObjectSelection(target.path, chain, box, None, is_plain and bool(is_complete), inside)
            )
            positions.append(position)
    return Request(store, items, positions, (-1,) * len(axes) if scalar else axes, array, batch[0][1])


def _common_store(batch: Sequence[Any]) -> Any:
    first = batch[0][0]
    if type(first) is not StorePath:
        raise Refusal(f"expected a StorePath for each object, got {type(first).__name__}")
    store = first.store
    if not is_zarr_store(store):
        raise Refusal(f"expected a zarr store, got {type(store).__name__}")
    for target, *_ in batch:
        if type(target) is not StorePath or target.store is not store:
            raise Refusal("expected objects of one store, got several stores")
    return store
