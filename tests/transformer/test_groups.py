# test_groups.py - chunks written inside of `group_writes`
# SPDX-License-Identifier: MIT
"""Writes through a transformer inside of `group_writes`: readers see them at once, and each shard is stored once."""

from __future__ import annotations

import asyncio
import random
import struct
from contextvars import Context, copy_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import OtherMemoryStore, RecordingStore, create, in_child
from spec_json import CHECKED_INDEX
from transformer_stores import KINDS, below, buffer, keys, names, value, values
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec import GroupWriteError, ShardSpec, group_writes
from shardcodec.access import buffer as blocks
from shardcodec.access.buffer import group_writes as group_writes_module
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.transformer import ShardingStorageTransformer

PER_SHARD = (2, 3)


async def grouped(*work: Any, **how: Any) -> None:
    async with group_writes(**how):
        for each in work:
            await each


def over(store: Any, **how: Any) -> ShardingStorageTransformer:
    return ShardingStorageTransformer(store, PER_SHARD, **how)


@pytest.mark.parametrize("kind", ["memory", "local", "any", "conditional"])
async def test_chunks_are_visible_at_once_and_stored_at_end(kind: str, tmp_path: Path) -> None:
    inner = below(kind, tmp_path / "store")
    store = over(inner)
    await store.set("c/0/0", buffer(b"before"))
    await store.set("c/0/1", buffer(b"gone"))
    async with group_writes():
        await asyncio.gather(*(store.set(f"c/{i}/{i}", buffer(b"%d" % i * 5)) for i in range(6)))
        await store.delete("c/0/1")
        await store.delete("c/5/0")
        assert await value(over(inner), "c/3/3") == b"33333"  # another handle on the same shards
        assert await value(store, "c/0/1") is None and not await store.exists("c/0/1")
        assert await store.getsize("c/4/4") == 5
        assert await values(store, [("c/3/3", (-2, None)), ("c/0/1", None), ("c/1/1", (1, 2))]) == [
            b"33",
            None,
            b"11",
        ]
        assert await keys(inner) == ["c/0/0"]
        assert await value(store, "c/0/0") == b"00000"
    assert await keys(store) == [f"c/{i}/{i}" for i in range(6)]
    assert [await value(store, f"c/{i}/{i}") for i in range(6)] == [b"%d" % i * 5 for i in range(6)]


async def test_each_shard_is_written_once_without_reading_complete_ones() -> None:
    inner = RecordingStore(MemoryStore())
    store = over(inner)
    await store.set("c/2/0", buffer(b"old"))
    inner.forget()
    async with group_writes():
        for i in range(4):
            for j in range(3):
                await store.set(f"c/{i}/{j}", buffer(b"first"))
                await store.set(f"c/{i}/{j}", buffer(b"second"))
        await store.set("c/9/9", buffer(b"alone"))
        assert inner.calls == []
    assert sorted(inner.written) == ["c/0/0", "c/1/0", "c/4/3"]
    assert [key for key, _ in inner.requests] == ["c/4/3"]
    assert await value(store, "c/2/0") == b"second"


