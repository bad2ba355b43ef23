# compact.py - pack and order shards without decoding them
# SPDX-License-Identifier: MIT
"""`compact`: new objects without dead bytes, with their inner chunks in an order, and with a checksum of the index.

Encoded inner chunks are copied in runs, so each thread holds one run of a few MiB; for an order in place in a store of
requests, one shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..arguments import checked
from ..format.spec import ShardSpec
from ..options import Order
from ..storage.kinds import placed_options
from .array_target import ArrayTarget
from .compact_report import CompactAction, CompactedShard, CompactReport
from .compact_work import CompactTask, CompactWork
from .jobs.shard_pool import ShardPool, absolute_place
from .monitor import Monitor, Stopped
from .new_hierarchy import NewHierarchy
from .other_objects import NO_OBJECTS, count_objects, other_objects
from .run_over_arrays import RunOverArrays, check_only_arrays
from .targets import find_arrays, find_groups

__all__ = ["compact"]

OnCompact = Callable[[CompactedShard], None]


@checked
def compact(
    target: Any,
    *,
    min_dead: float = 0.1,
    order: Order | None = None,
    index_crc: bool = False,
    to: Any = None,
    dry_run: bool = False,
    array: str | None = None,
    only_arrays: bool = False,
    spec: ShardSpec | None = None,
    threads: int | None = None,
    memory: int | None = None,
    dask: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    monitor: Monitor | None = None,
    on_shard: OnCompact | None = None,
) -> CompactReport:
    """Pack the shards that a path leads to. Inner chunks are copied as they are stored. Header, footer and alignment stay.

    Each shard is replaced in one step, or all shards are written to a new hierarchy. Damaged shards are not changed, and are
    reported; a new hierarchy does not have them, and gets no metadata then.

    Parameters
    ----------
    target : path-like, URL, zarr store or StorePath
        A group, an array, or one shard of an array.
    min_dead : float
        Pack a shard if at least this share of it, in [0, 1], is dead bytes.
    order : {"morton", "lexicographic", "colexicographic"}, optional
        Also pack shards whose inner chunks are in another order. By default the order stays.
    index_crc : bool
        Add a checksum to the index of each shard that has none. The metadata of an array name the codecs of all its
        indexes, so this needs `to`.
    to : path-like, URL or zarr store, optional
        Write a new hierarchy; `target` is not changed.
    dry_run : bool
        Change nothing, and report what would be packed.
    array : str, optional
        Only this array, by its path in the group.
    only_arrays : bool
        Do not copy objects that belong to no array to `to`. By default all objects of the hierarchy are copied as they are, such
        as tables and hidden files; with `array` those in its folder.
    spec : ShardSpec, optional
        The encoding of a shard that is not in the folder of its array; `target` is then this one object.
    threads : int, optional
        Number of shards at the same time. Default: the option ``threads``.
    memory : int, optional
        Memory for indexes and data, in bytes; fewer threads are used if it is short. By default a few MiB, an index and an
        inner chunk for each thread, and whole shards where a store needs them.
    dask : str, distributed.Client or bool, optional
        The workers of a cluster of dask pack the shards, see `convert`; `target` and `to` must be paths or URLs. `memory` and
        `threads` are then those of one worker, by default half of its memory limit and all its threads.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.
    monitor : Monitor, optional
        Gets the progress, and may stop the work between two shards.
    on_shard : callable, optional
        Called for each packed or failed shard; the report then does not list them.

    Returns
    -------
    CompactReport

    Raises
    ------
    FileExistsError
        There is something at `to` already, other than an empty folder.
    FileNotFoundError
        There is no array, group or shard.
    OSError
        A new object cannot be written; the old one stays. Or the scheduler of dask was lost.
    ValueError, TypeError, ImportError
        An argument is invalid, an index and an inner chunk do not fit into `memory`, or a package is missing.
    ConflictError
        A worker of dask reaches other metadata.
    Stopped
        `monitor` stopped the work; the error has a `report` of what was done.
    """
    if not 0 <= min_dead <= 1:
        raise ValueError(f"min_dead: expected a share in [0, 1], got {min_dead}")
    check_only_arrays(only_arrays, to)
    if index_crc and to is None and not dry_run:
        raise ValueError(
            "index_crc: expected `to` (--to), a new place: the metadata name the index codecs of all shards"
        )
    monitor = monitor or Monitor()
    to = absolute_place(to)
    storage_options = placed_options(storage_options, target, to)
    pool = ShardPool(
        target,
        spec,
        storage_options,
        threads=threads,
        memory=memory,
        dask=dask,
        monitor=monitor,
        more_places={} if to is None else {"to": to},
    )
    arrays: Iterable[ArrayTarget] = find_arrays(
        target, array=array, spec=spec, storage_options=storage_options
    )
    others, counts = None, NO_OBJECTS
    if to is not None:
        arrays = list(arrays)
        others = other_objects(
            target, arrays, storage_options, is_chosen=array is not None, only_arrays=only_arrays
        )
        counts = count_objects(others, monitor, pool.options.threads)
    with pool:
        if to is not None and dry_run:
            pool.check_new_place(to)
        new = None if to is None or dry_run else pool.new_hierarchy(to)
        task = CompactTask(min_dead, order, index_crc, dry_run, None if new is None else new.place)
        run = _CompactRun(new, task, pool, monitor, on_shard)
        run.others = counts
        try:
            run.add_all(arrays)
            run.copy_others(others)
        except Stopped as stop:
            stop.report = run.report(str(target), None if to is None else str(to), is_complete=False)
            raise
    is_complete = new is None or not run.n_failed
    if new is not None and is_complete:
        has_groups = array is None and spec is None
        new.finish(find_groups(target, storage_options) if has_groups else ())
    return run.report(str(target), None if to is None else str(to), is_complete=is_complete)


def _with_index_checksum(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a sharded array, whose shards have an index checksum."""
    codecs = [dict(codec) if isinstance(codec, Mapping) else codec for codec in document["codecs"]]
    for codec in codecs:
        if isinstance(codec, dict) and codec.get("name") == "sharding_indexed":
            configuration = codec["configuration"]
            if all(one.get("name") != "crc32c" for one in configuration["index_codecs"]):
                stored = [*configuration["index_codecs"], {"name": "crc32c"}]
                codec["configuration"] = {**configuration, "index_codecs": stored}
    return {**document, "codecs": codecs}


