# test_lock_file.py - updates under the lock file of an array, where a lock can be lost
# SPDX-License-Identifier: MIT
"""The steps of csrc/io/sc_guard.h, one by one, on a local file system that is taken for NFS.

On NFS 4 an acknowledged update was lost when the node of another writer was cut off for longer than its lease, and a shard lacked its
name for a moment at each replacement. `tests/kernel` has the real file system; here the calls of one writer stop where another begins.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, files_below, ours, shard_path, zarrs_view

import shardcodec
from shardcodec import _native
from shardcodec.options import resolve
from shardcodec.storage import file_locks, file_systems, lock_reach
from shardcodec.storage.staging import lock_folder

LOCK = ".shardcodec/lock"
SMB = 2  # sc_guard_kind


@pytest.fixture
def leased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take each file system for one where locks can be lost."""
    monkeypatch.setattr(file_systems, "LOCAL_TYPES", frozenset())
    monkeypatch.setattr(file_systems, "network_type", lambda folder: "nfs4")


@pytest.fixture
def shard(tmp_path: Path) -> str:
    """One shard of an array."""
    array = create(tmp_path / "a")
    array[...] = 1
    return str(shard_path(array))


def guard(path: str, kind: int = 0) -> tuple[Any, str]:
    lock = _native.FileLock()
    return lock, lock.try_acquire(path, path, lock_folder(path), kind)


def is_marked(path: str) -> bool:
    return bool(os.stat(path).st_mode & stat.S_ISVTX)


def temporary_names(path: str) -> list[str]:
    return sorted(name for name in os.listdir(lock_folder(path)) if name.startswith(".shardcodec-"))


def test_lock_file_excludes_and_marks_the_shard(shard: str) -> None:
    first, outcome = guard(shard)
    assert outcome == "held" and first.is_held and first.fd >= 0
    assert is_marked(shard)
    assert guard(shard)[1] == "busy"
    assert _native.FileLock().try_acquire(shard) == "guarded"  # as a process on the server's disk does it
    first.release()
    second, outcome = guard(shard)
    assert outcome == "held"
    second.release()


def test_missing_shard_is_locked_too(shard: str) -> None:
    os.unlink(shard)
    first, outcome = guard(shard)
    assert outcome == "no file" and first.is_held and first.fd == -1
    assert guard(shard)[1] == "busy"
    first.release()
    assert guard(shard)[1] == "no file"


def test_other_shards_of_the_array_are_free(shard: str) -> None:
    first, _ = guard(shard)
    other, outcome = guard(str(Path(shard).with_name("1")))
    assert outcome == "held"
    first.release()
    other.release()


def test_writer_that_locks_the_shard_itself_excludes_the_first_use_of_the_lock_file(shard: str) -> None:
    plain = _native.FileLock()
    assert plain.try_acquire(shard) == "held"
    assert guard(shard)[1] == "busy"
    assert not is_marked(shard)
    plain.release()
    lock, outcome = guard(shard)
    assert outcome == "held" and is_marked(shard)
    lock.release()


def test_shard_is_closed_before_it_is_replaced(shard: str) -> None:
    """An NFS client gives an open file another name before the new file takes its name: for a moment there was no shard."""
    lock, _ = guard(shard)
    file = _native.NewFile(shard)
    file.write(b"new", 0)
    file.commit()
    assert lock.fd == -1 and lock.is_held
    assert Path(shard).read_bytes() == b"new" and is_marked(shard)
    assert temporary_names(shard) == []
    lock.release()


