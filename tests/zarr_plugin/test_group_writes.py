# test_group_writes.py - gathered writes: seen at once, stored once, nothing lost
# SPDX-License-Identifier: MIT
"""`group_writes`, through zarr arrays on every kind of store."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import (
    KINDS_OF_STORE,
    ZARR_IS_31,
    RecordingStore,
    create,
    in_child,
    ours,
    quiet,
    shard_path,
    store_of,
    zarrs_view,
)
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec import GroupWriteError, group_writes
from shardcodec.zarr_plugin import group_writes as groups

SHAPE = (16, 24)  # two by two shards of 8 x 12, inner chunks of 4 x 3


@pytest.fixture(params=KINDS_OF_STORE)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return store_of(request.param, tmp_path)


def gathered_nbytes() -> int:
    group = groups.active()
    assert group is not None
    assert group.nbytes == sum(entry.gathered.nbytes for entry in group._entries.values())
    return group.nbytes


def stored(array: Any) -> np.ndarray[Any, Any]:
    """What zarr's own pipeline finds in the store."""
    values: np.ndarray[Any, Any] = zarrs_view(array)[...]
    return values


# ---- what is seen, and when


def test_writes_are_seen_at_once_and_stored_at_the_end(store: Any) -> None:
    array = create(store)
    array[:] = 1
    with group_writes():
        array[2:10, 5:20] = 7
        array[3, 4] = 8
        expected = np.ones(SHAPE, "int32")
        expected[2:10, 5:20] = 7
        expected[3, 4] = 8
        assert (array[:] == expected).all()
        assert (array[1:4, ::5] == expected[1:4, ::5]).all()
        assert (stored(array) == 1).all()
    assert (array[:] == expected).all()
    assert (stored(array) == expected).all()


def test_each_shard_is_written_once() -> None:
    store = RecordingStore(MemoryStore())
    array = create(store)
    store.forget()
    with group_writes():
        for row in range(16):
            for column in range(24):
                array[row, column] = row * 24 + column
        assert not store.written
        assert not store.chunk_requests()  # nothing was looked at either
    assert sorted(store.written) == ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]
    assert (array[:] == np.arange(16 * 24).reshape(SHAPE)).all()


@pytest.mark.parametrize("kind", ["sharded", "transposed", "big endian"])
@pytest.mark.parametrize("budget", [100, 256 << 20])
def test_loops_over_inner_chunks(store: Any, kind: str, budget: int) -> None:
    """All but the first of a shard go a short way, unless they are of another dtype: with equal results."""
    arguments: dict[str, Any] = {"dtype": "i4"}
    if kind == "transposed":
        arguments["filters"] = [zarr.codecs.TransposeCodec(order=(1, 0))]
    elif kind == "big endian":
        arguments["dtype"] = ">i4"
    with quiet():
        array = shardcodec.attach(create(store, own=True, **arguments))
    expected = np.arange(16 * 24, dtype="i4").reshape(SHAPE)
    with group_writes(budget):
        for turn, dtype in enumerate(["<i4", ">i4", "i8", "<i4"]):
            for row in range(0, 16, 4):
                for column in range(0, 24, 3):
                    box = slice(row, row + 4), slice(column, column + 3)
                    array[box] = np.asarray(expected[box] + turn, dtype)
                    assert (array[box] == expected[box] + turn).all()
            gathered_nbytes()
    assert (stored(array) == expected + 3).all()


def test_the_short_way_asks_what_the_long_one_asks(tmp_path: Path) -> None:
    """A view of the store for reading only refuses; another array's option about empty chunks counts from its write on."""
    array = create(LocalStore(tmp_path))
    values = np.full((4, 3), 5, "int32")
    with group_writes():
        array[0:4, 0:3] = values
        array[4:8, 0:3] = values
        reader = ours(LocalStore(tmp_path, read_only=True), mode="r")
        with pytest.raises(ValueError, match="read-only"):
            reader[0:4, 0:3] = values
        with zarr.config.set({"array.write_empty_chunks": True}):
            eager = ours(array.store)
        eager[4:8, 3:6] = np.full((4, 3), array.fill_value, "int32")
        eager[4:8, 3:6] = np.full((4, 3), array.fill_value, "int32")
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    with shardcodec.open_shard(tmp_path, "c/0/0", spec) as shard:
        assert np.argwhere(shard.state()).tolist() == [[0, 0], [1, 0], [1, 1]]


