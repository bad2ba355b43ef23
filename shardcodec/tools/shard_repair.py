# shard_repair.py - repair one shard
# SPDX-License-Identifier: MIT
"""Write a new shard from the inner chunks of a damaged one that are whole and have a proved position, and from a copy.

In place, the new object replaces the old one in one step, and only if no other writer has changed it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..access.chunk_codec import compiled
from ..access.inner_chunks import coordinates
from ..access.placement import ABSENT
from ..access.shard_change import Change, Found, change
from ..errors import ConflictError, ShardError
from ..options import Options
from .array_target import ShardTarget
from .backup import same_bytes
from .chunk_check import ChunkCheck, Level
from .copy_source import ChunksOfCopy, CopySource
from .findings import Finding, FindingKind
from .index_layout import is_absent
from .index_search import FoundIndex, How, find_index
from .memory_budget import MemoryBudget
from .new_objects import NewObjects
from .repair_report import RepairAction, RepairedShard
from .rewrite import (
    ChunkSink,
    CollectedChunks,
    DecodedChunks,
    UserParts,
    copy_chunks,
    in_order_of_offset,
    refuse_user_bytes,
    replacing_writer,
    user_parts,
    write_others,
)
from .shard_comparison import ShardComparison
from .stored_bytes import StoredBytes, open_object
from .survey import Survey, survey
from .verify_work import inside_array

__all__ = ["ShardRepair", "as_unreadable", "settled"]

# Lost inner chunks that a report lists.
MOST_LOST = 1000


@dataclass(frozen=True, eq=False)
class _RepairPlan:
    """What a repaired shard will have."""

    survey: Survey
    n_kept: int  # of inner chunks that have elements of the array
    from_copy: tuple[int, ...]  # positions of inner chunks that the copy has
    absent_in_copy: tuple[int, ...]
    lost: tuple[int, ...]

    @property
    def has_any(self) -> bool:
        """True if there is an inner chunk to write, or the copy shows that there is none."""
        return bool(self.n_kept or self.from_copy or self.absent_in_copy or not self.lost)


class ShardRepair:
    """Repairs shards of one array. Several threads may call it.

    Parameters
    ----------
    check : ChunkCheck
    options : Options
    copy : CopySource or None
    order : str or None
        The order in which the writer laid out the inner chunks.
    budget : MemoryBudget
        For whole shards.
    """

    def __init__(
        self,
        check: ChunkCheck,
        options: Options,
        copy: CopySource | None,
        order: str | None,
        budget: MemoryBudget,
    ) -> None:
        self._check, self._options, self._copy, self._order = check, options, copy, order
        self._budget = budget
        self._spec = check.spec

    def survey(self, shard: ShardTarget, view: StoredBytes) -> Survey:
        """Find out what is damaged."""
        return survey(
            view,
            shard.name,
            self._check,
            Level.DECODE,
            array=shard.array.name,
            is_inside=inside_array(shard),
            order=self._order,
        )

    def unreadable(self, shard: ShardTarget, error: Exception) -> Survey:
        """Return the survey of a shard that cannot be read: all its inner chunks are lost, and the copy may have them."""
        n = self._spec.n_chunks
        finding = Finding(FindingKind.UNREADABLE, shard.name, str(error), shard.array.name, recoverable=False)
        index = FoundIndex(How.LOST, None, 0, 0, finding.kind, finding.detail)
        places = np.full((n, 2), ABSENT, dtype=np.uint64)
        return Survey(index, places, _inside(shard), (finding,), 1, 0, 0, 0, 0)

    def plan(self, shard: ShardTarget, found: Survey) -> RepairedShard:
        """Return what a repair would do; nothing is changed."""
        with ExitStack() as stack:
            return self._report(shard, self._plan(shard, found, self._chunks_of_copy(shard, stack)))

    def write_new(
        self, shard: ShardTarget, view: StoredBytes, found: Survey, to: NewObjects
    ) -> RepairedShard:
        """Write the repaired shard to a new place."""
        with ExitStack() as stack:
            chunks = self._chunks_of_copy(shard, stack)
            plan = self._plan(shard, found, chunks)
            if plan.has_any:
                user = user_parts(view, found.found, self._spec, shard, self._check.share)
                to.check_memory(shard, self._new_nbytes(view, plan))
                with to.writer(shard, self._spec, **user._asdict()) as writer:
                    self._write(writer, shard, view, plan, chunks)
            return self._report(shard, plan)

    def write_in_place(
        self, shard: ShardTarget, view: StoredBytes, found: Survey, check_state: Callable[[StoredBytes], None]
    ) -> RepairedShard:
        """Replace the damaged object.

        Parameters
        ----------
        shard : ShardTarget
        view : StoredBytes
            The object, in the state that has a backup.
        found : Survey
            What is damaged in it.
        check_state : callable
            Raises `ConflictError` if an open object is in another state.

        Raises
        ------
        ConflictError
            Another writer has changed the object meanwhile.
        UnsupportedError
            The object is not a local file, and it has a header, a footer or an alignment.
        """
        with ExitStack() as stack:
            chunks = self._chunks_of_copy(shard, stack)
            plan = self._plan(shard, found, chunks)
            if plan.has_any:
                user = user_parts(view, found.found, self._spec, shard, self._check.share)
                if shard.place.path is None:
                    self._budget.check_whole(shard.name, self._new_nbytes(view, plan))
                    self._replace_object(shard, user, check_state)
                else:
                    self._replace_file(shard, view, plan, chunks, user)
                self._check_result(shard)
            return self._report(shard, plan)

    def repeated(self, shard: ShardTarget, old: StoredBytes, now: StoredBytes) -> RepairedShard | None:
        """Return the report of the repair that has made a shard from an old object; None if none has. Nothing is changed.

        A repair is deterministic, so the inner chunks that it would write are compared with those that are stored.
        """
        found = self.survey(shard, old)
        if found.is_whole:  # all that was wrong is an unfinished update, which the old object is without
            return settled(shard) if same_bytes(old, now) else None
        with ExitStack() as stack:
            chunks = self._chunks_of_copy(shard, stack)
            plan = self._plan(shard, found, chunks)
            index = find_index(now, self._spec, self._check.share.block_nbytes)
            if not plan.has_any or index.entries is None or index.how is not How.IN_PLACE:
                return None
            share = self._check.share
            user = user_parts(old, found.found, self._spec, shard, share)
            comparison = ShardComparison(now, index.entries, self._spec.grid_shape)
            self._write(comparison, shard, old, plan, chunks)
            is_result = comparison.is_equal and user == user_parts(now, index, self._spec, shard, share)
            return self._report(shard, plan) if is_result else None

    # ---- the plan

    def _chunks_of_copy(self, shard: ShardTarget, stack: ExitStack) -> ChunksOfCopy | None:
        return None if self._copy is None else stack.enter_context(self._copy.chunks(shard))

    def _plan(self, shard: ShardTarget, found: Survey, chunks: ChunksOfCopy | None) -> _RepairPlan:
        present, absent, lost = [], [], []
        for position in np.flatnonzero(found.is_lost).tolist():
            try:
                if chunks is None:
                    lost.append(position)
                elif chunks.encoded(position) is None:
                    absent.append(position)
                else:
                    present.append(position)
            except ShardError:
                lost.append(position)
        n_kept = int((~is_absent(found.places) & _inside(shard)).sum())
        return _RepairPlan(found, n_kept, tuple(present), tuple(absent), tuple(lost))

    def _report(self, shard: ShardTarget, plan: _RepairPlan) -> RepairedShard:
        return RepairedShard(
            shard.array.name,
            shard.name,
            RepairAction.REPAIRED if plan.has_any else RepairAction.LEFT,
            plan.survey.findings,
            plan.n_kept,
            len(plan.from_copy) + len(plan.absent_in_copy),
            _coordinates(shard, plan.lost),
            len(plan.lost),
        )

    # ---- the new shard

    def _new_nbytes(self, view: StoredBytes, plan: _RepairPlan) -> int:
        """Return the size of the new shard, at most, in bytes."""
        return view.nbytes + len(plan.from_copy) * self._spec.inner.nbytes

    def _write(
        self,
        writer: ChunkSink,
        shard: ShardTarget,
        view: StoredBytes,
        plan: _RepairPlan,
        chunks: ChunksOfCopy | None,
    ) -> None:
        places = plan.survey.places
        writer = DecodedChunks(writer, self._check, shard.name)
        copy_chunks(writer, view, places, in_order_of_offset(places), shard, self._check.share)
        write_others(writer, self._others(plan.from_copy, chunks))

    def _others(self, positions: tuple[int, ...], chunks: ChunksOfCopy | None) -> Iterator[tuple[int, Any]]:
        for position in positions:
            assert chunks is not None
            yield position, chunks.encoded(position)

    def _replace_file(
        self,
        shard: ShardTarget,
        view: StoredBytes,
        plan: _RepairPlan,
        chunks: ChunksOfCopy | None,
        user: UserParts,
    ) -> None:
        with replacing_writer(shard, view, self._spec, user) as writer:
            self._write(writer, shard, view, plan, chunks)

    def _replace_object(
        self, shard: ShardTarget, user: UserParts, check_state: Callable[[StoredBytes], None]
    ) -> None:
        refuse_user_bytes(shard, user)

        def decide(_found: Found) -> Change:
            return Change(self._all_chunks(shard, check_state), complete=True, keep_empty=True)

        change(shard.place, compiled(self._spec.chain), decide, self._options)

    def _all_chunks(
        self, shard: ShardTarget, check_state: Callable[[StoredBytes], None]
    ) -> Mapping[int, Any]:
        """Return the inner chunks of the repaired shard, from the object as it is now."""
        view = open_object(shard.array.store, shard.key)
        if view is None:
            raise ConflictError(
                f"shard {shard.name!r}: it was deleted during the repair; nothing was written",
                shard=shard.name,
            )
        try:
            check_state(view)
            found = self.survey(shard, view)
            with ExitStack() as stack:
                chunks = self._chunks_of_copy(shard, stack)
                plan = self._plan(shard, found, chunks)
                new = CollectedChunks(self._spec.grid_shape)
                self._write(new, shard, view, plan, chunks)
                return new.chunks
        finally:
            view.close()

    def _check_result(self, shard: ShardTarget) -> None:
        view = open_object(shard.array.store, shard.key)
        if view is None:
            return
        try:
            found = self.survey(shard, view)
        finally:
            view.close()
        if not found.is_whole:
            first = next(one for one in found.findings if not one.is_warning)
            raise ConflictError(
                f"shard {shard.name!r}: it is damaged after the repair: {first.detail}; its old bytes are in the backup",
                shard=shard.name,
            )


def as_unreadable(
    shard: ShardTarget, error: Exception, backup: str | None, *, is_lost: bool = False
) -> RepairedShard:
    """Return the report of a shard that could not be read or written; with `is_lost`, all its inner chunks are lost."""
    left = RepairedShard(shard.array.name, shard.name, RepairAction.UNREADABLE, detail=str(error))
    lost = np.flatnonzero(_inside(shard)).tolist() if is_lost else []
    return replace(left, lost=_coordinates(shard, lost), n_lost=len(lost), backup=backup)


def _inside(shard: ShardTarget) -> Any:
    """Return which inner chunks have elements of the array."""
    inside = inside_array(shard)
    return np.ones(shard.array.shard_spec.n_chunks, dtype=np.bool_) if inside is None else inside


def _coordinates(shard: ShardTarget, positions: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the grid positions of the first `MOST_LOST` inner chunks."""
    grid = shard.array.shard_spec.grid_shape
    return tuple(coordinates(position, grid) for position in positions[:MOST_LOST])


def settled(shard: ShardTarget) -> RepairedShard:
    """Return the report of a shard that is whole apart from its journal."""
    return RepairedShard(shard.array.name, shard.name, RepairAction.SETTLED)
