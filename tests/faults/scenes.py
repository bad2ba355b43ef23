# scenes.py - one write, repeated from the same start with a fault at each of its system calls
# SPDX-License-Identifier: MIT
"""Shared by test_faults.py and test_in_place.py: the write, the faults in it, and the checks after each fault."""

from __future__ import annotations

import errno
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import files_below, ours, quiet, shard_path, tensorstores_view, zarrs_view
from workers import forked
from zarr.codecs import ShardingCodec

import shardcodec
from shardcodec import native
from shardcodec.storage import synced_documents

__all__ = [
    "LARGE",
    "SIDE",
    "SMALL",
    "Scene",
    "calls_of",
    "check_error_at_every_call",
    "check_kill_at_every_call",
    "check_kill_inside_every_write",
    "each_of",
    "each_with_every_error",
    "faults_in_each_call",
    "was_killed",
    "with_fault",
]

SIDE = 4  # elements along an axis of an inner chunk
SMALL, LARGE = 3, 18  # inner chunks along an axis: indexes of 148 and 5188 bytes, below and above one page


def each_of(cases: Iterable[object], quick: Collection[object] = ()) -> pytest.MarkDecorator:
    """Run a test for each case: quick cases always, the others at night.

    Without quick cases, the first case runs as a slow test.
    """
    chosen = list(cases)
    marks = [() if case in quick else pytest.mark.nightly for case in chosen]
    if not quick:
        marks[0] = pytest.mark.slow
    marked = [pytest.param(case, marks=mark) for case, mark in zip(chosen, marks, strict=True)]
    return pytest.mark.parametrize("case", marked, ids=str)


def each_with_every_error(cases: Iterable[object], quick: Collection[object]) -> pytest.MarkDecorator:
    """Run a slow test with EIO for each quick case, and at night a test for each case and error.

    All code treats ENOSPC like EIO, so it is tested on the quick cases only.
    """
    pairs = [
        pytest.param(
            case,
            error,
            marks=pytest.mark.slow if case in quick and error == errno.EIO else pytest.mark.nightly,
            id=f"{case}-{errno.errorcode[error]}",
        )
        for case in cases
        for error in (errno.EIO, errno.EACCES, errno.EINTR, errno.ENOSPC)
        if error != errno.ENOSPC or case in quick
    ]
    return pytest.mark.parametrize(("case", "error"), pairs)


State = tuple[object, ...]


class Scene(ABC):
    """An array of int32 with square shards in one column, and a write that changes `box` from `old` to `new`."""

    has_journals = False

    def __init__(self, folder: Path, old: np.ndarray[Any, Any], codecs: Any, location: str) -> None:
        self.folder, self.old = folder, old
        side = old.shape[1]
        codec = ShardingCodec(chunk_shape=(SIDE, SIDE), codecs=codecs, index_location=location)
        with quiet():
            zarr.create_array(
                folder / "a",
                shape=old.shape,
                chunks=(side, side),
                dtype="int32",
                fill_value=-1,
                serializer=codec,
                compressors=None,
            )
        self._array = ours(folder / "a")
        self._array[...] = old
        self.shard = shard_path(self._array)
        self.bytes = {name: (folder / "a" / name).read_bytes() for name in files_below(folder / "a")}
        self.new = old.copy()
        self.box: Any = ...
        self.options: dict[str, Any] = {}
        self._views: dict[State, np.ndarray[Any, Any]] = {}
        self._told: dict[State, str] = {}
        self._continued: set[State] = set()

    def handle(self) -> Any:
        """Open the array without reading elements. The metadata are read once, since no scene changes them."""
        return shardcodec.attach(self._array, strict=True)

    def write(self) -> None:
        array = self.handle()
        with shardcodec.options(threads=1, **self.options):
            array[self.box] = self.new[self.box]

    def restore(self) -> None:
        for name in files_below(self.folder):
            if name.removeprefix("a/") not in self.bytes:
                (self.folder / name).unlink()
        if (self.folder / ".a.shardcodec").is_dir():
            (self.folder / ".a.shardcodec").rmdir()  # every write starts with the same calls
        for name, blob in self.bytes.items():
            (self.folder / "a" / name).write_bytes(blob)

    def state(self) -> State:
        """Return all that a fault may leave for readers and for the next writer.

        A journal names the inode of its shard, so the inode counts too.
        """
        left: list[object] = [self.shard.stat().st_ino if self.has_journals else 0]
        for path in sorted(self.folder.rglob("*")):
            stat = path.stat()
            blob = b"" if path.is_dir() else path.read_bytes()
            left.append((str(path), stat.st_mode, stat.st_nlink, stat.st_blocks, blob))
        return tuple(left)

    def view_of_other_readers(self) -> np.ndarray[Any, Any]:
        """Return the elements that zarr and TensorStore read. Memoised by state, since many faults leave the same
        state.
        """
        state = self.state()
        if state not in self._views:
            found = zarrs_view(self._array)[...]
            theirs = tensorstores_view(self.folder / "a")
            assert theirs is None or (theirs == found).all()
            self._views[state] = found
        return self._views[state]

    def once(self, look: Callable[[], str]) -> str:
        """Return the result of `look`, which opens its own handles. Memoised by state."""
        state = self.state()
        if state not in self._told:
            self._told[state] = look()
        return self._told[state]

    def which(self, found: Any) -> str:
        return "new" if (found == self.new).all() else "old" if (found == self.old).all() else "mixed"

    @abstractmethod
    def check(self) -> str:
        """Check what every reader sees and return it: the "old" elements, the "new" ones or, where allowed, "mixed"."""

    @abstractmethod
    def check_no_litter(self) -> None: ...

    def check_next_write(self) -> None:
        """Check that the next write succeeds and leaves no litter. Memoised by state."""
        state = self.state()
        if state in self._continued:
            return
        self._continued.add(state)
        self.write()
        assert self.check() == "new"
        self.check_no_litter()