@pytest.mark.parametrize("budget", [0, 500, 256 << 20])
@pytest.mark.parametrize("kind", ["sharded", "plain", "transposed", "big endian"])
def test_random_work_against_a_plain_array(store: Any, budget: int, kind: str) -> None:
    arguments: dict[str, Any] = {}
    if kind == "plain":
        arguments = {"shards": None, "chunks": (8, 12)}
    elif kind == "transposed":
        arguments = {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]}
    elif kind == "big endian":
        arguments = {"dtype": ">i2"}
    with quiet():
        array = shardcodec.attach(create(store, own=True, **arguments))
    rng = np.random.default_rng(budget)
    twin = np.full(SHAPE, -1, array.dtype)
    for _ in range(3):
        with group_writes(budget):
            for _ in range(12):
                work_randomly(array, twin, rng)
        assert (stored(array) == twin).all()


def work_randomly(array: Any, twin: np.ndarray[Any, Any], rng: np.random.Generator) -> None:
    first = rng.integers(0, (14, 22))
    size = rng.integers(1, (9, 13))
    area = tuple(slice(int(a), int(a + n), int(rng.integers(1, 3))) for a, n in zip(first, size, strict=True))
    match int(rng.integers(8)):
        case 0:
            array[area] = twin[area] = int(rng.integers(100))
        case 1:
            array[area] = twin[area] = -1
        case 2:
            row = int(first[0])
            values = rng.integers(0, 100, 24)
            array[row] = twin[row] = values.astype(twin.dtype)
        case 3 if not ZARR_IS_31:  # whose own pipeline cannot
            rows = rng.permutation(16)[:5]
            values = rng.integers(0, 100, (5, twin[0, area[1]].size)).astype(twin.dtype)
            array.oindex[rows, area[1]] = values
            twin[rows, area[1]] = values
        case 4 if not ZARR_IS_31:
            rows, columns = rng.integers(0, 16, 6), rng.permutation(24)[:6]
            array.vindex[rows, columns] = twin[rows, columns] = rng.integers(0, 100, 6).astype(twin.dtype)
        case 5:
            array[:] = twin[:] = int(rng.integers(100))
        case _:
            values = rng.integers(0, 100, twin[area].shape).astype(twin.dtype)
            array[area] = values
            twin[area] = values
    assert (array[area] == twin[area]).all()
    assert (array[:, 3] == twin[:, 3]).all()
    columns = rng.permutation(24)[:4]
    assert (array.oindex[:, columns] == twin[:, columns]).all()


def test_an_emptied_shard_goes(store: Any) -> None:
    array = create(store)
    array[:] = 1
    with group_writes():
        for row in range(8):
            array[row, :12] = -1
        array[8:, 12:15] = -1
    keys = {key for key in list_keys(array.store) if key.startswith("c/")}
    if type(store).__name__ != "ObjectStore":  # there is no deleting under a condition
        assert keys == {"c/0/1", "c/1/0", "c/1/1"}
    assert (stored(array)[:8, :12] == -1).all()
    assert (stored(array)[8:, 15:] == 1).all()


def list_keys(store: Any) -> list[str]:
    async def collect() -> list[str]:
        return [key async for key in store.list()]

    return asyncio.run(collect())


def test_a_missing_shard_is_missing_no_more(store: Any) -> None:
    array = create(store)
    with group_writes():
        assert array[0, 0] == -1
        array[0, 0] = 4
        assert array[0, :3].tolist() == [4, -1, -1]
    assert stored(array)[0, :3].tolist() == [4, -1, -1]


