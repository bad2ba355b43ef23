# test_writers.py - concurrent writers through transformers lose no chunk
# SPDX-License-Identifier: MIT
"""As `test_lost_updates`: each writer has its own chunks in shared shards and checks them after each write."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import RecordingStore
from spec_json import CHECKED_INDEX
from transformer_stores import below, buffer, keys, value
from workers import in_processes, in_threads
from zarr.storage import LocalStore, MemoryStore

from shardcodec import group_writes
from shardcodec.errors import LockError
from shardcodec.storage import process_locks
from shardcodec.transformer import ShardingStorageTransformer

pytestmark = [
    pytest.mark.threads,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not available"),
]

ROUNDS = 12
WRITERS = 6

Make = Callable[[], Any]


def flat(folder: Path, **choices: Any) -> Make:
    return lambda: ShardingStorageTransformer(
        LocalStore(folder), (4, 4), index_codecs=CHECKED_INDEX, **choices
    )


def stacked(folder: Path, **choices: Any) -> Make:
    """Return stores with nested shards, all in one file."""
    return lambda: ShardingStorageTransformer(
        ShardingStorageTransformer(LocalStore(folder), (2, 2), **choices), (2, 2), **choices
    )


async def writes(store: Any, number: int) -> None:
    """Set, overwrite in part and erase chunks; each read must return the last write of this writer."""
    mine = [f"c/{i}/{j}" for i in range(4) for j in range(4) if (4 * i + j) % WRITERS == number]
    for turn in range(ROUNDS):
        data = f"{number}:{turn};".encode() * (1 + 7 * ((turn + number) % 5))
        await asyncio.gather(*(store.set(key, buffer(data)) for key in mine))
        assert [await value(store, key) for key in mine] == [data] * len(mine)
        await store.set_partial_values([(mine[0], 0, b"#"), (mine[0], len(data), b"end")])
        assert await value(store, mine[0]) == b"#" + data[1:] + b"end"
        if turn % 3 == 2:
            await store.delete(mine[-1])
            assert not await store.exists(mine[-1])


def work_on(make: Make) -> Callable[[int], None]:
    return lambda number: asyncio.run(writes(make(), number))


async def check_all(store: Any) -> None:
    found = set(await keys(store))
    for number in range(WRITERS):
        mine = [f"c/{i}/{j}" for i in range(4) for j in range(4) if (4 * i + j) % WRITERS == number]
        assert found & set(mine) == set(mine[:-1])


@pytest.mark.parametrize("make", [flat, stacked])
@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_concurrent_processes_lose_no_chunk(make: Callable[..., Make], strategy: str, tmp_path: Path) -> None:
    open_store = make(tmp_path / "store", write_strategy=strategy)
    in_processes(WRITERS, work_on(open_store))
    asyncio.run(check_all(open_store()))
    assert len(asyncio.run(keys(LocalStore(tmp_path / "store")))) == 1


@pytest.mark.parametrize(
    "kind",
    [
        "memory",
        "local",
        "any",
        "conditional",
        *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("stack", "stack of any")),
    ],
)
def test_threads_with_own_event_loops_lose_no_chunk(kind: str, tmp_path: Path) -> None:
    inner = below(kind, tmp_path / "store")
    stores = [ShardingStorageTransformer(inner, (4, 4)) for _ in range(2)]
    in_threads(WRITERS, lambda number: asyncio.run(writes(stores[number % 2], number)))
    asyncio.run(check_all(stores[0]))


def test_set_if_not_exists_of_processes_has_one_winner(tmp_path: Path) -> None:
    store = ShardingStorageTransformer(LocalStore(tmp_path / "store"), (8,))

    async def claim(number: int) -> None:
        for i in range(16):
            await store.set_if_not_exists(f"c/{i}", buffer(str(number).encode()))
            assert await store.exists(f"c/{i}")
            (tmp_path / f"{number}-{i}").write_bytes(await value(store, f"c/{i}") or b"")

    in_processes(WRITERS, lambda number: asyncio.run(claim(number)))
    for i in range(16):
        assert len({(tmp_path / f"{number}-{i}").read_bytes() for number in range(WRITERS)}) == 1


def test_threads_write_rows_of_one_array(tmp_path: Path) -> None:
    store = ShardingStorageTransformer(tmp_path / "store", (4, 4))
    array = zarr.create_array(store, shape=(48, 16), chunks=(1, 4), dtype="int32", fill_value=0)

    def rows(number: int) -> None:
        for row in range(number, 48, WRITERS):
            array[row] = row + 1
            assert np.all(array[row] == row + 1)

    in_threads(WRITERS, rows)
    assert np.array_equal(array[:, 0], np.arange(1, 49))


async def test_lock_timeout_raises(tmp_path: Path) -> None:
    store = ShardingStorageTransformer(tmp_path / "store", (4,), lock_timeout=0.2)
    await store.set("c/0", buffer(b"abc"))
    begun, done = threading.Event(), threading.Event()

    def hold(_: int) -> None:
        from shardcodec import native

        lock = native.load().FileLock()
        assert lock.try_acquire(str(tmp_path / "store/c/0")) == "held"
        begun.set()
        done.wait(30)
        lock.release()

    holder = threading.Thread(target=hold, args=(0,))
    holder.start()
    try:
        begun.wait(30)
        with pytest.raises(LockError, match="c/0"):
            await store.set("c/1", buffer(b"x"))
    finally:
        done.set()
        holder.join()
    await store.set("c/1", buffer(b"x"))
    assert await value(store, "c/0") == b"abc"


async def test_cancelled_write_does_not_stop_other_writes(tmp_path: Path) -> None:
    store = ShardingStorageTransformer(RecordingStore(MemoryStore()), (4,))
    name = f"memory:{id(store.store._store._store_dict)}/c/0"
    process_locks.table().acquire(name)  # makes the writes wait in the queue
    try:
        first, second = (asyncio.ensure_future(store.set(f"c/{i}", buffer(b"x"))) for i in (0, 1))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
    finally:
        process_locks.table().release(name)
    await second
    assert await value(store, "c/1") == b"x"
    assert first.cancelled()


async def test_error_of_one_change_does_not_stop_other_changes() -> None:
    store = ShardingStorageTransformer(MemoryStore(), (4,))
    results = await asyncio.gather(
        store.set("c/0", buffer(b"good")),
        store.set_partial_values([("c/1", 7, b"beyond")]),
        store.set("c/2", buffer(b"good")),
        return_exceptions=True,
    )
    assert results[0] is None
    assert isinstance(results[1], ValueError)
    assert results[2] is None
    assert await keys(store) == ["c/0", "c/2"]


@pytest.mark.parametrize("kind", ["memory", "local", "conditional", "stack"])
@pytest.mark.parametrize("budget", [300, 1 << 20])
def test_threads_inside_of_group_writes_lose_no_chunk(kind: str, budget: int, tmp_path: Path) -> None:
    inner = below(kind, tmp_path / "store")
    stores = [ShardingStorageTransformer(inner, (4, 4)) for _ in range(2)]
    with group_writes(budget):
        in_threads(WRITERS, lambda number: asyncio.run(writes(stores[number % 2], number)))
        asyncio.run(check_all(stores[0]))
    asyncio.run(check_all(stores[1]))
