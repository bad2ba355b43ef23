# grouping.py - which shards are written together, so that memory suffices and the source is read seldom
# SPDX-License-Identifier: MIT
"""`Grouping`: the unit of work of one array, chosen by arithmetic on shapes.

A group is a box of shards. If its edges are edges of source chunks, each source chunk is read once. If not even one shard
fits into memory, it is written piece by piece, each piece a box of inner chunks.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...readable import format_nbytes
from .source import Ints

__all__ = [
    "INDEX_NBYTES",
    "Geometry",
    "Grouping",
    "encode_grouping",
    "move_grouping",
    "move_nbytes",
    "parts_of_axis",
]

# Small shards are written together up to this size, so that a unit of work is worth its administration.
UNIT_NBYTES = 64 << 20
# Candidates for the shape of a group along one axis.
MAX_CANDIDATES = 6
# Bytes of encoded chunks that a move reads at a time, at most; memory for each entry of an index and its chunk's position.
MOVE_NBYTES = 16 << 20
INDEX_NBYTES = 256


@dataclass(frozen=True)
class Geometry:
    """The shapes of one conversion, by axis of the array.

    Attributes
    ----------
    shape, shard, chunk : tuple of int
        Shapes of the array, of a new shard and of a new inner chunk, in elements.
    source : tuple of int or None
        Shape of a source chunk; None if any box costs its own bytes only.
    itemsize : int
    n_copies : int
        Arrays of the size of a group that a read needs.
    extra_shards : int
        Further decoded shards that verification holds.
    n_threads : int
    held_nbytes : int
        Memory of a new shard while the store takes it.
    n_workers : int
        Small shards are grouped in such a way that each worker gets some groups.
    """

    shape: Ints
    shard: Ints
    chunk: Ints
    source: Ints | None
    itemsize: int
    n_copies: int = 1
    extra_shards: int = 0
    n_threads: int = 1
    n_workers: int = 1
    held_nbytes: int = 0

    @property
    def unit_nbytes(self) -> int:
        """Size up to which small shards are grouped."""
        return min(UNIT_NBYTES, self.nbytes(self.shape) // (4 * self.n_workers))

    @property
    def grid(self) -> Ints:
        """Number of shards along each axis."""
        return tuple(-(-n // size) for n, size in zip(self.shape, self.shard, strict=True))

    def nbytes(self, shape: Ints) -> int:
        """Return the size of decoded elements in bytes."""
        return math.prod(shape) * self.itemsize

    @property
    def extra_nbytes(self) -> int:
        """Memory beside the elements: for each thread a source chunk, and an inner chunk before and after encoding."""
        source = 0 if self.source is None else self.nbytes(self.source)
        return self.n_threads * (source + 2 * self.nbytes(self.chunk)) + self.held_nbytes


@dataclass(frozen=True)
class Grouping:
    """The unit of work of one array.

    Attributes
    ----------
    shards : tuple of int
        Shards of a group along each axis.
    piece : tuple of int or None
        Inner chunks of a piece along each axis, if a shard is written piece by piece.
    need_nbytes : int
        Memory of one unit in bytes.
    amplification : float
        Decoded bytes of the source chunks that are read, divided by those of the array.
    """

    shards: Ints
    piece: Ints | None
    need_nbytes: int
    amplification: float


def move_nbytes(chunk_nbytes: int, held_nbytes: int, memory: int, n_threads: int) -> int:
    """Return the encoded bytes that one of `n_threads` moves holds.

    `held_nbytes` is the memory of the index and of what the store takes, `memory` that of all threads.
    """
    return max(chunk_nbytes, min(MOVE_NBYTES, (memory - held_nbytes) // (4 * n_threads)))


def move_grouping(geometry: Geometry, memory: int) -> Grouping:
    """Group shards whose inner chunks are moved; an inner chunk must fit into `memory` twice."""
    chunk = geometry.nbytes(geometry.chunk)
    n_chunks = math.prod(a // b for a, b in zip(geometry.shard, geometry.chunk, strict=True))
    held = geometry.held_nbytes + INDEX_NBYTES * n_chunks
    need = 2 * move_nbytes(chunk, held, memory, geometry.n_threads) + held
    if need > memory:
        raise ValueError(
            f"memory: expected at least {format_nbytes(need)} for an inner chunk of {geometry.chunk} and the index of a shard, "
            f"got {format_nbytes(memory)}"
        )
    shards = _grown((1,) * len(geometry.grid), geometry, geometry.unit_nbytes)
    return Grouping(shards, None, need, 1.0)


def encode_grouping(geometry: Geometry, memory: int) -> Grouping:
    """Group shards whose elements are decoded and encoded; one inner chunk must fit into `memory`."""
    candidates: list[tuple[float, int, Ints]] = []
    for shards in itertools.product(*map(_candidates, range(len(geometry.grid)), itertools.repeat(geometry))):
        need = _need(geometry, shards)
        if need <= memory:
            candidates.append((round(_amplification(geometry, shards, None), 6), need, shards))
    if not candidates:
        return _in_pieces(geometry, memory)
    _, _, shards = min(candidates)
    room = min(
        geometry.unit_nbytes,
        (memory - geometry.extra_nbytes) // (2 * geometry.n_threads * geometry.n_copies),
    )
    shards = _grown(shards, geometry, room)
    return Grouping(shards, None, _need(geometry, shards), _amplification(geometry, shards, None))


def _need(geometry: Geometry, shards: Ints) -> int:
    box = tuple(n * size for n, size in zip(shards, geometry.shard, strict=True))
    elements = geometry.n_copies * geometry.nbytes(box) + geometry.extra_shards * geometry.nbytes(
        geometry.shard
    )
    return elements + geometry.extra_nbytes


def _candidates(axis: int, geometry: Geometry) -> list[int]:
    """Return numbers of shards along an axis: up to the first that ends where a source chunk ends."""
    most = geometry.grid[axis]
    if geometry.source is None or most <= 1:
        return [1]
    size = geometry.shard[axis]
    aligned = min(most, math.lcm(size, geometry.source[axis]) // size)
    counts = {1, aligned}
    n = aligned
    while len(counts) < MAX_CANDIDATES and n > 1:
        n = -(-n // 2)
        counts.add(n)
    return sorted(counts)


def _grown(shards: Ints, geometry: Geometry, nbytes: int) -> Ints:
    """Return a larger group of small shards, along the last axes first."""
    counts = list(shards)
    for axis in reversed(range(len(counts))):
        unit = geometry.nbytes(tuple(n * size for n, size in zip(counts, geometry.shard, strict=True)))
        counts[axis] *= max(1, nbytes // max(1, unit))
        counts[axis] = min(counts[axis], max(1, geometry.grid[axis]))
    return tuple(counts)


def _in_pieces(geometry: Geometry, memory: int) -> Grouping:
    """Divide a shard into pieces; the longest side is halved until a piece fits."""
    counts = [a // b for a, b in zip(geometry.shard, geometry.chunk, strict=True)]
    while True:
        piece = tuple(n * size for n, size in zip(counts, geometry.chunk, strict=True))
        # the elements, their copy by inner chunks, and the encoded bytes
        need = (geometry.n_copies + 2 + bool(geometry.extra_shards)) * geometry.nbytes(piece)
        need += geometry.extra_nbytes
        if need <= memory:
            break
        if max(counts) == 1:
            raise ValueError(
                f"memory: expected at least {format_nbytes(need)} to convert one inner chunk of {geometry.chunk} with "
                f"{geometry.n_threads} threads, got {format_nbytes(memory)}; allow more memory, fewer threads or smaller chunks"
            )
        axis = counts.index(max(counts))
        counts[axis] = -(-counts[axis] // 2)
    shard = (1,) * len(geometry.grid)
    return Grouping(shard, tuple(counts), need, _amplification(geometry, shard, tuple(counts)))


def _amplification(geometry: Geometry, shards: Ints, piece: Ints | None) -> float:
    if geometry.source is None or 0 in geometry.shape:
        return 1.0
    total = 1.0
    for axis, (n, source) in enumerate(zip(geometry.shape, geometry.source, strict=True)):
        group = geometry.shard[axis] * shards[axis]
        step = group if piece is None else piece[axis] * geometry.chunk[axis]
        total *= _touched(n, group, step, source) / n
    return total


@functools.lru_cache(maxsize=4096)
def _touched(n: int, group: int, step: int, source: int) -> int:
    """Return the elements of source chunks that are read along an axis of `n` elements, those that are read twice counted twice.

    `step` elements of a `group` are read together; a chunk has `source` elements.
    """
    low, high = parts_of_axis(n, group, step)
    return int((np.minimum(n, -(-high // source) * source) - low // source * source).sum())


def parts_of_axis(n: int, group: int, step: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return first elements and ends of the parts of an axis of `n` elements: each `group` is divided into `step` elements."""
    inside = np.arange(0, min(group, n), step, dtype=np.int64)
    starts = np.arange(0, n, group, dtype=np.int64)[:, None]
    low = (starts + inside).ravel()
    high = np.minimum(np.minimum(starts + inside + step, starts + group).ravel(), n)
    return low[low < n], high[low < n]
