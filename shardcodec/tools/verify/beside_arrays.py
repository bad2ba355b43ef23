# beside_arrays.py - check what is stored beside the shards of a hierarchy: documents and other objects
# SPDX-License-Identifier: MIT
"""`BesideArrays`: the documents of all nodes, consolidated metadata, and the objects that belong to no array.

A document is whole if it is JSON, and zarr opens its node. Consolidated metadata must be those of the nodes, because most programs
read no other ones. Nothing says what other objects should be, except a manifest.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from ...access.box_reader import Folder
from ...access.shard_object import open_object
from ...compat import metadata_from, refusal_of
from ...errors import ShardError, SpecError
from ...format.array_document import json_object
from ...live.record import NAME as RECORD_NAME
from ...live.record import problem_of as record_problem_of
from ..capped import Capped
from ..documents import DOCUMENTS
from ..findings import Finding, FindingKind
from ..hierarchy import Hierarchy
from ..left_parts import LeftPart
from ..memory import BLOCK_NBYTES
from ..monitor import Monitor
from ..other_objects import OtherObject, OtherObjects
from ..shard_threads import in_order
from ..targets import ArrayTarget
from .hashed_object import HashedObject
from .manifest import Manifest
from .old_manifest import OldManifest
from .report import NOT_IN_MANIFEST, UncheckedPart

__all__ = ["BesideArrays", "different_hash"]

Document = Mapping[str, Any]

# Nodes that a finding about consolidated metadata names.
_MAX_NAMED = 3
# The documents that say what a group, or an array, is.
_OF_NODE = {True: ("zarr.json", ".zgroup"), False: ("zarr.json", ".zarray")}
# Members of a document that say nothing if they are empty.
_OPTIONAL = ("attributes", "storage_transformers", "dimension_names")


def different_hash(expected: str, actual: str) -> str:
    """Return the detail of a finding about an object whose hash is not that of the manifest."""
    return f"expected the bytes of the manifest, with the SHA-256 {expected}, got others with {actual}"


class BesideArrays:
    """The documents of a hierarchy, and its objects that belong to no array.

    Parameters
    ----------
    hierarchy : Hierarchy
    arrays : sequence of ArrayTarget
        The arrays that are verified.
    chosen : collection of str or None
        The names of the only arrays; None for all.
    old, new : OldManifest or None, Manifest or None
    only_arrays : bool
        Leave out the objects that belong to no array.

    Attributes
    ----------
    n_documents, n_compared : int
        Documents that were read, and objects whose hash is in the old manifest.
    """

    def __init__(
        self,
        hierarchy: Hierarchy,
        arrays: Sequence[ArrayTarget],
        chosen: Collection[str] | None,
        old: OldManifest | None,
        new: Manifest | None,
        *,
        only_arrays: bool,
    ) -> None:
        self._root, self._arrays, self._chosen = hierarchy.folder, arrays, chosen
        self._old, self._new, self._only_arrays = old, new, only_arrays
        self.n_documents: int
        self.n_compared: int
        self.n_documents = self.n_compared = 0
        # documents that are JSON objects, by their path below the root
        self._documents: dict[str, Document] = {}
        by_name = {array.name: array for array in arrays}
        names = {array.name: _names_of(array.document) for array in arrays}
        self._groups = [] if chosen is not None else hierarchy.groups()
        names |= {name: _names_of(document) for name, _, document in self._groups}
        self._names = names
        self._others = OtherObjects(self._root, by_name, names, chosen=chosen, checks_names=False)

    def parts(
        self, compared: Collection[str], monitor: Monitor, n_threads: int
    ) -> Generator[Finding | UncheckedPart, None, None]:
        """Check all; yield what is wrong, and what could not be checked. `compared`: objects that were checked before."""
        for array in self._arrays:
            monitor.check()
            yield from self._check_node(array.name, array.folder, array)
        known = {array.name for array in self._arrays}  # damaged groups are among them
        for name, folder, _ in self._groups:
            monitor.check()
            if name in known:
                continue
            yield from self._check_node(name, folder, None)
        for name, folder, document in self._groups:
            yield from self._check_consolidated(name, folder, document)
        if not self._only_arrays:
            yield from self._check_others(compared, monitor, n_threads)
        yield from self._missing()

    def _check_node(
        self, name: str, folder: Folder, array: ArrayTarget | None
    ) -> Iterator[Finding | UncheckedPart]:
        """Check the documents of one node, and that zarr opens it."""
        is_known_bad = array is not None and array.is_malformed
        n_before, is_sound = self.n_documents, True
        for document in sorted(self._names[name]):
            path = f"{name}/{document}" if name else document
            try:
                stored = folder.stored(folder.prefix + document)
                if stored is None:
                    # with all nodes the check of the consolidated metadata shows it
                    if (
                        self._chosen is not None
                        and document in _OF_NODE[False]
                        and folder.get(folder.prefix + document)
                    ):
                        yield self._lost(path, name)
                    continue
                self.n_documents += 1
                yield from self._compare(path, hashlib.sha256(stored).hexdigest(), is_document=True)
                self._documents[path] = json_object(stored, document)
                problem = _problem_of(self._documents[path])
            except (SpecError, OSError) as error:
                problem = str(error)
            if problem is not None:
                is_sound = False
                if folder.spare is not None and document in _OF_NODE[True]:
                    path = name  # a damaged node has this name without consolidated metadata, too
                if not is_known_bad:
                    yield self._finding(FindingKind.UNREADABLE, path, problem, name)
        # without a listing a node may exist in consolidated metadata only, which are compared below
        if not is_sound or is_known_bad or self.n_documents == n_before:
            return
        names = (f"{name}/{document}" if name else document for document in _OF_NODE[array is None])
        opened = next((self._documents[path] for path in names if path in self._documents), None)
        if opened is None:  # it is lost, and the consolidated metadata have it
            return
        reason = refusal_of(opened, is_group=array is None)
        if reason is not None and (array is None or (array.problem is None and not _is_foreign(array))):
            kind = FindingKind.UNREADABLE if array is None else FindingKind.UNSUPPORTED
            what = "" if array is None else "; shardcodec reads its metadata"
            yield self._finding(kind, name, f"zarr does not open it: {reason}{what}", name)

    def _check_consolidated(self, name: str, folder: Folder, document: Document) -> Iterator[Finding]:
        """Compare the consolidated metadata of a group with the documents of its nodes."""
        below = f"{name}/" if name else ""
        if document.get("zarr_format") == 2:
            path = f"{below}.zmetadata"
            listed = self._documents.get(path, {}).get("metadata")
            ends: tuple[str, ...] = (".zarray", ".zgroup", ".zattrs")
        else:
            path = f"{below}zarr.json"
            # as it is stored: without a listing, `document` is itself an entry of consolidated metadata
            stored = self._documents.get(path, {}).get("consolidated_metadata")
            inline = stored.get("metadata") if isinstance(stored, Mapping) else None
            listed = (
                {f"{node}/zarr.json": one for node, one in inline.items()}
                if isinstance(inline, Mapping)
                else None
            )
            ends = ("zarr.json",)
        if path in self._documents and document.get("zarr_format") == 2 and not _has_documents(listed):
            detail = "expected consolidated metadata, an object `metadata` of documents; zarr does not open the group"
            yield self._finding(FindingKind.UNREADABLE, path, detail)
        if not isinstance(listed, Mapping):
            return
        wrong = []
        for key, one in listed.items():
            actual = self._document(folder, below, key)
            if actual is None and not _has_folder(folder, key):
                wrong.append(f"{key} does not exist")
            elif actual is None:
                yield self._lost(below + key)
            elif isinstance(one, Mapping) and _are_two_kinds(one, actual):
                kind, other = actual["node_type"], one["node_type"]
                detail = f"it is the document of the kind {kind}, and {path} has the kind {other}: look which of them is right"
                yield self._finding(FindingKind.UNREADABLE, below + key, detail)
            elif not _are_equal(one, actual):
                wrong.append(f"{key} has other content")
        for key in self._documents:
            relative = key.removeprefix(below)
            is_node = key.startswith(below) and key != path and key.rpartition("/")[2] in ends
            if is_node and relative not in listed:
                wrong.append(f"{relative} is not in it")
        if wrong:
            named = Capped.of(wrong, _MAX_NAMED).text(end=", and ")
            detail = f"expected consolidated metadata that are those of the nodes: {named}"
            yield self._finding(FindingKind.STALE_METADATA, path, detail)

    def _lost(self, path: str, array: str = "") -> Finding:
        """Return the finding about a document that is lost."""
        detail = "it does not exist, and the consolidated metadata have it: `repair` keeps the node"
        return replace(self._finding(FindingKind.UNREADABLE, path, detail, array), recoverable=True)

    def _document(self, folder: Folder, below: str, key: str) -> Document | None:
        """Return a document below a group; `_DAMAGED` if it cannot be read, which is another finding."""
        if (known := self._documents.get(below + key)) is not None:
            return known
        node, _, name = f"/{key}".rpartition("/")
        inside = replace(
            folder, prefix=f"{folder.prefix}{node.lstrip('/')}/" if node.strip("/") else folder.prefix
        )
        try:
            stored = inside.stored(inside.prefix + name)
            return None if stored is None else json_object(stored, name)
        except (ShardError, OSError):
            return _DAMAGED

    def _check_others(
        self, compared: Collection[str], monitor: Monitor, n_threads: int
    ) -> Iterator[Finding | UncheckedPart]:
        """Compare other objects with the manifest; yield those that it does not have as unchecked."""
        if self._root.store.listed(self._root.prefix, left=[]) is None:
            yield UncheckedPart(
                "", "the store cannot list its objects: those that belong to no array are not known"
            )
            return
        with closing(in_order(self._others, self._hashed, n_threads, monitor)) as results:
            for entry, sha256 in results:
                name = entry.name
                reason = entry.reason if isinstance(entry, LeftPart) else self._others.unreached(name)
                reason = "it belongs to no array" if reason is None else reason
                if isinstance(sha256, Exception):
                    if name in compared:  # the comparison has read it, too
                        continue
                    yield self._finding(FindingKind.UNREADABLE, name, f"it cannot be read: {sha256}")
                    continue
                if isinstance(entry, LeftPart) and entry.is_unreadable:
                    array = self._others.array_of(name)
                    # its shards, or its documents, have shown it
                    is_shown = self._others.arrays.get(name.rstrip("/")) is not None
                    if not is_shown and (array is None or not array.is_readable):
                        yield self._finding(FindingKind.UNREADABLE, name, reason)
                    continue
                parts = self._check_other(name, sha256, reason, is_compared=name in compared)
                if self._is_record(name):  # it can be checked without a manifest
                    yield from self._check_record(name)
                    yield from (part for part in parts if isinstance(part, Finding))
                else:
                    yield from parts

    def _is_record(self, name: str) -> bool:
        """Return True for the record of a stream beside the metadata of an array."""
        folder, _, last = name.rpartition("/")
        return last == RECORD_NAME and folder in self._others.arrays

    def _check_record(self, name: str) -> Iterator[Finding]:
        """Check the record of a stream."""
        try:
            stored = self._root.get(self._root.prefix + name)
            if stored is None:
                return
            self.n_documents += 1
            problem = record_problem_of(json_object(stored, RECORD_NAME))
        except (SpecError, OSError) as error:
            problem = str(error)
        if problem is not None:
            yield self._finding(FindingKind.UNREADABLE, name, problem, name.rpartition("/")[0])

    def _hashed(self, entry: OtherObject | LeftPart) -> tuple[OtherObject | LeftPart, str | Exception | None]:
        """Return an object and its hash: None if no manifest needs it, or the error of a read. A file is opened in any case."""
        store, has_manifest = self._root.store, self._old is not None or self._new is not None
        if not (has_manifest or store.is_near) or entry.name.endswith("/"):
            return entry, None
        try:
            view = open_object(store, self._root.prefix + entry.name)
            if view is None:
                return entry, None
            with closing(view):
                return entry, HashedObject(view, BLOCK_NBYTES).sha256() if has_manifest else None
        except (ShardError, OSError) as error:
            return entry, error

    def _check_other(
        self, name: str, sha256: str | None, reason: str, *, is_compared: bool
    ) -> Iterator[Finding | UncheckedPart]:
        if sha256 is not None:
            is_known = self._old is not None and self._old.sha256(name) is not None
            self.n_compared += is_known and not is_compared
            is_compared = is_compared or is_known
            yield from self._compare(name, sha256, is_document=False)
        if not is_compared:
            which = "no manifest was given" if self._old is None else "no manifest has it"
            yield UncheckedPart(name, f"{reason}, and {which}")

    def _compare(self, path: str, sha256: str, *, is_document: bool) -> Iterator[Finding | UncheckedPart]:
        """Compare a hash with the old manifest, and add it to the new one."""
        expected = None if self._old is None else self._old.sha256(path)
        if expected is None and is_document and self._old is not None and self._old.has_all_hashes:
            yield UncheckedPart(path, NOT_IN_MANIFEST)
        if expected not in (None, sha256):
            yield self._finding(FindingKind.DIFFERENT, path, different_hash(str(expected), sha256))
        if self._new is not None:
            self._new.add_object(path, sha256, is_document=is_document)

    def _missing(self) -> Iterator[Finding]:
        """Yield the objects of the manifest that are not stored any more."""
        if self._old is None or not self._root.store.supports_listing:
            return
        folders = [""] if self._chosen is None else [f"{name}/" for name in self._chosen]
        for name in itertools.chain.from_iterable(map(self._old.missing_objects, folders)):
            array = self._others.array_of(name)
            is_chunk = array is not None and array.is_chunk(self._root.prefix + name)
            if is_chunk or not self._only_arrays:
                kind = FindingKind.MISSING_SHARD if is_chunk else FindingKind.MISSING_OBJECT
                detail = "the manifest has this object, and it does not exist any more"
                yield self._finding(kind, name, detail, "" if array is None else array.name)

    def _finding(self, kind: FindingKind, path: str, detail: str, array: str = "") -> Finding:
        key = self._root.prefix + path
        finding = Finding(kind, self._root.store.path(key) or key, detail, array)
        return finding if finding.is_warning else replace(finding, recoverable=False)


# Stands for a document that cannot be read.
_DAMAGED: Document = {}


def _has_folder(group: Folder, key: str) -> bool:
    """Return True if the folder of a document below a group may still have anything; a store that cannot list does not tell."""
    prefix = f"{group.prefix}{key.rpartition('/')[0]}".rstrip("/") + "/"
    path = group.store.path(prefix)
    if path is not None:
        return os.path.isdir(path)
    try:
        return not group.store.supports_listing or bool(group.store.names(prefix))
    except OSError:  # a folder that cannot be listed may have it
        return True


def _names_of(document: Document) -> Collection[str]:
    if "zarr_format" not in document:  # it cannot be read
        return DOCUMENTS
    return {"zarr.json"} if document["zarr_format"] == 3 else DOCUMENTS - {"zarr.json"}


def _is_foreign(array: ArrayTarget) -> bool:
    return array.bytes is not None and array.bytes.is_foreign


def _problem_of(document: Document) -> str | None:
    """Return what is wrong with the members of a node's document that our parser of arrays does not read."""
    attributes = document.get("attributes", {})
    if document.get("zarr_format") == 3 and not isinstance(attributes, Mapping):
        return f"attributes: expected an object, got {type(attributes).__name__}"
    return None


