# consolidated.py - consolidated metadata of a group
# SPDX-License-Identifier: MIT
"""Read the consolidated metadata of a group, which stand in for lost documents of its nodes, and make those of a new hierarchy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..access.box_reader import Folder, SpareDocuments, is_malformed
from ..format.array_document import encoded_document
from .documents import Document, StoredDocuments, is_group, json_object, parsed
from .left_parts import LeftKind, LeftPart

__all__ = [
    "consolidated",
    "documents_in",
    "notes_on_spare",
    "with_consolidated",
    "with_consolidated_as_spare",
    "without_nodes",
]


def documents_in(folder: Folder, document: Document) -> dict[str, Document]:
    """Return the documents in the consolidated metadata of a group, by their paths below it."""
    if document.get("zarr_format") == 2:
        # zarr opens the group without it if it is damaged, which `verify` finds
        try:
            stored = folder.get(f"{folder.prefix}.zmetadata")
        except OSError:
            stored = None
        known = json_object((parsed(stored) or {}).get("metadata"))
    else:
        nodes = json_object(json_object(document.get("consolidated_metadata")).get("metadata"))
        known = {f"{path}/zarr.json": node for path, node in nodes.items()}
    return {key: node for key, node in known.items() if isinstance(node, Mapping)}


def with_consolidated_as_spare(folder: Folder, document: Document) -> Folder:
    """Return the folder of a group, whose consolidated metadata stand in for lost documents of its nodes."""
    known = documents_in(folder, document)
    if not known:
        return folder
    spare = SpareDocuments() if folder.spare is None else folder.spare
    bare = {path: without_nodes(node) for path, node in known.items()}
    spare.add(repr(folder), bare, "the consolidated metadata")
    return replace(folder, spare=spare)


def without_nodes(document: Document) -> Document:
    """Return the document of a node without the empty list that a list of nodes has in each group."""
    listed = document.get("consolidated_metadata")
    is_empty = isinstance(listed, Mapping) and not listed.get("metadata")
    return (
        {name: value for name, value in document.items() if name != "consolidated_metadata"}
        if is_empty
        else document
    )


def notes_on_spare(spare: SpareDocuments | None, root: str) -> list[LeftPart]:
    """Return the parts for documents of a hierarchy that other places have in another form; `root` is its name for messages."""
    parts = []
    spare = SpareDocuments() if spare is None else spare
    for taken, sentence in (
        (spare.taken, "its {} is lost or damaged; that of {} is taken"),
        (spare.of_other_kind, "its {} is that of another kind of node than in {}, which is not taken"),
    ):
        paths = {key.removeprefix(f"{root}/"): taken[key] for key in taken if key.startswith(f"{root}/")}
        for key in sorted(paths, key=lambda key: key.rpartition("/")):
            path, _, name = key.rpartition("/")
            reason = f"{path or '/'!r}: {sentence.format(name, paths[key])}"
            is_lost = taken is spare.of_other_kind
            parts.append(LeftPart(LeftKind.METADATA, "", reason, is_unreadable=is_lost))
    return parts


def consolidated(node: str, documents: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the consolidated metadata of Zarr v3 of a group, from the ``zarr.json`` of all nodes, by path."""
    return {"kind": "inline", "must_understand": False, "metadata": _below_v3(node, documents)}


def with_consolidated(
    node: str, nodes: Mapping[str, StoredDocuments], stand_ins: Mapping[str, StoredDocuments]
) -> dict[str, bytes]:
    """Return the documents of a node; those with consolidated metadata have the ones of the given nodes.

    Zarr v3 has them in the ``zarr.json`` of a group, Zarr v2 in ``.zmetadata``. A document without consolidated metadata, or that
    is not JSON, stays as it is. `stand_ins` has the documents that consolidated metadata get for nodes whose own ones are of
    another format. zarr opens no group whose list has such a node, a malformed document, or a node without the groups above it: they
    are left out of it.
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
        stored = {name: one for name in names if (one := parsed(nodes[path].get(name))) is not None}
        name, document = next(iter(stored.items()), ("", {}))
        above = path.rpartition("/")[0]
        is_reached = path == group or above == group or (above in found and is_group(found[above]))
        is_known = document.get("zarr_format") == zarr_format and not is_malformed(name, document)
        if is_known and is_reached:
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