# ---- one fault


def run_in_child(work: Callable[[], None]) -> tuple[int, bytes]:
    """Run `work` in a forked child. Return its exit status and its message."""
    read_end, write_end = os.pipe()

    def tell() -> None:
        try:
            work()
            os.write(write_end, ",".join(native.load().end_fault()).encode())
        except BaseException as error:
            os.write(write_end, f"{type(error).__name__}: {error}".encode()[:4000])
            raise

    pid = forked(tell)
    os.close(write_end)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as pipe:
        return status, pipe.read()


def with_fault(scene: Scene, n: int, action: str, value: int = 0) -> tuple[int, bytes]:
    def work() -> None:
        as_in_a_new_process()
        native.load().set_fault(n, action, value)
        scene.write()

    return run_in_child(work)


def as_in_a_new_process() -> None:
    """Forget which documents and folders an earlier write has synced."""
    synced_documents._documents.clear()
    synced_documents._folders.clear()


def failing(scene: Scene, n: int, action: str, value: int, calls: list[str]) -> tuple[int, bytes]:
    """Run the write with a fault in this process, which survives it: a fork takes ten times as long as the write.

    The test compares the calls with those of a new process, so it notices anything that an earlier write leaves
    behind.
    """
    engine = native.load()
    status, told = 0, b""
    as_in_a_new_process()
    engine.set_fault(n, action, value)
    try:
        scene.write()
    except OSError as error:
        status, told = 1, f"{type(error).__name__}: {error}".encode()
    finally:
        made = engine.end_fault()
    assert made[: n + 1] == calls[: n + 1]
    return status, told


def calls_of(scene: Scene) -> list[str]:
    status, told = with_fault(scene, 0, "count")
    assert status == 0, told
    assert scene.check() == "new"
    scene.restore()
    calls = told.decode().split(",")
    assert len(calls) > 1, calls
    return calls


def was_killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


# ---- a fault at every call


def faults_in_each_call(
    scene: Scene, action: str, values: Callable[[str], Iterable[int]]
) -> Iterator[tuple[str, int, bytes]]:
    """Repeat the write with a fault in each call, for each value that `values` returns for the call.

    Yield the call, the exit status and the message. After each fault the next write must succeed. Then the old
    files are restored.
    """
    n_faults = 0
    for n, call in enumerate(calls := calls_of(scene)):
        for value in values(call):
            if action in ("kill", "torn"):
                yield (call, *with_fault(scene, n, action, value))
            else:
                yield (call, *failing(scene, n, action, value, calls))
            scene.check_next_write()
            scene.restore()
            n_faults += 1
    assert n_faults, "`values` chose no call"


def check_kill_at_every_call(scene: Scene) -> None:
    outcomes = []
    for call, status, told in faults_in_each_call(scene, "kill", lambda call: [0]):
        assert was_killed(status), (call, told)
        outcomes.append(scene.check())
    assert "mixed" not in outcomes
    assert outcomes == sorted(outcomes, reverse=True), "after a later kill the shard is old again"
    assert {"old", "new"} == set(outcomes)


def check_kill_inside_every_write(scene: Scene, prefixes: Iterable[int]) -> None:
    """Kill the process after a part of the bytes of each write."""
    for call, status, told in faults_in_each_call(
        scene, "torn", lambda call: prefixes if call in ("pwrite", "copy_file_range") else ()
    ):
        assert was_killed(status), (call, told)
        assert scene.check() in ("old", "new")


def check_error_at_every_call(scene: Scene, error: int) -> None:
    """After an error the write succeeds by a fallback, or raises with the name of the file and changes nothing."""
    for call, status, told in faults_in_each_call(scene, "error", lambda call: [error]):
        outcome = scene.check()
        if status:
            assert b"OSError" in told or b"Error: [Errno" in told, (call, told)
            # a sync may be that of a document or a folder above the shard
            named = [scene.shard, *(scene.shard.parents if call == "fsync" else ())]
            assert any(
                b"%s'" % bytes(path) in told or b"%s/zarr.json'" % bytes(path) in told for path in named
            ), told
            assert outcome == "old" or call == "fsync", (call, outcome)
        else:
            assert outcome == "new", (call, told)
