# write_units.py - write the units of a plan, and record the finished shards
# SPDX-License-Identifier: MIT
"""`UnitWriter`: writes units of a plan in threads of this process, and appends each finished shard to a ledger."""

from __future__ import annotations

import math
import socket
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...errors import ConflictError
from ...format.chunk_keys import key_encoding
from ...options import Options
from ...storage.url_stores import is_url
from ..capped import LISTED, Capped
from ..job_mark import guard
from ..jobs.batches import Batches
from ..jobs.job_files import Ledger, LedgerLines, PlanFile, read_ledgers
from ..jobs.shard_work import ShardTask, TaskPlace
from ..memory import MemoryBudget
from ..monitor import Monitor, Stopped
from ..new_hierarchy import NewHierarchy
from ..node_selection import Selection
from ..other_objects import NO_OBJECTS
from ..shard_threads import in_order
from .open_source import open_source
from .plan import ConvertPlan, Unit, check_same_source
from .report import ShardFailure, ShardRecord
from .source import Ints, SourceTree
from .write_group import Done, GroupResult, GroupWork

__all__ = [
    "FINISHED",
    "ConvertTask",
    "OpenPlan",
    "PlanPlace",
    "RecordedUnit",
    "Totals",
    "UnitWriter",
    "UntilFailure",
    "batches_of_plan",
    "is_finished",
    "n_in_flight",
    "open_plan",
    "recorded_shards",
    "with_records",
]

# Member of the line of a ledger that says that the documents are written.
FINISHED = "finished"

# A unit, and the records of earlier runs of its shards.
RecordedUnit = tuple[Unit, Done]


class Totals:
    """Sums over the finished units of a run.

    Attributes
    ----------
    counts : dict
        The sums of `ConvertReport`, by the names of its fields.
    failures : Capped of ShardFailure
    is_stopped : bool
    others : ObjectCounts
    """

    def __init__(self, failures: Sequence[ShardFailure] = (), **counts: int) -> None:
        self.counts: dict[str, int] = _NO_COUNTS | counts
        self.failures: Capped[ShardFailure] = Capped.of(failures, LISTED) if failures else Capped()
        self.is_stopped: bool = False
        self.others = NO_OBJECTS

    @classmethod
    def of(cls, group: GroupResult) -> Totals:
        """Return the sums over one unit."""
        return cls(
            group.failures,
            n_written=len(group.records) + group.n_empty,
            n_empty=group.n_empty + sum(not record.nbytes for record in group.records),
            n_skipped=group.n_skipped,
            n_moved_chunks=sum(record.n_moved for record in group.records),
            read_nbytes=sum(record.read_nbytes for record in group.records),
            written_nbytes=sum(record.nbytes for record in group.records),
        )

    @property
    def n_shards(self) -> int:
        """Number of shards, however they ended."""
        return self.counts["n_written"] + self.counts["n_skipped"] + self.failures.n

    def add(self, more: Totals) -> None:
        """Add the sums over further units."""
        for name, n in more.counts.items():
            self.counts[name] += n
        if more.failures:
            self.failures.merge(more.failures)


_NO_COUNTS = dict.fromkeys(
    ("n_written", "n_empty", "n_skipped", "n_moved_chunks", "read_nbytes", "written_nbytes"), 0
)


class UntilFailure(Monitor):
    """Also stops a run after its first failure, if `fail_fast` is True; the units that were begun are finished."""

    def __init__(self, monitor: Monitor, *, fail_fast: bool) -> None:
        self._monitor, self._fail_fast = monitor, fail_fast
        self.has_failed: bool = False

    def add(self, part: Totals) -> None:
        """Note the result of a unit."""
        self.has_failed = self.has_failed or (self._fail_fast and part.failures.n > 0)

    def check(self) -> None:
        if self.has_failed:
            raise Stopped
        self._monitor.check()


