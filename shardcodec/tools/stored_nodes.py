# stored_nodes.py - the nodes of a hierarchy, found by their documents
# SPDX-License-Identifier: MIT
"""`node_of`: the node in a folder, or what is wrong with it; `nodes_below`: all nodes below a group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from ..access.box_reader import Folder
from ..errors import SpecError, name_array
from ..storage.store import LeftFolder
from .consolidated import documents_in, with_consolidated_as_spare
from .documents import DOCUMENTS, NODE_DOCUMENTS, Document, document_of, is_2022, is_group
from .names import problem_of

__all__ = ["DamagedGroup", "UnlistedGroup", "consolidated_nodes", "node_of", "nodes_below", "root_document"]


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
        if document is not None and (is_group(document) or "shape" in document or is_2022(document)):
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
    lost = {child for child in set(spare).difference(stored) if problem_of(child) is None}
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
        for key, node in documents_in(folder, document).items()
        if key.endswith(("/zarr.json", "/.zarray", "/.zgroup"))
    }
    folder = with_consolidated_as_spare(folder, document)
    for path, node in sorted(known.items()):
        yield f"{name}/{path}" if name else path, replace(folder, prefix=f"{folder.prefix}{path}/"), node
