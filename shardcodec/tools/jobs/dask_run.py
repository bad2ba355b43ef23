# dask_run.py - batches of one run on the workers of dask
# SPDX-License-Identifier: MIT
"""`DaskRun`: keeps a few batches for each worker in the scheduler, and yields their results as they end.

A scheduler that is frozen keeps its connections and answers nothing, so each request to it is made in a thread of its own and
has a limit of time.
"""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, Protocol, TypeVar

from distributed import Client, WorkerPlugin, as_completed, get_worker

from ...build_info import build_info
from ..work import Monitor

__all__ = [
    "MEMORY_SHARE",
    "PAUSE",
    "BatchWorker",
    "Call",
    "Cluster",
    "DaskRun",
    "Lost",
    "RunPlugin",
    "worker_of_run",
]

B = TypeVar("B")
T = TypeVar("T")

# Share of the memory limit of a worker that elements and encoded chunks may take; from 60 % on dask acts against the worker.
MEMORY_SHARE = 0.5
# Batches in the scheduler for each batch that the workers can run at the same time.
WINDOW = 3
# Seconds between two looks at the workers; between two looks for ended batches.
LOOK_SECONDS = 5.0
PAUSE = 0.05
# A scheduler that does not answer for so many seconds is lost. One that is busy answers within seconds.
SILENT_SECONDS = 60.0
# Seconds to wait for the current shards of workers after a stop.
STOP_SECONDS = 20.0


class Lost(OSError):
    """The scheduler was lost, or has dropped the work."""


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


class BatchWorker(Protocol):
    """Runs batches in a process."""

    def stop(self) -> None:
        """End the batches after their current shards."""


class RunPlugin(WorkerPlugin):  # type: ignore[misc]
    """Has what the workers keep between the batches of one run. It is removed at the end, which stops its batches.

    Parameters
    ----------
    memory : int
        Bytes that the batches of each worker may use.
    is_own : bool
        The workers are processes of this command, so signals of the terminal also reach them.
    """

    def __init__(self, *, memory: int, is_own: bool) -> None:
        self.name = f"shardcodec-{uuid.uuid4().hex}"
        self.version = build_info()["version"]
        self._memory, self._is_own = memory, is_own

    def setup(self, worker: Any) -> None:
        if self._is_own and threading.current_thread() is threading.main_thread():
            # Ctrl-C and Slurm signal all processes; the command asks the workers to finish their current shards
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
        self.worker = self.make(worker)

    def make(self, worker: Any) -> BatchWorker:
        """Return what runs the batches in a worker."""
        raise NotImplementedError

    def memory_of(self, worker: Any) -> int:
        """Return the bytes of this worker, which may be smaller than those that the run began with."""
        limit = worker.memory_manager.memory_limit
        return self._memory if not limit or self._memory <= limit else int(limit * MEMORY_SHARE)

    def teardown(self, worker: Any) -> None:
        self.worker.stop()


def worker_of_run(name: str) -> Any:
    """Return what runs the batches in this worker; None if the run is over.

    Raises
    ------
    ImportError
        The worker has another version of shardcodec.
    """
    plugin = get_worker().plugins.get(name)
    if plugin is None:
        return None
    if plugin.version != (actual := build_info()["version"]):
        raise ImportError(
            f"shardcodec: expected version {plugin.version} on the worker {get_worker().address}, got {actual}; install the same "
            "version on all workers"
        )
    return plugin.worker


class Cluster(Protocol):
    """The workers of a cluster."""

    client: Client

    def look(self) -> Sequence[Any]:
        """Ask the scheduler for its workers."""


