# test_group_shards.py - inner chunks written through `shardcodec.Shard` in a block of `group_writes`
# SPDX-License-Identifier: MIT
"""Handles on shards in `group_writes`: every reader sees the writes, each shard is stored once, next to zarr arrays
on it.
"""

from __future__ import annotations

import asyncio
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create, in_child, shard_path, zarrs_view
from spec_json import CHECKED_INDEX
from workers import in_threads
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, TransposeCodec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore

import shardcodec
from shardcodec import GroupWriteError, ShardSpec, group_writes, open_shard
from shardcodec.access import buffer as blocks
from shardcodec.kv import ShardedKeyValueStore

KEYS = [f"c/{i}/{j}" for i in range(2) for j in range(2)]  # shards of 8 x 12, each of 2 x 4 inner chunks
GRID = [(i, j) for i in range(2) for j in range(4)]


def spec_of(store: Any) -> ShardSpec:
    if isinstance(store, Path):
        return ShardSpec.from_metadata(json.loads((store / "zarr.json").read_text()))
    document = sync(store.get("zarr.json", default_buffer_prototype()))
    return ShardSpec.from_metadata(json.loads(document.to_bytes()))


def opened(store: Any, key: str = "c/0/0", **how: Any) -> Any:
    return open_shard(store, key, spec_of(store), **({"mode": "r+"} | how))


def chunk(value: int) -> np.ndarray[Any, Any]:
    return (value + np.arange(12, dtype=np.int32)).reshape(4, 3)


# ---- visibility and flushes


@pytest.mark.parametrize("in_transaction", [False, True])
def test_kv_stores_and_chunk_state_see_buffered_chunks(store: Any, in_transaction: bool) -> None:
    """They did not know of the buffered writes: the end of the block overwrote newer values with older elements."""
    array = create(store)
    base = Path(store) / "c/0/0" if isinstance(store, Path) else (store, "c/0/0")
    kv = ShardedKeyValueStore(base, grid_shape=(2, 4), index_codecs=CHECKED_INDEX)
    first, second, third = (struct.pack(">2I", *at) for at in GRID[:3])
    with group_writes():
        array[:4, :3] = chunk(1)
        assert kv[first] == chunk(1).tobytes()
        array[:4, 3:6] = chunk(2)
        assert [r.value for r in kv.read_many([second])] == [chunk(2).tobytes()]
        array[:4, :3] = chunk(3)
        if in_transaction:
            with kv.transaction() as t:
                t[first] = chunk(4).tobytes()
        else:
            kv[first] = chunk(4).tobytes()
        array[:4, 6:9] = chunk(5)
        assert list(kv) == [first, second, third]
        array[8:12, :3] = chunk(6)
        state = shardcodec.chunk_state(array)
        assert list(state.iter_existing()) == [(0, 0), (0, 1), (0, 2), (2, 0)]
        assert state.nbytes.max() == 48
        array[:4, 9:12] = chunk(7)
        assert asyncio.run(kv.read_async(struct.pack(">2I", 0, 3))).value == chunk(7).tobytes()
    assert kv[first] == chunk(4).tobytes() and (array[:4, :3] == chunk(4)).all()


def test_buffered_chunks_are_visible_at_once_and_stored_at_the_end(tmp_path: Path) -> None:
    array = create(LocalStore(tmp_path))
    shard, other = opened(tmp_path), opened(tmp_path, mode="r")
    with group_writes():
        for n, at in enumerate(GRID[:5]):
            shard.write_chunks([at], [chunk(n)])
        shard.write_chunks(GRID[5:7], np.stack([chunk(5), chunk(6)]))
        assert not shard_path(array).exists()
        buffer = blocks.active_buffer()
        assert buffer is not None
        assert buffer.nbytes == 7 * 48
        shard.write_chunks([GRID[0]], [chunk(70)])
        assert buffer.nbytes == 7 * 48
        assert not shard_path(array).exists()
        # stores the buffered chunks
        assert np.array_equal(other.read_chunks(GRID[:2]), [chunk(70), chunk(1)])
        assert buffer.nbytes == 0
        shard.write_chunks([(1, 3)], [chunk(7)])
        assert np.array_equal(array[4:8, 9:12], chunk(7))
        shard.write_chunks([(1, 3)], [chunk(8)])
        assert np.array_equal(shard.read_region((slice(4, 8), slice(9, 12))), chunk(8))
        # a handle sees one consistent state
        assert other.state().tolist() == [[True] * 4, [True, True, True, False]]
        shard.write_chunks([(1, 3)], [chunk(9)])
        assert other.refresh().state().all()
        shard.write_chunks([(1, 3)], [chunk(10)])
    assert np.array_equal(shard.read_chunks([(1, 3), (0, 0)]), [chunk(10), chunk(70)])
    assert np.array_equal(zarrs_view(array)[4:8, 9:12], chunk(10))


def part(key: str, at: tuple[int, int]) -> tuple[slice, slice]:
    """Return the elements of the array that an inner chunk covers."""
    row, column = (int(i) for i in key.split("/")[1:])
    top, left = 8 * row + 4 * at[0], 12 * column + 3 * at[1]
    return slice(top, top + 4), slice(left, left + 3)


