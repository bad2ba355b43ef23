# repair.py - repair damaged shards, to a new array or in place with a backup
# SPDX-License-Identifier: MIT
"""`repair`: keep what is whole, take the rest from a copy, and say what is lost. The only copy of a shard is never changed.

A few threads examine and write shards. Each holds one block and one inner chunk at a time; for a repair in place in a store
of requests, one shard.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..errors import ShardError
from ..format.spec import ShardSpec
from ..options import check, resolve
from ..storage.journals import pending_journal
from .array_target import ArrayTarget, ForeignObject, ShardTarget
from .backup import back_up
from .chunk_check import ChunkCheck
from .copy_source import CopySource
from .memory_budget import MemoryBudget
from .monitor import Monitor
from .new_hierarchy import NewHierarchy, holds_whole_shards
from .rebuilt_index import ORDERS
from .repair_report import RepairAction, RepairedShard, RepairReport
from .shard_repair import ShardRepair, as_unreadable
from .shard_threads import in_order
from .stored_bytes import open_object
from .targets import find_arrays, find_groups

__all__ = ["repair"]

# Damaged shards that a report lists.
MOST_SHARDS = 1000

OnRepair = Callable[[RepairedShard], None]


def repair(
    target: Any,
    *,
    to: Any = None,
    backup: str | os.PathLike[str] | None = None,
    copy: Any = None,
    order: str | None = None,
    dry_run: bool = False,
    array: str | None = None,
    spec: ShardSpec | None = None,
    threads: int | None = None,
    memory: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    monitor: Monitor | None = None,
    on_shard: OnRepair | None = None,
) -> RepairReport:
    """Repair the damaged shards that a path leads to. Stop all writers first.

    Inner chunks are kept if they decode and their position is proved. The others are taken from a copy. What is in neither
    is absent in the repaired shard, and the report names it.

    Parameters
    ----------
    target : path-like, URL, zarr store or StorePath
        A group, an array, or one shard of an array.
    to : path-like, URL or zarr store, optional
        Write a new hierarchy, or the new object of a single shard; `target` is not changed. Whole shards and arrays that
        are not sharded are copied byte by byte.
    backup : path-like, optional
        Repair in place: replace damaged shards, each after a durable copy of its old object to this local folder, and roll
        back unfinished updates in place. A shard of which nothing can be restored is not changed. One of `to` and `backup`
        is required.
    copy : path-like, URL or zarr store, optional
        A copy of the array, or an array with the same elements in any layout.
    order : {"morton", "lexicographic", "colexicographic"}, optional
        For shards whose index is lost completely: the order in which their writer laid out the inner chunks. A wrong order
        exchanges inner chunks.
    dry_run : bool
        Change nothing, and report what a repair would do. `to` and `backup` are not needed then.
    array : str, optional
        Only this array, by its path in the group.
    spec : ShardSpec, optional
        The encoding of a shard that is not in the folder of its array; `target` is then this one object.
    threads : int, optional
        Number of shards at the same time. Default: the option ``threads``.
    memory : int, optional
        Memory for indexes and data, in bytes; fewer threads are used if it is short. By default a few MiB, an index and an
        inner chunk for each thread, and whole shards where a store needs them.
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
        There is something at `to` already, or the backup has a copy of a shard already.
    FileNotFoundError
        There is no array, group or shard.
    OSError
        A new object or a backup cannot be written.
    ValueError, TypeError, ImportError
        An argument is invalid, an index and an inner chunk do not fit into `memory`, or no package can open the URL.
    """
    budget = MemoryBudget(memory)
    if copy is not None and memory is not None:
        budget = MemoryBudget(max(1, memory // 2))  # the other half is for the copy
    _check_arguments(target, to, backup, order, dry_run)
    arrays = find_arrays(target, array=array, spec=spec, storage_options=storage_options)
    destination = None if to is None or dry_run else NewHierarchy(to, storage_options, budget, target)
    run = _RepairRun(destination, backup, dry_run, monitor or Monitor(), on_shard)
    options = resolve(argument=check({"threads": threads}))
    one_thread = replace(options, threads=1)
    for one in arrays:
        if one.is_sharded:
            source = None if copy is None else CopySource(one, copy, options, storage_options, budget)
            n_threads = options.threads if source is None else source.n_threads
            holds_whole = holds_whole_shards(one, destination)
            share = budget.share(one.shard_spec, one.place, n_threads, holds_whole=holds_whole)
            checks = ChunkCheck(one.shard_spec, one_thread, can_decode=one.foreign_codec is None, share=share)
            run.add(one, ShardRepair(checks, one_thread, source, order, budget), share.n_threads)
        elif destination is not None:
            destination.copy_all(one)
    if destination is not None:
        if array is None and spec is None:
            for name, folder in find_groups(target, storage_options):
                destination.add_group(name, folder)
        destination.finish()
    return run.report(str(target), None if to is None else str(to))


def _check_arguments(target: Any, to: Any, backup: Any, order: str | None, dry_run: bool) -> None:
    if to is not None and backup is not None:
        raise ValueError("expected one of `to` and `backup`, got both")
    if to is None and backup is None and not dry_run:
        raise ValueError(
            "expected `to`, a new place, or `backup`, a folder for the old objects of a repair in place"
        )
    if order not in (None, *ORDERS):
        raise ValueError(f"order: expected one of {ORDERS}, got {order!r}")
    if backup is None or not isinstance(target, str | os.PathLike):
        return
    hierarchy, folder = os.path.realpath(target), os.path.realpath(backup)
    if folder == hierarchy or folder.startswith(hierarchy + os.sep):
        raise ValueError(f"backup: expected a folder outside of {os.fspath(target)}, got {os.fspath(backup)}")


class _RepairRun:
    """One run over several arrays."""

    def __init__(
        self,
        to: NewHierarchy | None,
        backup: str | os.PathLike[str] | None,
        dry_run: bool,
        monitor: Monitor,
        on_shard: OnRepair | None,
    ) -> None:
        self._to, self._backup, self._dry_run = to, backup, dry_run
        self._monitor, self._on_shard = monitor, on_shard
        self._n_shards = self._n_damaged = self._n_restored = self._n_lost = 0
        self._listed: list[RepairedShard] = []

    def report(self, target: str, to: str | None) -> RepairReport:
        """Return the result."""
        counts = self._n_shards, self._n_damaged, self._n_restored, self._n_lost
        return RepairReport(target, to, self._dry_run, *counts, tuple(self._listed))

    def add(self, array: ArrayTarget, work: ShardRepair, n_threads: int) -> None:
        """Repair the shards of one array, several at the same time."""
        self._monitor.start(array.name or array.place, array.n_grid_shards)
        if self._to is not None:
            self._to.add(array)
        shards = (one for one in array.objects() if not isinstance(one, ForeignObject))
        for done in in_order(shards, lambda shard: self._treat(shard, work), n_threads, self._monitor):
            self._n_shards += 1
            self._note(done)
            self._monitor.advance()

    def _note(self, done: RepairedShard | None) -> None:
        if done is None:
            return
        self._n_damaged += 1
        self._n_restored += done.is_restored
        self._n_lost += done.n_lost
        if self._on_shard is not None:
            self._on_shard(done)
        elif len(self._listed) < MOST_SHARDS:
            self._listed.append(done)

    def _treat(self, shard: ShardTarget, work: ShardRepair) -> RepairedShard | None:
        """Repair one shard; return None if it is whole."""
        path = shard.place.path
        has_journal = path is not None and pending_journal(path) is not None
        try:
            view = open_object(shard.array.store, shard.key)
            found = None if view is None else work.survey(shard, view)
        except (ShardError, OSError) as error:
            return as_unreadable(shard, error, None)
        if view is None or found is None:
            return None
        try:
            if found.is_whole:
                if self._to is not None:
                    self._to.copy(shard.array, shard.key)
                elif has_journal and not self._dry_run:
                    return self._in_place(shard, work, has_journal)
                return _settled(shard) if has_journal else None
            if self._dry_run:
                return work.plan(shard, found)
            if self._to is not None:
                return work.write_new(shard, view, found, self._to)
        except ShardError as error:
            return as_unreadable(shard, error, None)
        finally:
            view.close()
        return self._in_place(shard, work, has_journal)

    def _in_place(self, shard: ShardTarget, work: ShardRepair, has_journal: bool) -> RepairedShard | None:
        assert self._backup is not None
        backup = back_up(shard, os.fspath(self._backup))
        try:
            if has_journal:
                with shard.open("r+") as handle:
                    handle.settle()
            view = open_object(shard.array.store, shard.key)
            if view is None:
                return None
            try:
                found = work.survey(shard, view)
                done = _settled(shard) if found.is_whole else work.write_in_place(shard, view, found)
            finally:
                view.close()
        except ShardError as error:
            return as_unreadable(shard, error, backup)
        return replace(done, backup=backup)


def _settled(shard: ShardTarget) -> RepairedShard:
    """Return the report of a shard that is whole apart from its journal."""
    return RepairedShard(shard.array.name, shard.name, RepairAction.SETTLED)
