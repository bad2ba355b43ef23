# node_selection.py - the nodes of a hierarchy that a user chooses
# SPDX-License-Identifier: MIT
"""`Selection`: the nodes of a hierarchy that a user chooses, by patterns of their paths."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UnsupportedError
from .conventions.all_conventions import with_needed
from .hierarchy import ArrayNotFoundError, Hierarchy
from .names import inner_path
from .nodes import Nodes, groups_above, groups_of

if TYPE_CHECKING:
    from .targets import ArrayTarget

__all__ = ["Selection", "is_match", "outermost", "selection_of"]


@dataclass(frozen=True)
class Selection:
    """The nodes of a hierarchy that the user chooses.

    Attributes
    ----------
    only, exclude : tuple of str
        Patterns of paths; that of a group stands for all that is in it. Without `only` all nodes are chosen.
    exactly : bool
        Leave out what programs need beside the arrays of `only`: ``@needed`` of `exclude`.
    only_arrays : bool
        Leave out objects that belong to no array: ``@objects`` of `exclude`.
    nodes : frozenset of str or None
        These nodes and no others, as a stored plan names them.
    """

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exactly: bool = False
    only_arrays: bool = False
    nodes: frozenset[str] | None = None

    @property
    def is_part(self) -> bool:
        """True if nodes may be left out."""
        return bool(self.only or self.exclude or self.nodes is not None)

    def matches(self, path: str) -> bool:
        """Return True for a node that the user names."""
        if self.nodes is not None:
            return path in self.nodes
        return (not self.only or _matches(path, self.only)) and not _matches(path, self.exclude)

    def leaves(self, path: str) -> bool:
        """Return True for a node that the user excludes."""
        return _matches(path, self.exclude)

    def names(self, path: str) -> bool:
        """Return True for a node that the user, or a stored plan, names by its path, and not by a pattern of several."""
        return self.nodes is not None or any(one in (path, glob.escape(path)) for one in self.only)

    def targets(self, hierarchy: Hierarchy) -> Iterable[ArrayTarget]:
        """Return the arrays of a hierarchy that the user names, without those that they need.

        Raises
        ------
        FileNotFoundError
            A pattern fits no node.
        """
        if not self.is_part:
            return hierarchy.arrays()
        if not hierarchy.is_group:
            raise ValueError(
                f"only, exclude: expected none, because {hierarchy.folder!r} is an array or a shard"
            )
        if self.only and not self.exclude and not any(map(glob.has_magic, self.only)):
            with suppress(ArrayNotFoundError):  # a group: no other node is looked at
                return [one for name in self.only for one in hierarchy.arrays(name)]
        arrays = list(hierarchy.arrays())
        if unknown := self.unknown(
            {*(one.name for one in arrays), *(name for name, _, _ in hierarchy.groups())}
        ):
            raise FileNotFoundError(
                f"{hierarchy.folder!r}: expected an array or a group that matches {unknown!r}, but there is none"
            )
        return [one for one in arrays if self.matches(one.name)]

    def known(self, hierarchy: Hierarchy) -> list[ArrayTarget]:
        """Return all arrays of a hierarchy, also those of `only` that a listing does not show."""
        try:
            arrays = list(hierarchy.arrays())
        except UnsupportedError:  # the store cannot list
            arrays = []
            if not self.only:
                raise
        for name in {*self.only} - {one.name for one in arrays} if hierarchy.is_group else ():
            with suppress(ArrayNotFoundError):
                arrays += [] if glob.has_magic(name) else hierarchy.arrays(name)
        return arrays

    def unknown(self, paths: Collection[str]) -> str | None:
        """Return the first pattern of `only` that fits no node; None if each fits one."""
        return next((one for one in self.only if not any(_matches(path, (one,)) for path in paths)), None)

    def arrays(self, names: Collection[str], nodes: Nodes) -> set[str]:
        """Return the arrays that are chosen, with those that programs need beside them."""
        chosen = set(filter(self.matches, names))
        if self.nodes is None and self.only and not self.exactly:
            needed = with_needed(chosen, nodes)
            chosen.update(name for name in names if name in needed and not _matches(name, self.exclude))
        return chosen

    def groups(self, groups: Iterable[str], chosen: Collection[str]) -> set[str]:
        """Return the groups that stay: those that are chosen themselves, and those that chosen arrays and groups are in."""
        if self.nodes is not None:
            return {path for path in groups if path in self.nodes}
        kept = set(filter(self.matches, groups))
        above = groups_of(chosen) | groups_of(kept)
        return {path for path in groups if not path or path in kept or path in above}


def selection_of(only: str | Sequence[str] = (), exclude: str | Sequence[str] = ()) -> Selection:
    """Return the nodes that the arguments `only` and `exclude` of a tool choose."""
    chosen, left = (
        tuple(pattern.strip("/") for pattern in ([given] if isinstance(given, str) else given))
        for given in (only, exclude)
    )
    if "@needed" in left and not chosen:
        raise ValueError("exclude: expected `only` (--only) with @needed, the arrays that are chosen")
    for one in chosen:
        inner_path(one, "only")
    patterns = tuple(one for one in left if one not in ("@needed", "@objects"))
    return Selection(chosen, patterns, exactly="@needed" in left, only_arrays="@objects" in left)


def outermost(paths: Collection[str]) -> tuple[str, ...]:
    """Return the paths that are not in the folder of another one."""
    return tuple(sorted(path for path in paths if groups_of([path]).isdisjoint(paths)))


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Return True if a pattern fits a path, or a group that it is in."""
    paths = (path, *groups_above(path)) if path else ()
    return any(is_match(each, pattern) for each in paths if each for pattern in patterns)


def is_match(path: str, pattern: str) -> bool:
    """Return True if a pattern fits a path; a path with brackets is also a pattern of itself."""
    return path == pattern or fnmatch.fnmatchcase(path, pattern)
