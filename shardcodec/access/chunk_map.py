# chunk_map.py - the map of the inner chunks of a whole array
# SPDX-License-Identifier: MIT
"""`map_of_array`: which inner chunks of an array exist, and how large they are, for a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..drawing.map_figure import ChunkMap
from ..errors import UnsupportedError
from ..format.spec import ChainSpec, ShardSpec
from ..options import Options
from .buffer import flush_names, is_any_buffered

if TYPE_CHECKING:
    from .box_reader import ArrayObjects
from .index_scan import ShardGrid, Sizes, sizes_of

__all__ = ["map_of_array"]


def map_of_array(objects: ArrayObjects, spec: ChainSpec, options: Options) -> ChunkMap:
    """Return the map of the inner chunks of an array; `UnsupportedError` if it is not sharded, or its shards hide their inner chunks."""
    if spec.sharding is None:
        raise UnsupportedError(f"array {objects.folder!r}: expected shards, but it is not sharded")
    shard = ShardSpec.from_chain(spec)
    if not shard.supports_partial_access:
        raise UnsupportedError(
            f"array {objects.folder!r}: codecs after sharding_indexed hide the inner chunks"
        )
    grid = ShardGrid(shard, objects.shape, None)
    chunk_map = ChunkMap(objects.shape, grid.chunk_shape, grid.first, grid.shape, shard.shard_shape)
    for shards in grid.batches():
        keys = objects.folder.keys([objects.keys.key(coords) for coords in shards])
        for coords, sizes in zip(shards, _sizes(objects, keys, options), strict=True):
            place, block = grid.block(coords, sizes)
            chunk_map.add(tuple(axis.start for axis in place), block)
    return chunk_map


def _sizes(objects: ArrayObjects, keys: list[str], options: Options) -> Sizes:
    store, chain = objects.folder.store, objects.chain
    if is_any_buffered():
        flush_names(store.lock_names(keys))
    return sizes_of(store, chain, keys, options)[0]
