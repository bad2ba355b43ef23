# shard_grid.py - which inner chunks of an array exist, from the indexes of its shards alone
# SPDX-License-Identifier: MIT
"""The state of an array's inner chunks, as plain numbers.

Everything here is in the array's axes. A shard's index counts along the axes behind transposes that precede the sharding
codec; `ShardGrid.block` turns it round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import cancel, native
from ..errors import ShardError
from ..format.spec import ShardSpec
from ..options import Options
from ..storage.retry import Patience
from .chunk_codec import compiled
from .encode_decode import parse_selection
from .placement import ABSENT
from .read import explain

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["BATCH_NBYTES", "ChunkState", "ShardGrid", "scan_files"]

# Indexes, decoded to sizes, that are held at a time.
BATCH_NBYTES = 32 << 20
BATCH_SHARDS = 512
# Inner chunks whose coordinates are held at a time.
ITER_CHUNKS = 1 << 16

Ints = tuple[int, ...]
Sizes = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, eq=False)
class ChunkState:
    """Which inner chunks of a region exist, and how big they are.

    Attributes
    ----------
    exists : ndarray of bool
        One element for each inner chunk that the region touches.
    nbytes : ndarray of uint64
        Encoded sizes; 0 where there is none.
    first : tuple of int
        Coordinates of the first of these inner chunks in the array's grid.
    chunk_shape : tuple of int
        Shape of an inner chunk, in elements.
    """

    exists: np.ndarray[Any, np.dtype[np.bool_]]
    nbytes: Sizes
    first: Ints
    chunk_shape: Ints

    def iter_existing(self) -> Iterator[Ints]:
        """Yield the coordinates of inner chunks that exist, in C order; they count from the array's first."""
        flat = self.exists.reshape(-1)
        for low in range(
            0, flat.size, ITER_CHUNKS
        ):  # places of all at a time are more than all that is held here
            found = np.flatnonzero(flat[low : low + ITER_CHUNKS]) + low
            axes = np.unravel_index(found, self.exists.shape) if self.first else ()
            at = [(axis + first).tolist() for axis, first in zip(axes, self.first, strict=True)]
            yield from zip(*at, strict=True) if at else [()] * len(found)

    def regions(self) -> Iterator[tuple[slice, ...]]:
        """Yield the elements of each inner chunk that exists, as a selection of the array."""
        for at in self.iter_existing():
            yield tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, self.chunk_shape, strict=True))


class ShardGrid:
    """The inner chunks that a region of an array touches, and the shards that hold them.

    Parameters
    ----------
    spec : ShardSpec
    shape : tuple of int
        Of the array.
    region
        Integers and slices, as in ``array[region]``; None for all.
    """

    def __init__(self, spec: ShardSpec, shape: Ints, region: Any) -> None:
        self.spec = spec
        self._shape = shape
        self.chain = compiled(spec.chain)
        self._axes = tuple(
            int(i) for i in np.argsort(self.chain.perm)
        )  # stored axis of each axis of the array
        self.chunk_shape = tuple(spec.chunk_shape[i] for i in self._axes)
        self.per_shard = tuple(spec.grid_shape[i] for i in self._axes)
        box, _, _ = parse_selection(region, shape)
        step = box.step or (1,) * len(shape)
        ends = [s + (n - 1) * k + 1 if n else s for s, n, k in zip(box.start, box.count, step, strict=True)]
        if 0 in box.count:
            ends = list(box.start)
        self.first = tuple(s // c for s, c in zip(box.start, self.chunk_shape, strict=True))
        self.end = tuple(
            -(-e // c) if e > s else s // c for s, e, c in zip(box.start, ends, self.chunk_shape, strict=True)
        )
        self.shape = tuple(max(0, e - f) for f, e in zip(self.first, self.end, strict=True))
        self._shards = [
            range(f // n, -(-e // n) if e > f else f // n)
            for f, e, n in zip(self.first, self.end, self.per_shard, strict=True)
        ]

    @property
    def n_all_shards(self) -> int:
        """Number of shards of the array."""
        return math.prod(
            -(-n // (c * k)) for n, c, k in zip(self._shape, self.chunk_shape, self.per_shard, strict=True)
        )

    @property
    def n_shards(self) -> int:
        """Number of shards that the region touches."""
        return math.prod(len(axis) for axis in self._shards)

    def batches(self) -> Iterator[list[Ints]]:
        """Yield the shards' coordinates, as many at a time as fit the memory set aside for them."""
        n = min(BATCH_SHARDS, max(1, BATCH_NBYTES // (8 * self.chain.n_chunks)))
        shards = itertools.product(*self._shards)
        while batch := list(itertools.islice(shards, n)):
            yield batch

    def block(self, shard: Ints, sizes: Sizes) -> tuple[tuple[slice, ...], Sizes]:
        """Cut the part of a shard's sizes that belongs to the region; and where it goes in an array of that shape."""
        block = sizes.reshape(self.spec.grid_shape).transpose(self._axes)
        low = [s * n for s, n in zip(shard, self.per_shard, strict=True)]
        begin = [max(a, f) for a, f in zip(low, self.first, strict=True)]
        end = [min(a + n, e) for a, n, e in zip(low, self.per_shard, self.end, strict=True)]
        part = tuple(slice(b - a, e - a) for a, b, e in zip(low, begin, end, strict=True))
        place = tuple(slice(b - f, e - f) for f, b, e in zip(self.first, begin, end, strict=True))
        return place, block[part]

    def existing(self, shard: Ints, sizes: Sizes) -> Iterator[tuple[Ints, int]]:
        """Yield coordinates and size of each inner chunk of a shard that exists and belongs to the region."""
        place, block = self.block(shard, sizes)
        offsets = [p.start + f for p, f in zip(place, self.first, strict=True)]
        for at in np.argwhere(block != ABSENT):
            coords = tuple(int(i) + o for i, o in zip(at, offsets, strict=True))
            yield coords, int(block[tuple(at)])

    def collect(self) -> tuple[Sizes, ChunkState]:
        """Make an empty result, and the array of sizes that it is made of."""
        sizes = np.zeros(self.shape, dtype=np.uint64)
        exists = np.zeros(self.shape, dtype=np.bool_)
        return sizes, ChunkState(exists, sizes, self.first, self.chunk_shape)


class _Named:
    def __init__(self, chain: Chain, key: str) -> None:
        self.chain, self.key = chain, key


def scan_files(chain: Chain, sources: Sequence[Any], keys: Sequence[str], options: Options) -> Sizes:
    """Read the indexes of shards in files or in memory, in one native call.

    Parameters
    ----------
    chain
        Compiled chain of a shard.
    sources : sequence of str, buffer or None
    keys : sequence of str
        How errors name them.

    Returns
    -------
    ndarray of uint64, shape (n, n_chunks)
        Encoded sizes, 2^64-1 where an inner chunk is absent.

    Raises
    ------
    ShardFormatError, ChecksumError
        An index is damaged, or one of its entries cannot be true.
    """
    sizes = np.empty((len(sources), chain.n_chunks), dtype=np.uint64)
    patience = Patience()
    while True:
        try:
            native.load().scan(
                chain,
                sources,
                sizes,
                n_threads=options.threads,
                allow_in_index=options.allow_in_index,
                cancel=cancel.current(),
            )
        except ShardError as error:
            raise explain(error, [_Named(chain, key) for key in keys]) from None
        except OSError as error:
            patience.wait(error)
        else:
            if not patience.misses(s for s, own in zip(sources, sizes, strict=True) if (own == ABSENT).all()):
                return sizes
