# network.py - every write strategy on every kind of mount, and the table of docs/cluster.md
# SPDX-License-Identifier: MIT
"""`make test-network` runs this program as root: `network.py [--seconds N] [--write-table] [KIND ...]`.

For each kind of mount and each strategy, processes on two mounts of one file system

- update the 64 inner chunks of one shard, and no update may be lost;
- read the shard on the other mount while it is written, and each inner chunk must have a value that it may have (`stamps.py`);
- are killed while they write; each inner chunk is then old or new, and the next write works;
- lose the client of their mount, if it is a process, while they write; the same holds for the other mount and for a new one.

Four processes on both mounts write one shard with `ShardWriter.join`. Where locks do not reach the other mount, updates may be
lost: there must be a warning, and `locking="cluster"` must refuse. The exit status is 1 if a promise is broken. A file system that
this machine cannot mount is skipped by name.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers import create, shard_path
from mounts.network_kills import kill_client, kill_lock_holder, kill_writers, last_state_faults
from mounts.network_kinds import KINDS, Missing, Mounts
from mounts.network_parts import PATIENCE, Row, Team, new_array, open_on
from mounts.stamps import N_CHUNKS, SHAPE, SIDE, Log, N, Reader, by_chunk, cell

import shardcodec
from shardcodec import LockScopeError, LockScopeWarning, ShardError, ShardSpec, ShardWriter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
BEGIN, END = "<!-- network: begin -->\n", "<!-- network: end -->\n"

STRATEGIES = ("replace", "append", "in_place")
N_WRITERS, N_SLOT_WRITERS = 8, 4
LONG_SECONDS = 5.0  # a write that takes longer is printed
N_REPORTS = 5  # wrong reads of one reader that are printed


# ---- the experiments


def find_scope(row: Row, mounts: Mounts) -> bool:
    """Find the scope of locks; return True if they reach the other mount. Where they do not, there must be a warning."""
    array = new_array(mounts.one, "scope")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LockScopeWarning)
        array[0, 0] = 1
    (row.scope,) = {
        scope
        for mount, scope in shardcodec.stats()["lock_scopes"].items()
        if mount.startswith(f"{mounts.one} (")
    }
    busy = shardcodec.native.load().FileLock()
    other = shardcodec.native.load().FileLock()
    reaches = (
        busy.try_acquire(str(shard_path(array))) == "held"
        and other.try_acquire(str(mounts.two / "scope" / shard_path(array).relative_to(mounts.one / "scope")))
        == "busy"
    )
    busy.release()
    other.release()
    warned = any(issubclass(one.category, LockScopeWarning) for one in caught)
    row.check(reaches or warned, "a warning where locks do not reach the other mount")
    row.check(reaches or row.scope == "node", "the scope `node` where locks do not reach the other mount")
    row.check(
        reaches or refuses(mounts), 'locking="cluster" refuses where locks do not reach the other mount'
    )
    return reaches


def refuses(mounts: Mounts) -> bool:
    array = open_on(mounts.two, "scope", locking="cluster")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LockScopeWarning)
        try:
            array[0, 0] = 2
        except LockScopeError:
            return True
    return False


def update(row: Row, mounts: Mounts, strategy: str, *, reaches: bool) -> None:
    """Update the inner chunks of one shard from processes on both mounts."""
    name = f"update-{strategy}"
    new_array(mounts.one, name)
    folders = mounts.one, mounts.two
    new = 64 * N_CHUNKS  # beyond the values of `new_array`

    def work(number: int) -> dict[str, int]:
        array = open_on(folders[number % 2], name, write_strategy=strategy)
        shardcodec.stats.reset()
        for i in range(number, N_CHUNKS, N_WRITERS):
            array[cell(i)] = new + i
        return dict(shardcodec.stats()["strategy_refused"])

    answers = Team(N_WRITERS, work).answers()
    failed = [answer for answer in answers if isinstance(answer, str)]
    # another process, whose client has cached nothing of the shard
    found = Team(1, lambda _: by_chunk(open_on(mounts.two, name)[...])).answers()[0]
    lost = [i for i in range(N_CHUNKS) if isinstance(found, str) or (found[i] != new + i).any()]
    row.check(not failed or not reaches, f"{strategy}: updates without errors: {failed[:1]}")
    row.check(not lost or not reaches, f"{strategy}: no lost update: {len(lost)} of {N_CHUNKS}")
    is_refused = any(answer for answer in answers if isinstance(answer, dict))
    row.cells[strategy] = f"{len(lost)} lost" + (", as `replace`" if is_refused else "")
    if failed:
        row.cells[strategy] += f", {len(failed)} of {N_WRITERS} writers failed"


def read_beside_writers(row: Row, mounts: Mounts, strategy: str, seconds: float, *, reaches: bool) -> None:
    """Read on one mount while processes write on the other; where locks reach, also a writer on the reader's mount."""
    name = f"read-{strategy}"
    new_array(mounts.one, name)
    log = Log()
    end = time.monotonic() + seconds
    folders = [mounts.one, mounts.one, mounts.two] if reaches else [mounts.one, mounts.one]

    def write(number: int) -> tuple[int, float]:
        # locks promise no order, so a writer may wait until the others have ended
        patience = PATIENCE / 2 + seconds
        array = open_on(folders[number], name, write_strategy=strategy, lock_timeout=patience)
        own = range(number, N_CHUNKS, len(folders))
        choice = random.Random(number)
        n_writes, longest = 0, 0.0
        while (begun := time.monotonic()) < end:
            log.write(array, choice.choice(own))
            n_writes, longest = n_writes + 1, max(longest, time.monotonic() - begun)
        return n_writes, longest

    def read(number: int) -> Counter[str]:
        reader = Reader(log, may_step_back=strategy == "in_place", is_coherent=mounts.client is None)
        done: Counter[str] = Counter()
        while not done["reads"] or time.monotonic() < end:
            try:
                if number:
                    faults = reader.look(lambda: open_on(mounts.two, name)[...])
                else:
                    faults = reader.look(lambda: shardcodec.open_array(mounts.two / name)[...])
            except Exception as error:
                kind = "a typed error" if isinstance(error, ShardError | OSError) else "an untyped error"
                faults = Counter({f"{kind}, as {type(error).__name__}: {error}": 1})
            if faults and done["bad"] < N_REPORTS:
                print(f"  {row.kind}, {strategy}: reader {number}: {dict(faults)}", flush=True)
            done["bad"] += bool(faults)
            done["reads"] += 1
            done.update(dict.fromkeys(faults, 1))
        return done

    readers = Team(2, read)
    writers = Team(len(folders), write).answers(seconds)
    answers = readers.answers(seconds)
    failed = [answer for answer in [*answers, *writers] if isinstance(answer, str)]
    row.check(not failed, f"{strategy}: readers and writers without errors: {failed[:1]}")
    total: Counter[str] = sum((one for one in answers if not isinstance(one, str)), Counter())
    bad, n_reads = total.pop("bad", 0), total.pop("reads", 0)
    row.check(mounts.permits(total), f"{strategy}: {bad} of {n_reads} reads: {dict(total)}")
    if not failed and (longest := max(seconds for _, seconds in writers)) > LONG_SECONDS:
        shares = ", ".join(str(n_writes) for n_writes, _ in writers)
        print(f"  {row.kind}, {strategy}: {shares} writes; the longest took {longest:.0f} s", flush=True)
    last = last_state_faults(mounts.two, name, log, strategy, mounts.cache_seconds)
    row.check(not last, f"{strategy}: the last write of each inner chunk is there: {last}")
    row.cells[f"{strategy} reads"] = f"{bad} of {n_reads}"


