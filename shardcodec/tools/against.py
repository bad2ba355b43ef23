# against.py - compare the elements of an array with those of another one
# SPDX-License-Identifier: MIT
"""`Comparison`: two arrays of one shape and data type, in any layout, compared block by block. `compared_objects`: the objects beside."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Self

import numpy as np

from ..access.box_reader import Folder
from ..access.opened_shard import OpenedShard, open_object
from ..errors import ShardError
from ..option_sources import current_options
from .backup import same_bytes
from .convert.open_source import open_foreign
from .convert.source import SourceArray, SourceTree
from .foreign_chunks import elements_of, type_of
from .other_objects import OtherObject, objects_to_compare
from .report import Finding, FindingKind
from .targets import ArrayTarget, ShardTarget, find_arrays
from .work import Monitor, in_order

__all__ = ["Comparison", "compared_objects"]

# Decoded bytes of one block.
BLOCK_NBYTES = 32 << 20

Ints = tuple[int, ...]
Box = tuple[slice, ...]


class Comparison:
    """An array and the one with which it is compared.

    Parameters
    ----------
    array : ArrayTarget
    other : ArrayTarget or SourceArray

    Raises
    ------
    ValueError
        They differ in shape or data type.
    UnsupportedError
        Neither the engine nor zarr decodes one of them.
    """

    def __init__(self, array: ArrayTarget, other: ArrayTarget | SourceArray) -> None:
        self._array = array
        self._other = other if isinstance(other, ArrayTarget) else None
        self._block_nbytes = BLOCK_NBYTES
        self._own = elements_of(array)
        expected = self._own.shape, type_of(array, self._own)
        if isinstance(other, SourceArray):
            self._reference: Any = _SourceElements(other)
            found = self._reference.shape, self._reference.type_name
        else:
            self._reference = elements_of(other)
            found = self._reference.shape, type_of(other, self._reference)
        if expected != found:
            raise ValueError(
                f"{other.place}: expected an array of shape {expected[0]} and data type {expected[1]}, as {array.place} has, "
                f"got {found[0]} and {found[1]}"
            )

    @property
    def least_nbytes(self) -> int:
        """Memory of a comparison in bytes: blocks of one inner chunk, and the inner chunks that are decoded for them."""
        readers = self._own, self._reference
        sizes = [int(math.prod(one.chunks) * one.dtype.itemsize) for one in readers]
        return 4 * sizes[0] + sum(sizes) * current_options().threads

    def limit_blocks(self, nbytes: int) -> None:
        """Compare blocks of at most so many decoded bytes, or of one inner chunk."""
        self._block_nbytes = min(self._block_nbytes, nbytes)

    @classmethod
    def of(cls, array: ArrayTarget, against: Any, storage_options: Mapping[str, Any] | None) -> Self:
        """Return the comparison with the array of the same name in a group, or with an array, from any source of `convert`."""
        if array.layout is None:
            raise ValueError("against: expected a shard inside of its array, got one without an array")
        tree = open_foreign(against, current_options(), lambda name: name == array.name)
        if tree is not None:
            return cls(array, _named(tree, array.name))
        found = find_arrays(against, array=array.name or None, storage_options=storage_options)
        return cls(array, next(found))

    def further_shards(self) -> Iterator[ShardTarget]:
        """Yield the shards of the grid that are not stored, and may be stored in the other array."""
        if self._array.only is not None:
            return
        other, own = self._other, self._array.spec
        if other is not None and other.spec and own and other.spec.shard_shape == own.shard_shape:
            positions: Iterator[Ints] = (one.coords for one in other.shards() if one.coords is not None)
        else:
            positions = itertools.product(*map(range, self._array.shard_grid))
        for coords in positions:
            shard = self._array.shard(coords)
            if open_object(self._array.store, shard.key) is None:
                yield shard

    def findings(self, shard: ShardTarget) -> Iterator[Finding]:
        """Yield the blocks of a shard whose elements differ."""
        for box in self._blocks(shard):
            try:
                own, other = self._own[box], self._reference[box]
            except (ShardError, OSError, ValueError, RuntimeError) as error:  # the last two of zarr's codecs
                yield self._finding(shard, f"the elements of {_shown(box)} cannot be compared: {error}")
                continue
            differs = _differs(own, other)
            if differs is not None and differs.any():
                first = [int(i) + part.start for i, part in zip(np.argwhere(differs)[0], box, strict=True)]
                n = np.count_nonzero(differs)
                yield self._finding(
                    shard,
                    f"{n} of {differs.size} elements of {_shown(box)} differ, the first one at {tuple(first)}",
                )

    def _finding(self, shard: ShardTarget, detail: str) -> Finding:
        return Finding(FindingKind.DIFFERENT, shard.name, detail, self._array.name, recoverable=False)

    def _blocks(self, shard: ShardTarget) -> Iterator[Box]:
        """Yield boxes of the array that cover a shard; each has whole inner chunks, and at least one."""
        assert shard.coords is not None and self._own.shards is not None
        low = [i * size for i, size in zip(shard.coords, self._own.shards, strict=True)]
        high = [min(a + size, n) for a, size, n in zip(low, self._own.shards, self._own.shape, strict=True)]
        steps = list(self._own.chunks)
        for axis in reversed(range(len(steps))):
            rest = self._own.dtype.itemsize * math.prod(steps) // steps[axis]
            most = self._block_nbytes // max(1, rest) // self._own.chunks[axis] * self._own.chunks[axis]
            steps[axis] = max(self._own.chunks[axis], min(most, self._own.shards[axis]))
        axes = zip(low, high, steps, strict=True)
        for starts in itertools.product(*(range(a, b, step) for a, b, step in axes)):
            yield tuple(slice(a, min(a + step, b)) for a, step, b in zip(starts, steps, high, strict=True))


class _SourceElements:
    """Reads boxes of a source of `convert`, as `elements_of` does of an array of zarr."""

    def __init__(self, source: SourceArray) -> None:
        self.shape, self.dtype, self.type_name = source.shape, source.dtype, source.data_type
        self.chunks: Ints = source.chunks or (1,) * len(source.shape)
        self._source = source

    def __getitem__(self, box: Box) -> Any:
        if self._source.bytes is not None:
            return np.asarray(self._source.elements()[box])
        out = np.empty([part.stop - part.start for part in box], self.dtype)
        self._source.read(tuple(part.start for part in box), out)
        return out


def _named(tree: SourceTree, name: str) -> SourceArray:
    """Return the array of a name; raise `FileNotFoundError` if there is none."""
    for one in tree.arrays:
        if one.name == name:
            return one
    raise FileNotFoundError(f"against: expected an array {name!r} at {tree.place}, but there is none")


# ---- objects that belong to no array


def compared_objects(
    against: Any,
    root: Folder,
    array: str | None,
    storage_options: Mapping[str, Any] | None,
    monitor: Monitor,
    n_threads: int,
) -> Iterator[tuple[str, tuple[FindingKind, str] | None]]:
    """Compare the objects of another hierarchy that belong to no array with those of the same names below a root.

    Parameters
    ----------
    against
        The other hierarchy; nothing is compared if it is not one of zarr, or a single shard.
    root : Folder
    array : str or None
        Only objects in the folder of this array.
    storage_options : mapping or None
    monitor : Monitor
    n_threads : int

    Yields
    ------
    name : str
        Path of an object below the root.
    difference : tuple of (FindingKind, str), or None
        What is wrong; None if it is the same.
    """
    if open_foreign(against, current_options(), lambda name: False) is not None:
        return
    others = objects_to_compare(against, storage_options, array=array)
    if others is None:
        return
    store = others.store

    def compare(one: OtherObject) -> tuple[str, tuple[FindingKind, str] | None]:
        try:
            expected = open_object(store, one.key)
            try:
                found = open_object(root.store, root.prefix + one.name)
                try:
                    return one.name, _difference(expected, found)
                finally:
                    _close(found)
            finally:
                _close(expected)
        except (ShardError, OSError) as error:
            return one.name, (FindingKind.UNREADABLE, f"the object cannot be compared: {error}")

    listed = (one for one in others if isinstance(one, OtherObject))
    yield from in_order(listed, compare, n_threads, monitor)


def _difference(expected: OpenedShard | None, found: OpenedShard | None) -> tuple[FindingKind, str] | None:
    if expected is None:  # it was removed since the listing
        return None
    if found is None:
        return (
            FindingKind.MISSING_OBJECT,
            f"an object of {expected.nbytes} bytes that belongs to no array does not exist",
        )
    if found.nbytes != expected.nbytes:
        return FindingKind.DIFFERENT, f"expected an object of {expected.nbytes} bytes, got {found.nbytes}"
    if not same_bytes(expected, found):
        return FindingKind.DIFFERENT, f"expected an object with the same {expected.nbytes} bytes, got others"
    return None


def _close(view: OpenedShard | None) -> None:
    if view is not None:
        view.close()


def _differs(own: Any, other: Any) -> np.ndarray[Any, Any] | None:
    """Return which elements differ in a bit; None if none does."""
    if own.dtype.kind in "OT":
        return np.asarray(own != other)
    a, b = (np.ascontiguousarray(one, one.dtype.newbyteorder("=")) for one in (own, other))
    size = a.dtype.itemsize
    left = a.reshape(-1).view(np.uint8).reshape(-1, size)
    right = b.reshape(-1).view(np.uint8).reshape(-1, size)
    if np.array_equal(left, right):
        return None
    return np.asarray((left != right).any(axis=1)).reshape(np.shape(own))


def _shown(box: Box) -> str:
    return "[" + ", ".join(f"{part.start}:{part.stop}" for part in box) + "]"
