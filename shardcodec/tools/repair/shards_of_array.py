# shards_of_array.py - repair the shards of one array
# SPDX-License-Identifier: MIT
"""`ShardRepairer`: repairs shards of an array, in threads. `RepairTask`: the same as plain data, for other processes.

A task of dask may be repeated after a worker was lost, and two workers may run it at the same time: a new hierarchy gets the
same bytes again. In place that would need proof that a shard is the result of the same run, so only one process does it: if a
shard is as its backup, it is repaired; anything else is an error, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ...access.opened_shard import NativeShard, OpenedShard
from ...access.shard_object import open_object
from ...errors import ConflictError, ShardError
from ...options import Options, in_force
from ...storage.whole_file import give_name
from ..backup import Backup
from ..chunk_check import ChunkCheck
from ..hierarchy import ArrayNotFoundError, UnreadableArrayError
from ..hierarchy_copy import CopyPlace, CopyWriter, holds_whole_shards
from ..jobs.shard_work import ArrayTask
from ..memory import MemoryBudget
from ..monitor import Monitor
from ..node_selection import Selection
from ..rewrite_run import ShardOutcome
from ..shard_threads import in_order
from ..survey import Survey
from ..targets import ArrayTarget, ShardTarget
from .copy_source import CopySource
from .one_shard import ShardRepair, as_unreadable, rolled_back
from .report import RepairedShard

__all__ = ["RepairTask", "ShardRepairer"]


@dataclass(frozen=True)
class RepairTask(ArrayTask[ShardOutcome[RepairedShard]]):
    """How the shards of an array are repaired.

    Attributes
    ----------
    backup, copy, order, dry_run, storage_options
        As for `repair`.
    to : CopyPlace or None
        Where new shards are written.
    named : Selection
        The arrays that the user has named by their paths, which the copy must have.
    """

    backup: str | None
    copy: Any
    order: str | None
    dry_run: bool
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    to: CopyPlace | None = None
    named: Selection = field(default_factory=Selection)

    def open(self, array: ArrayTarget, options: Options, budget: MemoryBudget) -> ShardRepairer:
        return ShardRepairer(array, self, options, budget)

    def weight(self, result: ShardOutcome[RepairedShard]) -> int:
        repaired = result.result
        return 1 if repaired is None else 1 + len(repaired.findings) + len(repaired.lost)

    def failed(self, shard: ShardTarget, detail: str) -> ShardOutcome[RepairedShard]:
        return ShardOutcome(0, as_unreadable(shard, OSError(detail), None, is_lost=True))


class ShardRepairer:
    """Repairs shards of one array; see `ShardTool`. lacks_copy: why a copy that is given has nothing for the array; empty if it has."""

    def __init__(self, array: ArrayTarget, task: RepairTask, options: Options, budget: MemoryBudget) -> None:
        if task.copy is not None and budget.nbytes is not None:
            budget = MemoryBudget(max(1, budget.nbytes // 2))  # the other half is for the copy
        self._task = task
        self._to = None if task.to is None else CopyWriter(task.to, budget, options)
        self._options = replace(options, threads=1)
        self.lacks_copy: str = ""
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
        except (ArrayNotFoundError, UnreadableArrayError) as error:
            if (
                task.named.names(array.name) or task.backup is not None
            ):  # in place, nothing may be given up for want of the copy
                raise
            is_there = isinstance(error, UnreadableArrayError)
            self.lacks_copy = f"of the copy, {error}" if is_there else "the copy has no such array"
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
