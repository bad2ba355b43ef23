# dask_workers.py - the workers of dask.distributed run a plan
# SPDX-License-Identifier: MIT
"""`dask_workers` opens the cluster that the user means. `DaskWorkers` sends it batches of units.

A task has the units of its batch, what earlier runs recorded of them, and no elements. A plug-in of the workers has the
path of the plan; it also reaches workers that join later or start again. A few batches for each worker are in the scheduler
at a time. A batch that dask runs twice, because a worker was lost, stores the same shards again, each in one step.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from distributed import (
    Client,
    KilledWorker,
    LocalCluster,
    WorkerPlugin,
    as_completed,
    default_client,
    get_worker,
)
from distributed.system import MEMORY_LIMIT

from ...build_info import build_info
from ...format.array_document import key_encoding
from ...options import Options
from ..convert.plan import MOST_MEMORY, ConvertPlan, Unit, default_memory
from ..convert.run import Totals, n_in_flight
from ..convert.shard_record import ShardFailure
from ..convert.work import Done
from ..monitor import Incomplete, Monitor, Stopped
from ..quantities import format_nbytes
from .batches import MOST_SECONDS, Batches
from .plan_worker import BatchResult, PlanWorker

__all__ = ["DaskWorkers", "active_client", "dask_workers"]

# Batches in the scheduler for each batch that the workers can run at the same time.
WINDOW = 3
# The plan makes groups of shards for so many times the threads that there are.
SHARES = 4
# Share of the memory limit of a worker that elements and encoded chunks may take; from 60 % on dask acts against the worker.
MEMORY_SHARE = 0.5
# Seconds to wait for the first worker; between two looks at the workers; between two looks for ended batches.
JOIN_SECONDS = 300.0
LOOK_SECONDS = 5.0
PAUSE = 0.05
# Seconds to wait for the current shards of workers after a stop.
STOP_SECONDS = 20.0


@dataclass(frozen=True)
class _Worker:
    """A worker, as the scheduler describes it."""

    address: str
    host: str
    n_threads: int
    memory_limit: int | None


def active_client() -> Client | None:
    """Return the client that this program uses by default; None without one, and in a task of dask."""
    with suppress(ValueError):
        get_worker()
        return None  # a task that waits for other tasks holds its thread, so all workers might wait
    with suppress(ValueError):
        client = default_client()
        return None if client.asynchronous else client
    return None


@contextmanager
def dask_workers(
    place: str | Client, *, threads: int | None, memory: int | None, monitor: Monitor
) -> Iterator[DaskWorkers]:
    """Open a cluster in a with block.

    Parameters
    ----------
    place : str or distributed.Client
        Address of a scheduler, ``local:N`` for N processes of this machine, or a client, which stays open.
    threads : int or None
        Threads of each worker at most; of ``local:N`` exactly, and 1 by default.
    memory : int or None
        Bytes of each worker. Default: a share of its limit.
    monitor : Monitor
        May stop the wait for the first worker.

    Yields
    ------
    DaskWorkers

    Raises
    ------
    ValueError, TypeError
        The place is invalid, or a worker has less memory.
    OSError
        No scheduler answers at the address.
    TimeoutError
        No worker joined.
    """
    with ExitStack() as stack:
        is_own = False
        if isinstance(place, str):
            n = _local_workers(place)
            is_own = n is not None
            cluster = place if n is None else stack.enter_context(_local_cluster(n, threads or 1))
            client = stack.enter_context(Client(cluster, set_as_default=False))
        elif isinstance(place, Client):
            client = place
        else:
            raise TypeError(
                f"dask: expected an address, 'local:N' or a distributed.Client, got {type(place).__name__}"
            )
        if client.asynchronous:
            raise ValueError("dask: expected a client that is not asynchronous")
        yield DaskWorkers(client, threads=threads, memory=memory, monitor=monitor, is_own=is_own)


def _local_workers(place: str) -> int | None:
    """Return N of ``local:N``, None for an address."""
    kind, _, number = place.partition(":")
    if kind != "local" and number:
        return None
    if not number.isdecimal() or int(number) < 1:
        raise ValueError(
            f"dask: expected an address such as 'tcp://10.0.0.1:8786', or 'local:N' for N processes, got {place!r}"
        )
    return int(number)


def _local_cluster(n: int, threads: int) -> Any:
    return LocalCluster(
        n_workers=n,
        threads_per_worker=threads,
        processes=True,
        memory_limit=MEMORY_LIMIT // n,
        dashboard_address="127.0.0.1:0",
        silence_logs=logging.ERROR,
    )


class DaskWorkers:
    """The workers of a cluster.

    Parameters
    ----------
    client : distributed.Client
    threads : int or None
        Threads of each worker at most.
    memory : int or None
        Bytes of elements and encoded chunks of each worker. Default: half of the smallest limit, 8 GiB at most.
    monitor : Monitor
        May stop the wait for the first worker.
    is_own : bool
        The workers are processes of this command, so signals of the terminal also reach them.

    Attributes
    ----------
    n_threads, memory : int
        Threads and bytes of each worker, at most.
    n_slots, n_shares : int
        Threads of all workers together; workers for which the plan divides the work, more than there are, so that small groups
        of shards are left at the end.

    Raises
    ------
    ValueError
        A worker has less than `memory`.
    TimeoutError
        No worker joined.
    """

    def __init__(
        self,
        client: Client,
        *,
        threads: int | None = None,
        memory: int | None = None,
        monitor: Monitor | None = None,
        is_own: bool = False,
    ) -> None:
        self.client, self.is_own = client, is_own
        workers = self._first_workers(monitor or Monitor())
        self.n_threads = min(one.n_threads for one in workers)
        if threads is not None:
            self.n_threads = min(self.n_threads, threads)
        self.n_slots = sum(min(one.n_threads, self.n_threads) for one in workers)
        self.n_shares = SHARES * self.n_slots
        self.memory = _memory(workers, memory)

    def look(self) -> list[_Worker]:
        """Ask the scheduler for its workers."""
        found = self.client.scheduler_info(n_workers=-1).get("workers")
        if found is None or self.client.status != "running":
            raise OSError("dask: expected a scheduler that answers, but the connection is lost")
        return [
            _Worker(address, one.get("host", ""), one["nthreads"], one.get("memory_limit") or None)
            for address, one in found.items()
        ]

    def _first_workers(self, monitor: Monitor) -> list[_Worker]:
        end = time.monotonic() + JOIN_SECONDS
        task = None
        while not (workers := self.look()):
            # an adaptive cluster starts its first worker for a task
            task = task or self.client.submit(int, pure=False)
            if time.monotonic() > end:
                raise TimeoutError(
                    f"dask: expected workers at {self.client.scheduler.address}, but none joined in {JOIN_SECONDS:.0f} s"
                )
            monitor.check()
            time.sleep(PAUSE)
        return workers

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
        """Run units of a plan that is stored. The workers append finished shards to their ledgers.

        Parameters
        ----------
        plan : ConvertPlan
        job, owner : str
            Path of the plan, and name of the job.
        options : Options
        units : iterable of Unit
        done : mapping
            What earlier runs have recorded.
        monitor : Monitor
            If it stops the run, each worker finishes its current shards.
        fail_fast : bool
            Stop at the first shard that cannot be written.

        Raises
        ------
        Incomplete
            The scheduler was lost.
        ValueError
            The plan needs more memory than a worker has.
        ConflictError, FileNotFoundError, ImportError, OSError
            A worker cannot go on; see `PlanWorker.run`.
        """
        need = max((one.need_nbytes for one in plan.arrays), default=0)
        if need > self.memory:
            raise ValueError(
                f"memory: expected workers with at least {format_nbytes(need)} for a group of shards, as the job was planned, got "
                f"{format_nbytes(self.memory)}; use larger workers, or begin a new job"
            )
        # the job may have been begun with larger workers
        plan = replace(plan, memory=min(plan.memory, self.memory))
        plugin = _PlanPlugin(job, owner, options, memory=self.memory, fail_fast=fail_fast, is_own=self.is_own)
        return _Run(self, plan, plugin, units, done, monitor, fail_fast=fail_fast).run()


def _memory(workers: Sequence[_Worker], memory: int | None) -> int:
    for one in workers:
        if memory is not None and one.memory_limit is not None and memory > one.memory_limit:
            raise ValueError(
                f"memory: expected at most {format_nbytes(one.memory_limit)}, the limit of the worker {one.address}, got "
                f"{format_nbytes(memory)}"
            )
    if memory is not None:
        return memory
    hosts = [one.host for one in workers]
    return min(
        default_memory() // hosts.count(one.host)
        if one.memory_limit is None
        else min(MOST_MEMORY, int(one.memory_limit * MEMORY_SHARE))
        for one in workers
    )


# ---- in the workers


class _PlanPlugin(WorkerPlugin):  # type: ignore[misc]
    """Has the `PlanWorker` of one run in each worker. It is removed at the end of the run, which stops its batches."""

    def __init__(
        self, job: str, owner: str, options: Options, *, memory: int, fail_fast: bool, is_own: bool
    ) -> None:
        self.name = f"shardcodec-{uuid.uuid4().hex}"
        self.version = build_info()["version"]
        self._job, self._owner, self._options = job, owner, options
        self._memory, self._fail_fast, self._is_own = memory, fail_fast, is_own

    def setup(self, worker: Any) -> None:
        if self._is_own and threading.current_thread() is threading.main_thread():
            # Ctrl-C and Slurm signal all processes; the command asks the workers to finish their current shards
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        self.worker = PlanWorker(
            self._job,
            self._owner,
            self._options,
            n_threads=worker.state.nthreads,
            memory=self._memory_of(worker),
            fail_fast=self._fail_fast,
        )

    def _memory_of(self, worker: Any) -> int:
        """Return the bytes of this worker, which may be smaller than those that the run began with."""
        limit = worker.memory_manager.memory_limit
        return self._memory if not limit or self._memory <= limit else int(limit * MEMORY_SHARE)

    def teardown(self, worker: Any) -> None:
        self.worker.stop()


def _run_batch(name: str, units: Sequence[Unit], done: Done) -> BatchResult:
    """Run a batch in a worker."""
    plugin = get_worker().plugins.get(name)
    if plugin is None:  # the run is over
        return BatchResult(Totals(), 0, 0.0)
    if plugin.version != (actual := build_info()["version"]):
        raise ImportError(
            f"shardcodec: expected version {plugin.version} on the worker {get_worker().address}, got {actual}; install the same "
            "version on all workers"
        )
    found: BatchResult = plugin.worker.run(units, done, MOST_SECONDS)
    return found


# ---- in the process of the user


class _Run:
    """One run of units on the workers; the parameters are those of `DaskWorkers.run`."""

    def __init__(
        self,
        workers: DaskWorkers,
        plan: ConvertPlan,
        plugin: _PlanPlugin,
        units: Iterable[Unit],
        done: Done,
        monitor: Monitor,
        *,
        fail_fast: bool,
    ) -> None:
        self._workers, self._client = workers, workers.client
        self._plan, self._plugin, self._done, self._monitor = plan, plugin, done, monitor
        self._fail_fast = fail_fast
        self._address = self._client.scheduler.address
        self._batches = Batches(plan, units)
        self._totals = Totals()
        self._ended = as_completed(loop=self._client.loop, with_results=True, raise_errors=False)
        self._running: dict[str, list[Unit]] = {}
        self._n_slots, self._next_look = 1, 0.0

    def run(self) -> Totals:
        error: BaseException | None = None
        try:
            self._register()
            while error is None and not (self._totals.n_failed and self._fail_fast):
                self._monitor.check()
                self._submit()
                if not self._running:
                    break
                error = self._take()
        except Stopped:
            self._totals.is_stopped = True
        finally:
            self._end()
        if error is not None:
            raise error
        return self._totals

    def _register(self) -> None:
        try:
            self._client.register_plugin(self._plugin, name=self._plugin.name)
        except ImportError as error:
            raise ImportError(
                f"dask: expected shardcodec {self._plugin.version} on all workers, but one cannot import it: {error}"
            ) from error
        except OSError as error:
            raise self._lost() from error

    def _submit(self) -> None:
        """Fill the window."""
        if self._client.status != "running":
            raise self._lost()
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_SECONDS
            self._n_slots = self._look()
        while len(self._running) < WINDOW * max(1, self._n_slots):
            batch = self._batches.take(self._n_slots)
            if not batch:
                return
            key = f"{self._plugin.name}-{uuid.uuid4().hex}"
            future = self._client.submit(
                _run_batch, self._plugin.name, batch, self._recorded(batch), key=key, pure=False
            )
            self._running[key] = batch
            self._ended.add(future)

    def _look(self) -> int:
        """Return the number of batches that the present workers can run at the same time."""
        try:
            workers = self._workers.look()
        except OSError as error:
            raise self._lost() from error
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

    def _take(self) -> BaseException | None:
        """Take the results of ended batches; return the error of a worker that ends the run."""
        ended = self._ended.next_batch(block=False)
        if not ended and self._client.status != "running":
            raise self._lost()
        if not ended:
            time.sleep(PAUSE)
        error = None
        for future, result in ended:
            batch = self._running.pop(future.key)
            if isinstance(result, BatchResult):
                self._add(batch, result)
            elif future.status != "error":
                raise self._lost()
            elif isinstance(found := future.exception(), KilledWorker):
                self._add_killed(batch, found)
            else:
                error = error or found
        return error

    def _lost(self) -> Incomplete:
        return Incomplete(
            f"dask: the scheduler at {self._address} was lost, or has dropped the work, after {self._totals.n_written} "
            "shards were written; the job can be resumed"
        )

    def _add(self, batch: list[Unit], result: BatchResult) -> None:
        totals, n_units, seconds = result
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

    def _end(self) -> None:
        """Remove the plug-in, which stops the workers after their current shards, and wait for these for some time.

        A worker that does not answer in time stores nothing later, because the job no longer has its mark or is resumed.
        """
        # without a limit of time the request waits for a worker that is stopped
        request = threading.Thread(target=self._unregister, daemon=True)
        request.start()
        end = time.monotonic() + STOP_SECONDS
        request.join(STOP_SECONDS)
        with suppress(Incomplete, OSError):
            while self._running and time.monotonic() < end and self._workers.look():
                self._take()

    def _unregister(self) -> None:
        with suppress(OSError, RuntimeError):  # the scheduler may be lost at this moment
            if self._client.status == "running":
                self._client.unregister_worker_plugin(self._plugin.name)
