"""A model of how time depends on cores and threads, fitted to the figures of scaling.py.

    python bench/model.py bench/results/scaling.json

T(c, t) = serial + parallel / min(c, t) + wake * (t - 1), in seconds, for t threads on c cores. `serial` is what no further core
shortens (Amdahl's law), `parallel` what c cores share, and `wake` what each further thread costs all others (the coherence of the
Universal Scalability Law). None of the three is negative.
"""

from __future__ import annotations

import itertools
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import program

Json = dict[str, Any]

MOST_CORES = 1024
# A further core is of little use where the cores do less than half the work that as many single ones would do.
USEFUL = 0.5


@dataclass(frozen=True)
class Fit:
    """The three costs in seconds, and the largest relative error of a fitted time."""

    serial: float
    parallel: float
    wake: float
    error: float

    def seconds(self, cores: int, threads: int | None = None) -> float:
        """Return the time that the model predicts; threads: as many as cores."""
        threads = cores if threads is None else threads
        return self.serial + self.parallel / min(cores, threads) + self.wake * (threads - 1)

    def speedup(self, cores: int) -> float:
        return self.seconds(1) / self.seconds(cores)

    def useful_cores(self) -> int:
        """Return the largest number of cores of which each does at least half of what a single one does."""
        return max(n for n in range(1, MOST_CORES + 1) if self.speedup(n) / n >= USEFUL)

    def fastest_cores(self) -> int:
        """Return the number of cores beyond which the model predicts longer times."""
        if self.wake == 0:
            return MOST_CORES
        return max(1, min(MOST_CORES, round(math.sqrt(self.parallel / self.wake))))


def fit(times: dict[tuple[int, int], float]) -> Fit:
    """Return the costs with the smallest relative errors. times: seconds by cores and threads."""
    points = list(times)
    seconds = np.array([times[point] for point in points])
    terms = np.array([[1, 1 / min(cores, threads), threads - 1] for cores, threads in points], dtype=float)
    best: tuple[float, np.ndarray[Any, Any]] | None = None
    for kept in itertools.product((False, True), repeat=3):
        columns = np.flatnonzero(kept)
        if not len(columns):
            continue
        found, *_ = np.linalg.lstsq(terms[:, columns] / seconds[:, None], np.ones(len(seconds)), rcond=None)
        if (found < 0).any():
            continue
        costs = np.zeros(3)
        costs[columns] = found
        residue = float(np.sum((terms @ costs / seconds - 1) ** 2))
        if best is None or residue < best[0]:
            best = residue, costs
    assert best is not None, "the term of the cores alone is always possible"
    costs = best[1]
    return Fit(*map(float, costs), error=float(np.max(np.abs(terms @ costs / seconds - 1))))


def times_of(document: Json, group: str) -> dict[str, dict[tuple[int, int], float]]:
    """Return the shortest times of the rows of groups such as "threads on 2 cores", by name, then by cores and threads."""
    times: dict[str, dict[tuple[int, int], float]] = {}
    for row in document.get("rows", []):
        prefix, _, cores = row["group"].removesuffix(" cores").rpartition(" on ")
        if prefix == group:
            of_row = times.setdefault(row["name"], {})
            of_row |= {
                (int(cores), int(threads)): min(peer["seconds"]) for threads, peer in row["peers"].items()
            }
    return times


# Groups of rows that are fitted, and the name of what is serial in them.
SERIAL = {"threads": "the serial part", "Python threads": "the GIL"}


def fits(document: Json, group: str = "threads") -> dict[str, Fit]:
    """Return the fit of each operation."""
    return {name: fit(times) for name, times in times_of(document, group).items()}


def copy_bandwidth(document: Json) -> float:
    """Return the bytes per second that copies of memory reach on all cores: each byte is read and written."""
    for row in document["rows"]:
        if row["group"] == "memory":
            return max(2 * row["nbytes"] / min(peer["seconds"]) for peer in row["peers"].values())
    raise LookupError("the result has no copies of memory")


def traffic(document: Json, name: str, group: str = "threads") -> float:
    """Return the least bytes per second that one core moves in an operation: each decoded byte is written or read once."""
    times = times_of(document, group)[name]
    (nbytes,) = {
        row["nbytes"]
        for row in document["rows"]
        if row["name"] == name and row["group"].startswith(f"{group} on ")
    }
    copies = 2 if name.endswith("raw") else 1  # an uncompressed byte is read as well
    return float(copies * nbytes / times[1, 1])


@dataclass(frozen=True)
class Limits:
    """The numbers of cores at which an operation stops gaining, and the reason of the smallest."""

    memory: float  # all memory bandwidth is used
    shared: int  # each core does less than half of what a single one does
    reason: str


def limits(document: Json, name: str, group: str = "threads") -> Limits:
    found = fits(document, group)[name]
    memory = copy_bandwidth(document) / traffic(document, name, group)
    shared = found.useful_cores()
    if memory < shared:
        reason = "memory bandwidth"
    elif shared == MOST_CORES:
        reason = "nothing below 1,024 cores"
    else:
        reason = "wake-ups of threads" if found.wake * (shared - 1) > found.serial else SERIAL[group]
    return Limits(memory, shared, reason)


def exponent(peers: dict[str, Json]) -> float:
    """Return how time grows with a number: the exponent of a power law through the two largest."""
    (n, first), (m, second) = sorted((int(number), min(peer["seconds"])) for number, peer in peers.items())[
        -2:
    ]
    return math.log(second / first) / math.log(m / n)


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(
            "usage: bench/model.py RESULT, a file that bench/scaling.py has written with --json",
            file=sys.stderr,
        )
        return 2
    document = program.load(Path(arguments[0]))
    for group in SERIAL:
        for name, found in fits(document, group).items():
            print(
                f"{group}: {name}: serial {1e3 * found.serial:.3f} ms, parallel {1e3 * found.parallel:.3f} ms,"
                f" a further thread {1e6 * found.wake:.1f} us, error {100 * found.error:.0f} %; {limits(document, name, group)}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
