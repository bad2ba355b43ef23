# against.py - what `verify` compares with: another array, and the objects beside it
# SPDX-License-Identifier: MIT
"""Compare two arrays of one shape and data type, in any layout, block by block; compare metadata, and the objects beside arrays."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from functools import cached_property
from typing import Any, Self

import numpy as np

from ...access.box_reader import Folder
from ...access.opened_shard import OpenedShard
from ...access.shard_object import open_object
from ...errors import ShardError, SpecError, UnsupportedError
from ...option_sources import current_options
from ..backup import same_bytes
from ..capped import Capped
from ..conventions.all_conventions import mended
from ..convert.open_source import open_hierarchy, open_source
from ..convert.source import SourceArray, SourceTree
from ..convert.stored_objects import stored_positions
from ..documents import Document, further_members
from ..findings import Finding, FindingKind
from ..foreign_chunks import elements_of, type_of
from ..hierarchy import Hierarchy
from ..monitor import Monitor
from ..node_selection import Selection, outermost
from ..nodes import ZarrNodes, groups_of
from ..other_objects import OtherObject, OtherObjects, written_documents
from ..shard_threads import in_order
from ..stored_nodes import consolidated_nodes
from ..targets import ArrayTarget, ShardTarget

__all__ = [
    "Comparison",
    "DifferentArrays",
    "Reference",
    "array_differences",
    "compared_arrays",
    "compared_objects",
    "group_differences",
]

# Decoded bytes of one block.
BLOCK_NBYTES = 32 << 20

# Characters of a value that are shown.
_MAX_TEXT = 200
# The comparison has members that the format does not define, for example those of extensions, under this name.
_MEMBERS = "members"


class _NotThere:
    """Stands for an attribute that does not exist."""

    def __str__(self) -> str:
        return "none"


_NOT_THERE = _NotThere()

Ints = tuple[int, ...]
Box = tuple[slice, ...]


class DifferentArrays(ValueError):
    """Two arrays differ in shape or data type."""


class Comparison:
    """An array and the one with which it is compared.

    Parameters
    ----------
    array : ArrayTarget
    other : ArrayTarget or SourceArray

    Attributes
    ----------
    problem : str or None
        Why the elements cannot be compared, only the bytes of objects; None if they can be.

    Raises
    ------
    DifferentArrays
        They differ in shape or data type.
    UnsupportedError
        Neither the engine nor zarr decodes one of them, and their objects have no common encoding.
    """

    def __init__(self, array: ArrayTarget, other: ArrayTarget | SourceArray) -> None:
        self._array, self._source = array, other
        self._other = other if isinstance(other, ArrayTarget) else None
        self._block_nbytes = BLOCK_NBYTES
        self.problem: str | None = None
        self._has_same_objects: bool = self._other is not None and _have_same_objects(array, self._other)
        try:
            self._open(other)
        except UnsupportedError as error:
            if not self._has_same_objects:
                raise
            self.problem = error.message

    def _open(self, other: ArrayTarget | SourceArray) -> None:
        array = self._array
        self._own = elements_of(array)
        expected = self._own.shape, type_of(array, self._own)
        if isinstance(other, SourceArray):
            self._reference: Any = _SourceElements(other)
            actual = self._reference.shape, self._reference.type_name
        else:
            self._reference = elements_of(other)
            actual = self._reference.shape, type_of(other, self._reference)
        if expected != actual:
            raise DifferentArrays(
                f"{other.place}: expected an array of shape {expected[0]} and data type {expected[1]}, as {array.place} has, "
                f"got {actual[0]} and {actual[1]}"
            )

    @property
    def least_nbytes(self) -> int:
        """Memory of a comparison in bytes: blocks of one inner chunk, and the inner chunks that are decoded for them."""
        if self.problem is not None:
            return 0
        readers = self._own, self._reference
        sizes = [int(math.prod(_chunks_of(reader)) * reader.dtype.itemsize) for reader in readers]
        return 4 * sizes[0] + sum(sizes) * current_options().threads

    def limit_blocks(self, nbytes: int) -> None:
        """Compare blocks of at most `nbytes` decoded bytes, but of at least one inner chunk."""
        self._block_nbytes = min(self._block_nbytes, nbytes)

    @classmethod
    def of(cls, array: ArrayTarget, against: Any, storage_options: Mapping[str, Any] | None) -> Self:
        """Return the comparison with an array, or with the array of the same name in a group; any source of `convert`."""
        selection = Selection(nodes=frozenset({array.name}))
        return cls.with_one_of(array, Reference(against, storage_options, selection, array.name or None))

    @classmethod
    def with_one_of(cls, array: ArrayTarget, reference: Reference) -> Self:
        """Return the comparison with the array of the same name in a hierarchy."""
        if array.layout is None:
            raise ValueError("against: expected a shard inside of its array, got one without an array")
        return cls(array, reference.array(array.name))

    def further_shards(self) -> Iterator[ShardTarget]:
        """Yield the shards of the grid that are not stored here and may be stored in the other array."""
        if self._array.only is not None:
            return
        stored = _flat_positions(self._array)
        for coords in stored_positions(self._source, self._array):
            shard = self._array.shard(coords)
            if not (shard.is_stored if stored is None else _flat(coords, self._array.shard_grid) in stored):
                yield shard

    def has_same_bytes(self, shard: ShardTarget) -> bool:
        """Return True if the other array stores the same object, which then has the same elements."""
        if not self._has_same_objects or self._other is None or shard.coords is None:
            return False
        try:
            with ExitStack() as stack:
                own, other = (
                    None if view is None else stack.enter_context(closing(view))
                    for view in (
                        open_object(one.array.store, one.key)
                        for one in (shard, self._other.shard(shard.coords))
                    )
                )
                if own is None or other is None or own.nbytes != other.nbytes:
                    return False
                return same_bytes(own, other)
        except (ShardError, OSError):  # the elements show what is wrong
            return False

    def metadata_differences(self) -> Iterator[str]:
        """Yield how the fill values differ."""
        documents = self._array.document, self._other.document if self._other is not None else {}
        if self.problem is not None:  # the encoding has the fill value
            return
        if (
            all(one.get("zarr_format") == 3 for one in documents)
            and len({_value(one) for one in documents}) == 1
        ):
            return  # Python before 3.14 loses the payload of a NaN of float16, so that zarr reads another fill value
        own, other = (_fill_of(reader) for reader in (self._own, self._reference))
        if own is None or other is None:
            if _format(documents[0]) == _format(documents[1]):  # of text, as it is spelt
                yield from _differences(
                    *({"fill_value": one.get("fill_value")} for one in reversed(documents))
                )
        elif own != other:
            yield f"fill value: expected {_shown_fill(self._reference)}, got {_shown_fill(self._own)}"

    def findings(self, shard: ShardTarget) -> Iterator[Finding]:
        """Yield the blocks of a shard whose elements differ."""
        if self.has_same_bytes(shard):
            return
        if self.problem is not None:
            yield self._finding(
                shard, f"the bytes differ, and the elements cannot be compared: {self.problem}"
            )
            return
        for box in self._blocks(shard):
            try:
                own, other = _elements(self._own, box), _elements(self._reference, box)
            except MemoryError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a codec of zarr or a source raises
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
        chunks = _chunks_of(self._own)
        sizes = self._array.object_spec.shard_shape
        low = [i * size for i, size in zip(shard.coords, sizes, strict=True)]
        high = [min(a + size, n) for a, size, n in zip(low, sizes, self._own.shape, strict=True)]
        steps = list(chunks)
        for axis in reversed(range(len(steps))):
            rest = self._own.dtype.itemsize * math.prod(steps) // steps[axis]
            most = self._block_nbytes // max(1, rest) // chunks[axis] * chunks[axis]
            steps[axis] = max(chunks[axis], min(most, sizes[axis]))
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
            elements = self._source.elements()[box]
            return elements if isinstance(elements, str | bytes) else np.asarray(elements)
        out = np.empty([axis.stop - axis.start for axis in box], self.dtype)
        self._source.read(tuple(axis.start for axis in box), out)
        return out


# ---- the other hierarchy


class Reference:
    """The other hierarchy, any source of `convert`, opened once.

    Parameters
    ----------
    against : object
    storage_options : mapping or None
    selection : Selection
        The nodes that are compared.
    array : str, optional
        The only array.

    Attributes
    ----------
    tree : SourceTree or None
        A source that is not one of Zarr v2 or v3.
    root : Folder or None
        The hierarchy of Zarr; None for a shard.
    arrays : mapping
        The chosen arrays, by path.
    groups : mapping
        Folders and documents of the groups of Zarr, by path.
    notes : list of str
        Sentences on what was not compared.
    left : mapping
        From the arrays that Zarr has no type for, and `convert` so leaves out, to the reason.
    names : set of str
        Chosen arrays and groups, also those whose document is lost and only in consolidated metadata.
    """

    def __init__(
        self,
        against: Any,
        storage_options: Mapping[str, Any] | None,
        selection: Selection,
        array: str | None = None,
    ) -> None:
        self._against, self._storage_options, self._selection = against, storage_options, selection
        opened = open_hierarchy(against, current_options(), selection, storage_options)
        self.tree: SourceTree | None = None
        self.root: Folder | None = None
        self.arrays: dict[str, ArrayTarget | SourceArray] = {}
        self.groups: dict[str, tuple[Folder, Document]] = {}
        self._all: dict[str, ArrayTarget] = {}
        self.notes: list[str] = []
        self.left: dict[str, str] = {}
        if isinstance(opened, SourceTree):
            self.tree = opened
            self.place: str = self.tree.place
            self.notes.append(f"attributes were not compared, because {self.place} is not in Zarr v2 or v3")
            self.arrays.update((one.name, one) for one in self.tree.arrays)
            # without a selection of its own each array that is not opened is a chosen one
            unchosen = self.tree.unchosen if selection.nodes is not None else ()
            self._note_left(self.tree)
            kept = set(self.tree.groups)
            if selection.only or selection.exclude:
                kept = selection.groups(self.tree.groups, self.arrays)
            self.names: set[str] = {*self.arrays, *unchosen, *self.left, *kept}
            return
        self.place = str(against)
        self.root = None if opened.rest else opened.folder
        self._all = {one.name: one for one in opened.arrays(array)}
        lost: set[str] = set()
        if array is None:
            self.groups = {name: (folder, node) for name, folder, node in opened.groups()}
            for name, (folder, node) in self.groups.items():
                lost.update(path for path, _, _ in consolidated_nodes(folder, node, name))
        names = {*self._all, *lost} - self.groups.keys()
        if self.root is not None and (selection.only or selection.exclude):
            names = selection.arrays(names, ZarrNodes(self.root))
            kept = selection.groups(self.groups, names)
        else:
            kept = set(self.groups)
        self.arrays.update((name, one) for name, one in self._all.items() if name in names)
        self.names = {*names, *kept}

    def _note_left(self, tree: SourceTree) -> None:
        self.left.update((one.name, one.reason) for one in tree.left_arrays)

    def array(self, name: str) -> ArrayTarget | SourceArray:
        """Return an array; raise `FileNotFoundError` if there is none."""
        if name not in self.arrays:
            if name in self.left:
                raise UnsupportedError(self.left[name])
            raise FileNotFoundError(f"against: expected an array {name!r} at {self.place}, but there is none")
        return self.arrays[name]

    def missing(self, known: set[str]) -> Iterator[tuple[str, str | None]]:
        """Yield the nodes that are not `known`, by path, and why `convert` leaves them out; those in such a group are not named."""
        missing = {name for name in self.names if name and name not in known}
        if self.tree is not None and missing - self.left.keys():  # they were not opened
            opened = open_hierarchy(self._against, current_options(), Selection(), self._storage_options)
            if isinstance(opened, SourceTree):
                self._note_left(opened)
        for name in sorted(name for name in missing if groups_of([name]).isdisjoint(missing)):
            yield name, self.left.get(name)

    def others(self) -> OtherObjects | None:
        """Return the objects that belong to no array and that a copy should have; None for a shard, and for other formats."""
        if self.root is None:
            return None
        documents = {name: written_documents(one.document) for name, one in self._all.items()}
        documents |= {name: written_documents(node) for name, (_, node) in self.groups.items()}
        chosen: tuple[str, ...] | None = None
        left: frozenset[str] = frozenset()
        if self._selection.only or self._selection.exclude:
            left = frozenset({*self._all, *self.groups} - self.names)
            matched = filter(self._selection.matches, filter(None, self.groups))
            chosen = outermost({*self.arrays, *matched}) if self._selection.only else None
        return OtherObjects(self.root, self._all, documents, chosen=chosen, checks_names=False, left=left)

    @cached_property
    def converted(self) -> tuple[dict[str, SourceArray], Mapping[str, Mapping[str, Any]]]:
        """The arrays and the attributes of groups as `convert` takes them to Zarr v3; empty if it does not take them."""
        return _converted(self._against, self._storage_options)


def _converted(
    place: Any, storage_options: Mapping[str, Any] | None
) -> tuple[dict[str, SourceArray], Mapping[str, Mapping[str, Any]]]:
    try:
        tree = open_source(place, current_options(), others="none", storage_options=storage_options)
    except (ShardError, OSError, ValueError):
        return {}, {}
    return {one.name: one for one in tree.arrays}, tree.groups


def compared_arrays(
    arrays: list[ArrayTarget],
    target: Any,
    hierarchy: Hierarchy,
    against: Any,
    selection: Selection,
    storage_options: Mapping[str, Any] | None,
) -> tuple[list[ArrayTarget], Reference | None]:
    """Return the arrays of a target that are chosen, and the other hierarchy, if there is one.

    Raises
    ------
    FileNotFoundError
        A pattern fits no array or group, or the two hierarchies have no array in common.
    """
    names, nodes = {one.name for one in arrays}, set()
    if selection.is_part:
        chosen = set()
        if not hierarchy.rest:
            nodes = {name for name, _, _ in hierarchy.groups()}
            chosen = selection.arrays(names, ZarrNodes(hierarchy.folder))
        nodes |= names
        arrays = [one for one in arrays if one.name in chosen]
        names = chosen
    reference = None
    if against is not None:
        nodes_of_other = selection if selection.is_part else Selection(nodes=frozenset(names))
        reference = Reference(against, storage_options, nodes_of_other)
    if reference is not None:
        nodes |= reference.names
    if selection.is_part and (unknown := selection.unknown(nodes)):
        raise FileNotFoundError(
            f"{target}: expected an array or a group that matches {unknown!r}, but there is none"
        )
    if reference is not None and arrays and names.isdisjoint(reference.names):
        reference.array(arrays[0].name)  # it raises the error
    return arrays, reference


# ---- metadata


def array_differences(own: ArrayTarget, reference: Reference) -> Iterator[str]:
    """Yield how attributes, names of axes and members of extensions differ from those of the other array of Zarr."""
    other = reference.arrays.get(own.name)
    if not isinstance(other, ArrayTarget) or own.only is not None:
        return
    expected, actual = _array_metadata(other), _array_metadata(own)
    if _format(own.document) != _format(other.document):
        converted = reference.converted[0].get(own.name)
        if converted is None or _format(own.document) != 3:
            reference.notes.append(f"{own.place}: attributes were not compared with those of another format")
            return
        names = converted.dimension_names
        expected = {"attributes": converted.attributes, "dimension_names": _names(names)}
    yield from _differences(expected, actual)


def group_differences(
    name: str, folder: Folder, document: Document, reference: Reference, known: set[str]
) -> Iterator[str]:
    """Yield how attributes and members of extensions of a group differ from those of the other group; they may name only nodes that are `known`."""
    if reference.root is None:
        return
    try:
        yield from _group_differences(name, folder, document, reference, known)
    except (
        SpecError,
        OSError,
    ) as error:  # a document without permission, which the checks of its own hierarchy find
        reference.notes.append(f"{folder!r}: attributes were not compared: {error}")


def _group_differences(
    name: str, folder: Folder, document: Document, reference: Reference, known: set[str]
) -> Iterator[str]:
    actual = _attributes(folder, document)
    if name not in reference.groups:
        if actual and name not in reference.names and name in known:
            yield "only this hierarchy has this group, which has attributes"
        return
    other_folder, other = reference.groups[name]
    expected = _attributes(other_folder, other)
    if _format(document) != _format(other):
        converted = reference.converted[1].get(name)
        if converted is None or _format(document) != 3:
            reference.notes.append(f"{folder!r}: attributes were not compared with those of another format")
            return
        expected = converted
    else:
        yield from _differences({_MEMBERS: further_members(other)}, {_MEMBERS: further_members(document)})
    part = mended(name, expected, known.__contains__)
    if not _same(part, actual):
        yield from _differences({"attributes": expected}, {"attributes": actual})


def _array_metadata(array: ArrayTarget) -> dict[str, Any]:
    attributes = _attributes(array.folder, array.document)
    names = _names(array.document.get("dimension_names"))
    return {"attributes": attributes, "dimension_names": names, _MEMBERS: further_members(array.document)}


def _attributes(folder: Folder, document: Document) -> Mapping[str, Any]:
    given = document.get("attributes") if _format(document) == 3 else folder.document(".zattrs")
    return given if isinstance(given, Mapping) else {}


def _names(given: Any) -> list[Any] | None:
    """Return the names of axes; None if no axis has one."""
    return None if not given or all(name is None for name in given) else list(given)


def _format(document: Document) -> Any:
    return document.get("zarr_format")


def _differences(expected: Mapping[str, Any], actual: Mapping[str, Any]) -> Iterator[str]:
    for name, value in expected.items():
        if _same(value, actual[name]):
            continue
        if name not in ("attributes", _MEMBERS):
            yield f"{name}: expected {_text(value)}, got {_text(actual[name])}"
            continue
        keys = Capped.of(
            key
            for key in {**value, **actual[name]}
            if not _same(value.get(key, _NOT_THERE), actual[name].get(key, _NOT_THERE))
        )
        for key in keys:
            one, other = (_text(given.get(key, _NOT_THERE)) for given in (value, actual[name]))
            yield f"{name[:-1]} {key!r}: expected {one}, got {other}"
        if keys.n_more:
            yield f"{keys.n_more} more {name} differ"


def _same(one: Any, other: Any) -> bool:
    return one is other or json.dumps(one, sort_keys=True, default=str) == json.dumps(
        other, sort_keys=True, default=str
    )


def _text(value: Any) -> str:
    text = str(value) if value is _NOT_THERE else json.dumps(value, default=str)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."


# ---- objects that belong to no array


def compared_objects(
    others: OtherObjects,
    root: Folder,
    monitor: Monitor,
    n_threads: int,
) -> Iterator[tuple[str, tuple[FindingKind, str] | None]]:
    """Compare the objects of another hierarchy that belong to no array with those of the same names below a root.

    Yields the path of each object below the root, and the difference or None.
    """
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


def _have_same_objects(array: ArrayTarget, other: ArrayTarget) -> bool:
    """Return True if equal objects at equal positions have equal elements."""
    if array.layout is None or other.layout is None or not (array.is_readable and other.is_readable):
        return False
    return array.counted_shape == other.counted_shape and array.encoding == other.encoding


def _chunks_of(elements: Any) -> Ints:
    """Return the shape of a chunk; of a grid with several shapes that of the array."""
    try:
        return tuple(elements.chunks)
    except NotImplementedError:
        return tuple(max(1, n) for n in elements.shape)


def _flat(coords: Ints, grid: Ints) -> int:
    at = 0
    for i, n in zip(coords, grid, strict=True):
        at = at * n + i
    return at


def _flat_positions(array: ArrayTarget) -> set[int] | None:
    """Return the positions of the stored shards in the order of the grid, from one listing; None if the store cannot list."""
    if not array.store.supports_listing:
        return None
    return {_flat(shard.coords, array.shard_grid) for shard in array.shards() if shard.coords is not None}


def _value(document: Mapping[str, Any]) -> str:
    """Return data type and fill value of a document of Zarr v3 as text."""
    return json.dumps([document.get("data_type"), document.get("fill_value")], sort_keys=True)


def _fill_of(elements: Any) -> bytes | None:
    """Return the bits of the fill value in native byte order, or its text as UTF-8; None if the array has no fill value."""
    fill, dtype = getattr(elements, "fill_value", None), elements.dtype
    if dtype.kind in "OT" and isinstance(fill, str | bytes):
        return fill.encode() if isinstance(fill, str) else fill
    if fill is None or dtype.kind in "OT" or not hasattr(fill, "dtype"):
        return None
    return np.asarray(fill, dtype.newbyteorder("=")).tobytes()


def _shown_fill(elements: Any) -> str:
    fill = elements.fill_value
    if fill == fill:
        return str(fill)
    return f"{fill} ({np.asarray(fill, elements.dtype.newbyteorder('>')).tobytes().hex()})"


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
