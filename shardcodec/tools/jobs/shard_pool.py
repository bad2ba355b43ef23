# shard_pool.py - the threads or the workers that work on shards
# SPDX-License-Identifier: MIT
"""`ShardPool`: a tool works on the shards of arrays in threads of this process, or on the workers of a cluster."""

from __future__ import annotations

import math
import os
import uuid
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ...access.box_reader import SpareDocuments
from ...format.spec import ShardSpec
from ...option_sources import current_options
from ...options import Options, check
from ...storage.files import check_name
from ...storage.url_stores import is_url
from ..hierarchy import Hierarchy
from ..hierarchy_copy import HierarchyCopy
from ..memory import MemoryBudget
from ..monitor import Monitor, RunOptions
from ..new_hierarchy import check_new_place
from ..targets import ArrayTarget, ShardTarget
from .batches import Batches
from .shard_work import ArrayPlace, ArrayTask, ShardTool

if TYPE_CHECKING:
    from .dask_workers import DaskWorkers


__all__ = [
    "ShardPool",
    "absolute_place",
    "chosen_cluster",
    "default_job",
    "open_workers",
]


# `chosen_cluster`: this process or dask. `open_workers` imports dask, which is optional, at the first use.


def chosen_cluster(dask: Any, places: Mapping[str, Any]) -> Any:
    """Return the address or the client of the cluster that does the work; None for this process.

    Parameters
    ----------
    dask : str, distributed.Client, bool or None
        What the user has given. True: the client that the program uses. None or False: this process.
    places : mapping
        Absolute places, by the name of the argument.

    Raises
    ------
    TypeError
        The workers cannot open a place.
    ValueError
        The program uses no client.
    """
    if dask is None or dask is False:
        return None
    for name, place in places.items():
        if not isinstance(place, str):
            raise TypeError(
                f"{name}: expected a path or a URL, which the workers of dask can open, got {type(place).__name__}"
            )
    if dask is not True:
        return dask
    found = _dask().active_client()
    if found is None:
        raise ValueError("dask: expected a client that this program uses by default, but there is none")
    return found


def default_job(destination: str) -> str:
    """Return the file of the plan beside a local destination.

    Raises
    ------
    ValueError
        The destination is a URL.
    """
    if is_url(destination):
        raise ValueError(
            f"job: expected a file for the plan, which all workers reach, because {destination} is not a local path"
        )
    return f"{destination}.job.json"


def open_workers(
    cluster: Any, *, threads: int | None, memory: int | None, monitor: Monitor
) -> AbstractContextManager[DaskWorkers | None]:
    """Open a cluster in a with block; see `dask_workers`. Without one the block gets None.

    Raises
    ------
    ImportError
        distributed is not installed.
    """
    if cluster is None:
        return nullcontext()
    found: AbstractContextManager[DaskWorkers | None] = _dask().dask_workers(
        cluster, threads=threads, memory=memory, monitor=monitor
    )
    return found


def _dask() -> ModuleType:
    try:
        from . import dask_workers
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("dask", "distributed"):
            raise
        raise ImportError(
            "dask: workers need the package distributed (extra dask); install it with: pip install 'distributed>=2025.5'"
        ) from error
    return dask_workers


R = TypeVar("R")


class ShardPool:
    """The threads of this process, or the workers of a cluster, that work on shards. Use it in a ``with`` statement.

    Parameters
    ----------
    target, spec
        As for `find_arrays`.
    run : RunOptions
    more_places : mapping
        Other arguments that name places, which workers must open; those that are None are left out.

    Attributes
    ----------
    options : Options
        Those of the work; ``threads`` are those of this process, or of each worker.
    budget : MemoryBudget
        The memory of this process, or of each worker.
    spare : SpareDocuments
        Stand in for lost documents of the target.

    Raises
    ------
    TypeError, ValueError
        An argument is invalid, or workers cannot open a place.
    """

    def __init__(self, target: Any, spec: ShardSpec | None, run: RunOptions, **more_places: Any) -> None:
        self._target, self._spec = absolute_place(target), spec
        self.run = run
        self.spare: SpareDocuments = SpareDocuments()
        self.options: Options = current_options(argument=check({"threads": run.threads}))
        self.budget: MemoryBudget = MemoryBudget(run.memory)
        given = {name: place for name, place in more_places.items() if place is not None}
        self._cluster = chosen_cluster(run.dask, {"target": self._target, **given})
        self._workers: DaskWorkers | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        run = self.run
        opened = open_workers(self._cluster, threads=run.threads, memory=run.memory, monitor=run.monitor)
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

    def begin_copy(self, to: Any, hierarchy: Hierarchy) -> HierarchyCopy:
        """Begin the copy of a hierarchy, which all processes of this pool write.

        Parameters
        ----------
        to : path-like, URL or zarr store
        hierarchy : Hierarchy
            What is copied.

        Raises
        ------
        ValueError, FileExistsError
            See `HierarchyCopy`; or workers should write a single shard.
        """
        is_one_shard = bool(hierarchy.rest)
        if self.is_remote and is_one_shard:
            raise ValueError(
                "to: expected a group or an array with dask, got one shard, which needs no workers"
            )
        job = uuid.uuid4().hex if self.is_remote else None
        return HierarchyCopy(
            to,
            self.run.storage_options,
            self.budget,
            self._target,
            self.options,
            job,
            is_one_shard=is_one_shard,
            found=hierarchy.found,
        )

    def check_new_place(self, to: Any, *, is_one_shard: bool) -> None:
        """Raise the errors of `begin_copy`; nothing is written."""
        check_new_place(to, self.run.storage_options, self._target, is_one_shard=is_one_shard)

    def results(
        self,
        task: ArrayTask[R],
        tool: ShardTool[ShardTarget, R],
        array: ArrayTarget,
        shards: Iterable[ShardTarget],
    ) -> Generator[tuple[list[ShardTarget], R], None, None]:
        """Work on shards of an array, and yield the results in the order of the shards; see `DaskWorkers.in_order`.

        Parameters
        ----------
        task : ArrayTask
        tool : ShardTool
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
            taken: deque[ShardTarget] = deque()
            for n, result in tool.run(_noted(shards, taken), self.run.monitor, tool.n_threads):
                yield [taken.popleft() for _ in range(n)], result
            return
        place = ArrayPlace.of(array, self._target, self._spec, self.run.storage_options)
        cost = math.prod(array.object_spec.shard_shape)
        batches = Batches(
            shards,
            cost=lambda shard: cost,
            n_shards=lambda shard: 1,
            left=array.n_grid_shards * cost,
            failed=task.failed,
        )
        yield from self._workers.in_order(place, task, batches, self.options, self.run.monitor)


def absolute_place(place: Any) -> Any:
    """Return the absolute path of a local path; anything else as it is."""
    is_path = isinstance(place, str | os.PathLike) and not is_url(place)
    return os.path.abspath(check_name(os.fspath(place))) if is_path else place


def _noted(shards: Iterable[ShardTarget], taken: deque[ShardTarget]) -> Iterator[ShardTarget]:
    for shard in shards:
        taken.append(shard)
        yield shard
