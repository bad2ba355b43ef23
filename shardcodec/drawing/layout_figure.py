# layout_figure.py - the bytes of a shard, and the order of its inner chunks
# SPDX-License-Identifier: MIT
"""`layout_figure`: a figure of where the inner chunks of a shard lie, and in which order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..readable import format_nbytes
from .figures import COLORS, Numbers, byte_scale, new_figure

__all__ = ["draw_layout", "layout_figure"]

# Up to this number, each range is drawn; above it, the share of each kind in columns of bytes.
MAX_RANGES = 300
N_COLUMNS = 1000
N_ROWS = 200


def layout_figure(
    nbytes: int, ranges: Mapping[str, Numbers], places: Numbers, n_chunks: int, title: str
) -> Any:
    """Return a figure of one shard; the arguments are those of `draw_layout`."""
    figure = new_figure(9, 4.6)
    draw_layout(
        figure.subplots(2, 1, sharex=True, height_ratios=[1, 3]), nbytes, ranges, places, n_chunks, title
    )
    return figure


def draw_layout(
    panels: Any, nbytes: int, ranges: Mapping[str, Numbers], places: Numbers, n_chunks: int, title: str
) -> None:
    """Draw the bytes of a shard into two panels.

    Parameters
    ----------
    panels : sequence of two Axes
        For the kinds of bytes, and for the order of the inner chunks.
    nbytes : int
        Size of the shard in bytes.
    ranges : mapping of str to ndarray of int, shape (n, 2)
        For each kind of bytes its offsets and sizes.
    places : ndarray of int, shape (n, 3)
        Position in the index, offset and size of each existing inner chunk.
    n_chunks : int
        Number of inner chunks of a full shard.
    title : str
        Name of the shard.
    """
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    kinds, order = panels
    shown = {kind: spans for kind, spans in ranges.items() if len(spans)}
    if sum(map(len, shown.values())) <= MAX_RANGES:
        _draw_ranges(kinds, shown)
    else:
        _draw_shares(kinds, shown, nbytes)
    kinds.set(ylim=(0, 1), yticks=[], xlim=(0, max(nbytes, 1)))
    kinds.set_title(f"{title}\n{len(places):,} of {n_chunks:,} inner chunks exist", fontsize=10)
    handles = [
        Patch(
            facecolor=COLORS[kind],
            edgecolor="#666666",
            label=f"{kind} ({format_nbytes(int(spans[:, 1].sum()))})",
        )
        for kind, spans in shown.items()
    ]
    kinds.legend(
        handles=handles, loc="lower center", bbox_to_anchor=(0.5, -0.55), ncols=7, frameon=False, fontsize=8
    )
    _draw_order(order, places, n_chunks, nbytes)
    order.set(
        ylim=(n_chunks - 0.5, -0.5), xlabel="offset in the shard (bytes)", ylabel="position in the index"
    )
    order.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    locator, formatter = byte_scale(0, nbytes)
    order.xaxis.set_major_locator(locator)
    order.xaxis.set_major_formatter(formatter)


def _draw_ranges(panel: Any, shown: Mapping[str, Numbers]) -> None:
    for kind, spans in shown.items():
        ordered = spans[np.argsort(spans[:, 0])]
        if kind != "inner chunks":
            panel.broken_barh(ordered.tolist(), (0, 1), facecolor=COLORS[kind])
            continue
        # two shades by turns show where an inner chunk ends
        panel.broken_barh(ordered[::2].tolist(), (0, 1), facecolor=COLORS[kind])
        panel.broken_barh(ordered[1::2].tolist(), (0, 1), facecolor=COLORS["next"])


def _draw_shares(panel: Any, shown: Mapping[str, Numbers], nbytes: int) -> None:
    """Draw for each column of bytes the share of each kind, one above the other."""
    edges = np.linspace(0, nbytes, min(N_COLUMNS, nbytes) + 1)
    shares = [_covered(spans, edges) / np.diff(edges) for spans in shown.values()]
    colors = [COLORS[kind] for kind in shown]
    tops = np.cumsum(shares, axis=0)
    below = np.zeros(len(edges) - 1)
    for top, color in zip(tops, colors, strict=True):
        panel.stairs(top, edges, baseline=below, fill=True, color=color, linewidth=0)
        below = top


def _covered(ranges: Numbers, edges: Numbers) -> Numbers:
    """Return the number of bytes of ranges in each column; ranges do not overlap."""
    ordered = ranges[np.argsort(ranges[:, 0])].astype(float)
    marks = np.stack([ordered[:, 0], ordered.sum(axis=1)], axis=1).reshape(-1)
    done = np.repeat(np.concatenate([[0], np.cumsum(ordered[:, 1])]), 2)[1:-1]
    return np.diff(np.interp(edges, marks, done, left=0, right=ordered[:, 1].sum()))


def _draw_order(panel: Any, places: Numbers, n_chunks: int, nbytes: int) -> None:
    if len(places) <= MAX_RANGES:
        begins, ends = places[:, 1], places[:, 1] + np.maximum(places[:, 2], nbytes / 500)
        width = max(1.5, min(10.0, 150 / max(n_chunks, 1)))
        panel.hlines(places[:, 0], begins, ends, color=COLORS["inner chunks"], linewidth=width)
        return
    from matplotlib.colors import ListedColormap

    middle = places[:, 1] + places[:, 2] / 2
    counts, _, _ = np.histogram2d(middle, places[:, 0], (600, N_ROWS), ((0, nbytes), (-0.5, n_chunks - 0.5)))
    shown = np.ma.masked_equal(np.minimum(counts.T, 1), 0)
    panel.imshow(
        shown,
        cmap=ListedColormap([COLORS["inner chunks"]]),
        extent=(0, nbytes, n_chunks - 0.5, -0.5),
        interpolation="nearest",
        aspect="auto",
    )