class DaskRun(Generic[B]):
    """The batches of one run. `register` sends a plug-in to all workers; `rest` removes it.

    Parameters
    ----------
    workers : Cluster
    plugin : RunPlugin
    function : callable
        Runs a batch in a worker; called with the name of the plug-in and the arguments of the batch.
    kind : type
        Class of what it returns.
    slots_of : callable
        Returns the number of batches that some workers run at the same time.
    """

    def __init__(
        self,
        workers: Cluster,
        plugin: RunPlugin,
        function: Callable[..., Any],
        kind: type,
        slots_of: Callable[[Sequence[Any]], int],
    ) -> None:
        self._workers, self._client = workers, workers.client
        self._plugin, self._function, self._kind, self._slots_of = plugin, function, kind, slots_of
        self._address = self._client.scheduler.address
        self._ended = as_completed(loop=self._client.loop, with_results=True, raise_errors=False)
        self._running: dict[str, B] = {}
        self._n_slots: int | None = None
        self._look_call: Call[Sequence[Any]] | None = None
        self._look_time = 0.0
        self._is_lost = False

    def register(self, monitor: Monitor) -> None:
        """Send the plug-in to all workers.

        Raises
        ------
        ImportError
            A worker does not have shardcodec.
        Lost
            The scheduler does not answer.
        Stopped
            The user asked to stop.
        """
        call = Call(lambda: self._client.register_plugin(self._plugin, name=self._plugin.name))
        try:
            call.wait_for_result(monitor)
        except ImportError as error:
            raise ImportError(
                f"dask: expected shardcodec {self._plugin.version} on all workers, but one cannot import it: {error}"
            ) from error
        except OSError as error:
            raise self._lost() from error

    def answers(
        self,
        take: Callable[[int], B | None],
        arguments: Callable[[B], tuple[Any, ...]],
        monitor: Monitor,
    ) -> Iterator[tuple[B, Any]]:
        """Run batches until none is left.

        Parameters
        ----------
        take : callable
            Returns the next batch, or None if there is none now; its argument is the number of batches that the workers run
            at the same time.
        arguments : callable
            Returns what is sent of a batch.
        monitor : Monitor
            It is asked now and then whether to stop.

        Yields
        ------
        batch : object
            A batch that has ended.
        result : object
            What `function` returned, or the exception that it raised: `KilledWorker` if several workers ended.

        Raises
        ------
        Lost
            The scheduler was lost.
        Stopped
            The user asked to stop; see `rest`.
        """
        while self._n_slots is None:
            monitor.check()
            self._look()
        while True:
            monitor.check()
            self._submit(take, arguments)
            if not self._running:
                return
            ended = list(self._take())
            yield from ended
            if not ended:
                time.sleep(PAUSE)

    def rest(self) -> Iterator[tuple[B, Any]]:
        """Remove the plug-in, which stops the workers after their current shards, and yield the results for some time."""
        request = Call(self._unregister)
        if self._is_lost:
            return
        end = time.monotonic() + STOP_SECONDS
        request.wait(STOP_SECONDS)
        with suppress(OSError):
            while self._running and time.monotonic() < end and self._look():
                ended = list(self._take())
                yield from ended
                if not ended:
                    time.sleep(PAUSE)

    def _unregister(self) -> None:
        with suppress(OSError, RuntimeError):  # the scheduler may be lost at this moment
            if self._client.status == "running":
                self._client.unregister_worker_plugin(self._plugin.name)

    def _submit(self, take: Callable[[int], B | None], arguments: Callable[[B], tuple[Any, ...]]) -> None:
        """Fill the window."""
        n_slots = self._look()
        while len(self._running) < WINDOW * max(1, n_slots):
            batch = take(n_slots)
            if batch is None:
                return
            key = f"{self._plugin.name}-{uuid.uuid4().hex}"
            future = self._client.submit(
                self._function, self._plugin.name, *arguments(batch), key=key, pure=False
            )
            self._running[key] = batch
            self._ended.add(future)

    def _take(self) -> Iterator[tuple[B, Any]]:
        """Yield the batches that have ended."""
        ended = self._ended.next_batch(block=False)
        if not ended and self._client.status != "running":
            raise self._lost()
        for future, result in ended:
            if isinstance(result, self._kind):  # its worker may be lost since
                yield self._running.pop(future.key), result
            elif future.status == "error":
                yield self._running.pop(future.key), future.exception()
            else:
                raise self._lost()

    def _look(self) -> int:
        """Return the number of batches that the workers run at the same time; ask the scheduler now and then."""
        if self._client.status != "running":
            raise self._lost()
        now = time.monotonic()
        if self._look_call is None and (self._n_slots is None or now >= self._look_time + LOOK_SECONDS):
            self._look_call, self._look_time = Call(self._workers.look), now
        if self._look_call is not None and self._look_call.wait(PAUSE if self._n_slots is None else 0):
            try:
                self._n_slots = self._slots_of(self._look_call.result())
            except OSError as error:
                raise self._lost() from error
            self._look_call = None
        elif self._look_call is not None and now >= self._look_time + SILENT_SECONDS:
            raise self._lost()
        return self._n_slots or 0

    def _lost(self) -> Lost:
        self._is_lost = True
        return Lost(f"dask: the scheduler at {self._address} was lost, or has dropped the work")
