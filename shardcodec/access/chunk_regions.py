# chunk_regions.py - what is wanted of an object, cut along its inner chunks: indices for numpy
# SPDX-License-Identifier: MIT
"""What the engine does with strides, for arrays that only numpy can move.

Those have elements of variable length, or come out of codecs written in Python.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .regions import Box, Boxes, Lists, Parts, Points

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Cuts", "cuts_of"]

Index = tuple[Any, ...]
Array = np.ndarray[Any, Any]


class Cuts:
    """Parts of an object, cut.

    Decoded inner chunks have their axes in stored order; all else goes by the axes of the object.

    Parameters
    ----------
    chain
        A compiled chain; what is not a shard counts as one inner chunk.

    Attributes
    ----------
    chunk_shape : tuple of int
        Of a decoded inner chunk that is not clipped.
    """

    def __init__(self, chain: Chain) -> None:
        rank = len(chain.shape)
        self.chunk_shape: tuple[int, ...] = tuple(chain.inner.shape if chain.is_shard else chain.shape)
        self._perm: tuple[int, ...] = chain.perm if chain.is_shard else tuple(range(rank))
        self._grid: tuple[int, ...] = chain.grid_shape if chain.is_shard else (1,) * rank
        self._inverse = tuple(int(axis) for axis in np.argsort(self._perm))
        self._extents = tuple(self.chunk_shape[axis] for axis in self._inverse)
        self._shape: tuple[int, ...] = tuple(chain.shape)

    def shape_at(self, position: int | None) -> tuple[int, ...]:
        """Shape of a decoded inner chunk, clipped to the shard; None: of the object, which is the chunk."""
        if position is None:
            return self.chunk_shape
        coords = self._coords(position)
        return tuple(
            min(extent, self._shape[axis] - coords[axis] * extent)
            for extent, axis in zip(self.chunk_shape, self._perm, strict=True)
        )

    def positions(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Inner chunks that something is wanted of: C order over the stored grid."""
        raise NotImplementedError

    def is_whole(self, position: int) -> bool:
        """Tell whether an inner chunk is wanted whole, so that its old content does not matter."""
        raise NotImplementedError

    def scatter(self, position: int, chunk: Array, array: Array) -> None:
        """Copy what is wanted of a decoded inner chunk to where it belongs."""
        raise NotImplementedError

    def gather(self, position: int, array: Array, chunk: Array) -> None:
        """Copy elements of the array to where they belong in an inner chunk."""
        raise NotImplementedError

    def fill(self, position: int | None, array: Array, value: Array) -> None:
        """Set what belongs to an inner chunk, or all that is wanted, to a value."""
        raise NotImplementedError

    def _coords(self, position: int) -> list[int]:
        """Place of an inner chunk in the grid, by axis of the object."""
        coords = [0] * len(self._grid)
        for stored in range(len(self._grid) - 1, -1, -1):
            position, coords[self._perm[stored]] = divmod(position, self._grid[stored])
        return coords


class _Part(NamedTuple):
    """What of one axis falls into an inner chunk: elements of it, and of the array; slices or arrays."""

    chunk: Any
    array: Any
    n: int