@pytest.mark.parametrize("is_new", [False, True])
def test_overtaken_writer_finds_its_file_fenced(shard: str, is_new: bool) -> None:
    """The next holder of the lock removes the file that the overtaken one has prepared, so its late rename fails."""
    if is_new:
        os.unlink(shard)
    lock, _ = guard(shard)
    file = _native.NewFile(shard)
    file.write(b"late", 0)
    (name,) = temporary_names(shard)
    os.unlink(f"{lock_folder(shard)}/{name}")
    before = None if is_new else Path(shard).read_bytes()
    with pytest.raises(OSError) as raised:
        file.commit(only_new=is_new)
    assert raised.value.errno == errno.ESTALE
    lock.release()
    assert (Path(shard).read_bytes() if os.path.exists(shard) else None) == before


def test_shard_that_a_late_request_has_moved_away_gets_its_name_again(shard: str) -> None:
    """A cut node sent the first half of its rename, from the shard to .nfs..., again: the shard of the next holder lost its name."""
    lock, _ = guard(shard)
    file = _native.NewFile(shard)
    file.write(b"late", 0)
    moved = Path(shard).with_name(f".nfs{os.stat(shard).st_ino:016x}00000007")
    Path(lock_folder(shard), temporary_names(shard)[0]).unlink()  # by the fence of the next holder
    Path(shard).write_bytes(b"next")
    os.rename(shard, moved)
    with pytest.raises(OSError) as caught:
        file.commit()
    assert caught.value.errno == errno.ESTALE
    assert Path(shard).read_bytes() == b"next"
    lock.release()


def names_of(path: str, kind: str) -> list[str]:
    """Return the marks ("late-") or the second names ("kept-") of the shards of an array."""
    return sorted(name for name in os.listdir(lock_folder(path)) if name.startswith(kind))


def replace(path: str, data: bytes) -> None:
    """Replace a shard whose lock is held."""
    file = _native.NewFile(path)
    file.write(data, 0)
    assert file.commit()


@pytest.fixture
def cut_off(shard: str) -> Any:
    """A writer that has prepared a new file, and that another one has overtaken."""
    lock, _ = guard(shard)
    file = _native.NewFile(shard)
    file.write(b"late", 0)
    lock.release()
    return file


def move_away(shard: str, inode: int) -> Path:
    """Do what the first of the two requests of a rename does, by which a client replaces a file that a process has open."""
    moved = Path(shard).with_name(f".nfs{inode:016x}00000007")
    os.rename(shard, moved)
    return moved


def test_late_request_removes_a_second_name_only(shard: str, cut_off: Any) -> None:
    """The client of a cut node sent the first request of its rename again, and removed what it had moved: the shard of the next holder,
    with an acknowledged update."""
    inode = os.stat(shard).st_ino
    lock, _ = guard(shard)
    assert temporary_names(shard) == [] and len(names_of(shard, "late-")) == 1
    (kept,) = names_of(shard, "kept-")
    assert os.path.samefile(f"{lock_folder(shard)}/{kept}", shard)
    replace(shard, b"next")
    (newer,) = names_of(shard, "kept-")
    assert newer != kept and os.path.samefile(f"{lock_folder(shard)}/{newer}", shard)
    lock.release()
    move_away(shard, inode).unlink()
    lock, outcome = guard(shard)
    assert outcome == "held" and Path(shard).read_bytes() == b"next"
    lock.release()


def test_second_names_end_when_the_late_writer_has_its_answer(shard: str, cut_off: Any) -> None:
    inode = os.stat(shard).st_ino
    lock, _ = guard(shard)
    replace(shard, b"next")
    lock.release()
    move_away(shard, inode).unlink()
    lock, _ = guard(shard)  # again the lock of the late writer, as far as it knows
    move_away(shard, inode).unlink()
    with pytest.raises(OSError) as caught:
        cut_off.commit()
    lock.release()
    assert caught.value.errno == errno.ESTALE
    assert Path(shard).read_bytes() == b"next" and names_of(shard, "late-") == []
    lock, _ = guard(shard)
    assert names_of(shard, "kept-") == [] and Path(shard).read_bytes() == b"next"
    lock.release()


