# consolidated.py - consolidated metadata of a new hierarchy
# SPDX-License-Identifier: MIT
"""`with_consolidated`: the consolidated metadata of a group, made again from the documents of the nodes below it.

Zarr v3 has them in the ``zarr.json`` of a group, Zarr v2 in ``.zmetadata``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["with_consolidated"]

Documents = Mapping[str, bytes]

_EMPTY = {"kind": "inline", "must_understand": False, "metadata": {}}


def with_consolidated(node: str, nodes: Mapping[str, Documents]) -> dict[str, bytes]:
    """Return the documents of a node; those with consolidated metadata have the ones of the given nodes.

    Parameters
    ----------
    node : str
        Path of the node in the hierarchy.
    nodes : mapping
        The documents of all nodes, by path and name.

    Returns
    -------
    dict
        By name. A document without consolidated metadata, or that is not JSON, stays as it is.
    """
    found = dict(nodes[node])
    document = _parsed(found.get("zarr.json"))
    if document is not None and isinstance(document.get("consolidated_metadata"), Mapping):
        new = {**document["consolidated_metadata"], "metadata": _of_v3(node, nodes)}
        found["zarr.json"] = _encoded({**document, "consolidated_metadata": new})
    stored = _parsed(found.get(".zmetadata"))
    if stored is not None:
        found[".zmetadata"] = _encoded({**stored, "metadata": _of_v2(node, nodes)})
    return found


def _of_v3(node: str, nodes: Mapping[str, Documents]) -> dict[str, Any]:
    found = {}
    for path in sorted(nodes):
        document = _parsed(nodes[path].get("zarr.json"))
        if document is not None and _is_below(path, node):
            if document.get("node_type") == "group":  # the list is flat, as zarr-python writes it
                document = {**document, "consolidated_metadata": _EMPTY}
            found[_relative(path, node)] = document
    return found


def _of_v2(node: str, nodes: Mapping[str, Documents]) -> dict[str, Any]:
    found = {}
    for path in sorted(nodes):
        if path != node and not _is_below(path, node):
            continue
        for name in (".zattrs", ".zgroup", ".zarray"):
            document = _parsed(nodes[path].get(name))
            if document is not None:
                found[name if path == node else f"{_relative(path, node)}/{name}"] = document
    return found


def _is_below(path: str, node: str) -> bool:
    return path != node and (not node or path.startswith(f"{node}/"))


def _relative(path: str, node: str) -> str:
    return path.removeprefix(f"{node}/") if node else path


def _parsed(stored: bytes | None) -> dict[str, Any] | None:
    """Return a JSON object; None if there is none."""
    try:
        document = None if stored is None else json.loads(stored)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2).encode()
