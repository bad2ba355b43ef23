# test_faults.py - a write is killed or fails at each call that changes the file system
# SPDX-License-Identifier: MIT
"""Kills and errors at every call.

One run counts the system calls of a write. Then the write is repeated from the same start, once for each call, with
a kill or an error at this call. Afterwards every inner chunk has its old or its new value, for shardcodec, zarr's
own pipeline and TensorStore; nothing else has changed; and the next write succeeds and leaves no litter.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from faults.scenes import (
    LARGE,
    SIDE,
    SMALL,
    Scene,
    calls_of,
    check_error_at_every_call,
    check_kill_at_every_call,
    check_kill_inside_every_write,
    each_of,
    each_with_every_error,
    faults_in_each_call,
)
from helpers import descriptor, files_below, random_array
from zarr.codecs import BytesCodec, Crc32cCodec, ZstdCodec

from shardcodec.storage import file_systems


@dataclass(frozen=True)
class Case:
    """One way to write: the number of inner chunks along an axis, and the options."""

    grid: int
    location: str
    strategy: str
    durability: str
    direct: bool = True

    def __str__(self) -> str:
        way = "" if self.direct else "-buffered"
        return f"{self.strategy}{way}-{self.location}-{self.grid}-{self.durability}"


CASES = [
    Case(grid, location, strategy, durability, direct)
    for grid in (SMALL, LARGE)
    for location in ("end", "start")
    for durability in ("rename", "fsync")
    for strategy, direct in (("replace", True), ("append", True), ("append", False))
    if location == "end" or direct
]
# Cases of the kill test that run always: one for each strategy and index location. The others run at night.
QUICK = [case for case in CASES if case.grid == SMALL and case.durability == "rename"]
# A direct append is a single write call that a kill cannot cut.
CUT = [case for case in CASES if (case.strategy, case.location, case.direct) != ("append", "end", True)]


@pytest.fixture(autouse=True)
def _probe_file_systems_again(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget probed file systems, since some tests forbid features of theirs."""
    monkeypatch.setattr(file_systems, "_known", {})
    case = getattr(request.node, "callspec", None)
    if case is not None and not getattr(case.params.get("case"), "direct", True):
        monkeypatch.setattr(file_systems, "DIRECT_TYPES", frozenset())


class Shards(Scene):
    """Two shards, and a write to parts of four inner chunks of the first shard. One of the four is absent before."""

    def __init__(self, folder: Path, case: Case) -> None:
        side = case.grid * SIDE
        old = random_array((2 * side, side), "int32")
        old[:SIDE, SIDE : 2 * SIDE] = -1
        super().__init__(folder, old, [BytesCodec(), ZstdCodec(level=1), Crc32cCodec()], case.location)
        self.options = {"write_strategy": case.strategy, "durability": case.durability}
        self.box = np.s_[1 : SIDE + 2, 2 : SIDE + 2]
        self.new[self.box] = np.arange(1000, 1000 + (SIDE + 1) * SIDE).reshape(SIDE + 1, SIDE)

    def check(self) -> str:
        """Check that every reader sees the old or the new value of each inner chunk."""
        return self.once(self._seen)

    def _seen(self) -> str:
        found = self.view_of_other_readers()
        n = [length // SIDE for length in found.shape]
        same = [(found == due).reshape(n[0], SIDE, n[1], SIDE).all((1, 3)) for due in (self.old, self.new)]
        assert (same[0] | same[1]).all(), np.argwhere(~(same[0] | same[1]))
        assert (found[self.old.shape[0] // 2 :] == self.old[self.old.shape[0] // 2 :]).all()
        assert (self.handle()[...] == found).all()
        return self.which(found)

    def check_no_litter(self) -> None:
        assert sorted(self.bytes) == files_below(self.folder / "a")
        assert [p.name for p in self.folder.iterdir()] == ["a"]


# ---- kills


@each_of(CASES, QUICK)
def test_kill_at_any_call_leaves_old_or_new_chunks(tmp_path: Path, case: Case) -> None:
    check_kill_at_every_call(Shards(tmp_path, case))


@each_of(CUT)
def test_kill_inside_any_write_leaves_old_or_new_chunks(tmp_path: Path, case: Case) -> None:
    check_kill_inside_every_write(Shards(tmp_path, case), (0, 1, 100, 4095, 4096))


# ---- errors


@pytest.mark.filterwarnings("ignore:.*cannot be locked:RuntimeWarning")
@each_with_every_error(CASES, QUICK)
def test_error_at_any_call_raises_or_takes_the_fallback(tmp_path: Path, case: Case, error: int) -> None:
    check_error_at_every_call(Shards(tmp_path, case), error)


@each_of(CASES)
def test_short_write_is_continued(tmp_path: Path, case: Case) -> None:
    """A short write is continued. If it must be a single call, it raises an error and the old shard stays."""

    def limits(call: str) -> tuple[int, ...]:
        if call == "pwrite_once" and case.location == "end" and case.direct:
            return (4096,)
        return (1, 100) if call.startswith(("pwrite", "copy")) else ()

    scene = Shards(tmp_path, case)
    for call, status, told in faults_in_each_call(scene, "short", limits):
        if status and call == "pwrite_once":
            assert b"No space left" in told
            assert scene.check() == "old"
        else:
            assert scene.check() == "new", (call, told)


# ---- system calls


def test_each_case_makes_its_system_calls(tmp_path: Path) -> None:
    """Each way to append occurs among the cases above."""
    for case in CASES:
        folder = tmp_path / str(case)
        folder.mkdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(file_systems, "_known", {})
            if not case.direct:
                patch.setattr(file_systems, "DIRECT_TYPES", frozenset())
            scene = Shards(folder, case)
            with descriptor(scene.shard) as fd:
                direct = file_systems.appends_directly(str(scene.shard), fd)
            calls = [call for call in calls_of(scene) if call not in ("lock", "unlock")]
        if case.strategy == "replace" or (case.durability == "fsync" and not direct and case.grid == LARGE):
            assert "linkat" in calls and "fdatasync" not in calls
            # the bytes are stored before a name refers to them
            assert calls.index("close") < calls.index("linkat")
            continue
        # documents and folders above the shard come last
        assert (calls[-1] == "fsync") == (case.durability == "fsync")
        while calls[-1] == "fsync":
            calls.pop()
        if case.location == "end" and direct:
            barrier = ["fdatasync"] * (case.durability == "fsync") + ["close"]
            assert calls == ["fallocate", "pwrite_once", *barrier]
        elif case.location == "end" and case.durability == "rename" and case.grid == SMALL:
            assert calls == ["pwrite_once", "pwrite", "pwrite", "ftruncate", "close"]
        elif case.location == "start" and case.grid == SMALL:
            barrier = ["fdatasync"] * (case.durability == "fsync") + ["close"]
            assert calls == ["pwrite", *barrier, "pwrite_once", *barrier]
        else:
            assert "linkat" in calls
