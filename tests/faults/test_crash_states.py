# test_crash_states.py - what a kill or a power cut may leave of each operation is old or new
# SPDX-License-Identifier: MIT
"""Some thousand states of each kind; `make crash-states` checks more. docs/testing.md says what the models allow."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from delays import build_library
from faults.crash_model import (
    CREATE,
    LINK,
    MARK,
    MODELS,
    SIZE,
    SYNC,
    UNLINK,
    WRITE,
    Event,
    Record,
    State,
    choices,
)
from helpers import descriptor

from shardcodec.storage import file_systems

PROGRAM = Path(__file__).with_name("crash_states.py")


def enumerate_states(tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    build_library(tmp_path, "crash_record", PROGRAM.parent)  # skips where none can be built
    command = [sys.executable, "-P", str(PROGRAM), *map(str, arguments)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_each_crash_state_is_old_or_new(tmp_path: Path) -> None:
    done = enumerate_states(tmp_path, "--states", 4)
    assert done.returncode == 0, done.stdout + done.stderr
    *_, facts, last = done.stdout.splitlines()
    assert int(re.fullmatch(r"(\d+) crash states", last)[1]) > 13_000  # type: ignore[index]
    with descriptor(tmp_path) as fd:
        if file_systems.appends_directly(str(tmp_path / "shard"), fd):
            assert "12 with direct appends" in facts


@pytest.mark.slow
def test_one_state_can_be_made_again(tmp_path: Path) -> None:
    done = enumerate_states(tmp_path, "--seed", 3, "--only", "append-start-raw-fsync/ext4/5/2")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 crash states"), done.stderr


@pytest.mark.slow
def test_journal_that_an_update_removes_does_not_come_back(tmp_path: Path) -> None:
    """A power cut had left a journal without its marker. The next update in place removed it and made the marker, and a second power
    cut could undo the first of the two: then the old journal counted."""
    done = enumerate_states(tmp_path, "--states", 20, "--only", "in_place-stale-journal")
    assert done.returncode == 0, done.stdout + done.stderr


# ---- the models


def states(model: str, events: list[Event], n: int = 300) -> set[State]:
    """Return states of a folder with the file "a", which has two pages of zeros, after these events."""
    record = Record({0: None, 1: bytes(8192), 2: b""}, {(0, "a"): 1}, {}, events)
    found = choices(record, len(events), model, 0)
    return {
        State(tuple(sorted(state.paths.items())), tuple(sorted(state.contents.items())))  # type: ignore[arg-type]
        for state in islice(found, n)
    }


def contents(model: str, events: list[Event], file: int = 1) -> set[bytes]:
    return {dict(state.contents)[file] for state in states(model, events)}  # type: ignore[call-overload]


def made(folder: int, name: str, file: int | None, kind: int = LINK) -> Event:
    return Event(kind, parts=((folder, name, file),), touched=frozenset({folder, file or 1}))


ONE, TWO = b"\1" * 4096, b"\2" * 4096
POWER_CUTS = MODELS[1:]


@pytest.mark.parametrize("model", POWER_CUTS)
def test_pages_reach_the_disk_in_any_order(model: str) -> None:
    found = contents(model, [Event(WRITE, 1, 0, ONE), Event(WRITE, 1, 4096, TWO)])
    pages = {(content[:4096], content[4096:]) for content in found}
    assert pages >= {(a, b) for a in (bytes(4096), ONE) for b in (bytes(4096), TWO)}
    assert (len(found) > 4) == (model != "btrfs")  # torn between sectors
    for content in found:
        sectors = {content[at : at + 512] for at in range(0, 8192, 512)}
        assert sectors <= {bytes(512), ONE[:512], TWO[:512]}


@pytest.mark.parametrize("model", POWER_CUTS)
def test_synced_bytes_stay(model: str) -> None:
    later = [Event(WRITE, 1, 0, ONE), Event(SYNC, 1), Event(WRITE, 1, 4096, TWO)]
    assert {content[:4096] for content in contents(model, later)} == {ONE}


@pytest.mark.parametrize("model", POWER_CUTS)
def test_size_and_bytes_are_independent_but_of_a_direct_write(model: str) -> None:
    end = [Event(WRITE, 1, 8192, ONE)]
    assert contents(model, end) >= {bytes(8192), bytes(8192) + ONE, bytes(8192 + 4096)}
    direct = [Event(WRITE, 1, 8192, ONE, is_direct=True)]
    assert (contents(model, direct) == {bytes(8192), bytes(8192) + ONE}) == (model != "pessimistic")
    assert {len(one) for one in contents(model, [Event(SIZE, 1, 100)])} == {100, 8192}


@pytest.mark.parametrize("model", POWER_CUTS)
def test_names_are_durable_after_a_sync(model: str) -> None:
    def names(*events: Event) -> set[tuple[str, ...]]:
        return {tuple(path for path, _ in state.paths) for state in states(model, list(events))}  # type: ignore[misc]

    first, second = made(0, "b", 1), made(0, "c", 2)
    assert names(first, second, Event(SYNC, 0)) == {("a", "b", "c")}
    alone = names(first, second)
    assert alone >= {("a",), ("a", "b"), ("a", "b", "c")}
    assert (("a", "c") in alone) == (model == "pessimistic")
    assert names(first, made(0, "b", None, UNLINK), Event(SYNC, 0)) == {("a",)}
    # a sync of the file makes its own names durable, and on ext4 and XFS those before them
    of_file = names(first, second, Event(SYNC, 2))
    expected = {"ext4": {("a", "b", "c")}, "xfs": {("a", "b", "c")}, "btrfs": {("a", "c"), ("a", "b", "c")}}
    assert of_file == expected.get(model, of_file)


def test_kill_leaves_each_prefix_and_cuts_a_write_between_pages() -> None:
    events = [Event(WRITE, 1, 0, ONE + TWO), Event(MARK)]
    record = Record({0: None, 1: bytes(8192)}, {(0, "a"): 1}, {}, events)
    before = [state.contents[1] for state in choices(record, 0, "kill", 0)]
    assert before == [bytes(8192), ONE + bytes(4096)]
    assert [state.contents[1] for state in choices(record, 1, "kill", 0)] == [ONE + TWO]
    assert (record.acknowledged(1), record.acknowledged(2), CREATE) == (0, 1, 1)
