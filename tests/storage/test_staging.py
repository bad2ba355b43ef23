# test_staging.py - temporary names: their folder, their removal, and shards that two writers make at once
# SPDX-License-Identifier: MIT
"""Temporary files of running writers, and leftovers of killed writers."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
from pathlib import Path
from typing import Any

import pytest
import zarr
from helpers import create, files_below, shard_path, zarrs_view

import shardcodec
from shardcodec import native
from shardcodec.storage.staging import staging_folder


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_staging_folder_is_beside_the_root_of_the_hierarchy(zarr_format: Any, tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "top", zarr_format=zarr_format).create_group("a/b")
    for below in ("top", "top/a", "top/a/b"):
        assert staging_folder(str(tmp_path / below)) == str(tmp_path / ".top.shardcodec")
    assert staging_folder(str(tmp_path / "other")) == str(tmp_path / ".other.shardcodec")
    assert staging_folder("/") is None


def test_staging_folder_is_deleted_with_its_last_file(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    array[...] = 1
    array[0, 0] = 2
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def name_of_killed_writer(folder: Path) -> str:
    """Return the temporary name that a killed process leaves behind."""
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
    assert name.split("-")[3] == str(pid)
    return name


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_of_killed_writers_are_deleted_and_of_running_ones_kept(tmp_path: Path) -> None:
    died = name_of_killed_writer(tmp_path)
    shard, host = died.split("-")[1:3]
    pid = os.getpid()
    start = f"{int(Path('/proc/self/stat').read_text().rpartition(')')[2].split()[19]):x}"
    array = create(tmp_path / "a")
    array[...] = 1
    staging = tmp_path / ".a.shardcodec"
    staging.mkdir()
    alive = f".shardcodec-{shard}-{host}-{pid}-{start}-ffffff"
    another_host = f".shardcodec-{shard}-{int(host, 16) ^ 1:016x}-{pid}-{start}-1"
    dead = [
        died,
        f".shardcodec-{shard}-{host}-999999999-{start}-1",
        f".shardcodec-{shard}-{host}-{pid}-{int(start, 16) + 1:x}-1",  # an earlier process had this process id
    ]
    for kept in (alive, another_host, "somebody's", *dead):
        (staging / kept).write_text("bytes")
    array[0, 0] = 2
    assert sorted(p.name for p in staging.iterdir()) == sorted([alive, another_host, "somebody's"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_writer_that_has_lost_its_lock_finds_its_file_removed(tmp_path: Path) -> None:
    """A rename that came too late undid an acknowledged update of the next writer. So the next writer removes the prepared file."""
    array = create(tmp_path / "a")
    array[...] = 1
    shard, staging = str(shard_path(array)), staging_folder(str(tmp_path / "a"))
    prepared, updated = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            lock = native.load().FileLock()
            assert lock.try_acquire(shard) == "held"
            file = native.load().NewFile(shard, staging=staging, shared=True)
            file.write(b"late", 0)
            no_lock = struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
            fcntl.fcntl(lock.fd, fcntl.F_OFD_SETLK, no_lock)  # as a server takes it away
            os.write(prepared[1], b"1")
            os.read(updated[0], 1)
            with pytest.raises(FileNotFoundError):
                file.commit()
            status = 0
        finally:
            os._exit(status)
    os.read(prepared[0], 1)
    array[0, 0] = 7
    os.write(updated[1], b"1")
    assert os.waitpid(pid, 0)[1] == 0
    assert zarrs_view(array)[0, 0] == 7
    for end in (*prepared, *updated):
        os.close(end)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_writer_that_has_replaced_a_shard_leaves_the_file_of_the_next_one(tmp_path: Path) -> None:
    """Its lock is that of the old shard. Before it unlocked, it removed the file that the holder of the new one had prepared, whose
    update then failed: no such file.
    """
    array = create(tmp_path / "a")
    array[...] = 1
    shard, staging = str(shard_path(array)), staging_folder(str(tmp_path / "a"))
    replaced, prepared, swept = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.read(replaced[0], 1)
            lock = native.load().FileLock()
            assert lock.try_acquire(shard) == "held"
            file = native.load().NewFile(shard, staging=staging, shared=True)
            file.write(b"second", 0)
            os.write(prepared[1], b"1")
            os.read(swept[0], 1)
            file.commit()
            status = 0
        finally:
            os._exit(status)
    lock = native.load().FileLock()
    assert lock.try_acquire(shard) == "held"
    file = native.load().NewFile(shard, staging=staging, shared=True)
    file.write(b"first", 0)
    file.commit()
    os.write(replaced[1], b"1")
    os.read(prepared[0], 1)
    native.load().NewFile(
        f"{shard}.other", staging=staging, shared=True
    ).abort()  # leaves the folder, so it is swept
    os.write(swept[1], b"1")
    assert os.waitpid(pid, 0)[1] == 0
    lock.release()
    assert Path(shard).read_bytes() == b"second"
    for end in (*replaced, *prepared, *swept):
        os.close(end)


def test_temporary_names_fall_back_to_the_folder_of_the_shard(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    array[...] = 1
    (tmp_path / ".a.shardcodec").write_text("a file where the folder should be")
    array[0, 0] = 2
    assert zarrs_view(array)[0, 0] == 2
    assert files_below(tmp_path / "a") == ["c/0/0", "c/0/1", "c/1/0", "c/1/1", "zarr.json"]


# ---- shards that another writer makes meanwhile


def ready_made(folder: Path, **arguments: Any) -> bytes:
    """Return a shard whose first element is 1 and all others the fill value."""
    array = create(folder / "ready", **arguments)
    array[0, 0] = 1
    return shard_path(array).read_bytes()


@pytest.mark.parametrize("shards", [(8, 12), None])
def test_shard_made_by_another_writer_meanwhile_is_updated(
    tmp_path: Path, shards: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two writers both found no shard and made one each. The second one lost the inner chunks of the first."""
    from shardcodec.access import write_look

    layout = {"shards": shards, "chunks": (4, 3) if shards else (8, 12)}
    array = create(tmp_path / "a", **layout)
    ready = ready_made(tmp_path, **layout)
    look = write_look._open
    looks: list[str] = []

    def slow_look(item: Any, *rest: Any) -> Any:
        found = look(item, *rest)
        if not looks:
            shard_path(array).parent.mkdir(parents=True)
            shard_path(array).write_bytes(ready)
        looks.append(item.key)
        return found

    monkeypatch.setattr(write_look, "_open", slow_look)
    array[7, 11] = 2
    assert len(looks) == 2
    assert zarrs_view(array)[0, 0] == 1
    assert zarrs_view(array)[7, 11] == 2


