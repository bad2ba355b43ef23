# other_objects.py - the objects of a hierarchy that belong to no array
# SPDX-License-Identifier: MIT
"""`OtherObjects`: tables, texts, hidden files and all else beside the arrays, which a new hierarchy gets as it is.

They are found by one listing of the hierarchy. Metadata of nodes, chunks of arrays and shardcodec's own files are none of them.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from ..access.box_reader import Folder
from ..access.shard_object import open_object
from ..errors import ShardError
from ..format.chunk_keys import KeyEncoding
from ..readable import Fact, format_count, format_nbytes
from ..storage.store import LeftFolder, Store
from .backup import UnreadableObject, old_object
from .capped import LISTED
from .conventions.all_conventions import OBJECT_NAMES, mended_object
from .conventions.convention import MendedObject
from .documents import DOCUMENTS, NODE_DOCUMENTS, Document
from .hierarchy import Hierarchy
from .left_parts import NOTHING_LEFT, LeftKind, LeftPart, LeftParts
from .monitor import Monitor
from .names import is_own_name, node_path, object_name
from .node_selection import Selection, outermost
from .nodes import groups_of, is_below
from .report import Record, Report, to_json
from .shard_threads import in_order
from .stored_nodes import node_of
from .targets import ArrayTarget

__all__ = [
    "NO_OBJECTS",
    "CopyReport",
    "ObjectCounts",
    "OtherObject",
    "OtherObjects",
    "copy_objects",
    "count_objects",
    "left_folder",
    "left_object",
    "other_objects",
    "written_documents",
]

# Metadata of Zarr v2 that name arrays: beside a zarr.json, a copy would show arrays that are not there in this form.
_OF_ARRAYS = frozenset({".zarray", ".zmetadata"})
# Bytes at the beginning of a file by which a plan or a ledger is known.
_HEAD_NBYTES = 64


@dataclass(frozen=True)
class ObjectCounts(Record):
    """The objects that belong to no array.

    Attributes
    ----------
    n_objects, nbytes : int
        Those that are copied: number and size.
    parts : LeftParts
        What is not copied: of one pass over the objects those that are left out, of a report all parts of the hierarchy.
    """

    n_objects: int = 0
    nbytes: int = 0
    parts: LeftParts = NOTHING_LEFT

    @property
    def left(self) -> tuple[LeftPart, ...]:
        """The objects of `parts`."""
        return self.parts.of(LeftKind.OBJECT)

    @property
    def n_left(self) -> int:
        """Number of objects that are not copied."""
        return self.parts.counts.get(LeftKind.OBJECT.value, 0)

    @property
    def n_unreadable(self) -> int:
        """Number of objects that are not copied because they cannot be read."""
        return self.parts.unreadable.get(LeftKind.OBJECT.value, 0)

    def facts(self) -> Iterator[Fact]:
        """Yield the objects as lines of text.

        Yields
        ------
        name, text : str
        """
        return self.result_facts(would=False)

    def result_facts(self, *, would: bool) -> Iterator[Fact]:
        """Yield the facts; none if there are no such objects. `would`: nothing was copied yet."""
        yield from self.parts.result_facts(would=would)
        if self.n_objects:
            done = "would be copied" if would else "copied"
            yield "", f"{format_count(self.n_objects, 'other object')} ({format_nbytes(self.nbytes)}) {done}"

    def to_json(self) -> dict[str, Any]:
        """Return the numbers, and the objects that are left out."""
        names = "n_objects", "nbytes", "n_left", "left", "n_unreadable"
        return {name: to_json(getattr(self, name)) for name in names}


NO_OBJECTS = ObjectCounts()


@dataclass(frozen=True, kw_only=True)
class CopyReport(Report):
    """The common fields of the reports of `convert`, `repair` and `compact`: what a new hierarchy has beside the arrays, and what it lacks."""

    others: ObjectCounts = NO_OBJECTS

    @cached_property
    def left(self) -> LeftParts:
        """The parts of the old hierarchy that the new hierarchy lacks or changes."""
        return self.others.parts

    @cached_property
    def left_arrays(self) -> tuple[LeftPart, ...]:
        """Arrays that the new hierarchy does not have: no array of Zarr v3 can hold their elements, or their metadata cannot be read.

        Also groups whose metadata cannot.
        """
        return self.left.of(LeftKind.ARRAY, LeftKind.GROUP)

    @property
    def notes(self) -> tuple[str, ...]:
        """The parts of `left` that are metadata of groups, as sentences."""
        return tuple(one.reason for one in self.left.of(LeftKind.METADATA))

    def to_json(self) -> dict[str, Any]:
        """Return the fields, and `left`, `left_arrays` and `notes`, as values that `json.dumps` accepts.

        Returns
        -------
        dict
        """
        arrays = [
            {"name": one.name, "problem": one.reason, "is_unreadable": one.is_unreadable}
            for one in self.left_arrays
        ]
        views = {"left": self.left.to_json(), "left_arrays": arrays, "notes": list(self.notes)}
        return {**super().to_json(), **views}


def left_object(name: str, error: UnreadableObject) -> LeftPart:
    """Return the record of an object that could not be copied."""
    return LeftPart.object(name, error.message, is_unreadable=bool(error.context["is_data"]))


def left_folder(name: str, folder: LeftFolder) -> LeftPart:
    """Return the record of a folder that a listing has not entered."""
    return LeftPart.object(name, folder.reason, is_unreadable=folder.error is not None)


class OtherObject(NamedTuple):
    """One object: its key in the store, and its path below the root of the hierarchy."""

    key: str
    name: str


@dataclass(frozen=True)
class OtherObjects:
    """The objects of a hierarchy that belong to no array. Each iteration lists the hierarchy anew; memory is bounded.

    Attributes
    ----------
    root : Folder
        The root of the hierarchy.
    arrays : mapping
        All arrays of the hierarchy, by path.
    documents : mapping
        From the path of each node to the names of its metadata that the tool writes itself.
    chosen : collection of str or None
        Only objects in the folders of these nodes; None for all.
    whole : collection of str
        Arrays all of whose objects the tool copies, or leaves out.
    unconverted : collection of str
        Those of `whole` that are left out; what is not theirs in their folders is named.
    new_keys : KeyEncoding or None
        Of the chunks of all new arrays; None if they stay as they are.
    checks_names : bool
        False if nothing is written.
    left : collection of str
        Nodes that are left out, with all that is in their folders.
    nodes : collection of str or None
        The nodes that the new hierarchy gets, if it is a part: objects that name nodes are mended. None for all.
    found : dict
        `Hierarchy.found`, which each iteration fills.
    """

    root: Folder
    arrays: Mapping[str, ArrayTarget] = field(default_factory=dict)
    documents: Mapping[str, Collection[str]] = field(default_factory=dict)
    chosen: Collection[str] | None = None
    whole: Collection[str] = ()
    unconverted: Collection[str] = ()
    new_keys: KeyEncoding | None = None
    checks_names: bool = True
    left: Collection[str] = ()
    nodes: Collection[str] | None = None
    found: dict[str, set[str]] = field(default_factory=dict)

    @property
    def store(self) -> Store:
        """The store of the hierarchy."""
        return self.root.store

    def __iter__(self) -> Iterator[OtherObject | LeftPart]:
        """Yield the objects, and those that are left out; a name that cannot be written, or is that of a new chunk, is an error."""
        root = self.root.prefix
        chosen = [""] if self.chosen is None else self.chosen
        folders = [f"{root}{name}/" if name else root for name in chosen]
        if folders and self.store.listed(folders[0], left=[]) is None:
            reason = "the store cannot list its objects, so those that belong to no array are not known"
            yield LeftPart.object(repr(self.root), reason)
            return
        not_entered: list[LeftFolder] = []
        for prefix in folders:
            for key in self.store.keys(prefix, left=not_entered):
                entry = self._entry(key, key.removeprefix(root))
                if entry is not None:
                    yield entry
        for folder in not_entered:
            name = f"{folder.key}/".removeprefix(root)
            array = self.array_of(name)
            if not self.is_left(name) and (array is None or array.name not in self.whole):
                yield left_folder(name, folder)
        # an object that names nodes may be in a folder above theirs
        for above in sorted(groups_of(chosen).difference(chosen)):
            for name in OBJECT_NAMES:
                entry = OtherObject(root + posixpath.join(above, name), posixpath.join(above, name))
                if self.mended(entry) is not None:
                    yield entry
            yield from self._beside_chosen(above) if self.checks_names else ()

    def _beside_chosen(self, group: str) -> Iterator[LeftPart]:
        """Yield the parts for objects and folders in the folder of a group of which only some nodes are chosen."""
        prefix = self.root.prefix + posixpath.join(group, "")
        try:
            names = self.store.names(prefix, [], with_files=True)
        except OSError as error:
            yield LeftPart.object(f"{group}/", f"its other objects are not known: {error}")
            return
        reason = f"it is in the folder of the group {group or '/'!r}, of which only chosen nodes are copied"
        for name in names:
            key, path = prefix + name, posixpath.join(group, name)
            if name in DOCUMENTS or path in self.documents or self.is_no_object(key, path):
                continue
            if (
                self.mended(OtherObject(key, path)) is None
                and node_of(replace(self.root, prefix=f"{key}/")) is None
            ):
                is_folder = self.store.names(f"{key}/", [], with_files=True)
                yield LeftPart.object(f"{path}/" if is_folder else path, reason)

    def mended(self, entry: OtherObject) -> MendedObject | None:
        """Return what an object becomes in a part of the hierarchy, whose nodes it names; None for other objects."""
        folder, _, name = entry.name.rpartition("/")
        if self.nodes is None or name not in OBJECT_NAMES:
            return None
        data = self._stored(entry.key)
        return None if data is None else mended_object(folder, name, data, self._has)

    def _has(self, path: str) -> bool | None:
        """Return True for a node that the new hierarchy gets, False for what is left out; None for other objects that it may get."""
        assert self.nodes is not None
        if path in self.nodes:
            return True
        if path in self.arrays or path in self.documents or self.is_left(f"{path}/"):
            return False
        is_chosen = self.chosen is None or any(path == name or is_below(path, name) for name in self.chosen)
        return None if is_chosen else False

    def _stored(self, key: str) -> bytes | None:
        """Return the bytes of a small object; None if there is none that can be read."""
        try:
            view = open_object(self.store, key)
            if view is None:
                return None
            with closing(view):
                return bytes(view.range(0, view.nbytes))
        except (
            OSError,
            ShardError,
            ValueError,
        ):  # a ValueError: the store takes only keys of Zarr, as that of icechunk
            return None

    def _entry(self, key: str, name: str) -> OtherObject | LeftPart | None:
        """Return an object; None for metadata, chunks and shardcodec's own files."""
        array = self.array_of(name)
        folder, _, last = name.rpartition("/")
        is_document = (
            folder in self.documents and last in DOCUMENTS
        )  # beside an array that is copied whole, too
        if is_document:
            self.found.setdefault(folder, set()).add(last)
        if array is not None and not is_document and (array.name in self.whole or array.is_chunk(key)):
            return self._beside_left(array, key, name) if self.unconverted else None
        if self.is_left(name):
            return None
        if folder in self.documents:
            if last in self.documents[folder]:
                return None
            if last in _OF_ARRAYS:
                return LeftPart.object(name, "metadata of Zarr v2 beside a zarr.json, which hides them")
        if self.is_no_object(key, name):
            return None
        if (place := self._taken_above(name, array)) is not None:
            reason = f"it is in a folder {place!r}, where the new hierarchy has a document or a chunk"
            return LeftPart.object(name, reason)
        if array is not None and (grid := array.grid_without(key)) is not None:
            return LeftPart.object(name, f"a chunk outside of the array, whose grid is {grid}")
        if array is not None and self.new_keys is not None and array.is_chunk_with(self.new_keys, key):
            raise ValueError(
                f"{self.store.path(key) or key}: expected no object with the name of a chunk of the new array {array.name!r}; "
                "rename it, or leave out what is not of an array (--exclude @objects)"
            )
        return OtherObject(key, object_name(name) if self.checks_names else name)

    def _beside_left(self, array: ArrayTarget, key: str, name: str) -> LeftPart | None:
        """Return the part for an object in the folder of an array that is left out; None for its chunks, and in any other array."""
        is_left = array.name in self.unconverted and not array.is_malformed
        if not is_left or array.is_chunk(key) or self.is_no_object(key, name):
            return None
        return LeftPart.object(name, f"it is in the folder of the array {array.name!r}, which is left out")

    def unreached(self, name: str) -> str | None:
        """Return a sentence on a document of a node that no group leads to; None for any other object."""
        folder, _, last = name.rpartition("/")
        if last not in NODE_DOCUMENTS or folder in self.documents:
            return None
        taken = "its objects are taken for those of no array"
        if (array := self.array_of(name)) is not None:
            return (
                f"{folder!r}: no group leads to this node, because it is in the array {array.name!r}; {taken}"
            )
        above = min(
            (path for path in groups_of([folder]) if path and path not in self.documents), default=None
        )
        if above is None:
            return None
        return f"{folder!r}: no group leads to this node, because {above!r} has no document; {taken}"

    def _taken_above(self, name: str, array: ArrayTarget | None) -> str | None:
        """Return a folder around an object that has the name of a document of a node, or of a chunk that may be stored; None without one."""
        steps = name.split("/")
        for n, step in enumerate(steps[:-1]):
            place = "/".join(steps[: n + 1])
            key = self.root.prefix + place
            is_document = step in DOCUMENTS and step in self.documents.get("/".join(steps[:n]), ())
            if is_document or (
                array is not None
                and self.new_keys is None
                and key.startswith(array.folder.prefix)
                and array.is_chunk(key)
            ):
                return place
        return None

    def is_left(self, name: str) -> bool:
        """Return True for an object in the folder of a node that is left out."""
        return bool(self.left) and any(
            name[:end] in self.left for end in range(len(name)) if name[end] == "/"
        )

    def is_no_object(self, key: str, name: str) -> bool:
        """Return True for the mark of a folder, a key with a slash at its end, and for shardcodec's own files."""
        return key.endswith("/") or is_own_name(name) or _is_job_file(self.store, key)

    def array_of(self, name: str) -> ArrayTarget | None:
        """Return the array in whose folder an object is."""
        end = 0
        while end >= 0:
            if (array := self.arrays.get(name[:end])) is not None and not array.is_group:
                return array
            end = name.find("/", end + 1)
        return None


