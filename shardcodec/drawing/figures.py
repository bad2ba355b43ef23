# figures.py - pictures with matplotlib: maps of inner chunks, the bytes of a shard
# SPDX-License-Identifier: MIT
"""Pictures with matplotlib: maps of inner chunks, the bytes of a shard.

`pyplot` is not used, so no window opens and no backend is chosen.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..readable import format_nbytes

__all__ = [
    "COLORS",
    "MAX_CELLS",
    "SUFFIXES",
    "ChunkMap",
    "array_figure",
    "byte_scale",
    "check_file",
    "draw_layout",
    "draw_map",
    "layout_figure",
    "map_figure",
    "n_panels",
    "new_figure",
    "save",
]

SUFFIXES = (".png", ".svg")

# The colours of Okabe and Ito, which colour-blind people can tell apart, and greys.
COLORS = {
    "inner chunks": "#0072B2",
    "next": "#56B4E9",
    "index": "#E69F00",
    "header": "#009E73",
    "footer": "#CC79A7",
    "padding": "#D9D9D9",
    "unmarked": "#999999",
    "dead": "#000000",
    "absent": "#EEEEEE",
    "shard border": "#D55E00",
}


# ---------------------------------------------------------------- which inner chunks exist and how large they are, on a plane
#
# `ChunkMap`: the numbers of a picture of at most 400 x 400 cells, whatever the size of the array. A cell covers some inner chunks
# of the two shown axes, and all inner chunks along the other axes.

MAX_CELLS = 400
ABSENT = 2**64 - 1

Ints = tuple[int, ...]
Numbers = np.ndarray[Any, Any]


class ChunkMap:
    """Number and encoded sizes of the existing inner chunks in each cell.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array, in elements.
    chunk_shape : tuple of int
        Shape of an inner chunk, in elements.
    first, grid_shape : tuple of int
        The first inner chunk of the region that is shown, and the number of inner chunks along each axis.
    shard_shape : tuple of int, optional
        Shape of a shard, in elements.
    names : sequence of (str or None), optional
        Names of the axes.
    max_cells : int
        Maximum number of cells along an axis.
    axes : sequence of int, optional
        The axes that are shown, one or two of them.

    Attributes
    ----------
    axes : tuple of int
        The axes that are shown, in the order of the array: by default the last two with more than one inner chunk. Fewer for
        an array of rank 0 or 1.
    n_stored, nbytes : ndarray of int64, of the shape of the cells
        Number of existing inner chunks in each cell, and their size in bytes.
    n_grid : ndarray of int64
        Number of inner chunks in each cell, existing or not.
    """

    def __init__(
        self,
        shape: Ints,
        chunk_shape: Ints,
        first: Ints,
        grid_shape: Ints,
        shard_shape: Ints | None = None,
        names: Sequence[str | None] | None = None,
        max_cells: int = MAX_CELLS,
        axes: Sequence[int] | None = None,
    ) -> None:
        self.shape = shape
        self.chunk_shape = chunk_shape
        self.shard_shape = shard_shape
        self.first = first
        self.grid_shape = grid_shape
        last = sorted(range(len(shape)), key=lambda axis: (grid_shape[axis] > 1, axis))[-2:]
        self.axes: Ints = tuple(sorted(last if axes is None else axes))
        self._names = names
        self._steps = tuple(max(1, -(-grid_shape[axis] // max_cells)) for axis in self.axes)
        cells = [-(-grid_shape[axis] // step) for axis, step in zip(self.axes, self._steps, strict=True)]
        self.n_stored: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(cells, np.int64)
        self.nbytes: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(cells, np.int64)
        hidden = math.prod(n for axis, n in enumerate(grid_shape) if axis not in self.axes)
        self.n_grid: np.ndarray[Any, np.dtype[np.int64]] = np.full(cells, hidden, np.int64)
        for k, (axis, step) in enumerate(zip(self.axes, self._steps, strict=True)):
            along = np.diff(np.minimum(np.arange(cells[k] + 1) * step, grid_shape[axis]))
            self.n_grid *= along.reshape([-1 if k == i else 1 for i in range(len(cells))])

    def add(self, place: Ints, sizes: Numbers) -> None:
        """Add a block of inner chunks.

        Parameters
        ----------
        place : tuple of int
            Coordinates of its first inner chunk.
        sizes : ndarray of uint64
            Encoded sizes in bytes along the axes of the array; 2^64-1 for an absent inner chunk. Inner chunks outside of
            the region are ignored.
        """
        begin = [max(f - p, 0) for p, f in zip(place, self.first, strict=True)]
        ends = [f + n - p for p, f, n in zip(place, self.first, self.grid_shape, strict=True)]
        sizes = sizes[tuple(slice(b, max(b, e)) for b, e in zip(begin, ends, strict=True))]
        if not sizes.size:
            return
        hidden = tuple(axis for axis in range(sizes.ndim) if axis not in self.axes)
        exists = sizes != ABSENT
        counts = np.atleast_1d(exists.sum(axis=hidden, dtype=np.int64))
        nbytes = np.atleast_1d(np.where(exists, sizes, 0).sum(axis=hidden, dtype=np.int64))
        where = []
        for k, (axis, step) in enumerate(zip(self.axes, self._steps, strict=True)):
            at = place[axis] + begin[axis] - self.first[axis] + np.arange(sizes.shape[axis])
            where.append((at // step).reshape([-1 if k == i else 1 for i in range(len(self.axes))]))
        index = tuple(where) or (np.zeros(1, np.intp),)
        np.add.at(np.atleast_1d(self.n_stored), index, counts)
        np.add.at(np.atleast_1d(self.nbytes), index, nbytes)

    @property
    def total_stored(self) -> int:
        """Number of all existing inner chunks."""
        return int(self.n_stored.sum())

    @property
    def share(self) -> Numbers:
        """Share of the inner chunks of each cell that exist."""
        share: Numbers = self.n_stored / np.maximum(self.n_grid, 1)
        return share

    @property
    def mean_nbytes(self) -> Numbers:
        """Mean encoded size of the existing inner chunks of each cell, in bytes; NaN without any."""
        with np.errstate(invalid="ignore"):
            return np.where(self.n_stored > 0, self.nbytes / np.maximum(self.n_stored, 1), np.nan)

    def edges(self, k: int) -> Numbers:
        """Return the edges of the cells along a shown axis, in elements of the array."""
        axis, step = self.axes[k], self._steps[k]
        first, n = self.first[axis], self.grid_shape[axis]
        cells = np.minimum(np.arange(self.n_stored.shape[k] + 1) * step, n) + first
        edges: Numbers = np.minimum(cells * self.chunk_shape[axis], max(self.shape[axis], 1))
        return edges

    def lines(self, k: int, size: int) -> Numbers:
        """Return the multiples of `size` elements inside of the region, along a shown axis."""
        low, high = self.edges(k)[[0, -1]].tolist()
        return np.arange(-(-(low + 1) // size), -(-high // size)) * size

    def label(self, k: int) -> str:
        """Return the label of a shown axis."""
        name = self._names[self.axes[k]] if self._names else None
        return f"{name or f'axis {self.axes[k]}'} (elements)"

    def hidden(self) -> str:
        """Return the words of the title about the axes that are not shown; empty if there are none."""
        axes = [axis for axis, n in enumerate(self.grid_shape) if axis not in self.axes and n > 1]
        if not axes:
            return ""
        names = [(self._names[axis] if self._names else None) or str(axis) for axis in axes]
        return (
            f"; mean along axis {', '.join(names)}"
            if len(names) == 1
            else f"; mean along axes {', '.join(names)}"
        )


# ---------------------------------------------------------------- pictures


def check_file(file: str | os.PathLike[str]) -> Path:
    """Return the path of a picture.

    Raises
    ------
    ValueError
        Its suffix is not .png or .svg.
    """
    path = Path(file)
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(
            f"file: expected the name of a picture that ends with {' or '.join(SUFFIXES)}, got {str(file)!r}"
        )
    return path


def new_figure(width: float, height: float, layout: Any = "compressed") -> Any:
    """Return an empty figure; sizes in inches, `layout` as matplotlib names it.

    Raises
    ------
    ImportError
        matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "pictures need matplotlib (extra plot); install it with: pip install matplotlib"
        ) from error
    return Figure(figsize=(width, height), layout=layout)


