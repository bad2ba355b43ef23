# network.py - every write strategy on every kind of mount, and the table of docs/cluster.md
# SPDX-License-Identifier: MIT
"""`make test-network` runs this program as root: `network.py [--seconds N] [--write-table] [KIND ...]`.

For each kind of mount and each strategy, processes on two mounts of one file system

- update the 64 inner chunks of one shard, and no update may be lost;
- read the shard on the other mount while it is written, and no inner chunk may be torn;
- are killed while they write; each inner chunk is then old or new, and the next write works.

Four processes on both mounts write one shard with `ShardWriter.join`. Where locks do not reach the other mount, updates may be
lost: there must be a warning, and `locking="cluster"` must refuse. The exit status is 1 if a promise is broken. A file system that
this machine cannot mount is skipped by name.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers import create, ours, quiet, shard_path
from mounts.network_kinds import KINDS, Missing

import shardcodec
from shardcodec import LockScopeError, LockScopeWarning, ShardError, ShardSpec, ShardWriter

PAGE = Path(__file__).resolve().parents[2] / "docs" / "cluster.md"
BEGIN, END = "<!-- network: begin -->\n", "<!-- network: end -->\n"

STRATEGIES = ("replace", "append", "in_place")
SIDE, N = 8, 8  # elements and inner chunks along an axis
N_CHUNKS = N * N
SHAPE = (SIDE * N, SIDE * N)
N_WRITERS, N_SLOT_WRITERS, N_KILLS = 8, 4, 10
PATIENCE = 120.0
STUCK_SECONDS = 30.0

Both = tuple[Path, Path]


def cell(number: int) -> tuple[slice, slice]:
    """Return the selection of one inner chunk."""
    row, column = divmod(number, N)
    return np.s_[SIDE * row : SIDE * (row + 1), SIDE * column : SIDE * (column + 1)]


def new_array(folder: Path, name: str) -> Any:
    """Create an array of one shard whose inner chunks have checksums, and write it."""
    checksum = {"name": "crc32c"}
    array = create(
        folder / name,
        shape=SHAPE,
        shards=SHAPE,
        chunks=(SIDE, SIDE),
        dtype="i4",
        compressors=[checksum],
        fill_value=-1,
    )
    array[...] = 0
    return array


def open_on(folder: Path, name: str, **options: Any) -> Any:
    with quiet():
        return ours(folder / name, lock_timeout=PATIENCE / 2, **options)


class Team:
    """Forked processes whose answers are collected; an exception is an answer too."""

    def __init__(self, n: int, work: Callable[[int], Any]) -> None:
        context = multiprocessing.get_context("fork")
        self._answers = [context.Pipe(duplex=False) for _ in range(n)]
        self.members = [
            context.Process(target=self._run, args=(work, number), daemon=True) for number in range(n)
        ]
        for member in self.members:
            member.start()

    def _run(self, work: Callable[[int], Any], number: int) -> None:
        warnings.simplefilter("ignore", LockScopeWarning)
        try:
            answer = work(number)
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        self._answers[number][1].send(answer)

    def answers(self) -> list[Any]:
        found = []
        for (reading, _), member in zip(self._answers, self.members, strict=True):
            found.append(reading.recv() if reading.poll(PATIENCE) else f"no answer within {PATIENCE:g} s")
            member.kill()
            member.join(STUCK_SECONDS)  # a client that hangs keeps a killed process
        return found


@dataclass
class Row:
    """The results of one kind of mount."""

    kind: str
    scope: str = ""
    cells: dict[str, str] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def check(self, holds: bool, promise: str) -> None:
        if not holds:
            self.broken.append(promise)


# ---- the experiments


def find_scope(row: Row, both: Both) -> bool:
    """Find the scope of locks; return True if they reach the other mount. Where they do not, there must be a warning."""
    array = new_array(both[0], "scope")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", LockScopeWarning)
        array[0, 0] = 1
    (row.scope,) = {
        scope
        for mount, scope in shardcodec.stats()["lock_scopes"].items()
        if mount.startswith(f"{both[0]} (")
    }
    busy = shardcodec.native.load().FileLock()
    other = shardcodec.native.load().FileLock()
    reaches = (
        busy.try_acquire(str(shard_path(array))) == "held"
        and other.try_acquire(str(both[1] / "scope" / shard_path(array).relative_to(both[0] / "scope")))
        == "busy"
    )
    busy.release()
    other.release()
    warned = any(issubclass(one.category, LockScopeWarning) for one in caught)
    row.check(reaches or warned, "a warning where locks do not reach the other mount")
    row.check(reaches or row.scope == "node", "the scope `node` where locks do not reach the other mount")
    row.check(reaches or refuses(both), 'locking="cluster" refuses where locks do not reach the other mount')
    return reaches


def refuses(both: Both) -> bool:
    array = open_on(both[1], "scope", locking="cluster")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LockScopeWarning)
        try:
            array[0, 0] = 2
        except LockScopeError:
            return True
    return False


def update(row: Row, both: Both, strategy: str, *, reaches: bool) -> None:
    """Update the inner chunks of one shard from processes on both mounts."""
    name = f"update-{strategy}"
    new_array(both[0], name)

    def work(number: int) -> dict[str, int]:
        array = open_on(both[number % 2], name, write_strategy=strategy)
        shardcodec.stats.reset()
        for i in range(number, N_CHUNKS, N_WRITERS):
            array[cell(i)] = i + 1
        return dict(shardcodec.stats()["strategy_refused"])

    answers = Team(N_WRITERS, work).answers()
    failed = [answer for answer in answers if isinstance(answer, str)]
    # another process, whose client has cached nothing of the shard
    found = Team(1, lambda _: open_on(both[1], name)[::SIDE, ::SIDE].ravel().tolist()).answers()[0]
    lost = [i for i in range(N_CHUNKS) if isinstance(found, str) or found[i] != i + 1]
    row.check(not failed or not reaches, f"{strategy}: updates without errors: {failed[:1]}")
    row.check(not lost or not reaches, f"{strategy}: no lost update: {len(lost)} of {N_CHUNKS}")
    is_refused = any(answer for answer in answers if isinstance(answer, dict))
    row.cells[strategy] = f"{len(lost)} lost" + (", as `replace`" if is_refused else "")
    if failed:
        row.cells[strategy] += f", {len(failed)} of {N_WRITERS} writers failed"


def read_beside_writers(row: Row, both: Both, strategy: str, seconds: float, *, reaches: bool) -> None:
    """Read on one mount while processes write on the other; where locks reach, also a writer on the reader's mount."""
    name = f"read-{strategy}"
    new_array(both[0], name)
    end = time.monotonic() + seconds
    folders = [both[0], both[0], both[1]] if reaches else [both[0], both[0]]

    def write(number: int) -> int:
        array = open_on(folders[number], name, write_strategy=strategy)
        values = random.Random(number)
        n_writes = 0
        while time.monotonic() < end:
            array[cell(values.randrange(N_CHUNKS))] = n_writes = n_writes + 1
        return n_writes

    def read(number: int) -> Counter[str]:
        done: Counter[str] = Counter(reads=0, torn=0, typed=0, untyped=0)
        while time.monotonic() < end:
            try:
                if number:
                    array = open_on(both[1], name)
                    values = array[...]
                else:
                    values = shardcodec.open_array(both[1] / name)[...]
            except (ShardError, OSError) as error:
                done["typed"] += 1
                print(f"  {row.kind}, {strategy}: reader: {type(error).__name__}: {error}", flush=True)
                continue
            except Exception as error:
                done["untyped"] += 1
                print(f"  {row.kind}, {strategy}: reader: {type(error).__name__}: {error}", flush=True)
                continue
            done["reads"] += 1
            chunks = values.reshape(N, SIDE, N, SIDE).transpose(0, 2, 1, 3).reshape(N_CHUNKS, -1)
            done["torn"] += int((chunks != chunks[:, :1]).any())
        return done

    readers = Team(2, read)
    writers = Team(len(folders), write).answers()
    answers = readers.answers()
    failed = [answer for answer in [*answers, *writers] if isinstance(answer, str)]
    row.check(not failed, f"{strategy}: readers and writers without errors: {failed[:1]}")
    total: Counter[str] = sum((one for one in answers if not isinstance(one, str)), Counter())
    row.check(
        total["torn"] == 0, f"{strategy}: no torn inner chunk: {total['torn']} of {total['reads']} reads"
    )
    row.check(total["untyped"] == 0, f"{strategy}: no untyped error: {total['untyped']}")
    row.check(total["typed"] == 0, f"{strategy}: no error of a reader: {total['typed']}")
    row.check(total["reads"] > 0, f"{strategy}: the readers read")
    row.cells[f"{strategy} reads"] = (
        str(total["torn"] + total["untyped"] + total["typed"]) + f" of {total['reads']}"
    )