def test_mark_of_a_writer_that_never_comes_back_ends_after_a_week(shard: str, cut_off: Any) -> None:
    for days, n_marks in ((6, 1), (8, 0)):
        lock, _ = guard(shard)
        (mark,) = names_of(shard, "late-")
        then = time.time() - days * 24 * 3600
        os.utime(f"{lock_folder(shard)}/{mark}", (then, then))
        lock.release()
        lock, _ = guard(shard)
        assert len(names_of(shard, "late-")) == len(names_of(shard, "kept-")) == n_marks
        lock.release()


def test_shard_gets_its_name_before_the_late_file_is_removed(shard: str, cut_off: Any) -> None:
    """The node was cut between its two requests. The next holder removed the source of the second one, and then the client the shard."""
    before = Path(shard).read_bytes()
    moved = move_away(shard, os.stat(shard).st_ino)
    lock, outcome = guard(shard)
    moved.unlink()
    assert outcome == "held" and Path(shard).read_bytes() == before
    lock.release()


def test_second_name_follows_a_rename_that_came_before_the_fence(shard: str, cut_off: Any) -> None:
    lock, _ = guard(shard)
    lock.release()
    Path(f"{shard}.late").write_bytes(b"late")
    os.replace(f"{shard}.late", shard)
    lock, _ = guard(shard)
    (kept,) = names_of(shard, "kept-")
    assert os.path.samefile(f"{lock_folder(shard)}/{kept}", shard) and Path(shard).read_bytes() == b"late"
    lock.release()


def overtake(folder: Path) -> str:
    """Make an array whose shard a writer has not replaced yet when its node is cut off; return the path of the shard."""
    array = create(folder)
    array[...] = 1
    shard = str(shard_path(array))
    lock, _ = guard(shard)
    file = _native.NewFile(shard)
    file.leave()
    lock.release()
    return shard


