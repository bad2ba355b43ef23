# pictures.py - pictures and tables of the handles
# SPDX-License-Identifier: MIT
"""The bodies of ``plot`` and ``_repr_html_`` of `Shard`, `Array` and `ChunkState`: from their data to `drawing`.

Those modules import this one, so `shard` (a `ShardReader`) and `state` (a `ChunkState`) have no types here.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..drawing.figures import check_file, save
from ..drawing.html import MAX_SVG_CELLS, map_svg
from ..drawing.layout_figure import layout_figure
from ..drawing.map_figure import MAX_CELLS, ChunkMap, map_figure
from ..errors import ShardError
from ..readable import facts_table
from .placement import ABSENT
from .shard_layout import layout_arguments

__all__ = ["html_of_shard", "html_of_state", "map_of_state", "plot_layout", "plot_map"]

File = str | os.PathLike[str] | None


def plot_map(chunk_map: ChunkMap, title: str, file: File) -> Any:
    """Draw a map, save it if there is a file, and return the figure."""
    if file is not None:
        check_file(file)
    return save(map_figure(chunk_map, title), file)


def map_of_state(state: Any, max_cells: int = MAX_CELLS) -> ChunkMap:
    """Return the map of a `ChunkState`."""
    grid = state.exists.shape
    ends = tuple(
        (first + n) * size for first, n, size in zip(state.first, grid, state.chunk_shape, strict=True)
    )
    shape = state.array_shape or ends
    chunk_map = ChunkMap(shape, state.chunk_shape, state.first, grid, state.shard_shape, None, max_cells)
    for at in range(grid[0]) if grid else (0,):  # row by row: the map needs a copy of each block
        rows = (slice(at, at + 1),) if grid else ()
        sizes = np.where(state.exists[rows], state.nbytes[rows], np.uint64(ABSENT))
        chunk_map.add((state.first[0] + at, *state.first[1:]) if grid else (), sizes)
    return chunk_map


def html_of_state(state: Any) -> str:
    """Return the table and the map of a `ChunkState`."""
    n = int(np.count_nonzero(state.exists))
    total = int(state.nbytes.sum(dtype=np.uint64))
    rows = [
        ("grid", f"{state.exists.shape} inner chunks of {state.chunk_shape}"),
        ("exist", f"{n:,} of {state.exists.size:,}"),
        ("encoded", f"{total:,} bytes"),
    ]
    return facts_table("ChunkState", rows, map_svg(map_of_state(state, MAX_SVG_CELLS)))


def plot_layout(shard: Any, file: File) -> Any:
    """Draw the bytes of a shard, save the figure if there is a file, and return it."""
    if file is not None:
        check_file(file)
    return save(layout_figure(*layout_arguments(shard, shard.key)), file)


def html_of_shard(shard: Any) -> str:
    """Return the table and the map of a shard; a shard that cannot be read gets its error as a row."""
    grid = shard.grid_shape
    rows = [("grid", f"{grid} inner chunks of {shard.spec.chunk_shape}"), ("elements", str(shard.spec.dtype))]
    picture = ""
    try:
        state = shard.state()
        rows += [
            ("exist", f"{int(state.sum()):,} of {state.size:,}"),
            ("object", f"{shard.nbytes:,} bytes" if shard.exists else "does not exist"),
        ]
        chunk_map = ChunkMap(
            shard.spec.stored_shape, shard.spec.chunk_shape, (0,) * len(grid), grid, max_cells=MAX_SVG_CELLS
        )
        chunk_map.add((0,) * len(grid), shard.index[..., 1])
        picture = map_svg(chunk_map)
    except (ShardError, OSError) as error:
        rows.append(("error", str(error)))
    return facts_table(f"{type(shard).__name__} {shard.key}", rows, picture)