def _has_documents(listed: Any) -> bool:
    """Return True for the nodes of consolidated metadata of Zarr v2."""
    return isinstance(listed, Mapping) and all(isinstance(one, Mapping) for one in listed.values())


def _are_two_kinds(one: Document, other: Document) -> bool:
    """Return True for the document of a group and that of an array."""
    return sorted(map(str, (one.get("node_type"), other.get("node_type")))) == ["array", "group"]


def _are_equal(listed: Any, actual: Document) -> bool:
    """Return True if two documents say the same; their spelling may differ."""
    if actual is _DAMAGED:
        return True
    if not isinstance(listed, Mapping):
        return False
    one, other = _normal(listed), _normal(actual)
    if one == other:
        return True
    try:
        return "shape" in one and metadata_from(one).to_dict() == metadata_from(other).to_dict()
    except Exception:  # noqa: BLE001 - zarr does not know it, so only equal texts are equal
        return False


def _normal(document: Document) -> dict[str, Any]:
    """Return a document without empty optional members. NaN becomes text, because NaN does not equal itself."""
    kept = {
        name: value
        for name, value in document.items()
        if name != "consolidated_metadata" and not (name in _OPTIONAL and _is_empty(value))
    }
    found: dict[str, Any] = json.loads(json.dumps(kept), parse_constant=str)
    return found


def _is_empty(value: Any) -> bool:
    return not value or (isinstance(value, list) and all(one is None for one in value))