def kill_writers(row: Row, both: Both, strategy: str) -> None:
    """Kill a writer on one mount; read and write on the other.

    The mounts are for this experiment alone. In GlusterFS 10.3 a request for a lock that is interrupted may block a thread of
    the client for ever, and two of them block the mount (gluster/glusterfs#4371).
    """
    name = f"kill-{strategy}"
    new_array(both[0], name)
    bad = n_kills = 0
    delays = random.Random(5)

    def write(_: int) -> None:
        array = open_on(both[0], name, write_strategy=strategy)
        ready.set()
        for value in range(1, 10**9):
            array[cell(value % N_CHUNKS)] = value

    def look(_: int) -> bool:
        array = open_on(both[1], name, write_strategy=strategy)
        for _again in range(2):
            values = array[...].reshape(N, SIDE, N, SIDE).transpose(0, 2, 1, 3).reshape(N_CHUNKS, -1)
            if (values != values[:, :1]).any():
                return False
            array[cell(0)] = -5
        return bool((array[cell(0)] == -5).all())

    for _ in range(N_KILLS):
        ready = multiprocessing.get_context("fork").Event()
        victim = Team(1, write).members[0]
        ready.wait(PATIENCE)
        time.sleep(delays.uniform(0.0, 0.1))
        if victim.pid is not None:
            os.kill(victim.pid, signal.SIGKILL)
        victim.join(STUCK_SECONDS)
        # the kernel waits for the client, and later kills would say nothing
        if victim.is_alive():
            print(f"  {row.kind}, {strategy}: the file system does not let a killed process end", flush=True)
            break
        n_kills += 1
        answer = Team(1, look).answers()[0]
        if answer is not True:
            bad += 1
            print(f"  {row.kind}, {strategy}: after a kill: {answer}", flush=True)
    row.check(bad == 0, f"{strategy}: old or new after a kill: {bad} of {n_kills}")
    row.cells[f"{strategy} kills"] = f"{bad} of {n_kills}"