class _AxisCuts(Cuts):
    """A box, or lists: all combinations of what is wanted along each axis."""

    def __init__(self, chain: Chain, parts: Box | Lists, axes: Sequence[int], ndim: int) -> None:
        super().__init__(chain)
        self._axes = tuple(axes)
        self._ndim = ndim
        self._has_lists = isinstance(parts, Lists)
        self._by_axis = [self._cut(parts, axis) for axis in range(len(self._axes))]
        self._all = [self._in_array(parts, axis) for axis in range(len(self._axes))]

    def _cut(self, parts: Box | Lists, axis: int) -> dict[int, _Part]:
        extent = self._extents[axis]
        if isinstance(parts, Lists) and (froms := parts.froms[axis]) is not None:
            return _cut_list(froms, self._in_array(parts, axis), extent)
        step = 1 if parts.step is None else parts.step[axis]
        return _cut_steps(parts.start[axis], parts.count[axis], step, extent, parts.at[axis])

    @staticmethod
    def _in_array(parts: Box | Lists, axis: int) -> Any:
        """All places in the array along an axis."""
        at = parts.at[axis]
        if isinstance(parts, Lists) and parts.froms[axis] is not None:
            to = parts.tos[axis]
            return at + (np.arange(parts.count[axis]) if to is None else to.astype(np.intp))
        return slice(at, at + parts.count[axis])

    def positions(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        positions = np.zeros(1, dtype=np.uint64)
        for axis, extent in zip(self._perm, self._grid, strict=True):
            along = np.fromiter(self._by_axis[axis], dtype=np.uint64)
            positions = (positions[:, None] * np.uint64(extent) + along).reshape(-1)
        return positions

    def _parts(self, position: int) -> list[_Part]:
        return [self._by_axis[axis][c] for axis, c in enumerate(self._coords(position))]

    def is_whole(self, position: int) -> bool:
        if self._has_lists:
            return False  # positions may repeat
        return math.prod(part.n for part in self._parts(position)) == math.prod(self.shape_at(position))

    def scatter(self, position: int, chunk: Array, array: Array) -> None:
        parts = self._parts(position)
        values = chunk.transpose(self._inverse)[_index([part.chunk for part in parts])]
        values = values[(*(0 if target < 0 else slice(None) for target in self._axes), ...)]
        array[self._target([part.array for part in parts])] = values.transpose(np.argsort(self._kept))

    def gather(self, position: int, array: Array, chunk: Array) -> None:
        parts = self._parts(position)
        values = array[self._target([part.array for part in parts])].transpose(self._kept)
        values = values[(*(None if target < 0 else slice(None) for target in self._axes), ...)]
        chunk.transpose(self._inverse)[_index([part.chunk for part in parts])] = values

    def fill(self, position: int | None, array: Array, value: Array) -> None:
        places = self._all if position is None else [part.array for part in self._parts(position)]
        array[self._target(places)] = value

    @property
    def _kept(self) -> list[int]:
        """Axes of the array, by those axes of the object that it has."""
        return [target for target in self._axes if target >= 0]

    def _target(self, places: Sequence[Any]) -> Index:
        """From places by axis of the object to an index of the array."""
        index: list[Any] = [slice(None)] * self._ndim
        for target, place in zip(self._axes, places, strict=True):
            if target >= 0:
                index[target] = place
        return _index(index)


def _cut_steps(start: int, count: int, step: int, extent: int, at: int) -> dict[int, _Part]:
    """Cut `count` elements from `start` on, every `step`-th."""
    parts = {}
    k = 0
    while k < count:
        c, first = divmod(start + k * step, extent)
        n = min((extent - first - 1) // step + 1, count - k)
        parts[c] = _Part(slice(first, first + (n - 1) * step + 1, step), slice(at + k, at + k + n), n)
        k += n
    return parts


def _cut_list(froms: Array, places: Array, extent: int) -> dict[int, _Part]:
    """Cut positions in ascending order."""
    numbers, inside = np.divmod(froms.astype(np.intp), extent)
    chunks, begins = np.unique(numbers, return_index=True)
    ends = [*begins[1:].tolist(), len(froms)]
    return {
        c: _Part(inside[begin:end], places[begin:end], end - begin)
        for c, begin, end in zip(chunks.tolist(), begins.tolist(), ends, strict=True)
    }


def _index(parts: Iterable[Any]) -> Index:
    """An index that combines all of what is wanted along each axis, whether slices or arrays."""
    parts = list(parts)
    if all(isinstance(part, slice) for part in parts):
        return (*parts, ...)
    return np.ix_(*(np.arange(p.start, p.stop, p.step or 1) if isinstance(p, slice) else p for p in parts))


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
        order = np.argsort(entries, kind="stable")  # of points at one element the last counts
        self._places = points.at + places[order]
        self._inside = [within[order] for within in inside]
        found, begins = np.unique(entries[order], return_index=True)
        ends = [*begins[1:].tolist(), n]
        self._runs = {
            c: slice(begin, end) for c, begin, end in zip(found.tolist(), begins.tolist(), ends, strict=True)
        }

    def positions(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.fromiter(self._runs, dtype=np.uint64)

    def is_whole(self, position: int) -> bool:
        return False

    def _stored(self, position: int) -> Index:
        return tuple(within[self._runs[position]] for within in self._inside)

    def scatter(self, position: int, chunk: Array, array: Array) -> None:
        array[self._places[self._runs[position]]] = chunk[self._stored(position)]

    def gather(self, position: int, array: Array, chunk: Array) -> None:
        values = array if array.ndim == 0 else array[self._places[self._runs[position]]]
        chunk[self._stored(position)] = values

    def fill(self, position: int | None, array: Array, value: Array) -> None:
        array[self._places if position is None else self._places[self._runs[position]]] = value


class _ManyCuts(Cuts):
    """Several boxes."""

    def __init__(self, chain: Chain, boxes: Boxes, axes: Sequence[int], ndim: int) -> None:
        super().__init__(chain)
        rank = len(chain.shape)
        kept = sorted(target for target in axes if target >= 0)
        remaining = [kept.index(target) if target >= 0 else -1 for target in axes]
        self._cuts = []
        for row in boxes.rows.tolist():
            start, count, step = (tuple(row[k * rank : (k + 1) * rank]) for k in range(3))
            places = row[3 * rank :]
            at = tuple(places[target] if target >= 0 else 0 for target in axes)
            cuts = _AxisCuts(chain, Box(start, count, step, at), remaining, len(kept))
            index = tuple(slice(None) if axis in kept else places[axis] for axis in range(ndim))
            self._cuts.append((cuts, set(cuts.positions().tolist()), (*index, ...)))

    def _views(self, position: int | None, array: Array) -> Iterable[tuple[_AxisCuts, Array]]:
        """The boxes that have elements in an inner chunk, each with the part of the array that has its axes."""
        for cuts, positions, index in self._cuts:
            if position is None or position in positions:
                yield cuts, array[index]

    def positions(self) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.array(sorted(set().union(*(positions for _, positions, _ in self._cuts))), dtype=np.uint64)

    def is_whole(self, position: int) -> bool:
        return False

    def scatter(self, position: int, chunk: Array, array: Array) -> None:
        for cuts, view in self._views(position, array):
            cuts.scatter(position, chunk, view)

    def gather(self, position: int, array: Array, chunk: Array) -> None:
        for cuts, view in self._views(position, array):
            cuts.gather(position, view, chunk)

    def fill(self, position: int | None, array: Array, value: Array) -> None:
        for cuts, view in self._views(position, array):
            cuts.fill(position, view, value)


def cuts_of(chain: Chain, parts: Parts, axes: Sequence[int], ndim: int) -> Cuts:
    """Cut parts of an object.

    Parameters
    ----------
    chain
        The object's compiled chain.
    parts : Box, Boxes, Lists or Points
    axes : sequence of int
        Which axis of the array each axis of the object is; -1 for none.
    ndim : int
        Rank of the array.
    """
    if isinstance(parts, Points):
        return _PointCuts(chain, parts)
    if isinstance(parts, Boxes):
        return _ManyCuts(chain, parts, axes, ndim)
    return _AxisCuts(chain, parts, axes, ndim)
