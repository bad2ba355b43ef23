# test_async_methods.py - coroutines of the key-value store, and their threads
# SPDX-License-Identifier: MIT
"""`shardcodec.kv` on an event loop."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from helpers import in_child, run_checked
from kv_stores import key, open_kv
from zarr.storage import MemoryStore

from shardcodec.kv import FAILED, KeyRange, ShardedKeyValueStore
from shardcodec.kv.entries import Entries


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shard"


@pytest.mark.parametrize("location", ["end", "start"])
def test_coroutines_match_synchronous_methods(path: Path, location: str) -> None:
    store = open_kv(path, index_location=location)

    async def use(store: ShardedKeyValueStore) -> None:
        stamp = await store.write_async(key(0, 1), b"abc")
        assert (await store.read_async(key(0, 1), byte_range=slice(1, 2))).value == b"b"
        assert (await store.write_async(key(0, 1), b"x", if_equal="absent")).generation == FAILED
        await asyncio.gather(*(store.write_async(key(1, j), b"%d" % j) for j in range(3)))
        assert len(await store.list_async()) == 4
        found = await store.read_many_async([key(1, 0), key(0, 1)])
        assert [r.value for r in found] == [b"0", b"abc"]
        assert (await store.delete_async(key(0, 1), if_equal=stamp.generation)).generation == FAILED
        assert (await store.delete_async(key(0, 1))).generation
        await store.delete_range_async(KeyRange(key(1, 1)))
        async with store.transaction() as t:
            t[key(0, 0)] = b"t"
            assert await t.list_async() == [key(0, 0), key(1, 0)]
            assert await store.list_async() == [key(1, 0)]
        assert await store.list_async() == [key(0, 0), key(1, 0)]

    asyncio.run(use(store))
    asyncio.run(use(open_kv(Path(str(store.base)).with_name("bounded"), data_copy_concurrency=2)))


def test_only_small_local_reads_run_on_event_loop(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large values were read on the event loop, and so were reads in a transaction, whose lock another thread may hold."""
    store = open_kv(path)
    store.update({key(0, 0): b"small", key(0, 1): bytes(2 << 20)})
    inner = open_kv((store, key(1, 1)))
    inner[key(0, 0)] = b"in a value"
    memory = open_kv((MemoryStore(), "k"))
    memory.update({key(0, 0): b"small", key(0, 1): bytes(2 << 20)})
    many = open_kv(path.with_name("many"), (1 << 17,))
    threads: list[bool] = []
    value_in = Entries.value_in

    def noted(*arguments: Any) -> bytes | None:
        threads.append(threading.current_thread() is threading.main_thread())
        return value_in(*arguments)

    monkeypatch.setattr(Entries, "value_in", noted)

    async def is_on_the_loop(store: ShardedKeyValueStore, k: bytes, **how: Any) -> bool:
        threads.clear()
        await store.read_async(k, **how)
        return threads[-1]

    async def use() -> None:
        assert await is_on_the_loop(store, key(0, 0))
        assert not await is_on_the_loop(store, key(0, 1))
        assert await is_on_the_loop(store, key(0, 1), byte_range=slice(-5, None))
        assert not await is_on_the_loop(memory, key(0, 0))
        assert not await is_on_the_loop(inner, key(0, 0))
        assert not await is_on_the_loop(many, key(0))
        assert not await is_on_the_loop(store.transaction(), key(0, 0))
        with pytest.raises(ValueError, match="not valid for value of size 5"):
            await store.read_async(key(0, 0), byte_range=slice(0, 9))

    asyncio.run(use())


def test_forked_child_starts_its_own_threads(path: Path) -> None:
    """A store with its own threads that was used before the fork hung in the child."""
    store = open_kv(path, data_copy_concurrency=2)

    async def use() -> None:
        await asyncio.gather(*(store.write_async(key(1, j), b"%d" % j) for j in range(3)))

    asyncio.run(use())
    in_child(lambda: asyncio.run(use()))
    asyncio.run(use())


def test_writes_that_wait_for_a_lock_leave_threads_to_its_owner(tmp_path: Path) -> None:
    """A coroutine of an array holds the lock of a shard while it waits for a thread.

    Writes of the store waited for that lock in all threads of the event loop, until they gave up.
    """
    code = f"""
        import asyncio, os, numpy as np, zarr, shardcodec
        from pathlib import Path
        from zarr.core.sync import sync
        from shardcodec.kv import ShardedKeyValueStore
        zarr.config.set({{"threading.max_workers": 1}})
        os.environ["SHARDCODEC_LOCK_TIMEOUT"] = "5"
        shardcodec.enable()
        path = Path({str(tmp_path)!r})
        array = zarr.create_array(path / "a", shape=(2048, 2048), shards=(2048, 2048), chunks=(256, 256), dtype="i4")
        array[:] = 1
        store = ShardedKeyValueStore(
            path / "a/c/0/0",
            grid_shape=(8, 8),
            index_codecs=[{{"name": "bytes", "configuration": {{"endian": "little"}}}}, {{"name": "crc32c"}}],
        )
        key, value = list(store.items())[-1]
        half = (slice(None), slice(0, 1024))

        async def use():
            arrays = [array.async_array.setitem(half, np.full((2048, 1024), n)) for n in range(6)]
            values = [store.write_async(key, value) for _ in range(3)]
            async with store.transaction() as transaction:
                await transaction.write_async(key, value)
                values.append(transaction.commit_async())
                await asyncio.gather(*arrays[:3], *values, *arrays[3:])

        for _ in range(4):
            sync(use())
    """
    run_checked(code)
