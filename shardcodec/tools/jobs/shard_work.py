# shard_work.py - the work of a tool on each shard of an array, in any process, batch by batch
# SPDX-License-Identifier: MIT
"""The work of a tool on each shard of an array, in any process, batch by batch.

`ShardTask`: the work of a tool, as plain data. `ShardTool`: the same in one process, ready to run. `ShardWorker`: runs batches
in a process. A unit of a conversion takes the place of a shard there.

They do not depend on the system that sends the batches. Several threads may run batches at the same time. A batch may run
twice, because a worker was lost: a tool changes nothing, or replaces whole shards, each in one step and so that the second
time gives the same result.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ...access.box_reader import SpareDocuments
from ...errors import ConflictError
from ...format.spec import ShardSpec
from ...options import Options
from ..hierarchy import find_arrays
from ..memory import MemoryBudget
from ..monitor import Monitor, Stopped
from ..targets import ArrayTarget, ShardTarget

__all__ = [
    "MAX_SECONDS",
    "ArrayPlace",
    "ArrayTask",
    "ShardBatch",
    "ShardTask",
    "ShardTool",
    "ShardWorker",
    "TaskPlace",
    "is_stored",
    "unseen",
]

# A worker returns the rest of a batch after this time.
MAX_SECONDS = 60.0
# A batch ends early if its results list more findings, so that a message stays small where all shards are damaged.
MAX_WEIGHT = 20_000

I = TypeVar("I")  # noqa: E741 - an item: a shard, or a unit of a plan
I_contra = TypeVar("I_contra", contravariant=True)
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class ShardTool(Protocol[I_contra, R_co]):
    """Works on the shards of an array that is open.

    Attributes
    ----------
    n_threads : int
        Threads that work at the same time, at most.
    """

    n_threads: int

    def run(self, shards: Iterable[I_contra], monitor: Monitor, n_threads: int) -> Iterator[tuple[int, R_co]]:
        """Work on shards.

        Parameters
        ----------
        shards : iterable
        monitor : Monitor
            It is asked between two shards whether to stop.
        n_threads : int
            Threads of this call.

        Yields
        ------
        n : int
            The result is that of so many shards, in their order.
        result : object

        Raises
        ------
        Stopped
            After the results of all shards that were begun.
        """


class ShardTask(ABC, Generic[I, R]):
    """The work of a tool. It is sent to other processes, so it has plain data only."""

    @abstractmethod
    def open(self, opened: Any, options: Options, budget: MemoryBudget) -> ShardTool[I, R]:
        """Return the tool in this process; `opened` is what the place of the task opens, `budget` the memory of all threads."""

    def weight(self, result: R) -> int:
        """Return the number of parts of a result, such as findings; 0 if there was nothing to do."""
        return 1

    def close(self, opened: Any) -> None:
        """Close what `TaskPlace.open` returned, after the last batch."""


class ArrayTask(ShardTask[ShardTarget, R]):
    """The work of a tool on the shards of one array, which an `ArrayPlace` opens."""

    @abstractmethod
    def failed(self, shard: ShardTarget, detail: str) -> R:
        """Return the result of a shard whose work ends the process."""


class TaskPlace(ABC, Generic[I]):
    """Where another process finds what a task works on: plain data."""

    @abstractmethod
    def open(self, options: Options) -> Any:
        """Open it in this process."""

    def name(self, item: I) -> Any:
        """Return a shard as plain data."""
        return item

    def item(self, opened: Any, name: Any) -> I:
        """Return the shard that `name` was made of, in this process."""
        found: I = name
        return found

    def sees(self, item: I) -> bool:
        """Return False if this machine cannot find the shard."""
        return True


@dataclass(frozen=True)
class ArrayPlace(TaskPlace[ShardTarget]):
    """An array, as another process finds it.

    Attributes
    ----------
    target : str
        Absolute path, or a URL: the hierarchy, the array, or one shard.
    array : str or None
        Path of the array in the hierarchy; None if `target` is the array or a shard.
    spec : ShardSpec or None
        The encoding of a shard that is not in the folder of its array.
    storage_options : mapping or None
    fingerprint : str
        Of the metadata of the array.
    spare : SpareDocuments or None
        Stands in for lost documents.
    """

    target: str
    array: str | None
    spec: ShardSpec | None
    storage_options: Mapping[str, Any] | None = field(repr=False)
    fingerprint: str
    spare: SpareDocuments | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        array: ArrayTarget,
        target: str,
        spec: ShardSpec | None,
        storage_options: Mapping[str, Any] | None,
    ) -> ArrayPlace:
        """Return the place of an array that `find_arrays` found."""
        spare = None if array.folder.spare is None else array.folder.spare.used()
        return cls(target, array.name or None, spec, storage_options, _fingerprint(array), spare)

    def open(self, options: Options) -> ArrayTarget:
        """Find the array in this process.

        Raises
        ------
        FileNotFoundError
            It is not there.
        ConflictError
            It has other metadata.
        """
        host = socket.gethostname()
        try:
            array = next(
                find_arrays(
                    self.target,
                    array=self.array,
                    spec=self.spec,
                    storage_options=self.storage_options,
                    spare=self.spare,
                )
            )
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.target}: expected the array {self.array or ''!r} on the worker at {host}: {error}; all workers must reach it "
                "under the same path"
            ) from error
        if (actual := _fingerprint(array)) != self.fingerprint:
            raise ConflictError(
                f"{array.place}: expected the metadata that the main process has read, got others on the worker at {host}; all "
                "workers must reach the same array, and its metadata must not change meanwhile",
                expected=self.fingerprint,
                actual=actual,
            )
        return array

    def name(self, item: ShardTarget) -> tuple[str, tuple[int, ...] | None]:
        return item.relative, item.coords

    def item(self, opened: ArrayTarget, name: tuple[str, tuple[int, ...] | None]) -> ShardTarget:
        relative, coords = name
        return ShardTarget(opened, opened.folder.prefix + relative, coords)

    def sees(self, item: ShardTarget) -> bool:
        return is_stored(item)


def _fingerprint(array: ArrayTarget) -> str:
    text = json.dumps(array.document, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def is_stored(shard: ShardTarget) -> bool:
    """Return False if this machine sees no file of a shard; True for a store that names its objects everywhere the same."""
    path = shard.array.store.path(shard.key)
    return path is None or os.path.lexists(path)


class ShardBatch(NamedTuple):
    """The outcome of a batch.

    Attributes
    ----------
    results : list of (int, object)
        Results, each with the number of its shards, in the order of the batch. Shards at the end may have none.
    missing : list of int
        Shards that are not stored, by their number in the batch.
    seconds : float
        Time that the batch took; 0 if there was nothing to do for its shards.
    error : Exception or None
        Why the batch ended early.
    host : str
        Name of the machine.
    """

    results: list[tuple[int, Any]]
    missing: list[int]
    seconds: float
    error: Exception | None
    host: str


def unseen(shards: Sequence[Any], batch: ShardBatch) -> FileNotFoundError | None:
    """Return the error of a worker that does not see a shard which is stored here."""
    for n in batch.missing:
        if is_stored(shards[n]) and shards[n].array.store.supports_listing:
            return FileNotFoundError(
                f"{shards[n].name}: expected the shard on the worker at {batch.host}, but it is not there; all workers must reach "
                "the array under the same path"
            )
    return None


class ShardWorker:
    """Runs batches of one task in one process.

    Parameters
    ----------
    place : TaskPlace
    task : ShardTask
    options : Options
        Options of the process that sends the batches.
    n_threads, memory : int
        Batches at the same time, and bytes that they use, at most.
    """

    def __init__(
        self,
        place: TaskPlace[Any],
        task: ShardTask[Any, Any],
        options: Options,
        *,
        n_threads: int,
        memory: int,
    ) -> None:
        self._place, self._task = place, task
        self._options = replace(options, threads=n_threads)
        self._memory = memory
        self._opening, self._lock = threading.Lock(), threading.Lock()
        self._open_task: _OpenTask | None = None
        self._n_running = 0
        self.is_stopped: bool = False

    def run(self, names: Sequence[Any], most_seconds: float) -> ShardBatch:
        """Work on shards in their order, until the time is over or the worker is stopped; a shard that was begun is finished.

        Parameters
        ----------
        names : sequence
            What `TaskPlace.name` returned of each shard.
        most_seconds : float

        Raises
        ------
        FileNotFoundError, ConflictError, ShardError, OSError, ValueError, ImportError
            What the place names cannot be opened here, or is not the same.
        """
        with self._opening:
            if self._open_task is None:
                self._open_task = self._open()
            task = self._open_task
        with self._lock:
            self._n_running += 1
        try:
            with task.slots:
                return self._run(task, names, most_seconds)
        finally:
            with self._lock:
                self._n_running -= 1
                self._close_if_over()

    def stop(self) -> None:
        """End the batches after their current shards, and then close what they use."""
        self.is_stopped = True
        with self._lock:
            self._close_if_over()

    def _run(self, task: _OpenTask, names: Sequence[Any], most_seconds: float) -> ShardBatch:
        start = time.monotonic()
        shards = [self._place.item(task.opened, name) for name in names]
        # the process that lists the shards must see the same ones
        missing = [n for n, shard in enumerate(shards) if not self._place.sees(shard)]
        results: list[tuple[int, Any]] = []
        failure: Exception | None = None
        weight = 0
        try:
            until = _BatchEnd(lambda: self.is_stopped, start + most_seconds)
            for n, result in task.tool.run(shards, until, task.n_threads):
                results.append((n, result))
                weight += self._task.weight(result)
                if weight > MAX_WEIGHT:
                    break
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - it is raised in the process that asked, after the results
            failure = error
        seconds = time.monotonic() - start if weight else 0.0
        return ShardBatch(results, missing, seconds, failure, socket.gethostname())

    def _open(self) -> _OpenTask:
        opened = self._place.open(self._options)
        tool = self._task.open(opened, self._options, MemoryBudget(self._memory))
        n_slots = max(1, min(self._options.threads, tool.n_threads))
        slots = threading.BoundedSemaphore(n_slots)
        return _OpenTask(opened, tool, slots, tool.n_threads // n_slots)

    def _close_if_over(self) -> None:
        if self.is_stopped and not self._n_running and self._open_task is not None:
            self._task.close(self._open_task.opened)


class _BatchEnd(Monitor):
    """Ends a batch in a worker when its time is over, or the worker is stopped."""

    def __init__(self, is_stopped: Callable[[], bool], end: float) -> None:
        self._is_stopped, self._end = is_stopped, end

    def check(self) -> None:
        if self._is_stopped() or time.monotonic() >= self._end:
            raise Stopped


class _OpenTask(NamedTuple):
    opened: Any
    tool: ShardTool[Any, Any]
    slots: threading.BoundedSemaphore
    n_threads: int  # of one batch
