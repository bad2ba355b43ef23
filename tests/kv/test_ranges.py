# test_ranges.py - deletion of many keys in one write
# SPDX-License-Identifier: MIT
"""Deleted positions are passed as an array. Deletions and new values make one write, with every write strategy."""

from __future__ import annotations

import asyncio
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import ABSENT, OtherMemoryStore, assemble, entries_of
from hypothesis import given
from hypothesis import strategies as st
from spec_json import CRC, LITTLE
from zarr.storage import LocalStore, MemoryStore

import shardcodec
from shardcodec.kv import FAILED, KeyRange, ShardedKeyValueStore

GRID = (4, 8)
N = 32


def key(position: int) -> bytes:
    return struct.pack(">2I", *divmod(position, GRID[1]))


def open_kv(base: Any, location: str = "end") -> ShardedKeyValueStore:
    return ShardedKeyValueStore(base, grid_shape=GRID, index_codecs=[LITTLE, CRC], index_location=location)


def nested(folder: Path) -> tuple[ShardedKeyValueStore, bytes]:
    outer = ShardedKeyValueStore(folder / "outer", grid_shape=(2,), index_codecs=[LITTLE, CRC])
    outer[b"\0\0\0\0"] = b"another entry"
    return outer, b"\0\0\0\1"


BASES: dict[str, Callable[[Path], Any]] = {
    "file": lambda folder: folder / "shard",
    "local": lambda folder: (LocalStore(folder), "c/0"),
    "memory": lambda _: (MemoryStore(), "c/0"),
    "other": lambda _: (OtherMemoryStore(), "c/0"),
    "nested": nested,
}

positions = st.integers(0, N)
spans = st.tuples(positions, positions).map(sorted)
values = st.binary(max_size=40)
steps = st.one_of(
    st.tuples(st.just("put"), st.dictionaries(st.integers(0, N - 1), values, max_size=N)),
    st.tuples(st.just("delete"), spans),
    st.tuples(st.just("both"), st.tuples(spans, st.dictionaries(st.integers(0, N - 1), values, max_size=4))),
    st.tuples(st.just("erase"), st.lists(st.integers(0, N - 1), max_size=6)),
)


def bounds(span: list[int]) -> KeyRange:
    """Return positions [low, high) as a range of keys; the end of the grid has no key."""
    low, high = (key(p) if p < N else b"\xff" for p in span)
    return KeyRange(low, high)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
@given(st.data(), st.lists(steps, max_size=6), st.sampled_from(["start", "end"]))
def test_deletions_match_a_dictionary(
    tmp_path_factory: pytest.TempPathFactory,
    base: str,
    strategy: str,
    data: st.DataObject,
    work: list[Any],
    location: str,
) -> None:
    store = open_kv(BASES[base](tmp_path_factory.mktemp("kv")), location)
    twin: dict[bytes, bytes] = {}
    with shardcodec.options(write_strategy=strategy):
        for what, given_ in work:
            before = dict(twin)
            if what == "put":
                store.update({key(p): value for p, value in given_.items()})
                twin |= {key(p): value for p, value in given_.items()}
            elif what == "delete":
                store.delete_range(bounds(given_))
                for p in range(*given_):
                    twin.pop(key(p), None)
            elif what == "erase":
                with store.transaction() as t:
                    for p in given_:
                        t.delete(key(p))
                        twin.pop(key(p), None)
            else:
                with store.transaction() as t:
                    t.update({key(p): value for p, value in given_[1].items()})
                    t.delete_range(bounds(given_[0]))
                    late = data.draw(st.dictionaries(st.integers(0, N - 1), values, max_size=2))
                    t.update({key(p): value for p, value in late.items()})
                    twin |= {key(p): value for p, value in given_[1].items()}
                    for p in range(*given_[0]):
                        twin.pop(key(p), None)
                    twin |= {key(p): value for p, value in late.items()}
                    assert dict(t) == twin
            assert dict(store) == twin, (before, what, given_)
            assert list(store) == sorted(twin)
            if twin == {}:
                assert store.read(key(0)).stamp.generation in (b"\x02", b"\x04") or base == "nested"


# Arguments that are not a pair of keys: iterables of another length, or other types.
NO_RANGES = [
    *([], (), {}, b"", "", set()),
    *([b""], (b"\0",), [b"", b"", b""]),
    *(b"ab", "ab", {b"a": 1, b"b": 2}, 5, slice(0, 1)),
]


@pytest.mark.parametrize("wrong", NO_RANGES, ids=repr)
def test_range_must_be_a_pair_of_keys(tmp_path: Path, wrong: Any) -> None:
    """An empty list stood for all keys and deleted all entries; a list of one key stood for all keys from that one on."""
    store = open_kv(tmp_path / "shard")
    store.update({key(0): b"a", key(1): b"b"})

    async def awaited() -> None:
        for method in (store.delete_range, store.list):
            with pytest.raises(TypeError, match="expected a KeyRange or a pair"):
                await method(wrong)

    asyncio.run(awaited())
    with store.transaction() as transaction:
        for each in (store, transaction):
            for method in (each.delete_range, each.list):
                with pytest.raises(TypeError, match=f"got {type(wrong).__name__}"):
                    method(wrong)
    with pytest.raises(TypeError, match="got NoneType"):
        store.delete_range(None)  # type: ignore[arg-type]
    assert list(store) == [key(0), key(1)]


