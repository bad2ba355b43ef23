# nodes.py - the nodes of a hierarchy, looked up by path
# SPDX-License-Identifier: MIT
"""`Nodes`: the arrays and groups of a hierarchy, looked up by path."""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..access.box_reader import Folder
from ..errors import SpecError
from ..format.attributes import DIMENSIONS
from .documents import Document, document_of, is_group
from .stored_nodes import nodes_below

__all__ = [
    "ArrayFacts",
    "Attributes",
    "KnownNodes",
    "Nodes",
    "ZarrNodes",
    "groups_above",
    "groups_of",
    "inside",
    "is_below",
]

Attributes = Mapping[str, Any]


class ArrayFacts(NamedTuple):
    """The names of the axes of an array, empty without names, and its attributes."""

    names: Sequence[str | None]
    attributes: Attributes


class Nodes(ABC):
    """The arrays and groups of a hierarchy, by path."""

    @abstractmethod
    def array(self, path: str) -> ArrayFacts | None:
        """Return the facts of an array; None if there is none at this path."""

    @abstractmethod
    def group(self, path: str) -> Attributes:
        """Return the attributes of a group; empty if there is none at this path."""

    @abstractmethod
    def arrays_below(self, path: str) -> Iterable[str]:
        """Return the paths of all arrays in a group."""


class KnownNodes(Nodes):
    """Nodes of a hierarchy that has been listed; the facts of an array are looked up when they are needed."""

    def __init__(
        self, arrays: Mapping[str, Callable[[], ArrayFacts]], groups: Mapping[str, Attributes]
    ) -> None:
        self._arrays, self._groups = arrays, groups

    def array(self, path: str) -> ArrayFacts | None:
        facts = self._arrays.get(path)
        return None if facts is None else facts()

    def group(self, path: str) -> Attributes:
        return self._groups.get(path, {})

    def arrays_below(self, path: str) -> Iterable[str]:
        return [name for name in self._arrays if is_below(name, path)]


class ZarrNodes(Nodes):
    """Nodes of a hierarchy of Zarr v2 or v3; each document is read when it is needed."""

    def __init__(self, root: Folder) -> None:
        self._root = root
        self._known: dict[str, tuple[Document | None, Attributes]] = {}

    def _folder(self, path: str) -> Folder:
        return replace(self._root, prefix=f"{self._root.prefix}{path}/") if path else self._root

    def _node(self, path: str) -> tuple[Document | None, Attributes]:
        if path not in self._known:
            try:
                self._known[path] = _read(self._folder(path))
            except (SpecError, OSError):  # the copy of this node itself raises the error
                self._known[path] = None, {}
        return self._known[path]

    def array(self, path: str) -> ArrayFacts | None:
        document, attributes = self._node(path)
        if document is None or is_group(document):
            return None
        names = document.get("dimension_names", attributes.get(DIMENSIONS))
        return ArrayFacts(names if isinstance(names, list) else (), attributes)

    def group(self, path: str) -> Attributes:
        document, attributes = self._node(path)
        return attributes if document is not None and is_group(document) else {}

    def arrays_below(self, path: str) -> Iterable[str]:
        document, _ = self._node(path)
        if document is None or not is_group(document):
            return ()
        start = path if self._root.store.supports_listing else ""  # only the root lists its nodes then
        start_document, _ = self._node(start)
        assert start_document is not None
        nodes = nodes_below(self._folder(start), start_document, start)
        names = (name for name, _, node in nodes if isinstance(node, SpecError) or not is_group(node))
        return [name for name in names if is_below(name, path)]


def _read(folder: Folder) -> tuple[Document | None, Attributes]:
    document = document_of(folder)
    if document is None:
        return None, {}
    given = document.get("attributes") if document.get("zarr_format") == 3 else folder.document(".zattrs")
    return document, given if isinstance(given, Mapping) else {}


def is_below(path: str, group: str) -> bool:
    """Return True for a node in a group, at any depth."""
    return not group or path.startswith(f"{group}/")


def groups_above(path: str) -> Iterator[str]:
    """Yield the groups that a node is in, the innermost first."""
    while path:
        path = path.rpartition("/")[0]
        yield path


def inside(group: str, name: str) -> str:
    """Return the path of a node that the metadata of a group name."""
    return posixpath.normpath(f"{group}/{name}").strip("/")


def groups_of(paths: Iterable[str]) -> set[str]:
    """Return all groups that nodes are in."""
    return {group for path in paths for group in groups_above(path)}
