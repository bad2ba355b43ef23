# test_file_locks.py - locks between processes, on the files of shards
# SPDX-License-Identifier: MIT
"""Which process has a lock, when the lock is released, and how errors name its holder.

The other process is a forked child, which keeps a lock until the test stops or kills it.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import resource
import shutil
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from helpers import create, files_below, in_child, ours, shard_path, zarrs_view
from lock_holders import end, holder, refusing_lock, take

import shardcodec
from shardcodec import LockError, _native
from shardcodec.options import resolve
from shardcodec.storage import file_locks, lock_reach

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not available")

FOR_EVER = 30.0  # longer than any test waits


@pytest.fixture
def shard(tmp_path: Path) -> str:
    path = tmp_path / "0"
    path.write_bytes(b"some bytes")
    return str(path)


@pytest.fixture(autouse=True)
def no_lock_is_left() -> Iterator[None]:
    yield
    assert _native.file_locks_held() == 0


# ---- one lock


def test_second_acquire_in_one_process_is_refused(shard: str) -> None:
    first, second = _native.FileLock(), _native.FileLock()
    assert first.try_acquire(shard) == "held"
    assert second.try_acquire(shard) == "busy"
    assert (second.fd, _native.file_locks_held()) == (-1, 1)
    with pytest.raises(ValueError, match="holds a lock already"):
        first.try_acquire(shard)
    first.release()
    first.release()
    assert second.try_acquire(shard) == "held"
    assert os.pread(second.fd, 100, 0) == b"some bytes"
    second.release()


def test_unreferenced_lock_is_released(shard: str) -> None:
    """An interrupt can arrive after a lock is taken and before a variable refers to it."""
    lock = _native.FileLock()
    assert lock.try_acquire(shard) == "held"
    del lock
    assert take(shard) == "held"


def test_missing_file_has_no_lock(tmp_path: Path, shard: str) -> None:
    assert take(str(tmp_path / "none")) == "no file"
    assert take(f"{shard}/below") == "no file"
    assert take(str(tmp_path)) == "no file"


def test_replaced_file_has_its_own_lock(tmp_path: Path, shard: str) -> None:
    """A writer that waited for the old file finds the new one, and does not wait for the old one to be closed."""
    old = _native.FileLock()
    assert old.try_acquire(shard) == "held"
    (tmp_path / "new").write_bytes(b"others")
    os.rename(tmp_path / "new", shard)
    new = _native.FileLock()
    assert new.try_acquire(shard) == "held"
    assert os.pread(new.fd, 100, 0) == b"others"
    os.unlink(shard)
    assert take(shard) == "no file"
    old.release()
    new.release()


def test_locks_leave_no_files(tmp_path: Path) -> None:
    array = create(tmp_path)
    array[:] = 1
    before = files_below(tmp_path)
    array[0, 0] = 2
    assert files_below(tmp_path) == before


# ---- other processes


def test_files_of_other_mounts_are_not_asked_who_locks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer on NFS that gave up waiting for a lock hung: another process had a file open on a mount whose server did not answer."""
    array = create(tmp_path)
    array[:] = 1
    real = Path.stat

    def stat(path: Path) -> os.stat_result:
        there = os.readlink(path) if path.parent.name == "fd" else ""
        if there.startswith("/dev/shm/"):
            raise AssertionError(f"the server of {there} does not answer")
        return real(path)

    with (
        tempfile.NamedTemporaryFile(dir="/dev/shm") as elsewhere,
        holder(elsewhere.name),
        holder(str(shard_path(array))) as pid,
    ):
        monkeypatch.setattr(Path, "stat", stat)
        with shardcodec.options(lock_timeout=0), pytest.raises(LockError) as caught:
            array[0, 0] = 2
    assert [number for number, _ in caught.value.holders] == [pid]


def test_lock_error_names_the_holding_process(tmp_path: Path) -> None:
    array = create(tmp_path)
    array[:] = 1
    path = str(shard_path(array))
    with holder(path) as pid:
        with shardcodec.options(lock_timeout=0), pytest.raises(LockError) as caught:
            array[0, 0] = 2
        assert caught.value.shard == path
        assert [number for number, _ in caught.value.holders] == [pid]
        assert f"process {pid} (" in str(caught.value)
        assert isinstance(caught.value, TimeoutError)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
        array[8:, :] = 3  # other shards are free
    assert array[0, 0] == 1
    array[0, 0] = 2
    assert zarrs_view(array)[0, 0] == 2


def decline(*_: Any) -> Any:
    from shardcodec.zarr_plugin.request import Refusal

    raise Refusal("for a test")


