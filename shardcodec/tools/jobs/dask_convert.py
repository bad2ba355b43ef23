# dask_convert.py - the workers of dask run the units of a conversion
# SPDX-License-Identifier: MIT
"""`ConvertRun`: sends the units of a stored plan to workers, and adds up what they have written.

A task has the units of its batch, what earlier runs recorded of them, and no elements. A plug-in of the workers has the
path of the plan; it also reaches workers that join later or start again. A batch that dask runs twice, because a worker was
lost, stores the same shards again, each in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from distributed import KilledWorker

from ...format.metadata import key_encoding
from ...options import Options
from ..convert.plan import ConvertPlan, Unit
from ..convert.run import Totals, n_in_flight
from ..convert.shard_record import ShardFailure
from ..convert.work import Done
from ..monitor import Incomplete, Monitor, Stopped
from .batches import MOST_SECONDS, batches_of_plan
from .dask_run import Cluster, DaskRun, Lost, RunPlugin, worker_of_run
from .plan_worker import BatchResult, PlanWorker

__all__ = ["ConvertPlugin", "ConvertRun"]


class ConvertPlugin(RunPlugin):
    """Has the `PlanWorker` of one run in each worker; parameters as for it, and those of `RunPlugin`."""

    def __init__(
        self, job: str, owner: str, options: Options, *, memory: int, fail_fast: bool, is_own: bool
    ) -> None:
        super().__init__(memory=memory, is_own=is_own)
        self._job, self._owner, self._options, self._fail_fast = job, owner, options, fail_fast

    def make(self, worker: Any) -> PlanWorker:
        return PlanWorker(
            self._job,
            self._owner,
            self._options,
            n_threads=worker.state.nthreads,
            memory=self.memory_of(worker),
            fail_fast=self._fail_fast,
        )


def _run_batch(name: str, units: Sequence[Unit], done: Done) -> BatchResult:
    """Run a batch in a worker."""
    worker = worker_of_run(name)
    if worker is None:
        return BatchResult(Totals(), 0, 0.0)
    found: BatchResult = worker.run(units, done, MOST_SECONDS)
    return found


class ConvertRun:
    """One run of units on the workers; the parameters are those of `DaskWorkers.run`."""

    def __init__(
        self,
        workers: Cluster,
        plan: ConvertPlan,
        plugin: ConvertPlugin,
        units: Iterable[Unit],
        done: Done,
        monitor: Monitor,
        *,
        fail_fast: bool,
    ) -> None:
        self._plan, self._done, self._monitor, self._fail_fast = plan, done, monitor, fail_fast
        self._batches = batches_of_plan(plan, units)
        self._totals = Totals()
        self._error: BaseException | None = None
        self._run: DaskRun[list[Unit]] = DaskRun(workers, plugin, _run_batch, BatchResult, self._slots_of)

    def run(self) -> Totals:
        """Run all units, and return the sums."""
        try:
            self._run.register(self._monitor)
            self._add_all(
                self._run.answers(
                    lambda n: self._batches.take(n) or None,
                    lambda batch: (batch, self._recorded(batch)),
                    self._monitor,
                )
            )
        except Stopped:
            self._totals.is_stopped = True
        except Lost as error:
            self._add_rest()
            raise Incomplete(
                f"{error}, after {self._totals.n_written} shards were written; the job can be resumed"
            ) from error
        self._add_rest()
        if self._error is not None:
            raise self._error
        return self._totals

    def _slots_of(self, workers: Sequence[Any]) -> int:
        most = self._plan.n_threads
        return sum(n_in_flight(self._plan, min(one.n_threads, most)) for one in workers)

    def _recorded(self, batch: Sequence[Unit]) -> Done:
        """Return what earlier runs have recorded of the shards of a batch."""
        if not self._done:
            return {}
        arrays = self._plan.arrays
        shards = [
            (arrays[unit.array].name, at) for unit in batch for at in arrays[unit.array].coords(unit.group)
        ]
        return {shard: self._done[shard] for shard in shards if shard in self._done}

    def _add_all(self, answers: Iterator[tuple[list[Unit], Any]]) -> None:
        """Add results until one ends the run."""
        for batch, answer in answers:
            self._add(batch, answer)
            if self._error is not None or (self._totals.n_failed and self._fail_fast):
                return

    def _add_rest(self) -> None:
        """Stop the workers, and add what they still finish.

        A worker that does not answer in time stores nothing later, because the job no longer has its mark or is resumed.
        """
        for batch, answer in self._run.rest():
            self._add(batch, answer)

    def _add(self, batch: list[Unit], answer: Any) -> None:
        if isinstance(answer, KilledWorker):
            self._add_killed(batch, answer)
        elif isinstance(answer, BaseException):
            self._error = self._error or answer
        else:
            totals, n_units, seconds = answer
            if totals.n_written:
                self._batches.measured(batch[:n_units], seconds)
            self._batches.give_back(batch[n_units:])
            self._totals.add_totals(totals)
            self._monitor.advance(totals.n_written + totals.n_skipped + totals.n_failed)

    def _add_killed(self, batch: list[Unit], error: KilledWorker) -> None:
        detail = f"dask: its batch of {len(batch)} groups of shards ended several workers: {error}"
        for unit in batch:
            array = self._plan.arrays[unit.array]
            keys = key_encoding(self._plan.documents[array.name])
            for at in array.coords(unit.group):
                name = f"{array.name}/{keys.key(at)}".lstrip("/")
                self._totals.add_failure(ShardFailure(array.name, name, detail))
