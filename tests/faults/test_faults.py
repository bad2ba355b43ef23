# test_faults.py - a write that is killed, or that fails, at any of the calls that change a file system
# SPDX-License-Identifier: MIT
"""Kills and errors at every call.

The calls of one write are counted; then the write is done again from the same beginning, once for each call, and that
call is the last one or fails. Afterwards every inner chunk has its old or its new value, for zarr's own pipeline and for
TensorStore as well, nothing else has changed, and the next write works and leaves no litter.
"""

from __future__ import annotations

import errno
import os
import signal
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import files_below, ours, quiet, random_array, shard_path, zarrs_view
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec

import shardcodec
from shardcodec import native
from shardcodec.storage import filesystem

SIDE = 4  # of an inner chunk


@dataclass(frozen=True)
class Case:
    """One way to write: how many inner chunks along an axis, and the options."""

    grid: int
    location: str
    strategy: str
    durability: str
    direct: bool = True

    @property
    def options(self) -> dict[str, Any]:
        return {"write_strategy": self.strategy, "durability": self.durability, "threads": 1}

    def __str__(self) -> str:
        way = "" if self.direct else "-buffered"
        return f"{self.strategy}{way}-{self.location}-{self.grid}-{self.durability}"


SMALL, LARGE = 3, 18  # indexes of 148 and 5188 bytes: below and above one page
CASES = [
    Case(grid, location, strategy, durability, direct)
    for grid in (SMALL, LARGE)
    for location in ("end", "start")
    for durability in ("rename", "fsync")
    for strategy, direct in (("replace", True), ("append", True), ("append", False))
    if location == "end" or direct
]
every_case = pytest.mark.parametrize("case", CASES, ids=str)
# Killed at each call in every run of the tests: one of each way. The others are slow, all together.
quick_case = pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case, marks=() if case.grid == SMALL and case.durability == "rename" else pytest.mark.slow
        )
        for case in CASES
    ],
    ids=str,
)


@pytest.fixture(autouse=True)
def _own_mind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """File systems are looked at anew in each test, since some tests forbid what they can do."""
    monkeypatch.setattr(filesystem, "_known", {})
    case = getattr(request.node, "callspec", None)
    if case is not None and not getattr(case.params.get("case"), "direct", True):
        monkeypatch.setattr(filesystem, "DIRECT_TYPES", frozenset())


class Scene:
    """An array of two shards, and a write that touches four inner chunks of the first in part, one of them absent before."""

    def __init__(self, folder: Path, case: Case) -> None:
        self.folder, self.case = folder, case
        side = case.grid * SIDE
        self.shape = (2 * side, side)
        codec = ShardingCodec(
            chunk_shape=(SIDE, SIDE),
            codecs=[BytesCodec(), ZstdCodec(level=1), Crc32cCodec()],
            index_location=case.location,
        )
        with quiet():
            zarr.create_array(
                folder / "a",
                shape=self.shape,
                chunks=(side, side),
                dtype="int32",
                fill_value=-1,
                serializer=codec,
                compressors=None,
            )
        self.box = np.s_[1 : SIDE + 2, 2 : SIDE + 2]
        self.old = random_array(self.shape, "int32")
        self.old[:SIDE, SIDE : 2 * SIDE] = -1
        self.new = self.old.copy()
        self.new[self.box] = np.arange(1000, 1000 + (SIDE + 1) * SIDE).reshape(SIDE + 1, SIDE)
        array = ours(folder / "a")
        array[...] = self.old
        self.shard = shard_path(array)
        self.bytes = {name: (folder / "a" / name).read_bytes() for name in files_below(folder / "a")}
        self.seen: dict[tuple[bytes | None, ...], np.ndarray[Any, Any]] = {}

    def write(self) -> None:
        array = ours(self.folder / "a")
        with shardcodec.options(**self.case.options):
            array[self.box] = self.new[self.box]

    def restore(self) -> None:
        for name in files_below(self.folder):
            if name.removeprefix("a/") not in self.bytes:
                (self.folder / name).unlink()
        for name, blob in self.bytes.items():
            (self.folder / "a" / name).write_bytes(blob)

    def others_view(self) -> np.ndarray[Any, Any]:
        """What zarr and TensorStore read. The same bytes are read once: many faults leave the same."""
        paths = [self.folder / "a" / name for name in self.bytes]
        key = tuple(path.read_bytes() if path.exists() else None for path in paths)
        if key not in self.seen:
            found = zarrs_view(ours(self.folder / "a"))[...]
            seen = tensorstores_view(self.folder / "a")
            assert seen is None or (seen == found).all()
            self.seen[key] = found
        return self.seen[key]

    def check(self) -> str:
        """Every view shows, in each inner chunk, the old value or the new one; which, is told."""
        found = self.others_view()
        for r in range(0, self.shape[0], SIDE):
            for c in range(0, self.shape[1], SIDE):
                cell = np.s_[r : r + SIDE, c : c + SIDE]
                assert (found[cell] == self.old[cell]).all() or (found[cell] == self.new[cell]).all(), (r, c)
        assert (found[self.shape[0] // 2 :] == self.old[self.shape[0] // 2 :]).all()
        assert (ours(self.folder / "a")[...] == found).all()
        return "new" if (found == self.new).all() else "old" if (found == self.old).all() else "mixed"

    def check_next_write(self) -> None:
        self.write()
        assert self.check() == "new"
        assert sorted(self.bytes) == files_below(self.folder / "a")
        assert [p.name for p in self.folder.iterdir()] == ["a"]


def tensorstores_view(folder: Path) -> Any:
    try:
        import tensorstore
    except ImportError:
        return None
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(folder)}}
    return tensorstore.open(spec, read=True, open=True).result().read().result()


