# plan_worker.py - a process that runs batches of a plan
# SPDX-License-Identifier: MIT
"""`PlanWorker`: opens a plan once, runs batches of its units, and appends finished shards to a ledger of its own.

It does not depend on the system that sends the batches. Several threads may run batches at the same time.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from ...errors import ConflictError
from ...options import Options
from ..convert.claim import guard, has_claim
from ..convert.destination import NewTree
from ..convert.execute import is_finished
from ..convert.plan import ConvertPlan, Unit
from ..convert.run import Totals, n_in_flight, run_units
from ..convert.shard_record import ShardRecord
from ..convert.source import Ints
from ..convert.work import Done, GroupWork
from .batches import BatchEnd
from .ledger import Ledger, read_ledgers
from .open_plan import open_plan
from .plan_file import PlanFile

__all__ = ["BatchResult", "PlanWorker"]


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

    def _check_destination(self, new: NewTree, plan: ConvertPlan) -> None:
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
