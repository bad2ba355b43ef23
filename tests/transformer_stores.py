# transformer_stores.py - stores below and above a transformer, and what tests ask of them
# SPDX-License-Identifier: MIT
"""Shared by the tests of the storage transformer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore, MemoryStore, ObjectStore, WrapperStore

from shardcodec.transformer import ShardingStorageTransformer

PROTOTYPE = default_buffer_prototype()
CRC = [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}]


class Recording(WrapperStore[Any]):
    """Notes what is asked of the store within."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.calls: list[tuple[str, Any]] = []

    async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
        self.calls.append(("get", [(key, byte_range)]))
        return await self._store.get(key, prototype, byte_range)

    async def get_partial_values(self, prototype: Any, key_ranges: Iterable[Any]) -> Any:
        key_ranges = list(key_ranges)
        self.calls.append(("get", key_ranges))
        return await self._store.get_partial_values(prototype, key_ranges)

    async def set(self, key: str, value: Any) -> None:
        self.calls.append(("set", key))
        await self._store.set(key, value)

    async def delete(self, key: str) -> None:
        self.calls.append(("delete", key))
        await self._store.delete(key)


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


def obstore_memory() -> Any:
    obstore = pytest.importorskip("obstore.store")
    return ObjectStore(obstore.MemoryStore())


def below(kind: str, folder: Path) -> Any:
    match kind:
        case "memory":
            return MemoryStore()
        case "local":
            return LocalStore(folder)
        case "any":
            return Recording(MemoryStore())
        case "conditional":
            return obstore_memory()
        case "stack":
            return ShardingStorageTransformer(LocalStore(folder), (2, 1))
        case "stack of any":
            return ShardingStorageTransformer(Recording(MemoryStore()), (1, 3), index_codecs=CRC)
    raise AssertionError


KINDS = ["memory", "local", "any", "conditional", "stack", "stack of any"]