def test_what_another_writer_did_meanwhile_is_kept(tmp_path: Path) -> None:
    """Other elements of the very same inner chunk: a chunk that was read when it was first touched would lose them."""
    array = create(tmp_path)
    array[:] = 1
    with group_writes():
        array[0, 0] = 2
        assert array[0, :3].tolist() == [2, 1, 1]

        def child() -> None:
            with group_writes():
                ours(tmp_path)[0, 1] = 3
            ours(tmp_path)[4, 1] = 4

        in_child(child)
    assert stored(array)[0, :3].tolist() == [2, 3, 1]
    assert stored(array)[4, 1] == 4


def test_zarrs_own_pipeline_finds_what_was_written_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = ours(create(tmp_path).store, strict=False)

    def decline(*_: Any) -> Any:
        from shardcodec.zarr_plugin.request import Declined

        raise Declined("for a test")

    with group_writes():
        array[0, :] = 1
        with monkeypatch.context() as patch:
            patch.setattr(type(array._async_array.codec_pipeline), "_prepare", decline)
            assert array[0, :2].tolist() == [1, 1]
            array[0, 0] = 2
        array[0, 1] = 3
        assert array[0, :3].tolist() == [2, 3, 1]
    assert stored(array)[0, :3].tolist() == [2, 3, 1]


# ---- memory


def test_the_budget_is_kept(tmp_path: Path) -> None:
    array = create(tmp_path)
    limit = 4 * 4 * 12  # four inner chunks of int32, and they come in fours
    with group_writes(limit):
        for row in range(16):
            array[row, 5] = row
            assert gathered_nbytes() <= limit
    assert (stored(array)[:, 5] == range(16)).all()


def test_complete_shards_go_first_then_those_left_alone(tmp_path: Path) -> None:
    array = create(tmp_path)
    shard = 8 * 12 * 4
    names = ["c/0/0", "c/0/1", "c/1/0"]

    def there() -> list[bool]:
        return [shard_path(array, name).exists() for name in names]

    with group_writes(2 * shard + 80):
        array[:7, :12] = 1  # all inner chunks of the first, not all elements
        array[:8, 12:23] = 2
        array[:8, 23] = 2  # the second is complete
        assert there() == [False, False, False]
        array[8, 0] = 3
        assert there() == [False, True, False]
        array[8:15, 12:] = 4
        assert there() == [True, True, False]
    assert there() == [True, True, True]


# ---- errors


def write_and_fail(array: Any) -> None:
    array[0, 0] = 5
    _ = 1 // 0


def test_an_exception_does_not_take_back_what_was_written(tmp_path: Path) -> None:
    array = create(tmp_path)
    with pytest.raises(ZeroDivisionError), group_writes():
        write_and_fail(array)
    assert stored(array)[0, 0] == 5


def test_unless_that_is_asked_for(tmp_path: Path) -> None:
    array = create(tmp_path)
    with pytest.raises(ZeroDivisionError), group_writes(flush_on_error=False):
        write_and_fail(array)
    assert stored(array)[0, 0] == -1
    with group_writes(flush_on_error=False):
        array[0, 0] = 5
    assert stored(array)[0, 0] == 5


def test_damaged_shards_are_named_and_the_others_written(tmp_path: Path) -> None:
    array = create(tmp_path)
    array[:] = 1
    bad = [shard_path(array, "c/0/1"), shard_path(array, "c/1/0")]
    for path in bad:
        path.write_bytes(path.read_bytes()[:-1] + b"\0")
    before = [path.read_bytes() for path in bad]
    with pytest.raises(GroupWriteError, match="2 of 4 shards could not be stored") as caught, group_writes():
        array[::4, ::3] = 2
    assert sorted(caught.value.unwritten) == sorted(map(str, bad))
    assert sorted(caught.value.written) == [str(shard_path(array, name)) for name in ("c/0/0", "c/1/1")]
    assert isinstance(caught.value.__cause__, shardcodec.ChecksumError)
    assert [path.read_bytes() for path in bad] == before
    assert zarrs_view(array)[0, 0] == 2


