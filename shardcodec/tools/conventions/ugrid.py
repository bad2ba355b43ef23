# ugrid.py - meshes, whose variables name each other
# SPDX-License-Identifier: MIT
"""`Ugrid`: the attributes of an array name its mesh, and those of a mesh its coordinates and connectivities."""

from __future__ import annotations

from collections.abc import Iterable

from ..nodes import Nodes
from .cf import variables, words
from .convention import Convention

__all__ = ["Ugrid"]

# Attributes with names of variables.
_ATTRIBUTES = (
    "mesh",
    "edge_coordinates",
    "face_coordinates",
    "face_node_connectivity",
    "edge_node_connectivity",
    "face_edge_connectivity",
    "face_face_connectivity",
    "edge_face_connectivity",
    "boundary_node_connectivity",
)


class Ugrid(Convention):
    """The convention of UGRID."""

    def needed_by_array(self, path: str, nodes: Nodes) -> Iterable[str]:
        """Return the arrays that the attributes of an array mean."""
        facts = nodes.array(path)
        return () if facts is None else variables(words(facts.attributes, _ATTRIBUTES), path, nodes)
