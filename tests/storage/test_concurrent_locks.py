# test_concurrent_locks.py - several files at the same time: their locks, their names, and writes made in Python
# SPDX-License-Identifier: MIT
"""Calls that wait for a round trip are made at the same time. Others are made one after the other."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zarr
from delays import count_delayed
from helpers import create, zarrs_view
from interrupts import Interrupting
from lock_holders import holder, take

from shardcodec import _native
from shardcodec.options import resolve
from shardcodec.storage import concurrent_calls, file_locks, file_systems, files, object_names
from shardcodec.storage.store import UNCHANGED

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not available")


@pytest.fixture(autouse=True)
def no_lock_is_left() -> Iterator[None]:
    yield
    assert _native.file_locks_held() == 0


def test_cost_of_a_call_is_that_of_the_nearest_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Engine:
        @staticmethod
        def latencies() -> dict[int, float]:
            return {tmp_path.stat().st_dev: 0.25}

    monkeypatch.setattr(file_systems.native, "load", Engine)
    assert file_systems.call_seconds(str(tmp_path / "no/such/file")) == 0.25
    (tmp_path / "file").touch()
    assert file_systems.call_seconds(str(tmp_path / "file/below")) == 0.25


@pytest.mark.parametrize(
    ("durations", "cost"),
    [((0.009, 0.02, 0.03, 0.03), 0.003), ((0.01, 0.0002), None), ((0.0, 0.01), None)],
)
def test_two_slow_attempts_show_what_a_call_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durations: tuple[float, ...], cost: float | None
) -> None:
    """Before the fix, the first write of a new array on such a mount made its files one after the other. An attempt is three calls."""
    told: list[tuple[str, float]] = []
    monkeypatch.setattr(file_systems, "call_seconds", lambda path: 2e-6)
    monkeypatch.setattr(file_systems, "raise_call_seconds", lambda *given: told.append(given))
    locks = file_locks.FileLocks([str(tmp_path / "a"), str(tmp_path / "b")], resolve())
    for seconds in durations:
        locks._note_duration(seconds)
    assert told == ([] if cost is None else [(str(tmp_path / "a"), pytest.approx(cost))])


def test_the_fastest_of_the_attempts_at_one_time_counts(
    shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fix, the start of 31 threads counted as the duration of an attempt: a busy local disk was taken for a slow one."""
    noted: list[float] = []
    monkeypatch.setattr(
        file_locks.FileLocks,
        "_timed",
        lambda self, lock, path, name: ("no file", 0.5 if path == shards[2] else 0.25),
    )
    monkeypatch.setattr(file_locks.FileLocks, "_note_duration", lambda self, seconds: noted.append(seconds))
    locks = file_locks.FileLocks(shards, resolve())
    assert locks.advance()
    assert noted == [0.25]


def test_estimate_is_raised_and_never_lowered(tmp_path: Path) -> None:
    device = tmp_path.stat().st_dev
    try:
        _native.reset_latencies()
        file_systems.raise_call_seconds(str(tmp_path / "no/such/file"), 0.01)
        high = _native.latencies()[device]
        assert 0.01 <= high < 0.0101
        file_systems.raise_call_seconds(str(tmp_path), 0.001)
        assert _native.latencies()[device] == high
    finally:
        _native.reset_latencies()


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Six files, in a file system where each attempt to lock seems to wait."""
    monkeypatch.setattr(file_locks, "COSTLY_SECONDS", 0.0)
    paths = [str(tmp_path / str(i)) for i in range(6)]
    for path in paths:
        Path(path).write_bytes(b"some bytes")
    return paths


def test_locks_are_tried_at_the_same_time(shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No attempt ends before all six have begun."""
    os.remove(shards[4])
    monkeypatch.setattr(_native, "FileLock", WatchedLock)
    monkeypatch.setattr(WatchedLock, "attempt", threading.Barrier(6, timeout=60).wait)
    with file_locks.hold(shards, resolve()) as held:
        assert [file is file_locks.NO_FILE for file in held] == [False] * 4 + [True, False]
        assert all(
            file == file_locks.OpenFile.seen(file.fd, file.mount_id)
            and os.path.samestat(os.fstat(file.fd), os.stat(path))
            for file, path in zip(held, shards, strict=True)
            if file is not file_locks.NO_FILE
        )
        monkeypatch.undo()
        assert [take(path) for path in shards] == ["busy"] * 4 + ["no file", "busy"]
    assert [take(path) for path in shards] == ["held"] * 4 + ["no file", "held"]


