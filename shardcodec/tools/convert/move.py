# move.py - a new shard from encoded chunks of the source
# SPDX-License-Identifier: MIT
"""`move_shard`: copy encoded chunks to a new shard. Nothing is decoded; the index is computed."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ... import native
from ..rebuilt_index import sequence
from .destination import NewArray
from .source import Coords, EncodedChunks, Ints
from .zarr_source import chunk_places

__all__ = ["Moved", "chunks_of_shard", "move_shard"]


class Moved(NamedTuple):
    """What was moved to one shard.

    Attributes
    ----------
    n_chunks, nbytes : int
        Inner chunks, and their encoded bytes.
    crc : int or None
        Checksum of these bytes in the order of the shard, if it was wanted.
    """

    n_chunks: int
    nbytes: int
    crc: int | None

    @property
    def is_stored(self) -> bool:
        """False if no object is stored, because there is no chunk."""
        return self.n_chunks > 0


def move_shard(
    chunks: EncodedChunks, to: NewArray, coords: Ints, chunk_shape: Ints, *, wants_crc: bool, most_nbytes: int
) -> Moved:
    """Write one shard.

    Parameters
    ----------
    chunks : EncodedChunks
        Encoded chunks of the source.
    to : NewArray
    coords : tuple of int
        Position of the shard in the grid. Without any chunk, no object is stored.
    chunk_shape : tuple of int
        Shape of an inner chunk by axis of the array.
    wants_crc : bool
        Compute the checksum of what is written.
    most_nbytes : int
        Encoded bytes to hold at a time; at least one chunk is held.
    """
    spec = to.spec
    if spec is None:
        return _move_object(chunks, to, coords)
    counts = tuple(a // b for a, b in zip(spec.shard_shape, chunk_shape, strict=True))
    writer = None
    n = nbytes = crc = 0
    try:
        for where, sizes, data in chunks.joined(chunks_of_shard(to, coords, chunk_shape), most_nbytes):
            if writer is None:
                writer = to.writer(coords)
            writer.write_joined(chunk_places(where, counts, spec.chain.perm)[1], sizes, data)
            n, nbytes = n + len(where), nbytes + sum(sizes)
            if wants_crc:
                crc = native.load().crc32c(data, crc)
        if writer is not None:
            to.commit(writer)
        else:
            to.remove(coords)
    except BaseException:
        if writer is not None:
            writer.abort()
        raise
    return Moved(n, nbytes, crc if wants_crc else None)


def _move_object(chunks: EncodedChunks, to: NewArray, coords: Ints) -> Moved:
    """Write the object of an array without axes, which has no shards."""
    for _, sizes, data in chunks.joined(np.array([coords], dtype=np.int64), 0):
        to.put(coords, bytes(data))
        return Moved(len(sizes), sum(sizes), native.load().crc32c(data))
    to.remove(coords)
    return Moved(0, 0, None)


def chunks_of_shard(to: NewArray, coords: Ints, chunk_shape: Ints) -> Coords:
    """Return the chunks of the whole array that a shard has, in Morton order; those outside of the array are left out."""
    spec = to.spec
    assert spec is not None
    counts = [a // b for a, b in zip(spec.shard_shape, chunk_shape, strict=True)]
    stored = np.stack(np.unravel_index(sequence(spec, "morton"), spec.grid_shape), axis=1)
    chunks = np.empty(stored.shape, dtype=np.int64)
    chunks[:, list(spec.chain.perm)] = stored
    chunks += np.array(coords, dtype=np.int64) * np.array(counts, dtype=np.int64)
    limit = [-(-n // size) for n, size in zip(to.shape, chunk_shape, strict=True)]
    return chunks[(chunks < np.array(limit, dtype=np.int64)).all(axis=1)]
