# overlay.py - buffered elements of one object over the stored ones
# SPDX-License-Identifier: MIT
"""Buffered elements of one object over the stored ones.

An overlay stores the inner chunks that were written to, decoded, in one array in the order of their first write. So it
takes memory only for these inner chunks. An inner chunk that was written only in part has a mask of its written elements.
Its other elements are read from the stored object when the overlay is flushed, under the object's lock, so elements that
another process stores in the meantime are kept. A buffered write reads nothing.

An object that is one chunk counts as a shard with one inner chunk.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import native
from ..regions import Box, Boxes, Positions, has_buffer_format, pack_boxes

if TYPE_CHECKING:
    from ..._native import Chain

__all__ = ["Array", "Overlay"]

Array = np.ndarray[Any, Any]

# Number of inner chunks for which the array has room at first.
FIRST_SLOTS = 4

# An array that reaches LARGE_NBYTES gets room for ROOM_NBYTES, so that it is rarely copied again. The operating system
# provides memory only for pages that are written.
LARGE_NBYTES = 2 << 20
ROOM_NBYTES = 64 << 20

# Reads stored elements: from boxes of the object to an array; see `Overlay.chunks`.
ReadOld = Callable[[Boxes, Array], None]


class Overlay:
    """The buffered elements of one object of rank 1 or more; `dtype` is that of the elements in memory."""

    def __init__(self, chain: Chain, dtype: np.dtype[Any]) -> None:
        self.chain = chain
        perm, inner = (
            (chain.perm, chain.inner.shape) if chain.is_shard else (range(len(chain.shape)), chain.shape)
        )
        ndim = len(chain.shape)
        self._stored_axes = [list(perm).index(axis) for axis in range(ndim)]  # by axis of the object
        self._extent = [0] * ndim  # shape of an inner chunk, by axis of the object
        self._weight = [0] * ndim  # factor of each grid coordinate in the position of an inner chunk
        weight = 1
        for axis, extent in zip(reversed(perm), reversed(inner), strict=True):
            self._extent[axis] = extent
            self._weight[axis] = weight
            weight *= chain.shape[axis] // extent
        self._n_chunks = weight
        self._all_axes = tuple(range(ndim))
        self._mutex = native.load().Mutex()
        self._slots: dict[int, int] = {}  # from the position of an inner chunk to its index in the array
        self._masks: dict[int, Array] = {}  # written elements of inner chunks that were written only in part
        self._array: Array = np.empty((0, *self._extent), dtype=dtype)
        self._n_items = math.prod(self._extent)
        self._slot_nbytes = self._n_items * self._array.itemsize
        self._slices = self._new_slices(chain)
        self._claimed = 0, 0  # position and slot of the inner chunk that `write_slices` writes

    def _new_slices(self, chain: Chain) -> Any:
        """Return the native copier of whole inner chunks; None if it cannot copy such elements."""
        usual = chain.is_shard and chain.stage is None and has_buffer_format(self._array.dtype)
        return native.load().ChunkSlices(chain) if usual else None

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the elements in memory."""
        return self._array.dtype  # type: ignore[no-any-return]

    @property
    def nbytes(self) -> int:
        """Memory of the buffered elements and masks, in bytes."""
        return len(self._slots) * self._slot_nbytes + len(self._masks) * self._n_items

    @property
    def is_complete(self) -> bool:
        """True if every element of the object is buffered."""
        return len(self._slots) == self._n_chunks and not self._masks

    def covers(self, box: Box) -> bool:
        """Return True if every inner chunk with elements of a box is buffered whole."""
        with self._mutex:
            return all(
                position in self._slots and position not in self._masks for position, _, _ in self._cut(box)
            )

    def gives(self, box: Boxes, inside: Sequence[int]) -> bool:
        """Return True if all elements of an inner chunk that lie within the first `inside` of the object are buffered."""
        start = box.rows[0, : len(inside)].tolist()
        position = sum(
            at // n * weight for at, n, weight in zip(start, self._extent, self._weight, strict=True)
        )
        mask = self._masks.get(position)
        within = tuple(slice(0, max(0, n - at)) for n, at in zip(inside, start, strict=True))
        return position in self._slots and (mask is None or bool(mask[within].all()))

    def write(self, box: Box, axes: Sequence[int], values: Array) -> None:
        """Buffer the elements of a box; arguments as for `Elements`."""
        is_aligned = self._slices is not None and tuple(axes) == self._all_axes
        if is_aligned and self.write_slices(*_slices_of(box), values):
            return
        with self._mutex:
            for position, inside, outside in self._cut(box):
                source = _view(values, axes, outside)
                if _is_whole(inside, self._extent):
                    self._write_whole(position, source)
                else:
                    self._write_part(position, inside, source)

    def write_slices(self, chunk_selection: Any, array_selection: Any, values: Array) -> bool:
        """Buffer slices of an array that are exactly one inner chunk; return False if nothing was buffered.

        Other selections and other data types are left to `write`.
        """
        if self._slices is None or values.dtype != self._array.dtype:
            return False
        with self._mutex:
            is_copied: bool = self._slices.take(chunk_selection, array_selection, values, self._claim)
            if is_copied:
                self._note_whole(*self._claimed)
        return is_copied

    def write_chunk(self, position: int, chunk: Array) -> None:
        """Buffer a whole inner chunk, with the axes of the index."""
        with self._mutex:
            self._write_whole(position, chunk.transpose(self._stored_axes))

    # An inner chunk is noted after its elements have been copied. If the copy fails, or a signal handler raises before it,
    # memory without elements must not be flushed.

    def _write_whole(self, position: int, source: Array) -> None:
        slot = self._slot(position)
        _assign(self._array[slot], source)
        self._note_whole(position, slot)

    def _write_part(self, position: int, inside: tuple[slice, ...], source: Array) -> None:
        slot = self._slot(position)
        is_new = position not in self._slots
        mask = np.zeros(self._extent, dtype=np.bool_) if is_new else self._masks.get(position)
        _assign(self._array[slot][inside], source)
        if mask is None:
            return
        mask[inside] = True
        if mask.all():
            self._note_whole(position, slot)
        elif is_new:
            self._masks[position] = (
                mask  # before the slot: an inner chunk without a mask counts as written whole
            )
            self._slots[position] = slot

    def _note_whole(self, position: int, slot: int) -> None:
        self._slots[position] = slot
        self._masks.pop(position, None)

    def _slot(self, position: int) -> int:
        """Return the slot of an inner chunk: the present one, or the next free one."""
        slot = self._slots.get(position, len(self._slots))
        if slot == len(self._array):
            self._grow()
        return slot

    def _claim(self, position: int) -> Array:
        """Return the array that `ChunkSlices.take` copies an inner chunk into; `take` calls this under the mutex.

        Stores position and slot in `_claimed`. The inner chunk does not count as buffered until `write_slices` has
        noted it, after the copy.
        """
        slot = self._slot(position)
        self._claimed = position, slot
        return self._array[slot]  # type: ignore[no-any-return]

    def _grow(self) -> None:
        used = len(self._array)
        slots = max(2 * used, FIRST_SLOTS)
        if slots * self._slot_nbytes >= LARGE_NBYTES:
            slots = max(slots, ROOM_NBYTES // self._slot_nbytes)
        larger = np.empty((min(slots, self._n_chunks), *self._extent), self._array.dtype)
        _assign(larger[:used], self._array)
        self._array = larger

    def copy_to(self, box: Box, axes: Sequence[int], out: Array) -> None:
        """Copy the buffered elements of a box to an array; other elements of the array stay."""
        with self._mutex:
            for position, inside, outside in self._cut(box):
                slot = self._slots.get(position)
                if slot is not None:
                    mask = self._masks.get(position)
                    written = None if mask is None else mask[inside]
                    _assign(_view(out, axes, outside), self._array[slot][inside], written)

    def _cut(self, box: Box) -> Iterator[tuple[int, tuple[slice, ...], list[slice]]]:
        """Cut a box at the borders of inner chunks.

        Yields the position of each inner chunk, its elements, and the elements of the array, as slices by axis.
        """
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

    def chunks(self, read_old: ReadOld) -> tuple[Positions, Array]:
        """Return the positions of all inner chunks that were written to, and their elements, concatenated along axis 0.

        Elements that were not written are those that are stored: `read_old` takes boxes, one inner chunk each, and an array,
        and copies them there, or the fill value. They get into the overlay, too, but still count as not written: after a
        failure they are read again. The caller holds the object's lock, so nothing is written during the call.
        """
        partly = [position for position in self._slots if position in self._masks]
        if partly:
            block = np.empty((len(partly), *self._extent), self._array.dtype)
            read_old(self.boxes(partly), _concatenated(block))
            for chunk, position in zip(block, partly, strict=True):
                _assign(self._array[self._slots[position]], chunk, ~self._masks[position])
        # in the order of their slots: a dict keeps the order of insertion
        return np.array(list(self._slots), dtype=np.uint64), _concatenated(self._array[: len(self._slots)])

    def boxes(self, positions: Sequence[int] | Positions) -> Boxes:
        """Return inner chunks as boxes of the object, from an array as `chunks` returns it."""
        numbers = np.asarray(positions, dtype=np.int64)
        start = np.empty((len(numbers), len(self._extent)), dtype=np.int64)
        for axis, extent in enumerate(self._extent):
            start[:, axis] = numbers // self._weight[axis] % (self.chain.shape[axis] // extent) * extent
        at = np.zeros_like(start)
        at[:, 0] = np.arange(len(numbers)) * self._extent[0]
        return pack_boxes(start, self._extent, None, at)


def _cut_axis(start: int, count: int, step: int, at: int, extent: int) -> list[tuple[int, slice, slice]]:
    """Cut one axis of a box; return rows of (grid coordinate, elements of the inner chunk, elements of the array)."""
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


def _slices_of(box: Box) -> tuple[tuple[slice, ...], tuple[slice, ...]]:
    """Return a box of the object and the elements of an array with the same axes, as slices."""
    steps = box.step or (1,) * len(box.start)
    inside, outside = [], []
    for start, n, step, at in zip(box.start, box.count, steps, box.at, strict=True):
        inside.append(slice(start, start + (n - 1) * step + 1, step))
        outside.append(slice(at, at + n))
    return tuple(inside), tuple(outside)


def _is_whole(inside: Sequence[slice], extent: Sequence[int]) -> bool:
    """Return True if slices are all elements of an inner chunk."""
    return all(
        part.stop - part.start == n and (part.step == 1 or n == 1)
        for part, n in zip(inside, extent, strict=True)
    )


def _view(array: Array, axes: Sequence[int], outside: Sequence[slice]) -> Array:
    """Return the elements of an array that belong to a part of an inner chunk, with the axes of the inner chunk."""
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


def _concatenated(block: Array) -> Array:
    """Return chunks as one array, concatenated along axis 0."""
    return block.reshape(-1, *block.shape[2:])


def _assign(to: Array, source: Array, where: Array | None = None) -> None:
    """Copy elements bit by bit; elements of the other byte order by value."""
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
