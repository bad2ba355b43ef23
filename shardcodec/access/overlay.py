# overlay.py - what has been written of one object and is not stored yet
# SPDX-License-Identifier: MIT
"""Partial writes of one object, gathered in memory.

The inner chunks that were touched lie decoded in one array, one after the other in the order of their first touch, so
that memory is taken for them alone. Of an inner chunk that was not written whole a mask remembers which elements were:
what the stored one holds elsewhere is looked at only when the object is stored, under its lock, and so never lost.
Nothing is read while writes are gathered.

An object that is one chunk is treated as a shard with one inner chunk.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from .regions import PLAIN_KINDS, Box, Boxes, Positions, pack_boxes

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Array", "Gathered"]

Array = np.ndarray[Any, Any]

# Inner chunks that the array has room for at first.
FIRST_SLOTS = 4

# An array of so many bytes is given room for so many more at once: memory is the kernel's until it is touched, and not
# copied again and again.
LARGE_NBYTES = 2 << 20
ROOM_NBYTES = 64 << 20

# Reads the stored content of inner chunks: boxes of the object, and the array they go to; see `Gathered.chunks`.
ReadOld = Callable[[Boxes, Array], None]


class Gathered:
    """Elements of one object.

    Parameters
    ----------
    chain
        Compiled, of rank 1 or more.
    dtype : dtype
        Of the elements in memory.
    """

    def __init__(self, chain: Chain, dtype: np.dtype[Any]) -> None:
        self.chain = chain
        perm, inner = (
            (chain.perm, chain.inner.shape) if chain.is_shard else (range(len(chain.shape)), chain.shape)
        )
        ndim = len(chain.shape)
        self._stored_axes = [list(perm).index(axis) for axis in range(ndim)]  # by axis of the object
        self._extent = [0] * ndim  # of an inner chunk, by axis of the object
        self._weight = [0] * ndim  # of its grid coordinates in its position
        weight = 1
        for axis, extent in zip(reversed(perm), reversed(inner), strict=True):
            self._extent[axis] = extent
            self._weight[axis] = weight
            weight *= chain.shape[axis] // extent
        self._n_chunks = weight
        self._mutex = threading.Lock()
        self._slots: dict[int, int] = {}  # position of an inner chunk -> where it lies
        self._masks: dict[int, Array] = {}  # of those that were written in part
        self._array: Array = np.empty((0, *self._extent), dtype=dtype)
        self._n_items = math.prod(self._extent)
        self._slot_nbytes = self._n_items * self._array.itemsize
        self._slices = self._slices_of(chain)

    def _slices_of(self, chain: Chain) -> Any:
        """What takes whole inner chunks as slices; None where they are not of the usual kind."""
        usual = chain.is_shard and chain.stage is None and self._array.dtype.kind in PLAIN_KINDS
        return native.load().ChunkSlices(chain) if usual else None

    # ---- what is there

    @property
    def nbytes(self) -> int:
        """Memory that is held."""
        return len(self._slots) * self._slot_nbytes + len(self._masks) * self._n_items

    @property
    def is_complete(self) -> bool:
        """Whether every element of the object has been written."""
        return len(self._slots) == self._n_chunks and not self._masks

    def has_all_of(self, box: Box) -> bool:
        """Whether every inner chunk that a box has elements in has been written whole."""
        with self._mutex:
            return all(
                position in self._slots and position not in self._masks for position, _, _ in self._cut(box)
            )

    # ---- writing and reading

    def write(self, box: Box, axes: Sequence[int], values: Array) -> None:
        """Take over the elements of a box; arguments as for `access.write.write`."""
        with self._mutex:
            for position, inside, outside in self._cut(box):
                chunk = self._chunk(position, whole=_is_whole(inside, self._extent))
                _assign(chunk[inside], _view(values, axes, outside))
                mask = self._masks.get(position)
                if mask is not None:
                    mask[inside] = True
                    if mask.all():
                        del self._masks[position]

    def write_slices(self, chunk_selection: Any, array_selection: Any, values: Array) -> bool:
        """Take over slices of an array that are all of one inner chunk, as loops over inner chunks assign them.

        False, and nothing done, where they are anything else: that is for `write`.
        """
        if self._slices is None or values.dtype != self._array.dtype:
            return False
        with self._mutex:
            taken: bool = self._slices.take(chunk_selection, array_selection, values, self._whole_chunk)
        return taken

    def put(self, position: int, chunk: Array) -> None:
        """Take over a whole inner chunk, whose axes are those of the index."""
        with self._mutex:
            _assign(self._chunk(position, whole=True), chunk.transpose(self._stored_axes))

    def _chunk(self, position: int, *, whole: bool) -> Array:
        """The memory of an inner chunk that is about to be written, whole or in part."""
        slot = self._slots.get(position)
        if slot is None:
            slot = len(self._slots)
            if slot == len(self._array):
                self._grow()
            self._slots[position] = slot
            if not whole:
                self._masks[position] = np.zeros(self._extent, dtype=np.bool_)
        elif whole:
            self._masks.pop(position, None)
        return self._array[slot]  # type: ignore[no-any-return]

    def _whole_chunk(self, position: int) -> Array:
        return self._chunk(position, whole=True)

    def _grow(self) -> None:
        used = len(self._array)
        slots = max(2 * used, FIRST_SLOTS)
        if slots * self._slot_nbytes >= LARGE_NBYTES:
            slots = max(slots, ROOM_NBYTES // self._slot_nbytes)
        larger = np.empty((min(slots, self._n_chunks), *self._extent), self._array.dtype)
        _assign(larger[:used], self._array)
        self._array = larger

    def overlay(self, box: Box, axes: Sequence[int], out: Array) -> None:
        """Lay what was written over the elements of a box in an array."""
        with self._mutex:
            for position, inside, outside in self._cut(box):
                slot = self._slots.get(position)
                if slot is not None:
                    mask = self._masks.get(position)
                    there = None if mask is None else mask[inside]
                    _assign(_view(out, axes, outside), self._array[slot][inside], there)

    def _cut(self, box: Box) -> Iterator[tuple[int, tuple[slice, ...], list[slice]]]:
        """Cut a box along the inner chunks: position, elements of the inner chunk, elements of the array, by axis."""
        rows = [
            _cut_axis(
                box.start[axis],
                box.count[axis],
                1 if box.step is None else box.step[axis],
                box.at[axis],
                extent,
            )
            for axis, extent in enumerate(self._extent)
        ]
        for parts in itertools.product(*rows):
            position = sum(part[0] * weight for part, weight in zip(parts, self._weight, strict=True))
            yield position, tuple([part[1] for part in parts]), [part[2] for part in parts]

    # ---- storing

    def chunks(self, read_old: ReadOld) -> tuple[Positions, Array]:
        """Return all inner chunks that were touched, complete: their positions, and the chunks in an array.

        In the array they lie one after the other along axis 0. Nothing may be written meanwhile. What was stored of inner
        chunks that were written in part is taken over here too, but still counts as not written.

        Parameters
        ----------
        read_old : callable
            Gets boxes of the object, an inner chunk each, and such an array; fills it with what is stored, the fill
            value where nothing is.
        """
        partly = list(self._masks)
        if partly:
            block = np.empty((len(partly), *self._extent), self._array.dtype)
            read_old(self.boxes(partly), _joined(block))
            for chunk, position in zip(block, partly, strict=True):
                _assign(self._array[self._slots[position]], chunk, ~self._masks[position])
        # ascending by where they lie: a dict keeps the order
        return np.array(list(self._slots), dtype=np.uint64), _joined(self._array[: len(self._slots)])

    def boxes(self, positions: Sequence[int] | Positions) -> Boxes:
        """Inner chunks as boxes of the object, which lie in an array as from `chunks`."""
        numbers = np.asarray(positions, dtype=np.int64)
        start = np.empty((len(numbers), len(self._extent)), dtype=np.int64)
        for axis, extent in enumerate(self._extent):
            start[:, axis] = numbers // self._weight[axis] % (self.chain.shape[axis] // extent) * extent
        at = np.zeros_like(start)
        at[:, 0] = np.arange(len(numbers)) * self._extent[0]
        return pack_boxes(start, self._extent, None, at)


def _cut_axis(start: int, count: int, step: int, at: int, extent: int) -> list[tuple[int, slice, slice]]:
    """Cut one axis of a box: inner chunk, its elements, elements of the array."""
    last = start + (count - 1) * step
    first_chunk = start // extent
    if last // extent == first_chunk:
        origin = first_chunk * extent
        return [(first_chunk, slice(start - origin, last - origin + 1, step), slice(at, at + count))]
    parts = []
    done = 0
    while done < count:
        element = start + done * step
        chunk = element // extent
        origin = chunk * extent
        n = min(count - done, -(-(origin + extent - element) // step))
        inside = slice(element - origin, element - origin + (n - 1) * step + 1, step)
        parts.append((chunk, inside, slice(at + done, at + done + n)))
        done += n
    return parts


def _is_whole(inside: Sequence[slice], extent: Sequence[int]) -> bool:
    return all(
        part.stop - part.start == n and (part.step == 1 or n == 1)
        for part, n in zip(inside, extent, strict=True)
    )


def _view(array: Array, axes: Sequence[int], outside: Sequence[slice]) -> Array:
    """The elements of an array that belong to a part of an inner chunk, in the axes of that."""
    if array.ndim == 0:
        return array[(None,) * len(axes)]
    index: list[Any] = [slice(None)] * array.ndim
    order = []
    for part, axis in zip(outside, axes, strict=True):
        if axis >= 0:
            index[axis] = part
            order.append(axis)
    view: Array = array[tuple(index)]
    if order != sorted(order):
        view = view.transpose(order)
    if len(order) < len(axes):
        view = view[tuple([None if axis < 0 else slice(None) for axis in axes])]
    return view


def _joined(block: Array) -> Array:
    """Chunks one after the other as one array, so that they differ in the first axis alone."""
    return block.reshape(-1, *block.shape[2:])


def _assign(to: Array, source: Array, where: Array | None = None) -> None:
    """Copy elements bit by bit; those of the other byte order by value."""
    if to.dtype == source.dtype:
        plain = _PLAIN.get(to.dtype.itemsize) or np.dtype((np.void, to.dtype.itemsize))
        to, source = to.view(plain), source.view(plain)
        if where is None and to.shape == source.shape:
            native.load().copy_elements(to, source)
            return
    if where is None:
        to[...] = source
    else:
        np.copyto(to, source, where=where)


_PLAIN = {n: np.dtype(f"u{n}") for n in (1, 2, 4, 8)}