def test_range_may_be_any_pair_of_keys(tmp_path: Path) -> None:
    store = open_kv(tmp_path / "shard")
    store.update({key(position): b"a" for position in range(4)})
    assert store.list([key(1), bytearray(key(3))]) == [key(1), key(2)]  # type: ignore[arg-type]
    store.delete_range((key(1), key(2)))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="bound: expected bytes or str, got int"):
        store.delete_range((1, b""))  # type: ignore[arg-type]
    assert list(store) == [key(0), key(2), key(3)]


@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_deletion_of_absent_entries_writes_nothing(tmp_path: Path, strategy: str) -> None:
    store = open_kv(tmp_path / "shard")
    store.update({key(p): b"value" for p in range(0, N, 2)})
    store.delete_range(bounds([8, 16]))
    found, stamp = os.stat(tmp_path / "shard"), store.read(key(0)).stamp.generation
    with shardcodec.options(write_strategy=strategy):
        store.delete_range(bounds([8, 16]))
        store.delete_range(bounds([1, 2]))
        with store.transaction() as t:
            t.delete(key(1))
            t.delete_range(bounds([9, 15]))
    again = os.stat(tmp_path / "shard")
    assert (again.st_ino, again.st_mtime_ns) == (found.st_ino, found.st_mtime_ns)
    assert store.read(key(0)).stamp.generation == stamp
    store.clear()
    assert not (tmp_path / "shard").exists()


@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_empty_shard_is_deleted(tmp_path: Path, strategy: str) -> None:
    store = open_kv(tmp_path / "shard")
    store.update({key(p): b"value" for p in range(8, 24)})
    with shardcodec.options(write_strategy=strategy):
        store.delete_range(bounds([4, 28]))
    assert os.listdir(tmp_path) == []


def test_condition_compares_with_present_generation(tmp_path: Path) -> None:
    store = open_kv(tmp_path / "shard")
    store.update({key(p): b"value" for p in range(N)})
    known = store.read(key(0)).stamp.generation
    store.delete_range(bounds([1, 5]))
    assert store.delete(key(0), if_equal=known).generation == FAILED
    assert len(store) == N - 4
    fresh = store.read(key(0)).stamp.generation
    assert store.delete(key(0), if_equal=fresh).generation not in (FAILED, fresh)


@pytest.mark.parametrize("first", [6, 7])
@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_damaged_entry_can_be_deleted_but_not_carried_over(tmp_path: Path, strategy: str, first: int) -> None:
    """Deleted entries are not checked; kept entries are.

    If a write deleted damaged entries only, an update in place found nothing to change: such an entry was already
    absent in the index that the new index was compared with, so it stayed in the file.
    """
    path = tmp_path / "shard"
    pairs = [(5 * p, 5) for p in range(N)]
    pairs[7] = (1 << 40, 5)
    path.write_bytes(assemble(b"value" * N, pairs))
    store, before = open_kv(path), path.read_bytes()
    with shardcodec.options(write_strategy=strategy):
        with pytest.raises(shardcodec.ShardFormatError):
            store.delete_range(bounds([8, 12]))
        assert path.read_bytes() == before
        with shardcodec.options(allow_in_index=True):
            store.delete_range(bounds([first, 8]))
    assert dict(store) == {key(p): b"value" for p in range(N) if not first <= p < 8}
    assert entries_of(path.read_bytes(), N)[7] == (ABSENT, ABSENT)


def test_deletion_creates_no_object_per_entry(tmp_path: Path) -> None:
    """A deletion needed a dictionary of None values, two lists and a struct: 130 bytes per entry beside the index."""
    n = 1 << 17
    path = tmp_path / "shard"
    path.write_bytes(assemble(b"x" * n, [(p, 1) for p in range(n)]))
    store = ShardedKeyValueStore(path, grid_shape=(n,), index_codecs=[LITTLE, CRC], cache_pool=0)
    first, end = (struct.pack(">I", p) for p in (n // 8, 7 * n // 8))
    tracemalloc.start()
    try:
        store.delete_range(KeyRange(first, end))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(store) == n // 4
    assert peak < 5 * 16 * n  # old index, new index, moved runs, positions


def test_shard_handle_erases_many_inner_chunks(tmp_path: Path) -> None:
    """Coordinates may repeat and have any order."""
    spec = shardcodec.ShardSpec((256, 16), (1, 1), "uint8", 0, ["bytes"])
    path = tmp_path / "shard"
    path.write_bytes(shardcodec.encode(np.ones((256, 16), dtype=np.uint8), spec))
    rng = np.random.default_rng(5)
    coords = rng.integers(0, (256, 16), (3000, 2))
    expected = np.ones((256, 16), dtype=bool)
    expected[tuple(coords.T)] = False
    with shardcodec.open_shard(path, None, spec, mode="r+") as shard:
        shard.erase(coords)
        assert (shard.state() == expected).all()
        assert (shard.read_region() == expected).all()
        with pytest.raises(IndexError):
            shard.erase([(0, 16)])
        shard.erase(np.argwhere(expected))
        assert not shard.exists


def test_erased_bytes_do_not_count_as_written(tmp_path: Path) -> None:
    """Erased inner chunks counted as bytes to write, so a shard was replaced after a large erasure."""
    spec = shardcodec.ShardSpec((80 << 20,), (1 << 20,), "uint8", 0, ["bytes"])
    path = tmp_path / "shard"
    shard = shardcodec.open_shard(path, None, spec, mode="r+")
    shard.write_chunks([(i,) for i in range(70, 80)], np.ones((10, 1 << 20), np.uint8))
    inode = path.stat().st_ino
    shard.erase([(i,) for i in range(72)], strategy="append")
    assert path.stat().st_ino == inode
    assert shard.state().sum() == 8
