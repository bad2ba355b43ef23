# map_figure.py - which inner chunks of an array exist, and how large they are
# SPDX-License-Identifier: MIT
"""`map_figure`: a figure of the inner chunks of an array on planes.

`ChunkMap`: the numbers of a picture of at most 400 x 400 cells, whatever the size of the array. A cell covers some inner chunks
of the two shown axes, and all inner chunks along the other axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .figures import COLORS, Ints, Numbers, byte_scale, new_figure

__all__ = ["MAX_CELLS", "ChunkMap", "draw_map", "map_figure", "n_panels"]

MAX_CELLS = 400
ABSENT = 2**64 - 1


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
