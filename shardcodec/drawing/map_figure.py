# map_figure.py - the picture of a `ChunkMap`
# SPDX-License-Identifier: MIT
"""Draw which inner chunks exist and how large they are, over the elements of the array."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from .byte_scale import byte_scale
from .chunk_map import ChunkMap
from .figures import COLORS, new_figure

__all__ = ["draw_map", "map_figure", "n_panels"]

# Lines between inner chunks, or between shards, are drawn up to this number along an axis.
MAX_LINES = 40
# Sizes that differ by more than this factor get a logarithmic scale.
LOG_FACTOR = 50


def map_figure(found: ChunkMap, title: str) -> Any:
    """Return a figure with the sizes of the inner chunks and, if a cell exists in part, the share that exists."""
    n = n_panels(found)
    figure = new_figure(12 if n > 1 else 7, 5.2 if len(found.axes) > 1 else 2.6)
    draw_map(figure, figure.subplots(1, n, squeeze=False)[0], found, title)
    return figure


def n_panels(found: ChunkMap) -> int:
    """Return the number of panels of a map: 2 if a cell exists in part, else 1."""
    return 2 if ((found.share > 0) & (found.share < 1)).any() else 1


def draw_map(figure: Any, panels: Any, found: ChunkMap, title: str) -> None:
    """Draw a map into one panel or two: sizes, and the share that exists."""
    n, total = found.total_stored, int(found.n_grid.sum())
    text = f"{title}\n{n:,} of {total:,} inner chunks exist{found.hidden()}"
    panels[0].set_title(text, fontsize=10, pad=22)
    if not found.n_grid.size:
        _empty_panel(panels[0], found)
        return
    sizes = _panel(panels[0], found, found.mean_nbytes, _norm(found.mean_nbytes))
    if n:
        _size_bar(figure, panels[0], sizes)
    if len(panels) > 1:
        from matplotlib.colors import Normalize
        from matplotlib.ticker import PercentFormatter

        share = np.where(found.n_stored > 0, found.share, np.nan)
        mesh = _panel(panels[1], found, share, Normalize(0, 1))
        panels[1].set_title("Share of the inner chunks that exists", fontsize=10, pad=22)
        figure.colorbar(mesh, cax=_beside(panels[1]), format=PercentFormatter(1))


def _empty_panel(panel: Any, found: ChunkMap) -> None:
    panel.set(xticks=[], yticks=[], facecolor=COLORS["absent"])
    text = f"the array has no elements: its shape is {found.shape}"
    panel.text(0.5, 0.5, text, ha="center", va="center", transform=panel.transAxes)


def _size_bar(figure: Any, panel: Any, sizes: Any) -> None:
    """Draw the scale of the sizes."""
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import LogLocator

    norm = sizes.norm
    ticks, text = byte_scale(norm.vmin, norm.vmax)
    if isinstance(norm, LogNorm):
        ticks = LogLocator(base=2)
    bar = figure.colorbar(sizes, cax=_beside(panel), label="encoded inner chunk", ticks=ticks, format=text)
    bar.minorticks_off()


def _beside(panel: Any) -> Any:
    """Return new axes for a scale, which stay beside a panel wherever its aspect places it."""
    (left, right), (bottom, top) = panel.get_xlim(), panel.get_ylim()
    is_square = panel.get_aspect() != "auto"
    tall = max(1.0, abs((top - bottom) / (right - left))) if is_square else 0.5
    return panel.inset_axes((1 + 0.03 * tall, 0, 0.03 * tall, 1))


def _norm(sizes: Any) -> Any:
    from matplotlib.colors import LogNorm, Normalize

    present = sizes[~np.isnan(sizes)]
    low, high = (math.floor(present.min()), math.ceil(present.max())) if present.size else (0, 1)
    if low == high:  # one colour for one size
        return Normalize(0, max(high, 1))
    return LogNorm(low, high) if low > 0 and high > LOG_FACTOR * low else Normalize(low, high)


def _panel(panel: Any, found: ChunkMap, values: Any, norm: Any) -> Any:
    from matplotlib.ticker import MaxNLocator

    is_plane = len(found.axes) > 1
    x = found.edges(len(found.axes) - 1) if found.axes else np.array([0, 1])
    y = found.edges(0) if is_plane else np.array([0, 1])
    cells = np.asarray(values).reshape(len(y) - 1, len(x) - 1)
    panel.set_facecolor(COLORS["absent"])
    # a pattern tells absent inner chunks from light colours, also in print
    panel.patch.set(hatch="////", edgecolor="#B0B0B0", linewidth=0)
    # cells of one size; the last ones reach beyond the array, and the limits below cut them
    right, bottom = x[0] + cells.shape[1] * (x[1] - x[0]), y[0] + cells.shape[0] * (y[1] - y[0])
    mesh = panel.imshow(
        np.ma.masked_invalid(cells),
        cmap="cividis",
        norm=norm,
        extent=(x[0], right, bottom, y[0]),
        interpolation="nearest",
    )
    panel.set_xlim(x[0], x[-1])
    panel.set_ylim(y[-1], y[0])
    panel.set_xlabel(found.label(len(found.axes) - 1) if found.axes else "one element")
    if is_plane:
        panel.set_ylabel(found.label(0))
        panel.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        long, short = max(np.ptp(x), np.ptp(y)), min(np.ptp(x), np.ptp(y))
        # at the top of its place, because the layout reserves the room of the title before the aspect is applied
        panel.set_aspect("equal" if long <= 4 * short else "auto", anchor="N")
    else:
        panel.set_aspect("auto")
        panel.set_yticks([])
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    has_borders = _borders(panel, found)
    _legend(panel, has_absent=bool(np.isnan(cells).any()), has_borders=has_borders)
    return mesh


def _borders(panel: Any, found: ChunkMap) -> bool:
    """Draw the borders of inner chunks, and of shards, where there are few; return True if there are some of shards."""
    is_shown = False
    for shape, color, width in (
        (found.chunk_shape, "white", 0.5),
        (found.shard_shape, COLORS["shard border"], 1.2),
    ):
        if shape is None:
            continue
        for k, axis in enumerate(found.axes):
            at = found.lines(k, shape[axis])
            if len(at) < MAX_LINES:
                draw = panel.axhline if k == 0 and len(found.axes) > 1 else panel.axvline
                for one in at.tolist():
                    draw(one, color=color, linewidth=width if len(at) < 10 else width / 2)
                is_shown |= shape is found.shard_shape and len(at) > 0
    return is_shown


def _legend(panel: Any, *, has_absent: bool, has_borders: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    if has_absent:
        handles.append(Patch(facecolor=COLORS["absent"], edgecolor="#B0B0B0", hatch="////", label="absent"))
    if has_borders:
        handles.append(Line2D([], [], color=COLORS["shard border"], label="border of a shard"))
    if handles:
        where = {"loc": "lower left", "bbox_to_anchor": (0, 1.0)}
        panel.legend(handles=handles, ncols=2, frameon=False, fontsize=8, **where)
