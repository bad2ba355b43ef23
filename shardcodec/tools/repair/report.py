# report.py - the results of repair
# SPDX-License-Identifier: MIT
"""`RepairReport` and its parts. ``docs/tools.md`` describes the members of the JSON."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ...readable import Fact, format_count
from ..capped import Capped
from ..findings import Finding
from ..report import ReportOfShard
from ..rewrite_run import ReportOfShards

__all__ = ["RepairAction", "RepairReport", "RepairedShard"]


class RepairAction(enum.StrEnum):
    """The action on a damaged shard, done or planned."""

    REPAIRED = "repaired"  # a new shard was written
    ROLLED_BACK = "rolled_back"  # an unfinished update in place was rolled back, and the shard is whole
    LEFT = "left"  # nothing of it can be restored; in place it was not changed, a new array does not have it
    UNREADABLE = (
        "unreadable"  # it cannot be read or written; it was not changed, and a new array does not have it
    )


@dataclass(frozen=True)
class RepairedShard(ReportOfShard):
    """The result of one damaged shard.

    Attributes
    ----------
    array, shard
        See `ReportOfShard`.
    action : RepairAction
    findings : tuple of Finding
        What was damaged.
    n_kept : int
        Inner chunks that were copied from the shard. Only those with elements of the array count, here and below.
    n_from_copy : int
        Inner chunks that were taken from the copy, absent ones too.
    lost : tuple of tuple of int
        Grid positions of lost inner chunks, the first `capped.LISTED`; they are absent now.
    n_lost : int
        Number of lost inner chunks; some of them may not have been stored.
    backup : str or None
        Path of the copy of the old object.
    detail : str
        Why nothing was done.
    """

    schema: ClassVar[str] = "shardcodec.repair.shard"

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
        return not self.n_lost and self.action in (RepairAction.REPAIRED, RepairAction.ROLLED_BACK)

    def facts(self) -> Iterator[Fact]:
        """Yield the findings and the result as lines of text.

        Yields
        ------
        name, text : str
        """
        return self.result_facts(would=False)

    def result_facts(self, *, would: bool) -> Iterator[Fact]:
        """Yield the facts; `would`: nothing was changed yet."""
        for finding in self.findings:
            yield from finding.facts()
        if self.detail:
            yield "", f"{self.shard}: not repaired: {self.detail}"
            return
        results = {
            RepairAction.ROLLED_BACK: "an unfinished update was rolled back",
            RepairAction.LEFT: "nothing can be restored",
        }
        kept = f"{format_count(self.n_kept, 'inner chunk')} kept, {self.n_from_copy} from the copy, {self.n_lost} lost"
        action = f"{'would be ' if would else ''}{self.action.value}"
        yield "", f"{self.shard}: {action}: {results.get(self.action, kept)}"
        if self.lost:
            named = Capped.of(self.lost)
            named.n = self.n_lost
            yield "lost", named.text()
        if self.backup is not None:
            yield "old object", self.backup


@dataclass(frozen=True, kw_only=True)
class RepairReport(ReportOfShards):
    """The result of `repair`.

    Parameters
    ----------
    target, to, dry_run
        As they were given: the path, the new hierarchy or None, and whether nothing was changed.
    n_shards : int
        Shards that were examined.
    shards : tuple of RepairedShard
        The first `capped.LISTED` damaged shards; empty if each was reported on its own.
    left_arrays : tuple of LeftPart
        Arrays without readable shards; a new hierarchy has their objects as they are.
    is_complete : bool
        False if the work was stopped before the end.
    others : ObjectCounts
        Objects that belong to no array: those that `to` got, in a dry run those that it would get; and all that was left out.
    n_damaged : int
        Damaged shards.
    n_restored : int
        Damaged shards of which nothing was lost.
    n_lost_chunks : int
        Lost inner chunks.
    """

    schema: ClassVar[str] = "shardcodec.repair"

    n_damaged: int
    n_restored: int
    n_lost_chunks: int

    def _sums(self) -> str:
        would = "would be " if self.dry_run else ""
        return (
            f"{format_count(self.n_shards, 'shard')}, {self.n_damaged} damaged, {self.n_restored} {would}restored completely, "
            f"{format_count(self.n_lost_chunks, 'inner chunk')} lost"
            f"{'' if self.is_complete else '; stopped before the end'}"
        )