def next_update(shard: str, step: int, action: str, kind: int = 0) -> list[str]:
    """Take the lock and replace the shard, in a child, with a fault at a call; return the calls, if the child has ended."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            _native.set_fault(step, action, errno.EIO if action == "error" else 0)
            lock, _ = guard(shard, kind)
            replace(shard, b"next")
            lock.release()
        os.write(write, ",".join(_native.end_fault()).encode())
        os._exit(0)
    os.close(write)
    with open(read) as told:
        calls = told.read()
    os.waitpid(pid, 0)
    return calls.split(",") if calls else []


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("action", ["kill", "error"])
def test_shard_outlives_a_late_request_after_each_step_of_the_next_holder(
    tmp_path: Path, action: str
) -> None:
    """Either the file of the late writer can be fenced again, or the shard has a second name."""
    shard = overtake(tmp_path / "count")
    before = Path(shard).read_bytes()
    calls = next_update(shard, 0, "count")
    assert {"link", "unlink", "renameat2"} <= {*calls}
    for step in range(len(calls)):
        shard = overtake(tmp_path / str(step))
        inode = os.stat(shard).st_ino
        next_update(shard, step, action)
        if temporary_names(shard):  # the client keeps .nfs... until the second request is answered
            move_away(shard, inode)
        else:
            move_away(shard, inode).unlink()
        lock, outcome = guard(shard)
        assert outcome == "held" and Path(shard).read_bytes() in (before, b"next"), (step, calls[step])
        (kept,) = names_of(shard, "kept-")
        assert os.path.samefile(f"{lock_folder(shard)}/{kept}", shard), (step, calls[step])
        lock.release()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("action", ["kill", "error"])
def test_shard_on_smb_is_old_or_new_after_each_step(tmp_path: Path, action: str) -> None:
    """A client of SMB removes a file that is open when another one is renamed over it, so the shard is renamed away first."""
    for step in range(99):
        array = create(tmp_path / str(step))
        array[...] = 1
        shard = str(shard_path(array))
        before = Path(shard).read_bytes()
        n_calls = len(next_update(shard, step, action, SMB))
        lock, outcome = guard(shard, SMB)
        assert outcome == "held" and Path(shard).read_bytes() in (before, b"next"), step
        assert names_of(shard, "kept-") == names_of(shard, "late-") == temporary_names(shard) == [], step
        lock.release()
        if 0 < n_calls <= step:
            break
    assert step > 3 and Path(shard).read_bytes() == b"next"


def test_removed_shard_has_no_second_name(shard: str, cut_off: Any) -> None:
    """It would come back with the next holder. A new shard of this name is kept, too."""
    lock, _ = guard(shard)
    _native.remove_file(shard)
    lock.release()
    assert names_of(shard, "kept-") == [] and len(names_of(shard, "late-")) == 1
    lock, outcome = guard(shard)
    assert outcome == "no file" and not os.path.exists(shard)
    file = _native.NewFile(shard)
    file.write(b"new", 0)
    assert file.commit(only_new=True)
    lock.release()
    (kept,) = names_of(shard, "kept-")
    assert os.path.samefile(f"{lock_folder(shard)}/{kept}", shard)


@pytest.mark.parametrize("is_new", [False, True])
@pytest.mark.parametrize("removes", [False, True])
def test_lock_that_the_server_has_forgotten_is_noticed_by_a_changed_shard(
    shard: str, is_new: bool, removes: bool
) -> None:
    """A server of NFS 3 that starts again forgets its locks, and reads go on: the update of the next holder was overwritten."""
    if is_new:
        os.unlink(shard)
    lock = _native.FileLock()
    lock.try_acquire(shard, shard, lock_folder(shard), True)
    file = None if removes else _native.NewFile(shard)
    Path(f"{shard}.next").write_bytes(b"next")
    os.replace(f"{shard}.next", shard)
    with pytest.raises(OSError) as raised:
        _native.remove_file(shard) if file is None else file.commit(only_new=is_new)
    assert raised.value.errno == errno.ESTALE
    lock.release()
    assert Path(shard).read_bytes() == b"next"


def test_lock_that_is_taken_again_fences_again(shard: str) -> None:
    """The file of a later holder that has lost its own lock is removed before the shard is compared; the own file stays."""
    lock = _native.FileLock()
    lock.try_acquire(shard, shard, lock_folder(shard), True)
    file = _native.NewFile(shard)
    file.write(b"own", 0)
    (mine,) = temporary_names(shard)
    later = Path(lock_folder(shard), mine[:-1] + ("0" if mine[-1] != "0" else "1"))
    later.write_bytes(b"later")
    assert file.commit()
    assert Path(shard).read_bytes() == b"own" and temporary_names(shard) == []
    file = _native.NewFile(shard)
    assert file.commit()  # the second one under this lock
    _native.remove_file(shard)
    assert not os.path.exists(shard)
    lock.release()


def test_next_holder_fences_the_files_of_this_shard_only(shard: str) -> None:
    lock, _ = guard(shard)
    file = _native.NewFile(shard)
    (mine,) = temporary_names(shard)
    other = mine.replace(mine.split("-")[1], "0123456789abcdef")
    Path(f"{lock_folder(shard)}/{other}").write_bytes(b"of another shard")
    file.leave()  # as after a kill: the file stays
    lock.release()
    again, outcome = guard(shard)
    assert outcome == "held" and temporary_names(shard) == [other]
    again.release()


def test_lost_answer_to_a_rename_that_was_done_is_success(shard: str) -> None:
    lock, _ = guard(shard)
    file = _native.NewFile(shard)
    file.write(b"stored", 0)
    (name,) = temporary_names(shard)
    os.replace(f"{lock_folder(shard)}/{name}", shard)
    assert file.commit()
    lock.release()
    assert Path(shard).read_bytes() == b"stored"


def test_removal_under_the_lock_file_leaves_nothing(shard: str) -> None:
    lock, _ = guard(shard)
    _native.remove_file(shard)
    assert not os.path.exists(shard) and temporary_names(shard) == []
    _native.remove_file(shard)  # as after a lost answer
    lock.release()


def test_half_done_removal_is_fenced(shard: str) -> None:
    """The folder to which an overtaken writer moves the shard is gone, so its late rename has no target."""
    lock, _ = guard(shard)
    file = _native.NewFile(shard)
    (name,) = temporary_names(shard)
    file.abort()
    folder = f"{lock_folder(shard)}/{name}"
    for content in ((), ("shard",)):
        os.mkdir(folder)
        for entry in content:
            Path(f"{folder}/{entry}").write_bytes(b"old")
        lock.release()
        lock, outcome = guard(shard)
        assert outcome == "held" and temporary_names(shard) == []
    lock.release()


def test_file_that_was_begun_before_the_lock_is_fenced_too(shard: str) -> None:
    """`ShardWriter` writes for hours and takes the lock at its end."""
    file = _native.NewFile(shard)
    file.write(b"stream", 0)
    lock, _ = guard(shard)
    assert file.commit()
    lock.release()
    assert Path(shard).read_bytes() == b"stream" and is_marked(shard) and temporary_names(shard) == []


def test_removed_lock_folder_is_noticed(shard: str) -> None:
    """A process keeps the lock file open; another array of the same path has another one."""
    lock, _ = guard(shard)
    lock.release()
    folder = lock_folder(shard)
    os.rename(folder, f"{folder}-old")
    first, outcome = guard(shard)
    assert outcome == "held" and os.path.exists(f"{folder}/lock")
    assert guard(shard)[1] == "busy"
    first.release()


def test_lock_file_is_closed_with_the_last_lock(shard: str) -> None:
    """On NFS an open file cannot be removed from its folder: an array could not be deleted or made anew by a process that had updated it."""
    first, _ = guard(shard)
    other, _ = guard(str(Path(shard).with_name("1")))
    other.release()
    first.release()
    assert not open_lock_files()


@pytest.mark.usefixtures("leased")
def test_lock_file_stays_open_for_callers_that_keep_files_open(shard: str) -> None:
    """With the option `open_files` the next update opens neither the lock file nor its folder: three requests less."""
    ours(Path(shard).parents[2], open_files=1)[0, 0] = 1
    kept = open_lock_files()
    assert len(kept) == 2
    ours(Path(shard).parents[2], open_files=1)[0, 0] = 2
    assert open_lock_files() == kept
    ours(Path(shard).parents[2])[0, 0] = 3
    assert not open_lock_files()


def open_lock_files() -> list[str]:
    """Return the open lock files of this process, and their folders."""
    names = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{fd}")
    ]
    return sorted(name for name in names if ".shardcodec" in name)


def test_forked_child_has_neither_lock_nor_lock_file(shard: str) -> None:
    lock, _ = guard(shard)
    pid = os.fork()
    if pid == 0:
        mine, outcome = guard(shard)
        os._exit(0 if outcome == "busy" and not lock.is_held and not mine.is_held else 1)
    assert os.waitpid(pid, 0)[1] == 0
    lock.release()
    again, outcome = guard(shard)
    assert outcome == "held"
    again.release()


def test_lock_file_is_open_to_all_who_may_write_the_array(tmp_path: Path) -> None:
    array = create(tmp_path / "a")
    array[...] = 1
    os.chmod(tmp_path / "a", 0o775)
    before = os.umask(0o077)
    try:
        lock, _ = guard(str(shard_path(array)))
    finally:
        os.umask(before)
    lock.release()
    folder = tmp_path / "a/.shardcodec"
    assert folder.stat().st_mode & stat.S_IWGRP and (folder / "lock").stat().st_mode & stat.S_IWGRP


def test_lock_file_that_may_not_be_opened_is_an_error_for_marked_shards(
    shard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, _ = guard(shard)
    lock.release()

    class Denied:
        is_held = False

        def try_acquire(self, *place: str | None) -> str:
            return "guarded"

    monkeypatch.setattr(_native, "FileLock", Denied)
    with (
        pytest.raises(shardcodec.LockError) as raised,
        file_locks.hold([shard], resolve()),
    ):
        pass
    assert raised.value.shard == shard


@pytest.mark.usefixtures("leased")
def test_update_without_the_lock_file_is_an_error_or_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an export with root_squash the folder of the lock file had an owner that was not trusted. The shard itself was locked then,
    without a fence and without a word, and three updates were lost in a cut.
    """
    create(tmp_path / "a")
    (tmp_path / "a/.shardcodec").write_text("no folder")
    monkeypatch.setattr(lock_reach, "_told", set())
    array = ours(tmp_path / "a")
    array[...] = 1
    with pytest.warns(shardcodec.LockScopeWarning, match="may not use the lock file"):
        array[0, 0] = 2
    assert array[0, 0] == 2
    with shardcodec.options(locking="cluster"), pytest.raises(shardcodec.LockScopeError):
        array[0, 0] = 3
    assert array[0, 0] == 2