@pytest.mark.parametrize("write", ["part", "whole", "erase", "of zarr"])
def test_every_kind_of_write_takes_the_lock(tmp_path: Path, write: str) -> None:
    array = create(tmp_path)
    array[:] = 1
    loose = ours(tmp_path, strict=False, lock_timeout=0)
    if write == "of zarr":
        loose._async_array.codec_pipeline._prepare = decline

    def work() -> None:
        if write in ("part", "of zarr"):
            loose[0, 0] = 2
        elif write == "whole":
            loose[:8, :12] = 2
        else:
            loose[:8, :12] = -1

    before = shard_path(array).read_bytes()
    with holder(str(shard_path(array))), pytest.raises(LockError):
        work()
    assert shard_path(array).read_bytes() == before
    work()
    assert not shard_path(array).exists() or shard_path(array).read_bytes() != before


@pytest.mark.parametrize("locking", ["process", "thread"])
def test_writes_of_zarrs_pipeline_replace_the_file(tmp_path: Path, locking: str) -> None:
    """New, changed, erased and absent shards, written partly and as a whole."""
    create(tmp_path)
    array = ours(tmp_path, strict=False, locking=locking, durability="fsync")
    array._async_array.codec_pipeline._prepare = decline
    array[0, 0] = -1  # the fill value
    assert files_below(tmp_path) == ["zarr.json"]
    array[0, 0] = 5
    array[:, 12:] = 6
    array[8:, 14] = 7
    assert files_below(tmp_path) == ["c/0/0", "c/0/1", "c/1/1", "zarr.json"]
    array[0, 0] = -1
    array[:8, 12:] = -1
    expected = np.full((16, 24), -1)
    expected[8:, 12:] = 6
    expected[8:, 14] = 7
    assert (zarrs_view(array)[:] == expected).all()
    assert files_below(tmp_path) == ["c/1/1", "zarr.json"]


def test_thread_locking_ignores_other_processes(tmp_path: Path) -> None:
    array = create(tmp_path)
    array[:] = 1
    with holder(str(shard_path(array))), shardcodec.options(locking="thread"):
        array[0, 0] = 2
    assert array[0, 0] == 2


def test_killed_holder_releases_its_lock_at_once(shard: str) -> None:
    with holder(shard) as pid:
        assert take(shard) == "busy"
        end(pid)
        assert take(shard) == "held"


def test_writer_waits_for_another_process(tmp_path: Path) -> None:
    array = create(tmp_path)
    array[:] = 1
    with holder(str(shard_path(array))) as pid:
        writer = threading.Thread(target=lambda: array.__setitem__((0, 0), 2), daemon=True)
        with shardcodec.options(lock_timeout=FOR_EVER):
            writer.start()
        array[8, 0] = 3  # the wait does not block zarr's event loop
        assert array[0, 0] == 1
        end(pid)
        writer.join(FOR_EVER)
    assert array[0, 0] == 2


# ---- forks


def test_forked_child_has_no_locks(shard: str) -> None:
    lock = _native.FileLock()
    assert lock.try_acquire(shard) == "held"
    fd = lock.fd

    def child() -> None:
        assert (lock.fd, _native.file_locks_held()) == (-1, 0)
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)
        lock.release()
        assert take(shard) == "busy"

    in_child(child)
    assert take(shard) == "busy"
    lock.release()


def test_child_does_not_keep_the_lock_of_a_killed_parent(shard: str) -> None:
    told, tell = os.pipe()

    def holding_parent() -> None:
        lock = _native.FileLock()
        assert lock.try_acquire(shard) == "held"
        if os.fork() == 0:
            os.write(tell, str(os.getpid()).encode())  # by now the fork handlers have run
        signal.pause()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        holding_parent()
    child = int(os.read(told, 20))
    try:
        end(pid)
        assert take(shard) == "held"
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(told)
        os.close(tell)


# ---- several locks


def test_many_files_are_locked_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_locks, "MAX_LOCKS", 3)
    paths = [str(tmp_path / name) for name in "abcdefgh"]
    for path in paths[::2]:
        Path(path).touch()
    with file_locks.hold(paths, resolve()) as held:
        assert [file is not None and file.fd >= 0 for file in held] == [True, False, True]
        assert held[1] is file_locks.NO_FILE
    with file_locks.hold(paths, resolve(argument={"locking": "thread"})) as held:
        assert held == [None] * 3
    array = create(tmp_path / "array", shape=(32, 24))
    array[:] = 5
    array[1:, 1:] = 6
    assert (array[1:, 1:] == 6).all()