def in_child(work: Callable[[], None]) -> tuple[int, bytes]:
    """Run it in a forked child: how that ended, and what it had to say."""
    read_end, write_end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            work()
            os.write(write_end, ",".join(native.load().end_fault()).encode())
            os._exit(0)
        except BaseException as error:
            os.write(write_end, f"{type(error).__name__}: {error}".encode()[:4000])
            os._exit(1)
    os.close(write_end)
    _, status = os.waitpid(pid, 0)
    with os.fdopen(read_end, "rb") as pipe:
        return status, pipe.read()


def with_fault(scene: Scene, n: int, action: str, value: int = 0) -> tuple[int, bytes]:
    def work() -> None:
        native.load().set_fault(n, action, value)
        scene.write()

    return in_child(work)


def calls_of(scene: Scene) -> list[str]:
    status, told = with_fault(scene, 0, "count")
    assert status == 0, told
    assert scene.check() == "new"
    scene.restore()
    return told.decode().split(",")


def was_killed(status: int) -> bool:
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


# ---- kills


@quick_case
def test_killed_at_every_call(tmp_path: Path, case: Case) -> None:
    scene = Scene(tmp_path, case)
    calls = calls_of(scene)
    outcomes = []
    for n in range(len(calls)):
        status, told = with_fault(scene, n, "kill")
        assert was_killed(status), (calls, n, told)
        outcomes.append(scene.check())
        scene.check_next_write()
        scene.restore()
    assert "mixed" not in outcomes
    assert outcomes == sorted(outcomes, reverse=True), "once it is new it stays new"


@every_case
@pytest.mark.slow
def test_killed_inside_every_write(tmp_path: Path, case: Case) -> None:
    scene = Scene(tmp_path, case)
    for n, call in enumerate(calls_of(scene)):
        if call not in ("pwrite", "copy_file_range"):
            continue
        for prefix in (0, 1, 100, 4095, 4096):
            status, told = with_fault(scene, n, "torn", prefix)
            assert was_killed(status), (call, n, told)
            assert scene.check() in ("old", "new")
            scene.check_next_write()
            scene.restore()


# ---- errors


@every_case
@pytest.mark.parametrize(
    "error", [errno.ENOSPC, errno.EIO, errno.EACCES, errno.EINTR], ids=errno.errorcode.get
)
@pytest.mark.slow
def test_errors_at_every_call(tmp_path: Path, case: Case, error: int) -> None:
    """The write does its work some other way, or raises with the name of the file and has changed nothing."""
    scene = Scene(tmp_path, case)
    for n, call in enumerate(calls_of(scene)):
        status, told = with_fault(scene, n, "error", error)
        outcome = scene.check()
        if os.WEXITSTATUS(status):
            assert b"OSError" in told or b"Error: [Errno" in told, (call, told)
            assert str(scene.shard).encode() in told, (call, told)
            assert outcome == "old" or call == "fsync", (call, n, outcome)
        else:
            assert outcome == "new", (call, n)
        scene.check_next_write()
        scene.restore()


@every_case
@pytest.mark.slow
def test_short_writes(tmp_path: Path, case: Case) -> None:
    """A write that is cut is continued, or, where it has to be whole, is an error that leaves the old shard."""
    scene = Scene(tmp_path, case)
    for n, call in enumerate(calls_of(scene)):
        if not call.startswith(("pwrite", "copy")):
            continue
        for limit in (
            (4096,) if call == "pwrite_once" and case.location == "end" and case.direct else (1, 100)
        ):
            status, told = with_fault(scene, n, "short", limit)
            if status and call == "pwrite_once":
                assert b"No space left" in told
                assert scene.check() == "old"
            else:
                assert scene.check() == "new", (call, n, limit, told)
            scene.check_next_write()
            scene.restore()


# ---- ways


def test_what_each_case_does(tmp_path: Path) -> None:
    """The cases above test what they say: each way to append occurs."""
    for case in CASES:
        folder = tmp_path / str(case)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(filesystem, "_known", {})
            if not case.direct:
                patch.setattr(filesystem, "DIRECT_TYPES", frozenset())
            scene = Scene(folder, case)
            direct = filesystem.appends_directly(str(scene.shard), scene.shard.stat().st_dev)
            calls = [call for call in calls_of(scene) if call not in ("lock", "unlock")]
        if case.strategy == "replace" or (case.durability == "fsync" and not direct and case.grid == LARGE):
            assert "linkat" in calls and "fdatasync" not in calls
        elif case.location == "end" and direct:
            assert calls == ["fallocate", "pwrite_once"] + ["fdatasync"] * (case.durability == "fsync")
        elif case.location == "end" and case.durability == "rename" and case.grid == SMALL:
            assert calls == ["pwrite_once", "pwrite", "pwrite", "ftruncate"]
        elif case.location == "start" and case.grid == SMALL:
            barrier = ["fdatasync"] * (case.durability == "fsync")
            assert calls == ["pwrite", *barrier, "pwrite_once", *barrier]
        else:
            assert "linkat" in calls
