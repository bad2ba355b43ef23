# test_group_deletions.py - arrays that are deleted or made anew in a block of `group_writes`
# SPDX-License-Identifier: MIT
"""The writes of an array that is deleted are void. They came back at the end of the block, also under metadata of another
layout, where nothing could decode them.
"""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import RecordingStore, create, keys_of, on_pipeline, ours, zarrs_view
from zarr.core.sync import sync
from zarr.storage import LocalStore, MemoryStore, StorePath

import shardcodec
from shardcodec import GroupWriteError, ShardSpec, group_writes, open_shard
from shardcodec.access import buffer as blocks
from shardcodec.transformer import ShardingStorageTransformer


def n_buffered() -> int:
    buffer = blocks.active_buffer()
    assert buffer is not None
    return len(buffer.names())


# ---- in this process


@pytest.mark.parametrize("name", [None, "group/array"])
def test_array_made_anew_has_nothing_of_the_old_one(store: Any, name: str | None) -> None:
    """A forecast was shorter than the attempt before it, whose hours came back after a resize."""
    with group_writes():
        create(store, name=name)[1:15] = 1
        array = create(store, name=name, shape=(4, 24), overwrite=True)
        array[1:3] = 2
        assert (array[0] == -1).all()
    array.resize((16, 24))
    stored = zarrs_view(array)[...]
    assert (stored[1:3] == 2).all()
    assert (stored[3:] == -1).all()


def test_array_of_another_layout_gets_no_old_shard(store: Any) -> None:
    with group_writes():
        create(store)[1:15] = 1
        array = create(store, shards=(16, 12), chunks=(8, 12), overwrite=True)
        array[2:4, :12] = 2
    expected = np.full((16, 24), -1)
    expected[2:4, :12] = 2
    assert (zarrs_view(array)[...] == expected).all()
    array[:] = 3  # and can be written
    assert (zarrs_view(array)[...] == 3).all()


@pytest.mark.parametrize("way", ["attached", "pipeline"])
def test_stale_handle_writes_nothing_into_another_layout(store: Any, way: str) -> None:
    array = create(store)
    stale = array if way == "pipeline" else shardcodec.attach(array)
    with group_writes():
        new = create(store, shards=(16, 12), chunks=(8, 12), overwrite=True)
        stale[1, 1] = 1
        with pytest.warns(RuntimeWarning, match="1 shard of .* another layout"):
            sync(blocks.active_buffer().flush())  # type: ignore[union-attr]
        new[1, 1] = 2
    assert zarrs_view(new)[1, 1] == 2
    assert np.count_nonzero(zarrs_view(new)[...] != -1) == 1


DELETIONS: dict[str, Callable[[Any, Any], Any]] = {
    "del": lambda group, store: group.__delitem__("gone"),
    "parent": lambda group, store: sync(store.delete_dir("")),
    "delete_dir": lambda group, store: sync(store.delete_dir("gone")),
    "clear": lambda group, store: sync(store.clear()),
    "mode": lambda group, store: zarr.open_group(store, mode="w"),
}


@pytest.mark.parametrize("how", DELETIONS)
def test_deleted_array_stays_deleted(store: Any, how: str) -> None:
    group = zarr.open_group(store, mode="w")
    kept = how in ("del", "delete_dir")
    other = create(store, name="gone2")  # the name begins like that of the deleted array
    gone = create(store, name="gone")
    with group_writes():
        gone[1] = 1
        other[1] = 1
        DELETIONS[how](group, store)
        assert n_buffered() == 2 * kept
    assert not [name for name in keys_of(store) if name.startswith("gone/")]
    assert not kept or (zarrs_view(other)[1] == 1).all()


def test_one_deleted_shard_stays_deleted(store: Any) -> None:
    array = create(store)
    with group_writes():
        array[1] = 1
        sync(store.delete("c/0/1"))
        assert n_buffered() == 1
    assert (zarrs_view(array)[1] == [1] * 12 + [-1] * 12).all()


@pytest.mark.parametrize("way", ["same handle", "another handle"])
def test_shards_cut_off_by_a_resize_stay_away(store: Any, way: str) -> None:
    array = create(store)
    with group_writes():
        array[:, 1] = 1
        (array if way == "same handle" else zarr.open_array(store)).resize((8, 24))
    assert "c/1/0" not in keys_of(store)
    longer = zarr.open_array(store)
    longer.resize((16, 24))
    assert (zarrs_view(longer)[:, 1] == [1] * 8 + [-1] * 8).all()