def _is_job_file(store: Store, key: str) -> bool:
    """Return True for a plan or a ledger of shardcodec, by its first bytes. Jobs are local files."""
    is_ledger = ".ledger/" in key and key.endswith(".jsonl")
    if not (is_ledger or key.endswith(".json")) or store.path(key) is None:
        return False
    try:
        view = open_object(store, key)
        if view is None:
            return False
        with closing(view):
            head = bytes(view.range(0, min(view.nbytes, _HEAD_NBYTES)))
    except (ShardError, OSError):  # what becomes of it is the same for all objects that cannot be read
        return False
    return head.startswith(b'{"ledger":1,' if is_ledger else b'{\n "format": "shardcodec plan"')


def other_objects(
    hierarchy: Hierarchy,
    arrays: Sequence[ArrayTarget],
    groups: Sequence[tuple[str, Folder, Document]],
    selection: Selection,
    *,
    whole: Iterable[str],
) -> OtherObjects | None:
    """Return the objects that belong to no array of a hierarchy whose metadata do not change; the arrays `whole` are copied whole.

    With patterns only objects in the folders of `arrays` and of `groups` that the user has chosen. None without such objects; names of
    nodes are checked in any case.
    """
    names = [node_path(array.name) for array in arrays]
    kept = [node_path(name) for name, _, _ in groups]
    if selection.only_arrays:
        return None
    chosen: Collection[str] | None = None
    left: set[str] = set()
    if selection.only:
        chosen = outermost({*names, *(name for name in kept if name and selection.matches(name))})
    if selection.exclude:
        left = {name for name, _, _ in hierarchy.groups()} | {one.name for one in hierarchy.arrays()}
        left -= {*names, *kept}
    return OtherObjects(
        hierarchy.folder,
        {array.name: array for array in arrays},
        dict.fromkeys((*names, *kept), DOCUMENTS),
        chosen=chosen,
        whole=frozenset(whole),
        left=frozenset(left),
        nodes={*names, *kept, *groups_of(names)} if selection.is_part else None,
        found=hierarchy.found,
    )


