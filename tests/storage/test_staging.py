# test_staging.py - temporary names: where they are made, who cleans up, and shards that two make at once
# SPDX-License-Identifier: MIT
"""Temporary files of running writers, and those that a dead writer left behind."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import zarr
from helpers import create, files_below, shard_path, zarrs_view

import shardcodec
from shardcodec import native
from shardcodec.storage.temp_folder import staging_folder


def test_the_folder_is_beside_the_top_of_the_hierarchy(tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "top").create_group("a/b")
    for below in ("top", "top/a", "top/a/b"):
        assert staging_folder(str(tmp_path / below)) == str(tmp_path / ".top.shardcodec")
    assert staging_folder(str(tmp_path / "other")) == str(tmp_path / ".other.shardcodec")
    assert staging_folder("/") is None


def test_the_folder_goes_with_the_last_name_in_it(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    array[...] = 1
    array[0, 0] = 2
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def name_of_a_dead_writer(folder: Path) -> str:
    """The temporary name that a process leaves which is killed while it has one."""
    array = create(folder / "probe")
    array[...] = 1
    pid = os.fork()
    if pid == 0:
        try:
            native.load().set_fault(0, "count")
            array[0, 0] = 2
            names = native.load().end_fault()
            native.load().set_fault(names.index("renameat2"), "kill")
            array[0, 0] = 3
        finally:
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    (name,) = (p.name for p in (folder / ".probe.shardcodec").iterdir())
    assert name.split("-")[2] == str(pid)
    return name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_of_the_dead_are_swept_and_those_of_the_living_kept(tmp_path: Path) -> None:
    died = name_of_a_dead_writer(tmp_path)
    host = died.split("-")[1]
    pid = os.getpid()
    start = f"{int(Path('/proc/self/stat').read_text().rpartition(')')[2].split()[19]):x}"
    array = create(tmp_path / "a")
    array[...] = 1
    staging = tmp_path / ".a.shardcodec"
    staging.mkdir()
    alive = f".shardcodec-{host}-{pid}-{start}-ffffff"
    another_host = f".shardcodec-{int(host, 16) ^ 1:016x}-{pid}-{start}-1"
    dead = [
        died,
        f".shardcodec-{host}-999999999-{start}-1",
        f".shardcodec-{host}-{pid}-{int(start, 16) + 1:x}-1",  # the number was that of an earlier process
    ]
    for kept in (alive, another_host, "somebody's", *dead):
        (staging / kept).write_text("bytes")
    array[0, 0] = 2
    assert sorted(p.name for p in staging.iterdir()) == sorted([alive, another_host, "somebody's"])


def test_without_a_staging_folder_temporary_names_are_beside_the_shard(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    array[...] = 1
    (tmp_path / ".a.shardcodec").write_text("a file where the folder should be")
    array[0, 0] = 2
    assert zarrs_view(array)[0, 0] == 2
    assert files_below(tmp_path / "a") == ["c/0/0", "c/0/1", "c/1/0", "c/1/1", "zarr.json"]


# ---- shards that appear while they are written


def ready_made(folder: Path, **arguments: Any) -> bytes:
    """A shard whose first element is 1, and all others the fill value."""
    array = create(folder / "ready", **arguments)
    array[0, 0] = 1
    return shard_path(array).read_bytes()


@pytest.mark.parametrize("shards", [(8, 12), None])
def test_a_shard_that_appears_meanwhile_is_updated_and_not_replaced(
    tmp_path: Path, shards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked, neither saw a shard, both made one: the second lost the inner chunks of the first."""
    from shardcodec.access import old_shard

    layout = {"shards": shards, "chunks": (4, 3) if shards else (8, 12)}
    array = create(tmp_path / "a", **layout)
    ready = ready_made(tmp_path, **layout)
    look = old_shard.Looker._source
    looks: list[int] = []

    def slow_look(self: Any, position: int) -> Any:
        found = look(self, position)
        if not looks:
            shard_path(array).parent.mkdir(parents=True)
            shard_path(array).write_bytes(ready)
        looks.append(position)
        return found

    monkeypatch.setattr(old_shard.Looker, "_source", slow_look)
    array[7, 11] = 2
    assert len(looks) == 2
    assert zarrs_view(array)[0, 0] == 1
    assert zarrs_view(array)[7, 11] == 2


def test_erasing_a_missing_shard_keeps_one_that_appears_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardcodec.access import old_shard

    array = create(tmp_path / "a")
    ready = ready_made(tmp_path)
    look = old_shard.Looker._source

    def slow_look(self: Any, position: int) -> Any:
        found = look(self, position)
        shard_path(array).parent.mkdir(parents=True)
        shard_path(array).write_bytes(ready)
        return found

    monkeypatch.setattr(old_shard.Looker, "_source", slow_look)
    array[7, 11] = -1
    assert zarrs_view(array)[0, 0] == 1


def test_a_shard_that_changes_in_place_during_an_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes of two states must not be mixed: the update stops, whatever the other writer made stays."""
    from shardcodec.access import old_shard

    array = create(tmp_path / "a")
    array[...] = 1
    look = old_shard.Looker._source

    def slow_look(self: Any, position: int) -> Any:
        found = look(self, position)
        shard_path(array).write_bytes(shard_path(array).read_bytes())
        os.utime(shard_path(array), ns=(1, 1))
        return found

    monkeypatch.setattr(old_shard.Looker, "_source", slow_look)
    before = shard_path(array).read_bytes()
    with pytest.raises(shardcodec.ShardFormatError, match="changed while"):
        array[0, 0] = 2
    assert shard_path(array).read_bytes() == before


def test_many_updates_are_done_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardcodec.access import old_shard

    array = create(tmp_path / "a")
    array[...] = 1
    monkeypatch.setattr(old_shard, "GROUP_UPDATES", 3)
    array[2:15, 2:23] = 2
    whole = zarrs_view(array)[...]
    assert (whole[2:15, 2:23] == 2).all() and whole.sum() == 16 * 24 + 13 * 21
