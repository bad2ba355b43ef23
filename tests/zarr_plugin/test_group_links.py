# test_group_links.py - shards that are symbolic links, in a block of `group_writes`
# SPDX-License-Identifier: MIT
"""A write goes to the target of a link, an erase removes the link. Reads in the block must see both alike
(`docs/durability.md`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import ours, stored_values, zarrs_view

import shardcodec
from shardcodec import _native, group_writes
from shardcodec.access.buffer.process_buffer import ProcessBuffer
from shardcodec.storage import files
from shardcodec.storage.file_locks import FileLocks
from shardcodec.zarr_plugin.request import Refusal


def new(folder: Path) -> Any:
    """Create an array of one shard with four inner chunks."""
    zarr.create_array(folder, shape=(8,), chunks=(2,), shards=(8,), dtype="i4", fill_value=0)
    return ours(folder)


def target(tmp_path: Path) -> np.ndarray[Any, Any]:
    """Return the elements in the file that the links point to."""
    copy = new(tmp_path / "copy")
    (tmp_path / "copy/c").mkdir()
    (tmp_path / "copy/c/0").write_bytes((tmp_path / "target").read_bytes())
    return stored_values(copy)


@pytest.fixture
def linked(tmp_path: Path) -> Any:
    """Create an array with one shard of ones, which is a link to a file in another folder."""
    array = new(tmp_path / "array")
    array[:] = 1
    (tmp_path / "array/c/0").rename(tmp_path / "target")
    (tmp_path / "array/c/0").symlink_to(tmp_path / "target")
    return array


def test_erased_link_is_gone_for_later_writes(linked: Any, tmp_path: Path) -> None:
    """The block kept using the link's target: a later write brought back the erased elements."""
    with group_writes():
        linked[:] = 0
        linked[0:2] = 5
        assert linked[:].tolist() == [5, 5, 0, 0, 0, 0, 0, 0]
    assert stored_values(linked).tolist() == [5, 5, 0, 0, 0, 0, 0, 0]
    assert not (tmp_path / "array/c/0").is_symlink()
    assert (target(tmp_path) == 1).all()


def test_link_erased_by_a_flush_is_gone_for_later_writes(linked: Any, tmp_path: Path) -> None:
    spec = shardcodec.ShardSpec.from_metadata(linked.metadata.to_dict())
    handle = shardcodec.open_shard(tmp_path / "array", "c/0", spec, mode="r+")
    with group_writes(max_bytes=0):  # every write is stored at once
        for start in range(0, 8, 2):
            linked[start : start + 2] = 0
        assert not (tmp_path / "array/c/0").exists()
        linked[0:2] = 5
        handle.write_chunks([(1,)], np.full((1, 2), 6, "i4"))
        assert linked[:].tolist() == [5, 5, 6, 6, 0, 0, 0, 0]
    assert stored_values(linked).tolist() == [5, 5, 6, 6, 0, 0, 0, 0]


def test_write_through_a_link_goes_to_its_target(linked: Any, tmp_path: Path) -> None:
    with group_writes():
        linked[0:2] = 5
        linked[2:4] = 0
    assert (tmp_path / "array/c/0").is_symlink()
    assert target(tmp_path).tolist() == [5, 5, 0, 0, 1, 1, 1, 1]


def test_erased_link_keeps_buffered_writes_of_another_link(linked: Any, tmp_path: Path) -> None:
    """Both links point to one file. The erase of one removes its name; the writes through the other must still be
    stored.
    """
    other = new(tmp_path / "other")
    (tmp_path / "other/c").mkdir()
    (tmp_path / "other/c/0").symlink_to(tmp_path / "target")
    with group_writes():
        other[0:2] = 5
        linked[:] = 0
        assert other[:].tolist() == [5, 5, 1, 1, 1, 1, 1, 1]
    assert stored_values(other).tolist() == [5, 5, 1, 1, 1, 1, 1, 1]
    assert (stored_values(linked) == 0).all()


