# test_suite.py - zarr's test suite for stores, run on the transformer
# SPDX-License-Identifier: MIT
"""`zarr.testing.store.StoreTests` with keys that are chunks and keys that are not.

The suite also reads and writes the stored objects directly; the helpers below do this for chunks in shards.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from zarr.core.buffer import Buffer, cpu
from zarr.storage import LocalStore, MemoryStore
from zarr.testing.store import StoreTests

from shardcodec.transformer import ShardingStorageTransformer
from shardcodec.transformer.keys import ArrayKeys, KeyLayout


class Behind(StoreTests[Any, Any]):
    """Direct access to the stored objects, files or a dictionary, which contain shards."""

    store_cls = ShardingStorageTransformer
    buffer_cls = cpu.Buffer
    path = ""

    def place(self, key: str) -> tuple[str, int] | None:
        return ArrayKeys(KeyLayout.v3(), self.path, (4,)).locate(key)

    def test_store_supports_writes(self, store: Any) -> None:
        assert store.supports_writes

    def test_store_supports_listing(self, store: Any) -> None:
        assert store.supports_listing

    def test_store_repr(self, store: Any) -> None:
        assert repr(store).startswith("ShardingStorageTransformer(")
        assert repr(store.store) in repr(store)


def stored(blob: bytes | None, position: int) -> bytes | None:
    """Return a chunk of a shard, read by hand."""
    if blob is None:
        return None
    numbers = [int.from_bytes(blob[i : i + 8], "little") for i in range(len(blob) - 64, len(blob), 8)]
    offset, nbytes = numbers[2 * position], numbers[2 * position + 1]
    return None if offset == 2**64 - 1 else blob[offset : offset + nbytes]


def with_chunk(blob: bytes | None, position: int, data: bytes) -> bytes:
    """Return a shard with one more chunk, assembled by hand."""
    chunks = [stored(blob, i) for i in range(4)]
    chunks[position] = data
    body, index = b"", b""
    for chunk in chunks:
        pair = (2**64 - 1, 2**64 - 1) if chunk is None else (len(body), len(chunk))
        index += b"".join(number.to_bytes(8, "little") for number in pair)
        body += chunk or b""
    return body + index


class TestMemory(Behind):
    """Tests over a MemoryStore; the keys ``c/0`` of the suite are chunks of an array at the root."""

    @pytest.fixture
    def store_kwargs(self) -> dict[str, Any]:
        return {"store": MemoryStore(), "chunks_per_shard": (4,), "read_only": False}

    async def set(self, store: Any, key: str, value: Buffer) -> None:
        place, objects = self.place(key), store.store._store_dict
        if place is None:
            objects[key] = value
        else:
            old = objects.get(place[0])
            new = with_chunk(None if old is None else old.to_bytes(), place[1], value.to_bytes())
            objects[place[0]] = self.buffer_cls.from_bytes(new)

    async def get(self, store: Any, key: str) -> Buffer:
        place, objects = self.place(key), store.store._store_dict
        if place is None:
            return objects[key]
        data = stored(objects[place[0]].to_bytes(), place[1])
        assert data is not None
        return self.buffer_cls.from_bytes(data)

    async def test_serializable_store(self, store: Any) -> None:
        pytest.skip("a MemoryStore cannot be pickled in a way that keeps it")


class TestLocal(Behind):
    """Tests over files; the keys ``foo/c/1`` of the suite are chunks of an array ``foo``."""

    path = "foo"

    @pytest.fixture
    def store_kwargs(self, tmp_path: Path) -> dict[str, Any]:
        return {
            "store": LocalStore(tmp_path / "root"),
            "chunks_per_shard": (4,),
            "path": self.path,
            "read_only": False,
        }

    async def set(self, store: Any, key: str, value: Buffer) -> None:
        place, root = self.place(key), store.store.root
        file = root / (key if place is None else place[0])
        file.parent.mkdir(parents=True, exist_ok=True)
        data = value.to_bytes()
        if place is not None:
            data = with_chunk(file.read_bytes() if file.exists() else None, place[1], data)
        file.write_bytes(data)

    async def get(self, store: Any, key: str) -> Buffer:
        place, root = self.place(key), store.store.root
        data = (root / (key if place is None else place[0])).read_bytes()
        if place is not None:
            chunk = stored(data, place[1])
            assert chunk is not None
            data = chunk
        return self.buffer_cls.from_bytes(data)


del Behind, StoreTests
