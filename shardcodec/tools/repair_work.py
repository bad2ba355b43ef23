# repair_work.py - repair the shards of one array
# SPDX-License-Identifier: MIT
"""`RepairWork`: repairs shards of an array, in threads. `RepairTask`: the same as plain data, for other processes.

A task may be repeated after a worker was lost, and two workers may run it at the same time. A new hierarchy gets the same
bytes again. In place, the task that finds a backup compares: if the shard is as the backup, it is repaired; if it is the
result of the repair of the backup, the report is made from the backup; anything else is an error, and nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..errors import ConflictError, ShardError
from ..options import Options, in_force
from .array_target import ArrayTarget, ShardTarget
from .backup import Backup
from .chunk_check import ChunkCheck
from .copy_source import CopySource
from .jobs.shard_task import ShardTask
from .memory_budget import MemoryBudget
from .monitor import Monitor
from .new_objects import NewObjects, NewPlace, holds_whole_shards
from .repair_notes import RepairNotes
from .repair_report import RepairAction, RepairedShard
from .shard_repair import ShardRepair, as_unreadable, settled
from .shard_threads import in_order
from .stored_bytes import Buffer, StoredBytes, open_object

__all__ = ["RepairTask", "RepairWork"]


@dataclass(frozen=True)
class RepairTask(ShardTask[RepairedShard | None]):
    """How the shards of an array are repaired.

    Attributes
    ----------
    backup, copy, order, dry_run, storage_options
        As for `repair`.
    to : NewPlace or None
        Where new shards are written.
    run : str or None
        Name of a run in place whose tasks may be repeated; None for one process.
    """

    backup: str | None
    copy: Any
    order: str | None
    dry_run: bool
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    to: NewPlace | None = None
    run: str | None = None

    def open(self, array: ArrayTarget, options: Options, budget: MemoryBudget) -> RepairWork:
        return RepairWork(array, self, options, budget)

    def weight(self, result: RepairedShard | None) -> int:
        return 1 if result is None else 1 + len(result.findings) + len(result.lost)

    def failed(self, shard: ShardTarget, detail: str) -> RepairedShard:
        backup = None if self.backup is None or self.dry_run else Backup(shard, self.backup)
        path = None if backup is None or not backup.exists else backup.path
        return as_unreadable(shard, OSError(detail), path, is_lost=self.backup is None)

    def notes(self) -> RepairNotes | None:
        """Return the notes of the run; None for one process, and if nothing is changed in place."""
        return None if self.run is None or self.backup is None else RepairNotes(self.backup, self.run)


class RepairWork:
    """Repairs shards of one array; see `ShardTask.open` and `ShardWork`."""

    def __init__(self, array: ArrayTarget, task: RepairTask, options: Options, budget: MemoryBudget) -> None:
        if task.copy is not None and budget.nbytes is not None:
            budget = MemoryBudget(max(1, budget.nbytes // 2))  # the other half is for the copy
        self._task = task
        self._to = None if task.to is None else NewObjects(task.to, budget, options)
        self._notes = task.notes()
        if self._notes is not None:
            self._notes.check()
        self._options = replace(options, threads=1)
        source, wanted = None, options.threads
        if task.copy is not None:
            source = CopySource(array, task.copy, options, task.storage_options, budget)
            wanted = source.n_threads
        holds_whole = holds_whole_shards(array, self._to)
        share = budget.share(array.shard_spec, array.place, wanted, holds_whole=holds_whole)
        checks = ChunkCheck.of(array.shard_spec, array.bytes, self._options, share)
        self._repair = ShardRepair(checks, self._options, source, task.order, budget)
        self.n_threads = share.n_threads

    def run(
        self, shards: Iterable[ShardTarget], monitor: Monitor, n_threads: int
    ) -> Iterator[tuple[int, RepairedShard | None]]:
        """Repair shards; None for one that is whole. See `ShardWork.run`."""
        for done in in_order(shards, self._treat, n_threads, monitor):
            yield 1, done

    def _treat(self, shard: ShardTarget) -> RepairedShard | None:
        """Repair one shard; return None if it is whole, and this run has not repaired it before."""
        with in_force(self._options):
            return self._settle(shard)

    def _settle(self, shard: ShardTarget) -> RepairedShard | None:
        done = self._look(shard)
        is_over = done is None or done.action is RepairAction.UNREADABLE
        if self._notes is None or not is_over or not self._notes.has(shard):
            return done
        backup = self._backup(shard)
        if not backup.exists:
            return done
        repaired = self._done_before(shard, backup)
        if repaired is None and done is None and not backup.is_equal():
            raise _another(shard, backup)
        return repaired or done

    def _look(self, shard: ShardTarget) -> RepairedShard | None:
        try:
            has_journal = shard.has_journal
            view = open_object(shard.array.store, shard.key)
            found = None if view is None else self._repair.survey(shard, view)
        except OSError as error:
            return self._without_old(shard, error)
        except ShardError as error:
            return self._failed(shard, error)
        if view is None or found is None:
            return None
        try:
            if found.is_whole:
                if self._to is not None:
                    self._to.copy(shard.array, shard.key)
                elif has_journal and not self._task.dry_run:
                    return self._in_place(shard)
                return settled(shard) if has_journal else None
            if self._task.dry_run:
                return self._repair.plan(shard, found)
            if self._to is not None:
                return self._repair.write_new(shard, view, found, self._to)
        except ShardError as error:
            return self._failed(shard, error)
        finally:
            view.close()
        return self._in_place(shard)

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
            return self._repair.write_new(shard, Buffer(b""), found, self._to)
        except ShardError as failure:
            return self._failed(shard, failure)

    # ---- in place

    def _backup(self, shard: ShardTarget) -> Backup:
        assert self._task.backup is not None
        return Backup(shard, self._task.backup)

    def _in_place(self, shard: ShardTarget) -> RepairedShard | None:
        backup = self._backup(shard)
        if self._notes is not None:
            self._notes.add(shard)
        if not backup.make():
            if not backup.is_equal():
                repaired = self._done_before(shard, backup)
                if repaired is None:
                    raise _another(shard, backup)
                return repaired
            backup.sync()
        try:
            done = self._replace(shard, backup)
        except ShardError as error:
            return as_unreadable(shard, error, backup.path)
        if done is None and self._notes is not None:  # another worker runs the same task, and has repaired it
            return self._done_before(shard, backup)
        return None if done is None else replace(done, backup=backup.path)

    def _replace(self, shard: ShardTarget, backup: Backup) -> RepairedShard | None:
        """Settle and replace a shard that has a backup; None if it is whole without an unfinished update, or does not exist."""
        has_journal = shard.settle()
        view = open_object(shard.array.store, shard.key)
        if view is None:
            return None
        try:
            found = self._repair.survey(shard, view)
            if found.is_whole:
                return settled(shard) if has_journal and self._notes is None else None
            check_state = partial(self._check_state, shard, backup)
            check_state(view)
            return self._repair.write_in_place(shard, view, found, check_state)
        finally:
            view.close()

    def _check_state(self, shard: ShardTarget, backup: Backup, now: StoredBytes) -> None:
        """Check that the state that is replaced is the one that was copied, not a later one."""
        if not backup.holds(now):
            raise ConflictError(
                f"shard {shard.name!r}: another writer has changed it since the backup {backup.path}; it was not replaced. Stop "
                "all writers, and run the tool again with an empty folder",
                shard=shard.name,
            )

    def _done_before(self, shard: ShardTarget, backup: Backup) -> RepairedShard | None:
        """Return the report of a shard that another task of this run has repaired; None if none has."""
        for _ in range(2):  # the other worker may have replaced the shard between two reads
            done = None if self._notes is None else self._repeated(shard, backup)
            if done is not None:
                return replace(done, backup=backup.path)
        return None

    def _repeated(self, shard: ShardTarget, backup: Backup) -> RepairedShard | None:
        try:
            now = open_object(shard.array.store, shard.key)
            if now is None:
                return None
            old = backup.open()
        except ShardError:
            return None
        try:
            return self._repair.repeated(shard, old, now)
        except ShardError:
            return None
        finally:
            now.close()
            old.close()


def _another(shard: ShardTarget, backup: Backup) -> FileExistsError:
    """Return the error of a shard that is neither as its backup, nor the result of the repair of it."""
    return FileExistsError(
        f"{shard.name}: expected a shard as its backup {backup.path}, or the repaired one, but it is another; nothing was changed: "
        "look at both files, and choose an empty folder for the backup"
    )
