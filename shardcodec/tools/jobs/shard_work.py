# shard_work.py - what a tool does with each shard of an array, in any process, batch by batch
# SPDX-License-Identifier: MIT
"""What a tool does with each shard of an array, in any process, batch by batch.

`ShardTask`: the work of a tool on the shards of one array, as plain data. `ShardWorker`: runs batches of it in a process.

They do not depend on the system that sends the batches. Several threads may run batches at the same time.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from ...errors import ConflictError
from ...format.spec import ShardSpec
from ...options import Options
from ..convert.plan import ConvertPlan, Unit
from ..targets import ArrayTarget, ShardTarget, find_arrays
from ..work import MemoryBudget, Monitor, Stopped

__all__ = [
    "MOST_SECONDS",
    "ArrayPlace",
    "BatchEnd",
    "Batches",
    "Name",
    "ShardBatch",
    "ShardTask",
    "ShardWork",
    "ShardWorker",
    "batches_of_plan",
    "is_stored",
]


# ---------------------------------------------------------------- how much work a task of a cluster gets
#
# `Batches`: divides units of a plan, or shards, into batches of about `TARGET_SECONDS`, by what earlier ones have taken.
#
# A batch of a second would be mostly administration; one of an hour is lost if its worker dies. The first size is an
# estimate. Near the end batches become smaller, so that the workers end at about the same time.

T = TypeVar("T")

# Work of the first batches, of later ones, and the time after which a worker returns the rest of a batch.
FIRST_SECONDS = 5.0
TARGET_SECONDS = 20.0
MOST_SECONDS = 60.0
# Elements per second of one thread, before any batch was measured.
FIRST_SPEED = 50e6
# A message to a worker names at most so many shards, with what is recorded of them.
MOST_SHARDS = 10_000


class Batches(Generic[T]):
    """The items that are left, such as units of a plan.

    Parameters
    ----------
    items : iterable
        It is read as batches are taken, so that no list of all items is made.
    cost : callable
        Returns the number of elements of an item.
    n_shards : callable
        Returns the number of shards of an item.
    left : int
        Elements of all items; too many do no harm, apart from larger batches at the end.
    """

    def __init__(
        self, items: Iterable[T], *, cost: Callable[[T], int], n_shards: Callable[[T], int], left: int
    ) -> None:
        self._item_cost, self._n_shards, self._left = cost, n_shards, left
        self._rest = iter(items)
        self._returned: deque[T] = deque()
        self._speed, self._seconds = FIRST_SPEED, FIRST_SECONDS

    def take(self, n_slots: int) -> list[T]:
        """Return the next batch; an empty one if nothing is left.

        Parameters
        ----------
        n_slots : int
            Batches that the workers run at the same time.
        """
        wanted = min(self._speed * self._seconds, self._left / (2 * max(1, n_slots)))
        batch: list[T] = []
        cost = n_shards = 0
        while not batch or (cost < wanted and n_shards < MOST_SHARDS):
            item = self._returned.popleft() if self._returned else next(self._rest, None)
            if item is None:
                break
            batch.append(item)
            cost += self._item_cost(item)
            n_shards += self._n_shards(item)
        self._left -= cost
        return batch

    def give_back(self, items: Sequence[T]) -> None:
        """Take items back that a worker has not run; they come next."""
        self._returned.extendleft(reversed(items))
        self._left += self._cost(items)

    def measured(self, items: Sequence[T], seconds: float) -> None:
        """Adapt the size of batches to the time that the items of one have taken."""
        speed = self._cost(items) / max(seconds, 1e-3)
        is_first = self._seconds == FIRST_SECONDS
        self._speed = speed if is_first else (self._speed + speed) / 2
        self._seconds = TARGET_SECONDS

    def _cost(self, items: Iterable[T]) -> int:
        return sum(map(self._item_cost, items))


class BatchEnd(Monitor):
    """Ends a batch in a worker when its time is over, or the worker is stopped.

    Parameters
    ----------
    is_stopped : callable
        Returns True if the worker is stopped.
    end : float
        Time of `time.monotonic`.
    """

    def __init__(self, is_stopped: Callable[[], bool], end: float) -> None:
        self._is_stopped, self._end = is_stopped, end

    def check(self) -> None:
        if self._is_stopped() or time.monotonic() >= self._end:
            raise Stopped


def batches_of_plan(plan: ConvertPlan, units: Iterable[Unit]) -> Batches[Unit]:
    """Return the batches of units of a plan."""
    shards = [math.prod(one.grouping.shards) for one in plan.arrays]
    costs = [n * math.prod(one.shard_shape) for n, one in zip(shards, plan.arrays, strict=True)]
    left = sum(math.prod(one.groups) * cost for one, cost in zip(plan.arrays, costs, strict=True))
    return Batches(
        units, cost=lambda unit: costs[unit.array], n_shards=lambda unit: shards[unit.array], left=left
    )


# ---------------------------------------------------------------- what a tool does with each shard of an array, in any process

# A batch ends early if its results list more findings, so that a message stays small where all shards are damaged.
MOST_WEIGHT = 20_000

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

# Key of a shard in the folder of its array, and its position.
Name = tuple[str, tuple[int, ...] | None]


class ShardWork(Protocol[R_co]):
    """The work on the shards of an array that is open.

    Attributes
    ----------
    n_threads : int
        Threads that work at a time, at most.
    """

    n_threads: int

    def run(
        self, shards: Iterable[ShardTarget], monitor: Monitor, n_threads: int
    ) -> Iterator[tuple[int, R_co]]:
        """Work on shards.

        Parameters
        ----------
        shards : iterable of ShardTarget
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


