# repair.py - repair damaged shards of arrays, to a new array or in place with a backup
# SPDX-License-Identifier: MIT
"""Repair damaged shards of arrays, to a new array or in place with a backup.

`repair`: keep what is whole, take the rest from a copy, and say what is lost. The only copy of a shard is never changed.

A few threads examine and write shards. Each holds one block and one inner chunk at a time; for a repair in place in a store
of requests, one shard.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..access.box_reader import Folder
from ..access.documents import replace_object
from ..access.opened_shard import NativeShard, OpenedShard
from ..access.shard_object import open_object
from ..arguments import checked
from ..errors import ConflictError, ShardError
from ..format.spec import ShardSpec
from ..options import Options, Order, in_force
from ..storage.file_systems import is_inside
from ..storage.kinds import is_url, placed_options
from ..storage.whole_file import give_name
from .backup import Backup
from .chunk_check import ChunkCheck
from .copy_source import CopySource
from .documents import DOCUMENTS, add_documents_of_copy, inner_path
from .hierarchy_copy import CopyPlace, CopyWriter, holds_whole_shards
from .jobs.shard_pool import ShardPool, absolute_place
from .jobs.shard_work import ArrayTask, ShardTool
from .memory import MemoryBudget
from .monitor import Monitor, RunOptions
from .nodes import is_below
from .other_objects import OtherObjects
from .run_over_arrays import RewriteRequest, RunOverArrays, ShardOutcome
from .shard_repair import (
    RepairedShard,
    RepairReport,
    ShardRepair,
    as_unreadable,
    rolled_back,
)
from .shard_threads import in_order
from .survey import Survey
from .targets import ArrayTarget, ForeignObject, ShardTarget

__all__ = [
    "RepairTask",
    "ShardRepairer",
    "repair",
]


# ---------------------------------------------------------------- repair the shards of one array
#
# `ShardRepairer`: repairs shards of an array, in threads. `RepairTask`: the same as plain data, for other processes.
#
# A task of dask may be repeated after a worker was lost, and two workers may run it at the same time: a new hierarchy gets the
# same bytes again. In place that would need proof that a shard is the result of the same run, so only one process does it: if a
# shard is as its backup, it is repaired; anything else is an error, and nothing is changed.


@dataclass(frozen=True)
class RepairTask(ArrayTask[ShardOutcome[RepairedShard]]):
    """How the shards of an array are repaired.

    Attributes
    ----------
    backup, copy, order, dry_run, storage_options
        As for `repair`.
    to : CopyPlace or None
        Where new shards are written.
    named : str or None
        The array that the user has named; the copy need not have those that come along with it.
    """

    backup: str | None
    copy: Any
    order: str | None
    dry_run: bool
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    to: CopyPlace | None = None
    named: str | None = None

    def open(self, array: ArrayTarget, options: Options, budget: MemoryBudget) -> ShardRepairer:
        return ShardRepairer(array, self, options, budget)

    def weight(self, result: ShardOutcome[RepairedShard]) -> int:
        repaired = result.result
        return 1 if repaired is None else 1 + len(repaired.findings) + len(repaired.lost)

    def failed(self, shard: ShardTarget, detail: str) -> ShardOutcome[RepairedShard]:
        return ShardOutcome(0, as_unreadable(shard, OSError(detail), None, is_lost=True))


class ShardRepairer:
    """Repairs shards of one array; see `ShardTool`."""

    def __init__(self, array: ArrayTarget, task: RepairTask, options: Options, budget: MemoryBudget) -> None:
        if task.copy is not None and budget.nbytes is not None:
            budget = MemoryBudget(max(1, budget.nbytes // 2))  # the other half is for the copy
        self._task = task
        self._to = None if task.to is None else CopyWriter(task.to, budget, options)
        self._options = replace(options, threads=1)
        source = self._source_of(array, options, budget)
        wanted = options.threads if source is None else source.n_threads
        holds_whole = holds_whole_shards(array, self._to)
        share = budget.share(array.object_spec, array.place, wanted, holds_whole=holds_whole)
        checks = ChunkCheck.of_array(array, self._options, share)
        self._source = source
        self._repair = ShardRepair(checks, self._options, source, task.order, budget)
        self.n_threads: int = share.n_threads

    def _source_of(self, array: ArrayTarget, options: Options, budget: MemoryBudget) -> CopySource | None:
        task = self._task
        if task.copy is None:
            return None
        try:
            return CopySource(array, task.copy, options, task.storage_options, budget)
        except FileNotFoundError:
            if task.named is None or array.name == inner_path(task.named, "array"):
                raise
            return None

    def run(
        self, shards: Iterable[ShardTarget], monitor: Monitor, n_threads: int
    ) -> Iterator[tuple[int, ShardOutcome[RepairedShard]]]:
        """Repair shards; the result is None for one that is whole. See `ShardTool.run`."""
        for outcome in in_order(shards, self._treat, n_threads, monitor):
            yield 1, outcome

    def _treat(self, shard: ShardTarget) -> ShardOutcome[RepairedShard]:
        """Repair one shard."""
        with in_force(self._options):
            if shard.old_key is None:
                return self._look(shard)
            return ShardOutcome(0, self._name(shard, shard.old_key))

    def _look(self, shard: ShardTarget) -> ShardOutcome[RepairedShard]:
        try:
            has_journal = shard.has_journal
            view = open_object(shard.array.store, shard.key)
            found = None if view is None else self._repair.survey(shard, view)
        except OSError as error:
            return ShardOutcome(0, self._without_old(shard, error))
        except ShardError as error:
            return ShardOutcome(0, self._failed(shard, error))
        if view is None or found is None:
            return ShardOutcome(0, self._missing(shard))
        return ShardOutcome(view.nbytes, self._repair_open(shard, view, found, has_journal=has_journal))

    def _repair_open(
        self, shard: ShardTarget, view: OpenedShard, found: Survey, *, has_journal: bool
    ) -> RepairedShard | None:
        """Repair an open shard, and close it; return None if it is whole."""
        try:
            if found.is_whole:
                if self._to is not None:
                    self._to.copy(shard.array, shard.key)
                elif has_journal and not self._task.dry_run:
                    return self._in_place(shard)
                return rolled_back(shard) if has_journal else None
            if self._task.dry_run:
                return self._repair.plan(shard, found)
            if self._to is not None:
                return self._repair.write_new(shard, view, found, self._to)
        except ShardError as error:
            return self._failed(shard, error)
        finally:
            view.close()
        return self._in_place(shard)

    def _name(self, shard: ShardTarget, old_key: str) -> RepairedShard:
        """Give a shard its name again, which it has lost because its writer died."""
        try:
            if not self._task.dry_run and self._to is not None:
                self._to.copy(shard.array, shard.key, old_key)
            elif not self._task.dry_run:
                give_name(shard.array.store.path(old_key) or old_key, shard.name)
        except OSError as error:
            return self._failed(shard, error)
        return rolled_back(shard)

    def _failed(self, shard: ShardTarget, error: Exception, *, is_lost: bool = False) -> RepairedShard:
        """Return the report of a shard that was not repaired; a new hierarchy does not have it."""
        return as_unreadable(shard, error, None, is_lost=is_lost or self._task.backup is None)

    def _without_old(self, shard: ShardTarget, error: OSError) -> RepairedShard:
        """Take a shard that cannot be read from the copy. In place it stays, because there can be no backup of it."""
        if self._task.copy is None or self._task.backup is not None:
            return self._failed(shard, error, is_lost=True)
        found = self._repair.unreadable(shard, error)
        try:
            if self._to is None:
                return self._repair.plan(shard, found)
            return self._repair.write_new(shard, NativeShard(None, b""), found, self._to)
        except ShardError as failure:
            return self._failed(shard, failure)

    def missing(self) -> Iterator[ShardTarget]:
        """Yield the shards, or the chunks of an array without shards, that the copy may have, and that are not stored."""
        if self._source is not None and self._source.array.only is None:
            yield from self._source.missing()

    def _missing(self, shard: ShardTarget) -> RepairedShard | None:
        """Take a shard that is not stored from the copy; None if the copy does not have it either."""
        if self._source is None or shard.coords is None:
            return None
        try:
            return self._repair.restore(shard, self._to, dry_run=self._task.dry_run)
        except ShardError as error:
            return self._failed(shard, error)

    def _in_place(self, shard: ShardTarget) -> RepairedShard | None:
        assert self._task.backup is not None
        backup = Backup(shard, self._task.backup)
        if not backup.make():
            if not backup.is_equal():
                raise FileExistsError(
                    f"{shard.name}: expected a shard as its backup {backup.path}, but it is another; nothing was changed: look at both "
                    "files, and choose an empty folder for the backup"
                )
            backup.sync()
        try:
            done = self._replace(shard, backup)
        except ShardError as error:
            return as_unreadable(shard, error, backup.path)
        return None if done is None else replace(done, backup=backup.path)

    def _replace(self, shard: ShardTarget, backup: Backup) -> RepairedShard | None:
        """Roll back and replace a shard that has a backup; None if it is whole without an unfinished update, or does not exist."""
        has_journal = shard.roll_back()
        view = open_object(shard.array.store, shard.key)
        if view is None:
            return None
        try:
            found = self._repair.survey(shard, view)
            if found.is_whole:
                return rolled_back(shard) if has_journal else None
            check_state = partial(self._check_state, shard, backup)
            check_state(view)
            return self._repair.write_in_place(shard, view, found, check_state)
        finally:
            view.close()

    def _check_state(self, shard: ShardTarget, backup: Backup, now: OpenedShard) -> None:
        """Check that the state that is replaced is the one that was copied, not a later one."""
        if not backup.holds(now):
            raise ConflictError(
                f"shard {shard.name!r}: another writer has changed it since the backup {backup.path}; it was not replaced. Stop "
                "all writers, and run the tool again with an empty folder",
                shard=shard.name,
            )


# ---------------------------------------------------------------- repair damaged shards, to a new array or in place with a backup

# Why a repair in place takes no workers.
IN_PLACE_ON_DASK = (
    "dask: expected `to` (--to), a new place, because a repair in place is done by one process: dask repeats the work of a worker "
    "that it has lost, and the repeated work would meet shards that were repaired already. Use `to`, or leave out dask (--dask)"
)

OnRepair = Callable[[RepairedShard], None]


@checked
def repair(
    target: Any,
    *,
    to: Any = None,
    backup: str | os.PathLike[str] | None = None,
    copy: Any = None,
    order: Order | None = None,
    dry_run: bool = False,
    array: str | None = None,
    exactly: bool = False,
    only_arrays: bool = False,
    spec: ShardSpec | None = None,
    threads: int | None = None,
    memory: int | None = None,
    dask: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    monitor: Monitor | None = None,
    on_shard: OnRepair | None = None,
) -> RepairReport:
    """Repair the damaged shards that a path leads to. Stop all writers first.

    Inner chunks are kept if they decode and their position is proved. The others are taken from a copy. What is in neither
    is absent in the repaired shard, and the report names it. A damaged chunk of an array without shards is taken from the copy
    as a whole.

    Parameters
    ----------
    target : path-like, URL, zarr store or StorePath
        A group, an array, or one shard of an array.
    to : path-like, URL or zarr store, optional
        Write a new hierarchy, or the new object of a single shard; `target` is not changed. Whole shards and arrays that
        are not sharded are copied byte by byte.
    backup : path-like, optional
        Repair in place: replace damaged shards, each after a durable copy of its old object to this local folder, and roll
        back unfinished updates in place. A shard of which nothing can be restored is not changed. A backup is never written
        over: after a crash, the same call goes on with shards that are still as their backup. One of `to` and `backup` is
        required.
    copy : path-like, URL or zarr store, optional
        A copy of the array, or an array with the same elements in any layout.
    order : {"morton", "lexicographic", "colexicographic"}, optional
        For shards whose index is lost completely: the order in which their writer laid out the inner chunks. A wrong order
        exchanges inner chunks.
    dry_run : bool
        Change nothing, and report what a repair would do. `to` and `backup` are not needed then.
    array : str, optional
        Only this array, by its path in the group. `to` also gets the arrays that it needs, such as coordinates, see `convert`.
    exactly : bool
        Copy only this array to `to`.
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
        The workers of a cluster of dask write the new hierarchy `to`, see `convert`; `target`, `to` and `copy` must be paths or
        URLs. `memory` and `threads` are then those of one worker, by default half of its memory limit and all its threads. A
        repair in place takes no workers.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.
    monitor : Monitor, optional
        Gets the progress, and may stop the work between two shards.
    on_shard : callable, optional
        Called for each damaged shard; the report then does not list them.

    Returns
    -------
    RepairReport

    Raises
    ------
    FileExistsError
        There is something at `to` already, other than an empty folder. Or the folder `backup` is a hierarchy, or has other bytes of a damaged shard, or the
        shard itself; then it is not changed.
    FileNotFoundError
        There is no array, group or shard.
    OSError
        A new object or a backup cannot be written. Or the scheduler of dask was lost.
    ValueError, TypeError, ImportError
        An argument is invalid, an index and an inner chunk do not fit into `memory`, or a package is missing.
    ConflictError
        A worker of dask reaches other metadata.
    Stopped
        `monitor` stopped the work; the error has a `report` of what was done.

    Examples
    --------
    >>> tools.repair("a.zarr", dry_run=True).n_damaged
    0
    """
    to, copy = absolute_place(to), absolute_place(copy)
    storage_options = placed_options(storage_options, target, copy, to)
    run = RunOptions(threads, memory, dask, storage_options, monitor or Monitor())
    pool = ShardPool(target, spec, run, to=to, copy=copy)
    request = RewriteRequest(target, to, dry_run, array, only_arrays, spec, exactly)
    request.check()
    _check_arguments(target, to, backup, dry_run)
    if dask and backup is not None:
        raise ValueError(IN_PLACE_ON_DASK)
    folder = None if backup is None else os.fspath(backup)
    task = RepairTask(folder, copy, order, dry_run, storage_options, named=array)
    return _RepairRun(task, request, pool, on_shard).run()


def _nothing() -> None:
    """Check nothing."""


def _check_arguments(target: Any, to: Any, backup: Any, dry_run: bool) -> None:
    if to is not None and backup is not None:
        raise ValueError("expected one of `to` (--to) and `backup` (--in-place --backup), got both")
    if to is None and backup is None and not dry_run:
        raise ValueError(
            "expected `to` (--to), a new place, or `backup` (--in-place --backup), a folder for the old objects of a repair in place"
        )
    if backup is not None and is_url(backup):
        raise ValueError(f"backup: expected a local folder, got {backup}")
    if backup is None or not isinstance(target, str | os.PathLike):
        return
    if is_inside(os.fspath(backup), os.fspath(target)):
        raise ValueError(f"backup: expected a folder outside of {os.fspath(target)}, got {os.fspath(backup)}")


def _check_is_outside(backup: str | os.PathLike[str], array: ArrayTarget) -> None:
    """Refuse a folder inside the hierarchy of an array, also if only a shard or an array of a group was given."""
    path = array.store.path(array.folder.prefix if array.only is None else array.only[0])
    if path is None:
        return
    hierarchy = _hierarchy_of(os.path.realpath(path))
    if hierarchy is not None and is_inside(os.fspath(backup), hierarchy):
        raise ValueError(f"backup: expected a folder outside of {hierarchy}, got {os.fspath(backup)}")


def _hierarchy_of(path: str) -> str | None:
    """Return the outermost folder of the hierarchy that a path is in; None if no folder above has metadata."""
    found = None
    while True:
        if any(os.path.lexists(os.path.join(path, name)) for name in DOCUMENTS):
            found = path
        elif found is not None:
            return found
        above = os.path.dirname(path)
        if above == path:
            return found
        path = above


def _check_is_no_hierarchy(backup: str, array: ArrayTarget) -> None:
    """Refuse the folder of an array as that of its backups. Not every store shows that its objects are local files."""
    folder = os.path.join(backup, array.name)
    for name in sorted(DOCUMENTS):
        if os.path.lexists(os.path.join(folder, name)):
            raise FileExistsError(
                f"{folder}: expected a folder for copies of shards, but it is a hierarchy, with {name}; choose an empty folder for "
                "the backup"
            )


class _RepairRun(RunOverArrays[RepairedShard, RepairReport]):
    def __init__(
        self, task: RepairTask, request: RewriteRequest, pool: ShardPool, on_shard: OnRepair | None
    ) -> None:
        super().__init__(request, pool, on_shard)
        self._task = task
        self._n_damaged = self._n_restored = self._n_lost = 0

    def _report(self, *, is_complete: bool) -> RepairReport:
        return RepairReport(
            **self._facts(),
            is_complete=is_complete,
            n_damaged=self._n_damaged,
            n_restored=self._n_restored,
            n_lost_chunks=self._n_lost,
        )

    def _works_on(self, array: ArrayTarget) -> bool:
        return array.is_readable

    def _find(self) -> tuple[Iterable[ArrayTarget], OtherObjects | None]:
        request, options = self._request, self._pool.run.storage_options
        if self._task.copy is not None and request.spec is None:
            add_documents_of_copy(self._spare, request.target, self._task.copy, options)
        return super()._find()

    def _end(self) -> None:
        """In place, store the documents that are lost, as the consolidated metadata or the copy have them."""
        durable = replace(self._pool.options, durability="fsync")
        for folder in self._folders() if self._task.backup is not None and self._request.spec is None else ():
            for name in sorted(DOCUMENTS):
                key = folder.prefix + name
                document = folder.get(key)
                if folder.store.describe(key) in self._spare.taken and folder.stored(key) is None:
                    replace_object(folder.store, key, document, _nothing, durable)

    def _folders(self) -> Iterator[Folder]:
        """Yield the folders of the nodes; with an array those of the array and the groups above it, without which no program finds it."""
        chosen = None if self._request.array is None else inner_path(self._request.array, "array")
        for name, folder, _ in self._hierarchy.groups():
            if chosen is None or is_below(chosen, name):
                yield folder
        for array in self._hierarchy.arrays(chosen):
            if array.only is None:
                yield array.folder

    def _checked(self, arrays: Iterable[ArrayTarget]) -> Iterable[ArrayTarget]:
        rest = iter(arrays)
        first = None if self._task.backup is None else next(rest, None)
        if first is None:
            return rest
        assert self._task.backup is not None
        _check_is_outside(self._task.backup, first)
        return itertools.chain([first], rest)

    def _add(self, array: ArrayTarget) -> None:
        if self._task.backup is not None:
            _check_is_no_hierarchy(self._task.backup, array)
        task = self._task if self._to is None else replace(self._task, to=self._to.place)
        work = ShardRepairer(array, task, self._pool.options, self._pool.budget)
        self._monitor.start(array.name or array.place, array.n_grid_shards)
        if self._to is not None:
            self._to.add(array)
        self._work_on(array, task, work)

    def _shards(
        self, array: ArrayTarget, tool: ShardTool[ShardTarget, ShardOutcome[RepairedShard]]
    ) -> Iterator[ShardTarget]:
        for one in array.objects():
            if not isinstance(one, ForeignObject):
                yield one
            elif len(unnamed := array.unnamed(one)) == 1:
                yield unnamed[0]
        if isinstance(tool, ShardRepairer):
            yield from tool.missing()

    def _count(self, done: RepairedShard) -> None:
        self._n_damaged += 1
        self._n_restored += done.is_restored
        self._n_lost += done.n_lost
