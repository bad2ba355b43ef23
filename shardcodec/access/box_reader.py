# box_reader.py - read boxes of one array whose geometry, codecs and options are known
# SPDX-License-Identifier: MIT
"""`BoxReader`: a read of one array in as few steps as possible, in the thread of the caller.

Everything that does not depend on the selection is prepared once: geometry, compiled codecs, options, locations of objects.
`Array` and the arrays of `attach` both read through it.
"""

from __future__ import annotations

import functools
import json
import math
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..compat import StorePath, default_buffer_prototype, default_spec, on_zarrs_loop, refusal_of
from ..errors import ShardError, ShardFileError, SpecError, UnsupportedError, as_os_error
from ..format.array_document import attributes_of, encoded_document, json_object
from ..format.chunk_keys import KeyEncoding, key_encoding
from ..options import Options
from ..storage import file_systems
from ..storage.event_loop import from_zarrs_loop, in_thread
from ..storage.files import FileStore, check_name
from ..storage.indexes import IndexCache
from ..storage.kinds import introduce, is_zarr_store, locate
from ..storage.renamed_store import RenamedStore, original
from ..storage.retry import Patience
from ..storage.store import Store
from .read import ObjectSelection, plan_reader, read, slice_reader
from .regions import Box, Boxes, Selection, as_void, covers, whole
from .split_by_object import box_rows, flat_parts, object_boxes

if TYPE_CHECKING:
    from .._native import Chain
    from .disk_reads import DiskReader

__all__ = [
    "ArrayObjects",
    "BoxReader",
    "Folder",
    "SpareDocuments",
    "folder_at",
    "is_malformed",
    "name_of_handle",
]

Ints = tuple[int, ...]

# A message about a group names so many of its arrays, and looks at so many names to find them.
N_NAMED, N_LOOKED = 5, 50

# Keys that a reader keeps, because a loop over inner chunks needs the same ones again.
N_KEYS = 64


class SpareDocuments:
    """Documents of the nodes of one hierarchy as other places have them: its consolidated metadata, and a copy of it.

    They are known by their names for messages: two folders of one hierarchy may have stores of their own. known: from the name of
    a document to the document, its place, and True if the place is a copy. taken: from the name of a lost document to the place of the
    one that was taken in its stead. of_other_kind: from that of a stored document to the place that has the document of a group for
    an array, or the reverse. agreed: names of documents of one kind in the consolidated metadata and in the copy. read: the stored
    documents that were read, by name, for a tool that copies them as they were when it began; None: each look reads again.
    """

    def __init__(self) -> None:
        self.read: dict[str, bytes] | None = None
        self.taken: dict[str, str] = {}
        self.of_other_kind: dict[str, str] = {}
        self.agreed: set[str] = set()
        self.known: dict[str, tuple[Mapping[str, Any], str, bool]] = {}
        self._children: dict[str, set[str]] = {}

    def add(
        self, folder: str, documents: Mapping[str, Mapping[str, Any]], place: str, *, is_copy: bool = False
    ) -> None:
        """Add documents by their paths below a folder; those that are known already stay. A copy has those that no other place has.

        A malformed document does not replace that of the copy.
        """
        for path, document in documents.items():
            above, key = folder, f"{folder}/{path}"
            known = self.known.get(key)
            is_better = known is not None and known[2] and not is_copy
            if known is None or (is_better and not is_malformed(path.rpartition("/")[2], document)):
                self.known[key] = document, place, is_copy
            if known is not None and is_better and known[0].get("node_type") == document.get("node_type"):
                self.agreed.add(key)
            for step in path.split("/")[:-1]:
                self._children.setdefault(above, set()).add(step)
                above = f"{above}/{step}"

    def children(self, folder: str) -> Collection[str]:
        """Return the names of the nodes in a folder."""
        return self._children.get(folder, ())

    def used(self) -> SpareDocuments | None:
        """Return only what was taken, for other processes; None if nothing was."""
        used = SpareDocuments()
        for key in self.taken:
            document, place, _ = self.known[key]
            folder, _, name = key.rpartition("/")
            used.add(folder, {name: document}, place)
            used.agreed.add(key)
        return used if self.taken else None

    def instead_of(self, stored: bytes | None, key: str) -> bytes | None:
        """Return a stored document, or the spare one if it is lost, no JSON object, or malformed and the spare one is not.

        One of another kind of node than in the two other places is lost, too.
        """
        known = self.known.get(key)
        if known is None:
            return stored
        own, name = None if stored is None else _json(stored), key.rpartition("/")[2]
        if isinstance(own, dict) and (not is_malformed(name, own) or is_malformed(name, known[0])):
            if own.get("node_type") not in _KINDS - {known[0].get("node_type")}:
                return stored
            if key not in self.agreed:
                self.of_other_kind[key] = known[1]
                return stored
        document, self.taken[key], _ = known
        return encoded_document(document)


