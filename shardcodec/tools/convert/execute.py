# execute.py - carry out a plan, or a part of it
# SPDX-License-Identifier: MIT
"""`Execution`: opens what a plan names, runs units with or without ledger, and writes the documents at the end."""

from __future__ import annotations

from collections.abc import Iterable

from ...options import Options
from ..jobs.ledger import FoundLines, Ledger, read_ledgers
from ..monitor import Monitor, Stopped
from .convert_report import ConvertedArray, ConvertReport
from .destination import NewTree
from .plan import ConvertPlan, Unit
from .run import OnRecord, Totals, n_in_flight, run_units
from .shard_record import ShardRecord
from .source import Ints, SourceTree
from .work import Done, GroupWork

__all__ = ["Execution", "peak_nbytes", "recorded_shards", "run_report"]


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
    fail_fast : bool
        Stop at the first shard that cannot be written.
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
        fail_fast: bool,
    ) -> None:
        self._plan, self._tree, self._destination = plan, tree, destination
        self._options, self._monitor, self._job, self._fail_fast = options, monitor, job, fail_fast

    def run(self, units: Iterable[Unit], *, n_shards: int, finishes: bool) -> tuple[Totals, bool, int]:
        """Run units.

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
        ConflictError
            The source has changed, or another program has written metadata to the destination.
        """
        if "" in self._plan.documents:  # not of an intermediate array of a group
            self._destination.check_ours(self._plan.documents[""])
        found = FoundLines([], 0, 0) if self._job is None else read_ledgers(self._job, self._plan.fingerprint)
        done = recorded_shards(found)
        work = GroupWork(
            self._plan,
            self._tree,
            self._destination,
            self._options,
            done,
            records_source=self._job is not None,
        )
        name = self._plan.source
        self._monitor.start(name, n_shards)
        if self._job is None:
            totals = self._run(work, units, lambda record: None)
        else:
            with Ledger(self._job, self._plan.fingerprint) as ledger:
                totals = self._run(work, units, lambda record: ledger.append(record.to_json()))
        is_complete = False
        if not totals.is_stopped and not totals.n_failed:
            try:
                is_complete = self.finish() if finishes else self.finish_if_done()
            except Stopped:
                totals.is_stopped = True
        return totals, is_complete, found.n_damaged

    def _run(self, work: GroupWork, units: Iterable[Unit], on_record: OnRecord) -> Totals:
        return run_units(
            self._plan,
            work,
            units,
            self._monitor,
            n_threads=self._options.threads,
            fail_fast=self._fail_fast,
            on_record=on_record,
        )

    # ---- the end

    def finish(self) -> bool:
        """Copy arrays that are copied object by object, and write the documents; return True."""
        if self._destination.is_complete:
            return True
        for name in self._plan.verbatim:
            self._monitor.check()
            self._destination.copy_objects(self._tree.verbatim[name])
        self._destination.write_documents(self._plan.documents)
        return True

    def finish_if_done(self) -> bool:
        """Write the documents if the ledgers show that all shards are finished; return True if they are written."""
        assert self._job is not None
        if self._destination.is_complete:
            return True
        done = recorded_shards(read_ledgers(self._job, self._plan.fingerprint))
        if len(done) < self._plan.n_shards:
            return False
        work = GroupWork(self._plan, self._tree, self._destination, self._options, done)
        if work.n_unfinished(self._monitor):
            return False
        return self.finish()


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
    )


def peak_nbytes(plan: ConvertPlan, n_threads: int) -> int:
    """Return the memory of the elements and encoded chunks at a time, at most, in bytes."""
    return n_in_flight(plan, n_threads) * max((one.need_nbytes for one in plan.arrays), default=0)


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
