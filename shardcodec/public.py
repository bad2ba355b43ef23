# public.py - the public names, and the modules that define them
# SPDX-License-Identifier: MIT
"""The public names of `shardcodec`, which its ``__init__`` imports one by one at their first use.

zarr imports the package in every process that opens an array, and most processes use few of these names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .access.array import Array, create_array, open_array
    from .access.buffer.group_writes import group_writes
    from .access.encode_decode import decode, encode
    from .access.index_scan import ChunkState
    from .access.prefetch import Prefetch
    from .access.shard import Shard, open_shard
    from .access.shard_order import ShardOrder
    from .access.shard_writer import ShardWriter
    from .access.slot_writer import SlotWriter
    from .build_info import build_info
    from .errors import (
        ChecksumError,
        CodecError,
        GroupWriteError,
        LockError,
        LockScopeError,
        LockScopeWarning,
        ShardError,
        ShardFileError,
        ShardFormatError,
        SpecError,
        StreamError,
        StreamFullError,
        UnsupportedError,
    )
    from .format.spec import ChainSpec, ShardSpec
    from .live.stream import Stream, stream
    from .live.tail import tail
    from .options import options
    from .storage.indexes import IndexCache
    from .zarr_plugin.attach import attach
    from .zarr_plugin.chunk_state import chunk_state
    from .zarr_plugin.codec import ShardingCodec
    from .zarr_plugin.enable import disable, enable
    from .zarr_plugin.open_arrays import open_arrays, stats
    from .zarr_plugin.pipeline import ShardCodecPipeline

__all__ = [
    "Array",
    "ChainSpec",
    "ChecksumError",
    "ChunkState",
    "CodecError",
    "GroupWriteError",
    "IndexCache",
    "LockError",
    "LockScopeError",
    "LockScopeWarning",
    "Prefetch",
    "Shard",
    "ShardCodecPipeline",
    "ShardError",
    "ShardFileError",
    "ShardFormatError",
    "ShardOrder",
    "ShardSpec",
    "ShardWriter",
    "ShardingCodec",
    "SlotWriter",
    "SpecError",
    "Stream",
    "StreamError",
    "StreamFullError",
    "UnsupportedError",
    "attach",
    "build_info",
    "chunk_state",
    "create_array",
    "decode",
    "disable",
    "enable",
    "encode",
    "group_writes",
    "open_array",
    "open_arrays",
    "open_shard",
    "options",
    "stats",
    "stream",
    "tail",
]

# The module of each name.
MODULES: dict[str, str] = {
    "Array": ".access.array",
    "ChainSpec": ".format.spec",
    "ChecksumError": ".errors",
    "ChunkState": ".access.index_scan",
    "CodecError": ".errors",
    "GroupWriteError": ".errors",
    "IndexCache": ".storage.indexes",
    "LockError": ".errors",
    "LockScopeError": ".errors",
    "LockScopeWarning": ".errors",
    "Prefetch": ".access.prefetch",
    "Shard": ".access.shard",
    "ShardCodecPipeline": ".zarr_plugin.pipeline",
    "ShardError": ".errors",
    "ShardFileError": ".errors",
    "ShardFormatError": ".errors",
    "ShardOrder": ".access.shard_order",
    "ShardSpec": ".format.spec",
    "ShardWriter": ".access.shard_writer",
    "ShardingCodec": ".zarr_plugin.codec",
    "SlotWriter": ".access.slot_writer",
    "SpecError": ".errors",
    "Stream": ".live.stream",
    "StreamError": ".errors",
    "StreamFullError": ".errors",
    "UnsupportedError": ".errors",
    "attach": ".zarr_plugin.attach",
    "build_info": ".build_info",
    "chunk_state": ".zarr_plugin.chunk_state",
    "create_array": ".access.array",
    "decode": ".access.encode_decode",
    "disable": ".zarr_plugin.enable",
    "enable": ".zarr_plugin.enable",
    "encode": ".access.encode_decode",
    "group_writes": ".access.buffer.group_writes",
    "open_array": ".access.array",
    "open_arrays": ".zarr_plugin.open_arrays",
    "open_shard": ".access.shard",
    "options": ".options",
    "stats": ".zarr_plugin.open_arrays",
    "stream": ".live.stream",
    "tail": ".live.tail",
}
