# cost.py - what a conversion costs
# SPDX-License-Identifier: MIT
"""`array_reports`: the reports of the arrays of a plan, with reads and writes from shapes and a sample of the stored sizes."""

from __future__ import annotations

import math

from ...arguments import shortened
from .grouping import parts_of_axis
from .layout import codec_notes, has_shards
from .plan import ConvertPlan, PlannedArray
from .report import ConvertedArray, Cost
from .source import Ints, SourceArray, SourceTree

__all__ = ["array_reports"]

# Objects whose sizes are looked up for an estimate.
SAMPLE_OBJECTS = 64


def _cost_of(source: SourceArray, array: PlannedArray) -> Cost:
    """Estimate the cost of one array."""
    sample = source.object_nbytes(SAMPLE_OBJECTS)
    objects = source.objects_shape
    stored = None
    if objects is not None and sample is not None:
        stored = int(sample[1] / max(1, sample[0]) * sample[2])
    n_reads, n_writes = _n_requests(source.shape, array, objects or source.shape)
    n_shards = array.n_shards
    touched = None if source.stored is None or not source.shape else source.stored.touched(array.shard_shape)
    if touched is not None and source.stored is not None and source.stored.coords is not None:
        n_shards = len(touched)
        n_reads = -(-n_reads * len(source.stored.coords) // source.stored.n_grid)
        n_writes = -(-n_writes * n_shards // max(1, array.n_shards))
    read_nbytes = None if stored is None else int(stored * array.amplification)
    # inner chunks that are moved keep their size; those that are encoded again are expected to compress as before
    index = 16 * math.prod(a // b for a, b in zip(array.shard_shape, array.chunk_shape, strict=True)) + 4
    write_nbytes = None
    if stored is not None:
        write_nbytes = (1 if array.via is None else 2) * stored + index * n_shards
    return Cost(n_reads, n_writes, read_nbytes, write_nbytes, array.amplification, n_shards)


def _n_requests(shape: Ints, array: PlannedArray, objects: Ints) -> tuple[int, int]:
    """Return how often an object is read and written."""
    grouping = array.grouping
    group = tuple(k * size for k, size in zip(grouping.shards, array.shard_shape, strict=True))
    step = group if array.layout.method == "encode" else array.shard_shape
    if grouping.piece is not None:
        step = tuple(k * size for k, size in zip(grouping.piece, array.chunk_shape, strict=True))
    if array.via is None:
        return _n_reads(shape, objects, group, step), array.n_shards
    via = array.via.shard
    n_reads = _n_reads(shape, objects, via, via) + _n_reads(shape, via, group, step)
    n_via = math.prod(-(-n // size) for n, size in zip(shape, via, strict=True))
    return n_reads, n_via + array.n_shards


def _n_reads(shape: Ints, objects: Ints, groups: Ints, steps: Ints) -> int:
    """Return how often an object is read: once for each group, or each part of a group, that touches it."""
    total = 1
    for n, size, group, step in zip(shape, objects, groups, steps, strict=True):
        low, high = parts_of_axis(n, group, step)
        total *= int((-(-high // size) - low // size).sum())
    return total


def array_reports(plan: ConvertPlan, tree: SourceTree, *, has_cost: bool) -> list[ConvertedArray]:
    """Return the reports of all arrays, those that are copied object by object last."""
    reports = [
        _array_report(source, array, _cost_of(source, array) if has_cost else None)
        for source, array in zip(tree.arrays, plan.arrays, strict=True)
    ]
    for name, copied in tree.verbatim.items():
        shape = () if copied.layout is None else copied.layout.shape
        dtype = shortened(str(copied.document.get("data_type")))
        reason = copied.problem or "shardcodec does not have the data type"
        reports.append(
            ConvertedArray(
                name, "copy", reason, shape, dtype, (), (), 0, False, kept="it is copied object by object"
            )
        )
    return reports


def _array_report(source: SourceArray, array: PlannedArray, cost: Cost | None) -> ConvertedArray:
    layout = array.layout
    kept = (f"the array keeps its layout: {layout.kept}",) if layout.kept else ()
    return ConvertedArray(
        array.name,
        layout.method,
        layout.reason,
        source.shape,
        source.data_type,
        array.chunk_shape,
        array.shard_shape if has_shards(layout.document) else (),
        array.n_shards,
        array.grouping.piece is not None,
        None if array.via is None else array.via.chunk,
        cost,
        (*kept, *source.notes, *codec_notes(source, layout.document)),
        source.chunks,
        source.shard_shape,
        layout.kept,
    )
