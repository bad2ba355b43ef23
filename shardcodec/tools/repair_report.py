# repair_report.py - the results of repair
# SPDX-License-Identifier: MIT
"""`RepairReport` and its parts."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from .findings import Finding
from .left_array import LeftArray
from .other_objects import NO_OBJECTS, ObjectCounts
from .report import Report

__all__ = ["RepairAction", "RepairReport", "RepairedShard"]


class RepairAction(enum.StrEnum):
    """What `repair` did with a damaged shard, or would do."""

    REPAIRED = "repaired"  # a new shard was written
    SETTLED = "settled"  # an unfinished update in place was rolled back, and the shard is whole
    LEFT = "left"  # nothing of it can be restored; in place it was not changed, a new array does not have it
    UNREADABLE = (
        "unreadable"  # it cannot be read or written; it was not changed, and a new array does not have it
    )


@dataclass(frozen=True)
class RepairedShard(Report):
    """What was done with one damaged shard.

    Attributes
    ----------
    array : str
        Path of the array in the hierarchy.
    shard : str
        Path or key of the shard.
    action : RepairAction
    findings : tuple of Finding
        What was damaged.
    n_kept : int
        Inner chunks that were copied from the shard. Only those with elements of the array count, here and below.
    n_from_copy : int
        Inner chunks that were taken from the copy, absent ones too.
    lost : tuple of tuple of int
        Grid positions of lost inner chunks, the first `MOST_LOST`; they are absent now.
    n_lost : int
        Number of lost inner chunks; some of them may not have been stored.
    backup : str or None
        Path of the copy of the old object.
    detail : str
        Why nothing was done.
    """

    schema: ClassVar[str] = "shardcodec.repair.shard"
    schema_version: ClassVar[int] = 1

    array: str
    shard: str
    action: RepairAction
    findings: tuple[Finding, ...] = ()
    n_kept: int = 0
    n_from_copy: int = 0
    lost: tuple[tuple[int, ...], ...] = ()
    n_lost: int = 0
    backup: str | None = None
    detail: str = ""

    @property
    def is_restored(self) -> bool:
        """True if nothing was lost."""
        return not self.n_lost and self.action in (RepairAction.REPAIRED, RepairAction.SETTLED)


@dataclass(frozen=True)
class RepairReport(Report):
    """What `repair` did.

    Parameters
    ----------
    target : str
        The path that was given.
    to : str or None
        The new hierarchy; None for a repair in place.
    dry_run : bool
        Nothing was changed.
    n_shards : int
        Shards that were examined.
    n_damaged : int
        Damaged shards.
    n_restored : int
        Damaged shards of which nothing was lost.
    n_lost_chunks : int
        Lost inner chunks.
    shards : tuple of RepairedShard
        The first `run_over_arrays.MOST_SHARDS` damaged shards; empty if each was reported on its own.
    left_arrays : tuple of LeftArray
        Arrays without readable shards; a new hierarchy has their objects as they are.
    is_complete : bool
        False if the work was stopped before the end.
    others : ObjectCounts
        Objects that belong to no array: those that `to` got, in a dry run those that it would get, and those that were left out.
    """

    schema: ClassVar[str] = "shardcodec.repair"
    schema_version: ClassVar[int] = 1

    target: str
    to: str | None
    dry_run: bool
    n_shards: int
    n_damaged: int
    n_restored: int
    n_lost_chunks: int
    shards: tuple[RepairedShard, ...]
    left_arrays: tuple[LeftArray, ...] = ()
    is_complete: bool = True
    others: ObjectCounts = NO_OBJECTS

    @property
    def n_unreadable_arrays(self) -> int:
        """Number of arrays that no program can read."""
        return sum(one.is_unreadable for one in self.left_arrays)
