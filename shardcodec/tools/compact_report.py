# compact_report.py - the results of compact
# SPDX-License-Identifier: MIT
"""`CompactReport` and its parts."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from .left_array import LeftArray
from .other_objects import NO_OBJECTS, ObjectCounts
from .report import Report

__all__ = ["CompactAction", "CompactReport", "CompactedShard"]


class CompactAction(enum.StrEnum):
    """What `compact` did with a shard, or would do."""

    PACKED = "packed"  # a new object without dead bytes, in the wanted order
    FAILED = "failed"  # it is damaged, or cannot be written; it was not changed


@dataclass(frozen=True)
class CompactedShard(Report):
    """What was done with one shard.

    Attributes
    ----------
    array : str
        Path of the array in the hierarchy.
    shard : str
        Path or key of the shard.
    action : CompactAction
    nbytes : int
        Size of the old object in bytes.
    dead_nbytes : int
        Its bytes to which no entry refers, without header, footer and alignment.
    order : str
        Order of its inner chunks, as `inspect` names it.
    new_nbytes : int or None
        Size of the new object in bytes; None if there is none yet.
    detail : str
        Why it failed.
    """

    schema: ClassVar[str] = "shardcodec.compact.shard"
    schema_version: ClassVar[int] = 1

    array: str
    shard: str
    action: CompactAction
    nbytes: int
    dead_nbytes: int = 0
    order: str = ""
    new_nbytes: int | None = None
    detail: str = ""


@dataclass(frozen=True)
class CompactReport(Report):
    """What `compact` did.

    Parameters
    ----------
    target : str
        The path that was given.
    to : str or None
        The new hierarchy; None if shards were replaced.
    dry_run : bool
        Nothing was changed.
    n_shards, n_packed, n_failed : int
        Shards that were examined, packed, and not packed because of a damage or an error.
    freed_nbytes : int
        Bytes by which the packed objects became smaller; in a dry run, their dead bytes.
    shards : tuple of CompactedShard
        The first `run_over_arrays.MOST_SHARDS` packed or failed shards; empty if each was reported on its own.
    left_arrays : tuple of LeftArray
        Arrays without readable shards; a new hierarchy has their objects as they are.
    is_complete : bool
        False if the work was stopped before the end, or a new hierarchy has no metadata because a shard failed.
    others : ObjectCounts
        Objects that belong to no array: those that `to` got, in a dry run those that it would get, and those that were left out.
    """

    schema: ClassVar[str] = "shardcodec.compact"
    schema_version: ClassVar[int] = 1

    target: str
    to: str | None
    dry_run: bool
    n_shards: int
    n_packed: int
    n_failed: int
    freed_nbytes: int
    shards: tuple[CompactedShard, ...]
    left_arrays: tuple[LeftArray, ...] = ()
    is_complete: bool = True
    others: ObjectCounts = NO_OBJECTS

    @property
    def n_unreadable_arrays(self) -> int:
        """Number of arrays that no program can read."""
        return sum(one.is_unreadable for one in self.left_arrays)