def save(figure: Any, file: str | os.PathLike[str] | None) -> Any:
    """Save a figure if `file` is not None; return the figure."""
    if file is not None:
        # a long title may be wider than the figure
        figure.savefig(check_file(file), dpi=150, bbox_inches="tight", pad_inches=0.1)
    return figure


# ---------------------------------------------------------------- numbers of bytes in units of 1024

# Maximum number of steps between the ticks of an axis.
MAX_STEPS = 8


def byte_scale(low: float, high: float) -> tuple[Any, Any]:
    """Return locator and formatter of matplotlib for an axis of bytes: ticks at round numbers in units of 1024."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    step = 2 ** max(0, math.ceil(math.log2(max(high - low, 1) / MAX_STEPS)))
    digits = max(3, math.ceil(math.log10(max(high, 1) / step)) + 1)  # enough to tell two ticks apart
    return MultipleLocator(step), FuncFormatter(lambda nbytes, _: format_nbytes(nbytes, digits))


# ---------------------------------------------------------------- the bytes of a shard, and the order of its inner chunks

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


# ---------------------------------------------------------------- which inner chunks exist, and how large they are

# Lines between inner chunks, or between shards, are drawn up to this number along an axis.
MAX_LINES = 40
# Sizes that differ by more than this factor get a logarithmic scale.
LOG_FACTOR = 50


def map_figure(chunks: ChunkMap, title: str) -> Any:
    """Return a figure with the sizes of the inner chunks and, if a cell exists in part, the share that exists."""
    n = n_panels(chunks)
    figure = new_figure(12 if n > 1 else 7, 5.2 if len(chunks.axes) > 1 else 2.6)
    draw_map(figure, figure.subplots(1, n, squeeze=False)[0], chunks, title)
    return figure


def n_panels(chunks: ChunkMap) -> int:
    """Return the number of panels of a map: 2 if a cell exists in part, else 1."""
    return 2 if ((chunks.share > 0) & (chunks.share < 1)).any() else 1


def draw_map(figure: Any, panels: Any, chunks: ChunkMap, title: str) -> None:
    """Draw a map into one panel or two: sizes, and the share that exists."""
    n, total = chunks.total_stored, int(chunks.n_grid.sum())
    text = f"{title}\n{n:,} of {total:,} inner chunks exist{chunks.hidden()}"
    panels[0].set_title(text, fontsize=10, pad=22)
    if not chunks.n_grid.size:
        _empty_panel(panels[0], chunks)
        return
    sizes = _panel(panels[0], chunks, chunks.mean_nbytes, _norm(chunks.mean_nbytes))
    if n:
        _size_bar(figure, panels[0], sizes)
    if len(panels) > 1:
        from matplotlib.colors import Normalize
        from matplotlib.ticker import PercentFormatter

        share = np.where(chunks.n_stored > 0, chunks.share, np.nan)
        mesh = _panel(panels[1], chunks, share, Normalize(0, 1))
        panels[1].set_title("Share of the inner chunks that exists", fontsize=10, pad=22)
        figure.colorbar(mesh, cax=_beside(panels[1]), format=PercentFormatter(1))


def _empty_panel(panel: Any, chunks: ChunkMap) -> None:
    panel.set(xticks=[], yticks=[], facecolor=COLORS["absent"])
    text = f"the array has no elements: its shape is {chunks.shape}"
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
    """Return new axes for a scale, which stay beside a panel whatever its aspect."""
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


def _panel(panel: Any, chunks: ChunkMap, values: Any, norm: Any) -> Any:
    from matplotlib.ticker import MaxNLocator

    is_plane = len(chunks.axes) > 1
    x = chunks.edges(len(chunks.axes) - 1) if chunks.axes else np.array([0, 1])
    y = chunks.edges(0) if is_plane else np.array([0, 1])
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
    panel.set_xlabel(chunks.label(len(chunks.axes) - 1) if chunks.axes else "one element")
    if is_plane:
        panel.set_ylabel(chunks.label(0))
        panel.yaxis.set_major_locator(MaxNLocator(6, integer=True))
        long, short = max(np.ptp(x), np.ptp(y)), min(np.ptp(x), np.ptp(y))
        # at the top of its place, because the layout reserves the room of the title before the aspect is applied
        panel.set_aspect("equal" if long <= 4 * short else "auto", anchor="N")
    else:
        panel.set_aspect("auto")
        panel.set_yticks([])
    panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    has_borders = _borders(panel, chunks)
    _legend(panel, has_absent=bool(np.isnan(cells).any()), has_borders=has_borders)
    return mesh


def _borders(panel: Any, chunks: ChunkMap) -> bool:
    """Draw the borders of inner chunks and of shards, where there are few; return True if a border of a shard is drawn."""
    is_shown = False
    for shape, color, width in (
        (chunks.chunk_shape, "white", 0.5),
        (chunks.shard_shape, COLORS["shard border"], 1.2),
    ):
        if shape is None:
            continue
        for k, axis in enumerate(chunks.axes):
            at = chunks.lines(k, shape[axis])
            if len(at) < MAX_LINES:
                draw = panel.axhline if k == 0 and len(chunks.axes) > 1 else panel.axvline
                for position in at.tolist():
                    draw(position, color=color, linewidth=width if len(at) < 10 else width / 2)
                is_shown |= shape is chunks.shard_shape and len(at) > 0
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


# ---------------------------------------------------------------- an array above the bytes of one of its shards


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
