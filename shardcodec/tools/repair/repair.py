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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...access.box_reader import Folder
from ...access.documents import replace_object
from ...arguments import checked
from ...errors import ShardError
from ...format.spec import ShardSpec
from ...options import Options, Order
from ...readable import as_nbytes
from ...storage.file_systems import is_inside
from ...storage.url_stores import is_url, placed_options
from ...storage.whole_file import put_file
from ..documents import DOCUMENTS
from ..jobs.shard_pool import ShardPool, absolute_place
from ..left_parts import LeftPart
from ..monitor import Monitor, RunOptions, passes_on_signals
from ..nearest_node import add_documents_of_copy
from ..node_selection import selection_of
from ..other_objects import ObjectCounts, OtherObjects
from ..rewrite_run import RewriteRequest, RewriteRun
from ..targets import ArrayTarget, ForeignObject, ShardTarget
from .report import RepairedShard, RepairReport
from .shards_of_array import RepairTask, ShardRepairer

__all__ = ["repair"]

# Why a repair in place takes no workers.
IN_PLACE_ON_DASK = (
    "dask: expected `to` (--to), a new place, because a repair in place is done by one process: dask repeats the work of a worker "
    "that it has lost, and the repeated work would meet shards that were repaired already. Use `to`, or leave out dask (--dask)"
)

OnRepair = Callable[[RepairedShard], None]


