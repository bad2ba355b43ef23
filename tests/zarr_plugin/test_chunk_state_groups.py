# test_chunk_state_blocks.py - `chunk_state` inside blocks of group_writes
# SPDX-License-Identifier: MIT
"""`chunk_state` first stores the buffered writes to its array, then reads the indexes. Other writes stay buffered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import OtherMemoryStore, RecordingStore, memory_object_store
from spec_json import CHECKED_INDEX
from zarr.storage import LocalStore, MemoryStore, StorePath

import shardcodec
from shardcodec import ShardSpec, chunk_state, group_writes, open_shard
from shardcodec.access import buffer as blocks
from shardcodec.storage.kinds import store_of
from shardcodec.storage.object_names import lies_in
from shardcodec.transformer import ShardingStorageTransformer

KINDS: dict[str, Callable[[Path], Any]] = {
    "local": LocalStore,
    "memory": lambda _: MemoryStore(),
    "other": lambda _: OtherMemoryStore(),
    "remote": lambda _: RecordingStore(MemoryStore()),
    "objects": lambda _: memory_object_store(),
}


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return KINDS[request.param](tmp_path)


def make(store: Any, name: str, **how: Any) -> Any:
    usual = {"shape": (8, 12), "shards": (4, 6), "chunks": (2, 2), "dtype": "u1", "compressors": None}
    with shardcodec.enable():
        return zarr.create_array(store, name=name, **(usual | how))


def buffered_names() -> list[str]:
    buffer = blocks.active_buffer()
    assert buffer is not None
    return sorted(buffer.names())


def test_state_stores_buffered_writes_of_its_array_only(store: Any) -> None:
    """It stored all buffered writes of the process, of every array."""
    one, two, alike = (make(store, name) for name in ("one", "two", "one2"))
    with group_writes():
        one[0, 0], two[1:5, 3], alike[3, 3] = 1, 2, 3
        before = buffered_names()
        state = chunk_state(one)
        assert [tuple(at) for at in np.argwhere(state.exists)] == [(0, 0)]
        left = buffered_names()
        assert set(before) - set(left) == {name for name in before if name.endswith("one/c/0/0")}
        assert any(name.endswith("two/c/0/0") for name in left) and any("one2" in name for name in left)
        assert list(chunk_state(two).iter_existing()) == [(i, 1) for i in range(3)]
        assert not any("two" in name for name in buffered_names()) and any(
            "one2" in name for name in buffered_names()
        )
        assert (one[...].sum(), two[...].sum(), alike[3, 3]) == (1, 8, 3)
    assert alike[3, 3] == 3 and chunk_state(alike).exists.sum() == 1


def test_state_stores_buffered_writes_of_its_region_only(store: Any) -> None:
    array = make(store, "a")
    with group_writes():
        array[0, 0] = array[7, 11] = 1
        assert chunk_state(array, region=np.s_[:4, :6]).exists.sum() == 1
        assert [name[-3:] for name in buffered_names()] == ["1/1"]
        assert chunk_state(array).exists.sum() == 2
        assert buffered_names() == []


def test_state_finds_buffered_writes_through_symbolic_links(tmp_path: Path) -> None:
    """The link is a folder of the path, or the shard itself, which is stored in another folder."""
    (tmp_path / "real").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to("real")
    array, other = make(LocalStore(tmp_path / "real"), "a"), make(LocalStore(tmp_path / "real"), "b")
    array[:4, :6] = 1
    shard = tmp_path / "real/a/c/0/0"
    shard.rename(tmp_path / "elsewhere/shard")
    shard.symlink_to(tmp_path / "elsewhere/shard")
    with group_writes():
        array[:2, :2] = 0
        array[7, 7] = 1
        other[0, 0] = 1
        assert len(buffered_names()) == 2  # a write through a link is not buffered
        state = chunk_state(zarr.open_array(tmp_path / "link/a"))
        assert state.exists.sum() == 6 and not state.exists[0, 0]
        assert buffered_names() == [str(tmp_path / "real/b/c/0/0")]
        with shardcodec.enable():
            zarr.open_array(tmp_path / "link/a")[7, 0] = 1
        assert chunk_state(array).exists.sum() == 7
        assert buffered_names() == [str(tmp_path / "real/b/c/0/0")]
    assert shard.is_symlink()


def test_state_stores_buffered_writes_of_shard_handles(store: Any) -> None:
    array = make(store, "a")
    spec = ShardSpec((4, 6), (2, 2), "u1", 0, ["bytes"])
    with group_writes():
        for name in ("a", "b"):
            shard = open_shard(store, f"{name}/c/0/1", spec, mode="r+")
            shard.write_chunks([(0, 0)], np.ones((1, 2, 2), "u1"))
        assert [tuple(at) for at in np.argwhere(chunk_state(array).exists)] == [(0, 3)]
        assert [name[-7:] for name in buffered_names()] == ["b/c/0/1"]


def over(store: Any, name: str) -> Any:
    """Create an array without shards over the same inner chunks."""
    with shardcodec.enable():
        how: dict[str, Any] = {"shape": (8, 12), "chunks": (2, 2), "dtype": "u1", "compressors": None}
        plain = zarr.create_array(MemoryStore(), **how)
        view = ShardingStorageTransformer(store, (2, 3), path=name, index_codecs=CHECKED_INDEX)
        return zarr.Array(zarr.AsyncArray(plain.metadata, StorePath(view, name)))


def test_state_stores_elements_buffered_above_a_transformer(store: Any) -> None:
    """An array over a transformer buffers elements. Stored, they become chunks, which the transformer buffers for
    its shards.
    """
    array, other = make(store, "a"), make(store, "b")
    upper, beside = over(store, "a"), over(store, "b")
    with group_writes():
        upper[2, 7] = upper[7, 0] = beside[1, 1] = 5
        array[0, 0] = 1
        assert len(buffered_names()) == 4
        state = chunk_state(array)
        assert [tuple(at) for at in np.argwhere(state.exists)] == [(0, 0), (1, 3), (3, 0)]
        assert len(buffered_names()) == 1 and "b/c/0/0" in buffered_names()[0]
        assert not chunk_state(make(store, "c")).exists.any() and len(buffered_names()) == 1
    assert (array[0, 0], array[2, 7], array[7, 0], other[1, 1]) == (1, 5, 5, 5)


def test_block_stores_elements_above_a_transformer(store: Any) -> None:
    """The array was compared with the document of the sharded one below, and its writes were dropped."""
    array = make(store, "a")
    upper = over(store, "a")
    with shardcodec.enable():
        zarr.create_array({}, shape=(1,), dtype="u1")  # the first array replaces the methods
        with group_writes():
            upper[2, 7] = upper[7, 0] = 5
    assert (array[2, 7], array[7, 0]) == (5, 5)


def test_views_of_one_shard_are_buffered_apart(tmp_path: Path) -> None:
    """Two views of one shard use the same name for different parts, which must not be buffered as one."""
    one = ShardingStorageTransformer(LocalStore(tmp_path), (2, 3))
    two = ShardingStorageTransformer(LocalStore(tmp_path), (3, 2))
    names = store_of(one).lock_names(["c/0/0"]) + store_of(two).lock_names(["c/0/0"])
    assert len(set(names)) == 2
    (below,) = store_of(LocalStore(tmp_path)).lock_names(["c/0/0"])
    assert all(lies_in(name, {below}) for name in names) and not lies_in(below, {below})
    assert not lies_in(store_of(one).lock_names(["zarr.json"])[0], {below})


def test_shard_that_cannot_be_stored_is_an_error(tmp_path: Path) -> None:
    array, other = make(LocalStore(tmp_path), "a"), make(LocalStore(tmp_path), "b")
    other[...] = 1
    (tmp_path / "b/c/0/0").write_bytes(b"no shard at all")
    with pytest.raises(shardcodec.GroupWriteError), group_writes():  # noqa: PT012
        other[0, 0] = array[0, 0] = 2
        assert chunk_state(array).exists.sum() == 1
        with pytest.raises(shardcodec.GroupWriteError, match="b/c/0/0"):
            chunk_state(other)
