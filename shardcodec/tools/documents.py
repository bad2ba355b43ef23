# documents.py - metadata documents of a hierarchy, and its arrays
# SPDX-License-Identifier: MIT
"""Find nodes of a hierarchy by their documents: ``zarr.json``, or ``.zarray`` and ``.zgroup`` of Zarr v2."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from ..access.box_reader import Folder
from ..errors import SpecError
from ..format.checks import as_mapping, bounded_depth

__all__ = ["DOCUMENTS", "Document", "array_documents", "document_of", "group_documents", "is_group", "parsed"]

Document = Mapping[str, Any]

# Names beside the shards in the folder of an array.
DOCUMENTS = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})


def document_of(folder: Folder) -> Document | None:
    """Return the document of a node; None if the folder is not a node.

    Raises
    ------
    SpecError
        The document is not a JSON object.
    """
    try:
        return folder.metadata()
    except FileNotFoundError:
        return parsed(folder, ".zgroup")


def parsed(folder: Folder, name: str) -> Document | None:
    """Return a document of a node by its name; None if the node does not have it.

    Raises
    ------
    SpecError
        The document is not a JSON object.
    """
    stored = folder.get(folder.prefix + name)
    if stored is None:
        return None
    try:
        with bounded_depth(name):
            return as_mapping(json.loads(stored), "")
    except ValueError as error:
        raise SpecError(f"{name}: expected JSON, got invalid text: {error}", path="") from error


def is_group(document: Document) -> bool:
    """Return True for the document of a group."""
    if document.get("zarr_format") == 2:
        return "shape" not in document and "chunks" not in document
    return document.get("node_type") == "group"


def array_documents(
    folder: Folder, document: Document, name: str = ""
) -> Iterator[tuple[str, Folder, Document | SpecError]]:
    """Yield the arrays of a group, in the order of their names, at any depth.

    Parameters
    ----------
    folder : Folder
        The folder of the group.
    document : mapping
        Its document.
    name : str
        Name of the group, a prefix of the names of its arrays.

    Yields
    ------
    name : str
        Path of the array.
    folder : Folder
        Its folder.
    document : mapping or SpecError
        Its document, or what is wrong with it.
    """
    for path, below, found in _nodes(folder, document, name):
        if isinstance(found, SpecError) or not is_group(found):
            yield path, below, found


def group_documents(
    folder: Folder, document: Document, name: str = ""
) -> Iterator[tuple[str, Folder, Document]]:
    """Yield a group and the groups in it, at any depth: path, folder and document.

    Without a listing, those that consolidated metadata show. Damaged documents are left out; `array_documents` yields them.
    """
    yield name, folder, document
    for path, below, found in _nodes(folder, document, name):
        if not isinstance(found, SpecError) and is_group(found):
            yield path, below, found


def _nodes(
    folder: Folder, document: Document, name: str
) -> Iterator[tuple[str, Folder, Document | SpecError]]:
    """Yield the groups and arrays below a group: path, folder, and the document or what is wrong with it."""
    if not folder.store.supports_listing:
        yield from _consolidated(folder, document, name)
        return
    for child in folder.store.names(folder.prefix):
        if child in DOCUMENTS:  # some stores raise for keys below it
            continue
        path = f"{name}/{child}" if name else child
        below = replace(folder, prefix=f"{folder.prefix}{child}/")
        try:
            found = document_of(below)
        except SpecError as error:
            yield path, below, error
            continue
        if found is None:
            continue
        yield path, below, found
        if is_group(found):
            yield from _nodes(below, found, path)


def _consolidated(
    folder: Folder, document: Document, name: str
) -> Iterator[tuple[str, Folder, Document | SpecError]]:
    """Yield the nodes that consolidated metadata show; without a listing nothing else does."""
    if document.get("zarr_format") == 2:
        stored = (parsed(folder, ".zmetadata") or {}).get("metadata") or {}
        known = {
            key.rpartition("/")[0]: value
            for key, value in stored.items()
            if key.endswith(("/.zarray", "/.zgroup"))
        }
    else:
        known = dict((document.get("consolidated_metadata") or {}).get("metadata") or {})
    for path, one in sorted(known.items()):
        if isinstance(one, Mapping):
            yield f"{name}/{path}" if name else path, replace(folder, prefix=f"{folder.prefix}{path}/"), one
