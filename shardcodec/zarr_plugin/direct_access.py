# direct_access.py - selections of an array without zarr's own way to a pipeline
# SPDX-License-Identifier: MIT
"""`DirectAccess`: reads and writes of one array in the thread of the caller.

zarr's own way to a pipeline (indexers, one spec for each chunk, a change of threads to its event loop and back) takes 100 to
200 microseconds, more than a small read itself. Selections of usual types need none of it, but for one change of threads if the
store is read with requests. `read` and `write` decline everything else, and what fails without a request: zarr's way then does the
work, or raises the complete error.
"""

from __future__ import annotations

import copy
import functools
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..access.array_request import Request
from ..access.box_reader import ArrayObjects, BoxReader, Folder
from ..access.buffer import active_buffer, store_elements_blocking
from ..access.read import ObjectSelection, is_damage
from ..access.regions import Box, has_buffer_format
from ..access.selection import KINDS, ArraySelection
from ..compat import (
    IN_MEMORY,
    SETTINGS_OF_ARRAYS,
    StorePath,
    chunk_shape_of,
    config,
    fills_missing_chunks,
    has_usual_buffers,
    is_repaired,
    is_zarrs_loop,
    quiet,
    spec_with,
)
from ..errors import ShardError, name_shard
from ..format.chunk_keys import key_encoding
from ..option_sources import Resolver
from ..options import NOTHING, Choices, Options, active
from ..storage import indexes
from ..storage.kinds import is_zarr_store
from ..storage.renamed_store import RenamedStore
from ..storage.store import Store
from .array_codecs import Kind, TextKind

if TYPE_CHECKING:
    from ..access.buffer.array_guard import ArrayGuard

__all__ = ["DirectAccess", "MemoisedAccess"]

Ints = tuple[int, ...]

_BASIC = (slice, int, EllipsisType)  # without their subclasses, such as bool

_BASIC_KINDS = ("brackets", "basic")
_BOX_KINDS = (*_BASIC_KINDS, "orthogonal")  # their results have the memory order of the array
# For each kind of selections the kinds of dtypes that its lists may have, and the types of its other parts.
_PARTS: dict[str, tuple[str, tuple[type, ...]]] = {
    "orthogonal": ("iub", (slice, int)),  # zarr raises for an ellipsis beside an array
    "coordinate": ("iu", (int,)),
    "mask": ("b", ()),
}

# The objects of a write, the axes of the array in the values, the shape of the values there, and that of the selection.
_Place = tuple[list[ObjectSelection], Ints, Ints, Ints]


# A `DirectAccess` or None, and what it was made from: metadata, which zarr replaces when the array is resized, configuration and
# place of the array; `Store.place`; `options.active`; a copy of `SETTINGS_OF_ARRAYS`. To unpack a tuple is faster than attributes.
_Made = tuple["DirectAccess | None", Any, Any, Any, Any, Choices, Any]


class MemoisedAccess:
    """The `DirectAccess` to one array; made again only when the array was resized or moved, or an option has changed.

    kind: None if zarr's own pipeline does the work. base: the zarr store of the pipeline; an array that was given another one
    later takes zarr's way. store: our `Store` of it. is_plain: zarr writes objects of this array as a whole, and not by inner
    chunks.
    """

    def __init__(
        self, kind: Kind | None, base: Any, store: Store, resolver: Resolver, *, is_plain: bool = False
    ) -> None:
        self._is_plain = is_plain
        self._kind = kind
        self._base = base
        self._store = store
        self._resolver = resolver
        self._made: _Made = None, None, None, None, None, NOTHING, None

    def of(self, array: Any) -> DirectAccess | None:
        """Return the access to an array; None if each access must take zarr's way.

        TypeError, ValueError: an option in the configuration or the environment is invalid.
        """
        access, metadata, own_config, store_path, place, choices, settings = self._made
        if (
            metadata is not array.metadata
            or store_path is not array.store_path
            or own_config is not array.config
            or place is not self._store.place
            or choices is not active()
            or settings != list(map(config.config.get, SETTINGS_OF_ARRAYS))
        ):
            self._made = self._make(array)
            access = self._made[0]
        return access

    def _make(self, array: Any) -> _Made:
        # the inputs first: a change meanwhile makes the access again
        settings = copy.deepcopy(list(map(config.config.get, SETTINGS_OF_ARRAYS)))
        inputs = array.metadata, array.config, array.store_path, self._store.place, active(), settings
        return self._access(array), *inputs

    def _access(self, array: Any) -> DirectAccess | None:
        """Return the direct access to an array, with its metadata and configuration of this moment; None if zarr's way is needed.

        That is so if buffers are unusual, codecs have no native code, the grid is not regular, the key encoding is unknown, or the
        array has rank 0.
        """
        kind, metadata, place = self._kind, array.metadata, array.store_path
        chunk_shape = chunk_shape_of(metadata)
        if kind is None or chunk_shape is None or not metadata.shape or not self._has_objects_of(place):
            return None
        chain = kind.chain_for(tuple(chunk_shape), array.dtype)
        if chain is None or not has_usual_buffers():
            return None
        try:
            with quiet():  # some data types warn
                keys = key_encoding(metadata.to_dict())
        except ShardError:
            return None
        sample = tuple(range(1, len(metadata.shape) + 1))
        is_native = chain.stage is None or isinstance(kind, TextKind)
        if not is_native or metadata.encode_chunk_key(sample) != keys.key(sample):
            return None
        folder = Folder(self._store, f"{place.path}/" if place.path else "")
        objects = ArrayObjects(folder, keys, metadata.shape, chain, array.dtype)
        options = self._resolver.resolve(any_threads=True)
        return DirectAccess(objects, metadata, array.config, array.order, options, is_plain=self._is_plain)

    def _has_objects_of(self, place: Any) -> bool:
        """Return True if the objects of an array are in the store itself, which is one of zarr and not a mock."""
        base = self._base
        is_usual = type(place) is StorePath and place.store is base and is_zarr_store(base)
        return is_usual and not isinstance(base, RenamedStore) and self._store.describes_arrays