def test_locks_behind_a_busy_one_are_not_held_meanwhile(shards: list[str]) -> None:
    """Otherwise two writers could wait for each other."""
    locks = file_locks.FileLocks(shards, resolve())
    with holder(shards[3]):
        assert not locks.advance()
        assert len(locks.held) == 3
        assert [take(path) for path in shards] == ["busy"] * 4 + ["held"] * 2
    assert locks.advance() and len(locks.held) == 6
    locks.release()
    assert [take(path) for path in shards] == ["held"] * 6


@pytest.mark.parametrize(
    ("seconds", "expected"), [(0.0, [1, 5, 1, 1, 1, 3]), (0.01, [6, 1, 1, 1, 3])], ids=["measured", "known"]
)
def test_a_writer_that_waits_tries_only_the_busy_lock(
    shards: list[str], seconds: float, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise many waiting writers would keep later locks from the one that holds the first. Where the cost of a call is known,
    the first attempt is not made alone."""
    monkeypatch.setattr(file_locks, "COSTLY_SECONDS", 1e-9)
    monkeypatch.setattr(file_systems, "call_seconds", lambda path: seconds)
    tried: list[int] = []
    next_paths = file_locks.FileLocks._next_paths

    def noted(locks: Any, engine: Any) -> Any:
        paths = next_paths(locks, engine)
        tried.append(len(paths))
        return paths

    monkeypatch.setattr(file_locks.FileLocks, "_next_paths", noted)
    locks = file_locks.FileLocks(shards, resolve())
    with holder(shards[2]):
        for _ in range(3):
            assert not locks.advance()
    assert locks.advance()
    locks.release()
    assert tried == expected


def test_two_names_of_one_file_end_a_group_of_locks(shards: list[str]) -> None:
    paths = [*shards[:3], shards[2], *shards[3:]]
    with file_locks.hold(paths, resolve()) as held:
        assert len(held) == 3


def test_an_error_releases_all_locks_of_a_group(shards: list[str]) -> None:
    os.remove(shards[4])
    os.mkfifo(shards[4])
    with pytest.raises(OSError, match="4"), file_locks.hold(shards, resolve()):
        pass
    assert [take(path) for path in shards if path != shards[4]] == ["held"] * 5


class Together:
    """A function whose first calls (`alone`) work at once. Of the next `n` calls none ends before all have begun."""

    def __init__(self, work: Callable[..., Any], n: int, *, alone: int = 1) -> None:
        self._work = work
        self._all = threading.Barrier(n, timeout=60)
        self._alone = [None] * alone

    def __call__(self, *arguments: Any) -> Any:
        if self._alone:
            self._alone.pop()
        else:
            self._all.wait()
        return self._work(*arguments)


class WatchedLock:
    """A lock that calls a function before each attempt, and one before its release."""

    attempt: Callable[[], None] = staticmethod(lambda: None)
    end: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self) -> None:
        self._lock = RealLock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)

    def try_acquire(self, path: str, *place: str | None) -> str:
        self.attempt()
        return self._lock.try_acquire(path, *place)

    def release(self, keeps: bool) -> None:
        self.end()
        self._lock.release(keeps)


RealLock = _native.FileLock


def test_locks_are_released_at_the_same_time(shards: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """No release ends before all five have begun. A file that does not exist has no lock, so it needs no call."""
    os.remove(shards[4])
    monkeypatch.setattr(_native, "FileLock", WatchedLock)
    monkeypatch.setattr(WatchedLock, "end", threading.Barrier(5, timeout=60).wait)
    with file_locks.hold(shards, resolve(argument={"io_latency": 1.0})) as held:
        assert len(held) == 6
    monkeypatch.undo()
    assert [take(path) for path in shards] == ["held"] * 4 + ["no file", "held"]


def test_locks_on_a_local_disk_are_released_without_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[int] = []
    paths = [str(tmp_path / str(i)) for i in range(6)]
    for path in paths:
        Path(path).touch()
    monkeypatch.setattr(file_locks, "COSTLY_SECONDS", 1e9)
    monkeypatch.setattr(_native, "FileLock", WatchedLock)
    monkeypatch.setattr(WatchedLock, "end", lambda _: released.append(threading.get_ident()))
    with file_locks.hold(paths, resolve(argument={"io_latency": 0.0})):
        pass
    assert released == [threading.get_ident()] * 6


def test_interrupt_leaves_no_lock_that_another_thread_was_taking(
    shards: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the fix, the lock stayed held as long as the traceback of the interrupt existed."""
    monkeypatch.setattr(_native, "FileLock", WatchedLock)
    locks = file_locks.FileLocks(shards, resolve(argument={"io_latency": 1.0}))
    with Interrupting() as work:
        monkeypatch.setattr(WatchedLock, "attempt", lambda _: work(0))
        with pytest.raises(KeyboardInterrupt) as caught:  # `caught` keeps the traceback
            locks.advance()
        locks.release()
    assert caught.traceback and _native.file_locks_held() == 0


def test_names_are_compared_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each comparison asks the file system."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    real, names = ([str(tmp_path / folder / str(i)) for i in range(6)] for folder in ("real", "link"))
    for path in real:
        Path(path).touch()
    monkeypatch.setattr(file_locks, "_checked", Together(file_locks._checked, 6, alone=0))
    with file_locks.hold(real, resolve(argument={"io_latency": 1.0}), names) as held:
        assert all(
            file is not None and os.path.samestat(os.fstat(file.fd), os.stat(path))
            for file, path in zip(held, real, strict=True)
        )


def test_names_are_resolved_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call shows that each waits; folders come before files."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    object_names.in_real_folders([f"{tmp_path}/link/0"])  # the folders above are memoised
    paths = [str(tmp_path / "link" / str(i) / str(j)) for i in range(5) for j in range(2)]
    monkeypatch.setattr(concurrent_calls, "COSTLY_SECONDS", 0.0)
    for name, n in (("_real_folder", 5), ("_real_file", 10)):
        monkeypatch.setattr(object_names, name, Together(getattr(object_names, name), n - 1))
    assert object_names.real_paths(paths) == [path.replace("/link/", "/real/") for path in paths]


@pytest.mark.parametrize("removes", [False, True])
def test_files_are_stored_and_removed_at_the_same_time(
    shards: list[str], monkeypatch: pytest.MonkeyPatch, removes: bool
) -> None:
    """A file that another process has created meanwhile is not replaced."""
    work: list[Any] = [(path, None if removes else b"new", None) for path in shards]
    work[2] = (shards[2], UNCHANGED, None)
    work[4] = (shards[4], b"mine", file_locks.NO_FILE)
    monkeypatch.setattr(files, "_put", Together(files._put, 5, alone=0))
    assert files._put_all(work, resolve(argument={"io_latency": 1.0})) == [4]
    expected = None if removes else b"new"
    assert [Path(path).read_bytes() if os.path.exists(path) else None for path in shards] == [
        expected,
        expected,
        b"some bytes",
        expected,
        b"some bytes",
        expected,
    ]


UPDATE = """
import os, zarr, shardcodec
os.environ["SHARDCODEC_IO_LATENCY"] = "0.02"
shardcodec.enable(threads=2, strict=True)
array = zarr.open_array(folder, mode="r+")
array[:, :2] = 5
"""


@pytest.mark.slow
def test_calls_of_an_update_wait_at_the_same_time(tmp_path: Path, delays: str) -> None:
    """More than two of each kind, as two threads encode: they alone would make two calls wait."""
    create(tmp_path / "a", shape=(24 * 8, 8), shards=(8, 8), chunks=(4, 4), dtype="i4", fill_value=0)[...] = 1
    calls = count_delayed(UPDATE, delays, tmp_path / "a", 20_000)
    assert zarrs_view(zarr.open_array(tmp_path / "a"))[:, :2].min() == 5
    assert (calls["locks"][0], calls["unlocks"][0]) == (24, 24)
    assert {name for name, (n, most) in calls.items() if n >= 24 and most > 2} == {
        "opens",
        "reads",
        "locks",
        "unlocks",
        "writes",
        "names",
        "closes",
        "stats",
    }
    assert calls["syncs"] == (0, 0)
