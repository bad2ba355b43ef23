# documents.py - metadata documents of a hierarchy, and names in them
# SPDX-License-Identifier: MIT
"""The nodes of a hierarchy, found by their documents (``zarr.json``; ``.zarray`` and ``.zgroup`` of Zarr v2), and checked names.

Names come from HDF5 files, entries of zip files, listings of stores, consolidated metadata, plans and arguments. A name such as
``..`` would lead out of the new hierarchy, and one such as ``zarr.json`` would hide its metadata. So every name that a tool
writes passes `node_path` or `object_name` before the first write.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..access.box_reader import Folder, SpareDocuments, folder_at
from ..compat import StorePath
from ..errors import SpecError, UnsupportedError, name_array
from ..format.metadata import encoded_document
from ..storage.kinds import RenamedStore, at_url, is_url, is_zarr_store, is_zip, zip_at
from ..storage.store import LeftFolder

__all__ = [
    "DOCUMENTS",
    "NODE_DOCUMENTS",
    "OWN_PREFIX",
    "DamagedGroup",
    "Document",
    "StoredDocuments",
    "UnlistedGroup",
    "add_documents_of_copy",
    "consolidated",
    "consolidated_nodes",
    "document_of",
    "further_members",
    "inner_path",
    "is_2022",
    "is_group",
    "is_own_name",
    "nearest_node",
    "node_of",
    "node_path",
    "nodes_below",
    "notes_on_spare",
    "object_name",
    "parsed",
    "root_document",
    "with_consolidated",
]

Document = Mapping[str, Any]

_FORMAT_2022 = "https://purl.org/zarr/spec/protocol/"

# Names beside the shards in the folder of an array.
DOCUMENTS = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})
# Those that make a folder a node; the first one that exists counts.
NODE_DOCUMENTS = "zarr.json", ".zarray", ".zgroup"


class DamagedGroup(SpecError):
    """The document of a group cannot be read; the nodes in it can be found."""

    @property
    def document(self) -> Document:
        """Stands for that of the group."""
        return {"node_type": "group", "damage": self}


class UnlistedGroup(DamagedGroup):
    """The folder of a group cannot be listed; its document may be sound, and nodes that consolidated metadata name can be found."""


def root_document(folder: Folder) -> Document | None:
    """Return the document of a node, as `document_of`, or `DamagedGroup.document`."""
    node = node_of(folder)
    if isinstance(node, DamagedGroup):
        return node.document
    if not isinstance(node, SpecError):
        return node
    try:
        return document_of(folder)  # it raises the error
    except SpecError as error:
        name_array(error, repr(folder))
        raise


def node_of(folder: Folder) -> Document | SpecError | None:
    """Return the document of a node, or what is wrong with it, `DamagedGroup` if there are nodes in the folder; None if it is not a node."""
    error: SpecError
    try:
        document = document_of(folder)
        if document is not None and (is_group(document) or "shape" in document):
            return document
        name = _folder_in_place(folder) if document is None else None
        if document is None and name is None:
            return None
        expected = "expected the metadata of a group or an array"
        error = SpecError(
            f"{expected}, got neither a group nor a shape"
            if name is None
            else f"{name}: {expected}, got a folder"
        )
    except SpecError as damage:
        document, error = None, damage
    except OSError as failure:
        document, error = None, SpecError(f"the metadata cannot be read: {failure}", is_refused=True)
    try:
        found = next(nodes_below(folder, {}, ""), None) if folder.store.supports_listing else None
        has_nodes = found is not None and not isinstance(found[2], UnlistedGroup)
    except OSError:
        has_nodes = False
    return DamagedGroup(str(error)) if has_nodes else document or error


def _folder_in_place(folder: Folder) -> str | None:
    """Return the name of a folder that is in the place of a document; None if there is none, or if the store has no files."""
    paths = {name: folder.store.path(folder.prefix + name) for name in NODE_DOCUMENTS}
    return next((name for name, path in paths.items() if path is not None and os.path.isdir(path)), None)


def document_of(folder: Folder) -> Document | None:
    """Return the document of a node; None if the folder is not a node. `SpecError` for one that has the name of another kind."""
    for name in NODE_DOCUMENTS:
        if (document := folder.document(name)) is not None:
            if (problem := _problem_of_kind(name, document)) is not None:
                raise SpecError(f"{name}: {problem}")
            return document
    return None


def _problem_of_kind(name: str, document: Document) -> str | None:
    """Return why a document is not of the kind that its name says; None if it may be."""
    zarr_format, is_array = document.get("zarr_format"), "shape" in document or "chunks" in document
    if name == "zarr.json":
        is_known = (type(zarr_format) is int and zarr_format == 3) or is_2022(document)
        return None if is_known else f"zarr_format: expected 3, got {zarr_format!r}"
    if name == ".zarray" and not is_array:
        return "shape: missing required key"
    if name == ".zgroup" and is_array:
        return "expected the document of a group, got that of an array"
    return None if zarr_format == 2 else f"zarr_format: expected 2, got {zarr_format!r}"


def is_2022(document: Document) -> bool:
    """Return True for the document of a hierarchy of the 2022 format, in which no node has those of Zarr v2 or v3."""
    return str(document.get("zarr_format")).startswith(_FORMAT_2022)


def is_group(document: Document) -> bool:
    """Return True for the document of a group."""
    if document.get("zarr_format") == 2:
        return "shape" not in document and "chunks" not in document
    return document.get("node_type") == "group"


# Members that Zarr v3 defines for a group and for an array, and Zarr v2 for any node.
_OF_GROUP_V3 = frozenset({"zarr_format", "node_type", "attributes", "consolidated_metadata"})
_OF_ARRAY_V3 = frozenset(
    {"zarr_format", "node_type", "attributes", "shape", "data_type", "chunk_grid", "chunk_key_encoding"}
    | {"fill_value", "codecs", "dimension_names", "storage_transformers"}
)
_OF_V2 = frozenset(
    {"zarr_format", "shape", "chunks", "dtype", "compressor", "fill_value", "order", "filters"}
    | {"dimension_separator"}
)


def further_members(document: Document) -> dict[str, Any]:
    """Return the members of the document of a node that the format does not define; none if it cannot be read."""
    if isinstance(document.get("damage"), SpecError):
        return {}
    of_v3 = _OF_GROUP_V3 if is_group(document) else _OF_ARRAY_V3
    defined = of_v3 if document.get("zarr_format") == 3 else _OF_V2
    return {name: value for name, value in document.items() if name not in defined}


def nodes_below(
    folder: Folder, document: Document, name: str, left: list[LeftFolder] | None = None
) -> Iterator[tuple[str, Folder, Document | SpecError]]:
    """Yield the groups and arrays below a group: path, folder, and the document or what is wrong with it; also `UnlistedGroup` for itself."""
    if not folder.store.supports_listing:
        yield from consolidated_nodes(folder, document, name)
        return
    folder = with_consolidated_as_spare(folder, document)
    stored: list[str] = []
    try:
        stored = folder.store.names(folder.prefix, left)
    except OSError as error:
        yield name, folder, UnlistedGroup(f"its folder cannot be listed: {error}", is_refused=True)
    spare = () if folder.spare is None else folder.spare.children(repr(folder))
    lost = {child for child in set(spare).difference(stored) if _problem(child) is None}
    for child in sorted({*stored, *lost}) if lost else stored:
        if child in DOCUMENTS:  # some stores raise for keys below it
            continue
        path = f"{name}/{child}" if name else child
        below = replace(folder, prefix=f"{folder.prefix}{child}/")
        node = node_of(below)
        if node is None:
            continue
        yield path, below, node
        if isinstance(node, DamagedGroup):
            yield from nodes_below(below, {}, path, left)
        elif not isinstance(node, SpecError) and is_group(node):
            yield from nodes_below(below, node, path, left)


def consolidated_nodes(
    folder: Folder, document: Document, name: str
) -> Iterator[tuple[str, Folder, Document | SpecError]]:
    """Yield the nodes of the consolidated metadata, for a store that cannot list."""
    known = {
        key.rpartition("/")[0]: node
        for key, node in _documents_in(folder, document).items()
        if key.endswith(("/zarr.json", "/.zarray", "/.zgroup"))
    }
    folder = with_consolidated_as_spare(folder, document)
    for path, node in sorted(known.items()):
        yield f"{name}/{path}" if name else path, replace(folder, prefix=f"{folder.prefix}{path}/"), node


def _documents_in(folder: Folder, document: Document) -> dict[str, Document]:
    """Return the documents in the consolidated metadata of a group, by their paths below it."""
    if document.get("zarr_format") == 2:
        # zarr opens the group without it if it is damaged, which `verify` finds
        try:
            stored = folder.get(f"{folder.prefix}.zmetadata")
        except OSError:
            stored = None
        known = _object((parsed(stored) or {}).get("metadata"))
    else:
        nodes = _object(_object(document.get("consolidated_metadata")).get("metadata"))
        known = {f"{path}/zarr.json": node for path, node in nodes.items()}
    return {key: node for key, node in known.items() if isinstance(node, Mapping)}


def with_consolidated_as_spare(folder: Folder, document: Document) -> Folder:
    """Return the folder of a group, whose consolidated metadata stand in for lost documents of its nodes."""
    known = _documents_in(folder, document)
    if not known:
        return folder
    spare = SpareDocuments() if folder.spare is None else folder.spare
    bare = {path: _without_nodes(node) for path, node in known.items()}
    spare.add(repr(folder), bare, "the consolidated metadata")
    return replace(folder, spare=spare)


def _without_nodes(document: Document) -> Document:
    """Return the document of a node without the empty list that a list of nodes has in each group."""
    listed = document.get("consolidated_metadata")
    is_empty = isinstance(listed, Mapping) and not listed.get("metadata")
    return (
        {name: value for name, value in document.items() if name != "consolidated_metadata"}
        if is_empty
        else document
    )


def add_documents_of_copy(spare: SpareDocuments, target: Any, copy: Any, options: Any) -> None:
    """Add the documents of the nodes of a copy that the target has lost; `options` are those of the stores of URLs."""
    folder = replace(next(_candidates(target, options))[0], spare=spare)
    try:
        root, below_copy, document = nearest_node(copy, options)
    except (FileNotFoundError, SpecError):
        return  # who reads the copy raises the error
    try:
        _, rest, kept = nearest_node(target, options)
    except FileNotFoundError:
        rest, kept = "", document
    if below_copy or (rest and not is_group(kept)) or (not rest and is_group(kept) != is_group(document)):
        return  # a shard, or another kind of node
    format_of_root = kept.get("zarr_format", document.get("zarr_format"))
    nodes = [("", root, document), *(nodes_below(root, document, "") if is_group(document) else ())]
    for path, place, node in nodes:
        if isinstance(node, SpecError) or node.get("zarr_format") != format_of_root:
            continue  # chunks of another format have other keys
        own = replace(folder, prefix=f"{folder.prefix}{path}/" if path else folder.prefix)
        try:
            here = _sound_document(own)
            missing = [".zattrs"] if here is not None and own.stored(f"{own.prefix}.zattrs") is None else []
            if here is None or (missing and here.get("zarr_format") == node.get("zarr_format") == 2):
                names = missing or sorted(DOCUMENTS - {".zmetadata"})
                stored = {name: parsed(place.get(place.prefix + name)) for name in names}
                found = {
                    f"{path}/{name}" if path else name: one for name, one in stored.items() if one is not None
                }
                spare.add(repr(folder), found, "the copy", is_copy=True)
        except OSError:  # the copy has it, but it cannot be read
            continue


def _sound_document(folder: Folder) -> Document | None:
    """Return the document of a node; None if it is lost or damaged, or cannot be read."""
    try:
        return document_of(folder)
    except (SpecError, OSError):
        return None


def notes_on_spare(spare: SpareDocuments | None, root: str) -> list[str]:
    """Return the sentences on documents of a hierarchy that other places have in another form; `root` is its name for messages."""
    sentences = []
    for taken, sentence in (
        ()
        if spare is None
        else (
            (spare.taken, "its {} is lost or damaged; that of {} is taken"),
            (
                spare.of_other_kind,
                "its {} is that of another kind of node than in {}, which the copy does not have",
            ),
        )
    ):
        paths = {key.removeprefix(f"{root}/"): taken[key] for key in taken if key.startswith(f"{root}/")}
        for key in sorted(paths, key=lambda key: key.rpartition("/")):
            path, _, name = key.rpartition("/")
            sentences.append(f"{path or '/'!r}: {sentence.format(name, paths[key])}")
    return sentences


def _object(value: Any) -> Mapping[str, Any]:
    """Return a JSON object; an empty one in place of any other value."""
    return value if isinstance(value, Mapping) else {}


# ---------------------------------------------------------------- from a path to the nearest node


def nearest_node(
    target: Any, storage_options: Mapping[str, Any] | None, spare: SpareDocuments | None = None
) -> tuple[Folder, str, Any]:
    """Return the nearest node at a path or above it, the rest of the path, and the document of the node. The errors are those of `find_arrays`.

    `spare` has further documents for nodes that have lost theirs, and gets those of consolidated metadata.
    """
    spare = SpareDocuments() if spare is None else spare
    candidates, tried = _candidates(target, storage_options), []
    for bare, rest in candidates:
        folder = replace(bare, spare=spare)
        tried.append(folder)
        document = document_of(folder) if rest else root_document(folder)
        if document is None and not rest:  # a group of Zarr v2 that has lost its .zgroup
            folder = with_consolidated_as_spare(folder, {"zarr_format": 2})
            document = root_document(folder)
        if document is not None and is_group(document):
            if not _documents_in(folder, document):
                _add_from_above(folder, rest, candidates)
            return _lost_node(with_consolidated_as_spare(folder, document), rest, document, tried)
        if document is not None:
            return folder, rest, document
    shown = target if isinstance(target, str | os.PathLike) else repr(target)
    raise FileNotFoundError(
        f"{shown}: expected a zarr group, an array or a shard of one, but neither it nor a folder above has a zarr.json, "
        ".zarray or .zgroup; for a shard outside of its array, give its zarr.json as --metadata (in Python: spec)"
    )


def _add_from_above(group: Folder, rest: str, above: Iterator[tuple[Folder, str]]) -> None:
    """Add what the consolidated metadata of the groups above a group say of its nodes."""
    assert group.spare is not None
    for folder, path in above:
        try:
            document = document_of(folder)
            if document is None or not is_group(document):
                return
            known = _documents_in(folder, document)
        except (SpecError, OSError):  # it is not of this hierarchy, and need not be readable
            return
        inside = f"{path.removesuffix(f'/{rest}') if rest else path}/"
        own = {
            key.removeprefix(inside): _without_nodes(one)
            for key, one in known.items()
            if key.startswith(inside)
        }
        group.spare.add(repr(group), own, "the consolidated metadata")


def _lost_node(folder: Folder, rest: str, document: Document, tried: list[Folder]) -> tuple[Folder, str, Any]:
    """Return the innermost node on a path in a group whose document is spare, and the rest of the path; otherwise the group.

    The folder of such a node is the one that was tried, because a second look would find the document there.
    """
    steps = rest.split("/") if rest else []
    for n in range(len(steps), 0, -1):
        below = replace(folder, prefix=f"{folder.prefix}{'/'.join(steps[:n])}/")
        if (found := document_of(below)) is not None:
            own = next((one for one in tried if repr(one) == repr(below)), below)
            return own, "/".join(steps[n:]), found
    return folder, rest, document


def _candidates(target: Any, storage_options: Mapping[str, Any] | None) -> Iterator[tuple[Folder, str]]:
    """Yield the target and the folders above it, each with the rest of the path."""
    if is_url(target):
        for url, rest in _urls(target):
            yield folder_at(at_url(url, storage_options), ""), rest
        return
    at_url(target, storage_options)  # raises if there are options without a URL
    if isinstance(target, str | os.PathLike):
        yield from _paths(os.path.abspath(os.fspath(target)))
        return
    store, path = (target.store, target.path) if isinstance(target, StorePath) else (target, "")
    if not is_zarr_store(store):
        raise TypeError(f"target: expected a path, a URL or a zarr store, got {type(target).__name__}")
    if isinstance(store, RenamedStore):
        raise UnsupportedError(
            f"target: expected a store, got a view of one ({type(store).__name__}); pass the store behind the view, or convert "
            "the array first"
        )
    yield from _in_store(store, path)


def _urls(url: str) -> Iterator[tuple[str, str]]:
    """Yield a URL and the URLs above it, up to the bucket or the host."""
    scheme, _, path = url.partition("://")
    steps = path.rstrip("/").split("/")
    for n in range(len(steps), 0, -1):
        above = "/".join(steps[:n])
        if above:
            yield f"{scheme}://{above}", "/".join(steps[n:])


def _paths(path: str) -> Iterator[tuple[Folder, str]]:
    """Yield a local path and the folders above it; at a zip file, first the folders in the file.

    A path in a zip file is tried both ways, because a shard may have the bytes of a zip file.
    """
    steps: list[str] = []
    folder = path
    while True:
        if is_zip(folder):
            yield from _in_store(zip_at(folder), "/".join(steps))
        yield folder_at(folder, ""), "/".join(steps)
        folder, name = os.path.split(folder)
        if not name:
            return
        steps.insert(0, name)


def _in_store(store: Any, path: str) -> Iterator[tuple[Folder, str]]:
    steps = path.split("/") if path else []
    for n in range(len(steps), -1, -1):
        yield folder_at(store, "/".join(steps[:n])), "/".join(steps[n:])


# ---------------------------------------------------------------- consolidated metadata of a new hierarchy

# The documents of a node, by name.
StoredDocuments = Mapping[str, bytes]


def consolidated(node: str, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the consolidated metadata of Zarr v3 of a group, from the ``zarr.json`` of all nodes, by path."""
    return {"kind": "inline", "must_understand": False, "metadata": _below_v3(node, documents)}