def write_slots(row: Row, mounts: Mounts) -> None:
    """Write one shard from processes on both mounts, without locks."""
    array = create(
        mounts.one / "slots", shape=SHAPE, shards=SHAPE, chunks=(SIDE, SIDE), dtype="i4", compressors=None
    )
    spec = ShardSpec.from_metadata(array.metadata.to_dict())
    token = ShardWriter.create(shard_path(array), spec)
    one, two = (json.dumps(str(folder))[1:-1].encode() for folder in (mounts.one, mounts.two))
    tokens = [token, token.replace(one, two)]

    def work(number: int) -> list[list[int]]:
        with ShardWriter.join(tokens[number % 2]) as part:
            for i in range(number, N_CHUNKS, N_SLOT_WRITERS):
                part.write_chunk(divmod(i, N), np.full((SIDE, SIDE), i + 1, "i4"))
            return part.present.tolist()  # type: ignore[no-any-return]

    answers = Team(N_SLOT_WRITERS, work).answers()
    failed = [answer for answer in answers if isinstance(answer, str)]
    row.check(not failed, f"slots: writers without errors: {failed[:1]}")
    if not failed:
        ShardWriter.join(token).commit(np.concatenate([np.asarray(answer) for answer in answers]))
        found = Team(1, lambda _: open_on(mounts.two, "slots")[...].tolist()).answers()[0]
        expected = np.arange(1, N_CHUNKS + 1).reshape(N, N).repeat(SIDE, 0).repeat(SIDE, 1).tolist()
        row.check(found == expected, "slots: each inner chunk arrives")
    row.cells["slots"] = "failed" if any("slots" in one for one in row.broken) else "complete"


