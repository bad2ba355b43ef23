# array_map.py - the map of the inner chunks of a whole array
# SPDX-License-Identifier: MIT
"""Read the indexes of all shards of an array, batch by batch, into a `ChunkMap` for `ArrayReader.plot`."""

from __future__ import annotations

import numpy as np

from ..drawing.chunk_map import ChunkMap
from ..errors import UnsupportedError
from ..format.spec import ChainSpec, ShardSpec
from ..options import Options
from .box_reader import ArrayObjects
from .buffer import buffered_chunks
from .placement import ABSENT
from .shard_grid import ShardGrid, Sizes, scan_files, scan_requests

__all__ = ["map_of_array"]


def map_of_array(objects: ArrayObjects, spec: ChainSpec, options: Options) -> ChunkMap:
    """Return the map of the inner chunks of an array.

    Raises
    ------
    UnsupportedError
        The array is not sharded, or its shards hide their inner chunks.
    ShardFormatError, ChecksumError
        An index is damaged.
    """
    if spec.sharding is None:
        raise UnsupportedError(f"array {objects.folder!r}: expected shards, but it is not sharded")
    shard = ShardSpec.from_chain(spec)
    if not shard.supports_partial_access:
        raise UnsupportedError(
            f"array {objects.folder!r}: codecs after sharding_indexed hide the inner chunks"
        )
    grid = ShardGrid(shard, objects.shape, None)
    found = ChunkMap(objects.shape, grid.chunk_shape, grid.first, grid.shape, shard.shard_shape)
    for shards in grid.batches():
        keys = objects.folder.keys([objects.keys.key(coords) for coords in shards])
        for coords, sizes in zip(shards, _sizes(objects, keys, options), strict=True):
            place, block = grid.block(coords, sizes)
            found.add(tuple(axis.start for axis in place), block)
    return found


def _sizes(objects: ArrayObjects, keys: list[str], options: Options) -> Sizes:
    store, chain = objects.folder.store, objects.chain
    if buffered_chunks.is_any_buffered():
        buffered_chunks.flush_named(store.lock_names(keys))
    if store.is_near:
        return scan_files(chain, [store.source(key) for key in keys], keys, options)
    sizes = np.full((len(keys), chain.n_chunks), ABSENT, dtype=np.uint64)
    scan_requests(store, list(zip(keys, sizes, strict=True)), chain, options)
    return sizes
