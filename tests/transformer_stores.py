# transformer_stores.py - base stores of a transformer, and helpers to read stores
# SPDX-License-Identifier: MIT
"""Shared by the tests of the storage transformer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from helpers import RecordingStore, memory_object_store
from spec_json import CHECKED_INDEX
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore

from shardcodec.transformer import ShardingStorageTransformer

PROTOTYPE = default_buffer_prototype()


def buffer(data: bytes) -> Any:
    return PROTOTYPE.buffer.from_bytes(data)


async def value(store: Any, key: str, request: Any = None) -> bytes | None:
    found = await store.get(key, PROTOTYPE, request)
    return None if found is None else found.to_bytes()


async def values(store: Any, wanted: Sequence[Any]) -> list[bytes | None]:
    found = await store.get_partial_values(PROTOTYPE, iter(wanted))
    return [None if part is None else part.to_bytes() for part in found]


async def keys(store: Any, prefix: str | None = None) -> list[str]:
    listed = store.list() if prefix is None else store.list_prefix(prefix)
    return sorted([key async for key in listed])


async def names(store: Any, prefix: str) -> list[str]:
    return sorted([name async for name in store.list_dir(prefix)])


def below(kind: str, folder: Path) -> Any:
    match kind:
        case "memory":
            return MemoryStore()
        case "local":
            return LocalStore(folder)
        case "any":
            return RecordingStore(MemoryStore())
        case "conditional":
            return memory_object_store()
        case "stack":
            return ShardingStorageTransformer(LocalStore(folder), (2, 1))
        case "stack of any":
            return ShardingStorageTransformer(
                RecordingStore(MemoryStore()), (1, 3), index_codecs=CHECKED_INDEX
            )
    raise AssertionError


KINDS = ["memory", "local", "any", "conditional", "stack", "stack of any"]