def write_slots(row: Row, both: Both) -> None:
    """Write one shard from processes on both mounts, without locks."""
    array = create(
        both[0] / "slots", shape=SHAPE, shards=SHAPE, chunks=(SIDE, SIDE), dtype="i4", compressors=None
    )
    spec = ShardSpec.from_metadata(array.metadata.to_dict())
    token = ShardWriter.create(shard_path(array), spec)
    tokens = [
        token,
        token.replace(json.dumps(str(both[0]))[1:-1].encode(), json.dumps(str(both[1]))[1:-1].encode()),
    ]

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
        found = Team(1, lambda _: open_on(both[1], "slots")[...].tolist()).answers()[0]
        expected = np.arange(1, N_CHUNKS + 1).reshape(N, N).repeat(SIDE, 0).repeat(SIDE, 1).tolist()
        row.check(found == expected, "slots: each inner chunk arrives")
    row.cells["slots"] = "failed" if any("slots" in one for one in row.broken) else "complete"


def run_kind(kind: str, seconds: float) -> Row:
    row = Row(kind)
    with two_mounts(kind) as both:
        reaches = find_scope(row, both)
        for strategy in STRATEGIES:
            update(row, both, strategy, reaches=reaches)
            read_beside_writers(row, both, strategy, seconds, reaches=reaches)
        write_slots(row, both)
    for strategy in STRATEGIES:
        with two_mounts(kind) as both:
            kill_writers(row, both, strategy)
    return row


@contextmanager
def two_mounts(kind: str) -> Iterator[Both]:
    """Mount a file system of its own twice."""
    with (
        tempfile.TemporaryDirectory(prefix="network", ignore_cleanup_errors=True) as folder,
        KINDS[kind](Path(folder)) as both,
    ):
        yield both


# ---- the table


def table(rows: list[Row]) -> str:
    head = ["file system", "locks", *(f"`{one}`: {N_CHUNKS} updates" for one in STRATEGIES)]
    head += [
        "wrong or failed reads",
        "bad after a kill",
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
                row.cells.get("slots", ""),
            ]
        )
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def added(row: Row, what: str) -> str:
    """Return the sum of the cells "a of b" of all strategies."""
    pairs = [row.cells[f"{one} {what}"].split(" of ") for one in STRATEGIES]
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
    print(table(rows))
    if given.write_table:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(before + BEGIN + table(rows) + END + rest.partition(END)[2])
    return int(any(row.broken for row in rows))


if __name__ == "__main__":
    sys.exit(main())
