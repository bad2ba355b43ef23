# shard_pool.py - the threads or the workers that work on shards
# SPDX-License-Identifier: MIT
"""`ShardPool`: a tool works on the shards of arrays in threads of this process, or on the workers of a cluster."""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ...format.spec import ShardSpec
from ...option_sources import current_options
from ...options import check
from ...storage.files import check_name
from ...storage.kinds import is_url
from ..array_target import ArrayTarget, ShardTarget
from ..convert.places import check_new_place
from ..memory_budget import MemoryBudget
from ..monitor import Monitor
from ..new_hierarchy import NewHierarchy
from ..targets import find_arrays
from .cluster import chosen_cluster, open_workers
from .shard_task import ArrayPlace, ShardTask, ShardWork

if TYPE_CHECKING:
    from .dask_workers import DaskWorkers

__all__ = ["ShardPool", "absolute_place"]

R = TypeVar("R")


class ShardPool:
    """The threads of this process, or the workers of a cluster, that work on shards. Use it in a ``with`` statement.

    Parameters
    ----------
    target, spec, storage_options
        As for `find_arrays`.
    threads, memory : int or None
        Of this process, or of each worker.
    dask : str, distributed.Client, bool or None
        As for `convert`.
    monitor : Monitor
    more_places : mapping
        Other arguments that name places, which workers must open.

    Attributes
    ----------
    options : Options
        Those of the work; ``threads`` are those of this process, or of each worker.
    budget : MemoryBudget
        The memory of this process, or of each worker.

    Raises
    ------
    TypeError, ValueError
        An argument is invalid, or workers cannot open a place.
    """

    def __init__(
        self,
        target: Any,
        spec: ShardSpec | None,
        storage_options: Mapping[str, Any] | None,
        *,
        threads: int | None,
        memory: int | None,
        dask: Any,
        monitor: Monitor,
        more_places: Mapping[str, Any] | None = None,
    ) -> None:
        self._target, self._spec, self._storage_options = absolute_place(target), spec, storage_options
        self._threads, self._memory, self._monitor = threads, memory, monitor
        self.options = current_options(argument=check({"threads": threads}))
        self.budget = MemoryBudget(memory)
        places = {"target": self._target, **(more_places or {})}
        self._cluster = chosen_cluster(dask, places)
        self._workers: DaskWorkers | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        opened = open_workers(
            self._cluster, threads=self._threads, memory=self._memory, monitor=self._monitor
        )
        self._workers = self._stack.enter_context(opened)
        if self._workers is not None:
            self.options = current_options(argument=check({"threads": self._workers.n_threads}))
            self.budget = MemoryBudget(self._workers.memory)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def is_remote(self) -> bool:
        """True if workers of a cluster do the work."""
        return self._workers is not None

    def new_hierarchy(self, to: Any) -> NewHierarchy:
        """Begin a new hierarchy, which all processes of this pool write.

        Parameters
        ----------
        to : path-like, URL or zarr store

        Raises
        ------
        ValueError, FileExistsError
            See `NewHierarchy`; or workers should write a single shard.
        """
        is_one_shard = self._is_one_shard()
        if self.is_remote and is_one_shard:
            raise ValueError(
                "to: expected a group or an array with dask, got one shard, which needs no workers"
            )
        job = uuid.uuid4().hex if self.is_remote else None
        return NewHierarchy(
            to,
            self._storage_options,
            self.budget,
            self._target,
            self.options,
            job,
            is_one_shard=is_one_shard,
        )

    def check_new_place(self, to: Any) -> None:
        """Raise the errors of `new_hierarchy`; nothing is written."""
        check_new_place(to, self._storage_options, self._target, is_one_shard=self._is_one_shard())

    def _is_one_shard(self) -> bool:
        found = find_arrays(self._target, spec=self._spec, storage_options=self._storage_options)
        first = next(found, None)
        return first is not None and first.only is not None

    def results(
        self, task: ShardTask[R], work: ShardWork[R], array: ArrayTarget, shards: Iterable[ShardTarget]
    ) -> Generator[tuple[list[ShardTarget], R], None, None]:
        """Work on shards of an array, and yield the results in the order of the shards; see `DaskWorkers.in_order`.

        Parameters
        ----------
        task : ShardTask
        work : ShardWork
            The task, opened in this process with `options` and `budget`.
        array : ArrayTarget
        shards : iterable of ShardTarget
            Taken some ahead of the results.

        Raises
        ------
        Stopped
            The user asked to stop. The results of shards that are finished are yielded before.
        Exception
            What the work raised first. With workers also the errors of `DaskWorkers.in_order`.
        """
        if self._workers is None:
            return _in_threads(work, shards, self._monitor)
        place = ArrayPlace.of(array, self._target, self._spec, self._storage_options)
        return self._workers.in_order(task, place, array, shards, self.options, self._monitor)


def absolute_place(place: Any) -> Any:
    """Return the absolute path of a local path; anything else as it is."""
    is_path = isinstance(place, str | os.PathLike) and not is_url(place)
    return os.path.abspath(check_name(os.fspath(place))) if is_path else place


def _in_threads(
    work: ShardWork[R], shards: Iterable[ShardTarget], monitor: Monitor
) -> Generator[tuple[list[ShardTarget], R], None, None]:
    taken: deque[ShardTarget] = deque()

    def noted() -> Iterator[ShardTarget]:
        for shard in shards:
            taken.append(shard)
            yield shard

    for n, result in work.run(noted(), monitor, work.n_threads):
        yield [taken.popleft() for _ in range(n)], result
