# compact.py - pack and order shards without decoding them
# SPDX-License-Identifier: MIT
"""`compact`: new objects without dead bytes, with their inner chunks in an order, and with a checksum of the index.

Encoded inner chunks are copied in runs, so each thread holds one run of a few MiB; for an order in place in a store of
requests, one shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from typing import Any

from ..access.opened_shard import OpenedShard
from ..access.shard_layout import ShardLayout, shard_layout
from ..access.shard_object import open_object
from ..access.shard_writer import ShardWriter, replace_chunks
from ..arguments import checked
from ..errors import ShardError, as_os_error
from ..format.spec import ShardSpec
from ..options import Options, Order, in_force
from ..readable import as_nbytes
from ..storage.retry import Patience, retry
from ..storage.url_stores import placed_options
from .compact_report import CompactAction, CompactedShard, CompactReport
from .damage.index_layout import bad_entries, is_absent, wrong_sizes
from .damage.index_search import IndexStatus, StoredIndex, find_index
from .damage.rebuilt_index import sequence
from .hierarchy_copy import CopyPlace, CopyWriter, holds_whole_shards, root_prefix
from .jobs.shard_pool import ShardPool, absolute_place
from .jobs.shard_work import ArrayTask
from .left_parts import LeftPart
from .memory import MemoryBudget
from .monitor import Monitor, RunOptions, passes_on_signals
from .node_selection import selection_of
from .rewrite import (
    copy_chunks,
    encoded_chunks,
    in_order_of_offset,
    refuse_user_bytes,
    replacing_writer,
    stored_runs,
    user_parts,
)
from .rewrite_run import RewriteRequest, RewriteRun, ShardOutcome
from .shard_threads import in_order
from .targets import ArrayTarget, ShardTarget

__all__ = ["CompactTask", "ShardPacker", "compact"]


# `ShardPacker`: packs shards of an array, in threads. `CompactTask`: the same as plain data, for other processes.
#
# A shard that is packed twice is harmless: the second time it has no dead bytes and the wanted order, so it stays. In a new
# hierarchy it gets the same bytes.


@dataclass(frozen=True)
class CompactTask(ArrayTask[ShardOutcome[CompactedShard]]):
    """How the shards of an array are packed; attributes as for `compact`.

    With `to` the new shards are written there. `index_crc` adds a checksum to indexes that have none.
    """

    min_dead: float
    order: str | None
    index_crc: bool
    dry_run: bool
    to: CopyPlace | None = None

    def open(self, array: ArrayTarget, options: Options, budget: MemoryBudget) -> ShardPacker:
        return ShardPacker(array, self, options, budget)

    def failed(self, shard: ShardTarget, detail: str) -> ShardOutcome[CompactedShard]:
        return ShardOutcome(
            0, CompactedShard(shard.array.name, shard.name, CompactAction.FAILED, 0, detail=detail)
        )


class ShardPacker:
    """Packs shards of one array; see `ShardTool`."""

    def __init__(self, array: ArrayTarget, task: CompactTask, options: Options, budget: MemoryBudget) -> None:
        self._task, self._budget = task, budget
        self._to = None if task.to is None else CopyWriter(task.to, budget, options)
        self._options = replace(options, threads=1)
        holds_whole = holds_whole_shards(array, self._to)
        self._share = budget.share(array.shard_spec, array.place, options.threads, holds_whole=holds_whole)
        self.n_threads: int = self._share.n_threads

    def run(
        self, shards: Iterable[ShardTarget], monitor: Monitor, n_threads: int
    ) -> Iterator[tuple[int, ShardOutcome[CompactedShard]]]:
        """Pack shards; the result is None for one that stays, or is copied, as it is. See `ShardTool.run`."""
        for outcome in in_order(shards, self._treat, n_threads, monitor):
            yield 1, outcome

    def _treat(self, shard: ShardTarget) -> ShardOutcome[CompactedShard]:
        """Pack one shard."""
        with in_force(self._options):
            return self._look(shard)

    def _look(self, shard: ShardTarget) -> ShardOutcome[CompactedShard]:
        failed = CompactedShard(shard.array.name, shard.name, CompactAction.FAILED, 0)
        with ExitStack() as stack:
            try:
                try:
                    if self._to is None and not self._task.dry_run:
                        shard.roll_back()  # else the roll back would look like a change by another writer
                    view, found = self._find(shard, stack)
                except OSError as error:  # of the old shard: others may be readable
                    return ShardOutcome(0, replace(failed, detail=str(error)))
                if view is None:
                    return ShardOutcome(0, None)
                failed = replace(failed, nbytes=view.nbytes)
                if isinstance(found, ShardError):
                    raise found
                with as_os_error(str, shard.name):
                    return ShardOutcome(failed.nbytes, self._pack(shard, view, found, failed))
            except (ShardError, OSError) as error:
                if self._to is not None and not isinstance(error, ShardError):
                    raise  # of the new hierarchy; in place, the store may refuse this object alone
                return ShardOutcome(failed.nbytes, replace(failed, detail=str(error)))

    def _find(
        self, shard: ShardTarget, stack: ExitStack
    ) -> tuple[OpenedShard | None, StoredIndex | ShardError]:
        """Open a shard until the stack ends, and find its index; an error if it is damaged, and no writer is changing it."""
        spec = shard.array.shard_spec
        damage = ShardError("the index or an entry is damaged; run `shardcodec verify`")

        def look() -> tuple[OpenedShard | None, StoredIndex | ShardError]:
            view = open_object(shard.array.store, shard.key)
            if view is None:
                return None, damage
            stack.callback(view.close)
            try:
                found = find_index(view, spec, self._share.block_nbytes)
                is_whole = found.status is IndexStatus.IN_PLACE and not _is_damaged(found, view, spec)
            except ShardError as error:
                return view, error
            return view, found if is_whole else damage

        def is_torn(looked: tuple[OpenedShard | None, StoredIndex | ShardError], patience: Patience) -> bool:
            view, index = looked
            return view is not None and isinstance(index, ShardError) and patience.sees_change(path)

        path = shard.place.path
        return retry(look, path, again=is_torn)

    def _pack(
        self,
        shard: ShardTarget,
        view: OpenedShard,
        found: StoredIndex,
        done: CompactedShard,
    ) -> CompactedShard | None:
        """Pack an open shard; return None if it stays, or is copied, as it is."""
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

    def _write(self, shard: ShardTarget, view: OpenedShard, found: StoredIndex, spec: ShardSpec) -> int:
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
            copy_chunks(
                new, stored_runs(view.range, places, positions, new.grid_shape, shard.name, self._share)
            )
        return _size(shard) if self._to is None else self._to.size(shard)

    def _replace_object(self, shard: ShardTarget) -> int:
        spec = shard.array.shard_spec

        def chunks() -> Mapping[int, bytes]:
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
            return encoded_chunks(view, found.entries, wanted)

        replace_chunks(shard.place, spec, chunks, self._options)
        return _size(shard)


def _is_damaged(found: StoredIndex, view: OpenedShard, spec: ShardSpec) -> bool:
    assert found.entries is not None
    bad = bad_entries(found.entries, view.nbytes, found.offset, found.nbytes)
    return bool(bad.any() or wrong_sizes(found.entries, spec.inner.fixed_nbytes).any())


def _size(shard: ShardTarget) -> int:
    view = open_object(shard.array.store, shard.key)
    return 0 if view is None else view.nbytes


OnCompact = Callable[[CompactedShard], None]


@passes_on_signals
@checked
def compact(
    target: Any,
    *,
    min_dead: float = 0.1,
    order: Order | None = None,
    to: Any = None,
    dry_run: bool = False,
    only: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    spec: ShardSpec | None = None,
    threads: int | None = None,
    memory: int | str | None = None,
    dask: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    monitor: Monitor | None = None,
    on_shard: OnCompact | None = None,
) -> CompactReport:
    """Pack the shards that a path leads to. Inner chunks are copied as they are stored. Header, footer and alignment stay.

    Each shard is replaced in one step, or all shards are written to a new hierarchy. Damaged shards are not changed, and are
    reported; a new hierarchy does not have them, and gets no metadata then.

    Parameters
    ----------
    target : path-like, URL, zarr store or StorePath
        A group, an array, or one shard of an array.
    min_dead : float
        Pack a shard if at least this share of it, in [0, 1], is dead bytes.
    order : {"morton", "lexicographic", "colexicographic"}, optional
        Also pack shards whose inner chunks are in another order. By default the order stays.
    to : path-like, URL or zarr store, optional
        Write a new hierarchy, or the new object of a single shard; `target` is not changed. In a new hierarchy every index of a
        shard has a checksum; in place none is added, because the metadata of an array name the codecs of all its indexes.
    dry_run : bool
        Change nothing, and report what would be packed.
    only, exclude : str or sequence of str, optional
        Patterns of the arrays and groups that are chosen, and of those that are left out. `to` also gets the arrays that they need,
        such as coordinates, and objects that belong to no array; see `convert`, also for ``"@needed"`` and ``"@objects"``.
    spec : ShardSpec, optional
        The encoding of a shard that is not in the folder of its array; `target` is then this one object.
    threads : int, optional
        Number of shards at the same time. Default: the option ``threads``.
    memory : int or str, optional
        Memory for indexes and data, in bytes or as ``"4GiB"``; fewer threads are used if it is short. By default a few MiB, an index and an
        inner chunk for each thread, and whole shards where a store needs them.
    dask : str, distributed.Client or bool, optional
        The workers of a cluster of dask pack the shards, see `convert`; `target` and `to` must be paths or URLs. `memory` and
        `threads` are then those of one worker, by default half of its memory limit and all its threads.
    storage_options : mapping, optional
        Only with a URL: the arguments of ``obstore.store.from_url``; without obstore those of the fsspec file system.
    monitor : Monitor, optional
        Gets the progress, and may stop the work between two shards.
    on_shard : callable, optional
        Called for each packed or failed shard; the report then does not list them.

    Returns
    -------
    CompactReport

    Raises
    ------
    FileExistsError
        There is something at `to` already, other than an empty folder.
    FileNotFoundError
        There is no array, group or shard.
    OSError
        A new object cannot be written; the old one stays. Or the scheduler of dask was lost.
    ValueError, TypeError, ImportError
        An argument is invalid, an index and an inner chunk do not fit into `memory`, or a package is missing.
    ConflictError
        A worker of dask reaches other metadata.
    Stopped
        `monitor` stopped the work; the error has a `report` of what was done.

    Examples
    --------
    >>> tools.compact("a.zarr", dry_run=True).n_packed
    0
    """
    if not 0 <= min_dead <= 1:
        raise ValueError(f"min_dead: expected a share in [0, 1], got {min_dead}")
    to = absolute_place(to)
    request = RewriteRequest(target, to, dry_run, selection_of(only, exclude), spec)
    request.check()
    storage_options = placed_options(storage_options, target, to)
    run = RunOptions(threads, as_nbytes(memory, "memory"), dask, storage_options, monitor or Monitor())
    task = CompactTask(min_dead, order, to is not None, dry_run)
    return _CompactRun(task, request, ShardPool(target, spec, run, to=to), on_shard).run()


def _with_index_checksum(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a sharded array, whose shards have an index checksum."""
    codecs = [dict(codec) if isinstance(codec, Mapping) else codec for codec in document["codecs"]]
    for codec in codecs:
        if isinstance(codec, dict) and codec.get("name") == "sharding_indexed":
            configuration = codec["configuration"]
            if all(one.get("name") != "crc32c" for one in configuration["index_codecs"]):
                stored = [*configuration["index_codecs"], {"name": "crc32c"}]
                codec["configuration"] = {**configuration, "index_codecs": stored}
    return {**document, "codecs": codecs}


