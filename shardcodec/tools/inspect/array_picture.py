# array_picture.py - the picture of `inspect --plot`
# SPDX-License-Identifier: MIT
"""`ArrayPicture`: collects the numbers of a picture while `inspect` goes over the shards, in bounded memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...access.read_indexes import ShardIndex
from ...access.shard_layout import ShardLayout, layout_arguments
from ...drawing.array_figure import array_figure
from ...drawing.figures import check_file, save
from ...drawing.map_figure import ChunkMap
from ..targets import ArrayTarget, ShardTarget

__all__ = ["ArrayPicture"]


class ArrayPicture:
    """Which inner chunks of an array exist and how large they are, and the bytes of the shard with the most dead bytes.

    Parameters
    ----------
    array : ArrayTarget
        The array, or one shard of it.
    file : path-like
        Where to save the picture, with the suffix .png or .svg.
    axes : sequence of (str or int), optional
        Names or numbers of the axes that are shown, one or two of them.

    Raises
    ------
    ValueError
        The file has another suffix, or the array does not have these axes.
    UnsupportedError
        The array is not sharded.
    """

    def __init__(
        self,
        array: ArrayTarget,
        file: str | os.PathLike[str],
        axes: Sequence[str | int] | None = None,
    ) -> None:
        self._file = check_file(file)
        self._array = array
        spec = array.shard_spec
        self._axes = tuple(int(i) for i in np.argsort(spec.chain.perm))
        self._stored_grid = spec.grid_shape
        self._per_shard = tuple(spec.grid_shape[i] for i in self._axes)
        chunk_shape = tuple(spec.chunk_shape[i] for i in self._axes)
        shape, first = spec.shard_shape, (0,) * spec.ndim
        grid = self._per_shard
        if array.layout is not None and array.only is None:
            shape = array.layout.shape
            grid = tuple(-(-n // size) for n, size in zip(shape, chunk_shape, strict=True))
        elif array.layout is not None and array.only is not None and array.only[1] is not None:
            shape = array.layout.shape
            first = self._first(array.only[1])
            ends = (-(-n // size) for n, size in zip(shape, chunk_shape, strict=True))
            grid = tuple(min(n, e - f) for n, e, f in zip(grid, ends, first, strict=True))
        names = array.document.get("dimension_names")
        shown = None if axes is None else _axes_of(axes, len(shape), names)
        self._map = ChunkMap(shape, chunk_shape, first, grid, spec.shard_shape, names, axes=shown)
        self._shard: ShardTarget | None = None
        self._rank = (-1, -1)

    def _first(self, coords: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(at * n for at, n in zip(coords, self._per_shard, strict=True))

    def add(self, one: ShardIndex[ShardTarget]) -> None:
        """Add a sound shard."""
        assert one.entries is not None
        coords = one.shard.coords or (0,) * len(self._axes)
        sizes = one.entries[:, 1].reshape(self._stored_grid).transpose(self._axes)
        self._map.add(self._first(coords), sizes)
        layout: ShardLayout = one.result
        rank = layout.total("dead"), layout.n_stored
        if rank > self._rank:
            self._rank, self._shard = rank, one.shard

    def save(self) -> Any:
        """Draw and save the picture; return the figure.

        Raises
        ------
        ImportError
            matplotlib is not installed.
        """
        shard = None
        if self._shard is not None:
            with self._shard.open() as handle:
                shard = layout_arguments(handle, self._shard.relative)
        return save(array_figure(self._map, self._array.name or self._array.place, shard), self._file)


def _axes_of(axes: Sequence[str | int], ndim: int, names: Sequence[str | None] | None) -> list[int]:
    """Return the numbers of axes that are given by names or numbers."""
    known = {name: axis for axis, name in enumerate(names or ()) if name is not None}
    numbers = {str(axis): axis for axis in range(ndim)}
    found = [known.get(str(axis), numbers.get(str(axis))) for axis in axes]
    chosen = [axis for axis in found if axis is not None]
    if len(chosen) != len(found) or not 1 <= len(set(chosen)) == len(chosen) <= 2:
        shown = ", ".join(known) or "none"
        raise ValueError(
            f"plot_axes: expected one or two different axes of {ndim}, by numbers from 0 or by names ({shown}), got "
            f"{', '.join(map(str, axes))}"
        )
    return chosen
