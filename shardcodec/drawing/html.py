# html.py - a table of facts and a small map, for notebooks
# SPDX-License-Identifier: MIT
"""HTML for ``_repr_html_``. It does not use matplotlib, so it is fast and works in every notebook."""

from __future__ import annotations

import html
import itertools
from typing import Any

import numpy as np

from .figures import COLORS
from .map_figure import ChunkMap

__all__ = ["MAX_SVG_CELLS", "map_svg"]

MAX_SVG_CELLS = 48
_WIDTH = 240

# Some colours of cividis, from the smallest to the largest size.
_SCALE = ("#00224E", "#35456C", "#666970", "#948E77", "#C8B866", "#FEE838")


def map_svg(chunks: ChunkMap) -> str:
    """Return a map of the inner chunks: absent ones are grey, others have a colour for their size.

    Parameters
    ----------
    chunks : ChunkMap
        With at most `MAX_SVG_CELLS` cells along an axis.

    Returns
    -------
    str
    """
    cells = np.atleast_2d(chunks.mean_nbytes)
    n_rows, n_columns = cells.shape
    height = max(12.0, min(2.0 * _WIDTH, _WIDTH * n_rows / n_columns))
    present = cells[~np.isnan(cells)]
    low, high = (present.min(), present.max()) if present.size else (0, 0)
    rectangles = []
    for y, row in enumerate(cells):
        for color, run in itertools.groupby(range(n_columns), lambda x, row=row: _color(row[x], low, high)):  # type: ignore[misc]
            x, *more = run
            rectangles.append(f"<rect x='{x}' y='{y}' width='{1 + len(more)}' height='1' fill='{color}'/>")
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{_WIDTH}' height='{height:.0f}' viewBox='0 0 {n_columns} {n_rows}' "
        f"preserveAspectRatio='none' shape-rendering='crispEdges'><title>{html.escape(_map_title(chunks))}</title>"
        f"{''.join(rectangles)}</svg>"
    )


def _map_title(chunks: ChunkMap) -> str:
    shown = " and ".join(f"axis {axis}" for axis in chunks.axes) or "the only one"
    return f"inner chunks along {shown}; grey: absent; blue to yellow: small to large"


def _color(size: Any, low: Any, high: Any) -> str:
    if np.isnan(size):
        return COLORS["absent"]
    share = (size - low) / (high - low) if high > low else 0.5
    return _SCALE[min(int(share * len(_SCALE)), len(_SCALE) - 1)]
