# dask_work.py - what a worker of dask does: batches of shards or of units
# SPDX-License-Identifier: MIT
"""What a worker of dask does: batches of shards or of units.

`ConvertRun`: sends the units of a stored plan to workers, and adds up what they have written.

A task has the units of its batch, what earlier runs recorded of them, and no elements. A plug-in of the workers has the
path of the plan; it also reaches workers that join later or start again. A batch that dask runs twice, because a worker was
lost, stores the same shards again, each in one step.
"""

from __future__ import annotations

import math
import socket
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, TypeVar

from distributed import KilledWorker

from ...errors import ConflictError
from ...format.metadata import key_encoding
from ...options import Options
from ..convert.execute import Totals, is_finished, n_in_flight, run_units
from ..convert.plan import ConvertPlan, Unit
from ..convert.report import ShardFailure, ShardRecord
from ..convert.source import Ints
from ..convert.work import Done, GroupWork
from ..new_hierarchy import NewHierarchy, guard, has_claim
from ..targets import ArrayTarget, ShardTarget
from ..work import Incomplete, Monitor, Stopped
from .dask_run import Cluster, DaskRun, Lost, RunPlugin, worker_of_run
from .job_files import Ledger, PlanFile, read_ledgers
from .run_part import open_plan
from .shard_work import (
    MOST_SECONDS,
    ArrayPlace,
    BatchEnd,
    Batches,
    Name,
    ShardBatch,
    ShardTask,
    ShardWorker,
    batches_of_plan,
    is_stored,
)

__all__ = [
    "BatchResult",
    "ConvertPlugin",
    "ConvertRun",
    "PlanWorker",
    "ShardPlugin",
    "ShardRun",
    "unseen",
]


# ---------------------------------------------------------------- the workers of dask work on the shards of an array
#
# `ShardRun`: sends the shards of one array to workers in batches, and yields the results in the order of the shards.
#
# A task has the keys of its shards. A batch that dask runs twice, because a worker was lost, must do no harm: a tool changes
# nothing, or replaces whole shards, each in one step and so that the second time gives the same result. A batch that ends several workers is divided until the shard is
# found that does.

R = TypeVar("R")

# Batches whose results wait for those of an earlier one, for each batch that runs.
AHEAD = 4


class ShardPlugin(RunPlugin):
    """Has the `ShardWorker` of one run in each worker; parameters as for it, and those of `RunPlugin`."""

    def __init__(
        self,
        place: ArrayPlace,
        task: ShardTask[Any],
        options: Options,
        *,
        n_threads: int,
        memory: int,
        is_own: bool,
    ) -> None:
        super().__init__(memory=memory, is_own=is_own)
        self._place, self._task, self._options, self._n_threads = place, task, options, n_threads

    def make(self, worker: Any) -> ShardWorker:
        n_threads = min(worker.state.nthreads, self._n_threads)
        memory = self.memory_of(worker)
        return ShardWorker(self._place, self._task, self._options, n_threads=n_threads, memory=memory)


def _run_shards(name: str, names: Sequence[Name]) -> ShardBatch:
    """Run a batch in a worker."""
    worker = worker_of_run(name)
    if worker is None:
        return ShardBatch([], [], 0.0, None, "")
    found: ShardBatch = worker.run(names, MOST_SECONDS)
    return found


@dataclass(eq=False)
class _Batch(Generic[R]):
    """Shards that lie one after the other, and their results."""

    shards: list[ShardTarget]
    results: list[tuple[list[ShardTarget], R]] = field(default_factory=list)
    has_ended: bool = False
    error: BaseException | None = None


