# network_kills.py - experiments of network.py that kill writers, and the client through which they write
# SPDX-License-Identifier: MIT

from __future__ import annotations

import multiprocessing
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from helpers import shard_path
from mounts.network_kinds import Mounts
from mounts.network_parts import PATIENCE, Row, Team, new_array, open_on
from mounts.stamps import N_CHUNKS, NO_SHARD, OLDER, Log

import shardcodec
from shardcodec import ShardError

N_KILLS, N_CLIENT_KILLS = 10, 5
N_CLIENT_WRITERS = 2  # writers whose client is killed; one more writes on the other mount
N_USED_CHUNKS = (
    N_CHUNKS // (N_CLIENT_WRITERS + 1) * (N_CLIENT_WRITERS + 1)
)  # each writer has as many, and only its own
LOCK_SECONDS = 30.0  # within which the lock of a dead client must be free

fork = multiprocessing.get_context("fork")


def last_state_faults(
    folder: Path, name: str, log: Log, strategy: str, patience: float
) -> Counter[str] | str:
    """Read, in another process, what writers that have ended or were killed have left; write, and read again.

    Return the faults, or an error. `patience` is how long the caches of a client may show an older state, in seconds.
    """

    def look(_: int) -> Counter[str]:
        array = open_on(folder, name, write_strategy=strategy)
        end = time.monotonic() + patience
        while OLDER in (faults := log.old_or_new(values := array[...])) and time.monotonic() < end:
            time.sleep(0.05)
        if NO_SHARD in faults:
            return faults  # a write would make a new shard, and hide what was found
        log.settle(values)
        log.write(array, 0)
        values = array[...]
        faults += log.old_or_new(values)
        log.settle(values)
        return faults

    answer: Counter[str] | str = Team(1, look).answers()[0]
    return answer


def report(row: Row, strategy: str, what: str, answer: Counter[str] | str) -> Counter[str]:
    """Print the faults or the error of an answer, and return them."""
    faults = answer if isinstance(answer, Counter) else Counter([answer] if answer else [])
    if answer:
        text = dict(answer) if isinstance(answer, Counter) else answer
        print(f"  {row.kind}, {strategy}: {what}: {text}", flush=True)
    return faults


def kill_writers(row: Row, mounts: Mounts, strategy: str) -> None:
    """Kill a writer on one mount; read and write on the other.

    The mounts are for this experiment alone. In GlusterFS 10.3 a request for a lock that is interrupted may block a thread of
    the client for ever, and two of them block the mount (gluster/glusterfs#4371).
    """
    name = f"kill-{strategy}"
    new_array(mounts.one, name)
    log = Log()
    bad = n_kills = 0
    delays = random.Random(5)

    def write(_: int) -> None:
        array = open_on(mounts.one, name, write_strategy=strategy)
        ready.set()
        for value in range(10**9):
            log.write(array, value % N_CHUNKS)

    for _ in range(N_KILLS):
        ready = fork.Event()
        team = Team(1, write)
        has_begun = ready.wait(PATIENCE)
        time.sleep(delays.uniform(0.0, 0.1))
        (code,) = team.kill()
        # the kernel waits for the client, and later kills would say nothing
        if code is None:
            print(f"  {row.kind}, {strategy}: the file system does not let a killed process end", flush=True)
            break
        row.check(
            has_begun and code == -signal.SIGKILL,
            f"{strategy}: the writer still wrote when it was killed: exit code {code}",
        )
        n_kills += 1
        answer = last_state_faults(mounts.two, name, log, strategy, mounts.cache_seconds)
        bad += bool(report(row, strategy, "after a kill", answer))
    row.check(n_kills > 0 and bad == 0, f"{strategy}: old or new after a kill: {bad} of {n_kills}")
    row.cells[f"{strategy} kills"] = f"{bad} of {n_kills}"


