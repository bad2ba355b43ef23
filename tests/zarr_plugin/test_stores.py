# test_stores.py - the requests that a store gets, and wrong answers
# SPDX-License-Identifier: MIT
"""The engine reaches other stores through their asynchronous calls and decodes the answers natively; see `store_contract`, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import (
    RecordingStore,
    bits,
    checked,
    create,
    gap_of,
    quiet,
    random_array,
)
from zarr.storage import MemoryStore, WrapperStore, ZipStore

import shardcodec
from shardcodec.compat import default_buffer_prototype
from shardcodec.storage.kinds import store_of

LOCATIONS = pytest.mark.parametrize("at_start", [False, True], ids=["index last", "index first"])


def test_local_stores_merge_fewer_gaps(tmp_path: Path) -> None:
    """A round trip to a local store is worth fewer superfluous bytes."""
    assert is_cheap(ZipStore(tmp_path / "a.zip", mode="w"))
    # any wrapper counts as remote, for example one that waits to imitate a remote store
    assert not is_cheap(WrapperStore(MemoryStore()))
    obstore = pytest.importorskip("obstore.store", reason="obstore is not installed")
    from zarr.storage import FsspecStore, ObjectStore

    assert is_cheap(ObjectStore(obstore.MemoryStore())) and is_cheap(ObjectStore(obstore.LocalStore()))
    assert not is_cheap(ObjectStore(obstore.HTTPStore.from_url("https://example.org")))
    pytest.importorskip("fsspec", reason="fsspec is not installed")
    with quiet():
        assert is_cheap(FsspecStore.from_url("memory://a")) and is_cheap(
            FsspecStore.from_url(f"file://{tmp_path}")
        )


def is_cheap(store: Any) -> bool:
    return store_of(store).is_cheap  # type: ignore[attr-defined]


# ---- requests

INDEX_NBYTES = 16 * 8 + 4


@pytest.fixture
def large() -> Iterator[None]:
    """Make shards count as too large to be fetched whole for a part of them."""
    with gap_of(0):
        yield


def recorded(at_start: bool = False) -> tuple[Any, RecordingStore]:
    store = RecordingStore(MemoryStore())
    array = checked(store, at_start=at_start)
    array[...] = random_array((16, 24), "int32")
    store.forget()
    return array, store


@LOCATIONS
@pytest.mark.usefixtures("large")
def test_one_inner_chunk_takes_two_requests(at_start: bool) -> None:
    array, store = recorded(at_start)
    array[1, 2]
    index, chunk = store.chunk_requests()
    assert index == ("c/0/0", (0, INDEX_NBYTES) if at_start else f"last {INDEX_NBYTES}")
    room = 0 if at_start else INDEX_NBYTES  # more, if the range reaches into the index
    assert chunk[0] == "c/0/0" and 0 < chunk[1][1] - chunk[1][0] - room < 100


@LOCATIONS
def test_one_inner_chunk_of_a_small_shard_takes_one_request(at_start: bool) -> None:
    array, store = recorded(at_start)
    array[1, 2]
    assert store.chunk_requests() == [("c/0/0", "all")]


@pytest.mark.usefixtures("large")
def test_whole_shard_takes_one_request() -> None:
    array, store = recorded()
    array[:8, 12:]
    assert store.chunk_requests() == [("c/0/1", "all")]
    store.forget()
    array[...]
    assert sorted(store.chunk_requests()) == [(f"c/{i}/{j}", "all") for i in (0, 1) for j in (0, 1)]


@pytest.mark.usefixtures("large")
def test_most_of_a_shard_is_fetched_as_a_whole() -> None:
    store = RecordingStore(MemoryStore())
    array = checked(store, shape=(40, 12), chunks=(40, 12))
    array[...] = random_array((40, 12), "int32")
    store.forget()
    array[:, 1:]  # all 40 inner chunks
    array[1:32]  # 32 of them
    assert store.chunk_requests() == [("c/0/0", "all")] * 2
    store.forget()
    array[1:28]  # 28 of them
    assert store.chunk_requests()[0] == ("c/0/0", f"last {40 * 16 + 4}")


@pytest.mark.usefixtures("large")
def test_box_takes_two_requests_of_each_shard() -> None:
    array, store = recorded()
    values = array[6:10, 10:14]
    assert values.shape == (4, 4)
    requests = store.chunk_requests()
    assert sorted(key for key, _ in requests) == [f"c/{i}/{j}" for i in (0, 1) for j in (0, 1) for _ in "12"]
    assert sum(wanted == f"last {INDEX_NBYTES}" for _, wanted in requests) == 4


@pytest.mark.usefixtures("large")
def test_each_touched_inner_chunk_is_fetched_once() -> None:
    array, store = recorded()
    array.oindex[[7, 0, 3, 0], [0, 11, 1, 0]]  # rows 0 and 1 of the grid of inner chunks, columns 0 and 3
    index, *chunks = store.chunk_requests()
    assert index == ("c/0/0", f"last {INDEX_NBYTES}")
    assert len(chunks) == len(set(chunks)) == 2  # two inner chunks each, adjacent in Morton order
    store.forget()
    array.vindex[np.repeat([0, 7], 500), np.repeat([0, 11], 500)]
    assert len(store.chunk_requests()) == 1 + 2


@pytest.mark.usefixtures("large")
def test_plane_takes_an_index_and_its_adjacent_chunks_of_each_shard() -> None:
    array, store = recorded()
    array[5]  # the second row of inner chunks: every second chunk in Morton order
    requests = store.chunk_requests()
    assert sum(wanted == f"last {INDEX_NBYTES}" for _, wanted in requests) == 2
    assert len(requests) == 2 + 2 * 4
    store.forget()
    with gap_of(1000):
        array[5]
    assert len(store.chunk_requests()) == 2


@pytest.mark.usefixtures("large")
def test_missing_shard_takes_one_request() -> None:
    array, store = recorded()
    array[:8, :12] = -1
    store.forget()
    assert array[1, 2] == -1
    assert store.chunk_requests() == [("c/0/0", f"last {INDEX_NBYTES}")]


@pytest.mark.usefixtures("large")
def test_missing_inner_chunks_take_no_request() -> None:
    array, store = recorded()
    array[:4, :3] = -1
    store.forget()
    assert (array[:4, :3] == -1).all()
    assert store.chunk_requests() == [("c/0/0", f"last {INDEX_NBYTES}")]


def test_distant_chunks_are_fetched_apart_and_close_ones_together() -> None:
    store = RecordingStore(MemoryStore())
    array = create(store, shape=(8 << 20,), shards=(8 << 20,), chunks=(1 << 18,), dtype="u1", fill_value=0)
    values = random_array(array.shape, "u1")
    array[...] = values
    store.forget()
    wanted = np.s_[:: 6 << 18]  # one element of each of six inner chunks, which are 1.5 MiB apart
    assert bits(array[wanted]) == bits(values[wanted])
    requests = [wanted for _, wanted in store.chunk_requests()]
    # the store does not report the size; one byte shows that all entries can be valid
    last = (8 << 20) + 32 * 16 + 4
    assert len(requests) == 1 + 6 + 1
    assert sorted(requests[1:])[:2] == [(0, 1 << 18), (6 << 18, 7 << 18)]
    assert (last - 1, last) in requests
    store.forget()
    near = np.s_[1 << 18 : 7 << 18 : 2 << 18]  # three inner chunks with gaps of 256 KiB
    assert bits(array[near]) == bits(values[near])
    assert [wanted for _, wanted in store.chunk_requests()][1:] == [(1 << 18, 6 << 18), (last - 1, last)]


def test_write_reads_a_shard_only_to_keep_parts_of_it() -> None:
    array, store = recorded()
    array[...] = 3
    assert store.chunk_requests() == []
    assert sorted(store.written) == ["c/0/0", "c/0/1", "c/1/0", "c/1/1"]
    store.forget()
    array[2, 13] = 4
    assert [key for key, _ in store.chunk_requests()] == ["c/0/1"]
    assert store.written == ["c/0/1"]


class UndeletingStore(RecordingStore):
    """Cannot delete, as a zip file."""

    supports_deletes = False

    async def exists(self, key: str) -> bool:
        self.calls.append(("exists", key))
        return await super().exists(key)

    async def delete(self, key: str) -> None:
        if await super().exists(key):
            raise NotImplementedError


def erase_in_a_block(array: Any, rows: slice) -> None:
    """Set all elements of a shard to the fill value with buffered writes, which do not need the stored shard."""
    with shardcodec.group_writes():
        array[rows, :6] = -1
        array[rows, 6:12] = -1


def test_store_that_cannot_delete_is_asked_only_about_emptied_shards() -> None:
    store = UndeletingStore(MemoryStore())
    array = create(store)
    store.forget()
    array[:8, :12] = 3
    array[:8, :12] = 4
    erase_in_a_block(array, slice(8, None))  # is not there
    assert store.chunk_requests() == []
    look = ("get", [("zarr.json", "all")])  # before a block stores its writes
    assert store.calls == [("set", "c/0/0"), ("set", "c/0/0"), look, ("exists", "c/1/0")]
    store.forget()
    erase_in_a_block(array, slice(8))
    assert store.calls == [look, ("exists", "c/0/0"), ("set", "c/0/0")]
    assert not shardcodec.chunk_state(array).exists.any()
    assert (array[...] == -1).all()


def test_damaged_shard_is_emptied_where_nothing_is_deleted() -> None:
    store = UndeletingStore(MemoryStore())
    array = create(store)
    array[...] = 3
    store._store._store_dict["c/0/0"] = default_buffer_prototype().buffer.from_bytes(b"bad")
    erase_in_a_block(array, slice(8))
    assert (array[:8, :12] == -1).all() and (array[8:] == 3).all()