class ShardRun(Generic[R]):
    """One run over the shards of an array; the parameters are those of `DaskWorkers.in_order`.

    Parameters
    ----------
    most_threads : int
        Batches of each worker at the same time, at most.
    """

    def __init__(
        self,
        workers: Cluster,
        plugin: ShardPlugin,
        task: ShardTask[R],
        array: ArrayTarget,
        shards: Iterable[ShardTarget],
        monitor: Monitor,
        *,
        most_threads: int,
    ) -> None:
        self._task, self._monitor = task, monitor
        cost = math.prod(array.shard_spec.shard_shape)
        left = array.n_grid_shards * cost
        self._batches = Batches(shards, cost=lambda shard: cost, n_shards=lambda shard: 1, left=left)
        self._order: deque[_Batch[R]] = deque()
        self._again: deque[_Batch[R]] = deque()  # batches of which a part is left
        self._run: DaskRun[_Batch[R]] = DaskRun(
            workers,
            plugin,
            _run_shards,
            ShardBatch,
            lambda found: sum(min(one.n_threads, most_threads) for one in found),
        )

    def results(self) -> Generator[tuple[list[ShardTarget], R], None, None]:
        """Yield the results; see `DaskWorkers.in_order`."""
        error: Exception | None = None
        try:
            self._run.register(self._monitor)
            for batch, answer in self._run.answers(self._take, _names, self._monitor):
                self._add(batch, answer)
                yield from self._ready()
        except Exception as found:  # noqa: BLE001 - it is raised after the results of shards that are finished
            error = found
        finally:
            for batch, answer in self._run.rest():
                self._add(batch, answer)
        for batch in self._order:
            yield from batch.results
        errors = [error, *(batch.error for batch in self._order)]
        first = next((one for one in errors if one is not None and not isinstance(one, Stopped)), error)
        if first is not None:
            raise first

    def _take(self, n_slots: int) -> _Batch[R] | None:
        """Return the next batch; None if there is none, or if too many results wait for an earlier one."""
        if self._again:
            return self._again.popleft()
        if len(self._order) > AHEAD * (n_slots + 1):
            return None
        shards = self._batches.take(n_slots)
        if not shards:
            return None
        self._order.append(_Batch(shards))
        return self._order[-1]

    def _add(self, batch: _Batch[R], answer: Any) -> None:
        batch.has_ended = True
        if isinstance(answer, KilledWorker):
            self._divide(batch, answer)
        elif isinstance(answer, BaseException):
            batch.error = answer
        else:
            self._add_results(batch, answer)

    def _add_results(self, batch: _Batch[R], found: ShardBatch) -> None:
        n_done = 0
        for n, result in found.results:
            batch.results.append((batch.shards[n_done : n_done + n], result))
            n_done += n
        batch.error = found.error or unseen(batch.shards, found)
        if n_done:
            self._batches.measured(batch.shards[:n_done], found.seconds)
        if batch.error is None:
            self._insert(batch, batch.shards[n_done:])

    def _divide(self, batch: _Batch[R], error: KilledWorker) -> None:
        """Run both halves of a batch that ended several workers; of a single shard this is the result."""
        if len(batch.shards) == 1:
            detail = f"dask: the work on it ended several workers: {error}"
            batch.results.append((batch.shards, self._task.failed(batch.shards[0], detail)))
            return
        half = len(batch.shards) // 2
        self._insert(batch, batch.shards[half:])
        self._insert(batch, batch.shards[:half])

    def _insert(self, batch: _Batch[R], shards: list[ShardTarget]) -> None:
        """Run shards later, whose results come after those of a batch."""
        if shards:
            later: _Batch[R] = _Batch(shards)
            self._order.insert(self._order.index(batch) + 1, later)
            self._again.appendleft(later)

    def _ready(self) -> Iterator[tuple[list[ShardTarget], R]]:
        """Yield the results of all batches up to the first that still runs. An error of a batch is raised after its results."""
        while self._order and self._order[0].has_ended:
            batch = self._order.popleft()
            yield from batch.results
            if batch.error is not None:
                raise batch.error


def _names(batch: _Batch[Any]) -> tuple[list[Name]]:
    return ([(shard.relative, shard.coords) for shard in batch.shards],)


def unseen(shards: Sequence[ShardTarget], found: ShardBatch) -> FileNotFoundError | None:
    """Return the error of a worker that does not see a shard which is stored here."""
    for n in found.missing:
        if is_stored(shards[n]) and shards[n].array.store.supports_listing:
            return FileNotFoundError(
                f"{shards[n].name}: expected the shard on the worker at {found.host}, but it is not there; all workers must reach "
                "the array under the same path"
            )
    return None


# ---------------------------------------------------------------- a process that runs batches of a plan
#
# `PlanWorker`: opens a plan once, runs batches of its units, and appends finished shards to a ledger of its own.
#
# It does not depend on the system that sends the batches. Several threads may run batches at the same time.


class BatchResult(NamedTuple):
    """The outcome of a batch.

    Attributes
    ----------
    totals : Totals
    n_units : int
        The first units of the batch, which were run.
    seconds : float
        Time that they took.
    """

    totals: Totals
    n_units: int
    seconds: float


