# anndata.py - elements of several arrays, and the index of a data frame
# SPDX-License-Identifier: MIT
"""`AnnData`: an element is a group of several arrays, and a data frame has an index and a list of its columns."""

from __future__ import annotations

from collections.abc import Iterator

from ..nodes import Attributes, Nodes, inside
from .convention import Convention, IsThere

__all__ = ["AnnData"]

# Encodings of groups of AnnData that are read member by member. A group with any other one is read as a whole.
_MEMBERWISE = frozenset({"anndata", "raw", "dict", "dataframe", "MuData"})
# The data frames whose index names the axes.
_FRAMES = {"anndata": ("obs", "var"), "raw": ("var",), "MuData": ("obs", "var")}


class AnnData(Convention):
    """The convention of AnnData and MuData."""

    def needed_by_member(self, group: str, nodes: Nodes) -> Iterator[str]:
        """Yield the arrays of a group that AnnData reads together with any of them."""
        attributes = nodes.group(group)
        kind = attributes.get("encoding-type")
        if not isinstance(kind, str):
            return
        if kind not in _MEMBERWISE:
            yield from nodes.arrays_below(group)
        frames = [group] if kind == "dataframe" else [inside(group, name) for name in _FRAMES.get(kind, ())]
        for frame in frames:
            index = nodes.group(frame).get("_index")
            if isinstance(index, str):
                column = inside(frame, index)
                yield from (column,) if nodes.array(column) is not None else nodes.arrays_below(column)

    def mended(self, group: str, attributes: Attributes, is_there: IsThere) -> Attributes:
        """Return the attributes of a data frame with the columns that are there."""
        columns = attributes.get("column-order")
        if attributes.get("encoding-type") != "dataframe" or not isinstance(columns, list):
            return attributes
        kept = [name for name in columns if is_there(inside(group, str(name)))]
        return {**attributes, "column-order": kept}
