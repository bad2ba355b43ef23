#!/usr/bin/env python3
# crash_states.py - enumerate what a kill or a power cut may leave of each operation, and check all of it
# SPDX-License-Identifier: MIT
"""Records the operations of crash_operations.py, and checks the states that the models of crash_model.py allow.

    tests/faults/crash_states.py --seconds 60 --seed 1
    tests/faults/crash_states.py --seed 1 --only append-end-raw-fsync/ext4/7/31

The last line is the number of states. Each problem comes with the command that makes its state again.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from delays import build_library  # noqa: E402
from faults.crash_checks import Checker, Disk, expected_of, layouts_of  # noqa: E402
from faults.crash_model import (  # noqa: E402
    MODELS,
    Record,
    choices,
    final_state,
    read_record,
    snapshot,
)
from faults.crash_operations import OPERATIONS, SLOTS, Operation, write  # noqa: E402
from faults.scenes import as_in_a_new_process  # noqa: E402
from helpers import bytes_of_files, descriptor  # noqa: E402

import shardcodec  # noqa: E402
from shardcodec.storage import file_systems  # noqa: E402

MEMORY = "/dev/shm"
STATES = 8  # so many after each event, then those of the next operation
MAX_PROBLEMS = 10  # of one operation under one model


class Problem(NamedTuple):
    place: str  # operation/model/number of events/number of the state
    told: str


class Library:
    """The preloaded library (crash_record.c)."""

    def __init__(self) -> None:
        self._c = ctypes.CDLL(None)

    @contextmanager
    def record(self, log: Path, kept: Path) -> Iterator[None]:
        with open(log, "ab", buffering=0) as file, descriptor(kept) as folder:
            self._c.crash_begin(file.fileno(), folder)
            try:
                yield
            finally:
                self._c.crash_begin(-1, -1)

    def mark(self) -> None:
        self._c.crash_mark(0)

    def hold_syncs(self) -> None:
        self._c.crash_hold_syncs(1)


@contextmanager
def as_chosen(operation: Operation, folder: Path) -> Iterator[None]:
    """Set the options of an operation, and whether appends are direct; appends are tested on every local file system."""
    saved = file_systems.APPEND_TYPES, file_systems.DIRECT_TYPES
    with descriptor(folder) as fd:
        if file_systems.is_local(fd):
            file_systems.APPEND_TYPES |= {file_systems.name_of(fd)}
    if not operation.direct:
        file_systems.DIRECT_TYPES = frozenset()
    file_systems._known.clear()
    try:
        with shardcodec.options(threads=1, **operation.options):
            yield
    finally:
        file_systems.APPEND_TYPES, file_systems.DIRECT_TYPES = saved
        file_systems._known.clear()


def check_complete(record: Record, folder: Path) -> None:
    """A call that was not recorded, or is modelled wrongly, would make the states wrong without a sign."""
    state = final_state(record)
    replayed = {path: state.contents[number] for path, number in state.paths.items()}
    real = bytes_of_files(folder)
    different = sorted(path for path in {*real, *replayed} if real.get(path) != replayed.get(path))
    assert not different, f"the record does not explain {different}"


class Recorded:
    """One operation, recorded once, with the checker of its states."""

    def __init__(self, operation: Operation, folder: Path, library: Library) -> None:
        self.operation = operation
        files, log, kept = folder / "files", folder / "log", folder / "kept"
        files.mkdir(parents=True)
        kept.mkdir()
        with as_chosen(operation, files):
            operation.prepare(files)
            start = snapshot(files)
            layouts = layouts_of(files)
            as_in_a_new_process()
            steps = [expected_of(files, layouts)]
            for step in operation.steps:
                with library.record(log, kept):
                    step(files)
                    library.mark()
                layouts = layouts_of(files)
                steps.append(expected_of(files, layouts))
        self.record = read_record(start, log.read_bytes())
        check_complete(self.record, files)
        assert self.record.acknowledged(len(self.record.events)) == len(operation.steps)
        assert len(self.record.events) > 2 * len(operation.steps), f"{operation.name} does nothing"
        self.checker = Checker(
            Disk(folder, self.record, self._remaining(folder)),
            layouts,
            steps,
            self._is_loose,
            operation.look,
            self._write_again,
        )
        self.is_direct = any(event.is_direct and event.file in start.contents for event in self.record.events)
        self.n_states = 0
        self._n_problems: dict[str, int] = {}

    def _remaining(self, folder: Path) -> dict[int, Path]:
        """Return the files of the record. The inode of a removed folder, or of a file that never had a name, may be used again."""
        by_inode = {path.stat().st_ino: path for path in folder.rglob("*") if path.is_file()}
        latest = {inode: number for number, inode in self.record.inodes.items()}
        return {number: by_inode[inode] for inode, number in latest.items() if inode in by_inode}

    def _is_loose(self, path: str) -> bool:
        return path.endswith(self.operation.loose)

    def _write_again(self, folder: Path) -> None:
        if (folder / "a/zarr.json").exists():
            with as_chosen(self.operation, folder):
                write(folder, 99, SLOTS)

    def places(self) -> Iterator[tuple[str, int]]:
        """Yield the models with numbers of events. A mark or a sync that follows another event adds no state of a kill."""
        for model in self.operation.models:
            for n in range(len(self.record.events) + 1):
                yield model, n

    def check(self, model: str, n_events: int, first: int, n_states: int, seed: int) -> list[Problem]:
        """Check states of a model after a number of events, from number `first` on."""
        problems = []
        states = choices(self.record, n_events, model, seed, first)
        for number, state in enumerate(islice(states, n_states), first):
            if self._n_problems.get(model, 0) >= MAX_PROBLEMS:
                break
            self.n_states += 1
            told = self.checker.problem(state, self.record.acknowledged(n_events))
            if told:
                self._n_problems[model] = self._n_problems.get(model, 0) + 1
                problems.append(Problem(f"{self.operation.name}/{model}/{n_events}/{number}", told))
        return problems


def report(problems: list[Problem], seed: int) -> None:
    for place, told in problems:
        print(f"{place}: {told}\n    tests/faults/crash_states.py --seed {seed} --only {place}", flush=True)


def record_all(disk: Path, quick: Path, name: str | None, library: Library) -> list[Recorded]:
    """Record the operations, or the one of this name. Direct appends need a file system on a disk."""
    recorded = []
    for operation in OPERATIONS:
        if name in (None, operation.name):
            folder = (disk if operation.direct else quick) / operation.name
            recorded.append(Recorded(operation, folder, library))
    if not recorded:
        raise SystemExit(f"no operation {name}; there are: {' '.join(one.name for one in OPERATIONS)}")
    return recorded


def check_round(recorded: list[Recorded], model: str | None, first: int, n_states: int, seed: int) -> int:
    """Check some states after each event of each operation. Return the number of problems, which are printed."""
    n_problems = 0
    for one in recorded:
        for each, n_events in one.places():
            if model in (None, each):
                problems = one.check(each, n_events, first, n_states, seed)
                report(problems, seed)
                n_problems += len(problems)
    return n_problems


def run(disk: Path, quick: Path, given: argparse.Namespace) -> int:
    """Record and check; the states of all operations in turn, until the time has passed."""
    library = Library()
    begun = time.monotonic()
    name, model, n_events, number = (given.only.split("/") + [None] * 4)[:4] if given.only else [None] * 4
    recorded = record_all(disk, quick, name, library)
    library.hold_syncs()
    n_problems = n_rounds = 0
    if number is not None:
        problems = recorded[0].check(model, int(n_events), int(number), 1, given.seed)
        report(problems, given.seed)
        n_problems = len(problems)
    elif given.states:
        n_problems = check_round(recorded, model, 0, given.states, given.seed)
    while not given.states and number is None and (not n_rounds or time.monotonic() - begun < given.seconds):
        n_problems += check_round(recorded, model, n_rounds * STATES, STATES, given.seed)
        n_rounds += 1
    different = sum(one.checker.n_different for one in recorded)
    n_direct = sum(one.is_direct for one in recorded)
    print(
        f"{len(recorded)} operations, {n_direct} with direct appends; {different} different states, {n_problems} problems; "
        f"seed {given.seed}, {time.monotonic() - begun:.0f} s"
    )
    print(f"{sum(one.n_states for one in recorded)} crash states")
    return int(n_problems > 0)


def is_in_memory(folder: str) -> bool:
    """Return True for a folder of a tmpfs. Below a chroot it may be another file system, where nothing is updated in place."""
    if not os.access(folder, os.W_OK):
        return False
    with descriptor(Path(folder)) as fd:
        return file_systems.name_of(fd) == "tmpfs"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--states", type=int, help="so many after each event, whatever the time")
    parser.add_argument("--only", help="OPERATION[/MODEL[/EVENTS/STATE]]; models: " + ", ".join(MODELS))
    parser.add_argument(
        "--folder",
        help="where the files are; default: in memory, but for direct appends, which need ext4 or XFS",
    )
    given = parser.parse_args()
    memory = given.folder or (MEMORY if is_in_memory(MEMORY) else None)
    with (
        tempfile.TemporaryDirectory(dir=given.folder, prefix="crash-states-") as disk,
        tempfile.TemporaryDirectory(dir=memory, prefix="crash-states-") as quick,
    ):
        if "crash_record.so" in os.environ.get("LD_PRELOAD", ""):
            return run(Path(disk), Path(quick), given)
        library = build_library(Path(disk), "crash_record", Path(__file__).parent)
        command = [sys.executable, "-P", __file__, *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, "LD_PRELOAD": library}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