class _CompactRun(RewriteRun[CompactedShard, CompactReport]):
    def __init__(
        self, task: CompactTask, request: RewriteRequest, pool: ShardPool, on_shard: OnCompact | None
    ) -> None:
        super().__init__(request, pool, on_shard)
        self._task = task
        self._n_packed = self._n_failed = self._freed = 0

    @property
    def _has_all_shards(self) -> bool:
        return not self._n_failed

    def _report(self, *, is_complete: bool) -> CompactReport:
        return CompactReport(
            **self._facts(),
            is_complete=is_complete,
            n_packed=self._n_packed,
            n_failed=self._n_failed,
            freed_nbytes=self._freed,
        )

    def _rewrite(self, array: ArrayTarget) -> None:
        self._monitor.start(array.name or array.place, array.n_grid_shards)
        task = self._task if array.only is None else replace(self._task, index_crc=False)
        if self._to is not None:
            task = replace(task, to=self._to.place)
            is_bare = array.spec is not None and not array.spec.n_index_checksums
            self._to.add(array, _with_index_checksum if is_bare else None)
        packer = ShardPacker(array, task, self._pool.options, self._pool.budget)
        self._work_on(array, task, packer, array.shards())

    def _leave_objects(self, array: ArrayTarget, left: Iterable[LeftPart]) -> None:
        """Note chunks of an array that programs can read as failures."""
        for one in left:
            key = root_prefix(array) + one.name
            if array.is_malformed or not array.may_hold(key):
                super()._leave_objects(array, [one])
            else:
                self._note(CompactedShard(array.name, one.name, CompactAction.FAILED, 0, detail=one.reason))

    def _sum(self, done: CompactedShard) -> None:
        if done.action is CompactAction.PACKED:
            self._n_packed += 1
            self._freed += done.dead_nbytes if done.new_nbytes is None else done.nbytes - done.new_nbytes
        else:
            self._n_failed += 1