def run_kind(kind: str, seconds: float) -> Row:
    row = Row(kind)
    with two_mounts(kind) as mounts:
        reaches = find_scope(row, mounts)
        for strategy in STRATEGIES:
            update(row, mounts, strategy, reaches=reaches)
            read_beside_writers(row, mounts, strategy, seconds, reaches=reaches)
        write_slots(row, mounts)
    for strategy in STRATEGIES:
        with two_mounts(kind) as mounts:
            kill_writers(row, mounts, strategy)
        with two_mounts(kind) as mounts:
            kill_client(row, mounts, strategy, reaches=reaches)
    if reaches:
        with two_mounts(kind) as mounts:
            kill_lock_holder(row, mounts)
    return row


@contextmanager
def two_mounts(kind: str) -> Iterator[Mounts]:
    """Mount a file system of its own twice."""
    with (
        tempfile.TemporaryDirectory(prefix="network", ignore_cleanup_errors=True) as folder,
        KINDS[kind](Path(folder)) as mounts,
    ):
        yield mounts


# ---- the table


def table(rows: list[Row], seconds: float) -> str:
    """Return the table, below the seconds for which the readers read."""
    head = ["file system", "locks", *(f"`{one}`: {N_CHUNKS} updates" for one in STRATEGIES)]
    head += [
        "wrong or failed reads",
        "bad after a kill",
        "bad after a kill of the client",
        f"{N_SLOT_WRITERS} slot writers",
    ]
    lines = [head, ["---"] * len(head)]
    for row in rows:
        lines.append(
            [
                row.kind,
                f"`{row.scope}`",
                *(row.cells.get(one, "") for one in STRATEGIES),
                added(row, "reads"),
                added(row, "kills"),
                added(row, "client kills"),
                row.cells.get("slots", ""),
            ]
        )
    caption = f"Beside the writers, two readers read for {seconds:g} s with each strategy.\n\n"
    return caption + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def added(row: Row, what: str) -> str:
    """Return the sum of the cells "a of b" of all strategies, or a dash."""
    cells = [row.cells[f"{one} {what}"] for one in STRATEGIES]
    if "-" in cells:
        return "-"
    pairs = [one.split(" of ") for one in cells]
    return f"{sum(int(a) for a, _ in pairs)} of {sum(int(b) for _, b in pairs):,}"


def main() -> int:
    parser = argparse.ArgumentParser(description="every write strategy on every kind of mount")
    parser.add_argument(
        "--seconds", type=float, default=3.0, help="of readers beside writers, for each strategy"
    )
    parser.add_argument("--write-table", action="store_true", help=f"put the table into {PAGE.name}")
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}; default: all")
    given = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("it needs root, to mount file systems")
    rows = []
    for kind in given.kinds or KINDS:
        begun = time.monotonic()
        try:
            row = run_kind(kind, given.seconds)
        except Missing as reason:
            print(f"{kind}: skipped: {reason}", flush=True)
            continue
        rows.append(row)
        print(
            f"{kind}: {time.monotonic() - begun:.0f} s, {'; '.join(row.broken) or 'all promises hold'}",
            flush=True,
        )
    print(table(rows, given.seconds))
    if given.write_table:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(before + BEGIN + table(rows, given.seconds) + END + rest.partition(END)[2])
    return int(any(row.broken for row in rows))


if __name__ == "__main__":
    sys.exit(main())