@pytest.mark.parametrize("budget", [0, 700, 1 << 20])
@pytest.mark.parametrize("kind", KINDS)
async def test_random_operations_match_a_dictionary(kind: str, budget: int, tmp_path: Path) -> None:
    inner = below(kind, tmp_path / "store")
    rng, twin = random.Random(budget), {}
    names = [f"c/{i}/{j}" for i in range(4) for j in range(6)]
    for _ in range(2):
        store = over(inner)
        async with group_writes(budget):
            for _ in range(80):
                key, data = rng.choice(names), rng.randbytes(rng.randrange(60))
                match rng.randrange(7):
                    case 0 | 1:
                        await store.set(key, buffer(data))
                        twin[key] = data
                    case 2:
                        many = rng.sample(names, 5)
                        await store.set_many([(k, buffer(data)) for k in many])
                        twin.update(dict.fromkeys(many, data))
                    case 3:
                        gone = rng.sample(names, 4)
                        await store.erase_values(gone)
                        for k in gone:
                            twin.pop(k, None)
                    case 4:
                        two = rng.sample(names, 2)
                        await store.set_partial_values([(k, 0, data) for k in two])
                        for k in two:
                            twin[k] = data + twin.get(k, b"")[len(data) :]
                    case 5:
                        old = twin.get(key, b"")
                        start = rng.randrange(len(old) + 1)
                        await store.set_partial_values([(key, start, data)])
                        twin[key] = old[:start] + data + old[start + len(data) :]
                    case _:
                        await store.set_if_not_exists(key, buffer(data))
                        twin.setdefault(key, data)
                buffer_ = blocks.active_buffer()
                assert buffer_ is not None and buffer_.nbytes <= budget
                assert buffer_.nbytes == sum(one.memory_nbytes for one in buffer_._objects.values())
                some = rng.sample(names, 3)
                assert await values(store, [(k, None) for k in some]) == [twin.get(k) for k in some]
            if budget == 700:
                assert await keys(store) == sorted(twin)
        assert {k: await value(over(inner), k) for k in await keys(over(inner))} == twin


async def test_buffered_part_keeps_part_of_another_process(tmp_path: Path) -> None:
    store = over(LocalStore(tmp_path))
    await store.set_many([("c/0/0", buffer(b"........")), ("c/0/1", buffer(b"--------"))])
    async with group_writes():
        await store.set_partial_values([("c/0/0", 0, b"ab"), ("c/0/1", -2, b"yz")])
        await store.set("c/1/0", buffer(b"mine"))

        def other() -> None:
            group_writes_module._reset_in_child()
            asyncio.run(store.set_partial_values([("c/0/0", 4, b"EF"), ("c/1/1", 0, b"theirs")]))

        in_child(other)
        assert await value(store, "c/0/0") == b"ab......"
    assert await value(store, "c/0/0") == b"ab..EF.."
    assert await value(store, "c/0/1") == b"------yz"
    assert await value(store, "c/1/0") == b"mine" and await value(store, "c/1/1") == b"theirs"


async def test_part_beyond_end_raises_at_once(tmp_path: Path) -> None:
    store = over(LocalStore(tmp_path))
    async with group_writes():
        await store.set("c/0/0", buffer(b"abc"))
        with pytest.raises(ValueError, match="begins at byte 9"):
            await store.set_partial_values([("c/0/0", 0, b"X"), ("c/0/1", 9, b"beyond")])
        assert await value(store, "c/0/0") == b"abc"
        mine = bytearray(b"value")
        await store.set("c/0/2", buffer(mine))  # type: ignore[arg-type]
        await store.set_partial_values([("c/1/2", 0, mine)])
        mine[:] = b"other"
    assert await keys(store) == ["c/0/0", "c/0/2", "c/1/2"]
    assert [await value(store, key) for key in ("c/0/2", "c/1/2")] == [b"value"] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_array_over_transformer_stores_each_shard_once(kind: str, tmp_path: Path) -> None:
    """Elements are buffered in chunks and chunks in shards; each object is stored once."""
    inner = below(kind, tmp_path / "store")
    twin = np.zeros((24, 24), dtype="i4")
    with shardcodec.enable():
        array = zarr.create_array(
            over(inner, index_codecs=CHECKED_INDEX),
            shape=twin.shape,
            chunks=(4, 4),
            dtype="i4",
            compressors=None,
        )
        rng = np.random.default_rng(1)
        with group_writes():
            for step in range(40):
                r, c = rng.integers(0, 20, 2)
                array[r : r + 4, c : c + 3] = twin[r : r + 4, c : c + 3] = step
                if step % 4 == 0:  # a whole chunk
                    array[4:8, 8:12] = twin[4:8, 8:12] = -step
                assert np.array_equal(array[:, 3:20], twin[:, 3:20])
        if isinstance(inner, RecordingStore):
            assert len(inner.written) == len(set(inner.written)) == 6 + 1  # six shards and the metadata
        assert np.array_equal(array[:], twin)
    assert np.array_equal(zarr.open_array(over(inner, index_codecs=CHECKED_INDEX), mode="r")[:], twin)