def test_handles_on_deleted_shards(store: Any) -> None:
    array = create(store, name="a")
    spec = ShardSpec.from_metadata(array.metadata.to_dict())
    with group_writes(), open_shard(store, "a/c/0/0", spec, mode="r+") as shard:
        shard.write_chunks([(0, 0)], np.ones((1, 4, 3), np.int32))
        sync(store.delete_dir("a"))
    assert keys_of(store) == ["zarr.json"]  # that of the group


def test_array_over_a_transformer(tmp_path: Path) -> None:
    """Its chunks are parts of shards, and both are buffered. A deletion takes their locks in the order of a flush."""
    array = create(LocalStore(tmp_path), name="a", shape=(8, 12), shards=(4, 6), chunks=(2, 2), dtype="i1")
    plain = create(MemoryStore(), shape=(8, 12), shards=None, chunks=(2, 2), dtype="i1")
    view = ShardingStorageTransformer(LocalStore(tmp_path), (2, 3), path="a")
    upper = on_pipeline(zarr.Array(zarr.AsyncArray(plain.metadata, StorePath(view, "a"))))
    with group_writes():
        upper[1, 1] = 1
        array[7, 7] = 1
        assert n_buffered() == 2
        sync(array.store.delete_dir("a"))
        assert n_buffered() == 0
    assert keys_of(array.store) == ["zarr.json"]


class Stubborn(MemoryStore):
    """A store that cannot delete."""

    async def delete_dir(self, prefix: str) -> None:
        raise PermissionError(prefix)


def test_failed_deletion_keeps_the_writes() -> None:
    array = create(Stubborn(), name="a")
    with group_writes():
        array[1] = 1
        with pytest.raises(PermissionError):
            sync(array.store.delete_dir("a"))
    assert (zarrs_view(array)[1] == 1).all()


def test_classes_of_stores_are_restored() -> None:
    """A block replaces methods of zarr's classes. Nested blocks and errors leave none behind."""
    before = {cls: dict(vars(cls)) for cls in (LocalStore, MemoryStore, Stubborn, zarr.abc.store.Store)}
    with group_writes(), group_writes():
        assert vars(MemoryStore)["delete"] is not before[MemoryStore]["delete"]
    assert {cls: dict(vars(cls)) for cls in before} == before


# ---- by other processes


@contextmanager
def block_that_drops(what: str, max_bytes: int = 1 << 20) -> Iterator[None]:
    """Open a block of `group_writes` whose end warns that it has dropped writes."""
    with pytest.warns(RuntimeWarning, match=what), group_writes(max_bytes):  # the end of the block warns
        yield


