# legacy_source.py - arrays of the 2022 format as sources
# SPDX-License-Identifier: MIT
"""Hierarchies of the sharding storage transformer of 2022, through the view that shows them as Zarr v3."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from ...access.box_reader import folder_at
from ...errors import UnsupportedError
from ...format.array_document import key_encoding
from ...format.attributes import as_json_attributes
from ...options import Options
from ...storage.urls import is_url
from ...transformer.legacy_2022.convert import Source2022
from ...transformer.legacy_2022.open import legacy_store, open_2022
from .decoded_source import decoded_source
from .source import SourceArray, SourceTree, group_notes
from .zarr_source import zarr_source

__all__ = ["legacy_hierarchy", "legacy_tree"]


def legacy_hierarchy(source: Any) -> tuple[Any, str] | None:
    """Return the root of a hierarchy of 2022 and the path in it; None for any other source."""
    if not isinstance(source, str | os.PathLike) or is_url(source):
        return None
    folder, rest = os.path.abspath(os.fspath(source)), ""
    while True:
        if os.path.isfile(document := os.path.join(folder, "zarr.json")):
            return (folder, rest) if _is_2022(document) else None
        folder, name = os.path.split(folder)
        if not name:
            return None
        rest = f"{name}/{rest}" if rest else name


def _is_2022(document: str) -> bool:
    try:
        with open(document, "rb") as file:
            found = json.load(file)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and isinstance(found.get("zarr_format"), str)


def legacy_tree(root: Any, path: str, options: Options, wanted: Callable[[str], bool]) -> SourceTree:
    """Open an array or a group of the 2022 format; `wanted` says which arrays of a group.

    Raises
    ------
    FileNotFoundError
        There is no such array or group.
    SpecError, UnsupportedError
        The metadata are wrong, or need something that shardcodec does not implement.
    """
    source = Source2022(root, path)
    view, prefix = legacy_store(root, read_only=True)
    arrays: list[SourceArray] = []
    groups = {}
    notes: list[str] = []
    for node, is_array in source.nodes():
        if not is_array:
            groups[node], more = as_json_attributes(source.attributes(node))
            notes += group_notes(node, more)
            continue
        if not wanted(node):
            continue
        at = "/".join(filter(None, (path, node)))
        folder = folder_at(view, "/".join(filter(None, (prefix, at))))
        new = source.plan(node, True).document
        known = {
            "attributes": new.get("attributes") or {},
            "dimension_names": new.get("dimension_names"),
            "document": new,
        }
        try:
            document = folder.metadata()
            arrays.append(zarr_source(node, folder, document, key_encoding(document), options, **known))
        except UnsupportedError:  # zarr may have the codecs
            arrays.append(decoded_source(open_2022(root, at, mode="r"), node, folder, **known))
    return SourceTree(f"{root}/{path}".rstrip("/"), tuple(arrays), groups, notes=tuple(notes))
