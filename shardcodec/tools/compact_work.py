# compact_work.py - pack the shards of one array
# SPDX-License-Identifier: MIT
"""`CompactWork`: packs shards of an array, in threads. `CompactTask`: the same as plain data, for other processes.

A shard that is packed twice is harmless: the second time it has no dead bytes and the wanted order, so it stays. In a new
hierarchy it gets the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace

from ..access.chunk_codec import compiled
from ..access.shard_change import Change, Found, change
from ..access.shard_layout import ShardLayout, shard_layout
from ..access.shard_writer import ShardWriter
from ..errors import ShardError
from ..format.spec import ShardSpec
from ..options import Options, in_force
from .array_target import ArrayTarget, ShardTarget
from .compact_report import CompactAction, CompactedShard
from .index_layout import bad_entries, is_absent, wrong_sizes
from .index_search import FoundIndex, How, find_index
from .jobs.shard_task import ShardTask
from .memory_budget import MemoryBudget
from .monitor import Monitor
from .new_objects import NewObjects, NewPlace, holds_whole_shards
from .rebuilt_index import sequence
from .rewrite import (
    copy_chunks,
    encoded_chunks,
    in_order_of_offset,
    refuse_user_bytes,
    replacing_writer,
    user_parts,
)
from .shard_threads import in_order
from .stored_bytes import StoredBytes, look_again, open_object

__all__ = ["CompactTask", "CompactWork"]


@dataclass(frozen=True)
class CompactTask(ShardTask[CompactedShard | None]):
    """How the shards of an array are packed; attributes as for `compact`. With `to` the new shards are written there."""

    min_dead: float
    order: str | None
    index_crc: bool
    dry_run: bool
    to: NewPlace | None = None

    def open(self, array: ArrayTarget, options: Options, budget: MemoryBudget) -> CompactWork:
        return CompactWork(array, self, options, budget)

    def failed(self, shard: ShardTarget, detail: str) -> CompactedShard:
        return CompactedShard(shard.array.name, shard.name, CompactAction.FAILED, 0, detail=detail)


class CompactWork:
    """Packs shards of one array; see `ShardTask.open` and `ShardWork`."""

    def __init__(self, array: ArrayTarget, task: CompactTask, options: Options, budget: MemoryBudget) -> None:
        self._task, self._budget = task, budget
        self._to = None if task.to is None else NewObjects(task.to, budget, options)
        self._options = replace(options, threads=1)
        holds_whole = holds_whole_shards(array, self._to)
        self._share = budget.share(array.shard_spec, array.place, options.threads, holds_whole=holds_whole)
        self.n_threads = self._share.n_threads

    def run(
        self, shards: Iterable[ShardTarget], monitor: Monitor, n_threads: int
    ) -> Iterator[tuple[int, CompactedShard | None]]:
        """Pack shards; None for one that stays, or is copied, as it is. See `ShardWork.run`."""
        for done in in_order(shards, self._treat, n_threads, monitor):
            yield 1, done

    def _treat(self, shard: ShardTarget) -> CompactedShard | None:
        """Pack one shard; return None if it stays, or is copied, as it is."""
        with in_force(self._options):
            return self._look(shard)

    def _look(self, shard: ShardTarget) -> CompactedShard | None:
        failed = CompactedShard(shard.array.name, shard.name, CompactAction.FAILED, 0)
        with ExitStack() as stack:
            try:
                try:
                    if self._to is None and not self._task.dry_run:
                        shard.settle()  # else the roll back would look like a change by another writer
                    view, found = self._find(shard, stack)
                except OSError as error:  # of the old shard: others may be readable
                    return replace(failed, detail=str(error))
                if view is None:
                    return None
                failed = replace(failed, nbytes=view.nbytes)
                if isinstance(found, ShardError):
                    raise found
                return self._pack(shard, view, found, failed)
            except ShardError as error:
                return replace(failed, detail=str(error))

    def _find(
        self, shard: ShardTarget, stack: ExitStack
    ) -> tuple[StoredBytes | None, FoundIndex | ShardError]:
        """Open a shard until the stack ends, and find its index; an error if it is damaged, and no writer is changing it."""
        spec = shard.array.shard_spec
        damage = ShardError("the index or an entry is damaged; run `shardcodec verify`")

        def look() -> tuple[StoredBytes | None, FoundIndex | ShardError]:
            view = open_object(shard.array.store, shard.key)
            if view is None:
                return None, damage
            stack.callback(view.close)
            try:
                found = find_index(view, spec, self._share.block_nbytes)
                is_whole = found.how is How.IN_PLACE and not _is_damaged(found, view, spec)
            except ShardError as error:
                return view, error
            return view, found if is_whole else damage

        return look_again(
            shard.place.path, look, lambda looked: looked[0] is None or isinstance(looked[1], FoundIndex)
        )

    def _pack(
        self,
        shard: ShardTarget,
        view: StoredBytes,
        found: FoundIndex,
        done: CompactedShard,
    ) -> CompactedShard | None:
        spec = shard.array.shard_spec
        assert found.entries is not None
        layout = shard_layout(spec, found.entries, view.nbytes, lambda low, n: bytes(view.range(low, n)))
        new_spec = self._spec(spec)
        if new_spec is spec and not self._is_wanted(layout):
            if self._to is not None:
                self._to.copy(shard.array, shard.key)
            return None
        done = replace(
            done, action=CompactAction.PACKED, dead_nbytes=layout.total("dead"), order=layout.order
        )
        if self._task.dry_run:
            return done
        return replace(done, new_nbytes=self._write(shard, view, found, new_spec))

    def _spec(self, spec: ShardSpec) -> ShardSpec:
        """Return the encoding of the new shard."""
        if not self._task.index_crc or spec.n_index_checksums:
            return spec
        return replace(spec, index_codecs=(*spec.index_codecs, "crc32c"))  # type: ignore[arg-type]

    def _is_wanted(self, layout: ShardLayout) -> bool:
        if self._task.order is not None and layout.order not in ("any", self._task.order):
            return True
        dead = layout.total("dead")
        return dead > 0 and dead >= self._task.min_dead * layout.nbytes

    def _write(self, shard: ShardTarget, view: StoredBytes, found: FoundIndex, spec: ShardSpec) -> int:
        """Write the new shard; return its size in bytes."""
        places = found.entries
        assert places is not None
        if self._to is not None:
            self._to.check_memory(shard, view.nbytes)
        elif shard.place.path is None:
            self._budget.check_whole(shard.name, view.nbytes)
        positions = in_order_of_offset(places)
        if self._task.order is not None:
            present = ~is_absent(places)
            positions = [
                position for position in sequence(spec, self._task.order).tolist() if present[position]
            ]
        user = user_parts(view, found, shard.array.shard_spec, shard, self._share)
        writer: AbstractContextManager[ShardWriter]
        if self._to is not None:
            writer = self._to.writer(shard, spec, **user._asdict())
        elif self._task.order is None:
            with shard.open("r+") as handle:
                handle.compact()
                return handle.nbytes
        elif shard.place.path is not None:
            writer = replacing_writer(shard, view, spec, user)
        else:
            refuse_user_bytes(shard, user)
            return self._replace_object(shard)
        with writer as new:
            copy_chunks(new, view, places, positions, shard, self._share)
        return _size(shard) if self._to is None else self._to.size(shard)

    def _replace_object(self, shard: ShardTarget) -> int:
        spec = shard.array.shard_spec

        def decide(_found: Found) -> Change:
            view = open_object(shard.array.store, shard.key)
            found = None if view is None else find_index(view, spec)
            if view is None or found is None or found.entries is None or _is_damaged(found, view, spec):
                raise ShardError(
                    f"shard {shard.name!r}: another writer has changed it meanwhile; it was not replaced"
                )
            present = ~is_absent(found.entries)
            wanted = [
                position
                for position in sequence(spec, self._task.order or "morton").tolist()
                if present[position]
            ]
            return Change(encoded_chunks(view, found.entries, wanted), complete=True, keep_empty=True)

        change(shard.place, compiled(spec.chain), decide, self._options)
        return _size(shard)


def _is_damaged(found: FoundIndex, view: StoredBytes, spec: ShardSpec) -> bool:
    assert found.entries is not None
    bad = bad_entries(found.entries, view.nbytes, found.offset, found.nbytes)
    return bool(bad.any() or wrong_sizes(found.entries, spec.inner.fixed_nbytes).any())


def _size(shard: ShardTarget) -> int:
    view = open_object(shard.array.store, shard.key)
    return 0 if view is None else view.nbytes