def n_in_flight(plan: ConvertPlan, n_threads: int) -> int:
    """Return the number of units that fit into the memory at the same time."""
    need = max((array.grouping.need_nbytes for array in plan.arrays), default=1)
    return max(1, min(n_threads, plan.memory // max(1, need)))


class UnitWriter:
    """Writes units of a plan that is open; see `ShardTool`.

    `done` is the mapping that `groups` looks up. The records of a unit are in it only while the unit is written.
    """

    def __init__(
        self,
        groups: GroupWork,
        done: dict[tuple[str, Ints], Sequence[ShardRecord]],
        ledger: Ledger | None,
        *,
        n_threads: int,
        fail_fast: bool,
    ) -> None:
        self._groups, self._done, self._ledger, self._fail_fast = groups, done, ledger, fail_fast
        self.n_threads = n_threads

    def run(
        self, units: Iterable[RecordedUnit], monitor: Monitor, n_threads: int
    ) -> Generator[tuple[int, Totals], None, None]:
        """Write units; with several threads the results come as they are ready. After a failure there may be fewer of them."""
        until = UntilFailure(monitor, fail_fast=self._fail_fast)
        try:
            with closing(in_order(units, self._write, n_threads, until, any_order=True)) as parts:
                for part in parts:
                    until.add(part)
                    yield 1, part
        except Stopped:
            if not until.has_failed:
                raise
        finally:
            if self._ledger is not None:
                self._ledger.sync()

    def _write(self, unit: RecordedUnit) -> Totals:
        """Write a unit, in a thread; its shards are in the ledger when this returns."""
        where, records = unit
        self._done.update(records)
        try:
            group = self._groups.run(where)
        finally:
            for shard in records:
                self._done.pop(shard, None)
        if self._ledger is not None:
            for record in group.records:
                self._ledger.append(record.to_json())
        return Totals.of(group)


# `open_plan`: a process opens what a plan names, and checks that it is what was planned. `PlanPlace` and `ConvertTask`: the same on a
# worker, which also checks that the job is not over.


def open_plan(file: PlanFile, options: Options) -> tuple[SourceTree, NewHierarchy]:
    """Open source and destination of a plan.

    Raises
    ------
    ConflictError
        The source has changed since the plan was made.
    FileNotFoundError, SpecError, UnsupportedError, ImportError
        The source or the destination cannot be opened.
    """
    plan = file.plan
    tree = open_source(
        file.source,
        options,
        selection=Selection(nodes=frozenset(plan.documents)),
        others=plan.others,
        folders=plan.folders or None,
        storage_options=file.storage_options if is_url(file.source) else None,
    )
    new = NewHierarchy(file.destination, file.storage_options)
    check_same_source(plan, tree, new)
    return tree, new


class OpenPlan(NamedTuple):
    """A stored plan in this process, with its memory, and the ledger of this process."""

    plan: ConvertPlan
    tree: SourceTree
    destination: NewHierarchy
    ledger: Ledger


@dataclass(frozen=True)
class PlanPlace(TaskPlace[RecordedUnit]):
    """A stored plan, as another process finds it.

    Attributes
    ----------
    job : str
        Path of the plan.
    owner : str
        Name of the job that the plan must have.
    """

    job: str
    owner: str

    def open(self, options: Options) -> OpenPlan:
        """Open the plan in this process.

        Raises
        ------
        FileNotFoundError
            The plan, the source or the destination is not reached from this machine.
        ConflictError
            The source has changed, or the plan is that of another job.
        SpecError, UnsupportedError, ValueError, ImportError
            Source or destination cannot be opened.
        """
        file = self._read_plan()
        tree, new = open_plan(file, replace(options, threads=1))
        # a job that is over has no mark
        is_over = is_finished(read_ledgers(self.job, file.plan.fingerprint))
        if not guard(new, self.owner) and not is_over:
            raise FileNotFoundError(
                f"{new.place}: expected the mark of the job {self.job} on the worker at {socket.gethostname()}, but there is none; "
                "all workers must reach the destination under the same path"
            )
        return OpenPlan(file.plan, tree, new, Ledger(self.job, file.plan.fingerprint))

    def _read_plan(self) -> PlanFile:
        host = socket.gethostname()
        try:
            file = PlanFile.read(self.job)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.job}: expected the plan on the worker at {host}, but it is not there; all workers must reach "
                "the plan, the source and the destination under the same paths"
            ) from error
        if file.job != self.owner:
            raise ConflictError(
                f"{self.job}: expected the plan of the job {self.owner} on the worker at {host}, got that of {file.job}; all workers "
                "must reach the same file",
                expected=self.owner,
                actual=file.job,
            )
        return file


