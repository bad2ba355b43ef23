# inner_chunks.py - inner chunks without a shard
# SPDX-License-Identifier: MIT
"""Positions of inner chunks; encoding and decoding of many inner chunks in one call, without a shard.

Coordinates count inner chunks along the *stored* axes of the shard, as its index does. A position is the same as one
number, in C order. The first axis of an array of chunks counts the chunks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..arguments import show
from ..errors import ShardError
from ..options import Options
from .records import PlanItem
from .regions import Box, as_void, whole

if TYPE_CHECKING:
    from .._native import Chain
from .compiled_chains import memory_order

__all__ = [
    "as_array",
    "as_chunks",
    "as_coords",
    "as_elements",
    "batches",
    "coordinates",
    "decode_chunks",
    "element_coordinates",
    "encode_chunks",
    "position_array",
    "positions",
    "sort_unique",
]

# Decoded bytes of one call of the encoder, because the encoded bytes are held in memory.
BATCH_NBYTES = 64 << 20
# Up to this number of coordinates a loop in Python is faster than numpy.
FEW_CHUNKS = 8

Ints = tuple[int, ...]


def positions(coords: Any, grid_shape: Ints, name: str = "coords") -> list[int]:
    """Return the positions in the index of inner chunks; see `position_array`."""
    few = _few_positions(coords, grid_shape)
    return position_array(coords, grid_shape, name).tolist() if few is None else few  # type: ignore[no-any-return]


def as_coords(coords: Any) -> Ints:
    """Return the coordinates of one inner chunk as a tuple; `positions` checks the numbers."""
    if isinstance(coords, str | bytes | Mapping) or not isinstance(coords, Iterable):
        raise TypeError(f"coords: expected a tuple of whole numbers, got {show(coords)}")
    return tuple(coords)


def position_array(coords: Any, grid_shape: Ints, name: str = "coords") -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return the positions in the index of inner chunks, intp, shape (n,), from their grid coordinates.

    IndexError: coordinates have another rank than the grid, or lie outside it. `name` is that of the argument, for errors.
    """
    if isinstance(coords, str | bytes | Mapping) or not isinstance(coords, Iterable):
        raise TypeError(f"{name}: expected a sequence of tuples of whole numbers, got {show(coords)}")
    try:
        given = np.asarray(coords if isinstance(coords, np.ndarray) else list(coords))
    except ValueError:
        raise IndexError(f"{name}: expected coordinates of one rank, got {show(coords)}") from None
    if not len(given):
        return np.empty(0, dtype=np.intp)
    if given.ndim != 2 or given.shape[1] != len(grid_shape):
        raise IndexError(f"{name}: expected shape (n, {len(grid_shape)}), got {given.shape}")
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"{name}: expected integers, got {given.dtype}")
    extent = np.asarray(grid_shape, dtype=np.int64)
    bad = np.flatnonzero(np.any((given < 0) | (given >= extent), axis=1))
    if len(bad):
        at = tuple(int(i) for i in given[bad[0]])
        raise IndexError(f"inner chunk {at} is outside of the grid of shape {tuple(grid_shape)}")
    if not grid_shape:
        return np.zeros(len(given), dtype=np.intp)
    return np.asarray(np.ravel_multi_index(tuple(given.astype(np.int64).T), grid_shape), dtype=np.intp)


