# compact_report.py - the results of compact
# SPDX-License-Identifier: MIT
"""`CompactReport` and its parts. ``docs/tools.md`` describes the members of the JSON."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..readable import Fact, format_count, format_nbytes
from .report import ReportOfShard
from .rewrite_run import ReportOfShards

__all__ = ["CompactAction", "CompactReport", "CompactedShard"]


class CompactAction(enum.StrEnum):
    """The result of one shard: its action, done or planned."""

    PACKED = "packed"  # a new object without dead bytes, in the wanted order
    FAILED = "failed"  # it is damaged, or cannot be written; it was not changed


@dataclass(frozen=True)
class CompactedShard(ReportOfShard):
    """The result of one shard.

    Attributes
    ----------
    array, shard
        See `ReportOfShard`.
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

    action: CompactAction
    nbytes: int
    dead_nbytes: int = 0
    order: str = ""
    new_nbytes: int | None = None
    detail: str = ""

    def facts(self) -> Iterator[Fact]:
        """Yield the result as a line of text.

        Yields
        ------
        name, text : str
        """
        return self.result_facts(would=False)

    def result_facts(self, *, would: bool) -> Iterator[Fact]:
        """Yield the facts; `would`: nothing was changed yet."""
        if self.action is CompactAction.FAILED:
            yield "", f"{self.shard}: not packed: {self.detail}"
            return
        new = "" if self.new_nbytes is None else f" to {format_nbytes(self.new_nbytes)}"
        sizes = f"{format_nbytes(self.nbytes)}{new}, {format_nbytes(self.dead_nbytes)} dead"
        yield "", f"{self.shard}: {'would be ' if would else ''}packed from {sizes}"


@dataclass(frozen=True, kw_only=True)
class CompactReport(ReportOfShards):
    """The result of `compact`.

    Parameters
    ----------
    target, to, dry_run
        As they were given: the path, the new hierarchy or None, and whether nothing was changed.
    n_shards : int
        Shards that were examined.
    shards : tuple of CompactedShard
        The first `capped.LISTED` packed or failed shards; empty if each was reported on its own.
    left_arrays : tuple of LeftPart
        Arrays without readable shards; a new hierarchy has their objects as they are.
    is_complete : bool
        False if the work was stopped before the end, or a new hierarchy has no metadata because a shard failed.
    others : ObjectCounts
        Objects that belong to no array: those that `to` got, in a dry run those that it would get; and all that was left out.
    n_packed, n_failed : int
        Shards that were packed, and not packed because of a damage or an error.
    freed_nbytes : int
        Bytes by which the packed objects became smaller; in a dry run, their dead bytes.
    """

    schema: ClassVar[str] = "shardcodec.compact"

    n_packed: int
    n_failed: int
    freed_nbytes: int

    def _sums(self) -> str:
        would = "would be " if self.dry_run else ""
        freed = f"{'-' if self.freed_nbytes < 0 else ''}{format_nbytes(abs(self.freed_nbytes))}"
        end = ""
        if not self.is_complete:
            end = "; stopped before the end"
            if self.n_failed and self.to is not None:
                end = "; no metadata were written; repair the shards that failed, remove what is at --to, and run it again"
        return f"{format_count(self.n_shards, 'shard')}, {self.n_packed} {would}packed, {self.n_failed} failed, {freed} {would}freed{end}"
