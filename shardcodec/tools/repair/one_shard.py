# one_shard.py - repair one shard
# SPDX-License-Identifier: MIT
"""Write a new shard from the inner chunks of a damaged one that are whole and have a proved position, and from a copy.

In place, the new object replaces the old one in one step, and only if no other writer has changed it meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from ...access.documents import replace_object
from ...access.inner_chunks import coordinates
from ...access.opened_shard import NativeShard, OpenedShard
from ...access.placement import ABSENT
from ...access.shard_object import open_object
from ...access.shard_writer import ShardWriter, replace_chunks
from ...errors import ConflictError, ShardError
from ...options import Options
from ..capped import LISTED
from ..chunk_check import ChunkCheck, Level
from ..damage.index_layout import is_absent
from ..damage.index_search import IndexStatus, StoredIndex
from ..findings import Finding, FindingKind
from ..hierarchy_copy import CopyWriter
from ..memory import MemoryBudget
from ..rewrite import (
    ChunkSink,
    CollectedChunks,
    DecodedChunks,
    ShardUserBytes,
    copy_chunks,
    in_order_of_offset,
    refuse_user_bytes,
    replacing_writer,
    stored_runs,
    user_parts,
    write_others,
)
from ..survey import Survey, survey
from ..targets import ShardTarget
from ..verify.verify_shards import inside_array
from .copy_source import ChunksOfCopy, CopySource
from .report import RepairAction, RepairedShard

__all__ = ["ShardRepair", "as_unreadable", "rolled_back"]


@dataclass(frozen=True, eq=False)
class _RepairPlan:
    """The parts of a repaired shard."""

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

    def survey(self, shard: ShardTarget, view: OpenedShard) -> Survey:
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
        finding = Finding(FindingKind.UNREADABLE, shard.name, str(error), shard.array.name, recoverable=False)
        return self._lost(shard, finding)

    def _lost(self, shard: ShardTarget, finding: Finding) -> Survey:
        n = self._spec.n_chunks
        index = StoredIndex(IndexStatus.LOST, None, 0, 0, finding.kind, finding.detail)
        places = np.full((n, 2), ABSENT, dtype=np.uint64)
        return Survey(index, places, _inside(shard), (finding,), 1, 0, 0, 0, 0)

    def plan(self, shard: ShardTarget, found: Survey) -> RepairedShard:
        """Return what a repair would do; nothing is changed."""
        with ExitStack() as stack:
            return self._report(shard, self._plan(shard, found, self._chunks_of_copy(shard, stack)))

    def write_new(
        self, shard: ShardTarget, view: OpenedShard, found: Survey, to: CopyWriter
    ) -> RepairedShard:
        """Write the repaired shard to a new place."""
        with ExitStack() as stack:
            chunks = self._chunks_of_copy(shard, stack)
            plan = self._plan(shard, found, chunks)
            if self._check.is_plain:
                if (data := self._plain_chunk(plan, chunks)) is not None:
                    to.put(shard, data)
            elif plan.has_any:
                user = user_parts(view, found.index, self._spec, shard, self._check.share)
                to.check_memory(shard, self._new_nbytes(view, plan))
                with to.writer(shard, self._spec, **user._asdict()) as writer:
                    self._write(writer, shard, view, plan, chunks)
            return self._report(shard, plan)

    def write_in_place(
        self, shard: ShardTarget, view: OpenedShard, found: Survey, check_state: Callable[[OpenedShard], None]
    ) -> RepairedShard:
        """Replace the damaged object.

        Parameters
        ----------
        shard : ShardTarget
        view : OpenedShard
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
            if self._check.is_plain and plan.has_any:
                replace_object(
                    shard.array.store,
                    shard.key,
                    self._plain_chunk(plan, chunks),
                    partial(_check_now, shard, check_state),
                    replace(self._options, durability="fsync"),
                )
                self._check_result(shard)
            elif plan.has_any:
                user = user_parts(view, found.index, self._spec, shard, self._check.share)
                if shard.place.path is None:
                    self._budget.check_whole(shard.name, self._new_nbytes(view, plan))
                    self._replace_object(shard, user, check_state)
                else:
                    self._replace_file(shard, view, plan, chunks, user)
                self._check_result(shard)
            return self._report(shard, plan)

    def restore(self, shard: ShardTarget, to: CopyWriter | None, *, dry_run: bool) -> RepairedShard | None:
        """Store a shard, or a chunk without shards, that does not exist, from the copy; return None if the copy does not have it."""
        what = "chunk" if self._check.is_plain else "shard"
        detail = f"the copy has this {what}, and it does not exist"
        finding = Finding(FindingKind.MISSING_SHARD, shard.name, detail, shard.array.name, recoverable=False)
        with ExitStack() as stack:
            chunks = self._chunks_of_copy(shard, stack)
            plan = self._plan(shard, self._lost(shard, finding), chunks)
            if not plan.from_copy and not plan.lost:
                return None
            if plan.from_copy and not dry_run:
                self._store_missing(shard, plan, chunks, to)
            return self._report(shard, plan)

    def _store_missing(
        self, shard: ShardTarget, plan: _RepairPlan, chunks: ChunksOfCopy | None, to: CopyWriter | None
    ) -> None:
        """Store the object of a shard, or of a chunk without shards, that does not exist."""
        if self._check.is_plain:
            data = self._plain_chunk(plan, chunks)
            if to is not None and data is not None:
                to.put(shard, data)
                return
            options = replace(self._options, durability="fsync")
            replace_object(shard.array.store, shard.key, data, partial(_check_absent, shard), options)
            return
        nothing = NativeShard(None, b"")
        if to is not None:
            to.check_memory(shard, self._new_nbytes(nothing, plan))
            with to.writer(shard, self._spec) as writer:
                self._write(writer, shard, nothing, plan, chunks)
        elif shard.place.path is not None:
            confirm = partial(_check_absent, shard)
            with ShardWriter(shard.place.path, self._spec, durability="fsync", confirm=confirm) as writer:
                self._write(writer, shard, nothing, plan, chunks)
        else:
            self._budget.check_whole(shard.name, self._new_nbytes(nothing, plan))

            def all_chunks() -> Mapping[int, Any]:
                _check_absent(shard)
                new = CollectedChunks(self._spec.grid_shape)
                self._write(new, shard, nothing, plan, chunks)
                return new.chunks

            replace_chunks(shard.place, self._spec, all_chunks, self._options)

    def _chunks_of_copy(self, shard: ShardTarget, stack: ExitStack) -> ChunksOfCopy | None:
        return None if self._copy is None else stack.enter_context(self._copy.chunks(shard))

    def _plan(self, shard: ShardTarget, found: Survey, chunks: ChunksOfCopy | None) -> _RepairPlan:
        """Take whole inner chunks from the shard itself; ask the copy only for lost ones."""
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

    def _plain_chunk(self, plan: _RepairPlan, chunks: ChunksOfCopy | None) -> bytes | None:
        """Return the bytes of a chunk without shards, from the copy; None if it is absent there, too."""
        return None if chunks is None or not plan.from_copy else chunks.encoded(0)

    def _new_nbytes(self, view: OpenedShard, plan: _RepairPlan) -> int:
        """Return the size of the new shard, at most, in bytes."""
        return view.nbytes + len(plan.from_copy) * self._spec.inner.nbytes

    def _write(
        self,
        writer: ChunkSink,
        shard: ShardTarget,
        view: OpenedShard,
        plan: _RepairPlan,
        chunks: ChunksOfCopy | None,
    ) -> None:
        places = plan.survey.places
        writer = DecodedChunks(writer, self._check, shard.name)
        positions = in_order_of_offset(places)
        copy_chunks(
            writer,
            stored_runs(view.range, places, positions, writer.grid_shape, shard.name, self._check.share),
        )
        write_others(writer, self._others(plan.from_copy, chunks))

    def _others(self, positions: tuple[int, ...], chunks: ChunksOfCopy | None) -> Iterator[tuple[int, Any]]:
        for position in positions:
            assert chunks is not None
            yield position, chunks.encoded(position)

    def _replace_file(
        self,
        shard: ShardTarget,
        view: OpenedShard,
        plan: _RepairPlan,
        chunks: ChunksOfCopy | None,
        user: ShardUserBytes,
    ) -> None:
        with replacing_writer(shard, view, self._spec, user) as writer:
            self._write(writer, shard, view, plan, chunks)

    def _replace_object(
        self, shard: ShardTarget, user: ShardUserBytes, check_state: Callable[[OpenedShard], None]
    ) -> None:
        refuse_user_bytes(shard, user)

        replace_chunks(shard.place, self._spec, lambda: self._all_chunks(shard, check_state), self._options)

    def _all_chunks(
        self, shard: ShardTarget, check_state: Callable[[OpenedShard], None]
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


def _check_now(shard: ShardTarget, check_state: Callable[[OpenedShard], None]) -> None:
    """Check the state of an object that is about to be replaced, under its lock."""
    view = open_object(shard.array.store, shard.key)
    if view is None:
        raise ConflictError(
            f"chunk {shard.name!r}: it was deleted during the repair; nothing was written", shard=shard.name
        )
    try:
        check_state(view)
    finally:
        view.close()


def _check_absent(shard: ShardTarget) -> None:
    """Check that a chunk still does not exist, under its lock."""
    view = open_object(shard.array.store, shard.key)
    if view is not None:
        view.close()
        raise ConflictError(
            f"{shard.name!r}: another writer has stored it during the repair; it was not replaced",
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
    return np.ones(shard.array.object_spec.n_chunks, dtype=np.bool_) if inside is None else inside


def _coordinates(shard: ShardTarget, positions: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Return the grid positions of the first `capped.LISTED` inner chunks."""
    grid = shard.array.object_spec.grid_shape
    return tuple(coordinates(position, grid) for position in positions[:LISTED])


def rolled_back(shard: ShardTarget) -> RepairedShard:
    """Return the report of a shard that is whole apart from its journal."""
    return RepairedShard(shard.array.name, shard.name, RepairAction.ROLLED_BACK)