class _CompactRun(RunOverArrays[CompactedShard]):
    """One run over several arrays."""

    def __init__(
        self,
        to: NewHierarchy | None,
        task: CompactTask,
        pool: ShardPool,
        monitor: Monitor,
        on_shard: OnCompact | None,
    ) -> None:
        super().__init__(to, pool, monitor, on_shard)
        self._task = task
        self.n_failed = self._n_packed = self._freed = 0

    def report(self, target: str, to: str | None, *, is_complete: bool = True) -> CompactReport:
        """Return the result."""
        counts = self.n_shards, self._n_packed, self.n_failed, self._freed
        lists = tuple(self.listed), tuple(self.left)
        return CompactReport(target, to, self._task.dry_run, *counts, *lists, is_complete, self.others)

    def _add(self, array: ArrayTarget) -> None:
        if self._task.index_crc and array.only is not None:
            raise ValueError("index_crc: expected a whole array, whose metadata change, got one shard")
        self._monitor.start(array.name or array.place, array.n_grid_shards)
        if self._to is not None:
            self._to.add(array, _with_index_checksum if self._task.index_crc else None)
        self._work_on(
            array, self._task, CompactWork(array, self._task, self._pool.options, self._pool.budget)
        )

    def _count(self, done: CompactedShard) -> None:
        if done.action is CompactAction.PACKED:
            self._n_packed += 1
            self._freed += done.dead_nbytes if done.new_nbytes is None else done.nbytes - done.new_nbytes
        else:
            self.n_failed += 1
