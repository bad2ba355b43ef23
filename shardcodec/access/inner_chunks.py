# inner_chunks.py - inner chunks by themselves: where they are in the grid, and many encoded or decoded in one call
# SPDX-License-Identifier: MIT
"""Inner chunks without a shard around them.

Coordinates count inner chunks along the *stored* axes of the shard, as its index does; a position is the same as one
number, in C order. Arrays of chunks have one axis more, the first: which of the chunks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..errors import ShardError
from ..options import Options
from .chunk_codec import memory_order
from .regions import as_void, whole

if TYPE_CHECKING:
    from .._native import Chain

__all__ = [
    "as_chunks",
    "batches",
    "coordinates",
    "decode_chunks",
    "distinct",
    "encode_chunks",
    "position_array",
    "positions",
]

# Decoded bytes that are encoded at a time where the result is held in memory.
BATCH_NBYTES = 64 << 20
# So many coordinates are turned into positions one by one.
FEW_CHUNKS = 8

Ints = tuple[int, ...]


def positions(coords: Any, grid_shape: Ints) -> list[int]:
    """Turn coordinates of inner chunks into positions in the index; see `position_array`."""
    few = _few_positions(coords, grid_shape)
    return position_array(coords, grid_shape).tolist() if few is None else few  # type: ignore[no-any-return]


def position_array(coords: Any, grid_shape: Ints) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Turn coordinates of inner chunks into positions in the index.

    Parameters
    ----------
    coords : sequence of tuples of int, or integer array of shape (n, ndim)
    grid_shape : tuple of int

    Raises
    ------
    IndexError
        Coordinates of another rank, or outside the grid.
    TypeError
        Not integers.
    """
    try:
        given = np.asarray(coords if isinstance(coords, np.ndarray) else list(coords))
    except ValueError:
        raise IndexError(f"coordinates of inner chunks differ in rank: {coords!r}") from None
    if not len(given):
        return np.empty(0, dtype=np.intp)
    if given.ndim != 2 or given.shape[1] != len(grid_shape):
        raise IndexError(f"coordinates of shape {given.shape} where (n, {len(grid_shape)}) is due")
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"coordinates of inner chunks are integers, not {given.dtype}")
    extent = np.asarray(grid_shape, dtype=np.int64)
    bad = np.flatnonzero(np.any((given < 0) | (given >= extent), axis=1))
    if len(bad):
        at = tuple(int(i) for i in given[bad[0]])
        raise IndexError(f"inner chunk {at} is outside of the grid of {tuple(grid_shape)}")
    if not grid_shape:
        return np.zeros(len(given), dtype=np.intp)
    return np.asarray(np.ravel_multi_index(tuple(given.astype(np.int64).T), grid_shape), dtype=np.intp)


def distinct(where: np.ndarray[Any, np.dtype[np.intp]]) -> np.ndarray[Any, np.dtype[np.intp]]:
    """Sort positions, and keep each once."""
    where = np.sort(where)  # np.unique may hash them, which takes forty times as long
    return where[np.insert(where[1:] != where[:-1], 0, True)] if len(where) else where


def _few_positions(coords: Any, grid_shape: Ints) -> list[int] | None:
    """The same for a few tuples of int that are in order, without an array; None for whatever else there is."""
    if type(coords) not in (list, tuple) or len(coords) > FEW_CHUNKS:
        return None
    found = []
    for at in coords:
        if type(at) is not tuple or len(at) != len(grid_shape):
            return None
        position = 0
        for i, extent in zip(at, grid_shape, strict=True):
            if type(i) is not int or not 0 <= i < extent:
                return None
            position = position * extent + i
        found.append(position)
    return found


def coordinates(position: int, grid_shape: Ints) -> Ints:
    """Turn a position in the index into coordinates."""
    return tuple(int(i) for i in np.unravel_index(position, grid_shape)) if grid_shape else ()


def batches(n: int, chunk_nbytes: int) -> Iterator[slice]:
    """Cut n chunks into parts that fit the memory set aside for them."""
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
    """Encode inner chunks.

    Parameters
    ----------
    chain
        Compiled chain of one inner chunk.
    chunks : ndarray, shape (n, *chunk shape)
    shard, where, grid_shape
        Name of their shard, their positions in it, and its grid: for errors.
    write_empty : bool
        Encode chunks that equal the fill value bit by bit.

    Returns
    -------
    list
        A buffer for each; None for one that is nothing but fill value.

    Raises
    ------
    CodecError
        A codec does not take an inner chunk; ``.chunk_coords`` says which.
    """
    engine = native.load()
    results: list[Any] = []
    for first, base, places in _joined(chunks):
        items = [(chain, None, (*whole(chain.shape)[:3], place), None) for place in places]
        try:
            encoded, *_ = engine.write(
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
            raise error.with_context(shard=shard, chunk_coords=coordinates(error.entry, grid_shape)) from None
        results += encoded
    return results


def decode_chunks(chain: Chain, encoded: Sequence[Any], out: np.ndarray[Any, Any], options: Options) -> None:
    """Decode inner chunks into ``out``, shape (n, *chunk shape); None stands for the fill value.

    Raises
    ------
    ShardFormatError, ChecksumError, CodecError
        One is damaged; ``.shard`` is which one of them.
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
    """See n chunks as one array, side by side along their first axis; one by one where memory does not allow that.

    The engine fills or reads *one* array, of the rank of a chunk. Yields the first chunk's number, the array, and
    where each chunk begins in it.
    """
    n, *shape = chunks.shape
    zeros = (0,) * (len(shape) - 1)
    if shape and n and (n == 1 or chunks.strides[0] == shape[0] * chunks.strides[1]):
        joined = np.lib.stride_tricks.as_strided(chunks, (n * shape[0], *shape[1:]), chunks.strides[1:])
        yield 0, joined, [(i * shape[0], *zeros) for i in range(n)]
        return
    for i in range(n):
        yield i, chunks[i, ...], [(0,) * len(shape)]


def as_chunks(values: Any, dtype: np.dtype[Any], shape: Ints, n: int) -> tuple[np.ndarray[Any, Any], bool]:
    """Check arrays that are to be stored; return them in the dtype, and whether they are in native byte order.

    Raises
    ------
    ValueError
        Another shape than (n, *shape).
    TypeError
        The elements cannot be cast safely.
    """
    array = np.asarray(values)
    native_order = memory_order(array.dtype, dtype)
    if native_order is None:
        array = array.astype(dtype, casting="safe")
        native_order = True
    if array.shape != (n, *shape):
        raise ValueError(f"chunks of shape {array.shape} where {(n, *shape)} is due")
    return array, native_order