def written_documents(document: Mapping[str, Any]) -> Collection[str]:
    """Return the names of the metadata of a node that `convert` makes into its new ``zarr.json``."""
    return {"zarr.json"} if document.get("zarr_format") == 3 else DOCUMENTS


# Returns the size of an object; None if it does not exist any more.
OnObject = Callable[[OtherObject], int | None]


def count_objects(others: OtherObjects | None, monitor: Monitor, n_threads: int) -> ObjectCounts:
    """Count the objects, and check that each can be opened, before anything is written."""
    if others is None:
        return NO_OBJECTS
    store = others.store

    def size(entry: OtherObject) -> int | None:
        if (mended := others.mended(entry)) is not None:
            return len(mended.data)
        with old_object():
            view = open_object(store, entry.key)
        if view is None:
            return None
        view.close()
        return view.nbytes

    counts = _Counts(others)
    counts.add(others, size, monitor, n_threads)
    return counts.end()


def copy_objects(others: OtherObjects, copy: OnObject, monitor: Monitor, n_threads: int) -> ObjectCounts:
    """Copy the objects in threads; those with the names of metadata, which show an array to readers, come last."""
    counts = _Counts(others)
    documents: list[OtherObject] = []

    def first() -> Iterator[OtherObject | LeftPart]:
        for entry in others:
            if entry.name.rpartition("/")[2] in DOCUMENTS and isinstance(entry, OtherObject):
                documents.append(entry)
            else:
                yield entry

    counts.add(first(), copy, monitor, n_threads)
    documents.sort(key=lambda entry: (-entry.name.count("/"), entry.name))
    counts.add(documents, copy, monitor, n_threads)
    return counts.end()


