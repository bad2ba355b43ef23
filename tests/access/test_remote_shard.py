# test_remote_shard.py - indexes of shards in stores of requests: their length, and memory for one entry
# SPDX-License-Identifier: MIT
from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import OtherMemoryStore, gap_of, letters, letters_spec, store_of
from spec_json import CRC, LITTLE
from transformer_stores import PROTOTYPE, buffer
from zarr.abc.store import RangeByteRequest, SuffixByteRequest
from zarr.core.sync import sync
from zarr.storage import MemoryStore, WrapperStore

import shardcodec
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.transformer import ShardingStorageTransformer

ABSENT = 2**64 - 1
MIB = 1 << 20


class LongAnswers(WrapperStore):  # type: ignore[type-arg]
    """A store that answers a range request with too many bytes."""

    n_more = 0

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        match byte_range:
            case RangeByteRequest(start, end):
                byte_range = RangeByteRequest(start, end + self.n_more)
            case SuffixByteRequest(suffix):
                byte_range = SuffixByteRequest(suffix + self.n_more)
        return await super().get(key, prototype, byte_range)

    async def get_partial_values(self, prototype: Any, key_ranges: Any) -> Any:
        return [await self.get(key, prototype, wanted) for key, wanted in key_ranges]


def by_array(store: Any, at_start: bool) -> Any:
    return zarr.open_array(store)[0, 0]


def by_handle(store: Any, at_start: bool) -> Any:
    return shardcodec.open_shard(store, "c/0/0", letters_spec(at_start=at_start)).read_encoded([(0, 0)])


def by_chunk_state(store: Any, at_start: bool) -> Any:
    return shardcodec.chunk_state(store)


def transformer(store: Any, at_start: bool) -> ShardingStorageTransformer:
    return ShardingStorageTransformer(
        store, (2, 2), index_codecs=[LITTLE, CRC], index_location="start" if at_start else "end"
    )


def by_transformer(store: Any, at_start: bool) -> Any:
    return asyncio.run(transformer(store, at_start).get("c/0/0", PROTOTYPE))


def by_size(store: Any, at_start: bool) -> Any:
    return asyncio.run(transformer(store, at_start).getsize("c/0/0"))


@pytest.mark.parametrize("at_start", [False, True], ids=["index last", "index first"])
@pytest.mark.parametrize("n_more", [1, 16])
@pytest.mark.parametrize("read", [by_array, by_handle, by_chunk_state, by_transformer, by_size])
def test_too_long_index_answer_is_reported(
    read: Callable[[Any, bool], Any], n_more: int, at_start: bool
) -> None:
    """The handle and `chunk_state` once reported such an answer as an object that is too short for its index."""
    store = LongAnswers(MemoryStore())
    codec = zarr.codecs.ShardingCodec(
        chunk_shape=(2, 2), codecs=[zarr.codecs.BytesCodec()], index_location="start" if at_start else "end"
    )
    with shardcodec.enable(), gap_of(0):
        zarr.create_array(
            store, shape=(4, 4), shards=None, chunks=(4, 4), dtype="u1", serializer=codec, compressors=None
        )
        asyncio.run(store.set("c/0/0", buffer(letters(at_start=at_start))))
        read(store, at_start)
        store.n_more = n_more
        with pytest.raises(shardcodec.ShardFormatError, match="expected an index of 68 bytes, got") as caught:
            read(store, at_start)
    assert caught.value.shard == "c/0/0"
    assert (caught.value.expected, caught.value.actual) == (68, 68 + n_more)


def test_requests_of_a_handle_are_counted() -> None:
    store = OtherMemoryStore()
    asyncio.run(store.set("shard", buffer(letters())))
    before = shardcodec.stats()
    shard = shardcodec.open_shard(store, "shard", letters_spec())
    assert shard.read_encoded([(0, 1)]) == [b"one."]
    done = {name: n - before[name] for name, n in shardcodec.stats().items() if isinstance(n, int)}
    # the index, and the inner chunk with all to the byte that proves the size of the object
    assert done["requests"] == 2
    assert done["bytes_fetched"] == 68 + (84 - 4)


# ---- memory


def large_shard(n: int) -> bytes:
    """Return a shard of `n` inner chunks of which only chunk 7 exists."""
    entries = np.full((n, 2), ABSENT, "<u8")
    entries[7] = 0, 1
    return b"x" + entries.tobytes()


def peak_of(work: Callable[[], Any]) -> int:
    """Return the peak of allocated bytes while `work` runs."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_one_inner_chunk_needs_no_copy_of_the_index() -> None:
    """Each read of a handle once allocated an array of the whole index to check one entry."""
    n = 1_000_000
    store = OtherMemoryStore()
    asyncio.run(store.set("shard", buffer(large_shard(n))))
    spec = shardcodec.ShardSpec((n,), (1,), "uint8", 0, [LITTLE], [LITTLE])
    shard = shardcodec.open_shard(store, "shard", spec)
    assert shard.read_encoded([(7,), (8,)]) == [b"x", None]
    assert peak_of(lambda: shard.read_encoded([(7,), (8,)])) < MIB


def test_one_value_needs_no_copy_of_a_cached_index(tmp_path: Any) -> None:
    n = 1_000_000
    store = store_of("conditional", tmp_path)
    asyncio.run(store.set("shard", buffer(large_shard(n))))
    kv = ShardedKeyValueStore((store, "shard"), grid_shape=(n,), index_codecs=[LITTLE], cache_pool=64 * MIB)
    key = (7).to_bytes(4, "big")
    for _ in range(3):  # a large index is cached at its second read
        assert kv[key] == b"x"
    assert peak_of(lambda: kv[key]) < MIB


class Replaced(WrapperStore):  # type: ignore[type-arg]
    """A store without states, in which another process replaces an object just before a range of it is read."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.newer: dict[str, Any] = {}

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        if isinstance(byte_range, RangeByteRequest) and key in self.newer:
            await super().set(key, self.newer.pop(key))
        return await super().get(key, prototype, byte_range)


def test_value_is_read_again_if_an_object_without_a_state_was_replaced() -> None:
    """The entry of the old index lies behind the end of the new object: no damage, because the index is another one by now."""
    how: dict[str, Any] = {"grid_shape": (2, 2), "index_codecs": [LITTLE, CRC]}
    old, new = MemoryStore(), MemoryStore()
    ShardedKeyValueStore((old, "shard"), **how).update({bytes(7) + bytes([i]): b"x" * 1000 for i in range(2)})
    ShardedKeyValueStore((new, "shard"), **how).update({bytes(7) + bytes([i]): b"y" * 10 for i in range(2)})
    store = Replaced(old)
    store.newer["shard"] = sync(new.get("shard", PROTOTYPE))
    assert ShardedKeyValueStore((store, "shard"), **how)[bytes(7) + b"\1"] == b"y" * 10
    assert not store.newer
