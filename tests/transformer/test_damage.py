# test_damage.py - shards that are damaged, or change during a read
# SPDX-License-Identifier: MIT
from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from helpers import ABSENT, RecordingStore, assemble, entries_of, memory_object_store
from spec_json import CHECKED_INDEX
from transformer_stores import PROTOTYPE, below, buffer, keys, value, values
from zarr.storage import MemoryStore

from shardcodec.errors import ChecksumError, ShardFormatError
from shardcodec.storage.object_store import ObjectStore
from shardcodec.transformer import ShardingStorageTransformer

HOSTILE = [
    (b"", "too short"),
    (b"x" * 31, "too short"),
    (assemble(b"abcdef", [(0, 100), (ABSENT, ABSENT)], crc=False), "claims"),
    (assemble(b"abcdef", [(2**64 - 8, 16), (ABSENT, ABSENT)], crc=False), "claims"),
    (assemble(b"abcdef", [(ABSENT, 3), (ABSENT, ABSENT)], crc=False), "inner chunk"),
    (assemble(b"abcdef", [(4, 20), (ABSENT, ABSENT)], crc=False), "index"),
]


@pytest.mark.parametrize("kind", ["memory", "local", "any", "conditional", "stack"])
@pytest.mark.parametrize(("blob", "text"), HOSTILE)
async def test_damaged_shard_raises_and_is_unchanged(
    kind: str, blob: bytes, text: str, tmp_path: Path
) -> None:
    inner = below(kind, tmp_path / "store")
    store = ShardingStorageTransformer(inner, (1, 2), path="a")
    await inner.set("a/c/3/0", buffer(blob))
    with pytest.raises(ShardFormatError) as caught:
        await store.get("a/c/3/0", PROTOTYPE)
    assert caught.value.shard == "a/c/3/0"
    if text != "too short":
        assert caught.value.chunk_coords == (0, 0)
        assert caught.value.context["chunk_key"] == "a/c/3/0"
        # the other chunk is absent, but a damaged shard raises for every chunk
        if kind != "any" or text == "inner chunk":
            with pytest.raises(ShardFormatError):
                await value(store, "a/c/3/1")
    works = [
        lambda: store.set("a/c/3/1", buffer(b"new")),
        lambda: store.set_partial_values([("a/c/3/0", 0, b"x")]),
    ]
    if kind != "any" or text not in ("claims", "index"):  # the store does not report the size of a shard
        works += [lambda: store.getsize("a/c/3/0"), lambda: keys(store)]
    for work in works:
        with pytest.raises(ShardFormatError, match="a/c/3/0"):
            await work()
    assert await value(inner, "a/c/3/0") == blob
    # a complete write replaces the damaged shard
    await store.set_many([("a/c/3/0", buffer(b"0")), ("a/c/3/1", buffer(b"1"))])
    assert await values(store, [("a/c/3/0", None), ("a/c/3/1", None)]) == [b"0", b"1"]


@pytest.mark.parametrize("kind", ["memory", "local", "any"])
async def test_wrong_checksum_of_index_raises(kind: str, tmp_path: Path) -> None:
    inner = below(kind, tmp_path / "store")
    store = ShardingStorageTransformer(inner, (2,), index_codecs=CHECKED_INDEX)
    await store.set("c/0", buffer(b"abc"))
    blob = await value(inner, "c/0")
    assert blob is not None
    assert entries_of(blob, 2) == [(0, 3), (ABSENT, ABSENT)]
    await inner.set("c/0", buffer(blob[:-6] + b"??" + blob[-4:]))
    with pytest.raises(ChecksumError, match="c/0"):
        await store.get("c/0", PROTOTYPE)


async def test_shard_replaced_between_two_calls_is_read_again() -> None:
    class Replacing(RecordingStore):
        new: Any = None

        async def get_partial_values(self, prototype: Any, key_ranges: Iterable[Any]) -> Any:
            found = await super().get_partial_values(prototype, key_ranges)
            if self.new is not None:
                await self._store.set("c/0", self.new)
                self.new = None
            return found

    inner = Replacing(MemoryStore())
    store = ShardingStorageTransformer(inner, (2,))
    await store.set("c/0", buffer(b"long " * 20))
    inner.new = buffer(assemble(b"short", [(0, 5), (ABSENT, ABSENT)], crc=False))
    assert await value(store, "c/0") == b"short"


async def test_write_between_two_calls_of_a_read_is_detected() -> None:
    class Interfering(RecordingStore):
        work: Any = None

        async def get_partial_values(self, prototype: Any, key_ranges: Iterable[Any]) -> Any:
            found = await super().get_partial_values(prototype, key_ranges)
            if self.work is not None:
                work, self.work = self.work, None
                await work
            return found

    inner = Interfering(MemoryStore())
    for store in (
        ShardingStorageTransformer(inner, (2,)),
        ShardingStorageTransformer(ShardingStorageTransformer(inner, (2,)), (2,)),
    ):
        await store.set_many([("c/0", buffer(b"a" * 60)), ("c/1", buffer(b"right"))])
        # this write packs the shard: c/1 moves to the place of c/0, and c/0 behind it
        inner.work = store.set("c/0", buffer(b"b" * 60))
        assert await value(store, "c/1") == b"right"
        assert inner.work is None
        await store.clear()


@pytest.mark.parametrize("times", [1, 2, 100])
async def test_shard_with_entity_tag_that_is_replaced_is_read_in_one_state(
    times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some replacements the whole shard is fetched with one request."""
    inner = memory_object_store()
    store = ShardingStorageTransformer(inner, (3,))
    get_range, requests = ObjectStore.get_range, []

    def state(n: int) -> list[bytes]:
        return [b"first %d " % n * 3, b"second %d " % n * 2]

    async def replace() -> None:
        replaced = state(len(requests))
        entries = [(0, len(replaced[0])), (len(replaced[0]), len(replaced[1])), (ABSENT, ABSENT)]
        await inner.set("c/0", buffer(assemble(b"".join(replaced), entries, crc=False)))

    async def replacing(self: Any, *arguments: Any) -> Any:
        requests.append(arguments)
        if len(requests) <= times:
            await replace()
        return await get_range(self, *arguments)

    await replace()
    monkeypatch.setattr(ObjectStore, "get_range", replacing)
    found = await values(store, [("c/0", None), ("c/1", None)])
    assert found in [state(n) for n in range(len(requests) + 1)]
    assert len(requests) == min(times + 1, 3)
