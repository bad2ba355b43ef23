# array_figure.py - an array above the bytes of one of its shards
# SPDX-License-Identifier: MIT
"""`array_figure`: the figure of an array together with that of one shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .figures import new_figure
from .layout_figure import draw_layout
from .map_figure import ChunkMap, draw_map, n_panels

__all__ = ["array_figure"]


def array_figure(
    chunks: ChunkMap,
    title: str,
    shard: tuple[int, Mapping[str, Any], Any, int, str] | None,
) -> Any:
    """Return a figure; `shard` has the arguments of `draw_layout` after the panels, or is None if no shard exists."""
    is_plane = len(chunks.axes) > 1
    n = n_panels(chunks)
    heights = [5.2 if is_plane else 2.6, 4.4]
    figure = new_figure(12 if n > 1 else 9, sum(heights) if shard is not None else heights[0], "constrained")
    if shard is None:
        draw_map(figure, figure.subplots(1, n, squeeze=False)[0], chunks, title)
        return figure
    above, below = figure.subfigures(2, 1, height_ratios=heights)
    draw_map(above, above.subplots(1, n, squeeze=False)[0], chunks, title)
    draw_layout(below.subplots(2, 1, sharex=True, height_ratios=[1, 3]), *shard)
    return figure
