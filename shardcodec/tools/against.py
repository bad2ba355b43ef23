# against.py - what `verify` compares with: another array, and the objects beside it
# SPDX-License-Identifier: MIT
"""Compare two arrays of one shape and data type, in any layout, block by block; compare the objects beside arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Self

import numpy as np

from ..access.box_reader import Folder
from ..access.opened_shard import OpenedShard
from ..access.shard_object import open_object
from ..errors import ShardError
from ..option_sources import current_options
from .backup import same_bytes
from .chunk_check import elements_of, type_of
from .convert.open_source import open_foreign
from .convert.source import SourceArray, SourceTree
from .other_objects import OtherObject, objects_to_compare
from .related_nodes import Selection, groups_of
from .report import Finding, FindingKind
from .targets import ArrayTarget, ShardTarget, find_arrays, find_groups
from .work import Monitor, in_order

__all__ = ["Comparison", "compared_objects", "missing_nodes"]

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
            actual = self._reference.shape, self._reference.type_name
        else:
            self._reference = elements_of(other)
            actual = self._reference.shape, type_of(other, self._reference)
        if expected != actual:
            raise ValueError(
                f"{other.place}: expected an array of shape {expected[0]} and data type {expected[1]}, as {array.place} has, "
                f"got {actual[0]} and {actual[1]}"
            )

    @property
    def least_nbytes(self) -> int:
        """Memory of a comparison in bytes: blocks of one inner chunk, and the inner chunks that are decoded for them."""
        readers = self._own, self._reference
        sizes = [int(math.prod(reader.chunks) * reader.dtype.itemsize) for reader in readers]
        return 4 * sizes[0] + sum(sizes) * current_options().threads

    def limit_blocks(self, nbytes: int) -> None:
        """Compare blocks of at most `nbytes` decoded bytes, but of at least one inner chunk."""
        self._block_nbytes = min(self._block_nbytes, nbytes)

    @classmethod
    def of(cls, array: ArrayTarget, against: Any, storage_options: Mapping[str, Any] | None) -> Self:
        """Return the comparison with an array, or with the array of the same name in a group; any source of `convert`."""
        if array.layout is None:
            raise ValueError("against: expected a shard inside of its array, got one without an array")
        tree = open_foreign(against, current_options(), Selection(nodes=frozenset({array.name})))
        if tree is not None:
            return cls(array, _named(tree, array.name))
        arrays = find_arrays(against, array=array.name or None, storage_options=storage_options)
        return cls(array, next(arrays))

    def further_shards(self) -> Iterator[ShardTarget]:
        """Yield the shards of the grid that are not stored here and may be stored in the other array."""
        if self._array.only is not None:
            return
        other, own = self._other, self._array.object_spec
        if other is not None and other.is_readable and other.object_spec.shard_shape == own.shard_shape:
            positions: Iterator[Ints] = (shard.coords for shard in other.shards() if shard.coords is not None)
        else:
            positions = itertools.product(*map(range, self._array.shard_grid))
        for coords in positions:
            shard = self._array.shard(coords)
            if not shard.is_stored:
                yield shard

    def findings(self, shard: ShardTarget) -> Iterator[Finding]:
        """Yield the blocks of a shard whose elements differ."""
        for box in self._blocks(shard):
            try:
                own, other = _elements(self._own, box), _elements(self._reference, box)
            except (
                ShardError,
                OSError,
                ValueError,
                RuntimeError,
            ) as error:  # zarr's codecs raise the last two
                yield self._finding(shard, f"the elements of {_shown(box)} cannot be compared: {error}")
                continue
            differs = _differs(own, other)
            if differs is not None and differs.any():
                first = [int(i) + axis.start for i, axis in zip(np.argwhere(differs)[0], box, strict=True)]
                n = np.count_nonzero(differs)
                yield self._finding(
                    shard,
                    f"{n} of {differs.size} elements of {_shown(box)} differ, the first one at {tuple(first)}",
                )

    def _finding(self, shard: ShardTarget, detail: str) -> Finding:
        return Finding(FindingKind.DIFFERENT, shard.name, detail, self._array.name, recoverable=False)

    def _blocks(self, shard: ShardTarget) -> Iterator[Box]:
        """Yield boxes of the array that cover a shard; each has whole inner chunks, and at least one."""
        assert shard.coords is not None
        sizes = self._own.shards or self._own.chunks
        low = [i * size for i, size in zip(shard.coords, sizes, strict=True)]
        high = [min(a + size, n) for a, size, n in zip(low, sizes, self._own.shape, strict=True)]
        steps = list(self._own.chunks)
        for axis in reversed(range(len(steps))):
            rest = self._own.dtype.itemsize * math.prod(steps) // steps[axis]
            most = self._block_nbytes // max(1, rest) // self._own.chunks[axis] * self._own.chunks[axis]
            steps[axis] = max(self._own.chunks[axis], min(most, sizes[axis]))
        axes = zip(low, high, steps, strict=True)
        for starts in itertools.product(*(range(a, b, step) for a, b, step in axes)):
            yield tuple(slice(a, min(a + step, b)) for a, step, b in zip(starts, steps, high, strict=True))


class _SourceElements:
    """The elements of a source of `convert`, with the interface of `elements_of`."""

    def __init__(self, source: SourceArray) -> None:
        self.shape, self.dtype, self.type_name = source.shape, source.dtype, source.data_type
        self.chunks: Ints = source.chunks or (1,) * len(source.shape)
        self._source = source

    def __getitem__(self, box: Box) -> Any:
        if self._source.bytes is not None:
            return np.asarray(self._source.elements()[box])
        out = np.empty([axis.stop - axis.start for axis in box], self.dtype)
        self._source.read(tuple(axis.start for axis in box), out)
        return out


def _named(tree: SourceTree, name: str) -> SourceArray:
    """Return the array of a name; raise `FileNotFoundError` if there is none."""
    for array in tree.arrays:
        if array.name == name:
            return array
    raise FileNotFoundError(f"against: expected an array {name!r} at {tree.place}, but there is none")


# ---- arrays and groups


def missing_nodes(
    against: Any, known: Collection[str], storage_options: Mapping[str, Any] | None
) -> Iterator[str]:
    """Yield the arrays and groups of another hierarchy that are not `known`, by path; those in such a group are not named."""
    tree = open_foreign(against, current_options(), Selection(nodes=frozenset()))
    if tree is not None:
        names = {*tree.unchosen, *tree.groups}
    else:
        arrays = find_arrays(against, storage_options=storage_options)
        groups = find_groups(against, storage_options)
        names = {*(array.name for array in arrays), *(name for name, _ in groups)}
    missing = {name for name in names if name and name not in known}
    yield from sorted(name for name in missing if groups_of([name]).isdisjoint(missing))


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

    Nothing is compared if `against` is a single shard or not a hierarchy of zarr. Only objects in the folder of `array` count
    if it is not None. Yields the path of each object below the root, and the difference or None.
    """
    if open_foreign(against, current_options(), Selection(nodes=frozenset())) is not None:
        return
    others = objects_to_compare(against, storage_options, array=array)
    if others is None:
        return
    store = others.store

    def compare(item: OtherObject) -> tuple[str, tuple[FindingKind, str] | None]:
        try:
            expected = open_object(store, item.key)
            try:
                actual = open_object(root.store, root.prefix + item.name)
                try:
                    return item.name, _difference(expected, actual)
                finally:
                    _close(actual)
            finally:
                _close(expected)
        except (ShardError, OSError) as error:
            return item.name, (FindingKind.UNREADABLE, f"the object cannot be compared: {error}")

    listed = (item for item in others if isinstance(item, OtherObject))
    yield from in_order(listed, compare, n_threads, monitor)