@passes_on_signals
@checked
def repair(
    target: Any,
    *,
    to: Any = None,
    backup: str | os.PathLike[str] | None = None,
    copy: Any = None,
    order: Order | None = None,
    dry_run: bool = False,
    only: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    spec: ShardSpec | None = None,
    threads: int | None = None,
    memory: int | str | None = None,
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
        A copy of the array, or an array with the same elements in any layout. An array of a group that the copy does not have is
        repaired without it, and named; in place, or if `only` has its path, it is an error.
    order : {"morton", "lexicographic", "colexicographic"}, optional
        For shards whose index is lost completely: the order in which their writer laid out the inner chunks. A wrong order
        exchanges inner chunks.
    dry_run : bool
        Change nothing, and report what a repair would do. `to` and `backup` are not needed then.
    only, exclude : str or sequence of str, optional
        Patterns of the arrays and groups that are chosen, and of those that are left out. `to` also gets the arrays that they need,
        such as coordinates, and objects that belong to no array; see `convert`, also for ``"@needed"`` and ``"@objects"``.
    spec : ShardSpec, optional
        The encoding of a shard that is not in the folder of its array; `target` is then this one object.
    threads : int, optional
        Number of shards at the same time. Default: the option ``threads``.
    memory : int or str, optional
        Memory for indexes and data, in bytes or as ``"4GiB"``; fewer threads are used if it is short. By default a few MiB, an index and an
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
        There is no array, group or shard; or the copy has no such array.
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
    run = RunOptions(threads, as_nbytes(memory, "memory"), dask, storage_options, monitor or Monitor())
    pool = ShardPool(target, spec, run, to=to, copy=copy)
    request = RewriteRequest(target, to, dry_run, selection_of(only, exclude), spec)
    request.check()
    _check_arguments(target, to, backup, dry_run)
    if dask and backup is not None:
        raise ValueError(IN_PLACE_ON_DASK)
    folder = None if backup is None else os.fspath(backup)
    task = RepairTask(folder, copy, order, dry_run, storage_options, named=request.selection)
    return _RepairRun(task, request, pool, on_shard).run()


def _nothing() -> None:
    """Check nothing."""


def _check_arguments(target: Any, to: Any, backup: Any, dry_run: bool) -> None:
    if to is not None and backup is not None:
        raise ValueError("expected one of `to` (--to) and `backup` (--backup), got both")
    if to is None and backup is None and not dry_run:
        raise ValueError(
            "expected `to` (--to), a new place, or `backup` (--backup), a folder for the old objects of a repair in place"
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


class _RepairRun(RewriteRun[RepairedShard, RepairReport]):
    def __init__(
        self, task: RepairTask, request: RewriteRequest, pool: ShardPool, on_shard: OnRepair | None
    ) -> None:
        super().__init__(request, pool, on_shard)
        self._task = task
        self._n_damaged = self._n_restored = self._n_lost = 0
        self._failed_parts: list[LeftPart] = []

    def _report(self, *, is_complete: bool) -> RepairReport:
        return RepairReport(
            **self._facts(),
            is_complete=is_complete,
            n_damaged=self._n_damaged,
            n_restored=self._n_restored,
            n_lost_chunks=self._n_lost,
        )

    def _facts(self) -> dict[str, Any]:
        facts = super()._facts()
        others: ObjectCounts = facts["others"]
        return {**facts, "others": replace(others, parts=others.parts + self._failed_parts)}

    def _works_on(self, array: ArrayTarget) -> bool:
        return array.is_readable

    def _find(self) -> tuple[Iterable[ArrayTarget], OtherObjects | None]:
        request, options = self._request, self._pool.run.storage_options
        if self._task.copy is not None and request.spec is None:
            unread = add_documents_of_copy(self._spare, request.target, self._task.copy, options)
            self._failed_parts += LeftPart.notes("", unread)
        return super()._find()

    def _end(self) -> None:
        """In place, store the documents that are lost, as the consolidated metadata or the copy have them."""
        durable = replace(self._pool.options, durability="fsync")
        for folder in self._folders() if self._task.backup is not None and self._request.spec is None else ():
            for name in sorted(DOCUMENTS):
                self._restore(folder, name, durable)

    def _restore(self, folder: Folder, name: str, durable: Options) -> None:
        """Store a document that is lost or damaged, the latter after a backup; note it if something else is in its place."""
        key = folder.prefix + name
        place = folder.store.describe(key)
        inside = place.removeprefix(f"{self._hierarchy.folder!r}/")
        try:
            document = folder.get(key)
            if place not in self._spare.taken:
                return
            if (stored := folder.stored(key)) is not None:
                self._back_up(inside, stored)
            replace_object(folder.store, key, document, _nothing, durable)
        except (ShardError, OSError) as error:
            self._spare.taken.pop(place, None)
            reason = f"the document is lost or damaged, and cannot be stored: {error}"
            self._failed_parts.append(LeftPart.object(inside, reason, is_unreadable=True))

    def _back_up(self, name: str, stored: bytes) -> None:
        """Store the bytes of a damaged document in the folder of backups, which would be a hierarchy if the name were the same."""
        old = os.path.join(str(self._task.backup), f"{name}.old")
        if not put_file(old, [stored], sync=True, may_replace=False) and Path(old).read_bytes() != stored:
            raise FileExistsError(f"{old}: expected no file, or one with the bytes of the damaged document")

    def _folders(self) -> Iterator[Folder]:
        """Yield the folders of the chosen nodes, and of the groups above them, without which no program finds them."""
        arrays = list(self._request.selection.targets(self._hierarchy))
        kept = self._request.selection.groups(
            [name for name, _, _ in self._hierarchy.groups()], [one.name for one in arrays]
        )
        for name, folder, _ in self._hierarchy.groups():
            if name in kept:
                yield folder
        for array in arrays:
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

    def _rewrite(self, array: ArrayTarget) -> None:
        if self._task.backup is not None:
            _check_is_no_hierarchy(self._task.backup, array)
        task = self._task if self._to is None else replace(self._task, to=self._to.place)
        work = ShardRepairer(array, task, self._pool.options, self._pool.budget)
        if work.lacks_copy:
            sentence = f"{array.name!r}: {work.lacks_copy}; nothing was taken from it"
            self._failed_parts += LeftPart.notes("", [sentence])
        self._monitor.start(array.name or array.place, array.n_grid_shards)
        if self._to is not None:
            self._to.add(array)
        self._work_on(array, task, work, self._shards(array, work))

    def _shards(self, array: ArrayTarget, work: ShardRepairer) -> Iterator[ShardTarget]:
        """Yield the shards of an array, and those that are missing and that the work can restore."""
        for one in array.objects():
            if not isinstance(one, ForeignObject):
                yield one
            elif len(unnamed := array.unnamed(one)) == 1:
                yield unnamed[0]
        yield from work.missing()

    def _sum(self, done: RepairedShard) -> None:
        self._n_damaged += 1
        self._n_restored += done.is_restored
        self._n_lost += done.n_lost
