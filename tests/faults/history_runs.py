#!/usr/bin/env python3
# history_runs.py - record histories of all kinds of actors on all kinds of storage, and check them
# SPDX-License-Identifier: MIT
"""Runs the actors of history_actors.py in each place of `PLACES`, kills them, and checks what they have recorded.

    tests/faults/history_runs.py --seconds 60 --seed 1
    tests/faults/history_runs.py --seconds 60 --seed 1 --only local-raw s3

The seconds are those of all places together. The last line is the number of histories and operations. If a history cannot be
true, its records are kept, and the command is printed. The seed decides what each actor does; in which order the machine runs them
it does not decide.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from faults import history_actors as actors  # noqa: E402
from faults.histories import READ, WRITE, Recorder, Result, check, check_records, load  # noqa: E402
from faults.history_actors import Job, Site  # noqa: E402
from faults.history_places import PLACES, READERS, Place  # noqa: E402
from mounts.network_kinds import Missing  # noqa: E402
from workers import forked  # noqa: E402

import shardcodec  # noqa: E402
from shardcodec import native  # noqa: E402

KEPT = TESTS.parent / "build" / "histories"
MAX_TOLD = 10  # violations that are printed
START_SECONDS = 30.0
STOP_SECONDS = 60.0  # within which each actor must end

# ---- one run


class Cast:
    """The actors of a run; each that has died is followed by another one for the same work."""

    def __init__(self, place: Place, site: Site, records: Path, seed: int) -> None:
        self._place, self._site, self._records, self._seed = place, site, records, seed
        self._chance = random.Random(seed)
        self._recorder = Recorder(records, 0)
        self._alive: dict[int, tuple[int, Callable[[Job], None]]] = {}
        self._n = self.n_deaths = 0

    def fill(self) -> None:
        """Start an actor for each work that has none."""
        waiting = list(self._place.work)
        for _, work in self._alive.values():
            waiting.remove(work)
        for work in waiting:
            self._n += 1
            has_faults = self._site.bucket is None and work not in READERS
            pid = actors.start(work, self._site, self._records, self._n, self._seed, has_faults=has_faults)
            self._alive[pid] = self._n, work

    def collect(self) -> None:
        """Note which actors are gone."""
        for pid in list(self._alive):
            if os.waitpid(pid, os.WNOHANG)[0]:
                self._recorder.death(self._alive.pop(pid)[0])
                self.n_deaths += 1

    def disturb(self) -> None:
        """Sometimes kill an actor, at a moment that may lie between two calls, or make a connection fail."""
        if self._place.has_signals and self._alive and self._chance.random() < 0.01:
            os.kill(self._chance.choice(list(self._alive)), signal.SIGKILL)
        if self._site.disturb is not None and self._chance.random() < 0.3:
            self._site.disturb(self._chance)

    def end(self) -> None:
        """Kill all, or where signals may not kill, let all come to their end."""
        n_deaths = self.n_deaths
        (self._records / "stop").touch()
        if self._place.has_signals:
            for pid in self._alive:
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + STOP_SECONDS
        while self._alive and time.monotonic() < end:
            self.collect()
            time.sleep(0.01)
        self.n_deaths = n_deaths
        late = [(number, work.__name__) for number, work in self._alive.values()]
        for pid in self._alive:
            os.kill(pid, signal.SIGKILL)
        if late:
            raise SystemExit(f"actors did not end within {STOP_SECONDS:g} s: {late}")

    def look(self) -> list[str]:
        """Read what is left, when nothing works any more, by shardcodec and, after a roll back, by stock zarr."""
        number = self._n + 1
        told = self._records / "last"

        def read() -> None:
            recorder = Recorder(self._records, number)
            site, chunks = self._site, list(range(self._site.n_chunks))
            store = site.store(number, direct=True)
            found = []
            for how in (shardcodec.open_array, actors.settled_view):
                begin = time.monotonic_ns()
                found.append(np.asarray(how(store)[...]).reshape(len(chunks), site.chunk))
                recorder.read(begin, chunks, found[-1], is_last=True)
            told.write_text(
                "" if (found[0] == found[1]).all() else "after the end, zarr reads other elements"
            )

        in_child(read)
        return [text] if (text := told.read_text()) else []


def in_child(work: Callable[[], None]) -> None:
    """Run in a process of its own, because threads of this one would not survive the forks."""

    def tell() -> None:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            raise

    status = os.waitpid(forked(tell), 0)[1]
    if status:
        raise SystemExit(f"a child has failed: status {status}")


def is_idle(records: Path, end: float) -> bool:
    """Return True if nothing has been written or read by the end, as on a very busy machine, and there is hope."""
    kinds = load(records)["kind"]
    return time.monotonic() < end + START_SECONDS and not (WRITE in kinds and READ in kinds)


def run(place: Place, site: Site, records: Path, seconds: float, seed: int) -> tuple[Result, str]:
    """Let the actors work for a time, and check their records. Return the result and a summary."""
    in_child(lambda: actors.make_array(site))
    cast = Cast(place, site, records, seed)
    end = time.monotonic() + seconds
    try:
        while (time.monotonic() < end or is_idle(records, end)) and not list(records.glob("*.error")):
            cast.fill()
            time.sleep(0.01)
            cast.disturb()
            cast.collect()
    finally:
        cast.end()
    time.sleep(place.settle_seconds)
    wrong = cast.look()
    result = check(records, site.n_chunks, place.rules)
    errors = [path.read_text() for path in records.glob("*.error")]
    result.wrong[:0] = wrong + ([] if result.n_writes else ["nothing was written"])
    result.wrong.extend(errors)
    return result, f"{result}, {cast.n_deaths} actors killed"


def n_hits(records: Path) -> int:
    """Return how many inner chunks the actors have found in their caches."""
    return sum(int(path.read_text() or 0) for path in records.glob("*.hits"))


def run_place(name: str, parent: Path, seconds: float, seed: int, cache: str) -> Result:
    """Run in one place, print what it gave, and keep the records if they are wrong."""
    place = PLACES[name]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=parent, prefix=name)))
        records = folder / "records"
        records.mkdir()
        (folder / "site").mkdir()
        site = replace(
            stack.enter_context(place.open_site(folder / "site")), cache=0 if cache == "0" else cache
        )
        result, summary = run(place, site, records, seconds, seed)
        print(f"{name}: {summary}" + f", {n_hits(records)} hits" * (cache != "0"), flush=True)
        if result.wrong:
            kept = KEPT / f"{name}-{seed}"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(records, kept)
            for told in result.wrong[:MAX_TOLD]:
                print(f"  {told}")
            print(
                f"  the records: {kept}; the command:\n"
                f"    tests/faults/history_runs.py --seed {seed} --seconds {seconds:g} --cache {cache} --only {name}\n"
                f"  to check the records again: tests/faults/history_runs.py --only {name} --check {kept}",
                flush=True,
            )
    return result


def check_again(name: str, folder: Path) -> int:
    """Check records that were kept."""
    rows = load(folder)
    result = check_records(rows, int(rows["chunk"].max()) + 1, PLACES[name].rules)
    print(*result.wrong, result, sep="\n")
    return int(bool(result.wrong))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0, help="of all places together")
    parser.add_argument("--only", nargs="+", choices=PLACES, metavar="PLACE", help="of " + ", ".join(PLACES))
    parser.add_argument(
        "--quick", action="store_true", help="only the places that the tests of each commit run"
    )
    parser.add_argument(
        "--cache",
        default="0",
        metavar="BYTES",
        help="of inner chunks, as the option of this name; default: none",
    )
    parser.add_argument(
        "--folder", type=Path, help="where the local arrays are; default: the folder for temporary files"
    )
    parser.add_argument(
        "--check", type=Path, metavar="FOLDER", help="check records that were kept, of one place"
    )
    given = parser.parse_args()
    names = given.only or [name for name, place in PLACES.items() if place.in_ci or not given.quick]
    if given.check:
        return check_again(names[0], given.check)
    native.load()
    results = []
    for name in names:
        try:
            results.append(run_place(name, given.folder, given.seconds / len(names), given.seed, given.cache))
        except Missing as reason:
            print(f"{name}: skipped: {reason}", flush=True)
    n_wrong = sum(len(one.wrong) for one in results)
    print(f"{n_wrong} violations; seed {given.seed}")
    print(
        f"{sum(one.n_histories for one in results)} histories, {sum(one.n_operations for one in results)} operations"
    )
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