def kill_client(row: Row, mounts: Mounts, strategy: str, *, reaches: bool) -> None:
    """Kill the client of the first mount while processes write through it; read and write on the other, and on a new one.

    Where locks reach the other mount, a process writes there all the time; it must not fail, nor wait for the dead client.
    """
    if mounts.client is None:
        row.cells[f"{strategy} client kills"] = "-"
        return
    bad = 0
    all_faults: Counter[str] = Counter()
    delays = random.Random(6)
    for number in range(N_CLIENT_KILLS):
        name = f"client-{strategy}-{number}"
        new_array(mounts.one, name)
        log = Log()
        team, killing, stop = start_writers(mounts, name, log, strategy, reaches=reaches)
        time.sleep(delays.uniform(0.0, 0.2))
        killing.set()
        mounts.client.kill()
        stop.set()
        *of_client, other = team.answers()
        faults: Counter[str] = Counter()
        for answer in of_client:
            faults += report(row, strategy, "a writer of the dead client", answer)
        faults += report(row, strategy, "the writer on the other mount", other)
        faults += check_last_state(row, strategy, mounts, "the other mount", mounts.two, name, log)
        mounts.client.mount_again()
        faults += check_last_state(row, strategy, mounts, "the new mount", mounts.one, name, log)
        bad += bool(faults)
        all_faults += faults
    # a client that hides replaced files may end between its two renames
    row.check(
        mounts.permits(all_faults),
        f"{strategy}: old or new after a kill of the client: {bad} of {N_CLIENT_KILLS}: {dict(all_faults)}",
    )
    row.cells[f"{strategy} client kills"] = f"{bad} of {N_CLIENT_KILLS}"


def check_last_state(
    row: Row, strategy: str, mounts: Mounts, where: str, folder: Path, name: str, log: Log
) -> Counter[str]:
    """Return the faults of `last_state_faults`, and that it took longer than a dead client may keep its locks."""
    begun = time.monotonic()
    answer = last_state_faults(folder, name, log, strategy, mounts.cache_seconds)
    seconds = time.monotonic() - begun
    faults = report(row, strategy, where, answer)
    return faults + report(row, strategy, where, f"{seconds:.0f} s" if seconds > LOCK_SECONDS else "")


def start_writers(
    mounts: Mounts, name: str, log: Log, strategy: str, *, reaches: bool
) -> tuple[Team, Any, Any]:
    """Start writers on the first mount, and one on the other; return them and two events.

    The caller sets the first event before the client is killed, and the second one afterwards; then the writer on the other
    mount ends soon. The answer of a writer says what is wrong; it is empty if nothing is. Each has chunks of its own.
    """
    ready = fork.Barrier(N_CLIENT_WRITERS + 2)
    killing, stop = fork.Event(), fork.Event()

    def write_until_error(number: int) -> str:
        array = open_on(mounts.one, name, write_strategy=strategy)
        ready.wait(PATIENCE)
        try:
            for value in range(10**9):
                log.write(array, (value * (N_CLIENT_WRITERS + 1) + number) % N_USED_CHUNKS)
        except (ShardError, OSError) as error:
            return "" if killing.is_set() else f"failed before the kill: {type(error).__name__}: {error}"
        return "no error"

    def write_until_stop() -> str:
        array = open_on(mounts.two, name, write_strategy=strategy)
        ready.wait(PATIENCE)
        longest = 0.0
        n_more = 3
        value = N_CLIENT_WRITERS
        while n_more:
            n_more -= stop.is_set()
            begun = time.monotonic()
            log.write(array, value)
            longest = max(longest, time.monotonic() - begun)
            value = (value + N_CLIENT_WRITERS + 1) % N_USED_CHUNKS
        return f"a write took {longest:.0f} s" if longest > LOCK_SECONDS else ""

    def work(number: int) -> str:
        if number < N_CLIENT_WRITERS:
            return write_until_error(number)
        if not reaches:
            ready.wait(PATIENCE)
            return ""
        return write_until_stop()

    team = Team(N_CLIENT_WRITERS + 1, work)
    ready.wait(PATIENCE)
    return team, killing, stop


def kill_lock_holder(row: Row, mounts: Mounts) -> None:
    """Kill the client of a process that holds the lock of a shard; a writer on the other mount must get it soon."""
    if mounts.client is None:
        return
    array = new_array(mounts.one, "lock")
    held = fork.Event()

    def hold(_: int) -> str:
        lock = shardcodec.native.load().FileLock()
        outcome: str = lock.try_acquire(str(shard_path(array)))
        if outcome == "held":
            held.set()
        time.sleep(PATIENCE)
        return outcome

    def write(_: int) -> float:
        other = open_on(mounts.two, "lock")
        begun = time.monotonic()
        other[0, 0] = 1
        return time.monotonic() - begun

    holder = Team(1, hold)
    row.check(held.wait(PATIENCE), "a process takes a lock")
    mounts.client.kill()
    waited = Team(1, write).answers()[0]
    holder.kill()
    row.check(
        isinstance(waited, float) and waited < LOCK_SECONDS, f"the lock of a dead client is free: {waited}"
    )
    if isinstance(waited, float):
        print(f"  {row.kind}: a writer waited {waited:.2f} s for the lock of a dead client", flush=True)
    mounts.client.mount_again()
