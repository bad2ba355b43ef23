"""Compare all peers in one run, interleaved.

    python bench/run.py                          everything at full size, about half an hour
    python bench/run.py --quick                  small arrays: shows that the harness works
    python bench/run.py --groups whole,tiny      some of the workloads, and of kv, tools, endtoend and memory
    python bench/run.py --groups index --rows mask,written --peers shardcodec,floor,tensorstore
    python bench/run.py --of-tables arrays       what the tables of the pages have of results/arrays.json
    python bench/run.py --check --shrink 16      compare the results of the peers, and time nothing

For each row the results of each peer are checked first. Then come the rounds; in each round each peer has one turn, in
an order that rotates. Medians are compared. Tables go to standard output and, with --markdown, to a
file; the time of every turn, the 99th percentile of the operations, memory, the machine and all versions go to the file of --json.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import data
import machine
import memory
import numpy as np
import peers
import program
import report
import sampler
import suite
import tables
import workload
from peers import Peer
from suite import Context, Row

# Smaller rows need no new memory, and should find their data in the caches, where the turn before has left it.
LARGE_NBYTES = 16 << 20

GROUPS = tuple(dict.fromkeys((*workload.names(), *suite.PROGRAMS, "memory")))


def note(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def checked(
    row: Row, context: Context, contestants: list[Peer]
) -> tuple[list[Peer], dict[str, dict[str, Any]]]:
    """Return the peers of a row whose results are right, and what is reported of all. A peer that fails is skipped."""
    results: dict[str, dict[str, Any]] = {}
    running = [peer for peer in contestants if row.takes(peer) and peer.joins(row.group)]
    for peer in list(running):
        try:
            with peer.turn():
                results[peer.name] = {"seconds": [], **row.check(context, peer)}
        except Exception as error:  # noqa: BLE001 (the failure of a peer is a result)
            results[peer.name] = {"seconds": [], "failed": f"{type(error).__name__}: {error}"}
            running.remove(peer)
    return running, results


def measure(
    row: Row, context: Context, contestants: list[Peer], rounds: int, most_seconds: float
) -> dict[str, Any]:
    """Check each peer, then time it."""
    running, results = checked(row, context, contestants)
    operations: dict[str, list[float]] = {peer.name: [] for peer in running}
    os.sync()  # write back dirty pages, so that no peer pays for them
    disturbance = machine.Disturbance()
    for number in range(min(rounds, row.most_rounds)):
        first = number % max(1, len(running))
        for peer in running[first:] + running[:first]:
            times = results[peer.name]["seconds"]
            if sum(times) > most_seconds and len(times) >= 3:
                continue
            gc.collect()
            if row.nbytes >= LARGE_NBYTES:
                machine.take_memory_back(row.nbytes)
            with peer.turn():
                seconds = row.turn(context, peer, number)
            operations[peer.name] += seconds
            times.append(sum(seconds) / len(seconds))
    others = disturbance.value()
    for peer in running if rounds else ():
        results[peer.name]["p99"] = float(np.percentile(operations[peer.name], 99))
        with peer.turn():
            results[peer.name]["peak_nbytes"] = memory.growth(partial(row.turn, context, peer, rounds))
    return {
        "group": row.group,
        "name": row.name,
        "nbytes": row.nbytes,
        "operations": row.operations,
        "disturbance": others,
        "peers": results,
    }


def profiles(
    row: Row, context: Context, contestants: list[Peer], result: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """Sample one more turn of each form of shardcodec: the packages that the time goes to."""
    found = {}
    for peer in contestants:
        if report.is_ours(peer.name) and result["peers"].get(peer.name, {}).get("seconds"):
            with peer.turn():
                found[peer.name] = sampler.summary(row.profile(context, peer))
    return found


def measure_memory(context: Context, contestants: list[Peer], sizes: suite.Sizes) -> list[dict[str, Any]]:
    found = []
    for codec in ("raw", "zstd 1"):
        case = data.big(sizes.edge).with_codec(codec)
        source = context.source(case)
        for operation in ("read", "write"):
            for peer in contestants:
                if peer.group:
                    continue
                note(f"memory: {operation}, {codec}, {peer.name}")
                found.append(memory.in_subprocess(peer.name, operation, case, source, context.folder))
        context.drop_sources(case)
    for case, operation in (
        *((data.table(sizes.edge).with_codec(codec), "1,000 rows") for codec in ("raw", "zstd 1")),
        (data.table(sizes.edge).with_codec("zstd 1"), "half the rows"),
        (data.big(sizes.edge).with_codec("zstd 1"), "1,000 rows"),
    ):
        source = context.source(case)
        for peer in contestants:
            if peer.can_index and not peer.group:
                note(f"memory: {operation}, {peer.name}")
                found.append(memory.in_subprocess(peer.name, operation, case, source, context.folder))
        context.drop_sources(case)
    return found


def choose_writer(contestants: list[Peer]) -> Peer:
    """Choose the writer of the files to read: zarr, in Morton order, with its faster pipeline if it exists."""
    found, _ = peers.available(["zarr fused", "zarr batched"])
    return found[-1] if found else contestants[0]


def choose_checker(contestants: list[Peer]) -> Peer:
    found, _ = peers.available(["tensorstore", "zarr batched"])
    return found[-1] if found else contestants[0]


def context_of(row: Row, context: Context) -> Context:
    """Return the context with the writer and the checker that a row names, where they are installed; the rest stays shared."""
    named = {
        role: peers.available([name])[0] for role in ("writer", "checker") if (name := getattr(row, role))
    }
    return replace(context, **{role: found[0] for role, found in named.items() if found})


def selected_rows(arguments: argparse.Namespace) -> list[Row]:
    rows = suite.rows(suite.Sizes(arguments.shrink), [g for g in arguments.groups if g != "memory"])
    if arguments.of_tables:
        rows = [row for row in rows if (row.group, row.name) in tables.needed(arguments.of_tables)]
    return [row for row in rows if arguments.rows is None or any(part in row.name for part in arguments.rows)]


def peers_for(row: Row, arguments: argparse.Namespace, contestants: list[Peer]) -> list[Peer]:
    """Return the peers that a row is measured with."""
    needed = tables.needed(arguments.of_tables).get((row.group, row.name))
    return contestants if needed is None else [peer for peer in contestants if peer.name in needed]


def check(arguments: argparse.Namespace, folder: Path) -> int:
    """Compare the results of all peers with the data; return how many are wrong, or fail where none may."""
    contestants, _ = peers.available(arguments.peers)
    context = Context(folder, choose_writer(contestants), choose_checker(contestants), age=0)
    n_failures = 0
    for row in selected_rows(arguments):
        _, results = checked(row, context_of(row, context), contestants)
        context.close_kept()
        context.drop_sources(row.case)
        for name, result in results.items():
            failure = result.get("failed", "")
            sys.stdout.write(f"{row.name}: {name}: {failure or 'equal'}\n")
            refused = name in row.may_refuse and not failure.startswith(AssertionError.__name__)
            n_failures += bool(failure) and not refused
    return n_failures


def compare(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    contestants, missing = peers.available(arguments.peers)
    document: dict[str, Any] = {
        "machine": machine.facts(folder),
        "threads": peers.N_THREADS,
        "rounds": arguments.rounds,
        "shrink": arguments.shrink,
        "missing": missing,
        "warning": machine.load_warning(),
        "rows": [],
        "memory": [],
    }
    for name, reason in missing.items():
        note(f"left out: {name}: {reason}")
    if document["warning"]:
        note(document["warning"])
    context = Context(folder, choose_writer(contestants), choose_checker(contestants))
    for row in selected_rows(arguments):
        start = time.monotonic()
        contestants_here = peers_for(row, arguments, contestants)
        result = measure(
            row, context_of(row, context), contestants_here, arguments.rounds, arguments.most_seconds
        )
        if arguments.profile:
            result["profile"] = profiles(row, context, contestants, result)
        document["rows"].append(result)
        context.close_kept()
        note(f"{summary(result)}   ({time.monotonic() - start:.0f} s)")
        context.drop_sources(row.case)
    if "memory" in arguments.groups:
        document["memory"] = measure_memory(context, contestants, suite.Sizes(arguments.shrink))
    document["load_after"] = os.getloadavg()[0]
    return document


def summary(result: dict[str, Any]) -> str:
    times = {
        name: "failed" if "failed" in peer else f"{1e3 * median(peer['seconds']):.3g}"
        for name, peer in result["peers"].items()
    }
    return f"{result['name']:45} " + "  ".join(f"{name} {text}" for name, text in times.items()) + " ms"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="bench/run.py"
    )
    parser.add_argument(
        "--shrink", type=program.positive, default=1, help="arrays with N^3 times fewer elements (1)"
    )
    parser.add_argument(
        "--quick", action="store_const", const=4, dest="shrink", help="small arrays: --shrink 4"
    )
    parser.add_argument(
        "--check", action="store_true", help="compare results, time nothing; status 1 if a peer fails"
    )
    parser.add_argument("--rounds", type=program.positive, default=7, help="turns of each peer per row (7)")
    parser.add_argument(
        "--most-seconds", type=float, default=60, help="of one peer in one row, after 3 turns (60)"
    )
    parser.add_argument(
        "--groups", type=program.some_of(GROUPS), default=list(GROUPS), help=f"some of {','.join(GROUPS)}"
    )
    parser.add_argument(
        "--rows", type=program.names, default=None, help="parts of the names of rows, e.g. plane,mask"
    )
    parser.add_argument(
        "--of-tables", metavar="RESULT", help="the rows and peers that tables.py needs of a result"
    )
    known = [peer.name for peer in peers.ALL]
    parser.add_argument("--peers", type=program.some_of(known), default=None, help=", ".join(known))
    parser.add_argument("--without", type=program.some_of(known), default=[], help="all peers but these")
    parser.add_argument(
        "--folder", type=program.folder, default=None, help="where arrays are made (a temporary folder)"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="also report the packages that the time of shardcodec's rows goes to",
    )
    parser.add_argument("--json", type=program.file_to_write, default=None)
    parser.add_argument("--markdown", type=program.file_to_write, default=None)
    arguments = parser.parse_args()
    if arguments.of_tables:
        arguments.groups = [group for group in arguments.groups if group != "memory"]
    if arguments.without:
        arguments.peers = [name for name in known if name not in arguments.without]
    if arguments.rows and not selected_rows(arguments):
        parser.error(
            f"argument --rows: no row of {', '.join(arguments.groups)} has {' or '.join(arguments.rows)} in its name"
        )
    return arguments


def pin(n_threads: int) -> None:
    """Give the process as many processors as a peer may have threads, so that no peer starts more."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:n_threads])


def main() -> None:
    arguments = parse()
    pin(peers.N_THREADS)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as folder:
        if arguments.check:
            n_failures = check(arguments, Path(folder))
        else:
            document = compare(arguments, Path(folder))
    if arguments.check:
        sys.stdout.flush()
        os._exit(n_failures > 0)
    if arguments.json:
        arguments.json.write_text(json.dumps(document, indent=1))
    text = report.render(document)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    sys.stdout.write(text)
    sys.stdout.flush()
    os._exit(0)  # threads of some peers cannot be joined


if __name__ == "__main__":
    main()
