# dask_shards.py - the workers of dask work on the shards of an array
# SPDX-License-Identifier: MIT
"""`ShardRun`: sends the shards of one array to workers in batches, and yields the results in the order of the shards.

A task has the keys of its shards. A batch that dask runs twice, because a worker was lost, must do no harm: a tool changes
nothing, or replaces whole shards, each in one step and so that the second time gives the same result. A batch that ends several workers is divided until the shard is
found that does.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from distributed import KilledWorker

from ...options import Options
from ..array_target import ArrayTarget, ShardTarget
from ..monitor import Monitor, Stopped
from .batches import MOST_SECONDS, Batches
from .dask_run import Cluster, DaskRun, RunPlugin, worker_of_run
from .shard_task import ArrayPlace, Name, ShardBatch, ShardTask, ShardWorker, is_stored

__all__ = ["ShardPlugin", "ShardRun", "unseen"]

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


def _run_batch(name: str, names: Sequence[Name]) -> ShardBatch:
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
            _run_batch,
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