def test_erased_link_keeps_writes_that_were_buffered_meanwhile(
    linked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another array has the file itself. Its write was buffered while the erase waited for the lock, and then dropped."""
    other = new(tmp_path / "other")
    (tmp_path / "other/c").mkdir()
    (tmp_path / "target").rename(tmp_path / "other/c/0")
    link = tmp_path / "array/c/0"
    link.unlink()
    link.symlink_to(tmp_path / "other/c/0")
    flush = ProcessBuffer._flush_from

    async def write_meanwhile(self: ProcessBuffer, runner: Any, names: Any) -> None:
        await flush(self, runner, names)
        if (tmp_path / "array/c/0").is_symlink() and self.is_empty:
            await other.async_array.setitem(slice(0, 2), 5)

    with group_writes():
        with monkeypatch.context() as patch:
            patch.setattr(ProcessBuffer, "_flush_from", write_meanwhile)
            linked[:] = 0
        assert not link.is_symlink()
        assert other[:].tolist() == [5, 5, 1, 1, 1, 1, 1, 1]
    assert stored_values(other).tolist() == [5, 5, 1, 1, 1, 1, 1, 1]
    assert (stored_values(linked) == 0).all()


def test_write_through_a_dangling_link_makes_a_shard(linked: Any, tmp_path: Path) -> None:
    (tmp_path / "target").unlink()
    with group_writes(max_bytes=0):
        linked[0:2] = 5
        linked[2:4] = 6
        assert linked[:].tolist() == [5, 5, 6, 6, 0, 0, 0, 0]
    assert stored_values(linked).tolist() == [5, 5, 6, 6, 0, 0, 0, 0]
    assert not (tmp_path / "array/c/0").is_symlink()


def test_two_dangling_links_to_one_target_become_two_shards(linked: Any, tmp_path: Path) -> None:
    """Both were buffered under the name of the target. All writes became one shard under the last link, and the
    other link got none.
    """
    other = new(tmp_path / "other")
    (tmp_path / "other/c").mkdir()
    (tmp_path / "other/c/0").symlink_to(tmp_path / "target")
    (tmp_path / "target").unlink()
    with group_writes():
        linked[0:2] = 5
        other[2:4] = 6
    assert stored_values(linked).tolist() == [5, 5, 0, 0, 0, 0, 0, 0]
    assert stored_values(other).tolist() == [0, 0, 6, 6, 0, 0, 0, 0]


def through_zarr(array: Any) -> None:
    array[0:2] = 5


def in_a_block(array: Any) -> None:
    with group_writes():
        array[0:2] = 5


def through_a_handle(array: Any) -> None:
    spec = shardcodec.ShardSpec.from_metadata(array.metadata.to_dict())
    with shardcodec.open_shard(array.store.root, "c/0", spec, mode="r+") as handle:
        handle.write_chunks([(0,)], np.full((1, 2), 5, "i4"))


def through_the_codec(array: Any) -> None:
    with zarr.config.set({"codecs.sharding_indexed": "shardcodec.ShardingCodec"}):
        zarrs_view(array)[0:2] = 5


def decline(*_: Any) -> Any:
    raise Refusal("for a test")


def by_fallback(array: Any) -> None:
    array = ours(array.store, strict=False)
    array._async_array.codec_pipeline._prepare = decline
    array[0:2] = 5


def erased_during_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the link of a shard; it is erased while a writer waits for the lock of its target."""
    link, lock, advance = tmp_path / "array/c/0", _native.FileLock(), FileLocks.advance
    assert lock.try_acquire(str(tmp_path / "target")) == "held"

    def erase_meanwhile(self: FileLocks) -> bool:
        done = advance(self)
        if not done:
            link.unlink()
            lock.release()
        return done

    monkeypatch.setattr(FileLocks, "advance", erase_meanwhile)
    return link


@pytest.mark.parametrize(
    "write", [through_zarr, in_a_block, through_a_handle, through_the_codec, by_fallback]
)
def test_link_erased_during_the_wait_for_its_lock_is_gone(
    linked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Any], None]
) -> None:
    """The writer resolved the link, waited for the lock of its target, and then brought back the elements that were
    erased meanwhile.
    """
    link = erased_during_the_wait(tmp_path, monkeypatch)
    write(linked)
    assert stored_values(linked).tolist() == [5, 5, 0, 0, 0, 0, 0, 0]
    assert not link.is_symlink()
    assert (target(tmp_path) == 1).all()


def test_fallback_write_keeps_the_shard_that_replaced_an_erased_link(
    linked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer had the lock of the erased link's old target, and replaced the shard that another writer had made
    under the name.
    """
    link, put = erased_during_the_wait(tmp_path, monkeypatch), files._put

    def put_late(*arguments: Any) -> bool:
        if not link.exists():
            link.write_bytes((tmp_path / "target").read_bytes())
        return put(*arguments)

    monkeypatch.setattr(files, "_put", put_late)
    by_fallback(linked)
    assert stored_values(linked).tolist() == [5, 5, 1, 1, 1, 1, 1, 1]
    assert (target(tmp_path) == 1).all()
