# run_plan.py - carry out a plan, or a part of it
# SPDX-License-Identifier: MIT
"""`Execution`: opens what a plan names, runs units with or without ledger, and writes the documents at the end."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ...format.array_document import encoded_document
from ...options import Options
from ...readable import format_nbytes
from ..job_mark import claim, has_claim, release
from ..jobs.job_files import Ledger, LedgerLines, read_ledgers
from ..left_parts import NOTHING_LEFT, LeftKind, LeftPart, LeftParts
from ..memory import MemoryBudget
from ..monitor import Incomplete, LostScheduler, Monitor, Stopped
from ..new_hierarchy import JobOver, NewHierarchy
from ..other_objects import ObjectCounts
from .plan import ConvertPlan, Unit
from .report import ConvertedArray, ConvertReport, ShardFailure, ShardRecord
from .source import Ints, SourceTree
from .write_group import Done, GroupWork
from .write_units import (
    FINISHED,
    ConvertTask,
    PlanPlace,
    RecordedUnit,
    Totals,
    UnitWriter,
    UntilFailure,
    batches_of_plan,
    is_finished,
    n_in_flight,
    recorded_shards,
    with_records,
)

if TYPE_CHECKING:
    from ..jobs.dask_workers import DaskWorkers

__all__ = ["Execution", "left_of", "peak_nbytes", "run_report"]


@dataclass
class Execution:
    """Carries out a plan, or a part of it.

    Attributes
    ----------
    tree : SourceTree
        The opened source.
    job : str or None
        Path of the plan, beside which the ledgers are; None for a run without ledger.
    owner : str
        Name of the job, which no other job has.
    workers : DaskWorkers or None
        They run the units of a job; None for threads of this process.
    """

    plan: ConvertPlan
    tree: SourceTree
    destination: NewHierarchy
    options: Options
    monitor: Monitor
    fail_fast: bool
    job: str | None = None
    owner: str = field(default_factory=lambda: uuid.uuid4().hex)
    workers: DaskWorkers | None = None

    def run(self, units: Iterable[Unit], *, n_shards: int, finishes: bool) -> tuple[Totals, bool, int]:
        """Run units, `n_shards` in all; return sums, True if the documents are written, and the number of damaged lines of ledgers.

        With `finishes` the documents are written if all units of the run succeed, without it if the ledgers show that all shards of the plan are
        finished. Once they are written, nothing is.
        """
        if self._is_over():
            return self._skip(n_shards), True, 0
        lines = self._lines()
        done = recorded_shards(lines)
        try:
            claim(self.destination, self.owner, self.job, is_begun=bool(done))
        except FileExistsError:
            if not self._is_over():
                raise
            # another worker has ended the job since the ledgers were read
            return self._skip(n_shards), True, 0
        self.monitor.start(self.plan.source, n_shards)
        job, fingerprint = self.job, self.plan.fingerprint
        with contextlib.nullcontext() if job is None else Ledger(job, fingerprint) as ledger:
            totals = self._run(units, done, ledger)
            is_complete = self._finish(ledger, totals, finishes)
        return totals, is_complete, lines.n_damaged

    def _is_over(self) -> bool:
        return self.job is not None and self.destination.is_complete

    def _skip(self, n_shards: int) -> Totals:
        """Skip all shards of a job whose documents are written."""
        assert self.job is not None
        with Ledger(self.job, self.plan.fingerprint) as ledger:
            self._check_end(ledger)
        self.monitor.start(self.plan.source, n_shards)
        self.monitor.advance(n_shards)
        return Totals(n_skipped=n_shards)

    def _lines(self) -> LedgerLines:
        return LedgerLines([], 0, 0) if self.job is None else read_ledgers(self.job, self.plan.fingerprint)

    def _check_end(self, ledger: Ledger | None) -> None:
        """Check that the documents are of this job, and end it where their writer has not: it may still run, or be killed.

        Raises
        ------
        FileExistsError
            Another job or program has written them.
        """
        # the line is stored before the mark is removed, so it is looked for afterwards
        is_marked = has_claim(self.destination, self.owner)
        is_ours = is_finished(self._lines())
        if not is_ours and not (is_marked and self.destination.has_document(self.plan.documents.get(""))):
            raise FileExistsError(
                f"{self.destination.place}: expected a new place, but it has metadata, and the ledgers do not show that the "
                f"job {self.job} has written them; convert to a new destination"
            )
        if not is_ours:
            self._record_end(ledger)
        if is_marked:
            release(self.destination)

    def _record_end(self, ledger: Ledger | None) -> None:
        """Store the line of the end, before the mark is removed: any other worker, on any machine, needs one of the two."""
        if ledger is not None:
            ledger.append({FINISHED: self.plan.n_shards})
            ledger.sync()

    def _run(self, units: Iterable[Unit], done: Done, ledger: Ledger | None) -> Totals:
        totals, n_empty = Totals(), 0
        until = UntilFailure(self.monitor, fail_fast=self.fail_fast)
        if self.workers is not None and self.job is not None:
            results = self._results_of_workers(
                self.workers, self.job, with_records(self.plan, units, done), until
            )
        else:
            results, n_empty = self._results_of_threads(units, done, ledger, until)
        try:
            with closing(results):
                for _, part in results:
                    totals.add(part)
                    until.add(part)
                    self.monitor.add_nbytes(part.counts["written_nbytes"])
                    self.monitor.advance(part.n_shards)
        except Stopped:
            totals.is_stopped = not until.has_failed
        except LostScheduler as error:
            raise Incomplete(
                f"{error}, after {totals.counts['n_written']} shards were written; the job can be resumed"
            ) from error
        if n_empty and not totals.is_stopped:
            totals.add(Totals(n_written=n_empty, n_empty=n_empty))
            self.monitor.advance(n_empty)
        return totals

    def _results_of_threads(
        self, units: Iterable[Unit], done: Done, ledger: Ledger | None, monitor: Monitor
    ) -> tuple[Generator[tuple[Any, Totals], None, None], int]:
        """Return the results of the units, in any order, and the number of shards of which nothing is stored.

        Without a job, the stored units of the plan replace `units`.
        """
        known: dict[tuple[str, Ints], Sequence[ShardRecord]] = {}
        groups = GroupWork(
            self.plan,
            self.tree,
            self.destination,
            self.options,
            known,
            records_source=self.job is not None,
        )
        n_empty = 0
        if self.job is None:  # a ledger has a line for each shard, empty or not
            units, n_empty = groups.stored_units()
        n_threads = n_in_flight(self.plan, self.options.threads)
        writer = UnitWriter(groups, known, ledger, n_threads=n_threads, fail_fast=self.fail_fast)
        return writer.run(with_records(self.plan, units, done), monitor, n_threads), n_empty

    def _results_of_workers(
        self, workers: DaskWorkers, job: str, units: Iterable[RecordedUnit], monitor: Monitor
    ) -> Generator[tuple[Any, Totals], None, None]:
        need = max((array.grouping.need_nbytes for array in self.plan.arrays), default=0)
        if need > workers.memory:
            raise ValueError(
                f"memory: expected workers with at least {format_nbytes(need)} for a group of shards, as the job was planned, got "
                f"{format_nbytes(workers.memory)}; use larger workers, or begin a new job"
            )
        # the job may have been begun with larger workers
        plan = replace(self.plan, memory=min(self.plan.memory, workers.memory))
        return workers.in_order(
            PlanPlace(job, self.owner),
            ConvertTask(self.fail_fast),
            batches_of_plan(plan, units),
            self.options,
            monitor,
            most_threads=n_in_flight(plan, plan.n_threads),
        )

    def _finish(self, ledger: Ledger | None, totals: Totals, finishes: bool) -> bool:
        """Copy what is copied object by object, and write the documents, if all shards are finished; return True if the documents are written.

        Raises
        ------
        FileExistsError
            Another program has written documents meanwhile.
        """
        if totals.is_stopped or totals.failures:
            return False
        try:
            if not self._is_over() and not self._has_all_shards(totals, finishes):
                return False
            if not self.destination.is_complete:
                self._copy_objects(totals)
                if totals.failures:
                    return False
                nodes = {
                    name: {"zarr.json": encoded_document(node)} for name, node in self.plan.documents.items()
                }
                # a killed worker may have written some of them
                self.destination.write_documents(nodes, may_replace=True)
                self._record_end(ledger)
                release(self.destination)
                return True
        except Stopped:
            totals.is_stopped = True
            return False
        except JobOver:  # another worker was faster
            pass
        self._check_end(ledger)
        return True

    def _has_all_shards(self, totals: Totals, finishes: bool) -> bool:
        """Return True if all shards of a job are stored as the ledgers show, and the source has not changed; failures are added to `totals`."""
        if self.job is None:
            return True
        done = recorded_shards(self._lines())
        work = GroupWork(self.plan, self.tree, self.destination, self.options, done)
        if finishes and self.workers is None:
            work.check_sources(self.monitor)
            return True
        if len(done) < self.plan.n_shards:
            if not finishes:
                return False
            raise Incomplete(
                f"{self.job}: expected {self.plan.n_shards} shards in the ledgers of the workers, got {len(done)}; all workers must "
                "reach the folder of the plan, and write there; the job can be resumed"
            )
        for failure in work.unfinished(self.monitor):
            totals.failures.add(failure)
        return not totals.failures

    def _copy_objects(self, totals: Totals) -> None:
        """Copy the arrays that are copied object by object, and all objects that belong to no array."""
        others, new = self.tree.others, self.destination
        durable = self.options.durability == "fsync"
        budget = MemoryBudget(self.plan.memory)
        for name in self.plan.verbatim:
            self.monitor.check()
            array = self.tree.verbatim[name]
            for left in new.copy_array(array, budget, durable=durable, may_replace=True):
                totals.failures.add(ShardFailure(name, left.name, left.reason))
        if others is not None:  # an earlier run of the job may have copied some
            totals.others = new.copy_others(others, budget, self.options, self.monitor, may_replace=True)


def run_report(
    plan: ConvertPlan,
    options: Options,
    totals: Totals,
    n_shards: int,
    is_complete: bool,
    n_damaged: int,
    arrays: tuple[ConvertedArray, ...],
    left: LeftParts,
) -> ConvertReport:
    """Return the report of a run; `left` is what it does not carry over."""
    return ConvertReport(
        source=plan.source,
        destination=plan.destination,
        dry_run=False,
        is_complete=is_complete,
        n_shards=n_shards,
        n_failed=totals.failures.n,
        memory_nbytes=peak_nbytes(plan, options.threads),
        n_damaged_lines=n_damaged,
        arrays=arrays,
        failures=tuple(totals.failures),
        is_stopped=totals.is_stopped,
        others=replace(totals.others, parts=left),
        **totals.counts,
    )


def left_of(tree: SourceTree, plan: ConvertPlan, others: ObjectCounts) -> LeftParts:
    """Return all that a conversion does not carry over; `others` are the objects that belong to no array, counted or copied."""
    # of the arrays of a stored plan, the tree has only those that are converted
    known = {one.name for one in tree.left_arrays}
    of_arrays = (LeftPart(LeftKind.OF_ARRAY, one.name, note) for one in tree.arrays for note in one.notes)
    of_plan = (one for one in plan.left_out if one.name not in known)
    return NOTHING_LEFT + tree.left + of_plan + of_arrays + others.parts


def peak_nbytes(plan: ConvertPlan, n_threads: int) -> int:
    """Return the memory of the elements and encoded chunks at a time, at most, in bytes."""
    return n_in_flight(plan, n_threads) * max(
        (array.grouping.need_nbytes for array in plan.arrays), default=0
    )
