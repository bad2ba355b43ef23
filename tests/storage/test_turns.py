# test_turns.py - small reads and writes let the event loop run other tasks
# SPDX-License-Identifier: MIT
"""Small calls run on the event loop itself and never wait.

A loop over thousands of them must not keep other tasks and time-outs from running: 4,000 small writes once let
``asyncio.timeout(1.0)`` fire only after 4.6 s. If a file system needs a round trip for each access, no file work
runs on the event loop.
"""

from __future__ import annotations

import asyncio
import os
import struct
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
import zarr
from helpers import OtherMemoryStore, checked, create, on_pipeline, ours, quiet
from spec_json import CRC, LITTLE

import shardcodec
from shardcodec.access import array_read, array_write
from shardcodec.compat import array_spec, default_buffer_prototype, pipeline_of
from shardcodec.kv import ShardedKeyValueStore
from shardcodec.storage import file_locks, file_systems, files, object_names, turns
from shardcodec.storage.kinds import store_of
from shardcodec.transformer import ShardingStorageTransformer
from shardcodec.zarr_plugin import codec

Call = Callable[[], Awaitable[Any]]
N_CALLS = 4 * turns.MAX_CALLS_OF_A_TURN


@pytest.fixture(autouse=True)
def _count_calls_not_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this the number of turns would depend on the speed of the machine."""
    monkeypatch.setattr(turns, "MAX_SECONDS", 3600.0)


class Rounds:
    """Count the rounds of an event loop while a block runs."""

    def __init__(self) -> None:
        self.n = 0

    async def _count(self) -> None:
        while True:
            self.n += 1
            await asyncio.sleep(0)

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._count())
        await asyncio.sleep(0)
        self.n = 0
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()


def read_of(array: Any) -> Call:
    return lambda: array.async_array.getitem((slice(0, 4), slice(0, 3)))


def write_of(array: Any) -> Call:
    return lambda: array.async_array.setitem((slice(0, 4), slice(0, 3)), np.zeros((4, 3), "int32"))


def read_of_a_value(folder: Path) -> Call:
    entries = ShardedKeyValueStore(folder / "s", grid_shape=(2, 2), index_codecs=[LITTLE, CRC])
    key = struct.pack(">2I", 0, 1)
    entries[key] = b"value"
    return lambda: entries.read_async(key)


def read_through_a_transformer() -> Call:
    store = ShardingStorageTransformer(zarr.storage.MemoryStore(), (2, 2))
    with quiet():
        zarr.create_array(store, shape=(4, 4), chunks=(2, 2), dtype="u1", fill_value=9)[...] = 1
    return lambda: store.get("c/0/0", default_buffer_prototype())


def read_through_the_codec(folder: Path) -> Call:
    array = create(folder, own=True)
    array[...] = 1
    sharding = shardcodec.ShardingCodec.from_dict(array.metadata.codecs[0].to_dict())
    spec = array_spec((8, 12), array.metadata.data_type, np.int32(-1), write_empty=False)
    target = array.store_path / "c/0/0"
    return lambda: sharding._decode_partial_single(target, (slice(0, 4), slice(0, 3)), spec)


KINDS: dict[str, Callable[[Path], Call]] = {
    "read of a file": lambda folder: read_of(create(folder)),
    "read of memory": lambda _: read_of(create(zarr.storage.MemoryStore())),
    "write of a file": lambda folder: write_of(create(folder)),
    "write of memory": lambda _: write_of(create(zarr.storage.MemoryStore())),
    "value": read_of_a_value,
    "transformer": lambda _: read_through_a_transformer(),
    "codec": read_through_the_codec,
}


@pytest.mark.parametrize("kind", KINDS)
def test_loop_over_small_calls_lets_other_tasks_run(kind: str, tmp_path: Path) -> None:
    call = KINDS[kind](tmp_path)

    async def main() -> int:
        async with Rounds() as rounds:
            for _ in range(N_CALLS):
                await call()
        return rounds.n

    assert asyncio.run(main()) >= N_CALLS // turns.MAX_CALLS_OF_A_TURN


@pytest.mark.parametrize("kind", ["read of a file", "write of memory"])
def test_each_round_admits_a_few_calls_of_many_tasks(kind: str, tmp_path: Path) -> None:
    """`asyncio.gather` starts all tasks in one round of the event loop."""
    call = KINDS[kind](tmp_path)

    async def main() -> Counter[int]:
        ends: Counter[int] = Counter()
        async with Rounds() as rounds:

            async def one() -> None:
                await call()
                ends[rounds.n] += 1

            await asyncio.gather(*(one() for _ in range(N_CALLS)))
        return ends

    ends = asyncio.run(main())
    assert sum(ends.values()) == N_CALLS
    assert max(ends.values()) <= 2


def test_tasks_that_start_together_run_together(tmp_path: Path) -> None:
    """xarray loads one object in several tasks; each of them must start before the first one ends."""
    call, seen = read_of(create(tmp_path)), []

    async def one(number: int) -> None:
        seen.append(("begin", number))
        await call()
        seen.append(("end", number))

    async def main() -> None:
        await asyncio.gather(*map(one, range(3)))

    asyncio.run(main())
    assert seen[:3] == [("begin", 0), ("begin", 1), ("begin", 2)]


def test_time_out_stops_a_loop_over_small_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_SECONDS", 0.001)
    call = read_of(create(tmp_path))

    async def main() -> None:
        async with asyncio.timeout(0.05):
            while True:
                await call()

    with pytest.raises(TimeoutError):
        asyncio.run(main())


def test_turn_ends_after_some_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MAX_SECONDS", 0.0)
    call = read_of(create(tmp_path))

    async def main() -> int:
        async with Rounds() as rounds:
            for _ in range(10):
                await call()
        return rounds.n

    assert asyncio.run(main()) >= 10


def test_cancelled_waiter_passes_its_turn_on(tmp_path: Path) -> None:
    call = read_of(create(tmp_path))

    async def main() -> list[bool]:
        tasks = [asyncio.ensure_future(call()) for _ in range(10)]
        await asyncio.sleep(0)  # the first task lets the loop run, the others wait for it
        for task in tasks[:8:2]:
            task.cancel()
        await asyncio.wait(tasks, timeout=30)
        return [task.cancelled() for task in tasks]

    assert asyncio.run(main()) == [True, False] * 4 + [False, False]


def test_closed_loop_with_waiting_calls_does_not_block_the_next_loop(tmp_path: Path) -> None:
    call = read_of(create(tmp_path))

    async def abandon() -> None:
        tasks = [asyncio.ensure_future(call()) for _ in range(10)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)

    asyncio.run(abandon())
    asyncio.run(asyncio.wait_for(call(), 30))


def test_synchronous_calls_seldom_wait_for_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call is a task of its own on zarr's event loop, which runs all other tasks in between."""
    ends: list[object] = []
    end = turns.Turn.end

    async def noted(turn: turns.Turn) -> None:
        ends.append(turn)
        await end(turn)

    array = create(tmp_path)
    monkeypatch.setattr(turns.Turn, "end", noted)
    for _ in range(N_CALLS):
        assert array[0, 0] == -1
    assert len(ends) <= 1 + N_CALLS // turns.MAX_CALLS_OF_A_TURN


