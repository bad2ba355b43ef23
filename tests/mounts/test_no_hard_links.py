# test_no_hard_links.py - mounts with neither hard links nor flags of renameat2, as gcsfuse, rclone, blobfuse and s3fs make them
# SPDX-License-Identifier: MIT
"""Every new shard was EPERM there, where zarr, TensorStore and zarrs write."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create, ours, zarrs_view
from mounts.fuse import Mount, mount

import shardcodec
from shardcodec import LockScopeWarning, ShardSpec, ShardWriter, native
from shardcodec.storage import lock_reach
from shardcodec.tools import convert, verify


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Mount]:
    monkeypatch.setattr(lock_reach, "_told", set())
    with mount(tmp_path / "backing", tmp_path / "mount") as mounted:
        mounted.fail("link", errno.EPERM)
        yield mounted


def spec_of(path: Path) -> ShardSpec:
    return ShardSpec.from_metadata(ours(path).metadata.to_dict())


def whole(path: Path) -> None:
    ours(path)[:8, :12] = 2


def part(path: Path) -> None:
    ours(path)[0] = 1
    ours(path)[:8, :12] = 1
    ours(path)[:4] = 2
    ours(path)[4:8, :12] = 2


def grouped(path: Path) -> None:
    with shardcodec.group_writes():
        for row in range(8):
            ours(path)[row] = 2


def stream(path: Path) -> None:
    with ShardWriter(path / "c/0/0", spec_of(path)) as writer:
        for at in np.ndindex(2, 4):
            writer.write_chunk(at, np.full((4, 3), 2, np.int32))


def slots(path: Path) -> None:
    token = ShardWriter.create(path / "c/0/0", spec_of(path))
    with ShardWriter.join(token) as writer:
        for at in np.ndindex(2, 4):
            writer.write_chunk(at, np.full((4, 3), 2, np.int32))
    ShardWriter.join(token).commit(list(np.ndindex(2, 4)))


WAYS: dict[str, Callable[[Path], Any]] = {
    "whole": whole,
    "part": part,
    "grouped": grouped,
    "stream": stream,
    "slots": slots,
}


@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
@pytest.mark.parametrize("way", WAYS)
def test_shards_can_be_written(bucket: Mount, way: str, strategy: str) -> None:
    path = bucket.path / "a"
    create(path)
    with (
        pytest.warns(LockScopeWarning, match="neither hard links"),
        shardcodec.options(write_strategy=strategy),
    ):
        WAYS[way](path)
    with warnings.catch_warnings(), shardcodec.options(write_strategy=strategy):
        warnings.simplefilter("error")
        WAYS[way](path)  # the warning is given once
    assert (zarrs_view(ours(path))[:8, :12] == 2).all()
    assert os.listdir(bucket.path) == ["a"]
    assert not [name for _, _, names in os.walk(path) for name in names if name.startswith(".shardcodec")]


def test_a_shard_that_exists_is_not_replaced_by_a_new_one(bucket: Mount) -> None:
    """A writer looked before another one stored its shard."""
    for content in (b"one", b"two"):
        file = native.load().NewFile(str(bucket.path / "shard"), shared=True)
        file.write(content, 0)
        assert file.commit(only_new=True) == (content == b"one")
        file.abort()
    assert (bucket.path / "shard").read_bytes() == b"one"
    assert os.listdir(bucket.path) == ["shard"]


@pytest.mark.parametrize("error", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_other_answers_of_such_mounts(bucket: Mount, error: int) -> None:
    bucket.heal()
    bucket.fail("link", error)
    create(bucket.path / "a")
    with pytest.warns(LockScopeWarning, match="neither hard links"):
        whole(bucket.path / "a")


def test_an_error_is_not_taken_for_missing_hard_links(bucket: Mount) -> None:
    bucket.heal()
    bucket.fail("link", errno.EIO)
    create(bucket.path / "a")
    with pytest.raises(OSError, match="Input/output error"):
        whole(bucket.path / "a")
    assert not (bucket.path / "a/c/0/0").exists()


def test_mounts_with_hard_links_get_no_warning(tmp_path: Path) -> None:
    with mount(tmp_path / "backing", tmp_path / "mount") as mounted, warnings.catch_warnings():
        create(mounted.path / "a")
        warnings.simplefilter("error")
        part(mounted.path / "a")


@pytest.mark.filterwarnings("ignore::shardcodec.LockScopeWarning")
def test_conversion_to_such_a_mount(bucket: Mount, tmp_path: Path) -> None:
    create(tmp_path / "old", name="a")[:] = 3
    convert(tmp_path / "old", bucket.path / "new", shards=(16, 24))
    assert (zarrs_view(ours(bucket.path / "new/a"))[:] == 3).all()
    assert not verify(bucket.path / "new").n_findings