class ShardTask(ABC, Generic[R]):
    """The work of a tool on the shards of one array. It is sent to other processes, so it has plain data only."""

    @abstractmethod
    def open(self, array: ArrayTarget, options: Options, budget: MemoryBudget) -> ShardWork[R]:
        """Return the work in this process.

        Parameters
        ----------
        array : ArrayTarget
        options : Options
        budget : MemoryBudget
            The memory of all threads.
        """

    def weight(self, result: R) -> int:
        """Return the number of parts of a result, such as findings."""
        return 1

    @abstractmethod
    def failed(self, shard: ShardTarget, detail: str) -> R:
        """Return the result of a shard whose work ends the process."""


@dataclass(frozen=True)
class ArrayPlace:
    """An array, as another process finds it.

    Attributes
    ----------
    target : str
        Absolute path, or a URL: the hierarchy, the array, or one shard.
    name : str or None
        Path of the array in the hierarchy; None if `target` is the array or a shard.
    spec : ShardSpec or None
        The encoding of a shard that is not in the folder of its array.
    storage_options : mapping or None
    fingerprint : str
        Of the metadata of the array.
    """

    target: str
    name: str | None
    spec: ShardSpec | None
    storage_options: Mapping[str, Any] | None = field(repr=False)
    fingerprint: str

    @classmethod
    def of(
        cls,
        array: ArrayTarget,
        target: str,
        spec: ShardSpec | None,
        storage_options: Mapping[str, Any] | None,
    ) -> ArrayPlace:
        """Return the place of an array that `find_arrays` found."""
        return cls(target, array.name or None, spec, storage_options, _fingerprint(array))

    def open(self) -> ArrayTarget:
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
            found = next(
                find_arrays(
                    self.target, array=self.name, spec=self.spec, storage_options=self.storage_options
                )
            )
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.target}: expected the array {self.name or ''!r} on the worker at {host}: {error}; all workers must reach it "
                "under the same path"
            ) from error
        if (actual := _fingerprint(found)) != self.fingerprint:
            raise ConflictError(
                f"{found.place}: expected the metadata that the main process has read, got others on the worker at {host}; all "
                "workers must reach the same array, and its metadata must not change meanwhile",
                expected=self.fingerprint,
                actual=actual,
            )
        return found


class ShardBatch(NamedTuple):
    """The outcome of a batch.

    Attributes
    ----------
    results : list of (int, object)
        Results, each with the number of its shards, in the order of the batch. Shards at the end may have none.
    missing : list of int
        Shards that are not stored, by their number in the batch.
    seconds : float
        Time that the batch took.
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


class ShardWorker:
    """Runs batches of one task in one process.

    Parameters
    ----------
    place : ArrayPlace
    task : ShardTask
    options : Options
        Options of the process that sends the batches.
    n_threads, memory : int
        Batches at the same time, and bytes that they use, at most.
    """

    def __init__(
        self, place: ArrayPlace, task: ShardTask[Any], options: Options, *, n_threads: int, memory: int
    ) -> None:
        self._place, self._task = place, task
        self._options = replace(options, threads=n_threads)
        self._memory = memory
        self._opening = threading.Lock()
        self._opened: _OpenedArray | None = None
        self.is_stopped = False

    def run(self, names: Sequence[Name], most_seconds: float) -> ShardBatch:
        """Work on shards in their order, until the time is over or the worker is stopped; a shard that was begun is finished.

        Parameters
        ----------
        names : sequence of (str, tuple of int or None)
            Key of each shard in the folder of the array, and its position.
        most_seconds : float

        Raises
        ------
        FileNotFoundError, ConflictError, ShardError, OSError, ValueError
            The array cannot be opened here, or is not the same.
        """
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
            opened = self._opened
        prefix = opened.array.folder.prefix
        shards = [ShardTarget(opened.array, prefix + relative, coords) for relative, coords in names]
        with opened.slots:
            start = time.monotonic()
            # the process that lists the shards must see the same ones
            missing = [n for n, shard in enumerate(shards) if not is_stored(shard)]
            results: list[tuple[int, Any]] = []
            failure: Exception | None = None
            try:
                until = BatchEnd(lambda: self.is_stopped, start + most_seconds)
                weight = 0
                for n, result in opened.work.run(shards, until, opened.n_threads):
                    results.append((n, result))
                    weight += self._task.weight(result)
                    if weight > MOST_WEIGHT:
                        break
            except Stopped:
                pass
            except Exception as error:  # noqa: BLE001 - it is raised in the process that asked, after the results
                failure = error
            return ShardBatch(results, missing, time.monotonic() - start, failure, socket.gethostname())

    def stop(self) -> None:
        """End the batches after their current shards."""
        self.is_stopped = True

    def _open(self) -> _OpenedArray:
        array = self._place.open()
        work = self._task.open(array, self._options, MemoryBudget(self._memory))
        n_slots = max(1, min(self._options.threads, work.n_threads))
        return _OpenedArray(array, work, threading.BoundedSemaphore(n_slots), work.n_threads // n_slots)


def is_stored(shard: ShardTarget) -> bool:
    """Return False if this machine sees no file of a shard; True for a store that names its objects everywhere the same."""
    path = shard.array.store.path(shard.key)
    return path is None or os.path.lexists(path)


class _OpenedArray(NamedTuple):
    array: ArrayTarget
    work: ShardWork[Any]
    slots: threading.BoundedSemaphore
    n_threads: int  # of one batch


def _fingerprint(array: ArrayTarget) -> str:
    text = json.dumps(array.document, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