# ---- files that need round trips


@pytest.fixture
def slow_files(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Make every file system need round trips. Count file work by function name, and forbid it on an event loop."""
    found: Counter[str] = Counter()

    def guard(where: Any, name: str) -> None:
        work = getattr(where, name)

        def guarded(*arguments: Any, **keywords: Any) -> Any:
            found[name] += 1
            with pytest.raises(RuntimeError):
                asyncio.get_running_loop()
            return work(*arguments, **keywords)

        monkeypatch.setattr(where, name, guarded)

    monkeypatch.setattr(file_systems, "is_prompt", lambda _: False)
    for where, name in (
        (array_read, "read"),
        (array_write, "write_objects"),
        (codec, "read"),
        (codec, "write_objects"),
        (files, "_put"),
        (object_names, "real_paths"),
        (files, "staging_folder"),
        (file_locks.FileLocks, "advance"),
        (file_locks.FileLocks, "release"),
        (os, "fstat"),
    ):
        guard(where, name)
    return found


def test_slow_file_system_is_not_accessed_on_the_event_loop(tmp_path: Path, slow_files: Counter[str]) -> None:
    array = checked(tmp_path)
    array[...] = 1
    array[2:10, 3:15] = 2
    assert array[2, 3] == 2
    assert slow_files["read"] >= 1
    assert slow_files["write_objects"] >= 2
    assert slow_files["advance"] >= 2
    assert slow_files["release"] >= 2
    assert slow_files["real_paths"] >= 2
    with shardcodec.group_writes():
        array[0, 0] = 3
        assert array[0, 0] == 3
    assert ours(tmp_path)[0, 0] == 3


def test_fallback_writes_do_not_access_slow_files_on_the_event_loop(
    tmp_path: Path, slow_files: Counter[str]
) -> None:
    array = on_pipeline(create(tmp_path), strict=False)
    pipeline_of(array)._kind = None
    array[0:4, 0:3] = 5
    array[8:16, 0:12] = 6
    assert array[0, 0] == 5
    assert array[15, 11] == 6
    assert slow_files["_put"] == 2


def test_small_fallback_write_is_stored_without_a_change_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second change of threads, after that of zarr's own pipeline, made a small write take 1.3 times the time of zarr alone."""
    array = on_pipeline(
        create(tmp_path, shape=(64, 512, 512), shards=(32, 512, 512), chunks=(32, 512, 512), dtype="int8"),
        strict=False,
    )
    pipeline_of(array)._kind = None
    loops: list[Any] = []
    put = files._put

    def noted(*arguments: Any) -> Any:
        loops.append(asyncio._get_running_loop())
        return put(*arguments)

    monkeypatch.setattr(files, "_put", noted)
    array[0:32] = 5
    with shardcodec.options(durability="fsync"):
        array[0:32] = 6
    small = on_pipeline(create(tmp_path / "small"), strict=False)
    pipeline_of(small)._kind = None
    small[0:4, 0:3] = 5
    assert loops[:2] == [None, None] and loops[2] is not None


def test_transformer_does_not_access_slow_files_on_the_event_loop(
    tmp_path: Path, slow_files: Counter[str]
) -> None:
    store = ShardingStorageTransformer(tmp_path, (2, 2))
    with quiet():
        array = zarr.create_array(store, shape=(4, 4), chunks=(2, 2), dtype="u1", fill_value=9)
    array[...] = 1
    array[0:2, 0:2] = 9
    with shardcodec.group_writes():
        array[2:4, 2:4] = 5
    assert array[0, 0] == 9
    assert array[3, 3] == 5
    assert slow_files["advance"] >= 1


def test_kv_reads_slow_files_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_systems, "is_prompt", lambda _: False)
    entries = ShardedKeyValueStore(tmp_path / "s", grid_shape=(2, 2), index_codecs=[LITTLE, CRC])
    key = struct.pack(">2I", 0, 1)
    entries[key] = b"value"
    names: list[str] = []
    look = entries._entries.look

    def noted(*arguments: Any, **keywords: Any) -> Any:
        names.append(threading.current_thread().name)
        return look(*arguments, **keywords)

    monkeypatch.setattr(entries._entries, "look", noted)
    assert asyncio.run(entries.read_async(key)).value == b"value"
    assert names and "MainThread" not in names


def test_many_small_objects_are_read_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = create(tmp_path, shape=(80, 12), shards=(4, 12), chunks=(4, 3))
    array[...] = 1
    loops: list[Any] = []
    read = array_read.read

    def noted(*arguments: Any) -> Any:
        loops.append(asyncio._get_running_loop())
        return read(*arguments)

    monkeypatch.setattr(array_read, "read", noted)
    assert asyncio.run(array.async_array.getitem(slice(0, 80))).sum() == array.size
    assert loops == [None]


def test_missing_path_takes_the_file_system_of_its_parent_folder(tmp_path: Path) -> None:
    assert file_systems.is_prompt(str(tmp_path / "not" / "made" / "yet")) == file_systems.is_prompt(
        str(tmp_path)
    )
    assert not file_systems.is_prompt("/proc/self")


def test_only_known_stores_are_near() -> None:
    assert not store_of(OtherMemoryStore()).is_near
    assert store_of(zarr.storage.MemoryStore()).is_near