class _Counts:
    """Sums over objects."""

    def __init__(self, others: OtherObjects) -> None:
        self._others = others
        self._n = self._nbytes = 0
        self._left = NOTHING_LEFT
        self._fresh: list[LeftPart] = []  # not in `_left` yet, because each addition copies its list

    def add(
        self, entries: Iterable[OtherObject | LeftPart], work: OnObject, monitor: Monitor, n_threads: int
    ) -> None:
        """Work on objects in threads, and add their sizes."""

        def worked(entry: OtherObject) -> int | LeftPart | None:
            try:
                return work(entry)
            except UnreadableObject as error:
                return left_object(entry.name, error)

        with closing(in_order(self._objects(entries), worked, n_threads, monitor)) as results:
            for done in results:
                if isinstance(done, LeftPart):
                    self._leave([done])
                elif done is not None:
                    self._n, self._nbytes = self._n + 1, self._nbytes + done

    def _objects(self, entries: Iterable[OtherObject | LeftPart]) -> Iterator[OtherObject]:
        """Yield the objects, and count those that are left out."""
        for entry in entries:
            if isinstance(entry, OtherObject):
                mended, unreached = self._others.mended(entry), self._others.unreached(entry.name)
                self._leave([] if mended is None else LeftPart.notes(entry.name, mended.notes))
                self._leave([] if unreached is None else LeftPart.notes(entry.name, [unreached]))
                yield entry
            else:
                self._leave([entry])

    def _leave(self, parts: Iterable[LeftPart]) -> None:
        self._fresh += parts
        if len(self._fresh) >= LISTED:
            self._left, self._fresh = self._left + self._fresh, []

    def end(self) -> ObjectCounts:
        """Return the sums."""
        return ObjectCounts(self._n, self._nbytes, self._left + self._fresh)