@pytest.mark.usefixtures("leased")
@pytest.mark.parametrize("shards", [(8, 12), None])
def test_arrays_are_updated_erased_and_made_anew(tmp_path: Path, shards: Any) -> None:
    array = create(tmp_path / "a", shards=shards, chunks=(4, 3) if shards else (8, 12))
    expected = np.full(array.shape, array.fill_value, array.dtype)
    for step, value in enumerate([1, 2, -1, 3]):
        array[step : step + 5, 2:9] = value
        expected[step : step + 5, 2:9] = value
        assert np.array_equal(zarrs_view(array)[...], expected)
    array[...] = array.fill_value
    assert files_below(tmp_path / "a") == [LOCK, "zarr.json"]
    array[0, 0] = 1
    assert files_below(tmp_path / "a") == [LOCK, "c/0/0", "zarr.json"]
    assert is_marked(str(shard_path(array)))


@pytest.mark.usefixtures("leased")
def test_array_under_links_is_guarded_by_its_real_path(tmp_path: Path) -> None:
    create(tmp_path / "a")[...] = 1
    (tmp_path / "link").symlink_to(tmp_path / "a")
    array = shardcodec.attach(zarr.open_array(tmp_path / "link"))
    array[0, 0] = 5
    assert is_marked(str(tmp_path / "a/c/0/0")) and os.path.exists(tmp_path / "a" / LOCK)
    assert array[0, 0] == 5