def _difference(expected: OpenedShard | None, actual: OpenedShard | None) -> tuple[FindingKind, str] | None:
    if expected is None:  # removed since the listing
        return None
    if actual is None:
        return (
            FindingKind.MISSING_OBJECT,
            f"an object of {expected.nbytes} bytes that belongs to no array does not exist",
        )
    if actual.nbytes != expected.nbytes:
        return FindingKind.DIFFERENT, f"expected an object of {expected.nbytes} bytes, got {actual.nbytes}"
    if not same_bytes(expected, actual):
        return FindingKind.DIFFERENT, f"expected an object with the same {expected.nbytes} bytes, got others"
    return None


def _close(view: OpenedShard | None) -> None:
    if view is not None:
        view.close()


def _elements(array: Any, box: Box) -> Any:
    """Return the elements of a box; those of an array of rank 0 may be one object of Python."""
    elements = array[box]
    if not hasattr(elements, "dtype"):
        return np.array(elements, dtype=object)
    # a scalar of text is only as long as its text
    return np.asarray(elements, array.dtype) if elements.dtype.kind in "SU" else elements


def _differs(own: Any, other: Any) -> np.ndarray[Any, Any] | None:
    """Return a flag for each element, True if a bit differs; None if no element differs."""
    if own.dtype.kind in "OT":
        return np.asarray(own != other)
    a, b = (np.ascontiguousarray(elements, elements.dtype.newbyteorder("=")) for elements in (own, other))
    size = a.dtype.itemsize
    own_bytes = a.reshape(-1).view(np.uint8).reshape(-1, size)
    other_bytes = b.reshape(-1).view(np.uint8).reshape(-1, size)
    if np.array_equal(own_bytes, other_bytes):
        return None
    return np.asarray((own_bytes != other_bytes).any(axis=1)).reshape(np.shape(own))


def _shown(box: Box) -> str:
    return "[" + ", ".join(f"{axis.start}:{axis.stop}" for axis in box) + "]"
