# __init__.py - the public names
# SPDX-License-Identifier: MIT
"""Native engine for Zarr v3 shards.

>>> import shardcodec
>>> shardcodec.enable()

and zarr-python, with all that stands on it, reads and writes arrays through native code.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from zarr.registry import register_codec, register_pipeline

from .access.array import ArrayReader, open_array, register_adapter
from .access.gathering import register_gatherer
from .access.objects import register_objects
from .access.shard import Shard
from .access.stream import ShardWriter
from .access.whole import decode, encode
from .build_info import build_info
from .errors import (
    ChecksumError,
    CodecError,
    GroupWriteError,
    LockError,
    ShardError,
    ShardFormatError,
    SpecError,
    UnsupportedError,
)
from .format.chain_spec import ChainSpec
from .format.spec import ShardSpec
from .options import Options, options
from .statistics import stats
from .storage.cache import IndexCache
from .zarr_plugin.codec import ShardingCodec
from .zarr_plugin.grouping import active as _gathered
from .zarr_plugin.grouping import group_writes
from .zarr_plugin.objects import objects_of_store
from .zarr_plugin.pipeline import ShardCodecPipeline
from .zarr_plugin.shards import open_shard, shard_object
from .zarr_plugin.state import chunk_state, iter_existing
from .zarr_plugin.switch import attach, disable, enable

if TYPE_CHECKING:
    from . import kv

__all__ = [
    "ArrayReader",
    "ChainSpec",
    "ChecksumError",
    "CodecError",
    "GroupWriteError",
    "IndexCache",
    "LockError",
    "Options",
    "Shard",
    "ShardCodecPipeline",
    "ShardError",
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
    "kv",
    "open_array",
    "open_shard",
    "options",
    "stats",
]

__version__ = "0.1.0"

# Surfaces of their own, imported when they are first used.
_LAZY = ("kv", "transformer")

register_pipeline(ShardCodecPipeline)
register_codec("sharding_indexed", ShardingCodec)
register_adapter(objects_of_store)
register_objects(shard_object)
register_gatherer(_gathered)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
