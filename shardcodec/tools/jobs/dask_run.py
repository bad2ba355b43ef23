# dask_run.py - the work of a tool on the workers of dask
# SPDX-License-Identifier: MIT
"""`DaskRun`: keep a few batches for each worker in the scheduler, and yield the results in the order of the shards.

A scheduler that is frozen keeps its connections and answers nothing, so each request to it is made in a thread of its own and
has a limit of time.
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from distributed import (
    Client,
    KilledWorker,
    WorkerPlugin,
    as_completed,
    get_worker,
)

from ...build_info import build_info
from ...options import Options
from ..monitor import LostScheduler, Monitor, Stopped
from .batches import Batches, TaskBatch
from .shard_work import MAX_SECONDS, ShardBatch, ShardTask, ShardWorker, TaskPlace

__all__ = ["JOIN_SECONDS", "MEMORY_SHARE", "PAUSE", "Call", "Cluster", "DaskRun", "I", "R", "TaskPlugin"]

I = TypeVar("I")  # noqa: E741 - an item: a shard, or a unit of a plan
R = TypeVar("R")

T = TypeVar("T")

# Share of the memory limit of a worker that elements and encoded chunks may take; from 60 % on dask acts against the worker.
MEMORY_SHARE = 0.5
# Batches in the scheduler for each batch that the workers can run at the same time.
WINDOW = 3
# Seconds between two looks at the workers; between two looks for ended batches.
LOOK_SECONDS = 5.0
PAUSE = 0.05
# Seconds without an answer after which the scheduler is lost. A busy scheduler answers within seconds.
SILENT_SECONDS = 60.0
# Seconds to wait for the first worker, and for the return of workers that this command has started.
JOIN_SECONDS = 300.0
# Seconds to wait for the current shards of workers after a stop.
STOP_SECONDS = 20.0


class Call(Generic[T]):
    """A call in a thread of its own, which may be given up; the thread does not keep the program from ending.

    Parameters
    ----------
    function : callable
    """

    def __init__(self, function: Callable[[], T]) -> None:
        self._function = function
        self._found: list[T] = []
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="shardcodec-dask", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._found.append(self._function())
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread of the caller
            self._error = error

    def wait(self, seconds: float) -> bool:
        """Wait for some time; return True if the call has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def wait_for_result(self, monitor: Monitor) -> T:
        """Wait for a request to the scheduler, and return its result; raise `TimeoutError` if it does not answer."""
        end = time.monotonic() + SILENT_SECONDS
        while not self.wait(PAUSE):
            monitor.check()
            if time.monotonic() >= end:
                raise TimeoutError(
                    f"dask: expected a scheduler that answers, but it did not in {SILENT_SECONDS:.0f} s"
                )
        return self.result()

    def result(self) -> T:
        """Return the result of a call that has ended, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._found[0]


class TaskPlugin(WorkerPlugin):  # type: ignore[misc]
    """Has the `ShardWorker` of one run in each worker, also in those that join later or start again.

    It is removed at the end of the run, which stops its batches.

    Parameters
    ----------
    place, task, options, n_threads, memory
        As for `ShardWorker`; a worker may have fewer threads and less memory.
    is_own : bool
        The workers are processes of this command, so signals of the terminal also reach them.
    """

    def __init__(
        self,
        place: TaskPlace[Any],
        task: ShardTask[Any, Any],
        options: Options,
        *,
        n_threads: int,
        memory: int,
        is_own: bool,
    ) -> None:
        self.name: str = f"shardcodec-{uuid.uuid4().hex}"
        self.version: str = build_info()["version"]
        self.place = place
        self.n_threads = n_threads
        self._task, self._options, self._memory = task, options, memory
        self.is_own = is_own

    def setup(self, worker: Any) -> None:
        if self.is_own and threading.current_thread() is threading.main_thread():
            # Ctrl-C and Slurm signal all processes; the command asks the workers to finish their current shards
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        limit = worker.memory_manager.memory_limit  # may be less than the run began with
        self.worker: ShardWorker = ShardWorker(
            self.place,
            self._task,
            self._options,
            n_threads=min(worker.state.nthreads, self.n_threads),
            memory=self._memory if not limit or self._memory <= limit else int(limit * MEMORY_SHARE),
        )

    def teardown(self, worker: Any) -> None:
        self.worker.stop()


def _run_batch(run: str, names: Sequence[Any]) -> ShardBatch:
    """Run a batch in a worker; nothing of it if the run is over.

    Raises
    ------
    ImportError
        The worker has another version of shardcodec.
    """
    plugin = get_worker().plugins.get(run)
    if plugin is None:
        return ShardBatch([], [], 0.0, None, "")
    if plugin.version != (actual := build_info()["version"]):
        raise ImportError(
            f"shardcodec: expected version {plugin.version} on the worker {get_worker().address}, got {actual}; install the same "
            "version on all workers"
        )
    batch: ShardBatch = plugin.worker.run(names, MAX_SECONDS)
    return batch


class Cluster(Protocol):
    """The workers of a cluster."""

    client: Client

    def look(self) -> Sequence[Any]:
        """Ask the scheduler for its workers."""


class DaskRun(Generic[I, R]):
    """One run of batches on the workers of a cluster; dask chooses the worker of each batch.

    Parameters
    ----------
    workers : Cluster
    plugin : TaskPlugin
    batches : Batches
    monitor : Monitor
        It is asked now and then whether to stop.
    """

    def __init__(
        self, workers: Cluster, plugin: TaskPlugin, batches: Batches[I, R], monitor: Monitor
    ) -> None:
        self._workers, self._client = workers, workers.client
        self._plugin, self._batches, self._monitor = plugin, batches, monitor
        self._address = self._client.scheduler.address
        self._ended = as_completed(loop=self._client.loop, with_results=True, raise_errors=False)
        self._running: dict[str, TaskBatch[I, R]] = {}
        self._n_slots: int | None = None
        self._look_call: Call[Sequence[Any]] | None = None
        self._look_time = 0.0
        self._last_seen = time.monotonic()  # the last time that there was a worker
        self._is_lost = False

    def results(self) -> Generator[tuple[list[I], R], None, None]:
        """Yield the results; see `DaskWorkers.in_order`."""
        error: Exception | None = None
        try:
            self._register()
            while self._n_slots is None:
                self._monitor.check()
                self._look()
            while self._submit():
                self._take()
                yield from self._batches.ready()
        except Exception as raised:  # noqa: BLE001 - it is raised after the results of shards that are finished
            error = raised
        finally:
            self._stop()
        results, errors = self._batches.rest()
        yield from results
        first = next(
            (one for one in [error, *errors] if one is not None and not isinstance(one, Stopped)), error
        )
        if first is not None:
            raise first

    def _register(self) -> None:
        """Send the plug-in to all workers.

        Raises
        ------
        ImportError
            A worker does not have shardcodec.
        LostScheduler
            The scheduler does not answer.
        Stopped
            The user asked to stop.
        """
        call = Call(lambda: self._client.register_plugin(self._plugin, name=self._plugin.name))
        try:
            call.wait_for_result(self._monitor)
        except ImportError as error:
            raise ImportError(
                f"dask: expected shardcodec {self._plugin.version} on all workers, but one cannot import it: {error}"
            ) from error
        except OSError as error:
            raise self._lost() from error

    def _stop(self) -> None:
        """Remove the plug-in, which stops the workers after their current shards, and take their results for some time.

        A worker that does not answer in time stores nothing of a conversion later: the job no longer has its mark, or goes on.
        """
        request = Call(self._unregister)
        if self._is_lost:
            return
        end = time.monotonic() + STOP_SECONDS
        request.wait(STOP_SECONDS)
        with suppress(OSError):
            while self._running and time.monotonic() < end and self._look():
                self._take()

    def _unregister(self) -> None:
        with suppress(OSError, RuntimeError):  # the scheduler may be lost at this moment
            if self._client.status == "running":
                self._client.unregister_worker_plugin(self._plugin.name)

    def _submit(self) -> bool:
        """Keep `WINDOW` batches in the scheduler for each that the workers can run; return False if none is left."""
        self._monitor.check()
        n_slots = self._look()
        while len(self._running) < WINDOW * max(1, n_slots):
            batch = self._batches.take(n_slots, self._running.values())
            if batch is None:
                break
            key = f"{self._plugin.name}-{uuid.uuid4().hex}"
            names = [self._plugin.place.name(item) for item in batch.items]
            future = self._client.submit(_run_batch, self._plugin.name, names, key=key, pure=False)
            self._running[key] = batch
            self._ended.add(future)
        return bool(self._running)

    def _take(self) -> None:
        """Add the answers of batches that have ended; without any, wait a moment."""
        ended = self._ended.next_batch(block=False)
        if not ended:
            if self._client.status != "running":
                raise self._lost()
            time.sleep(PAUSE)
        for future, answer in ended:
            if isinstance(answer, ShardBatch):  # its worker may be lost since
                self._batches.add(self._running.pop(future.key), answer)
            elif future.status != "error":
                raise self._lost()
            elif isinstance(error := future.exception(), KilledWorker):
                self._batches.divide(self._running.pop(future.key), error)
            else:
                self._batches.fail(self._running.pop(future.key), error)

    def _look(self) -> int:
        """Return the number of batches that the workers run at the same time; ask the scheduler now and then."""
        if self._client.status != "running":
            raise self._lost()
        now = time.monotonic()
        if self._look_call is None and (self._n_slots is None or now >= self._look_time + LOOK_SECONDS):
            self._look_call, self._look_time = Call(self._workers.look), now
        if self._look_call is not None and self._look_call.wait(PAUSE if self._n_slots is None else 0):
            try:
                workers = self._look_call.result()
            except OSError as error:
                raise self._lost() from error
            self._n_slots = sum(min(worker.n_threads, self._plugin.n_threads) for worker in workers)
            self._look_call = None
            if workers:
                self._last_seen = now
            elif self._plugin.is_own and now >= self._last_seen + JOIN_SECONDS:
                # workers of another cluster may come back, such as jobs that wait in a queue
                raise LostScheduler(f"dask: all workers of {self._address} have ended, and none came back")
        elif self._look_call is not None and now >= self._look_time + SILENT_SECONDS:
            raise self._lost()
        return self._n_slots or 0

    def _lost(self) -> LostScheduler:
        self._is_lost = True
        return LostScheduler(f"dask: the scheduler at {self._address} was lost, or has dropped the work")
