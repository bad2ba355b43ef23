# test_lock_scope.py - how far locks reach on FUSE, which only the kernel's list of locks tells
# SPDX-License-Identifier: MIT

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
from helpers import create, files_below, ours, quiet
from mounts.fuse import FILE_SYSTEM, mount
from system_calls import MARK, calls_of
from workers import Workers

import shardcodec
from shardcodec import LockScopeError, LockScopeWarning, statistics
from shardcodec.storage import file_systems, lock_reach

SIDE, N = 4, 8


@pytest.fixture(autouse=True)
def unknown_mounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """No mount was looked at before."""
    monkeypatch.setattr(lock_reach, "_known_scopes", {})
    monkeypatch.setattr(lock_reach, "_told", set())
    monkeypatch.setattr(statistics.stats, "_lock_scopes", {})


def array_in(folder: Path, **options: Any) -> Any:
    array = create(
        folder / "a",
        shape=(SIDE * N, SIDE * N),
        shards=(SIDE * N, SIDE * N),
        chunks=(SIDE, SIDE),
        dtype="i4",
        compressors=None,
        fill_value=-1,
    )
    return ours(array.store_path.store.root, **options)


def shares_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the file system of the tests to the known ones whose servers share locks with all clients."""
    rules = {**file_systems.LOCK_RULES, FILE_SYSTEM: file_systems.LockRule("cluster")}
    monkeypatch.setattr(file_systems, "LOCK_RULES", rules)


def write_thrice(array: Any) -> None:
    for value in range(3):
        array[0, 0] = value


def scopes() -> list[str]:
    return list(shardcodec.stats()["lock_scopes"].values())


def test_locks_that_the_kernel_keeps_are_warned_about_once(tmp_path: Path) -> None:
    with mount(tmp_path / "backing", tmp_path / "a mount", locks="one") as fuse:
        array = array_in(fuse.path)
        array[...] = 1
        with pytest.warns(LockScopeWarning, match=rf"a mount' \({FILE_SYSTEM}\).*this node only") as caught:
            write_thrice(array)
        assert len(caught) == 1
        assert shardcodec.stats()["lock_scopes"] == {f"{fuse.path} ({FILE_SYSTEM})": "node"}


def test_locks_of_an_unknown_server_are_reported_as_unknown(tmp_path: Path) -> None:
    with mount(tmp_path / "backing", tmp_path / "mount") as fuse:
        array = array_in(fuse.path)
        array[...] = 1
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            array[0, 0] = 2
        assert scopes() == ["unknown"]


@pytest.mark.parametrize("locks", ["one", "all"])
@pytest.mark.parametrize("exists", [False, True])
def test_cluster_asks_the_kernel_which_process_has_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: str, exists: bool
) -> None:
    """A server with a known name shares locks, unless the kernel keeps them: then the name says nothing."""
    shares_locks(monkeypatch)
    with mount(tmp_path / "backing", tmp_path / "mount", locks=locks) as fuse:
        array = array_in(fuse.path)
        if exists:
            with quiet():
                array[0, 0] = 1
        before = files_below(fuse.path)
        with shardcodec.options(locking="cluster"):
            if locks == "all":
                array[:2, :2] = 2
                assert array[1, 1] == 2
                assert set(scopes()) == {"cluster"}
            else:
                with pytest.warns(LockScopeWarning) if exists else warnings.catch_warnings():
                    lock_reach._told.clear()
                    lock_reach._known_scopes.clear()
                    with pytest.raises(LockScopeError, match="the kernel keeps the locks") as caught:
                        array[:2, :2] = 2
                assert (caught.value.mount, caught.value.scope) == (str(fuse.path), "node")
                assert files_below(fuse.path) == before


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["replace", "append", "in_place"])
def test_cluster_loses_no_update_of_two_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    shares_locks(monkeypatch)
    with (
        mount(tmp_path / "backing", tmp_path / "one") as one,
        mount(tmp_path / "backing", tmp_path / "other") as other,
    ):
        array_in(one.path)

        def write(number: int) -> None:
            path = (one, other)[number % 2].path / "a"
            with quiet():
                array = ours(path, locking="cluster", write_strategy=strategy, lock_timeout=50.0)
                for i in range(number, N * N, 4):
                    row, column = divmod(i, N)
                    array[SIDE * row : SIDE * (row + 1), SIDE * column : SIDE * (column + 1)] = i

        Workers(4, write).join()
        with mount(tmp_path / "backing", tmp_path / "third") as fresh:
            found = ours(fresh.path / "a")[::SIDE, ::SIDE]
            assert found.ravel().tolist() == list(range(N * N))


@pytest.mark.slow
@pytest.mark.parametrize("is_local", [False, True])
def test_a_client_that_may_know_an_old_name_looks_at_the_folder_first(tmp_path: Path, is_local: bool) -> None:
    """NFS finds the old shard by a cached name while a process of another client has it open; that update was lost (tests/kernel).

    Local disks need no such look.
    """
    with mount(tmp_path / "backing", tmp_path / "mount") as fuse:
        path = (tmp_path if is_local else fuse.path) / "shard"
        path.write_bytes(b"some bytes")
        code = f"""{MARK}
from shardcodec import native
lock = native.load().FileLock()
mark()
assert lock.try_acquire({str(path)!r}) == "held"
mark()
"""
        calls = calls_of(tmp_path, code, "statx,openat")
    names = [name for call in calls for name in re.findall(r'statx\(.*"(.*)", .*AT_STATX_FORCE_SYNC', call)]
    assert names == ["", *([] if is_local else [str(path.parent)]), str(path)]
