# shard_sums.py - sums over the shards of one array
# SPDX-License-Identifier: MIT
"""`ShardSums`: counts what shards hold, in bounded memory. `ShardInspector` and `InspectTask`: the sums of shards of one array."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ...access.opened_shard import OpenedShard
from ...access.placement import ABSENT
from ...access.read_indexes import ENTRIES_NBYTES, REQUEST_THREADS, ShardIndex, read_indexes
from ...access.shard_layout import ShardLayout, shard_layout
from ...format.spec import ShardSpec
from ...options import Options
from ..capped import Named
from ..jobs.shard_work import ArrayTask
from ..memory import MemoryBudget
from ..monitor import Monitor, Stopped
from ..targets import ArrayTarget, ShardTarget
from .array_picture import ArrayPicture
from .array_report import DamagedShard, StoredRecord
from .size_distribution import Sizes

__all__ = ["InspectTask", "ShardInspector", "ShardSums"]

# Shards of one sum.
STEP = 1024


class ShardSums:
    """Sums over some shards.

    Attributes
    ----------
    damaged : Named of DamagedShard
    """

    def __init__(self) -> None:
        self._shards, self._chunks = Sizes(), Sizes()
        self._sums: Counter[str] = Counter()
        self._orders: Counter[str] = Counter()
        self._alignments: Counter[int] = Counter()
        self.damaged: Named[DamagedShard] = Named()

    def add(self, one: ShardIndex[ShardTarget]) -> None:
        """Add a shard."""
        if one.is_missing:
            return
        self._sums["shards"] += 1
        if one.nbytes is not None:
            self._shards.add([one.nbytes])
        if one.error is not None or one.entries is None:
            self.damaged.add(DamagedShard(one.shard.name, str(one.error)))
            return
        layout: ShardLayout = one.result
        sizes = one.entries[:, 1]
        self._chunks.add(sizes[sizes != ABSENT])
        self._sums["chunks"] += layout.n_stored
        for kind in layout.ranges:
            self._sums[kind] += layout.total(kind)
        for kind in ("header", "footer"):
            self._sums[f"with {kind}"] += bool(layout.total(kind))
        self._orders[layout.order] += 1
        self._alignments[layout.alignment] += 1

    def merge(self, other: ShardSums) -> None:
        """Add the sums of shards that come after these."""
        self._shards.merge(other._shards)
        self._chunks.merge(other._chunks)
        self._sums.update(other._sums)
        self._orders.update(other._orders)
        self._alignments.update(other._alignments)
        if other.damaged:
            self.damaged.merge(other.damaged)

    def record(
        self, spec: ShardSpec, n_grid_shards: int, n_grid_chunks: int, n_foreign: int, *, has_item_size: bool
    ) -> StoredRecord:
        """Return the sums as a part of the report."""
        sums, chunks = self._sums, self._chunks.summary()
        decoded = sums["chunks"] * math.prod(spec.chunk_shape) * spec.dtype.itemsize if has_item_size else 0
        return StoredRecord(
            n_grid_shards=n_grid_shards,
            n_shards=sums["shards"],
            n_grid_chunks=n_grid_chunks,
            n_chunks=sums["chunks"],
            shards=self._shards.summary(),
            chunks=chunks,
            decoded_nbytes=decoded,
            chunk_nbytes=sums["inner chunks"],
            index_nbytes=sums["index"],
            header_nbytes=sums["header"],
            footer_nbytes=sums["footer"],
            padding_nbytes=sums["padding"],
            unmarked_nbytes=sums["unmarked"],
            dead_nbytes=sums["dead"],
            ratio=decoded / chunks.nbytes if chunks.nbytes and has_item_size else None,
            orders=dict(self._orders),
            alignments=dict(self._alignments),
            n_without_index_checksum=0 if spec.n_index_checksums else sums["shards"],
            n_with_header=sums["with header"],
            n_with_footer=sums["with footer"],
            n_damaged=self.damaged.n,
            n_foreign=n_foreign,
        )


@dataclass(frozen=True)
class InspectTask(ArrayTask[ShardSums]):
    """How the shards of an array are inspected.

    Attributes
    ----------
    fail_fast : bool
        Stop at the first damaged shard.
    """

    fail_fast: bool

    def open(self, array: ArrayTarget, options: Options, budget: MemoryBudget) -> ShardInspector:
        return ShardInspector(array, self, options, budget)

    def failed(self, shard: ShardTarget, detail: str) -> ShardSums:
        sums = ShardSums()
        sums.add(ShardIndex(shard, error=OSError(detail)))
        return sums


class ShardInspector:
    """Inspects shards of one array; see `ShardTool`. The default of the memory is 64 MiB.

    Parameters
    ----------
    picture : ArrayPicture, optional
        Gets each sound shard.
    """

    def __init__(
        self,
        array: ArrayTarget,
        task: InspectTask,
        options: Options,
        budget: MemoryBudget,
        picture: ArrayPicture | None = None,
    ) -> None:
        self._array, self._task, self._options, self._picture = array, task, options, picture
        self.n_threads: int = (
            options.threads if array.store.is_near else max(options.threads, REQUEST_THREADS)
        )
        self._memory = ENTRIES_NBYTES if budget.nbytes is None else budget.nbytes

    def run(
        self, shards: Iterable[ShardTarget], monitor: Monitor, n_threads: int
    ) -> Iterator[tuple[int, ShardSums]]:
        """Yield sums over some shards at a time; see `ShardTool.run`."""
        sums, n = ShardSums(), 0
        try:
            for one in self._indexes(shards, monitor, n_threads):
                sums.add(one)
                n += 1
                if self._picture is not None and one.error is None and one.entries is not None:
                    self._picture.add(one)
                if self._task.fail_fast and sums.damaged:
                    break
                if n == STEP:
                    yield n, sums
                    sums, n = ShardSums(), 0
        except Stopped:
            yield n, sums
            raise
        yield n, sums

    def _indexes(
        self, shards: Iterable[ShardTarget], monitor: Monitor, n_threads: int
    ) -> Iterator[ShardIndex[ShardTarget]]:
        spec = self._array.shard_spec

        def examine(view: OpenedShard, entries: Any) -> ShardLayout:
            return shard_layout(spec, entries, view.nbytes, view.range)

        return read_indexes(
            spec,
            shards,
            replace(self._options, threads=n_threads),
            monitor,
            are_near=self._array.store.is_near,
            memory=max(1, self._memory * n_threads // self.n_threads),
            examine=examine,
        )