def test_what_could_not_be_stored_is_kept_till_the_end(tmp_path: Path) -> None:
    """Somebody may have mended it by then."""
    array = create(tmp_path)
    array[:] = 1
    path = shard_path(array)
    whole = path.read_bytes()
    path.write_bytes(b"x")
    with group_writes(50):
        with pytest.raises(GroupWriteError):
            array[0, 0] = 2
        assert array[8:, 0].tolist() == [1] * 8
        path.write_bytes(whole)
        assert array[0, :3].tolist() == [2, 1, 1]
    assert stored(array)[0, :3].tolist() == [2, 1, 1]


def test_a_damaged_shard_that_is_written_whole_heals(tmp_path: Path) -> None:
    array = create(tmp_path)
    shard_path(array).parent.mkdir(parents=True)
    shard_path(array).write_bytes(b"x")
    with group_writes():
        for row in range(8):
            array[row, :12] = row
        assert (array[:8, 0] == range(8)).all()
    assert (stored(array)[:8, 0] == range(8)).all()


def test_a_read_only_store_refuses_at_once(tmp_path: Path) -> None:
    create(tmp_path)
    array = ours(LocalStore(tmp_path, read_only=True), mode="r")
    with group_writes(), pytest.raises(ValueError, match="read-only"):
        array[0, 0] = 1


@pytest.mark.parametrize("value", [-1, 1.5, True, "1"])
def test_a_budget_is_a_number_of_bytes(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_bytes"):
        group_writes(value)


# ---- several blocks


def test_the_end_of_an_inner_block_writes_what_there_is(tmp_path: Path) -> None:
    array = create(tmp_path)
    with group_writes():
        array[0, 0] = 1
        with group_writes():
            array[0, 1] = 2
        assert stored(array)[0, :2].tolist() == [1, 2]
        array[0, 2] = 3
        assert stored(array)[0, 2] == -1
    assert stored(array)[0, :3].tolist() == [1, 2, 3]


@pytest.mark.parametrize("outer", [True, False])
def test_a_block_that_may_drop_is_alone(outer: bool) -> None:
    with group_writes(flush_on_error=outer):
        with pytest.raises(RuntimeError, match="no other block"), group_writes(flush_on_error=not outer):
            pytest.fail("it may not be entered")
        assert groups.active() is not None


def test_the_smallest_budget_counts(tmp_path: Path) -> None:
    array = create(tmp_path)
    with group_writes(10_000), group_writes(0):
        array[0, 0] = 1
        assert stored(array)[0, 0] == 1


@pytest.mark.threads
def test_threads_share_what_is_gathered(tmp_path: Path) -> None:
    """Eight threads, each with blocks of its own that begin and end in between: nothing gets lost."""
    array = create(tmp_path)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                with group_writes(0 if turn % 3 == 0 else 2000):
                    for column in range(number, 24, 8):
                        array[:, column] = turn
                        assert (array[:, column] == turn).all()
                assert (stored(array)[:, number::8] == turn).all()
        except BaseException as error:
            failures.append(error)

    crew = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join(60)
    assert not failures, failures
    assert (stored(array) == 9).all()


def test_a_coroutine_may_wait_for_the_end(tmp_path: Path) -> None:
    array = create(tmp_path)._async_array

    async def main() -> None:
        async with group_writes():
            await array.setitem((0, 0), 5)
            assert await array.getitem((0, 0)) == 5
        assert await array.getitem((0, 0)) == 5

    asyncio.run(main())
    assert stored(ours(tmp_path))[0, 0] == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_leaves_it_to_its_parent(tmp_path: Path) -> None:
    array = create(tmp_path)

    def child() -> None:
        assert groups.active() is None
        block.__exit__(None, None, None)
        assert not shard_path(array).exists()
        array[8, 0] = 6

    block = group_writes()
    with block:
        array[0, 0] = 5
        in_child(child)
        assert array[8, 0] == 6
    assert stored(array)[0, 0] == 5
