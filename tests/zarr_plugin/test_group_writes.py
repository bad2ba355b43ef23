# test_group_writes.py - buffered writes: visible at once, stored once, none lost
# SPDX-License-Identifier: MIT
"""`group_writes`, through zarr arrays on every kind of store."""

from __future__ import annotations

import asyncio
import os
import pickle
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
    keys_of,
    ours,
    quiet,
    shard_path,
    store_of,
    stored_values,
    zarrs_view,
)
from pairs import pairs
from workers import in_threads
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec import GroupWriteError, group_writes
from shardcodec.access import buffer as blocks
from shardcodec.access.buffer.overlay import Overlay

SHAPE = (16, 24)  # two by two shards of 8 x 12, inner chunks of 4 x 3


def buffered_nbytes() -> int:
    """Return the memory of the buffer, compared with that of its objects."""
    buffer = blocks.active_buffer()
    assert buffer is not None
    assert buffer.nbytes == sum(one.memory_nbytes for one in buffer._objects.values())
    return buffer.nbytes


# ---- visibility and flushes


def test_writes_are_visible_at_once_and_stored_at_the_end(store: Any) -> None:
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
        assert (stored_values(array) == 1).all()
    assert (array[:] == expected).all()
    assert (stored_values(array) == expected).all()


def test_each_shard_is_written_once() -> None:
    store = RecordingStore(MemoryStore())
    array = create(store)
    store.forget()
    with group_writes():
        for row in range(16):
            for column in range(24):
                array[row, column] = row * 24 + column
        assert not store.written
        assert not store.chunk_requests()  # and no request to read
    assert sorted(store.written) == ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]
    assert (array[:] == np.arange(16 * 24).reshape(SHAPE)).all()


@pairs(
    "kind_of_store, kind, budget", KINDS_OF_STORE, ["sharded", "transposed", "big endian"], [100, 256 << 20]
)
def test_loop_over_inner_chunks_equals_numpy(
    kind_of_store: str, kind: str, budget: int, tmp_path: Path
) -> None:
    """After the first chunk of a shard, writes take a fast path, except those of another dtype. The results are
    equal.
    """
    arguments: dict[str, Any] = {"dtype": "i4"}
    if kind == "transposed":
        arguments["filters"] = [zarr.codecs.TransposeCodec(order=(1, 0))]
    elif kind == "big endian":
        arguments["dtype"] = ">i4"
    with quiet():
        array = shardcodec.attach(create(store_of(kind_of_store, tmp_path), own=True, **arguments))
    expected = np.arange(16 * 24, dtype="i4").reshape(SHAPE)
    with group_writes(budget):
        for turn, dtype in enumerate(["<i4", ">i4", "i8", "<i4"]):
            for row in range(0, 16, 4):
                for column in range(0, 24, 3):
                    box = slice(row, row + 4), slice(column, column + 3)
                    array[box] = np.asarray(expected[box] + turn, dtype)
                    assert (array[box] == expected[box] + turn).all()
            buffered_nbytes()
    assert (stored_values(array) == expected + 3).all()


def test_fast_path_checks_read_only_stores_and_options(tmp_path: Path) -> None:
    """A read-only view of the store refuses the write. The option of another array about empty chunks applies from
    its write on.
    """
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