def test_transformer_and_sharded_array_on_same_shards(tmp_path: Path) -> None:
    """A shard has either buffered elements or buffered chunks: the earlier ones are stored first, and nothing is lost."""
    with shardcodec.enable():
        array = zarr.create_array(
            LocalStore(tmp_path), shape=(8, 12), shards=(4, 6), chunks=(2, 2), dtype="u1", compressors=None
        )
        store = over(LocalStore(tmp_path), index_codecs=CHECKED_INDEX)
        twin = np.zeros((8, 12), dtype="u1")
        rng = random.Random(5)

        async def work() -> None:
            for step in range(1, 60):
                i, j = rng.randrange(4), rng.randrange(6)
                if rng.random() < 0.5:
                    await store.set(f"c/{i}/{j}", buffer(bytes([step] * 4)))
                else:
                    await asyncio.to_thread(
                        array.__setitem__, (slice(2 * i, 2 * i + 2), slice(2 * j, 2 * j + 2)), step
                    )
                twin[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = step
                assert np.array_equal(await asyncio.to_thread(array.__getitem__, slice(None)), twin)
                data = twin[2 * i : 2 * i + 2, 2 * j : 2 * j + 2].tobytes()
                assert await value(store, f"c/{i}/{j}") == data

        with group_writes():
            asyncio.run(work())
    assert np.array_equal(zarr.open_array(tmp_path, mode="r")[:], twin)


@pytest.mark.parametrize("way", ["array", "attached", "open_array", "handle", "key-value"])
def test_array_over_transformer_and_another_way_to_the_same_shards(way: str, tmp_path: Path) -> None:
    """Chunks of the array are objects in the shard. The other way saw the shard without their buffered elements, and what was
    written there first was stored last.
    """
    spec = ShardSpec((4, 6), (2, 2), "u1", 0, index_codecs=CHECKED_INDEX)
    with shardcodec.enable():
        how: Any = {"shape": (4, 6), "dtype": "u1", "compressors": None}
        over_it = zarr.create_array(
            over(LocalStore(tmp_path), path="b", index_codecs=CHECKED_INDEX), name="b", chunks=(2, 2), **how
        )
        sharded = zarr.create_array(tmp_path, name="a", shards=(4, 6), chunks=(2, 2), **how)
        (tmp_path / "b/c").mkdir()
        (tmp_path / "a/c").symlink_to(tmp_path / "b/c")
        if way == "attached":
            sharded = shardcodec.attach(sharded)
        shard = shardcodec.open_shard(tmp_path / "b/c/0/0", None, spec=spec, mode="r+")
        store = ShardedKeyValueStore(str(tmp_path / "b/c/0/0"), grid_shape=(2, 3), index_codecs=CHECKED_INDEX)
        key = struct.pack(">2I", 0, 1)

        def read() -> np.ndarray[Any, Any]:
            if way == "handle":
                return shard.refresh().read_chunks([(0, 1)])[0]  # type: ignore[no-any-return]
            if way == "key-value":
                return np.frombuffer(store[key], "u1").reshape(2, 2)
            array: Any = shardcodec.open_array(tmp_path, "a") if way == "open_array" else sharded
            return array[:2, 2:4]  # type: ignore[no-any-return]

        def write(number: int) -> None:
            if way == "handle":
                shard.write_chunks([(0, 1)], np.full((1, 2, 2), number, "u1"))
            elif way == "key-value":
                store[key] = bytes([number] * 4)
            else:
                sharded[:2, 2:4] = number

        with group_writes():
            over_it[0, 2] = 1
            assert read().tolist() == [[1, 0], [0, 0]]
            over_it[1, 2] = 2
            write(3)
            assert over_it[:2, 2:4].tolist() == [[3, 3], [3, 3]]
            over_it[0, 3] = 4
            write(5)
            over_it[1, 3] = 6
        assert read().tolist() == over_it[:2, 2:4].tolist() == [[5, 5], [5, 6]]


async def test_listing_stores_buffered_writes_first(tmp_path: Path) -> None:
    store = over(LocalStore(tmp_path))
    async with group_writes():
        await store.set("c/0/0", buffer(b"abc"))
        assert await keys(store) == ["c/0/0"]
        await store.set("c/7/7", buffer(b"abc"))
        assert await names(store, "c") == ["0", "7"]
        await store.set("c/8/8", buffer(b"abc"))
        assert await store.getsize_prefix("c") == 9
        await store.set("c/9/9", buffer(b"abc"))
        await store.delete_dir("c/9")
        await store.set("c/9/8", buffer(b"new"))
    assert await keys(store) == ["c/0/0", "c/7/7", "c/8/8", "c/9/8"]


async def test_damaged_shard_is_named_and_other_shards_are_written(tmp_path: Path) -> None:
    store = over(LocalStore(tmp_path), index_codecs=CHECKED_INDEX)
    await store.set("c/0/0", buffer(b"abc"))
    (tmp_path / "c/0/0").write_bytes(b"\0" * 200)
    with pytest.raises(GroupWriteError) as caught:
        await grouped(store.set("c/0/1", buffer(b"x")), store.set("c/2/3", buffer(b"y")))
    assert caught.value.unwritten == (str(tmp_path / "c/0/0"),)
    assert caught.value.written == (str(tmp_path / "c/1/1"),)
    assert await value(store, "c/2/3") == b"y"


async def test_two_layouts_of_one_file_are_not_mixed(tmp_path: Path) -> None:
    """Buffered writes of one layout are stored before writes of another layout of the same file are buffered."""
    one, other = over(LocalStore(tmp_path)), ShardingStorageTransformer(LocalStore(tmp_path), (3, 2))
    async with group_writes():
        await one.set("c/0/0", buffer(b"abc"))
        assert await value(other, "c/0/0") == b"abc"
        await other.set("c/2/1", buffer(b"def"))
        assert await value(one, "c/0/0") == b"abc"
        assert await value(one, "c/1/2") == b"def"  # position 5 in both layouts


async def test_discarded_block_writes_nothing(tmp_path: Path) -> None:
    store = over(LocalStore(tmp_path))

    async def fail() -> None:
        assert await value(store, "c/0/0") == b"abc"
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await grouped(store.set("c/0/0", buffer(b"abc")), fail(), flush_on_error=False)
    assert await keys(store) == []
    readonly = over(LocalStore(tmp_path), read_only=True)
    async with group_writes():
        with pytest.raises(ValueError, match="read-only"):
            await readonly.set("c/0/0", buffer(b"abc"))


def test_task_started_by_a_flush_is_no_part_of_it_afterwards() -> None:
    """While one shard is flushed at the end of the block, a task that the flush of another one has started writes a chunk. Before
    the fix, it was buffered, though no block was open."""
    contexts: list[Context] = []
    written: list[str] = []
    shards = MemoryStore()

    class KeepsContext(OtherMemoryStore):
        async def set(self, key: str, value: Any, byte_range: Any = None) -> None:
            await super().set(key, value)
            if not key.endswith("zarr.json"):
                contexts.append(copy_context())
                if len(contexts) == 2:
                    await write_after_the_first_flush()

    async def write_after_the_first_flush() -> None:
        async with asyncio.timeout(60):
            while (open_buffer := blocks.active_buffer()) is not None and len(open_buffer.names()) > 1:
                await asyncio.sleep(0.001)
            write = over(shards).set("c/0/0", buffer(b"late"))
            await asyncio.create_task(write, context=contexts[0])
        written.extend(await keys(shards))

    array = create(KeepsContext())
    with group_writes():
        array[0, 0] = array[15, 23] = 7
    assert len(contexts) == 2 and written == ["c/0/0"]
