# test_disk_cache.py - the files of the cache on a local disk
# SPDX-License-Identifier: MIT
"""`storage.disk_cache`: damaged files are misses, the bound is kept, and an unfit folder is not used."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from cached_stores import DATA, another_process, create_in, files_of, numbers
from helpers import as_user, small_disk
from servers.http_objects import Objects, serving

import shardcodec
from shardcodec.storage import disk_cache
from shardcodec.storage.disk_cache import HEAD_NBYTES, CachedObject, DiskCache

N_CHUNKS = 3
# A shard of three inner chunks: two side by side, a gap, and one at the end; state and bytes of the object.
ENTRIES = np.array([[4, 6], [10, 5], [20, 7]], np.uint64)
STATE = {"e_tag": '"a"'}
OBJECT = bytes(range(1, 41))
ALL = np.arange(N_CHUNKS)


def cache_in(folder: Path, max_nbytes: int = 1 << 20, **options: bool) -> DiskCache:
    return DiskCache(str(folder), max_nbytes, b"place", is_immutable=options.get("immutable", False))


def chunks(positions: Any) -> tuple[Any, Any, Any]:
    return positions, *ENTRIES[positions].astype(np.int64).T


def opened(folder: Path, key: str = "c/0", **options: Any) -> CachedObject:
    return cache_in(folder, **options).object(key, N_CHUNKS)


def kept(folder: Path, key: str = "c/0", state: Any = STATE, **options: Any) -> CachedObject:
    """Keep all of the object, and return what is cached of it."""
    cached = opened(folder, key, **options)
    cached.keep(state, len(OBJECT), ENTRIES, 4, OBJECT[4:27], chunks(ALL))
    return cached


def found_in(cached: CachedObject) -> dict[int, bytes]:
    """Return the inner chunks that the cache answers for."""
    if not cached.is_in(STATE):
        return {}
    present = ALL[cached.has(ALL)]
    if not len(present):
        return {}
    _, offsets, sizes = chunks(present)
    data, places, good = cached.read(present, offsets, sizes)
    return {
        int(position): data[place : place + size].tobytes()
        for position, place, size, is_good in zip(present, places, sizes, good, strict=True)
        if is_good
    }


RIGHT = {i: OBJECT[int(a) : int(a + n)] for i, (a, n) in enumerate(ENTRIES)}


def test_all_is_found_again(tmp_path: Path) -> None:
    kept(tmp_path).close()
    cached = opened(tmp_path)
    assert cached.nbytes == len(OBJECT)
    assert np.array_equal(cached.entries(), ENTRIES)
    assert found_in(cached) == RIGHT
    cached.close()


def test_error_of_a_signal_handler_is_not_one_of_the_folder(tmp_path: Path) -> None:
    """A timeout that a handler raised was counted as an error of the folder, and the read went on."""
    cached = kept(tmp_path)
    with mock.patch("os.pread", side_effect=TimeoutError("of an alarm")), pytest.raises(TimeoutError):
        cached.entries()
    with mock.patch("os.pread", side_effect=OSError(5, "Input/output error")):
        assert cached.entries() is None
    cached.close()


def test_another_object_store_state_or_layout_finds_nothing(tmp_path: Path) -> None:
    kept(tmp_path).close()
    others = [
        opened(tmp_path, "c/1"),
        DiskCache(str(tmp_path), 1 << 20, b"other", is_immutable=False).object("c/0", N_CHUNKS),
        cache_in(tmp_path).object("c/0", N_CHUNKS + 1),
    ]
    assert not any(cached.is_there for cached in others)
    cached = opened(tmp_path)
    assert cached.is_there and not cached.is_in({"e_tag": '"b"'})
    cached.close()


def test_new_state_replaces_the_old_one(tmp_path: Path) -> None:
    """A process that has the old file open still finds its bytes."""
    old = kept(tmp_path)
    new = opened(tmp_path)
    new.keep({"e_tag": '"b"'}, 40, ENTRIES, 4, bytes(6), chunks(ALL[:1]))
    assert found_in(old) == RIGHT
    again = opened(tmp_path)
    assert again.state == {"e_tag": '"b"'} and again.has(ALL).tolist() == [True, False, False]
    for cached in (old, new, again):
        cached.close()
    assert len(files_of(tmp_path)) == 1


def test_state_that_cannot_be_compared_is_kept_only_if_it_is_immutable(tmp_path: Path) -> None:
    kept(tmp_path, state=None).close()
    assert not files_of(tmp_path)
    kept(tmp_path, state=None, immutable=True).close()
    assert opened(tmp_path, immutable=True).is_in(None)
    assert not opened(tmp_path).is_there


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, bytes]:
    folder = tmp_path_factory.mktemp("cache")
    kept(folder).close()
    (file,) = files_of(folder)
    return file.name, file.read_bytes()


def test_file_that_is_cut_is_a_miss(stored: tuple[str, bytes], tmp_path: Path) -> None:
    name, data = stored
    for n in range(len(data)):
        (tmp_path / name).write_bytes(data[:n])
        check_damaged(tmp_path, is_less=n < HEAD_NBYTES)


def test_flipped_bit_of_each_byte_is_a_miss(stored: tuple[str, bytes], tmp_path: Path) -> None:
    name, data = stored
    for i in range(len(data)):
        damaged = bytearray(data)
        damaged[i] ^= 1 << i % 8
        (tmp_path / name).write_bytes(damaged)
        check_damaged(tmp_path, is_less=i < HEAD_NBYTES)


def test_bytes_that_never_came_to_the_disk_are_a_miss(stored: tuple[str, bytes], tmp_path: Path) -> None:
    """After a power cut a block may have zeros, though later writes are there."""
    name, data = stored
    for first in range(0, len(data), 8):
        (tmp_path / name).write_bytes(data[:first] + bytes(8) + data[first + 8 :])
        check_damaged(tmp_path)


def check_damaged(folder: Path, *, is_less: bool = False) -> None:
    """Nothing wrong is found, and what is missing can be kept again."""
    cached = opened(folder)
    entries = cached.entries()
    assert entries is None or np.array_equal(entries, ENTRIES)
    found = found_in(cached)
    assert found.items() <= RIGHT.items()
    assert not is_less or len(found) < N_CHUNKS
    cached.keep(STATE, len(OBJECT), ENTRIES, 4, OBJECT[4:27], chunks(ALL))
    assert found_in(cached) == RIGHT
    cached.close()


# ---- the bound


def used_in(folder: Path) -> int:
    return sum(file.stat().st_blocks * 512 for file in files_of(folder))


def test_bound_is_kept_and_the_last_used_objects_stay(tmp_path: Path) -> None:
    bound = 40 << 12
    for i in range(100):
        kept(tmp_path, f"c/{i}", max_nbytes=bound).close()
        assert used_in(tmp_path) <= bound
        if i >= 1:  # the first one is used again and again
            os.utime(opened(tmp_path, "c/0")._path, (2e9, 2e9))
    assert found_in(opened(tmp_path, "c/0")) == found_in(opened(tmp_path, "c/99")) == RIGHT
    assert not opened(tmp_path, "c/1").is_there
    assert disk_cache.usage(str(tmp_path)) == (len(files_of(tmp_path)), used_in(tmp_path))


def test_object_that_is_larger_than_the_bound_is_not_kept(tmp_path: Path) -> None:
    kept(tmp_path, max_nbytes=8 << 10).close()
    assert not files_of(tmp_path)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 8, bytes(8), b"abc"])
def test_wrong_usage_is_counted_again(damage: bytes, tmp_path: Path) -> None:
    for i in range(3):
        kept(tmp_path, f"c/{i}").close()
    (tmp_path / "usage").write_bytes(damage)
    kept(tmp_path, "c/3", max_nbytes=1 << 30).close()
    assert len(files_of(tmp_path)) == 4


def test_old_time_of_last_use_is_renewed(tmp_path: Path) -> None:
    kept(tmp_path).close()
    (file,) = files_of(tmp_path)
    os.utime(file, (1e9, 1e9))
    opened(tmp_path).close()
    assert file.stat().st_atime > 1e9 + 1
    assert file.stat().st_mtime == 1e9, "what was compared depends on the last change"
    with mock.patch.object(os, "utime") as utime:
        opened(tmp_path).close()
    assert not utime.called


def test_clear_removes_all_and_nothing_else(tmp_path: Path) -> None:
    kept(tmp_path).close()
    (tmp_path / "notes.txt").write_text("mine")
    disk_cache.clear(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    disk_cache.clear(str(tmp_path / "missing"))
    assert disk_cache.usage(str(tmp_path / "missing")) == (0, 0)


# ---- folders that are unfit


@pytest.fixture
def server() -> Iterator[Objects]:
    pytest.importorskip("obstore", reason="obstore is not installed")
    with serving() as objects:
        yield objects


@pytest.fixture(autouse=True)
def forget_warnings() -> None:
    disk_cache._told.clear()


def read_twice(store: Any) -> dict[str, int]:
    """Read all of an array twice, and return the counters of the second read."""
    array = shardcodec.open_array(store, "a")
    for _ in range(2):
        shardcodec.stats.reset()
        np.testing.assert_array_equal(array[...], DATA)
    return numbers()


@pytest.mark.parametrize("mode", [0o770, 0o702])
def test_folder_that_other_users_may_write_to_is_not_used(mode: int, server: Objects, tmp_path: Path) -> None:
    """They could plant values there."""
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    store = create_in(server)
    with shardcodec.options(cache_dir=folder):
        with pytest.warns(
            RuntimeWarning, match=f"cache_dir .* only its owner can write to, its mode is {mode:o}"
        ):
            assert read_twice(store)["hits"] == 0
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            read_twice(store)
    assert not list(folder.iterdir())


def test_each_read_looks_at_the_folder(server: Objects, tmp_path: Path) -> None:
    """A handle that is open remembers which cache serves it, and others may write to the folder since."""
    with shardcodec.options(cache_dir=tmp_path / "cache"):
        array = shardcodec.open_array(create_in(server), "a", immutable=True)
    for box in (np.s_[:], np.s_[:4, :10, :10]):
        np.testing.assert_array_equal(array[box], DATA[box])
        for mode, is_used in ((0o700, True), (0o770, False), (0o700, True)):
            disk_cache._told.clear()
            (tmp_path / "cache").chmod(mode)
            shardcodec.stats.reset()
            with nullcontext() if is_used else pytest.warns(RuntimeWarning, match="only its owner"):
                np.testing.assert_array_equal(array[box], DATA[box])
            assert (numbers()["hits"] > 0) == is_used


def test_folder_of_another_user_is_not_used(server: Objects, tmp_path: Path) -> None:
    store = create_in(server)
    with (
        shardcodec.options(cache_dir=tmp_path),
        mock.patch.object(os, "geteuid", return_value=12345),
        pytest.warns(RuntimeWarning, match="this one belongs to user"),
    ):
        assert read_twice(store)["hits"] == 0
    assert not list(tmp_path.iterdir())


def test_file_in_place_of_the_folder_is_not_used(server: Objects, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    store = create_in(server)
    with (
        shardcodec.options(cache_dir=tmp_path / "file"),
        pytest.warns(RuntimeWarning, match="expected a folder"),
    ):
        assert read_twice(store)["hits"] == 0
    with shardcodec.options(cache_dir=tmp_path / "file/below"):
        assert read_twice(store)["errors"] > 0


def test_new_folder_is_private(server: Objects, tmp_path: Path) -> None:
    folder = tmp_path / "a/b"
    with shardcodec.options(cache_dir=folder):
        assert read_twice(create_in(server))["hits"] > 0
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in folder.iterdir())


def test_full_disk_only_costs_the_cache(
    server: Objects, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with small_disk(tmp_path / "disk", 24 << 10):
        store = create_in(server)
        (tmp_path / "disk").chmod(0o700)
        with shardcodec.options(cache_dir=tmp_path / "disk"):
            for _ in range(3):
                assert read_twice(store)["errors"] > 0
                another_process()
        assert sum("reads go on without it" in record.getMessage() for record in caplog.records) == 1


def test_folder_that_is_removed_meanwhile_only_costs_the_cache(server: Objects, tmp_path: Path) -> None:
    store = create_in(server)
    with shardcodec.options(cache_dir=tmp_path / "cache"):
        read_twice(store)
        cache = cache_in(tmp_path / "cache")
        shutil.rmtree(tmp_path / "cache")
        assert read_twice(store)["hits"] > 0, "it is made again"
        shutil.rmtree(tmp_path / "cache")
        shardcodec.stats.reset()
        kept_nowhere = cache.object("c/0", N_CHUNKS)
        kept_nowhere.keep(STATE, 40, ENTRIES, 4, OBJECT[4:27], chunks(ALL))
        assert not kept_nowhere.is_there and numbers()["errors"] == 1


def test_files_that_are_removed_while_they_are_read(tmp_path: Path) -> None:
    cached = kept(tmp_path)
    disk_cache.clear(str(tmp_path))
    assert found_in(cached) == RIGHT
    cached.keep(STATE, 40, ENTRIES, 4, OBJECT[4:27], chunks(ALL))
    cached.close()
    assert not files_of(tmp_path)


def test_read_only_folder_is_read(tmp_path: Path) -> None:
    def work() -> None:
        kept(tmp_path).close()
        for path in [*files_of(tmp_path), tmp_path]:
            path.chmod(0o500)
        cached = opened(tmp_path)
        assert found_in(cached) == RIGHT
        cached.keep(STATE, 40, ENTRIES, 4, OBJECT[4:27], chunks(ALL))
        cached.close()
        tmp_path.chmod(0o700)

    as_user(work)


def test_busy_lock_keeps_nothing_and_stops_nobody(tmp_path: Path) -> None:
    """A process that was stopped while it holds the lock must not stop reads of others."""
    import fcntl

    kept(tmp_path).close()
    fd = os.open(tmp_path / "usage", os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        shardcodec.stats.reset()
        other = kept(tmp_path, "c/1")
        assert not other.is_there and numbers()["errors"] == 1
        assert found_in(opened(tmp_path)) == RIGHT
    finally:
        os.close(fd)