def with_consolidated(
    node: str, nodes: Mapping[str, StoredDocuments], stand_ins: Mapping[str, StoredDocuments]
) -> dict[str, bytes]:
    """Return the documents of a node; those with consolidated metadata have the ones of the given nodes.

    Zarr v3 has them in the ``zarr.json`` of a group, Zarr v2 in ``.zmetadata``. A document without consolidated metadata, or that
    is not JSON, stays as it is. `stand_ins` has the documents that consolidated metadata get for nodes whose own ones are of
    another format. zarr opens no group whose list has such a node, or a node without the groups above it: they are left out of it.
    """
    documents = dict(nodes[node])
    own = parsed(documents.get("zarr.json"))
    if own is not None and isinstance(own.get("consolidated_metadata"), Mapping):
        below = _below_v3(node, _of_format({**nodes, **stand_ins}, node, 3))
        new = {**own["consolidated_metadata"], "metadata": below}
        documents["zarr.json"] = encoded_document({**own, "consolidated_metadata": new})
    stored = parsed(documents.get(".zmetadata"))
    if stored is not None:
        listed = {**nodes, **stand_ins}
        known = _of_format(listed, node, 2)
        below = _below_v2(node, {path: listed[path] for path in listed if path in known})
        documents[".zmetadata"] = encoded_document({**stored, "metadata": below})
    return documents


