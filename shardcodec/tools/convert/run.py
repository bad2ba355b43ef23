# run.py - run the units of a plan, several at a time
# SPDX-License-Identifier: MIT
"""`run_units`: groups of shards in threads, as many at a time as the memory permits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ...storage.runner import ThreadCall, WorkerThreads
from ..monitor import Monitor, Stopped
from ..other_objects import NO_OBJECTS, ObjectCounts
from .plan import ConvertPlan, Unit
from .shard_record import ShardFailure, ShardRecord
from .work import GroupResult, GroupWork

__all__ = ["OnRecord", "Totals", "n_in_flight", "run_units"]

# Failures that a report lists.
MOST_FAILURES = 1000

OnRecord = Callable[[ShardRecord], None]


@dataclass
class Totals:
    """Sums over the finished groups of a run."""

    n_written: int = 0
    n_skipped: int = 0
    n_failed: int = 0
    n_moved_chunks: int = 0
    read_nbytes: int = 0
    written_nbytes: int = 0
    failures: list[ShardFailure] = field(default_factory=list)
    is_stopped: bool = False
    others: ObjectCounts = NO_OBJECTS

    def add(self, found: GroupResult) -> None:
        """Add the result of a group."""
        self.n_skipped += found.n_skipped
        self.n_written += len(found.records) + found.n_empty
        self.n_failed += len(found.failures)
        self.n_moved_chunks += sum(one.n_moved for one in found.records)
        self.read_nbytes += sum(one.read_nbytes for one in found.records)
        self.written_nbytes += sum(one.nbytes for one in found.records)
        self.failures += found.failures[: MOST_FAILURES - len(self.failures)]

    def add_totals(self, found: Totals) -> None:
        """Add the sums of a part of the run that another process did."""
        self.n_skipped += found.n_skipped
        self.n_written += found.n_written
        self.n_failed += found.n_failed
        self.n_moved_chunks += found.n_moved_chunks
        self.read_nbytes += found.read_nbytes
        self.written_nbytes += found.written_nbytes
        self.failures += found.failures[: MOST_FAILURES - len(self.failures)]

    def add_failure(self, found: ShardFailure) -> None:
        """Add a shard that is not stored any more as it was written."""
        self.n_failed += 1
        if len(self.failures) < MOST_FAILURES:
            self.failures.append(found)


def n_in_flight(plan: ConvertPlan, n_threads: int) -> int:
    """Return the number of groups that are worked on at a time."""
    need = max((one.need_nbytes for one in plan.arrays), default=1)
    return max(1, min(n_threads, plan.memory // max(1, need)))


def run_units(
    plan: ConvertPlan,
    work: GroupWork,
    units: Iterable[Unit],
    monitor: Monitor,
    *,
    n_threads: int,
    fail_fast: bool,
    on_record: OnRecord,
) -> Totals:
    """Run units; a stop is noted in the result, after the groups that were begun are finished.

    Parameters
    ----------
    plan : ConvertPlan
    work : GroupWork
    units : iterable of Unit
    monitor : Monitor
        It is asked between two groups whether to stop.
    n_threads : int
        Groups at a time, at most.
    fail_fast : bool
        Stop at the first failure.
    on_record : callable
        Called in this thread for each finished shard.
    """
    totals = Totals()
    rest = iter(units)
    at_a_time = n_in_flight(plan, n_threads)
    n_running = 0

    def take(ended: ThreadCall[GroupResult]) -> None:
        found = ended.result()
        for record in found.records:
            on_record(record)
        totals.add(found)
        monitor.advance(len(found.records) + found.n_skipped + len(found.failures) + found.n_empty)

    with WorkerThreads[GroupResult](at_a_time, "shardcodec-convert") as threads:
        error: BaseException | None = None
        try:
            while True:
                monitor.check()
                for unit in itertools.islice(rest, at_a_time - n_running):
                    threads.submit(work.run, unit)
                    n_running += 1
                if not n_running:
                    break
                # wake up now and then: the user may ask to stop while a long group runs
                if (ended := threads.next_finished(timeout=0.5)) is not None:
                    n_running -= 1
                    take(ended)
                if totals.n_failed and fail_fast:
                    break
        except Stopped:
            totals.is_stopped = True
        finally:
            while n_running and (ended := threads.next_finished()) is not None:
                n_running -= 1
                try:
                    take(ended)
                except Exception as found:  # noqa: BLE001 - the first one is raised, after all results are taken
                    error = error or found
        if error is not None:
            raise error
    return totals
