# test_group_links.py - shards that are symbolic links, in a block of `group_writes`
# SPDX-License-Identifier: MIT
"""A write goes to the target of a link, an erase removes the link; the block must see one as the other (`docs/durability.md`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import ours, zarrs_view

import shardcodec
from shardcodec import _native, group_writes
from shardcodec.storage.file_locks import FileLocks


def new(folder: Path) -> Any:
    """An array of one shard with four inner chunks."""
    zarr.create_array(folder, shape=(8,), chunks=(2,), shards=(8,), dtype="i4", fill_value=0)
    return ours(folder)


def stored(array: Any) -> np.ndarray[Any, Any]:
    """What zarr's own pipeline finds in the store."""
    values: np.ndarray[Any, Any] = zarrs_view(array)[...]
    return values


def target(tmp_path: Path) -> np.ndarray[Any, Any]:
    """The elements in the file that links lead to."""
    copy = new(tmp_path / "copy")
    (tmp_path / "copy/c").mkdir()
    (tmp_path / "copy/c/0").write_bytes((tmp_path / "target").read_bytes())
    return stored(copy)


@pytest.fixture
def linked(tmp_path: Path) -> Any:
    """An array of one shard of ones, which is a link to a file elsewhere."""
    array = new(tmp_path / "array")
    array[:] = 1
    (tmp_path / "array/c/0").rename(tmp_path / "target")
    (tmp_path / "array/c/0").symlink_to(tmp_path / "target")
    return array


def test_an_erased_link_is_no_shard_any_more(linked: Any, tmp_path: Path) -> None:
    """The block went on with the link's target: what was erased came back behind what was written later."""
    with group_writes():
        linked[:] = 0
        linked[0:2] = 5
        assert linked[:].tolist() == [5, 5, 0, 0, 0, 0, 0, 0]
    assert stored(linked).tolist() == [5, 5, 0, 0, 0, 0, 0, 0]
    assert not (tmp_path / "array/c/0").is_symlink()
    assert (target(tmp_path) == 1).all()


def test_a_link_that_a_flush_erases_is_no_shard_any_more(linked: Any, tmp_path: Path) -> None:
    spec = shardcodec.ShardSpec.from_metadata(linked.metadata.to_dict())
    handle = shardcodec.open_shard(tmp_path / "array", "c/0", spec, mode="r+")
    with group_writes(max_bytes=0):  # each write is stored at once
        for start in range(0, 8, 2):
            linked[start : start + 2] = 0
        assert not (tmp_path / "array/c/0").exists()
        linked[0:2] = 5
        handle.write_chunks([(1,)], np.full((1, 2), 6, "i4"))
        assert linked[:].tolist() == [5, 5, 6, 6, 0, 0, 0, 0]
    assert stored(linked).tolist() == [5, 5, 6, 6, 0, 0, 0, 0]


def test_a_write_through_a_link_goes_to_its_target(linked: Any, tmp_path: Path) -> None:
    with group_writes():
        linked[0:2] = 5
        linked[2:4] = 0
    assert (tmp_path / "array/c/0").is_symlink()
    assert target(tmp_path).tolist() == [5, 5, 0, 0, 1, 1, 1, 1]


def test_an_erased_link_takes_nothing_from_another_one(linked: Any, tmp_path: Path) -> None:
    """Both lead to one file; the erase of one removes a name, and what was assigned through the other is still to be stored."""
    other = new(tmp_path / "other")
    (tmp_path / "other/c").mkdir()
    (tmp_path / "other/c/0").symlink_to(tmp_path / "target")
    with group_writes():
        other[0:2] = 5
        linked[:] = 0
        assert other[:].tolist() == [5, 5, 1, 1, 1, 1, 1, 1]
    assert stored(other).tolist() == [5, 5, 1, 1, 1, 1, 1, 1]
    assert (stored(linked) == 0).all()


def test_a_dangling_link_becomes_a_shard(linked: Any, tmp_path: Path) -> None:
    (tmp_path / "target").unlink()
    with group_writes(max_bytes=0):
        linked[0:2] = 5
        linked[2:4] = 6
        assert linked[:].tolist() == [5, 5, 6, 6, 0, 0, 0, 0]
    assert stored(linked).tolist() == [5, 5, 6, 6, 0, 0, 0, 0]
    assert not (tmp_path / "array/c/0").is_symlink()


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


@pytest.mark.parametrize("write", [through_zarr, in_a_block, through_a_handle, through_the_codec])
def test_a_link_that_is_erased_while_a_writer_waits_is_no_shard_any_more(
    linked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Any], None]
) -> None:
    """The writer had resolved the link, waited for the lock of its target, and brought back what the other one had erased."""
    link, lock, advance = tmp_path / "array/c/0", _native.FileLock(), FileLocks.advance
    assert lock.try_acquire(str(tmp_path / "target")) == "held"

    def erase_meanwhile(self: FileLocks) -> bool:
        done = advance(self)
        if not done:
            link.unlink()
            lock.release()
        return done

    monkeypatch.setattr(FileLocks, "advance", erase_meanwhile)
    write(linked)
    assert stored(linked).tolist() == [5, 5, 0, 0, 0, 0, 0, 0]
    assert not link.is_symlink()
    assert (target(tmp_path) == 1).all()
