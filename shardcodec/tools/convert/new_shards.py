# new_shards.py - new shards from elements
# SPDX-License-Identifier: MIT
"""`encode_group`: read a box of the source once, and encode it as whole shards; `stream_shard`: one shard, piece by piece."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import native
from ...readable import format_nbytes
from .destination import NewArray
from .source import Ints, SourceArray

__all__ = ["WrittenPiece", "WrittenShard", "encode_group", "piece_crc", "stream_shard"]


class WrittenPiece(NamedTuple):
    """Elements that were written, and their checksum.

    Attributes
    ----------
    start, shape : tuple of int
        A box of the shard, in elements.
    crc : int
        Checksum of its elements, in C order.
    """

    start: Ints
    shape: Ints
    crc: int


class WrittenShard(NamedTuple):
    """One shard that was written.

    Attributes
    ----------
    pieces : tuple of WrittenPiece
        Empty if no checksums were wanted.
    is_stored : bool
        False if no object is stored, because all elements have the fill value.
    """

    pieces: tuple[WrittenPiece, ...]
    is_stored: bool


def piece_crc(values: np.ndarray[Any, Any]) -> int:
    """Return the checksum of elements in C order."""
    plain = np.ascontiguousarray(values)
    return int(native.load().crc32c(plain.reshape(-1).view(np.uint8))) if plain.size else 0


def encode_group(
    source: SourceArray,
    to: NewArray,
    first: Ints,
    shape: Ints,
    wanted: Sequence[Ints],
    *,
    wants_crc: bool,
    is_verified: bool,
) -> dict[Ints, WrittenShard]:
    """Write shards of a group.

    Parameters
    ----------
    source : SourceArray
    to : NewArray
    first : tuple of int
        Position of the first shard of the group.
    shape : tuple of int
        Shards of the group along each axis.
    wanted : sequence of tuple of int
        The shards that are written.
    wants_crc : bool
        Compute checksums of the elements.
    is_verified : bool
        The shards will be verified. Otherwise ``is_stored`` of the results is always True.

    Returns
    -------
    dict
        From shards to what was written of them.
    """
    size = to.chain.shape
    values = _elements(
        source,
        to,
        tuple(at * n for at, n in zip(first, size, strict=True)),
        tuple(k * n for k, n in zip(shape, size, strict=True)),
    )
    to.write(first, values, wanted)
    if not is_verified:
        return dict.fromkeys(wanted, WrittenShard((), True))
    found: dict[Ints, WrittenShard] = {}
    for coords in wanted:
        box: tuple[Any, ...] = tuple(
            slice((c - f) * n, (c - f + 1) * n) for c, f, n in zip(coords, first, size, strict=True)
        )
        inside = values[(..., *box)]
        pieces = (WrittenPiece((0,) * len(size), size, piece_crc(inside)),) if wants_crc else ()
        found[coords] = WrittenShard(pieces, to.is_stored(coords) or not _is_fill(inside, to.chain.fill))
    return found


def _is_fill(values: np.ndarray[Any, Any], fill: bytes) -> bool:
    """Return True if all elements have the bits of the fill value."""
    bits = np.dtype((np.void, len(fill)))
    return bool((values.view(bits) == np.frombuffer(fill, bits)[0]).all())


def stream_shard(
    source: SourceArray, to: NewArray, coords: Ints, piece: Ints, *, wants_crc: bool
) -> WrittenShard:
    """Write one shard piece by piece, so that memory holds one piece.

    Parameters
    ----------
    source : SourceArray
    to : NewArray
    coords : tuple of int
        Position of the shard in the grid.
    piece : tuple of int
        Inner chunks of a piece along each axis of the array.
    wants_crc : bool
        Compute checksums of the elements.
    """
    spec, chunk_shape = to.spec, to.chunk_shape
    assert spec is not None
    counts = tuple(a // b for a, b in zip(spec.shard_shape, chunk_shape, strict=True))
    written = []
    with to.writer(coords) as writer:
        for begin in itertools.product(*map(range, [0] * len(counts), counts, piece)):
            n = tuple(min(p, c - b) for p, c, b in zip(piece, counts, begin, strict=True))
            start = tuple(b * size for b, size in zip(begin, chunk_shape, strict=True))
            origin = tuple(c * size + s for c, size, s in zip(coords, spec.shard_shape, start, strict=True))
            if any(a >= limit for a, limit in zip(origin, to.shape, strict=True)):
                continue
            shape = tuple(k * size for k, size in zip(n, chunk_shape, strict=True))
            values = _elements(source, to, origin, shape)
            if wants_crc:
                written.append(WrittenPiece(start, shape, piece_crc(values)))
            where, chunks = _by_chunks(values, begin, n, chunk_shape, spec.chain.perm)
            del values
            writer.write_chunks(where, chunks)
        is_stored = to.has_chunks(writer)
    return WrittenShard(tuple(written), is_stored)


def _by_chunks(
    values: np.ndarray[Any, Any], begin: Ints, counts: Ints, chunk_shape: Ints, perm: Ints
) -> tuple[list[Ints], np.ndarray[Any, Any]]:
    """Return the stored positions of the inner chunks of a piece, and their elements, chunk by chunk."""
    ndim = len(counts)
    split = values.reshape([n for pair in zip(counts, chunk_shape, strict=True) for n in pair])
    order = [2 * axis for axis in perm] + [2 * axis + 1 for axis in perm]
    stored = split.transpose(order)
    chunks = stored.reshape(math.prod(counts), *stored.shape[ndim:])
    where = [
        tuple(begin[axis] + k for axis, k in zip(perm, at, strict=True))
        for at in itertools.product(*(range(counts[axis]) for axis in perm))
    ]
    return where, chunks


def _elements(source: SourceArray, to: NewArray, start: Ints, shape: Ints) -> np.ndarray[Any, Any]:
    """Return a box of the source; cells outside of the array have the fill value."""
    inside = tuple(max(0, min(n, limit - a)) for a, n, limit in zip(start, shape, to.shape, strict=True))
    try:
        values = np.empty(shape, to.dtype)
    except MemoryError as error:
        nbytes = math.prod(shape) * to.dtype.itemsize
        raise MemoryError(f"expected {format_nbytes(nbytes)} of memory for a box of {shape}") from error
    if inside != shape:
        fill = np.frombuffer(to.chain.fill, to.dtype)[0]
        for axis, n in enumerate(inside):
            values[(slice(None),) * axis + (slice(n, None),)] = fill
    box: tuple[Any, ...] = (..., *map(slice, inside))  # with the ellipsis also of no axes an array
    source.read(start, values[box])
    return values