class PlanWorker:
    """Runs batches of a plan in one process.

    Parameters
    ----------
    job : str
        Path of the plan.
    owner : str
        Name of the job that the plan must have.
    options : Options
        Options of the process that sends the batches.
    n_threads, memory : int
        Batches at the same time, and bytes of their elements and encoded chunks, at most. The plan may allow less.
    fail_fast : bool
        A batch ends at the first shard that cannot be written.
    """

    def __init__(
        self, job: str, owner: str, options: Options, *, n_threads: int, memory: int, fail_fast: bool
    ) -> None:
        self._job, self._owner, self._fail_fast = job, owner, fail_fast
        self._options = replace(options, threads=1)  # the batches are the parallelism
        self._n_threads, self._memory = n_threads, memory
        self._opening, self._lock = threading.Lock(), threading.Lock()
        self._opened: _OpenedPlan | None = None
        self._n_running = 0
        self.is_stopped = False

    def run(self, units: Sequence[Unit], done: Done, most_seconds: float) -> BatchResult:
        """Run units in their order, until the time is over or the worker is stopped; a shard that was begun is finished.

        Parameters
        ----------
        units : sequence of Unit
        done : mapping
            What earlier runs have recorded of their shards.
        most_seconds : float

        Raises
        ------
        FileNotFoundError
            The plan, the source or the destination is not reached from this machine.
        ConflictError
            The source has changed, or the plan is that of another job.
        SpecError, UnsupportedError, ValueError, ImportError
            Source or destination cannot be opened.
        """
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
            opened = self._opened
        with self._lock:
            self._n_running += 1
        try:
            with opened.slots:
                return self._run(opened, units, done, most_seconds)
        finally:
            with self._lock:
                self._n_running -= 1
                opened.ledger.sync()
                self._close_if_over()

    def stop(self) -> None:
        """End the batches after their current shards, and then close the ledger."""
        self.is_stopped = True
        with self._lock:
            self._close_if_over()

    def _run(
        self, opened: _OpenedPlan, units: Sequence[Unit], done: Done, most_seconds: float
    ) -> BatchResult:
        start = time.monotonic()
        counted = _Counted(units)
        opened.done.update(done)
        try:
            totals = run_units(
                opened.plan,
                opened.work,
                counted,
                BatchEnd(lambda: self.is_stopped, start + most_seconds),
                n_threads=1,
                fail_fast=self._fail_fast,
                on_record=self._append,
            )
        finally:
            for shard in done:
                opened.done.pop(shard, None)
        # a unit that was taken was also finished
        return BatchResult(totals, counted.n, time.monotonic() - start)

    def _append(self, record: ShardRecord) -> None:
        assert self._opened is not None
        with self._lock:
            self._opened.ledger.append(record.to_json())

    def _close_if_over(self) -> None:
        if self.is_stopped and not self._n_running and self._opened is not None:
            self._opened.ledger.close()

    # ---- opening

    def _open(self) -> _OpenedPlan:
        file = self._read_plan()
        tree, new = open_plan(file, self._options)
        self._check_destination(new, file.plan)
        new.before_store = guard(new, self._owner)
        done: dict[tuple[str, Ints], Sequence[ShardRecord]] = {}
        n_threads = min(self._n_threads, file.plan.n_threads)
        plan = replace(file.plan, memory=min(self._memory, file.plan.memory))
        # a batch with one thread gets the memory that the plan has for one thread
        share = replace(plan, memory=plan.memory // plan.n_threads)
        work = GroupWork(share, tree, new, self._options, done)
        slots = threading.BoundedSemaphore(n_in_flight(plan, n_threads))
        return _OpenedPlan(share, work, done, Ledger(self._job, plan.fingerprint), slots)

    def _read_plan(self) -> PlanFile:
        try:
            file = PlanFile.read(self._job)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self._job}: expected the plan on the worker at {socket.gethostname()}, but it is not there; all workers must reach "
                "the plan, the source and the destination under the same paths"
            ) from error
        if file.job != self._owner:
            raise ConflictError(
                f"{self._job}: expected the plan of the job {self._owner} on the worker at {socket.gethostname()}, got that of "
                f"{file.job}; all workers must reach the same file",
                expected=self._owner,
                actual=file.job,
            )
        return file

    def _check_destination(self, new: NewHierarchy, plan: ConvertPlan) -> None:
        """Check that this machine sees the mark that the job has written.

        Raises
        ------
        FileNotFoundError
            It does not: the path leads to another place here, such as a local disk or memory.
        """
        # a job that is over has no mark
        is_over = is_finished(read_ledgers(self._job, plan.fingerprint))
        if not has_claim(new, self._owner) and not is_over:
            raise FileNotFoundError(
                f"{new.place}: expected the mark of the job {self._job} on the worker at {socket.gethostname()}, but there is none; "
                "all workers must reach the destination under the same path"
            )


class _OpenedPlan(NamedTuple):
    plan: ConvertPlan
    work: GroupWork
    done: dict[tuple[str, Ints], Sequence[ShardRecord]]
    ledger: Ledger
    slots: threading.BoundedSemaphore


class _Counted:
    """Counts the units that are taken."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self._units = units
        self.n = 0

    def __iter__(self) -> Iterator[Unit]:
        for unit in self._units:
            self.n += 1
            yield unit


# ---------------------------------------------------------------- the workers of dask run the units of a conversion


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


def _run_units(name: str, units: Sequence[Unit], done: Done) -> BatchResult:
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
        self._run: DaskRun[list[Unit]] = DaskRun(workers, plugin, _run_units, BatchResult, self._slots_of)

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
