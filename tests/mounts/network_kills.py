# network_kills.py - experiments of network.py that kill writers, and the client through which they write
# SPDX-License-Identifier: MIT

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from helpers import shard_path
from mounts.network_kinds import Mounts
from mounts.network_parts import PATIENCE, STUCK_SECONDS, Row, Team, new_array, open_on
from mounts.stamps import N_CHUNKS, OLDER, Log

import shardcodec
from shardcodec import ShardError

N_KILLS, N_CLIENT_KILLS = 10, 5
N_VICTIMS = 2  # writers whose client is killed
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
        log.settle(values)
        log.write(array, 0)
        values = array[...]
        faults += log.old_or_new(values)
        log.settle(values)
        return faults

    answer: Counter[str] | str = Team(1, look).answers()[0]
    return answer


def report(row: Row, strategy: str, what: str, answer: Any) -> bool:
    """Print the faults or the error of an answer; return True if there is none."""
    if answer:
        text = dict(answer) if isinstance(answer, Counter) else answer
        print(f"  {row.kind}, {strategy}: {what}: {text}", flush=True)
    return not answer


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
        answer = last_state_faults(mounts.two, name, log, strategy, mounts.cache_seconds)
        bad += not report(row, strategy, "after a kill", answer)
    row.check(bad == 0, f"{strategy}: old or new after a kill: {bad} of {n_kills}")
    row.cells[f"{strategy} kills"] = f"{bad} of {n_kills}"


def kill_client(row: Row, mounts: Mounts, strategy: str, *, reaches: bool) -> None:
    """Kill the client of the first mount while processes write through it; read and write on the other, and on a new one.

    Where locks reach the other mount, a process writes there all the time; it must not fail, nor wait for the dead client.
    """
    if mounts.client is None:
        row.cells[f"{strategy} client kills"] = "-"
        return
    bad = 0
    delays = random.Random(6)
    for number in range(N_CLIENT_KILLS):
        name = f"client-{strategy}-{number}"
        new_array(mounts.one, name)
        log = Log()
        team, stop = start_writers(mounts, name, log, strategy, reaches=reaches)
        time.sleep(delays.uniform(0.0, 0.2))
        mounts.client.kill()
        stop.set()
        *victims, survivor = team.answers()
        good = [report(row, strategy, "a writer of the dead client", one) for one in victims]
        good.append(report(row, strategy, "the writer on the other mount", survivor))
        good.append(see(row, strategy, mounts, "the other mount", mounts.two, name, log))
        mounts.client.mount_again()
        good.append(see(row, strategy, mounts, "the new mount", mounts.one, name, log))
        bad += not all(good)
    # a client that hides replaced files may end between its two renames
    holds = bad == 0 or mounts.hides_replaced
    row.check(holds, f"{strategy}: old or new after a kill of the client: {bad} of {N_CLIENT_KILLS}")
    row.cells[f"{strategy} client kills"] = f"{bad} of {N_CLIENT_KILLS}"


def see(row: Row, strategy: str, mounts: Mounts, where: str, folder: Path, name: str, log: Log) -> bool:
    begun = time.monotonic()
    answer = last_state_faults(folder, name, log, strategy, mounts.cache_seconds)
    seconds = time.monotonic() - begun
    good = report(row, strategy, where, answer)
    return report(row, strategy, where, f"{seconds:.0f} s" if seconds > LOCK_SECONDS else "") and good


def start_writers(mounts: Mounts, name: str, log: Log, strategy: str, *, reaches: bool) -> tuple[Team, Any]:
    """Start writers on the first mount, and one on the other; return them, and an event after which the latter ends.

    The answer of a writer says what is wrong; it is empty if nothing is. Each has chunks of its own.
    """
    ready = fork.Barrier(N_VICTIMS + 2)
    stop = fork.Event()

    def suffer(number: int) -> str:
        array = open_on(mounts.one, name, write_strategy=strategy)
        ready.wait(PATIENCE)
        try:
            for value in range(10**9):
                log.write(array, (value * (N_VICTIMS + 1) + number) % (N_CHUNKS - 1))
        except (ShardError, OSError):
            return ""
        return "no error"

    def survive() -> str:
        array = open_on(mounts.two, name, write_strategy=strategy)
        ready.wait(PATIENCE)
        longest = 0.0
        n_more = 3
        value = N_VICTIMS
        while n_more:
            n_more -= stop.is_set()
            begun = time.monotonic()
            log.write(array, value)
            longest = max(longest, time.monotonic() - begun)
            value = (value + N_VICTIMS + 1) % (N_CHUNKS - 1)
        return f"a write took {longest:.0f} s" if longest > LOCK_SECONDS else ""

    def work(number: int) -> str:
        if number < N_VICTIMS:
            return suffer(number)
        if not reaches:
            ready.wait(PATIENCE)
            return ""
        return survive()

    team = Team(N_VICTIMS + 1, work)
    ready.wait(PATIENCE)
    return team, stop


def die_with_lock(row: Row, mounts: Mounts) -> None:
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

    holder = Team(1, hold).members[0]
    row.check(held.wait(PATIENCE), "a process takes a lock")
    mounts.client.kill()
    waited = Team(1, write).answers()[0]
    holder.kill()
    holder.join(STUCK_SECONDS)
    row.check(
        isinstance(waited, float) and waited < LOCK_SECONDS, f"the lock of a dead client is free: {waited}"
    )
    if isinstance(waited, float):
        print(f"  {row.kind}: a writer waited {waited:.2f} s for the lock of a dead client", flush=True)
    mounts.client.mount_again()