def test_array_that_another_process_has_deleted(tmp_path: Path) -> None:
    create(tmp_path / "a")
    array = ours(tmp_path / "a")
    with block_that_drops("2 shards of .*/a were dropped: the array has been deleted"):
        array[1] = 1
        shutil.rmtree(tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_array_that_another_process_has_deleted_after_a_look(tmp_path: Path) -> None:
    """The end of a block looks again, though a flush has looked at the array a moment ago."""
    create(tmp_path / "a")
    array = ours(tmp_path / "a")
    with block_that_drops("1 shard of .*/a were dropped: the array has been deleted"):
        array[1, :4] = 1
        assert shardcodec.open_array(tmp_path / "a")[1, 0] == 1  # stores the buffered writes
        array[2, :4] = 2
        shutil.rmtree(tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("max_bytes", [0, 1 << 20])
def test_stale_handle_on_an_array_that_was_deleted_after_a_look(tmp_path: Path, max_bytes: int) -> None:
    """A look counts for a second, but not after a deletion, also of an array without buffered writes."""
    array = create(tmp_path / "a")
    other = create(tmp_path / "other")
    with block_that_drops("of .*/a were dropped", max_bytes):
        array[1, :4] = 1
        assert shardcodec.open_array(tmp_path / "a")[1, 0] == 1
        other[1, :4] = 1
        sync(array.store_path.delete_dir())
        array[2, :4] = 2
        assert shardcodec.open_array(tmp_path / "other")[1, 0] == 1
        if max_bytes:
            buffer = blocks.active_buffer()
            assert buffer is not None
            sync(buffer.flush(buffer.names()))
        assert not (tmp_path / "a/c").exists()


def test_array_that_another_process_has_made_anew(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    create(tmp_path / "b", shards=(16, 12), chunks=(8, 12), name="a")
    with block_that_drops("2 shards of .*/a were dropped: .* another layout"):
        array[1] = 1
        shutil.rmtree(tmp_path / "a")
        shutil.move(tmp_path / "b/a", tmp_path / "a")
        new = ours(tmp_path / "a")
        assert (new[:3] == -1).all()
    assert (zarrs_view(new)[...] == -1).all()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_array_made_anew_after_its_folder_was_removed(tmp_path: Path, zarr_format: int) -> None:
    """`shutil.rmtree` is no deletion through a store, and the new array has the old layout."""
    how: dict[str, Any] = {} if zarr_format == 3 else {"zarr_format": 2, "shards": None, "chunks": (8, 12)}
    with group_writes():
        create(tmp_path / "a", **how)[1:15] = 1
        shutil.rmtree(tmp_path / "a")
        array = create(tmp_path / "a", shape=(4, 24), **how)
        array[1:3] = 2
        assert n_buffered() == 2
    array.resize((16, 24))
    stored = zarrs_view(array)[...]
    assert (stored[1:3] == 2).all()
    assert (stored[3:] == -1).all()


def test_group_that_gets_a_document_keeps_the_writes_of_its_arrays(tmp_path: Path) -> None:
    array = create(tmp_path / "group/a")
    with group_writes():
        array[1] = 1
        zarr.create_group(tmp_path / "group", attributes={"title": "x"})
    assert (zarrs_view(array)[1] == 1).all()


def test_group_in_place_of_the_array(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    with block_that_drops("2 shards of .*/a were dropped: .* deleted"):
        array[1] = 1
        shutil.rmtree(tmp_path / "a")
        (tmp_path / "a").mkdir()
        (tmp_path / "a/zarr.json").write_text(
            json.dumps({"zarr_format": 3, "node_type": "group", "attributes": {}})
        )
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["zarr.json"]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_array_that_another_process_has_resized(tmp_path: Path, zarr_format: int) -> None:
    array = create(tmp_path, **({} if zarr_format == 3 else {"zarr_format": 2, "shards": None}))
    document = tmp_path / ("zarr.json" if zarr_format == 3 else ".zarray")
    with block_that_drops(r"become smaller, its shape is \(8, 24\)"):
        array[7:9, 1] = 1
        document.write_text(document.read_text().replace("16", "8", 1))
    longer = ours(tmp_path)
    assert longer.shape == (8, 24)
    longer.resize((16, 24))
    assert zarrs_view(longer)[7, 1] == 1
    assert zarrs_view(longer)[8, 1] == -1


def test_document_that_cannot_be_read_refuses_the_writes(tmp_path: Path) -> None:
    array = create(tmp_path)
    with pytest.raises(GroupWriteError), group_writes():  # noqa: PT012  # the end of the block raises
        array[1] = 1
        (tmp_path / "zarr.json").write_text("{")
    assert not (tmp_path / "c").exists()


# ---- arrays that are still the same


@pytest.mark.parametrize("change", ["attributes", "grown", "nothing"])
@pytest.mark.parametrize(
    ("dtype", "fill"), [("int32", -1), ("float32", float("nan")), ("datetime64[ns]", None)]
)
def test_array_of_the_same_layout_gets_its_writes(store: Any, change: str, dtype: str, fill: Any) -> None:
    array = create(store, dtype=dtype, fill_value=fill, compressors="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        with group_writes():
            array[1] = 1
            if change == "attributes":
                zarr.open_array(store).attrs["units"] = "K"
            elif change == "grown":
                zarr.open_array(store).resize((40, 24))
    assert (zarrs_view(array)[1].astype("int64") == 1).all()


def test_each_array_is_looked_at_once() -> None:
    """No request for each write, and one for each array at the flush."""
    store = RecordingStore(MemoryStore())
    arrays = [create(store, name=name) for name in "ab"]
    store.forget()
    with group_writes():
        for array in arrays:
            for row in range(16):
                array[row] = row
        assert not store.calls  # complete shards need no old ones
    assert sorted(key for key, _ in store.requests) == ["a/zarr.json", "b/zarr.json"]


def test_attached_array_is_looked_at_once_though_the_buffer_is_small(tmp_path: Path) -> None:
    store = RecordingStore(LocalStore(tmp_path))
    array = shardcodec.attach(create(store))
    store.forget()
    with group_writes(max_bytes=0):
        for row in range(16):
            array[row, 0] = row
    assert store.requests.count(("zarr.json", "all")) <= 2  # the budget's, and that of the end