class DirectAccess:
    """Selections of one array, in the thread of the caller.

    config: zarr's configuration of the array. order: memory order of results. is_plain: as for `MemoisedAccess`.
    """

    def __init__(
        self,
        objects: ArrayObjects,
        metadata: Any,
        config: Any,
        order: str,
        options: Options,
        *,
        is_plain: bool,
    ) -> None:
        # only at its edge an array has objects that a write replaces though its box does not cover them
        edges = [n % extent for n, extent in zip(objects.shape, objects.chain.shape, strict=True)]
        self._has_edge = is_plain and any(edges)
        self._single = [axis for axis, n in enumerate(edges) if n == 1]
        self._objects = objects
        self._metadata = metadata
        self._spec = spec_with(config)
        self._options = options
        self.serves_all = options.direct  # also arrays that were not made by `attach`
        self._guard: ArrayGuard | None = None
        self._reads = fills_missing_chunks(config)
        self._empty = functools.partial(_empty, order=order)
        if has_buffer_format(objects.dtype):
            self._empty = functools.partial(np.empty, order=order)
        cache = indexes.of_options(options)
        self._reader = BoxReader(objects, options, cache, np.empty if order == "C" else self._empty)

    def read(self, selection: Any, kind: str = "brackets") -> Any:
        """Return the elements of a selection as zarr returns them; None if nothing was read.

        kind: one of `KINDS`. Lists in brackets are declined: zarr's method then asks for a selection of their kind.
        """
        if not self._reads:
            return None
        buffer = active_buffer()
        if buffer is not None and buffer.is_empty:
            buffer = None
        if kind not in _BASIC_KINDS:
            return self._read(_located(selection, kind, self._objects), buffer, kind)
        try:
            elements = self._reader.get(selection) if buffer is None else None
        except (ShardError, OSError, TypeError, ValueError):
            return None
        if elements is None:
            elements = self._read(_basic(selection, self._objects), buffer, kind)
        if elements is None or elements.shape:
            return elements
        return elements if kind == "brackets" and _is_orthogonal(selection) else elements[()]

    def _read(self, chosen: ArraySelection | None, buffer: Any, kind: str) -> np.ndarray[Any, Any] | None:
        """Read a selection of any size; None if it has buffered writes."""
        objects, store = self._objects, self._objects.folder.store
        if chosen is None or not (store.is_near or not is_zarrs_loop()):
            return None
        order = {} if kind in _BOX_KINDS else {"order": "C"}
        out: np.ndarray[Any, Any] = self._empty(chosen.shape, objects.dtype, **order)
        items = objects.items_of(chosen.parts) if chosen.parts else []
        if buffer is not None and buffer.has_any(store, [item.key for item in items]):
            return None
        try:
            if items:
                self._reader.read(items, out, chosen.axes)
        except ShardError as error:
            if store.is_near:
                return None
            name_shard(error, store.describe)
            raise
        return out.reshape(chosen.result)

    def write(self, selection: Any, value: Any, kind: str = "brackets") -> bool:
        """Store a value in the elements of a selection; return False if nothing was stored.

        kind: as for `read`. Raises as `write_request`.
        """
        objects = self._objects
        store = objects.folder.store
        must_use_zarr = is_zarrs_loop() or store.is_read_only or is_repaired(self._metadata)
        place = None if must_use_zarr else self._find(selection, kind)
        if place is None:
            return False
        items, axes, shape, result = place
        values = _as_values(value, result, objects.dtype)
        if values is None:
            return False
        if values.ndim:
            values = values.reshape(shape)
        else:
            axes = (-1,) * len(axes)
        request = Request(store, items, range(len(items)), axes, values, self._spec)
        try:
            store_elements_blocking(request, self._options, self._layout_guard)
        except ShardError as error:
            if is_damage(error) and kind not in _BASIC_KINDS:
                return False  # zarr's way looks whether the array has grown, and tries again
            name_shard(error, store.describe)
            raise
        return True

    def _layout_guard(self) -> ArrayGuard:
        if self._guard is None:
            from ..access.buffer.array_guard import ArrayGuard  # only blocks of `group_writes` need it

            folder = self._objects.folder
            self._guard = ArrayGuard(self._metadata, folder.store, folder.prefix.rstrip("/"))
        return self._guard

    def _find(self, selection: Any, kind: str) -> _Place | None:
        """Return the place of a write; None if the selection has no elements, or zarr has to find them."""
        objects = self._objects
        if kind not in _BASIC_KINDS:
            chosen = _located(selection, kind, objects)
            if chosen is None:
                return None
            # the array may have grown since it was opened, so lists do not know that they have all elements of an object
            items = [item._replace(inside=None) for item in objects.items_of(chosen.parts)]
            return items, *chosen[1:]
        try:
            place = self._reader.locate(selection)
        except (IndexError, OverflowError, TypeError, ValueError):
            return None
        if place is not None:
            item, axes, shape = place
            assert isinstance(item.box, Box)
            if not self._has_edge or any(item.box.start) or item.covers:  # else it may end at the edge
                return [item], axes, shape, shape
        chosen = _basic(selection, objects)
        if chosen is None or not chosen.parts:
            return None
        if self._has_edge and (_has_step(selection) or any(chosen.axes[axis] < 0 for axis in self._single)):
            return None  # steps never replace a chunk; versions of zarr differ in whether an integer does in an axis of one element
        return objects.items_of(chosen.parts, drops_rest=self._has_edge), *chosen[1:]