@dataclass(frozen=True)
class ConvertTask(ShardTask[RecordedUnit, Totals]):
    """How the units of a plan are written. A batch ends at the first failure if `fail_fast` is True."""

    fail_fast: bool

    def open(self, opened: OpenPlan, options: Options, budget: MemoryBudget) -> UnitWriter:
        assert budget.nbytes is not None
        plan = replace(opened.plan, memory=min(budget.nbytes, opened.plan.memory))
        # a batch with one thread gets the memory that the plan has for one thread
        share = replace(plan, memory=plan.memory // plan.n_threads)
        done: dict[tuple[str, Ints], Sequence[ShardRecord]] = {}
        groups = GroupWork(share, opened.tree, opened.destination, replace(options, threads=1), done)
        n_threads = n_in_flight(plan, min(options.threads, plan.n_threads))
        return UnitWriter(groups, done, opened.ledger, n_threads=n_threads, fail_fast=self.fail_fast)

    def weight(self, result: Totals) -> int:
        return result.counts["n_written"] + result.failures.n

    def close(self, opened: OpenPlan) -> None:
        opened.ledger.close()


def batches_of_plan(plan: ConvertPlan, units: Iterable[RecordedUnit]) -> Batches[RecordedUnit, Totals]:
    """Return the batches of units of a plan."""
    shards = [math.prod(array.grouping.shards) for array in plan.arrays]
    costs = [n * math.prod(array.shard_shape) for n, array in zip(shards, plan.arrays, strict=True)]
    left = sum(math.prod(array.groups) * cost for array, cost in zip(plan.arrays, costs, strict=True))

    def failed(unit: RecordedUnit, detail: str) -> Totals:
        array = plan.arrays[unit[0].array]
        keys = key_encoding(plan.documents[array.name])
        totals = Totals()
        for at in array.coords(unit[0].group):
            name = f"{array.name}/{keys.key(at)}".lstrip("/")
            totals.failures.add(ShardFailure(array.name, name, detail))
        return totals

    return Batches(
        units,
        cost=lambda unit: costs[unit[0].array],
        n_shards=lambda unit: shards[unit[0].array],
        left=left,
        failed=failed,
    )


def is_finished(ledgers: LedgerLines) -> bool:
    """Return True if ledgers show that the documents were written."""
    return any(FINISHED in line for line in ledgers.lines)


def recorded_shards(ledgers: LedgerLines) -> Done:
    """Return the finished shards that ledgers show."""
    done: dict[tuple[str, Ints], list[ShardRecord]] = {}
    for line in ledgers.lines:
        try:
            record = ShardRecord.from_json(line)
        except (KeyError, TypeError):
            continue  # a line of a later version
        done.setdefault((record.array, record.coords), []).append(record)
    return done


def with_records(plan: ConvertPlan, units: Iterable[Unit], done: Done) -> Iterator[RecordedUnit]:
    """Yield units with what earlier runs have recorded of their shards, so that a worker gets no records of others."""
    for unit in units:
        array = plan.arrays[unit.array]
        shards = [(array.name, at) for at in array.coords(unit.group)] if done else []
        yield unit, {shard: done[shard] for shard in shards if shard in done}