def test_erase_of_a_missing_shard_keeps_one_made_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardcodec.access import write_look

    array = create(tmp_path / "a")
    ready = ready_made(tmp_path)
    look = write_look._open

    def slow_look(item: Any, *rest: Any) -> Any:
        found = look(item, *rest)
        shard_path(array).parent.mkdir(parents=True)
        shard_path(array).write_bytes(ready)
        return found

    monkeypatch.setattr(write_look, "_open", slow_look)
    array[7, 11] = -1
    assert zarrs_view(array)[0, 0] == 1


def test_shard_overwritten_during_an_update_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An update must not mix the bytes of two states. It stops, and the shard of the other writer stays."""
    from shardcodec.access import write_look

    array = create(tmp_path / "a")
    array[...] = 1
    look = write_look._open

    def slow_look(item: Any, *rest: Any) -> Any:
        found = look(item, *rest)
        shard_path(array).write_bytes(shard_path(array).read_bytes())
        os.utime(shard_path(array), ns=(1, 1))
        return found

    monkeypatch.setattr(write_look, "_open", slow_look)
    before = shard_path(array).read_bytes()
    with pytest.raises(shardcodec.ShardFormatError, match="changed while"):
        array[0, 0] = 2
    assert shard_path(array).read_bytes() == before


def test_many_updates_run_in_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from shardcodec.access import write

    array = create(tmp_path / "a")
    array[...] = 1
    monkeypatch.setattr(write, "GROUP_UPDATES", 3)
    array[2:15, 2:23] = 2
    whole = zarrs_view(array)[...]
    assert (whole[2:15, 2:23] == 2).all() and whole.sum() == 16 * 24 + 13 * 21
