#!/usr/bin/env python3
# schedule_run.py - run actors on one shard in many schedules of their calls on files, and check each of them
# SPDX-License-Identifier: MIT
"""Runs pairs of the actors of schedule_actors.py in all schedules up to some preemptions and a kill, and groups of them in random ones.

    tests/faults/schedule_run.py --seconds 60 --seed 1
    tests/faults/schedule_run.py --only stored/raw-end/in_place+reader --points 2
    tests/faults/schedule_run.py --only stored/raw-end/in_place+reader --choices 0:17,1:*,0:k

The last line is the number of schedules. Each problem comes with the command that makes its schedule again.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from delays import build_library  # noqa: E402
from faults.crash_states import MEMORY, is_in_memory  # noqa: E402
from faults.schedule_choices import (  # noqa: E402
    Bounded,
    Case,
    Given,
    Policy,
    Swizzled,
    all_pairs,
    next_points,
    random_group,
)
from faults.schedule_processes import Stage  # noqa: E402

LIBRARY = "schedule_stops"
MAX_PROBLEMS = 20
BATCH = 30  # random schedules between two pairs that are enumerated
SAMPLES = 60  # schedules of a pair with two preemptions, when there is no time for all


class Part(NamedTuple):
    """One of several programs that share the work."""

    number: int
    n_parts: int


class Program:
    """Runs schedules until the time, or the number of schedules, is over."""

    def __init__(self, stage: Stage, given: argparse.Namespace) -> None:
        self._stage, self._given = stage, given
        self.n_schedules = self.n_problems = 0
        self._begun = time.monotonic()

    @property
    def is_over(self) -> bool:
        if self.n_problems >= MAX_PROBLEMS:
            return True
        if self._given.schedules:
            return bool(self.n_schedules >= self._given.schedules)
        return bool(time.monotonic() - self._begun >= self._given.seconds)

    def run(self, case: Case, policy: Policy) -> bool:
        """Run one schedule and print its problem; return False if there is one."""
        self.n_schedules += 1
        outcome = self._stage.run(case, policy)
        if outcome.problem:
            self.n_problems += 1
            again = f"tests/faults/schedule_run.py --only {case} --choices {outcome.choices}"
            print(f"{case}: {outcome.problem}\n    {again}", flush=True)
        return not outcome.problem

    def enumerate(self, case: Case, n_points: int, *, kills: bool) -> None:
        """Run a case in all schedules with so many preemptions, beginning with each actor."""
        for first in range(len(case.kinds)):
            points: list[int] | None = [1] * n_points
            while points and not self.is_over:
                policy = Bounded(first, points, kills=kills)
                self.run(case, policy)
                points = next_points(points, n_points, has_effect=policy.has_effect)

    def sample(self, case: Case, n_points: int, chance: random.Random) -> None:
        """Run a case in some schedules with so many preemptions, half of them with a kill at the last one."""
        for _ in range(SAMPLES):
            if self.is_over:
                return
            points = [chance.randrange(1, 70) for _ in range(n_points)]
            first, kills = chance.randrange(len(case.kinds)), chance.random() < 0.5
            self.run(case, Bounded(first, points, kills=kills))

    def walk(self, seed: str) -> None:
        """Run random groups in random schedules."""
        for n in range(BATCH):
            if self.is_over:
                return
            name = f"{seed} {n}"
            case = random_group(random.Random(name))
            self.run(case, Swizzled(name, len(case.kinds)))

    def run_all(self, part: Part) -> None:
        """Enumerate the pairs in an order from the seed, with random groups in between."""
        for number, case in self._endless_pairs():
            if self.is_over:
                return
            if number % part.n_parts == part.number:
                seed = f"{self._given.seed} {number}"
                chance = random.Random(seed)
                self.enumerate(case, 1, kills=chance.random() < 0.3)
                self.walk(seed)
                self.sample(case, 2, chance)

    def _endless_pairs(self) -> Iterator[tuple[int, Case]]:
        number = 0
        chance = random.Random(f"pairs {self._given.seed}")
        while True:
            pairs = all_pairs()
            chance.shuffle(pairs)
            for case in pairs:
                yield number, case
                number += 1

    def run_one(self) -> None:
        """Run the schedules of one case that the user has named."""
        case = Case.named(self._given.only)
        if self._given.choices is not None:
            self.run(case, Given(self._given.choices))
            return
        for n_points in range(self._given.points + 1):
            for kills in (False, True):
                if n_points:
                    self.enumerate(case, n_points, kills=kills)
                elif not kills:
                    self.run(case, Bounded(0, []))
        chance = random.Random(self._given.seed)
        while not self.is_over:
            self.run(case, Swizzled(str(chance.random()), len(case.kinds)))


def run_part(folder: Path, given: argparse.Namespace) -> int:
    """Run the schedules of this program."""
    part = Part(*map(int, given.part.split("/")))
    if hasattr(os, "sched_setaffinity"):  # only one process works at a time
        cpus = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpus[part.number % len(cpus)]})
    stage = Stage(folder)
    program = Program(stage, given)
    try:
        if given.only:
            program.run_one()
        else:
            program.run_all(part)
    finally:
        stage.close()
    print(f"part {given.part}: {program.n_schedules} schedules, {program.n_problems} problems")
    return int(program.n_problems > 0)


def run_parts(folder: Path, given: argparse.Namespace) -> int:
    """Run one program on each processor; print the number of all schedules."""
    n_parts = 1 if given.only or given.schedules else len(os.sched_getaffinity(0))
    begun = time.monotonic()
    environment = {**os.environ, "LD_PRELOAD": build_library(folder, LIBRARY, Path(__file__).parent)}
    programs = []
    for number in range(n_parts):
        command = [sys.executable, "-P", __file__, *sys.argv[1:], "--part", f"{number}/{n_parts}"]
        programs.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    status = n_schedules = 0
    for program in programs:
        told, _ = program.communicate()
        print(told, end="")
        found = re.findall(r"^part .*: (\d+) schedules", told, re.MULTILINE)
        status |= program.returncode or int(not found)
        n_schedules += sum(map(int, found))
    seconds = time.monotonic() - begun
    print(f"seed {given.seed}, {seconds:.0f} s, {n_schedules / seconds:.0f} schedules each second")
    print(f"{n_schedules} schedules")
    return int(bool(status))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--schedules", type=int, help="so many, whatever the time")
    parser.add_argument("--only", help="START/LAYOUT/ACTOR+ACTOR, such as stored/raw-end/in_place+reader")
    parser.add_argument(
        "--points", type=int, default=1, help="of --only: preemptions up to which all schedules are run"
    )
    parser.add_argument("--choices", help="of --only: one schedule, as a problem names it")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    given = parser.parse_args()
    memory = MEMORY if is_in_memory(MEMORY) else None
    with tempfile.TemporaryDirectory(dir=memory, prefix="schedules-") as name:
        folder = Path(name)
        return run_part(folder, given) if given.part else run_parts(folder, given)


if __name__ == "__main__":
    sys.exit(main())
