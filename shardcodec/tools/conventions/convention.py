# convention.py - the interface of the conventions
# SPDX-License-Identifier: MIT
"""`Convention`: which nodes of a hierarchy belong together, and what a copy of a part of them names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ..nodes import Attributes, Nodes

__all__ = ["Convention", "Has", "IsThere", "MendedObject"]

# Says of a path whether the copy has this node.
IsThere = Callable[[str], bool]
# For a path below the root of the hierarchy: True if the copy has the node, False if it was left out, None if there is no such node.
Has = Callable[[str], bool | None]


class MendedObject(NamedTuple):
    """The bytes that an object gets in a part of a hierarchy, and notes about what it names."""

    data: bytes
    notes: tuple[str, ...]


class Convention:
    """A convention of other programs. Each one overrides the methods that it has rules for."""

    # Name of an object in a folder that names nodes, as attributes of groups do; empty without one.
    object_name: str = ""

    def needed_by_array(self, path: str, nodes: Nodes) -> Iterable[str]:
        """Return the arrays without which programs cannot read an array, or not with its coordinates."""
        del path, nodes
        return ()

    def needed_by_member(self, group: str, nodes: Nodes) -> Iterable[str]:
        """Return the arrays of a group that programs read together with any array in it."""
        del group, nodes
        return ()

    def needed_by_all(self, names: Iterable[str], nodes: Nodes) -> Iterable[str]:
        """Return the arrays that belong to several arrays which the user has chosen."""
        del names, nodes
        return ()

    def mended(self, group: str, attributes: Attributes, is_there: IsThere) -> Attributes:
        """Return the attributes of a group, in which only nodes are named that are there."""
        del group, is_there
        return attributes

    def mended_object(self, folder: str, data: bytes, has: Has) -> MendedObject | None:
        """Return an object that has the name `object_name`, with only the nodes that are there; None if it is malformed."""
        del folder, data, has
        return None
