# public.py - the public names, and the registration with zarr
# SPDX-License-Identifier: MIT
"""The public names of `shardcodec`; only its `__init__` imports this module."""

from __future__ import annotations

from zarr.registry import register_codec, register_pipeline

from .access.array_reader import ArrayReader, open_array
from .access.buffer.group_writes import group_writes
from .access.encode_decode import decode, encode
from .access.open_shard import open_shard
from .access.shard import Shard
from .access.shard_writer import ShardWriter
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
    UnsupportedError,
)
from .format.chain_spec import ChainSpec
from .format.spec import ShardSpec
from .options import Options, options
from .storage.index_cache import IndexCache
from .zarr_plugin.chunk_state import chunk_state, iter_existing
from .zarr_plugin.codec import ShardingCodec
from .zarr_plugin.enable import attach, disable, enable
from .zarr_plugin.open_arrays import open_arrays
from .zarr_plugin.pipeline import ShardCodecPipeline
from .zarr_plugin.process_statistics import stats

__all__ = [
    "ArrayReader",
    "ChainSpec",
    "ChecksumError",
    "CodecError",
    "GroupWriteError",
    "IndexCache",
    "LockError",
    "LockScopeError",
    "LockScopeWarning",
    "Options",
    "Shard",
    "ShardCodecPipeline",
    "ShardError",
    "ShardFileError",
    "ShardFormatError",
    "ShardSpec",
    "ShardWriter",
    "ShardingCodec",
    "SpecError",
    "UnsupportedError",
    "attach",
    "build_info",
    "chunk_state",
    "decode",
    "disable",
    "enable",
    "encode",
    "group_writes",
    "iter_existing",
    "open_array",
    "open_arrays",
    "open_shard",
    "options",
    "stats",
]

register_pipeline(ShardCodecPipeline)
register_codec("sharding_indexed", ShardingCodec)