@pairs(
    "kind_of_store, kind, budget",
    KINDS_OF_STORE,
    ["sharded", "plain", "transposed", "big endian"],
    [0, 500, 256 << 20],
)
def test_random_operations_equal_a_plain_array(
    kind_of_store: str, kind: str, budget: int, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {}
    if kind == "plain":
        arguments = {"shards": None, "chunks": (8, 12)}
    elif kind == "transposed":
        arguments = {"filters": [zarr.codecs.TransposeCodec(order=(1, 0))]}
    elif kind == "big endian":
        arguments = {"dtype": ">i2"}
    with quiet():
        array = shardcodec.attach(create(store_of(kind_of_store, tmp_path), own=True, **arguments))
    rng = np.random.default_rng(budget)
    twin = np.full(SHAPE, -1, array.dtype)
    for _ in range(3):
        with group_writes(budget):
            for _ in range(12):
                work_randomly(array, twin, rng)
        assert (stored_values(array) == twin).all()


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
        case 3 if not ZARR_IS_31:  # zarr's own pipeline of 3.1 cannot do this
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


def test_emptied_shard_is_deleted(store: Any) -> None:
    array = create(store)
    array[:] = 1
    with group_writes():
        for row in range(8):
            array[row, :12] = -1
        array[8:, 12:15] = -1
    keys = {key for key in keys_of(array.store) if key.startswith("c/")}
    if type(store).__name__ != "ObjectStore":  # it cannot delete conditionally
        assert keys == {"c/0/1", "c/1/0", "c/1/1"}
    assert (stored_values(array)[:8, :12] == -1).all()
    assert (stored_values(array)[8:, 15:] == 1).all()


def test_write_to_a_missing_shard_is_visible(store: Any) -> None:
    array = create(store)
    with group_writes():
        assert array[0, 0] == -1
        array[0, 0] = 4
        assert array[0, :3].tolist() == [4, -1, -1]
    assert stored_values(array)[0, :3].tolist() == [4, -1, -1]


def test_writes_of_another_process_meanwhile_are_kept(tmp_path: Path) -> None:
    """The other process changes other elements of the same inner chunk. A chunk that is read at the first write
    would lose them.
    """
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
    assert stored_values(array)[0, :3].tolist() == [2, 3, 1]
    assert stored_values(array)[4, 1] == 4


def test_fallback_sees_earlier_buffered_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = ours(create(tmp_path).store, strict=False)

    def decline(*_: Any) -> Any:
        from shardcodec.zarr_plugin.request import Refusal

        raise Refusal("for a test")

    with group_writes():
        array[0, :] = 1
        with monkeypatch.context() as patch:
            patch.setattr(type(array._async_array.codec_pipeline), "_prepare", decline)
            assert array[0, :2].tolist() == [1, 1]
            array[0, 0] = 2
        array[0, 1] = 3
        assert array[0, :3].tolist() == [2, 3, 1]
    assert stored_values(array)[0, :3].tolist() == [2, 3, 1]


# ---- memory


def test_buffered_bytes_stay_within_the_budget(tmp_path: Path) -> None:
    array = create(tmp_path)
    limit = 4 * 4 * 12  # four inner chunks of int32, which are written in fours
    with group_writes(limit):
        for row in range(16):
            array[row, 5] = row
            assert buffered_nbytes() <= limit
    assert (stored_values(array)[:, 5] == range(16)).all()


def test_cancelled_write_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the fix, its memory was not counted but was subtracted at the flush, so later writes could exceed the budget."""
    array = create(tmp_path, shape=(1024, 1024), shards=(1024, 1024), chunks=(64, 64))._async_array
    started, cancelled, write = threading.Event(), threading.Event(), Overlay.write
    has_waited = []

    def note_start(*arguments: Any) -> None:
        started.set()
        has_waited.append(cancelled.wait(60))
        write(*arguments)

    async def cancel_write() -> None:
        task = asyncio.ensure_future(array.setitem((slice(0, 600), slice(0, 1000)), 2))
        assert await asyncio.to_thread(started.wait, 60)
        task.cancel()
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def main() -> None:
        async with group_writes():
            await array.setitem((1000, 1000), 1)
            before = buffered_nbytes()
            monkeypatch.setattr(Overlay, "write", note_start)
            await cancel_write()
            assert buffered_nbytes() > before
            await array.setitem((1001, 1000), 1)
            buffered_nbytes()
        assert blocks.active_buffer() is None

    asyncio.run(main())
    assert has_waited and all(has_waited)


def test_flush_takes_complete_shards_first_then_the_least_recent(tmp_path: Path) -> None:
    array = create(tmp_path)
    shard = 8 * 12 * 4
    names = ["c/0/0", "c/0/1", "c/1/0"]

    def there() -> list[bool]:
        return [shard_path(array, name).exists() for name in names]

    with group_writes(2 * shard + 80):
        array[:7, :12] = 1  # touches all inner chunks of the first shard, but not all elements
        array[:8, 12:23] = 2
        array[:8, 23] = 2  # the second shard is complete
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


def test_exception_stores_earlier_writes(tmp_path: Path) -> None:
    array = create(tmp_path)
    with pytest.raises(ZeroDivisionError), group_writes():
        write_and_fail(array)
    assert stored_values(array)[0, 0] == 5


def test_exception_drops_writes_without_flush_on_error(tmp_path: Path) -> None:
    array = create(tmp_path)
    with pytest.raises(ZeroDivisionError), group_writes(flush_on_error=False):
        write_and_fail(array)
    assert stored_values(array)[0, 0] == -1
    with group_writes(flush_on_error=False):
        array[0, 0] = 5
    assert stored_values(array)[0, 0] == 5


def test_damaged_shards_are_named_and_the_others_stored(tmp_path: Path) -> None:
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


def test_error_of_many_shards_names_some_and_has_all(tmp_path: Path) -> None:
    array = create(tmp_path, shape=(56, 12))
    array[:] = 1
    paths = [shard_path(array, f"c/{i}/0") for i in range(7)]
    for path in paths:
        path.write_bytes(b"x")
    with pytest.raises(GroupWriteError, match=r"7 of 7 shards .* and 2 more\)") as caught, group_writes():
        array[::8] = 2
    assert sum(str(path) in str(caught.value).partition("):")[0] for path in paths) == 5
    assert sorted(caught.value.unwritten) == sorted(map(str, paths))


def test_shard_that_failed_to_store_is_tried_again_at_the_end(tmp_path: Path) -> None:
    """The user may have repaired the shard by then."""
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
    assert stored_values(array)[0, :3].tolist() == [2, 1, 1]


def test_whole_write_replaces_a_damaged_shard(tmp_path: Path) -> None:
    array = create(tmp_path)
    shard_path(array).parent.mkdir(parents=True)
    shard_path(array).write_bytes(b"x")
    with group_writes():
        for row in range(8):
            array[row, :12] = row
        assert (array[:8, 0] == range(8)).all()
    assert (stored_values(array)[:8, 0] == range(8)).all()


@pytest.mark.parametrize("value", [-1, 1.5, True, "much"])
def test_invalid_budget_is_refused(value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="max_bytes"):
        group_writes(value)


# ---- several blocks


def test_end_of_an_inner_block_stores_its_writes(tmp_path: Path) -> None:
    array = create(tmp_path)
    with group_writes():
        array[0, 0] = 1
        with group_writes():
            array[0, 1] = 2
        assert stored_values(array)[0, :2].tolist() == [1, 2]
        array[0, 2] = 3
        assert stored_values(array)[0, 2] == -1
    assert stored_values(array)[0, :3].tolist() == [1, 2, 3]


@pytest.mark.parametrize("outer", [True, False])
def test_block_without_flush_on_error_cannot_be_nested(outer: bool) -> None:
    with group_writes(flush_on_error=outer):
        with pytest.raises(RuntimeError, match="no other block"), group_writes(flush_on_error=not outer):
            pytest.fail("expected RuntimeError at the start of the inner block")
        assert blocks.active_buffer() is not None


def test_nested_blocks_use_the_smallest_budget(tmp_path: Path) -> None:
    array = create(tmp_path)
    with group_writes(10_000), group_writes(0):
        array[0, 0] = 1
        assert stored_values(array)[0, 0] == 1


@pytest.mark.threads
def test_threads_with_their_own_blocks_lose_no_write(tmp_path: Path) -> None:
    """Eight threads have blocks of their own, which start and end while others are open."""
    array = create(tmp_path)

    def work(number: int) -> None:
        for turn in range(10):
            with group_writes(0 if turn % 3 == 0 else 2000):
                for column in range(number, 24, 8):
                    array[:, column] = turn
                    assert (array[:, column] == turn).all()
            assert (stored_values(array)[:, number::8] == turn).all()

    in_threads(8, work)
    assert (stored_values(array) == 9).all()


def test_coroutine_may_await_the_end_of_a_block(tmp_path: Path) -> None:
    array = create(tmp_path)._async_array

    async def main() -> None:
        async with group_writes():
            await array.setitem((0, 0), 5)
            assert await array.getitem((0, 0)) == 5
        assert await array.getitem((0, 0)) == 5

    asyncio.run(main())
    assert stored_values(ours(tmp_path))[0, 0] == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not available")
def test_forked_child_leaves_the_block_to_its_parent(tmp_path: Path) -> None:
    array = create(tmp_path)

    def child() -> None:
        assert blocks.active_buffer() is None
        block.__exit__(None, None, None)
        assert not shard_path(array).exists()
        array[8, 0] = 6

    block = group_writes()
    with block:
        array[0, 0] = 5
        in_child(child)
        assert array[8, 0] == 6
    assert stored_values(array)[0, 0] == 5


@pytest.mark.parametrize("dtype", ["u1", "bool", "S3", "i4"])
def test_block_stores_what_a_pickled_array_wrote(tmp_path: Path, dtype: str) -> None:
    """zarr unpickles the codec "bytes" of such types with a byte order, so the array counted as made anew and its writes were dropped."""
    with quiet(), shardcodec.enable():
        zarr.create_array(tmp_path, shape=(4, 6), chunks=(4, 1), shards=(4, 2), dtype=dtype)
        array = pickle.loads(pickle.dumps(zarr.open_array(tmp_path)))
        with group_writes():
            array[0:2, 0:5] = 1
    assert (zarrs_view(array)[0:2, 0:5] == np.array(1).astype(dtype)).all()