def test_process_on_the_disk_of_the_server_takes_the_lock_file_of_a_marked_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two kinds of processes, one on the disk and one on a client, exclude each other by the mark."""
    array = create(tmp_path / "a")
    array[...] = 1
    path = str(shard_path(array))
    lock, _ = guard(path)
    with pytest.raises(shardcodec.LockError), shardcodec.options(lock_timeout=0.2):
        array[0, 0] = 5
    lock.release()
    array[0, 0] = 6
    assert zarrs_view(array)[0, 0] == 6 and temporary_names(path) == []


@pytest.mark.parametrize("strategy", ["append", "in_place"])
def test_marked_shard_is_replaced_and_not_changed_in_place(tmp_path: Path, strategy: Any) -> None:
    """Readers on NFS see neither the order of the bytes of an update in place nor its undo journal in time."""
    array = create(tmp_path / "a")
    array[...] = 1
    path = str(shard_path(array))
    lock, _ = guard(path)
    lock.release()
    with open(path, "rb") as old, shardcodec.options(write_strategy=strategy):
        before = old.read()
        array[0, 0] = 6
        old.seek(0)
        assert old.read() == before and os.fstat(old.fileno()).st_nlink == 0
    assert zarrs_view(array)[0, 0] == 6 and is_marked(path)
