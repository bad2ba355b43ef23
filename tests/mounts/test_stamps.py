# test_stamps.py - the checks of network.py find the faults that they look for
# SPDX-License-Identifier: MIT

from __future__ import annotations

import errno
import multiprocessing
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from mounts import fuse, network, network_kills
from mounts.network_kinds import Mounts
from mounts.network_parts import Row
from mounts.stamps import FILL, N_CHUNKS, NO_SHARD, OLDER, SHAPE, Log, Reader, cell, stamped


class Memory:
    """A written array; each assignment of a log goes to it."""

    def __init__(self) -> None:
        self.values = stamped(0)
        self.log = Log()

    def __setitem__(self, selection: Any, value: Any) -> None:
        self.values[selection] = value

    def write(self, number: int) -> None:
        self.log.write(self, number)

    def reader(self, *, may_step_back: bool = False, is_coherent: bool = True) -> Reader:
        return Reader(self.log, may_step_back=may_step_back, is_coherent=is_coherent)


@pytest.fixture
def memory() -> Memory:
    memory = Memory()
    for number in (3, 3, 7):
        memory.write(number)
    return memory


def faults(memory: Memory, number: int, value: int) -> Counter[str]:
    """Return what a reader and the check after a kill say of one chunk with another value; they must agree."""
    memory.values[cell(number)] = value
    found = memory.reader().look(lambda: memory.values)
    assert found == memory.log.old_or_new(memory.values)
    return found


def test_right_values_have_no_fault(memory: Memory) -> None:
    assert not memory.reader().look(lambda: memory.values)
    assert not memory.log.old_or_new(memory.values)


def test_a_written_chunk_that_reads_as_fill_is_found(memory: Memory) -> None:
    assert faults(memory, 9, FILL) == {"fill": 1}


def test_a_shard_that_is_taken_for_missing_is_found(memory: Memory) -> None:
    memory.values[...] = FILL
    assert memory.reader().look(lambda: memory.values) == {NO_SHARD: N_CHUNKS}
    assert memory.log.old_or_new(memory.values) == {NO_SHARD: N_CHUNKS}


def test_the_value_of_another_chunk_is_found(memory: Memory) -> None:
    assert faults(memory, 9, 10) == {"foreign": 1}


def test_a_torn_chunk_is_found(memory: Memory) -> None:
    memory.values[cell(9)][2, 2] += N_CHUNKS
    assert memory.reader().look(lambda: memory.values) == {"torn": 1}
    assert memory.log.old_or_new(memory.values) == {"torn": 1}


def test_an_older_value_is_found(memory: Memory) -> None:
    assert faults(memory, 3, N_CHUNKS + 3) == {OLDER: 1}


def test_a_value_that_no_process_has_written_is_found(memory: Memory) -> None:
    memory.values[cell(3)] = 3 * N_CHUNKS + 3
    assert memory.reader().look(lambda: memory.values) == {"never written": 1}
    assert memory.log.old_or_new(memory.values) == {"neither old nor new": 1}


def test_a_reader_does_not_go_back(memory: Memory) -> None:
    """Beside updates in place it may, by one turn; a client with caches may be late, but does not go back either."""
    before = memory.values.copy()
    memory.write(3)
    after = memory.values.copy()
    for may_step_back in (False, True):
        reader = memory.reader(may_step_back=may_step_back, is_coherent=False)
        assert not reader.look(lambda: before)
        assert not reader.look(lambda: after)
        assert bool(reader.look(lambda: before)) is not may_step_back
        assert reader.look(lambda: stamped(0))["older than an earlier read"]


def test_a_write_that_was_killed_may_be_old_or_new_once(memory: Memory) -> None:
    class Killed:
        def __setitem__(self, selection: Any, value: Any) -> None:
            raise InterruptedError

    old = memory.values.copy()
    with pytest.raises(InterruptedError):
        memory.log.write(Killed(), 3)
    new = memory.values.copy()
    new[cell(3)] = 3 * N_CHUNKS + 3
    assert not memory.log.old_or_new(old)
    assert not memory.log.old_or_new(new)
    memory.log.settle(old)
    assert not memory.log.old_or_new(old)
    assert memory.log.old_or_new(new) == {"neither old nor new": 1}


def test_stamps_say_their_chunk() -> None:
    values = stamped(2)
    assert values.shape == SHAPE
    assert [int(np.unique(values[cell(i)]).item()) for i in range(N_CHUNKS)] == [
        2 * N_CHUNKS + i for i in range(N_CHUNKS)
    ]


# ---- the kills


@pytest.fixture
def kills_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each experiment kills once, after all processes that it has started have ended; the last state is right."""

    def join_all(_: float) -> None:
        for process in multiprocessing.active_children():
            process.join(60)

    monkeypatch.setattr(network_kills, "N_KILLS", 1)
    monkeypatch.setattr(network_kills, "N_CLIENT_KILLS", 1)
    monkeypatch.setattr(network_kills, "time", SimpleNamespace(sleep=join_all, monotonic=time.monotonic))
    monkeypatch.setattr(network_kills, "last_state_faults", lambda *_: Counter())


@pytest.fixture
def writes_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no lock")

    monkeypatch.setattr(Log, "write", fail)


@pytest.mark.usefixtures("kills_once", "writes_fail")
def test_a_writer_that_ends_before_the_kill_breaks_a_promise(tmp_path: Path) -> None:
    row = Row("test")
    network_kills.kill_writers(row, Mounts(tmp_path, tmp_path), "replace")
    assert row.broken == ["replace: the writer still wrote when it was killed: exit code 0"]


@pytest.mark.usefixtures("kills_once")
def test_no_kill_at_all_breaks_a_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_kills, "N_KILLS", 0)
    row = Row("test")
    network_kills.kill_writers(row, Mounts(tmp_path, tmp_path), "replace")
    assert row.broken == ["replace: old or new after a kill: 0 of 0"]


@pytest.mark.usefixtures("kills_once", "writes_fail")
def test_an_error_before_the_client_is_killed_breaks_a_promise(tmp_path: Path) -> None:
    client: Any = SimpleNamespace(kill=lambda: None, mount_again=lambda: None)
    row = Row("test")
    network_kills.kill_client(row, Mounts(tmp_path, tmp_path, client), "replace", reaches=False)
    (broken,) = row.broken
    assert "failed before the kill: OSError: no lock" in broken


def test_a_client_that_hides_replaced_files_may_show_no_shard_and_nothing_else() -> None:
    for hides in (False, True):
        mounts = Mounts(Path("one"), Path("two"), hides_replaced=hides)
        assert mounts.permits(set())
        assert mounts.permits({NO_SHARD}) is hides
        assert not mounts.permits({NO_SHARD, "torn"}) and not mounts.permits({"fill"})


@pytest.mark.slow
def test_a_client_that_takes_the_shard_for_missing_breaks_a_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every inner chunk reads as the fill value then, which is whole. Before the fix, only torn chunks were found, so it passed."""
    with (
        fuse.mount(tmp_path / "backing", tmp_path / "one") as one,
        fuse.mount(tmp_path / "backing", tmp_path / "two") as two,
    ):
        # 0: the folder of the shard, in which it is looked for
        two.fail("lookup", errno.ENOENT, name="0")
        # it writes, which takes until the time for the lock is over
        monkeypatch.setattr(network, "last_state_faults", lambda *_: Counter())
        row = Row("test")
        network.read_beside_writers(row, Mounts(one.path, two.path), "replace", 0.0, reaches=False)
        assert any(NO_SHARD in promise for promise in row.broken), row
