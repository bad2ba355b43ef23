"""Compare two results of run.py: which rows became slower or faster, and by how much.

    python bench/compare.py bench/results/old.json new.json
    python bench/compare.py old.json new.json --peers shardcodec --slower 1.1     status 1 if a row takes 1.1 times as long

A ratio is the median of the second result divided by that of the first. A row counts as changed if the two ranges of times do not
overlap, and the ratio is beyond the limit. Peers that did not change between the results show how much the machine did.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import program
import report

# Below it two medians are a tie (README.md, "How far to trust it").
TIE = 1.05
Json = dict[str, Any]


@dataclass(frozen=True)
class Pair:
    """The times of one peer in one row of two results."""

    row: str
    peer: str
    before: list[float]
    after: list[float]

    @property
    def ratio(self) -> float:
        return median(self.after) / median(self.before)

    @property
    def is_apart(self) -> bool:
        """True if no time of one result lies among those of the other."""
        return min(self.after) > max(self.before) or max(self.after) < min(self.before)

    def verdict(self, limit: float) -> str:
        if not self.is_apart or 1 / limit < self.ratio < limit:
            return ""
        return "slower" if self.ratio > 1 else "faster"


def pairs(before: Json, after: Json, names: list[str] | None = None) -> Iterator[Pair]:
    """Yield the rows and peers that both results have times of."""
    rows = {(row["group"], row["name"]): row["peers"] for row in before.get("rows", ())}
    for row in after.get("rows", ()):
        old = rows.get((row["group"], row["name"]), {})
        for name, peer in row["peers"].items():
            times = old.get(name, {}).get("seconds")
            if times and peer["seconds"] and (names is None or name in names):
                yield Pair(f"{row['group']}: {row['name']}", name, times, peer["seconds"])


def unlike(before: Json, after: Json) -> list[str]:
    """Return in what the machines, versions and settings differ, so that the reader knows what else a ratio may come from."""
    told = []
    for name in ("cpu", "cpus_used", "memory_gib", "kernel", "file_system", "huge_pages"):
        old, new = (document["machine"].get(name) for document in (before, after))
        if old != new:
            told.append(f"{name}: {old}, then {new}")
    versions = [document["machine"].get("versions", {}) for document in (before, after)]
    told += [
        f"{name}: {versions[0].get(name)}, then {versions[1].get(name)}"
        for name in sorted(versions[0].keys() | versions[1].keys())
        if versions[0].get(name) != versions[1].get(name)
    ]
    return told + [
        f"{name}: {before.get(name)}, then {after.get(name)}"
        for name in ("threads", "shrink", "rounds")
        if before.get(name) != after.get(name)
    ]


def means(compared: list[Pair]) -> dict[str, float]:
    """Return the geometric mean of the ratios of each peer."""
    logarithms: dict[str, list[float]] = {}
    for pair in compared:
        logarithms.setdefault(pair.peer, []).append(math.log(pair.ratio))
    return {name: math.exp(sum(values) / len(values)) for name, values in logarithms.items()}


def render(before: Json, after: Json, compared: list[Pair], limit: float) -> str:
    body = [
        [
            pair.row,
            pair.peer,
            report.number(1e3 * median(pair.before)),
            report.number(1e3 * median(pair.after)),
            f"{pair.ratio:.2f}",
            pair.verdict(limit),
        ]
        for pair in compared
    ]
    lines = [f"differs: {line}\n" for line in unlike(before, after)]
    lines.append(report.table(["row", "peer", "ms before", "ms after", "ratio", ""], body))
    lines += [f"{name}: {mean:.3f} in the mean\n" for name, mean in means(compared).items()]
    return "".join(lines)


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="bench/compare.py"
    )
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--peers", default=None, help="names with commas between them")
    parser.add_argument("--slower", type=float, default=None, help="end with status 1 beyond this ratio")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    before, after = (program.load(path) for path in (options.before, options.after))
    shrinks = [document.get("shrink", 1) for document in (before, after)]
    if shrinks[0] != shrinks[1]:
        sys.stderr.write(
            f"the two results have arrays of other sizes: --shrink {shrinks[0]}, then {shrinks[1]}\n"
        )
        return 2
    known = {name for row in after.get("rows", ()) for name in row["peers"]}
    wanted = None if options.peers is None else program.names_of(options.peers, known)
    compared = list(pairs(before, after, wanted))
    if not compared:
        sys.stderr.write("the two results have no row of a peer in common\n")
        return 2
    limit = options.slower or TIE
    sys.stdout.write(render(before, after, compared, limit))
    return int(options.slower is not None and any(pair.verdict(limit) == "slower" for pair in compared))


if __name__ == "__main__":
    raise SystemExit(main())