def _of_format(
    nodes: Mapping[str, StoredDocuments], group: str, zarr_format: int
) -> dict[str, dict[str, Any]]:
    """Return the documents of a group and of the nodes below it, without nodes of another format and what is below these."""
    names = ("zarr.json",) if zarr_format == 3 else (".zarray", ".zgroup")
    found: dict[str, dict[str, Any]] = {}
    for path in sorted(nodes):  # a group comes before what is in it
        stored = (parsed(nodes[path].get(name)) for name in names)
        document = next((one for one in stored if one is not None), None)
        above = path.rpartition("/")[0]
        is_reached = path == group or above == group or (above in found and is_group(found[above]))
        if document is not None and document.get("zarr_format") == zarr_format and is_reached:
            found[path] = document
    return found


def _below_v3(node: str, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    below = {}
    for path in sorted(documents):
        if path == node or not _is_below(path, node):
            continue
        document = documents[path]
        if document.get("node_type") == "group":  # the list is flat, as zarr-python writes it
            empty = {"kind": "inline", "must_understand": False, "metadata": {}}
            document = {**document, "consolidated_metadata": empty}
        below[_relative(path, node)] = document
    return below


def _below_v2(node: str, nodes: Mapping[str, StoredDocuments]) -> dict[str, Any]:
    below = {}
    for path in sorted(nodes):
        for name in (".zattrs", ".zgroup", ".zarray"):
            document = parsed(nodes[path].get(name)) if _is_below(path, node) else None
            if document is not None:
                below[name if path == node else f"{_relative(path, node)}/{name}"] = document
    return below


def _is_below(path: str, node: str) -> bool:
    """Return True for a node, and for all nodes in it."""
    return path == node or not node or path.startswith(f"{node}/")


def _relative(path: str, node: str) -> str:
    return path.removeprefix(f"{node}/") if node else path


def parsed(stored: bytes | None) -> dict[str, Any] | None:
    """Return a JSON object; None if there is none."""
    try:
        document = None if stored is None else json.loads(stored)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


# ---------------------------------------------------------------- the names that a tool writes

# Prefix of all names that shardcodec makes beside the objects of a hierarchy: marks, temporary files, journals.
OWN_PREFIX = ".shardcodec-"
# Suffix of the name of a staging folder, which begins with a dot.
STAGING_SUFFIX = ".shardcodec"


def node_path(*parts: str) -> str:
    """Join the path of an array or a group in a hierarchy; raise `ValueError` for a name that cannot be written.

    Such names are empty, consist of periods only (``.``, ``..``), are reserved for metadata or for shardcodec, or have a null byte or a
    backslash, which zarr reads as a slash.
    """
    path = "/".join(filter(None, parts))
    for name in path.split("/") if path else ():
        problem = _problem(name)
        if problem is None and "\\" in name:
            problem = "has a backslash, which zarr reads as a slash"
        if problem is None and (name in DOCUMENTS or name.startswith(OWN_PREFIX)):
            problem = "is reserved"
        if problem is not None:
            raise ValueError(
                f"expected the path of an array or a group that can be written, got {path!r}: the name {name!r} {problem}; rename "
                "it, or choose other arrays"
            )
    return path


def object_name(name: str) -> str:
    """Return the name of an object below the root of a hierarchy; raise `ValueError` for one that leads elsewhere or has a null byte."""
    for step in name.split("/"):
        if (problem := _problem(step)) is not None:
            raise ValueError(
                f"expected the name of an object that can be written, got {name!r}: {step!r} {problem}; rename it, or leave out "
                "objects that belong to no array (--only-arrays, in Python only_arrays)"
            )
    return name


def inner_path(path: str, argument: str) -> str:
    """Return the path of an array in a group, without slashes around it; `ValueError`, with the name of the argument, if it leads elsewhere."""
    name = path.strip("/")
    for step in name.split("/"):
        if (problem := _problem(step)) is not None:
            raise ValueError(
                f"{argument}: expected the path of an array in the group, got {path!r}: {step!r} {problem}"
            )
    return name


def is_own_name(name: str) -> bool:
    """Return True for the name of a file that shardcodec needs only for a while: a temporary file, the mark of a job."""
    *folders, last = name.split("/")
    if last.startswith(OWN_PREFIX):
        return True
    return any(
        folder.startswith(OWN_PREFIX) or (folder.startswith(".") and folder.endswith(STAGING_SUFFIX))
        for folder in folders
    )


def _problem(name: str) -> str | None:
    """Return why no folder can have a file of this name; None if one can."""
    if not name:
        return "is empty"
    if not name.strip("."):
        return "consists of periods only"
    return "has a null byte" if "\0" in name else None
