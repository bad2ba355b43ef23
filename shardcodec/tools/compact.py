# compact.py - pack and order shards without decoding them
# SPDX-License-Identifier: MIT
"""`compact`: new objects without dead bytes, with their inner chunks in an order, and with a checksum of the index.

Encoded inner chunks are copied in runs, so each thread holds one run of a few MiB; for an order in place in a store of
requests, one shard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ..access.chunk_codec import compiled
from ..access.shard_change import Change, Found, change
from ..access.shard_layout import ShardLayout, shard_layout
from ..errors import ShardError
from ..format.spec import ShardSpec
from ..options import Options, check, resolve
from .array_target import ArrayTarget, ForeignObject, ShardTarget
from .compact_report import CompactAction, CompactedShard, CompactReport
from .index_layout import bad_entries, is_absent, wrong_sizes
from .index_search import FoundIndex, How, find_index
from .memory_budget import MemoryBudget, MemoryShare
from .monitor import Monitor
from .new_hierarchy import NewHierarchy, holds_whole_shards
from .rebuilt_index import ORDERS, sequence
from .rewrite import (
    copy_chunks,
    encoded_chunks,
    in_order_of_offset,
    refuse_user_bytes,
    replacing_writer,
    user_parts,
)
from .shard_threads import in_order
from .stored_bytes import StoredBytes, open_object
from .targets import find_arrays, find_groups

__all__ = ["compact"]

# Shards that a report lists.
MOST_SHARDS = 1000

OnCompact = Callable[[CompactedShard], None]


def compact(
    target: Any,
    *,
    min_dead: float = 0.1,
    order: str | None = None,
    index_crc: bool = False,
    to: Any = None,
    dry_run: bool = False,
    array: str | None = None,
    spec: ShardSpec | None = None,
    threads: int | None = None,
    memory: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    monitor: Monitor | None = None,
    on_shard: OnCompact | None = None,
) -> CompactReport:
    """Pack the shards that a path leads to. Inner chunks are copied as they are stored. Header, footer and alignment stay.

    Each shard is replaced in one step, or all shards are written to a new hierarchy. Damaged shards are not changed, and are
    reported; a new hierarchy does not have them.

    Parameters
    ----------
    target : path-like, URL, zarr store or StorePath
        A group, an array, or one shard of an array.
    min_dead : float
        Pack a shard if at least this share of it, in [0, 1], is dead bytes.
    order : {"morton", "lexicographic", "colexicographic"}, optional
        Also pack shards whose inner chunks are in another order. By default the order stays.
    index_crc : bool
        Add a checksum to the index of each shard that has none. The metadata of an array name the codecs of all its
        indexes, so this needs `to`.
    to : path-like, URL or zarr store, optional
        Write a new hierarchy; `target` is not changed.
    dry_run : bool
        Change nothing, and report what would be packed.
    array : str, optional
        Only this array, by its path in the group.
    spec : ShardSpec, optional
        The encoding of a shard that is not in the folder of its array; `target` is then this one object.
    threads : int, optional
        Number of shards at the same time. Default: the option ``threads``.
    memory : int, optional
        Memory for indexes and data, in bytes; fewer threads are used if it is short. By default a few MiB, an index and an
        inner chunk for each thread, and whole shards where a store needs them.
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
        There is something at `to` already.
    FileNotFoundError
        There is no array, group or shard.
    OSError
        A new object cannot be written; the old one stays.
    ValueError, TypeError, ImportError
        An argument is invalid, an index and an inner chunk do not fit into `memory`, or no package can open the URL.
    """
    budget = MemoryBudget(memory)
    if not 0 <= min_dead <= 1:
        raise ValueError(f"min_dead: expected a share in [0, 1], got {min_dead}")
    if order not in (None, *ORDERS):
        raise ValueError(f"order: expected one of {ORDERS}, got {order!r}")
    if index_crc and to is None and not dry_run:
        raise ValueError(
            "index_crc: expected `to`, a new place: the metadata name the index codecs of all shards"
        )
    arrays = find_arrays(target, array=array, spec=spec, storage_options=storage_options)
    new = None if to is None or dry_run else NewHierarchy(to, storage_options, budget, target)
    options = resolve(argument=check({"threads": threads}))
    run = _CompactRun(
        new, min_dead, order, index_crc, dry_run, options, budget, monitor or Monitor(), on_shard
    )
    for one in arrays:
        if one.is_sharded:
            run.add(one)
        elif new is not None:
            new.copy_all(one)
    if new is not None:
        if array is None and spec is None:
            for name, folder in find_groups(target, storage_options):
                new.add_group(name, folder)
        new.finish()
    return run.report(str(target), None if to is None else str(to))


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


class _CompactRun:
    """One run over several arrays."""

    def __init__(
        self,
        to: NewHierarchy | None,
        min_dead: float,
        order: str | None,
        index_crc: bool,
        dry_run: bool,
        options: Options,
        budget: MemoryBudget,
        monitor: Monitor,
        on_shard: OnCompact | None,
    ) -> None:
        self._to, self._min_dead, self._order, self._index_crc = to, min_dead, order, index_crc
        self._dry_run, self._budget, self._monitor, self._on_shard = dry_run, budget, monitor, on_shard
        self._n_threads, self._options = options.threads, replace(options, threads=1)
        self._n_shards = self._n_packed = self._n_failed = self._freed = 0
        self._listed: list[CompactedShard] = []

    def report(self, target: str, to: str | None) -> CompactReport:
        """Return the result."""
        counts = self._n_shards, self._n_packed, self._n_failed, self._freed
        return CompactReport(target, to, self._dry_run, *counts, tuple(self._listed))

    def add(self, array: ArrayTarget) -> None:
        """Pack the shards of one array."""
        if self._index_crc and array.only is not None:
            raise ValueError("index_crc: expected a whole array, whose metadata change, got one shard")
        self._monitor.start(array.name or array.place, array.n_grid_shards)
        if self._to is not None:
            self._to.add(array, _with_index_checksum if self._index_crc else None)
        share = self._share(array)
        shards = (one for one in array.objects() if not isinstance(one, ForeignObject))
        for done in in_order(shards, lambda shard: self._treat(shard, share), share.n_threads, self._monitor):
            self._n_shards += 1
            self._note(done)
            self._monitor.advance()

    def _share(self, array: ArrayTarget) -> MemoryShare:
        """Return the number of threads and the memory of each."""
        holds_whole = holds_whole_shards(array, self._to)
        return self._budget.share(array.shard_spec, array.place, self._n_threads, holds_whole=holds_whole)

    def _note(self, done: CompactedShard | None) -> None:
        if done is None:
            return
        if done.action is CompactAction.PACKED:
            self._n_packed += 1
            self._freed += done.dead_nbytes if done.new_nbytes is None else done.nbytes - done.new_nbytes
        else:
            self._n_failed += 1
        if self._on_shard is not None:
            self._on_shard(done)
        elif len(self._listed) < MOST_SHARDS:
            self._listed.append(done)

    def _treat(self, shard: ShardTarget, share: MemoryShare) -> CompactedShard | None:
        """Pack one shard; return None if it stays, or is copied, as it is."""
        failed = CompactedShard(shard.array.name, shard.name, CompactAction.FAILED, 0)
        view: StoredBytes | None = None
        try:
            try:
                view = open_object(shard.array.store, shard.key)
                if view is None:
                    return None
                failed = replace(failed, nbytes=view.nbytes)
                found = find_index(view, shard.array.shard_spec, share.block_nbytes)
            except OSError as error:  # of the old shard: others may be readable
                return replace(failed, detail=str(error))
            return self._pack(shard, view, found, share, failed)
        except ShardError as error:
            return replace(failed, detail=str(error))
        finally:
            if view is not None:
                view.close()

    def _pack(
        self,
        shard: ShardTarget,
        view: StoredBytes,
        found: FoundIndex,
        share: MemoryShare,
        done: CompactedShard,
    ) -> CompactedShard | None:
        spec = shard.array.shard_spec
        if found.entries is None or found.how is not How.IN_PLACE or _is_damaged(found, view, spec):
            return replace(done, detail="the index or an entry is damaged; run `shardcodec verify`")
        layout = shard_layout(spec, found.entries, view.nbytes, lambda low, n: bytes(view.range(low, n)))
        new_spec = self._spec(spec)
        if new_spec is spec and not self._is_wanted(layout):
            if self._to is not None:
                self._to.copy(shard.array, shard.key)
            return None
        done = replace(
            done, action=CompactAction.PACKED, dead_nbytes=layout.total("dead"), order=layout.order
        )
        if self._dry_run:
            return done
        return replace(done, new_nbytes=self._write(shard, view, found, new_spec, share))

    def _spec(self, spec: ShardSpec) -> ShardSpec:
        """Return the encoding of the new shard."""
        if not self._index_crc or spec.n_index_checksums:
            return spec
        return replace(spec, index_codecs=(*spec.index_codecs, "crc32c"))  # type: ignore[arg-type]

    def _is_wanted(self, layout: ShardLayout) -> bool:
        if self._order is not None and layout.order not in ("any", self._order):
            return True
        dead = layout.total("dead")
        return dead > 0 and dead >= self._min_dead * layout.nbytes

    def _write(
        self, shard: ShardTarget, view: StoredBytes, found: FoundIndex, spec: ShardSpec, share: MemoryShare
    ) -> int:
        """Write the new shard; return its size in bytes."""
        places = found.entries
        assert places is not None
        if self._to is not None:
            self._to.check_memory(shard, view.nbytes)
        elif shard.place.path is None:
            self._budget.check_whole(shard.name, view.nbytes)
        positions = in_order_of_offset(places)
        if self._order is not None:
            present = ~is_absent(places)
            positions = [position for position in sequence(spec, self._order).tolist() if present[position]]
        user = user_parts(view, found, shard.array.shard_spec, shard, share)
        if self._to is not None:
            writer = self._to.writer(shard, spec, **user._asdict())
        elif self._order is None:
            with shard.open("r+", {"threads": 1}) as handle:
                handle.compact()
                return handle.nbytes
        elif shard.place.path is not None:
            writer = replacing_writer(shard, view, spec, user)
        else:
            refuse_user_bytes(shard, user)
            return self._replace_object(shard)
        with writer:
            copy_chunks(writer, view, places, positions, shard, share)
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
                position for position in sequence(spec, self._order or "morton").tolist() if present[position]
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