def sort_unique(where: np.ndarray[Any, np.dtype[np.intp]]) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Return positions in ascending order, each once."""
    where = np.sort(where)  # np.unique may hash them, which takes forty times as long
    return where[np.insert(where[1:] != where[:-1], 0, True)] if len(where) else where


def _few_positions(coords: Any, grid_shape: Ints) -> list[int] | None:
    """Return the positions of a few valid tuples of int without numpy; None for all other coordinates."""
    if type(coords) not in (list, tuple) or len(coords) > FEW_CHUNKS:
        return None
    positions = []
    for at in coords:
        if type(at) is not tuple or len(at) != len(grid_shape):
            return None
        position = 0
        for i, extent in zip(at, grid_shape, strict=True):
            if type(i) is not int or not 0 <= i < extent:
                return None
            position = position * extent + i
        positions.append(position)
    return positions


def coordinates(position: int, grid_shape: Ints) -> Ints:
    """Return the grid coordinates of a position in the index."""
    return tuple(int(i) for i in np.unravel_index(position, grid_shape)) if grid_shape else ()


def element_coordinates(element: int | None, chain: Chain) -> Ints | None:
    """Return an element by axis of the innermost chunk, from its position in stored order; None if it is unknown."""
    leaf: Any = chain
    while leaf.inner is not None:
        leaf = leaf.inner
    if element is None or len(leaf.shape) < 2 or element >= math.prod(leaf.shape):
        return None
    stored = coordinates(element, tuple(leaf.shape[axis] for axis in leaf.perm))
    return tuple(stored[leaf.perm.index(axis)] for axis in range(len(stored)))


def batches(n: int, chunk_nbytes: int) -> Iterator[slice]:
    """Yield slices of n chunks of at most `BATCH_NBYTES` each, or of one chunk if it is larger."""
    step = max(1, BATCH_NBYTES // max(1, chunk_nbytes))
    for first in range(0, n, step):
        yield slice(first, min(n, first + step))


def encode_chunks(
    chain: Chain,
    chunks: np.ndarray[Any, Any],
    options: Options,
    *,
    shard: str,
    where: Sequence[int],
    grid_shape: Ints,
    write_empty: bool = False,
) -> list[Any]:
    """Encode inner chunks, shape (n, *chunk_shape); None for one that equals the fill value, unless `write_empty`.

    shard, where, grid_shape: name of the shard, positions of the inner chunks and shape of the grid, for errors only.
    """
    engine = native.load()
    start, count, _, _ = whole(chain.shape)
    results: list[Any] = []
    for first, base, places in _joined(chunks):
        items = [PlanItem(chain, None, Box(start, count, None, place)) for place in places]
        try:
            new, *_ = engine.write(
                items,
                as_void(base),
                tuple(range(len(chain.shape))),
                order=options.order,
                write_empty=write_empty,
                n_threads=options.threads,
            )
        except ShardError as error:
            if not isinstance(error.shard, int):
                raise
            error.entry, error.shard = where[first + error.shard], None
            context = {
                "chunk_coords": coordinates(error.entry, grid_shape),
                "element_coords": element_coordinates(error.element, chain),
            }
            raise error.with_context(shard=shard, **context) from None
        results += new
    return results


def decode_chunks(chain: Chain, encoded: Sequence[Any], out: np.ndarray[Any, Any], options: Options) -> None:
    """Decode inner chunks into `out`, shape (n, *chunk_shape); None stands for the fill value.

    In an error about an inner chunk, ``.shard`` is its number in `encoded`.
    """
    engine = native.load()
    axes = tuple(range(len(chain.shape)))
    for first, base, places in _joined(out):
        sources = encoded[first : first + len(places)]
        items = [
            (chain, source, whole(chain.shape)._replace(at=place))
            for source, place in zip(sources, places, strict=True)
        ]
        try:
            engine.read(items, as_void(base), axes, n_threads=options.threads)
        except ShardError as error:
            if isinstance(error.shard, int):
                error.shard += first
            raise


def _joined(chunks: np.ndarray[Any, Any]) -> Iterator[tuple[int, np.ndarray[Any, Any], list[Ints]]]:
    """Yield views in which n chunks lie side by side along their first axis; one view per chunk if the strides need it.

    One call of the engine works on *one* array of the rank of a chunk. Yields the index of the first chunk, the view, and
    the first element of each chunk in it.
    """
    n, *shape = chunks.shape
    zeros = (0,) * (len(shape) - 1)
    if shape and n and (n == 1 or chunks.strides[0] == shape[0] * chunks.strides[1]):
        joined = np.lib.stride_tricks.as_strided(chunks, (n * shape[0], *shape[1:]), chunks.strides[1:])
        yield 0, joined, [(i * shape[0], *zeros) for i in range(n)]
        return
    for i in range(n):
        yield i, chunks[i, ...], [(0,) * len(shape)]


def as_array(values: Any, name: str) -> np.ndarray[Any, Any]:
    """Return what a caller gave as an array of numpy."""
    try:
        return np.asarray(values)
    except ValueError:
        text = f"{name}: expected an array, got {show(values)}, whose parts have different shapes"
        raise ValueError(text) from None


def as_elements(values: Any, dtype: np.dtype[Any], name: str) -> tuple[np.ndarray[Any, Any], bool]:
    """Return elements of the caller as an array, and True if they have the byte order of `dtype`; see `as_chunks`."""
    array = as_array(values, name)
    native_order = memory_order(array.dtype, dtype)
    if native_order is not None:
        return array, native_order
    if not np.can_cast(array.dtype, dtype, "safe"):
        raise TypeError(f"{name}: expected elements that can be cast safely to {dtype}, got {array.dtype}")
    return array.astype(dtype), True


def as_chunks(values: Any, dtype: np.dtype[Any], shape: Ints, n: int) -> tuple[np.ndarray[Any, Any], bool]:
    """Return the elements that the caller wants to store, checked and cast, shape (n, *shape).

    The second result is False if they have the other byte order than `dtype`. ValueError: another shape. TypeError: the cast is
    not safe.
    """
    array, native_order = as_elements(values, dtype, "chunks")
    if array.shape != (n, *shape):
        raise ValueError(f"chunks: expected shape {(n, *shape)}, got {array.shape}")
    return array, native_order
