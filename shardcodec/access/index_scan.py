# index_scan.py - the sizes of the inner chunks of many shards
# SPDX-License-Identifier: MIT
"""`sizes_of`: which inner chunks of many shards exist, and how large they are; a damaged index is an error.

Coordinates here are along the axes of the array. The index of a shard has the axes after the transposes that come before
the sharding codec; `ShardGrid.block` reorders them.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..arguments import checked
from ..compat import on_zarrs_loop
from ..errors import ShardError
from ..format.spec import ShardSpec
from ..options import Options
from ..storage.event_loop import all_of
from ..storage.retry import Patience, retry
from ..storage.store import Store
from .compiled_chains import compiled
from .limited_remote import LimitedRemote
from .placement import ABSENT
from .read import explain, path_of
from .remote_index import IndexLoader
from .selection import parse_selection

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["BATCH_NBYTES", "ChunkState", "ShardGrid", "Sizes", "scan_files", "sizes_of"]

# Bounds of one batch of indexes in memory: bytes of the sizes, and number of shards.
BATCH_NBYTES = 32 << 20
BATCH_SHARDS = 512
# Inner chunks whose coordinates are in memory at the same time.
ITER_CHUNKS = 1 << 16

Ints = tuple[int, ...]
Sizes = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True, eq=False)
class ChunkState:
    """Existence and sizes of the inner chunks that a region of an array touches.

    Parameters
    ----------
    exists : ndarray of bool
        One flag for each inner chunk, True if it exists.
    nbytes : ndarray of uint64
        Encoded sizes in bytes; 0 for an absent inner chunk.
    first : tuple of int
        Coordinates of the first of these inner chunks in the grid of the array.
    chunk_shape : tuple of int
        Shape of an inner chunk, in elements.
    array_shape, shard_shape : tuple of int or None
        Shape of the array and of a shard, in elements, for pictures.

    Examples
    --------
    >>> state = shardcodec.chunk_state("a.zarr", region=np.s_[:2])
    >>> state.exists.tolist(), state.first
    ([[True, True]], (0, 0))
    >>> len(list(state.iter_existing()))
    2
    """

    exists: np.ndarray[Any, np.dtype[np.bool_]]
    nbytes: Sizes
    first: Ints
    chunk_shape: Ints
    array_shape: Ints | None = None
    shard_shape: Ints | None = None

    def __repr__(self) -> str:
        n_existing = int(np.count_nonzero(self.exists))
        total = int(self.nbytes.sum(dtype=np.uint64))
        return f"<ChunkState: {n_existing} of {self.exists.size} inner chunks of {self.chunk_shape} exist, {total} bytes>"

    @checked
    def plot(self, file: str | os.PathLike[str] | None = None) -> Any:
        """Draw which inner chunks exist and how large they are, over the elements of the array.

        The last two axes with more than one inner chunk are shown; the other axes are averaged. It needs matplotlib.

        Parameters
        ----------
        file : path-like, optional
            A file to save the picture, with the suffix .png or .svg.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        ImportError
            matplotlib is not installed.
        ValueError
            The file has another suffix.
        """
        from . import pictures  # here, because few programs draw

        return pictures.plot_map(pictures.map_of_state(self), "chunk_state", file)

    def _repr_html_(self) -> str:
        from . import pictures  # here, because few programs draw

        return pictures.html_of_state(self)

    def iter_existing(self) -> Iterator[Ints]:
        """Yield the coordinates of existing inner chunks in the grid of the array, in C order.

        Yields
        ------
        tuple of int
        """
        flat = self.exists.reshape(-1)
        # in steps: the coordinates of all inner chunks take more memory than this object
        for low in range(0, flat.size, ITER_CHUNKS):
            positions = np.flatnonzero(flat[low : low + ITER_CHUNKS]) + low
            axes = np.unravel_index(positions, self.exists.shape) if self.first else ()
            at = [(axis + first).tolist() for axis, first in zip(axes, self.first, strict=True)]
            yield from zip(*at, strict=True) if at else [()] * len(positions)

    def regions(self) -> Iterator[tuple[slice, ...]]:
        """Yield the elements of each existing inner chunk, as a selection of the array.

        Yields
        ------
        tuple of slice
        """
        for at in self.iter_existing():
            yield tuple(slice(i * n, (i + 1) * n) for i, n in zip(at, self.chunk_shape, strict=True))


class ShardGrid:
    """The inner chunks that a region of an array touches, and the shards that contain them; a region of None is the whole array."""

    def __init__(self, spec: ShardSpec, shape: Ints, region: Any) -> None:
        self.spec = spec
        self._shape = shape
        self.chain: Chain = compiled(spec.chain)
        # for each axis of the array its stored axis
        self._axes = tuple(int(i) for i in np.argsort(self.chain.perm))
        self.chunk_shape: tuple[int, ...] = tuple(spec.chunk_shape[i] for i in self._axes)
        self.per_shard: tuple[int, ...] = tuple(spec.grid_shape[i] for i in self._axes)
        box, _, _ = parse_selection(region, shape)
        step = box.step or (1,) * len(shape)
        ends = [s + (n - 1) * k + 1 if n else s for s, n, k in zip(box.start, box.count, step, strict=True)]
        if 0 in box.count:
            ends = list(box.start)
        self.first: tuple[int, ...] = tuple(s // c for s, c in zip(box.start, self.chunk_shape, strict=True))
        self.end: tuple[int, ...] = tuple(
            -(-e // c) if e > s else s // c for s, e, c in zip(box.start, ends, self.chunk_shape, strict=True)
        )
        self.shape: tuple[int, ...] = tuple(max(0, e - f) for f, e in zip(self.first, self.end, strict=True))
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
        """Yield lists of coordinates of shards whose indexes fit into `BATCH_NBYTES`."""
        n = min(BATCH_SHARDS, max(1, BATCH_NBYTES // (8 * self.chain.n_chunks)))
        shards = itertools.product(*self._shards)
        while batch := list(itertools.islice(shards, n)):
            yield batch

    def block(self, shard: Ints, sizes: Sizes) -> tuple[tuple[slice, ...], Sizes]:
        """Select the sizes of one shard that belong to the region.

        sizes: shape (n_chunks,), in the order of the index. Returns the place of the selected sizes in an array over the
        region, and the sizes along the axes of the array.
        """
        block = sizes.reshape(self.spec.grid_shape).transpose(self._axes)
        low = [s * n for s, n in zip(shard, self.per_shard, strict=True)]
        begin = [max(a, f) for a, f in zip(low, self.first, strict=True)]
        end = [min(a + n, e) for a, n, e in zip(low, self.per_shard, self.end, strict=True)]
        part = tuple(slice(b - a, e - a) for a, b, e in zip(low, begin, end, strict=True))
        place = tuple(slice(b - f, e - f) for f, b, e in zip(self.first, begin, end, strict=True))
        return place, block[part]

    def collect(self) -> tuple[Sizes, ChunkState]:
        """Return the array of sizes, and a result without existing inner chunks that refers to this array."""
        sizes = np.zeros(self.shape, dtype=np.uint64)
        exists = np.zeros(self.shape, dtype=np.bool_)
        state = ChunkState(exists, sizes, self.first, self.chunk_shape, self._shape, self.spec.shard_shape)
        return sizes, state


class _ScanItem:
    """The fields of an item that `explain` needs."""

    def __init__(self, chain: Chain, key: str) -> None:
        self.chain, self.key = chain, key


def sizes_of(
    store: Store, chain: Chain, keys: Sequence[str], options: Options, may_exist: Sequence[int] | None = None
) -> tuple[Sizes, list[str | None]]:
    """Read the indexes of shards, all at the same time; a damaged index or entry is an error.

    may_exist: positions of the keys whose objects may exist; a store of requests is asked for these only. Returns encoded
    sizes, uint64, shape (n, n_chunks), 2^64-1 for an absent inner chunk; and the lasting states of the objects, as far as the
    answers show them.
    """
    states: list[str | None] = [None] * len(keys)
    if store.is_near:
        return scan_files(chain, [store.source(key) for key in keys], keys, options), states
    sizes = np.full((len(keys), chain.n_chunks), ABSENT, dtype=np.uint64)
    chosen = range(len(keys)) if may_exist is None else may_exist
    told = scan_requests(store, [(keys[i], sizes[i]) for i in chosen], chain, options)
    for i, state in zip(chosen, told, strict=True):
        states[i] = state
    return sizes, states


def scan_files(chain: Chain, sources: Sequence[Any], keys: Sequence[str], options: Options) -> Sizes:
    """Read the indexes of shards in files or in memory, in one native call; see `sizes_of`.

    sources: for each shard its path or its bytes; None if it does not exist. keys: their names in errors.
    """
    sizes = np.empty((len(sources), chain.n_chunks), dtype=np.uint64)

    def work() -> Sizes:
        try:
            native.load().scan(
                chain,
                sources,
                sizes,
                n_threads=options.threads,
                allow_in_index=options.allow_in_index,
                cancel=native.current(),
                **options.io_rules,
            )
        except ShardError as error:
            raise explain(error, [_ScanItem(chain, key) for key in keys]) from None
        return sizes

    def may_exist(sizes: Sizes, patience: Patience) -> bool:
        empty = np.flatnonzero(sizes.min(axis=1, initial=ABSENT) == ABSENT)
        return patience.misses(sources[int(i)] for i in empty)

    return retry(work, lambda error: path_of(error, zip(keys, sources, strict=True)), again=may_exist)


def scan_requests(
    store: Store, work: Sequence[tuple[str, Any]], chain: Chain, options: Options
) -> list[str | None]:
    """Read the indexes of shards in a store of requests, with concurrent requests; return the lasting states of the objects.

    work: keys, and for each the array that gets the sizes; it is unchanged if the object does not exist.
    """
    limited = LimitedRemote(store, store.limits().n_requests)

    async def fill(key: str, out: Any) -> str | None:
        index = await IndexLoader(limited, key, chain, options).load_sizes(out)
        if index is None or index.state is None or index.nbytes is None:
            return None
        return store.lasting_state(index.nbytes, index.state)

    return on_zarrs_loop(all_of(fill(key, out) for key, out in work))  # type: ignore[no-any-return]
