# test_slow_close.py - a close that takes long, as on a network file system that hangs, stops only its own thread
# SPDX-License-Identifier: MIT
"""A close sends FLUSH and waits for the answer. Whoever closes a file with the GIL, or under a mutex that other threads take
with the GIL, stops all Python threads of the process for that time.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from helpers import letters, letters_spec
from mounts.fuse import Mount, mount

from shardcodec import _native
from shardcodec.access.compiled_chains import compiled

pytestmark = pytest.mark.slow

CHAIN = compiled(letters_spec().chain)
SECONDS = 0.3
# How often another thread must get the GIL meanwhile; it asks for it every millisecond.
BEATS = 5


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Mount]:
    with mount(tmp_path / "backing", tmp_path / "mounted") as mounted:
        (mounted.path / "shard").write_bytes(letters())
        yield mounted


class Pulse:
    """Counts how often another thread gets the GIL, and can make a call there."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.n = 0
        self._call = call
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.001):
            self._call()
            self.n += 1

    def __enter__(self) -> Self:
        self._thread.start()
        while not self.n:
            time.sleep(0.001)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()


def close_slowly(
    slow: Mount, close: Callable[[], object], call: Callable[[], object] = int, *, request: str = "flush"
) -> None:
    """Check that another thread, which makes a call again and again, runs while this one waits for a request."""
    with Pulse(call) as pulse:
        slow.delay(request, SECONDS)
        n_requests = slow.calls()[request]
        begin, n = time.monotonic(), pulse.n
        close()
        assert time.monotonic() - begin >= SECONDS
        n = pulse.n - n
        assert slow.calls()[request] > n_requests
        slow.delay(request, 0)
    assert n >= BEATS


def open_shard(slow: Mount, cache: Any = None) -> Any:
    return _native.OpenShard(CHAIN, str(slow.path / "shard"), cache)


def cache_of_files(slow: Mount) -> Any:
    """Return a cache that keeps the file of the shard open."""
    cache = _native.Cache(1 << 20, 4, 0)
    open_shard(slow, cache).close()
    assert cache.info()["n_files"] == 1
    return cache


def test_open_shard(slow: Mount) -> None:
    close_slowly(slow, open_shard(slow).close)


def test_forgotten_open_shard(slow: Mount) -> None:
    shards = [open_shard(slow)]
    close_slowly(slow, shards.clear)


def test_read_of_one_inner_chunk(slow: Mount) -> None:
    path = os.fsencode(slow.path / "shard")
    close_slowly(slow, lambda: _native.read_encoded(CHAIN, path, 0))


@pytest.mark.parametrize("shared", [False, True], ids=["own", "joined"])
def test_forgotten_new_file(slow: Mount, shared: bool) -> None:
    first = _native.NewFile(str(slow.path / "new"), shared=shared)
    files = [first]
    if shared:
        path, temp, staging, n_made = first.place
        files = [_native.NewFile(path, temp=temp, staging=staging, n_made=n_made)]
    else:
        del first
    close_slowly(slow, files.clear)


def test_forgotten_lock(slow: Mount) -> None:
    locks = [_native.FileLock()]
    assert locks[0].try_acquire(str(slow.path / "shard")) == "held"
    close_slowly(slow, locks.clear)


@pytest.mark.parametrize("how", ["drop", "clear"])
def test_cached_file(slow: Mount, how: str) -> None:
    """The other thread uses the cache meanwhile."""
    cache = cache_of_files(slow)
    close = cache.clear if how == "clear" else lambda: cache.drop(str(slow.path / "shard"))
    close_slowly(slow, close, cache.info)


def test_forgotten_cache(slow: Mount) -> None:
    caches = [cache_of_files(slow)]
    close_slowly(slow, caches.clear)


def test_cached_file_that_was_replaced_or_makes_room(slow: Mount) -> None:
    """A read closes it; the other thread uses the cache meanwhile."""
    cache = _native.Cache(1 << 20, 1, 0)
    open_shard(slow, cache).close()
    (slow.path / "other").write_bytes(letters())
    other = str(slow.path / "other")
    close_slowly(slow, lambda: _native.read_encoded(CHAIN, os.fsencode(other), 0, cache), cache.info)
    os.replace(slow.path / "other", slow.path / "shard")
    (slow.path / "other").write_bytes(letters())
    close_slowly(slow, lambda: _native.read_encoded(CHAIN, os.fsencode(other), 0, cache), cache.info)


def test_state_of_an_open_shard(slow: Mount) -> None:
    """The kernel asks the file system for the generation number of the inode."""
    shard = open_shard(slow)
    close_slowly(slow, lambda: shard.state, request="ioctl")


def test_second_close_leaves_a_file_that_has_the_descriptor_by_then(slow: Mount) -> None:
    """The kernel gives the number away while the first close still waits."""
    shard = open_shard(slow)
    (fd,) = [int(name) for name in os.listdir("/proc/self/fd") if leads_to(name, slow.path / "shard")]
    slow.delay("flush", 4 * SECONDS)
    closing = threading.Thread(target=shard.close)
    closing.start()
    while leads_to(str(fd), slow.path / "shard"):
        time.sleep(0.001)
    null = os.open("/dev/null", os.O_WRONLY)
    os.dup2(null, fd)
    assert closing.is_alive()
    shard.close()
    del shard
    assert os.write(fd, b"x") == 1
    closing.join()
    slow.delay("flush", 0)
    for one in {null, fd}:
        os.close(one)


def leads_to(fd: str, path: Path) -> bool:
    try:
        return os.readlink(f"/proc/self/fd/{fd}") == str(path)
    except FileNotFoundError:
        return False


def is_open(file: Any) -> bool:
    try:
        return bool(file.place)
    except ValueError:
        return False


def test_new_file_that_is_being_committed_refuses_other_calls(slow: Mount) -> None:
    """Its descriptor may belong to another file before the commit is over."""
    file = _native.NewFile(str(slow.path / "new"))
    file.write(b"data", 0)
    slow.delay("flush", 4 * SECONDS)
    committing = threading.Thread(target=file.commit)
    committing.start()
    while is_open(file):
        time.sleep(0.001)
    for call in (lambda: file.write(b"more", 4), lambda: file.truncate(1), file.commit, file.abort):
        with pytest.raises(ValueError, match="another thread"):
            call()
    committing.join()
    slow.delay("flush", 0)
    assert (slow.path / "new").read_bytes() == b"data"
    file.abort()  # does nothing after the commit
