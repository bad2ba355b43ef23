# cf.py - coordinates, bounds and grid mappings as xarray and CF name them
# SPDX-License-Identifier: MIT
"""`Cf`: the axes and the attributes of an array name variables, the attributes of a group the coordinates of several arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..nodes import Attributes, Nodes, groups_above, inside
from .convention import Convention

__all__ = ["Cf", "variables", "words"]

# Attributes with names of variables: those of xarray's `decode_coords="all"`, and further ones.
_ATTRIBUTES = (
    "coordinates",
    "bounds",
    "climatology",
    "grid_mapping",
    "cell_measures",
    "ancillary_variables",
    "formula_terms",
    "geometry",
    "node_coordinates",
    "node_count",
    "part_node_count",
    "interior_ring",
)


class Cf(Convention):
    """The convention of CF, with the coordinates of groups as xarray writes them."""

    def needed_by_array(self, path: str, nodes: Nodes) -> Iterable[str]:
        """Return the arrays that the names of the axes and the attributes of an array mean."""
        facts = nodes.array(path)
        if facts is None:
            return ()
        return variables((*filter(None, facts.names), *words(facts.attributes, _ATTRIBUTES)), path, nodes)

    def needed_by_all(self, names: Iterable[str], nodes: Nodes) -> Iterable[str]:
        """Return the coordinates that xarray names in the attributes of a group, as far as arrays there have their axes."""
        axes: dict[str, set[str | None]] = {}
        for path in names:
            facts = nodes.array(path)
            if facts is not None:
                axes.setdefault(path.rpartition("/")[0], set()).update(facts.names)
        coordinates = set()
        for group, own in axes.items():
            given = nodes.group(group).get("coordinates")
            for word in given.split() if isinstance(given, str) else ():
                facts = nodes.array(path := inside(group, word))
                if facts is not None and own.issuperset(facts.names):
                    coordinates.add(path)
        return coordinates


def words(attributes: Attributes, names: Iterable[str]) -> Iterator[str]:
    """Yield the names of variables in these attributes, such as ``lat lon``, ``area: areacella`` or ``crs: x y``."""
    for name in names:
        given = attributes.get(name)
        for word in given.split() if isinstance(given, str) else ():
            if not word.endswith(":"):
                yield word
            elif name == "grid_mapping":  # the other attributes have a kind before the colon
                yield word.removesuffix(":")


def variables(names: Iterable[str], path: str, nodes: Nodes) -> Iterator[str]:
    """Yield the arrays that names of variables of an array mean."""
    for name in dict.fromkeys(names):
        variable = _variable(name, path, nodes)
        if variable is not None:
            yield variable


def _variable(word: str, path: str, nodes: Nodes) -> str | None:
    """Return the array that a word of an array means: in its group, or in a group above."""
    for group in groups_above(path):
        other = inside("" if word.startswith("/") else group, word)
        if other and not other.startswith("..") and nodes.array(other) is not None:
            return other
    return None