def test_locks_use_at_most_a_part_of_the_open_files(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{number:03}") for number in range(100)]
    for path in paths:
        Path(path).touch()

    def child() -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        with file_locks.hold(paths, resolve()) as held:
            assert len(held) == 50
            with file_locks.hold(paths[50:], resolve()) as others:
                assert len(others) == 1  # every group may lock at least one file

    in_child(child)


def test_repeated_path_is_locked_in_a_group_of_its_own(shard: str) -> None:
    with file_locks.hold([shard, shard], resolve()) as held:
        assert len(held) == 1


def test_locks_are_released_when_the_wait_fails(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        Path(path).touch()
    with holder(paths[1]):
        with (
            pytest.raises(LockError, match="/b'"),
            file_locks.hold(paths, resolve(argument={"lock_timeout": 0.0})),
        ):
            pytest.fail("the lock of b is taken, so `hold` must raise")
        assert _native.file_locks_held() == 0


@pytest.mark.parametrize(("n", "prompt"), [(3, True), (10, True), (3, False)])
def test_cancelled_coroutine_releases_its_locks(tmp_path: Path, n: int, prompt: bool) -> None:
    """The event loop tries few locks itself; many locks or slow ones are tried in a thread."""
    paths = [str(tmp_path / f"{number:02}") for number in range(n)]
    for path in paths:
        Path(path).touch()

    async def wait_for_all() -> None:
        async with file_locks.hold_async(paths, resolve(), prompt=prompt):
            pytest.fail("the last lock is taken, so `hold_async` must wait")

    async def main() -> None:
        task = asyncio.create_task(wait_for_all())
        while _native.file_locks_held() < n - 1:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with holder(paths[-1]):
        asyncio.run(main())
        assert _native.file_locks_held() == 0


def test_waits_grow_up_to_the_time_out(shard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now, chance = 100.0, 0.0
    monkeypatch.setattr(file_locks.time, "monotonic", lambda: now)
    monkeypatch.setattr(file_locks.random, "random", lambda: chance)
    locks = file_locks.FileLocks([shard], resolve(argument={"lock_timeout": 60.0}))

    def waits(moment: float) -> list[float]:
        nonlocal now, chance
        now, found = moment, []
        for chance in (0.0, 0.5, 1.0):  # noqa: B007 - read by `random`
            found.append(locks.wait())
        return found

    assert waits(100.0) == pytest.approx([0.00025, 0.000354, 0.0005], rel=0.01)
    assert waits(100.1) == pytest.approx([0.00025, 0.00158, 0.01], rel=0.01)
    assert waits(110.0) == pytest.approx([0.00025, 0.005, 0.1], rel=0.01)  # most are short, but not all
    assert waits(159.99) == pytest.approx([0.00025, 0.005, 0.01], rel=0.01)  # the end of the time
    now = 160.0
    with pytest.raises(LockError, match="expected its lock within 60 s"):
        locks.wait()


# ---- without locks


@pytest.mark.parametrize("outcome", ["unsupported", "denied"])
def test_missing_locks_warn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    engine = SimpleNamespace(FileLock=refusing_lock(outcome), file_locks_held=lambda: 0)
    monkeypatch.setattr(file_locks, "native", SimpleNamespace(load=lambda: engine))
    monkeypatch.setattr(lock_reach, "_told", set())
    monkeypatch.setattr(lock_reach, "_known_scopes", {})
    array = create(tmp_path)
    with pytest.warns(RuntimeWarning, match="other processes are not excluded"):
        array[:] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        array[0, 0] = 2
    assert array[0, 0] == 2


def is_below_listed_mount(folder: Path) -> bool:
    """Return False in a chroot whose root is not a mount: the kernel lists only mounts that can be reached."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return any(folder.is_relative_to(mount) for mount in mounts)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_file_without_write_permission_is_replaced_with_a_warning() -> None:
    """The permission of the folder allows the replacement; the permission of the file forbids the lock."""
    folder = Path(tempfile.mkdtemp())
    try:
        array = create(folder / "a")
        array[:] = 1
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o777 if path.is_dir() else 0o644)

        def child() -> None:
            lock_reach._told.clear()  # forget warnings of other tests
            os.setuid(65534)
            mount = (
                r"'/.*' \(" if is_below_listed_mount(folder) else r"an unknown mount( \(.+\))? for writing"
            )
            with pytest.warns(RuntimeWarning, match=rf"expected permission to open '.+' on {mount}"):
                array[0, 0] = 2
            array[0, 1] = 3
            assert array[0, :3].tolist() == [2, 3, 1]

        in_child(child)
    finally:
        shutil.rmtree(folder)


# ---- options


@pytest.mark.parametrize("value", [-1, "soon", True, float("nan")])
def test_invalid_time_out_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="lock_timeout"), shardcodec.options(lock_timeout=value):
        pytest.fail("`resolve` must refuse this value")


def test_time_out_may_be_text() -> None:
    with shardcodec.options(lock_timeout="2.5", locking="thread"):
        assert (resolve().lock_timeout, resolve().locking) == (2.5, "thread")
