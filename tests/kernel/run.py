#!/usr/bin/env python3
# run.py - update shards on NFS in a real kernel while networks are cut, servers restarted and machines killed, and check the records
# SPDX-License-Identifier: MIT
"""`make test-kernel` runs this program. The last line is the number of updates, reads, cuts, lost and missing inner chunks, and errors.

    tests/kernel/run.py --seconds 120 --seed 1
    tests/kernel/run.py --only 4.2 4.2-noac --kinds within answer

It prints "not run: ..." and succeeds where the kernel cannot be made.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from faults.histories import ERASED, WRITE, Rules, check_records, load  # noqa: E402
from kernel.directed import ROUNDS  # noqa: E402
from kernel.machine import Missing, compiled, run_in_kernel  # noqa: E402

BUILD = TESTS.parent / "build"
KINDS = ("none", "after", "within", "held", "answer", "restart", "dies")
DIRECTED = tuple(kind for kind in ROUNDS if kind != "refused")
# A mount whose locks do not reach other nodes promises nothing to them: no other round says anything there.
# On SMB the locks of a node that is cut off stay for minutes.
KINDS_OF = {"3-nolock": ["refused"], "cifs": ["documents", "none"]}
KINDS_IN_TURN = 3  # of a mount, so that a run of some minutes has more than the first mounts
START_SECONDS = 300.0  # to boot, to import, and to end the last round

# The client of a default mount may know a name for a minute (acdirmax), and the state of a file.
STALE_SECONDS = 75.0
N_CHUNKS = 8

# version of NFS, options of the mount, and one of the export
MOUNTS: dict[str, tuple[str, str, str]] = {
    "4.2": ("4.2", "", "no_root_squash"),
    "4.2-names": ("4.2", "lookupcache=none", "no_root_squash"),
    "4.1": ("4.1", "", "no_root_squash"),
    "4.0": ("4.0", "", "no_root_squash"),
    "3": ("3", "", "no_root_squash"),
    "3-nolock": ("3", "nolock", "no_root_squash"),
    "4.2-noac": ("4.2", "noac", "no_root_squash"),
    "4.2-soft": ("4.2", "soft,timeo=50,retrans=2", "no_root_squash"),
    "4.2-squash": ("4.2", "", "root_squash"),
    "cifs": ("cifs", "", "no_root_squash"),
}
DELAYS = (0, 20, 60)

# Requests for an update of one inner chunk by a client with a default mount; zarr makes 7.8. The second: the lock file stays open.
MOST_REQUESTS = {
    "requests per update, 4.2, open_files=0": 19.9,
    "requests per update, 4.2, open_files=1": 16.9,
}


def plan(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the mounts in their order, each with a delay and some kinds of rounds. The first mount depends on the seed."""
    mounts = []
    names = [*MOUNTS]
    names = given.only or names[given.seed % len(names) :] + names[: given.seed % len(names)]
    for turn in range(100):
        for number, name in enumerate(names):
            version, options, export = MOUNTS[name]
            delay = DELAYS[(number + turn) % 3] if given.delay is None else given.delay
            mount = {"name": name, "version": version, "options": options, "export": export}
            kinds = KINDS_OF.get(name, given.kinds)
            first = (number + turn) * KINDS_IN_TURN % len(kinds)  # so each turn of a mount has other kinds
            mounts.append(mount | {"delay": delay, "kinds": (kinds[first:] + kinds[:first])[:KINDS_IN_TURN]})
    return mounts


def check(folder: Path) -> tuple[Counter[str], list[str]]:
    """Check the records of each array of each mount."""
    counts: Counter[str] = Counter()
    wrong = []
    for records in sorted(folder.glob("m*/*")):
        rows = load(records)
        result = check_records(
            rows, N_CHUNKS, Rules(is_ordered=False, stale=int(STALE_SECONDS * 1e9), late=True)
        )
        counts["updates"] += result.n_writes
        counts["reads"] += result.n_reads
        counts["missing"] += int(((rows["kind"] != WRITE) & (rows["value"] == ERASED)).sum())
        counts["lost"] += sum("was lost" in told for told in result.wrong)
        wrong += [f"{records.parent.name}/{records.name}: {told}" for told in result.wrong]
    return counts, wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=120.0, help="after them no round begins")
    parser.add_argument("--only", nargs="+", choices=MOUNTS, metavar="MOUNT", help="of " + ", ".join(MOUNTS))
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=(*KINDS, *DIRECTED, "directed"),
        default=list(KINDS),
        metavar="KIND",
        help=f"of {', '.join(KINDS + DIRECTED)}; directed: those of kernel/directed.py",
    )
    parser.add_argument("--delay", type=float, help="milliseconds of a round trip")
    given = parser.parse_args()
    if "directed" in given.kinds:
        given.kinds = [*(kind for kind in given.kinds if kind != "directed"), *DIRECTED]
    BUILD.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="kernel") as name:
        folder = Path(name)
        try:
            compiled(folder, "stops")
            program = {
                "python": sys.executable,
                "tests": str(TESTS),
                "seed": given.seed,
                "seconds": given.seconds,
            }
            (folder / "plan.json").write_text(json.dumps(program | {"mounts": plan(given)}))
            command = [sys.executable, str(TESTS / "kernel/lab.py")]
            run_in_kernel(
                command,
                folder,
                given.seconds + START_SECONDS,
                lambda line: print("  " + line, flush=True),
                ("samba",) if "cifs" in (given.only or MOUNTS) else (),
            )
        except Missing as reason:
            print(f"not run: {reason}")
            return 0
        counts, wrong = check(folder / "records")
        told: Counter[str] = Counter(json.loads((folder / "counts.json").read_text()))
    wrong += [
        f"{what}: {told[what]}, at most {most}" for what, most in MOST_REQUESTS.items() if told[what] > most
    ]
    wrong += [f"{what}, {n} times" for what, n in told.items() if what.startswith("wrong in ")]
    print(*wrong[:10], sep="\n")
    n_errors = sum(n for what, n in told.items() if what.startswith("error"))
    print(dict(told))
    print("cuts in each step of an update:", *(told[f"cut in step {step}"] for step in range(1, 9)))
    print(
        f"{counts['updates']} updates, {counts['reads']} reads, {told['cuts']} cuts, {counts['lost']} lost, "
        f"{counts['missing']} missing, {n_errors} errors, {told['hangs']} hung; seed {given.seed}"
    )
    return int(bool(wrong or counts["missing"] or told["hangs"]))


if __name__ == "__main__":
    sys.exit(main())
