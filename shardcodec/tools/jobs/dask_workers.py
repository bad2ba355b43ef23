# dask_workers.py - the cluster of dask.distributed that a tool uses
# SPDX-License-Identifier: MIT
"""`dask_workers` opens the cluster that the user means. `DaskWorkers` says what it has, and sends it the work of a tool."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import dask
from distributed import (
    Client,
    LocalCluster,
    default_client,
    get_worker,
)
from distributed.system import MEMORY_LIMIT

from ...options import Options
from ...readable import format_nbytes
from ..convert.plan import MAX_MEMORY, default_memory
from ..monitor import Monitor
from .batches import Batches
from .dask_run import JOIN_SECONDS, MEMORY_SHARE, PAUSE, Call, DaskRun, I, R, TaskPlugin
from .shard_work import ShardTask, TaskPlace

__all__ = ["DaskWorkers", "active_client", "dask_workers"]

# The plan makes groups of shards for so many times the threads that there are.
SHARES = 4


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
            if is_own:  # else a worker that starts again slowly, on a loaded machine, is dropped for ever
                stack.enter_context(dask.config.set({"distributed.deploy.lost-worker-timeout": JOIN_SECONDS}))
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
        # the command reports all failures itself; a worker logs a traceback if the cluster ends during its heartbeat
        silence_logs=logging.CRITICAL,
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
        self.client = client
        self.is_own = is_own
        workers = self._first_workers(monitor or Monitor())
        self.n_threads: int = min(one.n_threads for one in workers)
        if threads is not None:
            self.n_threads = min(self.n_threads, threads)
        self.n_slots: int = sum(min(one.n_threads, self.n_threads) for one in workers)
        self.n_shares: int = SHARES * self.n_slots
        self.memory: int = _memory(workers, memory)

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
        while not (workers := Call(self.look).wait_for_result(monitor)):
            # an adaptive cluster starts its first worker for a task
            task = task or self.client.submit(int, pure=False)
            if time.monotonic() > end:
                raise TimeoutError(
                    f"dask: expected workers at {self.client.scheduler.address}, but none joined in {JOIN_SECONDS:.0f} s"
                )
            monitor.check()
            time.sleep(PAUSE)
        return workers

    def in_order(
        self,
        place: TaskPlace[I],
        task: ShardTask[I, R],
        batches: Batches[I, R],
        options: Options,
        monitor: Monitor,
        *,
        most_threads: int | None = None,
    ) -> Generator[tuple[list[I], R], None, None]:
        """Work on the shards of one array, or on the units of a plan.

        Parameters
        ----------
        place : TaskPlace
            Where the workers find the array or the plan.
        task : ShardTask
        batches : Batches
            The shards. They are taken batch by batch, some batches ahead of the results.
        options : Options
        monitor : Monitor
            If it stops the run, each worker finishes its current shards.
        most_threads : int, optional
            Batches of each worker at the same time. Default: `n_threads`.

        Yields
        ------
        shards : list
            The shards of a result.
        result : object
            In the order of the shards.

        Raises
        ------
        Stopped
            The user asked to stop. The results of shards that are finished are yielded before.
        LostScheduler
            The scheduler was lost.
        FileNotFoundError, ConflictError, ImportError
            A worker does not reach the same array or plan, or has another version of shardcodec.
        Exception
            What the work raised first, in the order of the shards.
        """
        plugin = TaskPlugin(
            place,
            task,
            options,
            n_threads=most_threads or self.n_threads,
            memory=self.memory,
            is_own=self.is_own,
        )
        return DaskRun(self, plugin, batches, monitor).results()


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
        else min(MAX_MEMORY, int(one.memory_limit * MEMORY_SHARE))
        for one in workers
    )
