# node_selection.py - the nodes of a hierarchy that a user chooses
# SPDX-License-Identifier: MIT
"""`Selection`: the nodes of a hierarchy that a user chooses, by patterns of their paths."""

from __future__ import annotations

import fnmatch
import glob
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from .conventions.all_conventions import with_needed
from .nodes import Nodes, groups_above, groups_of

__all__ = ["Selection", "is_match"]


@dataclass(frozen=True)
class Selection:
    """The nodes of a hierarchy that the user chooses.

    Attributes
    ----------
    only, exclude : tuple of str
        Patterns of paths; that of a group stands for all that is in it. Without `only` all nodes are chosen.
    exactly : bool
        Leave out what programs need beside the arrays of `only`.
    nodes : frozenset of str or None
        These nodes and no others, as a stored plan names them.
    """

    only: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    exactly: bool = False
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

    def names(self, path: str) -> bool:
        """Return True for a node that the user, or a stored plan, names by its path, and not by a pattern of several."""
        return self.nodes is not None or any(one in (path, glob.escape(path)) for one in self.only)

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


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Return True if a pattern fits a path, or a group that it is in."""
    paths = (path, *groups_above(path)) if path else ()
    return any(is_match(each, pattern) for each in paths if each for pattern in patterns)


def is_match(path: str, pattern: str) -> bool:
    """Return True if a pattern fits a path; a path with brackets is also a pattern of itself."""
    return path == pattern or fnmatch.fnmatchcase(path, pattern)