def _empty(shape: Ints, dtype: np.dtype[Any], order: str) -> Any:
    """Return a new array as zarr makes it."""
    return IN_MEMORY.nd_buffer.empty(shape=shape, dtype=dtype, order=order).as_ndarray_like()  # type: ignore[arg-type]


def _parts(selection: Any) -> tuple[Any, ...]:
    return selection if type(selection) is tuple else (selection,)


def _basic(selection: Any, objects: ArrayObjects) -> ArraySelection | None:
    """Parse a basic selection; return None for a selection of another kind or outside the array."""
    parts = _parts(selection)
    for part in parts:
        if type(part) not in _BASIC and not isinstance(part, np.integer):
            return None
    return _parsed(parts, "basic", objects)


def _has_step(selection: Any) -> bool:
    return any(type(part) is slice and part.step not in (None, 1) for part in _parts(selection))


def _located(selection: Any, kind: str, objects: ArrayObjects) -> ArraySelection | None:
    """Parse a selection of another kind; return None if it has no list or no elements, is unusual, or lies outside the array."""
    try:
        parts = tuple(np.asarray(part) if type(part) is list else part for part in _parts(selection))
    except ValueError:  # lists of several lengths
        return None
    permitted, others = _PARTS[kind]
    n_lists = 0
    for part in parts:
        if type(part) is np.ndarray and part.ndim and part.dtype.kind in permitted:
            if part.dtype.kind == "u" and (part.itemsize == 8 or (part[1:] < part[:-1]).any()):
                return None  # zarr refuses them: its differences of unsigned numbers are never negative
            if part.dtype.kind == "i" and part.size and part.min() < 0:
                return None  # zarr changes them in place
            n_lists += 1
        elif type(part) not in others and not (isinstance(part, np.signedinteger) and "i" in permitted):
            return None
    chosen = _parsed(parts, kind, objects) if n_lists else None
    return chosen if chosen is not None and chosen.parts else None


def _parsed(parts: tuple[Any, ...], kind: str, objects: ArrayObjects) -> ArraySelection | None:
    try:
        return KINDS[kind](parts, objects.shape, objects.chain.shape)
    except (IndexError, TypeError, ValueError):
        return None


def _is_orthogonal(selection: Any) -> bool:
    """Return True if zarr reads integers as an orthogonal selection, whose result is an array of rank 0 and not a scalar."""
    return all(type(part) is int for part in _parts(selection))


def _as_values(value: Any, shape: Ints, dtype: np.dtype[Any]) -> np.ndarray[Any, Any] | None:
    """Return a value as zarr converts it for a write; None for one that must be broadcast or is not an array of numpy."""
    if type(value) is not np.ndarray:
        return np.asanyarray(value, dtype=dtype) if np.isscalar(value) else None
    if value.shape not in (shape, ()):
        return None
    if value.dtype != dtype and value.dtype.name != dtype.name:
        value = value.astype(dtype=dtype, order="A")
    return value if value.dtype == dtype else None