def is_malformed(name: str, document: Mapping[str, Any]) -> bool:
    """Return True for the document of a node, by its name, that no program can read; False for features that only others have."""
    from ..format.byte_document import byte_document  # here, because only tools ask

    is_group = name == ".zgroup" or document.get("node_type") == "group"
    zarr_format = document.get("zarr_format") or 3  # one of a later format may be sound
    if name not in ("zarr.json", ".zarray", ".zgroup") or zarr_format not in (2, 3):
        return False
    try:
        _ = attributes_of(document) if is_group else (key_encoding(document), byte_document(document))
    except SpecError:
        return refusal_of(document, is_group=is_group) is not None
    except UnsupportedError:
        return False
    return name == ".zgroup" and "zarr_format" not in document


# The kinds of nodes of Zarr v3; in Zarr v2 the names of the documents differ.
_KINDS = frozenset({"array", "group"})


def _json(stored: bytes) -> Any:
    """Return the value of a JSON text; None if it is none."""
    try:
        return json.loads(stored)
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of an array in a store. Instances can be pickled.

    prefix: path of the array in the store, with a slash at its end; empty for the root. base: the zarr store in which the array
    was opened, if objects have other keys there. spare: documents that stand in for lost ones, in tools.
    """

    store: Store
    prefix: str
    base: Any = None
    spare: SpareDocuments | None = field(default=None, compare=False)

    def metadata(self) -> Mapping[str, Any]:
        """Return the parsed zarr.json of the array, or its .zarray if it has no zarr.json; FileNotFoundError if it has neither.

        SpecError: it is that of a group.
        """
        name, document = self.first_document("zarr.json", ".zarray", ".zgroup")
        if name == ".zgroup":
            raise FileNotFoundError(
                f"expected an array, but {self!r} is a group; {self.members_of_group({})}"
            )
        if document is None:
            raise FileNotFoundError(f"expected an array, but {self!r} has neither a zarr.json nor a .zarray")
        if document.get("node_type") == "group":
            text = f"expected an array, got a group; {self.members_of_group(document)}"
            raise SpecError(text, path="node_type", expected="array", actual="group")
        return document

    def members_of_group(self, document: Mapping[str, Any]) -> str:
        """Return what a group has, and how one of its arrays is opened. document: its zarr.json, or nothing."""
        known = document.get("consolidated_metadata")
        if isinstance(known, Mapping) and isinstance(known.get("metadata"), Mapping):
            nodes = {str(name): node for name, node in known["metadata"].items() if isinstance(node, Mapping)}
            arrays = [name for name, node in nodes.items() if node.get("node_type") == "array"]
        else:
            arrays = self._arrays_below()
        if not arrays:
            return "give the path of one of its arrays as `path=`"
        more = f" and {len(arrays) - N_NAMED} more" if len(arrays) > N_NAMED else ""
        return (
            f"its arrays are {', '.join(map(repr, arrays[:N_NAMED]))}{more}: open one with path={arrays[0]!r}"
        )

    def _arrays_below(self) -> list[str]:
        """Return the names of the first arrays in this folder, or else in the groups in it; none if the store cannot list them."""
        arrays, groups = [], []
        try:
            if self.store.supports_listing:
                for name in self.store.names(self.prefix)[:N_LOOKED]:
                    below = Folder(self.store, f"{self.prefix}{name}/", self.base)
                    node = below.document("zarr.json")
                    if (node is not None and node.get("node_type") == "group") or below.get(
                        f"{below.prefix}.zgroup"
                    ):
                        groups.append((name, below))
                    elif node is not None or below.get(f"{below.prefix}.zarray"):
                        arrays.append(name)
        except Exception:  # noqa: BLE001 - stores raise any error; the error that is about to be raised counts
            return arrays
        return arrays or [f"{name}/{inner}" for name, below in groups[:1] for inner in below._arrays_below()]

    def first_document(self, *names: str) -> tuple[str, Mapping[str, Any] | None]:
        """Return the first document that exists, with its name; no name and None if there is none.

        A bucket that does not permit to list it forbids to read what does not exist, so the next document is looked for.
        """
        refusal = None
        for name in names:
            try:
                if (stored := self.get(self.prefix + name)) is not None:
                    return name, json_object(stored, name)
            except PermissionError as error:
                if self._is_listed():  # so this object exists
                    raise
                refusal = refusal or error
        if refusal is not None:
            raise refusal
        return "", None

    def _is_listed(self) -> bool:
        """Return True if the store lists the folder."""
        try:
            return self.store.listed(self.prefix) is not None
        except OSError:
            return False

    def document(self, name: str) -> Mapping[str, Any] | None:
        """Return a document of the folder by its name; None if there is none. It raises as `metadata`."""
        stored = self.get(self.prefix + name)
        return None if stored is None else json_object(stored, name)

    def get(self, key: str) -> bytes | None:
        """Return all of an object in the store, or the spare one of a document that is lost or unreadable; None if it does not exist."""
        if self.spare is None:
            return self.stored(key)
        place, read = self.store.describe(key), self.spare.read
        try:
            stored = self.stored(key) if read is None or place not in read else read[place]
        except OSError:
            if place not in self.spare.known:
                raise
            stored = None
        if read is not None and stored is not None:
            read[place] = stored
        return self.spare.instead_of(stored, place)

    def stored(self, key: str) -> bytes | None:
        """Return all of an object in the store; None if it does not exist."""
        if self.base is not None:
            with as_os_error(self.store.describe, key):
                buffer = on_zarrs_loop(self.base.get(key, prototype=default_buffer_prototype()))
            return None if buffer is None else bytes(buffer.to_bytes())
        try:
            with as_os_error(self.store.describe, key):
                answer = self.store.wait(self.store.get(key))
        except ShardFileError as error:
            if error.context.get("kind") != "folder":
                raise
            return None  # a folder of this name is no document
        except KeyError:  # some stores know only the keys of their own nodes, as that of tifffile
            return None
        return None if answer is None else bytes(answer.data)

    def keys(self, names: Sequence[str]) -> list[str]:
        """Return the keys in the store of chunks of the array."""
        prefix, base = self.prefix, self.base
        if base is None:
            return [prefix + name for name in names]
        return [original(StorePath(base, prefix + name)).path for name in names]

    def __repr__(self) -> str:
        return self.store.describe(self.prefix.rstrip("/")).rstrip("/")


def name_of_handle(handle: Any, *_: Any, **__: Any) -> str:
    """Return the name of the array of a handle, for `names_array`."""
    return repr(handle._folder)


def folder_at(place: Any, path: str) -> Folder:
    """Return the objects of an array, from the arguments of `open_array`."""
    path = check_name(path.strip("/"))
    if isinstance(place, str | os.PathLike):
        root = os.path.abspath(os.path.join(os.fspath(place), path))
        return Folder(FileStore(check_name(str(root))), "")
    if isinstance(place, StorePath):
        place, path = place.store, (place / path).path if path else place.path
    if not is_zarr_store(place):
        raise TypeError(f"expected a path or a zarr store, got {type(place).__name__}")
    introduce(place)
    prefix = f"{path}/" if path else ""
    store, _ = locate(StorePath(place, path))
    return Folder(store, prefix, place if isinstance(place, RenamedStore) else None)


@dataclass(frozen=True, slots=True, eq=False)
class ArrayObjects:
    """The objects of an array with a regular grid.

    keys: their keys in the folder. shape: that of the array, in elements. dtype: that of the elements in memory.
    """

    folder: Folder
    keys: KeyEncoding
    shape: Ints
    chain: Chain
    dtype: np.dtype[Any]

    def key(self, coords: Ints) -> str:
        """Return the key in the store of the object at a grid position."""
        return self.folder.keys([self.keys.key(coords)])[0]

    def item(self, coords: Ints, elements: Any) -> ObjectSelection:
        """Return elements of the object at a grid position as an item of a request."""
        return ObjectSelection(self.key(coords), self.chain, elements, inside=self.inside(coords))

    def inside(self, coords: Ints) -> Ints | None:
        """Return the extents of the part of an object that lies within the array; None for an object away from its edge."""
        inside: list[int] = []
        is_whole = True
        for at, extent, size in zip(coords, self.chain.shape, self.shape, strict=True):
            left = size - at * extent
            if left <= 0:
                return None
            is_whole &= left >= extent
            inside.append(min(extent, left))
        return None if is_whole else tuple(inside)

    def items(self, box: Box, *, drops_rest: bool = False) -> list[ObjectSelection]:
        """Return the items of a box of the array; `box` has at least one element. `drops_rest` is as for `items_of`."""
        return self.items_of(list(object_boxes(box, self.chain.shape)), drops_rest=drops_rest)

    def items_of(
        self, parts: Sequence[tuple[Ints, Selection]], *, drops_rest: bool = False
    ) -> list[ObjectSelection]:
        """Return the items of elements of objects, each with its grid position.

        With `drops_rest`, for a write, elements of an object beyond the shape of the array need not be kept.
        """
        keys = self.folder.keys([self.keys.key(coords) for coords, _ in parts])
        has_edge = any(size % extent for size, extent in zip(self.shape, self.chain.shape, strict=True))
        return [
            ObjectSelection(
                key, self.chain, elements, None, drops_rest and self._has_all(inside, elements), inside
            )
            for key, (coords, elements) in zip(keys, parts, strict=True)
            for inside in [self.inside(coords) if has_edge else None]
        ]

    def items_of_boxes(
        self,
        begin: np.ndarray[Any, Any],
        count: np.ndarray[Any, Any],
        numbers: Any = None,
        flat_axis: int | None = None,
    ) -> list[ObjectSelection]:
        """Return the items of boxes. The first axis of the caller's array counts the boxes.

        count: shape of all boxes, or of each. numbers: position of each box along the first axis; None: one box after the other.
        flat_axis: the boxes lie one behind the other along this axis, which is the first one of the caller's array; `numbers` are
        the places of their first elements.
        """
        ndim = begin.shape[1]
        coords, rows = box_rows(begin, count, np.array(self.chain.shape, dtype=np.int64))
        order = np.lexsort(coords.T[::-1])  # it is stable: of boxes that overlap, a write stores the last
        coords, rows = coords[order], rows[order]
        if numbers is not None:
            rows[:, 3 * ndim] = np.asarray(numbers, dtype=np.uint64)[rows[:, 3 * ndim].astype(np.intp)]
        if flat_axis is not None:
            behind = 3 * ndim + 1 + flat_axis
            rows[:, behind] += rows[:, 3 * ndim]
            rows = np.delete(rows, np.s_[3 * ndim : behind], axis=1)
        first = np.flatnonzero(np.r_[True, (coords[1:] != coords[:-1]).any(axis=1)]).tolist()
        return [
            self.item(tuple(coords[a].tolist()), Boxes(rows[a:b])) for a, b in pairwise([*first, len(rows)])
        ]

    def place_boxes(
        self, begin: np.ndarray[Any, Any], count: np.ndarray[Any, Any]
    ) -> tuple[list[ObjectSelection], Ints, Ints]:
        """Return the items of boxes to read, the shape of the caller's array for them, and its axes, as for `BoxReader.read`.

        count: shape of all boxes, which then lie along a first axis; or of each, and then their elements lie one behind the other.
        """
        ndim = begin.shape[1]
        if count.ndim == 1:
            items = self.items_of_boxes(begin, count) if len(begin) and count.all() else []
            return items, (len(begin), *count.tolist()), tuple(range(1, ndim + 1))
        some = count.all(axis=1)
        if not some.any():
            return [], (0,), (0,) * ndim
        begin, count, places, axis = flat_parts(begin[some], count[some])
        items = self.items_of_boxes(begin, count, places, axis)
        return items, (-1, *count[0, axis + 1 :].tolist()), (-1,) * axis + tuple(range(ndim - axis))

    @property
    def held_nbytes(self) -> int:
        """Memory of a new object while the store takes it, in bytes."""
        from .array_write import STREAMED_NBYTES

        store, chain = self.folder.store, self.chain
        if store.is_near:
            return 0
        nbytes = math.prod(chain.shape) * int(chain.itemsize)
        is_collected = not chain.is_shard or chain.index_at_start or not store.takes_parts
        return nbytes if is_collected else min(nbytes, STREAMED_NBYTES)

    def write(
        self, first: Ints, values: np.ndarray[Any, Any], chosen: Collection[Ints], options: Options
    ) -> None:
        """Write whole objects, in a thread without an event loop.

        `values` has the elements of a box of whole objects from the grid position `first` on; cells outside of the array have the
        fill value. Of these objects, those at the positions `chosen` are written, unless all elements have the fill value.
        """
        from .array_request import Request
        from .array_write import write_request_blocking

        start = tuple(at * n for at, n in zip(first, self.chain.shape, strict=True))
        box = Box(start, values.shape, None, (0,) * values.ndim)
        objects = object_boxes(box, self.chain.shape) if values.ndim else [((), whole(()))]
        items = [self.item(coords, elements) for coords, elements in objects if coords in chosen]
        axes = tuple(range(values.ndim))
        request = Request(self.folder.store, items, range(len(items)), axes, values, default_spec())
        write_request_blocking(request, options)

    def read(self, coords: Ints, start: Ints, shape: Ints, options: Options) -> np.ndarray[Any, Any]:
        """Read a box of one object, also elements outside of the array."""
        out = np.empty(shape, self.dtype)
        item = self.item(coords, Box(start, shape, None, (0,) * len(shape)))
        BoxReader(self, options, None).read([item], out, tuple(range(out.ndim)))
        return out

    def _has_all(self, inside: Ints | None, elements: Selection) -> bool:
        """Return True if a selection is a box with all elements of an object that lie within the array."""
        return isinstance(elements, Box) and covers(elements, inside or tuple(self.chain.shape))


class BoxReader:
    """A reader of one array, in the thread of the caller.

    cache: decoded indexes of local files. empty: returns a new array, as `numpy.empty`.

    get: reads a small basic selection within one local file, in one native call, or any within an immutable object of which all
    that is selected is in the cache on a local disk; returns None for any other. Its errors do not name the object: after one
    call `read`, which names it, and reads again if a writer has changed it.
    """

    def __init__(
        self,
        objects: ArrayObjects,
        options: Options,
        cache: IndexCache | None,
        empty: Callable[..., Any] = np.empty,
    ) -> None:
        self._objects = objects
        self._options = options
        self._plans = plan_reader(options, cache)
        store = objects.folder.store
        root = None if store.is_prompt else store.path(objects.folder.prefix)
        self._lacks_names = root is not None and file_systems.loses_locks(
            root
        )  # then `read` knows what is absent
        self._disk: DiskReader | None = None
        if options.cache_dir is not None and not store.is_near:
            from .disk_reads import disk_reader  # here, because most processes read files or memory

            self._disk = disk_reader(store, options)
        self._locate = native.load().locate_selection
        self._key = functools.lru_cache(N_KEYS)(objects.key)
        slices = self._slice_reader(empty, cache)
        self.get: Callable[[Any], Any] = _nothing if slices is None else slices.get

    def _slice_reader(self, empty: Callable[..., Any], cache: IndexCache | None) -> Any:
        """Return the fast path for slices inside one file, or one immutable object on a local disk; None if there is none."""
        objects, options = self._objects, self._options
        lead = objects.folder.store.path(objects.folder.prefix + objects.keys.prefix)
        files: dict[str, Any]
        if not objects.shape or self._lacks_names:
            return None
        if lead is not None:
            native_cache = None if cache is None else cache.native
            files = {"lead": lead, "between": objects.keys.separator, "cache": native_cache}
        elif self._disk is not None and options.immutable:
            files = {"on_disk": self._file_on_disk, "max_nbytes": sys.maxsize, "n_threads": options.threads}
        else:
            return None
        return slice_reader(objects.chain, objects.dtype, options, shape=objects.shape, empty=empty, **files)

    def _file_on_disk(self, coords: Ints) -> str | None:
        """Return the file of the object at a grid position in the cache on a local disk; None if it may not be read."""
        assert self._disk is not None
        return self._disk.file(self._key(coords))

    def locate(self, selection: Any) -> tuple[ObjectSelection, Ints, Ints] | None:
        """Return a basic selection within one object as (`ObjectSelection`, axes, shape), the last two as from `parse_selection`.

        None if the selection touches several objects.
        """
        objects = self._objects
        place = self._locate(objects.chain, selection, objects.shape)
        if place is None:
            return None
        coords, (start, count, step, axes, shape) = place
        box = Box(start, count, None if set(step) == {1} else step, (0,) * len(start))
        return (
            ObjectSelection(self._key(coords), objects.chain, box, inside=objects.inside(coords)),
            axes,
            shape,
        )

    def read(
        self,
        items: Sequence[ObjectSelection],
        out: np.ndarray[Any, Any],
        axes: Ints,
        patience: Patience | None = None,
    ) -> None:
        """Read items into `out`, in one native call if its objects are files or in memory.

        items: each object once. axes: for each axis of the array the axis of `out`, -1 for none. patience: that of an earlier
        attempt. After an error the content of `out` is unspecified.
        """
        store = self._objects.folder.store
        if not store.is_near:
            self._read_far(items, out, axes)
            return
        if self._objects.chain.stage is None and patience is None and not self._lacks_names:
            plan = [(item.chain, store.source(item.key), item.box) for item in items]
            try:
                self._plans.read(plan, as_void(out), axes, native.current())
                return
            except ShardError:
                pass  # `read` below reads again if the file has just changed, else it raises a complete error
            except OSError as error:
                patience = Patience.after(error)
        items = [
            ObjectSelection(store.path(item.key) or item.key, item.chain, item.box, store.source(item.key))
            for item in items
        ]
        read(items, out, axes, self._options, patience)

    async def read_awaited(
        self, items: Sequence[ObjectSelection], out: np.ndarray[Any, Any], axes: Ints
    ) -> None:
        """Read as `read`, on any event loop, which is not blocked."""
        if self._objects.folder.store.is_near:
            await in_thread(self.read, items, out, axes)
        else:
            await from_zarrs_loop(self._fetch(items, out, axes))

    def _read_far(self, items: Sequence[ObjectSelection], out: np.ndarray[Any, Any], axes: Ints) -> None:
        """Read as `_fetch`; what is on a local disk in this thread."""
        disk = self._disk
        if disk is None or not disk.is_usable():
            on_zarrs_loop(self._fetch(items, out, axes))
        elif rest := disk.read(items, out, axes):
            from .read_remote import fetch_rest

            store = self._objects.folder.store
            on_zarrs_loop(fetch_rest(disk.cache, store, rest, out, axes, self._options, store.limits()))

    async def _fetch(self, items: Sequence[ObjectSelection], out: np.ndarray[Any, Any], axes: Ints) -> None:
        from .read_remote import read_far

        store = self._objects.folder.store
        await read_far(store, items, out, axes, self._options, store.limits())


def _nothing(selection: Any) -> None:
    """Read nothing."""
