# chunk_regions.py - selections of one object, split along its inner chunks, as indices for numpy
# SPDX-License-Identifier: MIT
"""Copy between inner chunks and an array with numpy.

The engine does this with strides. Arrays with elements of variable length, and arrays from codecs written in Python, need
numpy. numpy selects positions; the engine copies texts (StringDType), because numpy before 2.5 stores wrong ones, or ends the process,
in assignments with index arrays, with values that are repeated, or with 255 bytes (numpy #27737, #32153, #29261).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import native
from .regions import Box, Boxes, Lists, Points, Selection

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Cuts", "cuts_of"]

Index = tuple[Any, ...]
Array = np.ndarray[Any, Any]
# A view of the array with the axes of an inner chunk, the first element of the box in the chunk, and its steps.
ArrayBox = tuple[Array, list[int], list[int]]


class Cuts:
    """A selection of one object, split along its inner chunks. An object that is not a shard counts as one inner chunk.

    Decoded inner chunks have their axes in stored order; everything else uses the axes of the object. chunk_shape: shape of a
    decoded inner chunk that is not clipped.
    """

    def __init__(self, chain: Chain) -> None:
        rank = len(chain.shape)
        self.chunk_shape: tuple[int, ...] = tuple(chain.inner.shape if chain.is_shard else chain.shape)
        self._perm: tuple[int, ...] = chain.perm if chain.is_shard else tuple(range(rank))
        self._grid: tuple[int, ...] = chain.grid_shape if chain.is_shard else (1,) * rank
        self._inverse = tuple(sorted(range(rank), key=self._perm.__getitem__))
        self._extents = tuple(self.chunk_shape[axis] for axis in self._inverse)
        self._shape: tuple[int, ...] = tuple(chain.shape)

    def shape_at(self, position: int | None) -> tuple[int, ...]:
        """Return the shape of a decoded inner chunk, clipped to the shard. None stands for an object that is one chunk."""
        if position is None:
            return self.chunk_shape
        coords = self._coords(position)
        return tuple(
            min(extent, self._shape[axis] - coords[axis] * extent)
            for extent, axis in zip(self.chunk_shape, self._perm, strict=True)
        )

    def positions(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Return the positions of the selected inner chunks, in C order over the stored grid."""
        raise NotImplementedError

    def is_whole(self, position: int) -> bool:
        """Return True if all elements of an inner chunk are known to be selected, so that its old content is not needed."""
        raise NotImplementedError

    def gives(self, position: int, inside: Sequence[int] | None) -> bool:
        """Return True if all elements of an inner chunk within the first `inside` of the object are selected."""
        if inside is None:
            return False
        rows = zip(inside, self._coords(position), self._extents, strict=True)
        return self._has_first(position, [max(0, min(extent, n - c * extent)) for n, c, extent in rows])

    def _has_first(self, position: int, counts: Sequence[int]) -> bool:
        """Return True if the first elements of an inner chunk along each axis of the object are known to be selected."""
        return not any(counts)

    def scatter(self, position: int, chunk: Array, array: Array) -> None:
        """Copy the selected elements of a decoded inner chunk to their places in the array."""
        raise NotImplementedError

    def boxes(self, position: int, array: Array) -> list[ArrayBox] | None:
        """Return the selected elements of an inner chunk as boxes, with their places in the array; None if they are no boxes."""
        return None

    def gather(self, position: int, array: Array, chunk: Array) -> None:
        """Copy elements of the array to their places in a decoded inner chunk."""
        raise NotImplementedError

    def whole_view(self, position: int, array: Array) -> Array | None:
        """Return the elements of an inner chunk that is written whole as a view of the array; None for another selection.

        The view is read-only if the array lacks axes of the chunk, along which its elements are repeated.
        """
        boxes = self.boxes(position, array) if self.is_whole(position) else None
        if not boxes or len(boxes) != 1:
            return None
        shape = self.shape_at(position)
        view = boxes[0][0]
        return view if view.shape == shape else np.broadcast_to(view, shape)

    def fill(self, position: int | None, array: Array, value: Array) -> None:
        """Set the elements of the array that belong to an inner chunk to a value; position None stands for all of them."""
        raise NotImplementedError

    def _coords(self, position: int) -> list[int]:
        """Return the grid coordinates of an inner chunk by axis of the object."""
        coords = [0] * len(self._grid)
        for stored in range(len(self._grid) - 1, -1, -1):
            position, coords[self._perm[stored]] = divmod(position, self._grid[stored])
        return coords


