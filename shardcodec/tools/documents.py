# documents.py - the metadata document of a node
# SPDX-License-Identifier: MIT
"""`document_of`: the metadata document of a node (``zarr.json``; ``.zarray`` or ``.zgroup`` of Zarr v2), and its members."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..access.box_reader import Folder
from ..errors import SpecError

__all__ = [
    "DOCUMENTS",
    "NODE_DOCUMENTS",
    "Document",
    "StoredDocuments",
    "document_of",
    "further_members",
    "is_2022",
    "is_group",
    "json_object",
    "parsed",
]

Document = Mapping[str, Any]

_FORMAT_2022 = "https://purl.org/zarr/spec/protocol/"

# Names beside the shards in the folder of an array.
DOCUMENTS = frozenset({"zarr.json", ".zarray", ".zattrs", ".zgroup", ".zmetadata"})
# Those that make a folder a node; the first one that exists counts.
NODE_DOCUMENTS = "zarr.json", ".zarray", ".zgroup"


def document_of(folder: Folder, names: Sequence[str] = NODE_DOCUMENTS) -> Document | None:
    """Return the document of a node, with one of the names; None if the folder is not a node. `SpecError` for one that has the name of another kind."""
    name, document = folder.first_document(*names)
    problem = None if document is None else _problem_of_kind(name, document)
    if problem is not None:
        raise SpecError(f"{name}: {problem}")
    return document


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


def json_object(value: Any) -> Mapping[str, Any]:
    """Return a JSON object; an empty one in place of any other value."""
    return value if isinstance(value, Mapping) else {}


# The documents of a node, by name.
StoredDocuments = Mapping[str, bytes]


def parsed(stored: bytes | None) -> dict[str, Any] | None:
    """Return a JSON object; None if there is none."""
    try:
        document = None if stored is None else json.loads(stored)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
