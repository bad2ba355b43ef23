# all_conventions.py - what all conventions together say of the nodes of a hierarchy
# SPDX-License-Identifier: MIT
"""Ask all conventions: which arrays programs need together, and what a copy of a part of a hierarchy names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...format.array_document import encoded_document
from ..documents import StoredDocuments, is_group, parsed
from ..left_parts import group_notes
from ..nodes import Attributes, Nodes, groups_of
from .anndata import AnnData
from .cf import Cf
from .convention import Convention, Has, IsThere, MendedObject
from .ome_zarr import OmeZarr
from .plates import Plates
from .spatialdata import SpatialData
from .ugrid import Ugrid
from .webknossos import Webknossos

__all__ = ["OBJECT_NAMES", "mended", "mended_documents", "mended_notes", "mended_object", "with_needed"]

# `SpatialData` compares the levels of an image with those that `OmeZarr` leaves, so it comes first.
CONVENTIONS: tuple[Convention, ...] = (
    Cf(),
    Ugrid(),
    AnnData(),
    SpatialData(),
    OmeZarr(),
    Plates(),
    Webknossos(),
)
# Names of objects in folders that name nodes.
OBJECT_NAMES = tuple(one.object_name for one in CONVENTIONS if one.object_name)


def with_needed(names: Iterable[str], nodes: Nodes) -> set[str]:
    """Return arrays, and all others without which xarray or AnnData cannot read them, or not with their coordinates."""
    named = set(names)
    needed = set(named)
    groups: set[str] = set()
    fresh = set(named)
    while fresh:
        more = {other for path in fresh for one in CONVENTIONS for other in one.needed_by_array(path, nodes)}
        new_groups = groups_of(fresh) - groups
        more.update(
            other
            for group in new_groups
            for one in CONVENTIONS
            for other in one.needed_by_member(group, nodes)
        )
        groups |= new_groups
        if more <= needed:
            more = {other for one in CONVENTIONS for other in one.needed_by_all(named, nodes)}
        fresh = more - needed
        needed |= fresh
    return needed


def mended(group: str, attributes: Attributes, is_there: IsThere) -> dict[str, Any]:
    """Return the attributes of a group, in which only nodes are named that are there: levels, labels, wells, images, columns."""
    for one in CONVENTIONS:
        attributes = one.mended(group, attributes, is_there)
    return dict(attributes)


def mended_object(folder: str, name: str, data: bytes, has: Has) -> MendedObject | None:
    """Return an object that names nodes, with those that were not left out; None for other and malformed objects."""
    for one in CONVENTIONS:
        if one.object_name == name:
            return one.mended_object(folder, data, has)
    return None


def mended_notes(path: str, old: Attributes, new: Attributes) -> list[str]:
    """Return the note about attributes of a group that name fewer nodes than before; none if there are none."""
    changed = sorted(name for name in old if new.get(name) != old[name])
    return group_notes(path, [f"{', '.join(changed)}: only what the copy has is named"] if changed else ())


def mended_documents(
    nodes: Mapping[str, StoredDocuments],
) -> tuple[dict[str, dict[str, bytes]], list[str]]:
    """Return the documents of nodes, by path and name, those of groups naming only these nodes; and notes about the changes."""
    notes: list[str] = []
    return {path: _mended_node(path, documents, nodes, notes) for path, documents in nodes.items()}, notes


def _mended_node(
    path: str, documents: StoredDocuments, nodes: Mapping[str, StoredDocuments], notes: list[str]
) -> dict[str, bytes]:
    new = dict(documents)
    own = parsed(documents.get("zarr.json"))
    if own is not None and is_group(own) and isinstance(own.get("attributes"), dict):
        attributes = mended(path, own["attributes"], nodes.__contains__)
        if attributes != own["attributes"]:
            new["zarr.json"] = encoded_document({**own, "attributes": attributes})
            notes += mended_notes(path, own["attributes"], attributes)
    own = parsed(documents.get(".zattrs"))
    if own is not None and ".zgroup" in documents:
        attributes = mended(path, own, nodes.__contains__)
        if attributes != own:
            new[".zattrs"] = encoded_document(attributes)
            notes += mended_notes(path, own, attributes)
    return new