class _AxisPart(NamedTuple):
    """The `n` selected elements of one axis in one inner chunk: their positions in it (`chunk`) and in the array."""

    chunk: Any
    array: Any
    n: int


class _AxisCuts(Cuts):
    """A box or lists: all combinations of the elements that are selected along each axis."""

    def __init__(self, chain: Chain, selection: Box | Lists, axes: Sequence[int], ndim: int) -> None:
        super().__init__(chain)
        self._axes = tuple(axes)
        self._ndim = ndim
        self._has_lists = isinstance(selection, Lists)
        self._by_axis = [self._cut(selection, axis) for axis in range(len(self._axes))]
        self._all = [self._in_array(selection, axis) for axis in range(len(self._axes))]

    def _cut(self, selection: Box | Lists, axis: int) -> dict[int, _AxisPart]:
        extent = self._extents[axis]
        if isinstance(selection, Lists) and (froms := selection.froms[axis]) is not None:
            return _cut_list(froms, self._in_array(selection, axis), extent)
        step = 1 if selection.step is None else selection.step[axis]
        return _cut_steps(selection.start[axis], selection.count[axis], step, extent, selection.at[axis])

    @staticmethod
    def _in_array(selection: Box | Lists, axis: int) -> Any:
        """Return the positions in the array of all selected elements along one axis of the object."""
        at = selection.at[axis]
        if isinstance(selection, Lists) and selection.froms[axis] is not None:
            to = selection.tos[axis]
            return at + (np.arange(selection.count[axis]) if to is None else to.astype(np.intp))
        return slice(at, at + selection.count[axis])

    def positions(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        positions = np.zeros(1, dtype=np.uint64)
        for axis, extent in zip(self._perm, self._grid, strict=True):
            along = np.fromiter(self._by_axis[axis], dtype=np.uint64)
            positions = (positions[:, None] * np.uint64(extent) + along).reshape(-1)
        return positions

    def _parts(self, position: int) -> list[_AxisPart]:
        return [self._by_axis[axis][c] for axis, c in enumerate(self._coords(position))]

    def is_whole(self, position: int) -> bool:
        if self._has_lists:
            return False  # positions may repeat
        return math.prod(part.n for part in self._parts(position)) == math.prod(self.shape_at(position))

    def _has_first(self, position: int, counts: Sequence[int]) -> bool:
        parts = [] if self._has_lists else [(part.chunk, part.n) for part in self._parts(position)]
        whole = [
            not at.start and k >= n and (k == 1 or at.step == 1)
            for (at, k), n in zip(parts, counts, strict=False)
        ]
        return not any(counts) or (len(whole) == len(counts) and all(whole))

    def scatter(self, position: int, chunk: Array, array: Array) -> None:
        parts = self._parts(position)
        chunk = chunk.transpose(self._inverse)
        values = _selected(chunk, _index([part.chunk for part in parts]), array)
        values = values[(*(0 if target < 0 else slice(None) for target in self._axes), ...)]
        _put(
            array,
            self._target([part.array for part in parts]),
            values.transpose(np.argsort(self._kept)),
            chunk,
        )

    def boxes(self, position: int, array: Array) -> list[ArrayBox] | None:
        parts = self._parts(position)
        if array.ndim != self._ndim or not all(
            isinstance(place, slice) for part in parts for place in part[:2]
        ):
            return None
        view = array[self._target([part.array for part in parts])].transpose(self._kept)
        view = view[(*(None if target < 0 else slice(None) for target in self._axes), ...)]
        stored = [parts[axis].chunk for axis in self._perm]
        return [(view.transpose(self._perm), [s.start for s in stored], [s.step or 1 for s in stored])]

    def gather(self, position: int, array: Array, chunk: Array) -> None:
        parts = self._parts(position)
        values = _selected(array, self._target([part.array for part in parts]), chunk).transpose(self._kept)
        values = values[(*(None if target < 0 else slice(None) for target in self._axes), ...)]
        _put(chunk.transpose(self._inverse), _index([part.chunk for part in parts]), values, array)

    def fill(self, position: int | None, array: Array, value: Array) -> None:
        places = self._all if position is None else [part.array for part in self._parts(position)]
        _put(array, self._target(places), _selected(value, (), array), value)

    @property
    def _kept(self) -> list[int]:
        """Return the axes of the array, in the order of the axes of the object, without those that the array lacks."""
        return [target for target in self._axes if target >= 0]

    def _target(self, places: Sequence[Any]) -> Index:
        """Return a numpy index of the array, from positions in the array for each axis of the object."""
        index: list[Any] = [slice(None)] * self._ndim
        for target, place in zip(self._axes, places, strict=True):
            if target >= 0:
                index[target] = place
        return _index(index)


def _cut_steps(start: int, count: int, step: int, extent: int, at: int) -> dict[int, _AxisPart]:
    """Split equidistant elements of one axis of an object into inner chunks of `extent` elements.

    at: position of the first element in the array, where the elements are consecutive. Returns the part of each inner chunk
    that has any of these elements, by its grid coordinate along this axis, ascending.
    """
    parts = {}
    k = 0
    while k < count:
        c, first = divmod(start + k * step, extent)
        n = min((extent - first - 1) // step + 1, count - k)
        parts[c] = _AxisPart(slice(first, first + (n - 1) * step + 1, step), slice(at + k, at + k + n), n)
        k += n
    return parts


def _cut_list(froms: Array, places: Array, extent: int) -> dict[int, _AxisPart]:
    """Split a list of elements of one axis of an object into inner chunks of `extent` elements; the result is as of `_cut_steps`.

    froms, places: positions in the object, ascending, and in the array, shape (n,).
    """
    numbers, inside = np.divmod(froms.astype(np.intp), extent)
    chunks, begins = np.unique(numbers, return_index=True)
    ends = [*begins[1:].tolist(), len(froms)]
    return {
        c: _AxisPart(inside[begin:end], places[begin:end], end - begin)
        for c, begin, end in zip(chunks.tolist(), begins.tolist(), ends, strict=True)
    }


def _index(parts: Iterable[Any]) -> Index:
    """Return a numpy index that selects each combination of the positions along the axes."""
    parts = list(parts)
    if all(isinstance(part, slice) for part in parts):
        return (*parts, ...)
    return np.ix_(*(np.arange(p.start, p.stop, p.step or 1) if isinstance(p, slice) else p for p in parts))


def _selected(source: Array, index: Index, target: Array) -> Array:
    """Return the elements of an array that an index selects; of texts that the engine copies to `target`, their offsets."""
    return _offsets(source, index) if _are_texts(source, target) else source[index]


def _put(target: Array, index: Index, values: Array, source: Array) -> None:
    """Set selected elements to what `_selected` returned of `source`."""
    if target.dtype.kind == "T" and source.dtype.kind != "T":
        source = values.astype(target.dtype)
        values = _offsets(source, (slice(None),) * source.ndim)
    if not _are_texts(source, target):
        target[index] = values
        return
    to = _offsets(target, index)
    if values.size > 1:
        values = np.broadcast_to(values, to.shape)
    native.load().copy_texts(source, np.ascontiguousarray(values), target, np.ascontiguousarray(to))


def _are_texts(source: Array, target: Array) -> bool:
    return bool(source.dtype.kind == target.dtype.kind == "T")


def _offsets(array: Array, index: Index) -> Array:
    """Return for each element that an index selects how many bytes it lies behind the first element of the array."""
    if any(isinstance(part, slice) for part in index):
        index = np.ix_(*(np.arange(n)[part] for n, part in zip(array.shape, index, strict=False)))
    offsets = np.zeros((), np.int64)
    for part, stride in zip(index, array.strides, strict=False):
        offsets = offsets + part * stride
    return offsets


class _PointCuts(Cuts):
    """Single elements."""

    def __init__(self, chain: Chain, points: Points) -> None:
        super().__init__(chain)
        n = len(points.froms[0])
        places = np.arange(n) if points.to is None else points.to.astype(np.intp)
        entries = np.zeros(n, dtype=np.intp)
        inside = []
        for axis, extent in zip(self._perm, self._grid, strict=True):
            c, within = np.divmod(points.froms[axis].astype(np.intp), self._extents[axis])
            entries = entries * extent + c
            inside.append(within)
        # if points repeat an element, the last one is written last
        order = np.argsort(entries, kind="stable")
        self._places = points.at + places[order]
        self._inside = [within[order] for within in inside]
        touched, begins = np.unique(entries[order], return_index=True)
        ends = [*begins[1:].tolist(), n]
        self._runs = {
            c: slice(begin, end)
            for c, begin, end in zip(touched.tolist(), begins.tolist(), ends, strict=True)
        }

    def positions(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.fromiter(self._runs, dtype=np.uint64)

    def is_whole(self, position: int) -> bool:
        return False

    def _chunk_index(self, position: int) -> Index:
        return tuple(within[self._runs[position]] for within in self._inside)

    def scatter(self, position: int, chunk: Array, array: Array) -> None:
        values = _selected(chunk, self._chunk_index(position), array)
        _put(array, (self._places[self._runs[position]],), values, chunk)

    def gather(self, position: int, array: Array, chunk: Array) -> None:
        index = () if array.ndim == 0 else (self._places[self._runs[position]],)
        _put(chunk, self._chunk_index(position), _selected(array, index, chunk), array)

    def fill(self, position: int | None, array: Array, value: Array) -> None:
        places = self._places if position is None else self._places[self._runs[position]]
        _put(array, (places,), _selected(value, (), array), value)


class _ManyCuts(Cuts):
    """Several boxes."""

    def __init__(self, chain: Chain, boxes: Boxes, axes: Sequence[int], ndim: int) -> None:
        super().__init__(chain)
        rank = len(chain.shape)
        kept = sorted(target for target in axes if target >= 0)
        remaining = [kept.index(target) if target >= 0 else -1 for target in axes]
        self._cuts: dict[int, list[tuple[_AxisCuts, Any]]] = {}
        for row in boxes.rows.tolist():
            start, count, step = (tuple(row[k * rank : (k + 1) * rank]) for k in range(3))
            places = row[3 * rank :]
            at = tuple(places[target] if target >= 0 else 0 for target in axes)
            cuts = _AxisCuts(chain, Box(start, count, step, at), remaining, len(kept))
            index = tuple(slice(None) if axis in kept else places[axis] for axis in range(ndim))
            for position in cuts.positions().tolist():
                self._cuts.setdefault(position, []).append((cuts, (*index, ...)))

    def _views(self, position: int | None, array: Array) -> Iterable[tuple[_AxisCuts, Array]]:
        """Yield each box that touches an inner chunk, with the view of the array that has only the axes of the box."""
        some = itertools.chain(*self._cuts.values()) if position is None else self._cuts.get(position, ())
        for cuts, index in some:
            yield cuts, array[index]

    def positions(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.array(sorted(self._cuts), dtype=np.uint64)

    def is_whole(self, position: int) -> bool:
        return False

    def scatter(self, position: int, chunk: Array, array: Array) -> None:
        for cuts, view in self._views(position, array):
            cuts.scatter(position, chunk, view)

    def boxes(self, position: int, array: Array) -> list[ArrayBox] | None:
        answers = [cuts.boxes(position, view) for cuts, view in self._views(position, array)]
        boxes = [box for answer in answers if answer is not None for box in answer]
        return boxes if None not in answers else None

    def gather(self, position: int, array: Array, chunk: Array) -> None:
        for cuts, view in self._views(position, array):
            cuts.gather(position, view, chunk)

    def fill(self, position: int | None, array: Array, value: Array) -> None:
        for cuts, view in self._views(position, array):
            cuts.fill(position, view, value)


def cuts_of(chain: Chain, selection: Selection, axes: Sequence[int], ndim: int) -> Cuts:
    """Split a selection of an object along its inner chunks.

    axes: for each axis of the object the axis of the array, which has rank `ndim`; -1 if the array does not have it.
    """
    if isinstance(selection, Points):
        return _PointCuts(chain, selection)
    if isinstance(selection, Boxes):
        return _ManyCuts(chain, selection, axes, ndim)
    return _AxisCuts(chain, selection, axes, ndim)
