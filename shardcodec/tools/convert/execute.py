# execute.py - carry out a plan, or a part of it
# SPDX-License-Identifier: MIT
"""`Execution`: opens what a plan names, runs units with or without ledger, and writes the documents at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from ...options import Options
from ..backup import holds_whole
from ..jobs.ledger import FoundLines, Ledger, read_ledgers
from ..memory_budget import MemoryBudget
from ..monitor import Incomplete, Monitor, Stopped
from ..other_objects import OtherObject, copy_objects
from .claim import claim, guard, has_claim, release
from .convert_report import ConvertedArray, ConvertReport
from .destination import JobOver, NewTree
from .plan import ConvertPlan, Unit
from .run import OnRecord, Totals, n_in_flight, run_units
from .shard_record import ShardRecord
from .source import Ints, SourceTree
from .work import Done, GroupWork

__all__ = ["Execution", "Workers", "is_finished", "peak_nbytes", "recorded_shards", "run_report"]

# Member of the line of a ledger that says that the documents are written.
FINISHED = "finished"


class Workers(Protocol):
    """Other processes that run the units of a stored plan, and append finished shards to ledgers of their own."""

    def run(
        self,
        plan: ConvertPlan,
        job: str,
        owner: str,
        options: Options,
        units: Iterable[Unit],
        done: Done,
        monitor: Monitor,
        *,
        fail_fast: bool,
    ) -> Totals:
        """Run units; `job` is the path of the plan, `owner` the name of the job, `done` what earlier runs have recorded."""


class Execution:
    """Carries out a plan.

    Parameters
    ----------
    plan : ConvertPlan
    tree : SourceTree
        The opened source.
    destination : NewTree
    options : Options
    monitor : Monitor
    job : str or None
        Path of the plan, beside which the ledgers are; None for a run without ledger.
    owner : str
        Name of the job, which no other job has.
    fail_fast : bool
        Stop at the first shard that cannot be written.
    workers : Workers, optional
        They run the units of a job. Default: threads of this process.
    """

    def __init__(
        self,
        plan: ConvertPlan,
        tree: SourceTree,
        destination: NewTree,
        options: Options,
        monitor: Monitor,
        *,
        job: str | None,
        owner: str,
        fail_fast: bool,
        workers: Workers | None = None,
    ) -> None:
        self._owner, self._workers = owner, workers
        self._plan, self._tree, self._destination = plan, tree, destination
        self._options, self._monitor, self._job, self._fail_fast = options, monitor, job, fail_fast

    def run(self, units: Iterable[Unit], *, n_shards: int, finishes: bool) -> tuple[Totals, bool, int]:
        """Run units. Once the documents are written, nothing is.

        Parameters
        ----------
        units : iterable of Unit
        n_shards : int
            Number of their shards.
        finishes : bool
            Write the documents if all units of the run succeed. Without it they are written if the ledgers show
            that all shards of the plan are finished.

        Returns
        -------
        totals : Totals
        is_complete : bool
            The documents are written.
        n_damaged : int
            Damaged lines of ledgers.

        Raises
        ------
        FileExistsError
            The destination has metadata or objects that are not of this job.
        ConflictError
            The source has changed since an earlier run, or during this one.
        """
        if self._is_over():
            return self._skip(n_shards), True, 0
        found = self._lines()
        done = recorded_shards(found)
        try:
            claim(self._destination, self._owner, self._job, is_begun=bool(done))
        except FileExistsError:
            if not self._is_over():
                raise
            return (
                self._skip(n_shards),
                True,
                0,
            )  # another worker has ended the job since the ledgers were read
        if self._job is not None:
            self._destination.before_store = guard(self._destination, self._owner)
        self._monitor.start(self._plan.source, n_shards)
        if self._job is None:
            totals = self._run(units, done, lambda record: None)
            is_complete = self._end(totals, lambda: self._finish(None, totals))
            return totals, is_complete, found.n_damaged
        with Ledger(self._job, self._plan.fingerprint) as ledger:
            totals = self._run(units, done, lambda record: ledger.append(record.to_json()))
            is_complete = self._end(totals, lambda: self._finish_job(ledger, totals, finishes))
        return totals, is_complete, found.n_damaged

    def _is_over(self) -> bool:
        return self._job is not None and self._destination.is_complete

    def _skip(self, n_shards: int) -> Totals:
        """Skip all shards of a job whose documents are written."""
        assert self._job is not None
        with Ledger(self._job, self._plan.fingerprint) as ledger:
            self._check_end(ledger)
        self._monitor.start(self._plan.source, n_shards)
        self._monitor.advance(n_shards)
        return Totals(n_skipped=n_shards)

    def _lines(self) -> FoundLines:
        return FoundLines([], 0, 0) if self._job is None else read_ledgers(self._job, self._plan.fingerprint)

    def _check_end(self, ledger: Ledger | None) -> None:
        """Check that the documents are of this job, and end it where their writer has not: it may still run, or be killed.

        Raises
        ------
        FileExistsError
            Another job or program has written them.
        """
        # the line is stored before the mark is removed, so it is looked for afterwards
        is_marked = has_claim(self._destination, self._owner)
        is_ours = is_finished(self._lines())
        if not is_ours and not (is_marked and self._destination.has_document(self._plan.documents.get(""))):
            raise FileExistsError(
                f"{self._destination.place}: expected a new place, but it has metadata, and the ledgers do not show that the "
                f"job {self._job} has written them; convert to a new destination"
            )
        if not is_ours:
            self._record_end(ledger)
        if is_marked:
            release(self._destination)

    def _record_end(self, ledger: Ledger | None) -> None:
        """Store the line of the end, before the mark is removed: any other worker, on any machine, needs one of the two."""
        if ledger is not None:
            ledger.append({FINISHED: self._plan.n_shards})
            ledger.sync()

    def _run(self, units: Iterable[Unit], done: Done, on_record: OnRecord) -> Totals:
        if self._workers is not None and self._job is not None:
            return self._workers.run(
                self._plan,
                self._job,
                self._owner,
                self._options,
                units,
                done,
                self._monitor,
                fail_fast=self._fail_fast,
            )
        work = GroupWork(
            self._plan,
            self._tree,
            self._destination,
            self._options,
            done,
            records_source=self._job is not None,
        )
        n_empty = 0
        if self._job is None:  # a ledger has a line for each shard, empty or not
            units, n_empty = work.stored_units()
        totals = run_units(
            self._plan,
            work,
            units,
            self._monitor,
            n_threads=self._options.threads,
            fail_fast=self._fail_fast,
            on_record=on_record,
        )
        if not totals.is_stopped:
            totals.n_written += n_empty
            self._monitor.advance(n_empty)
        return totals

    # ---- the end

    @staticmethod
    def _end(totals: Totals, finish: Callable[[], bool]) -> bool:
        if totals.is_stopped or totals.n_failed:
            return False
        try:
            return finish()
        except Stopped:
            totals.is_stopped = True
            return False

    def _finish(self, ledger: Ledger | None, totals: Totals) -> bool:
        """Copy what is copied object by object, and write the documents; return True.

        Raises
        ------
        FileExistsError
            Another program has written documents meanwhile.
        """
        if self._destination.is_complete:
            self._check_end(ledger)
            return True
        try:
            self._copy_objects(totals)
        except JobOver:  # another worker was faster
            self._check_end(ledger)
            return True
        self._destination.write_documents(self._plan.documents)
        self._record_end(ledger)
        release(self._destination)
        return True

    def _copy_objects(self, totals: Totals) -> None:
        """Copy the arrays that are copied object by object, and all objects that belong to no array."""
        others, new = self._tree.others, self._destination
        durable = self._options.durability == "fsync"
        budget = MemoryBudget(self._plan.memory)
        for name in self._plan.verbatim:
            self._monitor.check()
            new.copy_objects(self._tree.verbatim[name], budget, durable=durable)
        if others is None:
            return

        def copy(one: OtherObject) -> int | None:
            # an earlier run of the job may have copied it
            return new.copy(others.store, one.key, one.name, budget, durable=durable, may_replace=True)

        # in threads only if none of them holds a whole object
        n_threads = 1 if holds_whole(new.root.store, new.root.prefix) else self._options.threads
        totals.others = copy_objects(others, copy, self._monitor, n_threads)

    def _finish_job(self, ledger: Ledger, totals: Totals, finishes: bool) -> bool:
        """Finish if all shards are, and the source has not changed; return True if the documents are written."""
        if self._destination.is_complete:
            self._check_end(ledger)
            return True
        done = recorded_shards(self._lines())
        work = GroupWork(self._plan, self._tree, self._destination, self._options, done)
        if finishes and self._workers is None:
            work.check_sources(self._monitor)
            return self._finish(ledger, totals)
        if len(done) < self._plan.n_shards:
            if not finishes:
                return False
            raise Incomplete(
                f"{self._job}: expected {self._plan.n_shards} shards in the ledgers of the workers, got {len(done)}; all workers must "
                "reach the folder of the plan, and write there; the job can be resumed"
            )
        for failure in work.unfinished(self._monitor):
            totals.add_failure(failure)
        return not totals.n_failed and self._finish(ledger, totals)


def run_report(
    plan: ConvertPlan,
    options: Options,
    totals: Totals,
    n_shards: int,
    is_complete: bool,
    n_damaged: int,
    arrays: tuple[ConvertedArray, ...],
) -> ConvertReport:
    """Return the report of a run."""
    return ConvertReport(
        plan.source,
        plan.destination,
        False,
        is_complete,
        n_shards,
        totals.n_written,
        totals.n_skipped,
        totals.n_failed,
        totals.n_moved_chunks,
        totals.read_nbytes,
        totals.written_nbytes,
        peak_nbytes(plan, options.threads),
        n_damaged,
        arrays,
        tuple(totals.failures),
        totals.is_stopped,
        totals.others,
    )


def peak_nbytes(plan: ConvertPlan, n_threads: int) -> int:
    """Return the memory of the elements and encoded chunks at a time, at most, in bytes."""
    return n_in_flight(plan, n_threads) * max((one.need_nbytes for one in plan.arrays), default=0)


def is_finished(found: FoundLines) -> bool:
    """Return True if ledgers show that the documents were written."""
    return any(FINISHED in line for line in found.lines)


def recorded_shards(found: FoundLines) -> Done:
    """Return the finished shards that ledgers show."""
    done: dict[tuple[str, Ints], list[ShardRecord]] = {}
    for line in found.lines:
        try:
            record = ShardRecord(**{**line, "coords": tuple(line["coords"])})
        except (KeyError, TypeError):
            continue  # a line of a later version
        done.setdefault((record.array, record.coords), []).append(record)
    return done