class Work:
    """Random operations on an array and on two handles for each of its shards, and on a plain array."""

    def __init__(self, store: Any, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.array = create(store)
        self.plain = np.full(self.array.shape, -1, dtype=np.int32)
        self.handles = [(key, opened(store, key)) for key in KEYS for _ in range(2)]

    def step(self, number: int) -> None:
        key, shard = self.handles[self.rng.integers(len(self.handles))]
        some = [GRID[i] for i in self.rng.choice(len(GRID), self.rng.integers(1, 4), replace=False)]
        work = [
            self.chunks,
            self.chunks,
            self.chunks,
            self.empty,
            self.erase,
            self.encoded,
            self.box,
            self.read_and_compare,
        ]
        work[self.rng.integers(len(work))](key, shard, some, number)

    def chunks(self, key: str, shard: Any, some: Any, number: int) -> None:
        shard.write_chunks(some, np.stack([chunk(number + i) for i in range(len(some))]))
        for i, at in enumerate(some):
            self.plain[part(key, at)] = chunk(number + i)

    def empty(self, key: str, shard: Any, some: Any, number: int) -> None:
        values = np.full((len(some), 4, 3), -1, dtype=np.int32)
        shard.write_chunks(some, values, write_empty_chunks=bool(number % 2))
        for at in some:
            self.plain[part(key, at)] = -1

    def erase(self, key: str, shard: Any, some: Any, _: int) -> None:
        shard.erase(some)
        for at in some:
            self.plain[part(key, at)] = -1

    def encoded(self, key: str, shard: Any, some: Any, number: int) -> None:
        shard.write_encoded(some[:1], [chunk(number).tobytes()], alignment=512)
        self.plain[part(key, some[0])] = chunk(number)

    def box(self, _key: str, _shard: Any, _some: Any, number: int) -> None:
        top, left = self.rng.integers(0, (14, 20))
        box = slice(top, top + self.rng.integers(1, 6)), slice(left, left + self.rng.integers(1, 9))
        self.plain[box] = number
        self.array[box] = number

    def read_and_compare(self, key: str, shard: Any, some: Any, number: int) -> None:
        if number % 3:
            found = shard.refresh().read_chunks(some)
            assert np.array_equal(found, [self.plain[part(key, at)] for at in some])
        else:
            assert np.array_equal(self.array[...], self.plain)


@pytest.mark.parametrize("budget", [0, 100, 1 << 20])
def test_random_operations_equal_a_plain_array(store: Any, budget: int) -> None:
    work = Work(store, budget)
    with shardcodec.options(write_strategy="append"), group_writes(max_bytes=budget):
        for number in range(150):
            work.step(number)
    assert np.array_equal(zarrs_view(work.array)[...], work.plain)
    for key, shard in work.handles:
        assert np.array_equal(shard.refresh().read_chunks(GRID), [work.plain[part(key, at)] for at in GRID])


@pytest.mark.parametrize("dtype", ["<i4", ">i4"])
def test_chunks_are_stored_along_the_axes_of_the_index(tmp_path: Path, dtype: str) -> None:
    inner = ShardingCodec(chunk_shape=(4, 2), codecs=[BytesCodec(), Crc32cCodec()])
    array = create(
        LocalStore(tmp_path),
        shards=None,
        chunks=(8, 12),
        serializer=inner,
        filters=[TransposeCodec(order=(1, 0))],
    )
    shard = opened(tmp_path)
    assert shard.grid_shape == (3, 4)
    values = np.arange(16 * 24, dtype=np.int32).reshape(16, 24)
    with group_writes():
        for i, j in [(2, 3), (0, 1), (2, 0)]:
            there = values[2 * j : 2 * j + 2, 4 * i : 4 * i + 4].T
            shard.write_chunks([(i, j)], there[None].astype(dtype))
    for i, j in [(2, 3), (0, 1), (2, 0)]:
        box = slice(2 * j, 2 * j + 2), slice(4 * i, 4 * i + 4)
        assert np.array_equal(zarrs_view(array)[box], values[box])
    assert shard.state().sum() == 3


def test_unbuffered_writes_are_stored_after_buffered_ones(tmp_path: Path) -> None:
    create(LocalStore(tmp_path))
    shard = opened(tmp_path)
    with group_writes():
        shard.write_chunks([(0, 0), (0, 1)], [chunk(1), chunk(2)])
        shard.write_encoded([(0, 1)], [chunk(3).tobytes()], footer=b"here", keep_user_bytes=True)
        assert shard.footer == b"here"
        shard.write_chunks([(1, 1)], [chunk(4)])
        shard.write_chunks([(1, 2)], [chunk(5)], strategy="replace")
        shard.write_chunks([(1, 3)], [chunk(6)])
        shard.erase([(0, 0), (1, 3)])
        shard.write_chunks([(1, 0)], [chunk(7)])
        shard.compact()
        # the whole shard is not buffered
        shard.write_chunks(GRID, np.stack([chunk(10 + i) for i in range(8)]))
        assert np.array_equal(opened(tmp_path).read_chunks([(1, 3)]), [chunk(17)])
        assert shard.refresh().state().all()


# ---- refusals and failures


def test_invalid_writes_are_refused_at_once(tmp_path: Path) -> None:
    array = create(LocalStore(tmp_path))
    shard = opened(tmp_path)
    with group_writes():
        with pytest.raises(ValueError, match="reading only"):
            opened(tmp_path, mode="r").write_chunks([(0, 0)], [chunk(1)])
        with pytest.raises(ValueError, match="second time"):
            shard.write_chunks([(0, 0), (0, 0)], [chunk(1), chunk(2)])
        with pytest.raises(ValueError, match="shape"):
            shard.write_chunks([(0, 0)], [chunk(1)[:2]])
        with pytest.raises(IndexError, match="outside of the grid"):
            shard.write_chunks([(0, 4)], [chunk(1)])
        with pytest.raises(TypeError, match="cast"):
            shard.write_chunks([(0, 0)], [chunk(1) + 0.5])
    assert not shard_path(array).exists()


def test_damaged_shard_is_named_and_unchanged(tmp_path: Path) -> None:
    array = create(LocalStore(tmp_path))
    array[...] = 5
    path = shard_path(array)
    path.write_bytes(damaged := path.read_bytes()[:-4] + b"\0\0\0\0")
    shard, whole = opened(tmp_path), opened(tmp_path, "c/1/1")

    def write() -> None:
        with group_writes():
            shard.write_chunks([(0, 0)], [chunk(1)])
            whole.write_chunks([(0, 0)], [chunk(2)])

    with pytest.raises(GroupWriteError) as caught:
        write()
    assert caught.value.unwritten == (str(path),)
    assert caught.value.written == (str(shard_path(array, "c/1/1")),)
    assert path.read_bytes() == damaged
    assert np.array_equal(array[8:12, 12:15], chunk(2))


def test_failed_block_may_drop_buffered_chunks(tmp_path: Path) -> None:
    array = create(LocalStore(tmp_path))

    def write() -> None:
        with group_writes(flush_on_error=False):
            opened(tmp_path).write_chunks([(0, 0)], [chunk(1)])
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert not shard_path(array).exists()


# ---- threads, and processes


def test_threads_with_their_own_handles_lose_no_update(tmp_path: Path) -> None:
    array = create(LocalStore(tmp_path))
    expected = np.full(array.shape, -1, dtype=np.int32)
    places = [(key, at) for key in KEYS[:2] for at in GRID]
    for n, place in enumerate(places):
        expected[part(*place)] = chunk(100 * n + 19)

    def work(n: int) -> None:
        key, at = places[n]
        shard = opened(tmp_path, key)
        for i in range(20):
            shard.write_chunks([at], [chunk(100 * n + i)])
            if i % 7 == n % 7:
                assert np.array_equal(shard.read_chunks([at]), [chunk(100 * n + i)])

    with group_writes(max_bytes=500):
        in_threads(len(places), work)
    assert np.array_equal(zarrs_view(array)[...], expected)


def test_forked_child_stores_its_own_writes(tmp_path: Path) -> None:
    array = create(LocalStore(tmp_path))
    shard = opened(tmp_path)

    def child() -> None:
        shard.write_chunks([(0, 1)], [chunk(2)])
        assert shard.state().sum() == 1

    with group_writes():
        shard.write_chunks([(0, 0)], [chunk(1)])
        in_child(child)
    assert np.array_equal(array[0:4, 0:6], np.concatenate([chunk(1), chunk(2)], axis=1))


# ---- handles on arrays


@pytest.mark.parametrize("immutable", [False, True])
@pytest.mark.parametrize("how", ["slice", "boxes", "chunks", "whole"])
def test_array_handles_see_buffered_writes(store: Any, how: str, immutable: bool) -> None:
    """They read the stored elements, without a sign that newer ones had been assigned."""
    array = create(store)
    array[:] = 1
    reader = shardcodec.open_array(store, immutable=immutable and not isinstance(store, Path))
    ways: dict[str, Any] = {
        "slice": lambda: reader[2, 1:3],
        "boxes": lambda: reader.read_boxes([(2, 1), (9, 1)], (1, 1)).ravel(),
        "chunks": lambda: reader.read_chunks([(0, 0), (2, 0)])[:, 2 % 4, 1],
        "whole": lambda: reader[...][2, 1:3],
    }
    assert ways[how]()[0] == 1  # caches the index
    spec = spec_of(store)
    with group_writes():
        array[2, 1] = 5
        array[15, 23] = 6
        assert ways[how]()[0] == 5
        buffer = blocks.active_buffer()
        assert buffer is not None
        assert len(buffer.names()) == int(how != "whole")  # chunks that are not read stay buffered
        with open_shard(store, "c/0/0", spec, mode="r+") as shard:
            shard.write_chunks([(0, 0)], np.full((1, 4, 3), 7, np.int32))
        assert ways[how]()[0] == 7
        array[:] = 0
        array[2, 1] = 8
        assert ways[how]()[0] == 8
    assert ways[how]()[0] == 8
