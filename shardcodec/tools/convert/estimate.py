# estimate.py - what a conversion costs
# SPDX-License-Identifier: MIT
"""`cost_of`: reads, writes and their price, from shapes and a sample of the stored sizes."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .convert_report import ConvertedArray, Cost
from .plan import PlannedArray
from .source import Ints, SourceArray

__all__ = ["Prices", "array_report", "cost_of"]

# Objects whose sizes are looked up for an estimate.
SAMPLE_OBJECTS = 64


@dataclass(frozen=True)
class Prices:
    """Prices of 1,000 requests.

    Parameters
    ----------
    get, put : float
        Of reads and of writes.
    """

    get: float
    put: float


def cost_of(source: SourceArray, array: PlannedArray, prices: Prices | None) -> Cost:
    """Estimate the cost of one array."""
    sample = source.object_nbytes(SAMPLE_OBJECTS)
    objects = source.objects_shape
    n_objects = 1
    stored = None
    if objects is not None:
        n_objects = math.prod(-(-n // size) for n, size in zip(source.shape, objects, strict=True))
        if sample is not None and sample[0]:
            stored = int(sample[1] / sample[0] * n_objects)
    n_reads = _n_reads(source, array, objects or source.shape)
    read_nbytes = None if stored is None else int(stored * array.amplification)
    # inner chunks that are moved keep their size; those that are encoded again are expected to compress as before
    index = 16 * math.prod(a // b for a, b in zip(array.shard_shape, array.chunk_shape, strict=True)) + 4
    write_nbytes = None if stored is None else stored + index * array.n_shards
    price = None
    if prices is not None:
        price = (n_reads * prices.get + array.n_shards * prices.put) / 1000
    return Cost(
        n_reads, array.n_shards, read_nbytes, write_nbytes, array.amplification, array.n_shards, price
    )


def _n_reads(source: SourceArray, array: PlannedArray, objects: Ints) -> int:
    """Return how often an object is read: once for each group, or each piece of a shard, that touches it."""
    total = 1
    for axis, (n, size) in enumerate(zip(source.shape, objects, strict=True)):
        group = array.shards[axis] * array.shard_shape[axis]
        step = array.shard_shape[axis] if array.method == "move" else group
        if array.piece is not None:
            step = array.piece[axis] * array.chunk_shape[axis]
        touched = 0
        for start in range(0, n, group):
            for low in range(start, min(n, start + group), step):
                high = min(n, start + group, low + step)
                touched += -(-high // size) - low // size
        total *= touched
    return total


def array_report(source: SourceArray, array: PlannedArray, cost: Cost | None) -> ConvertedArray:
    """Return the report of one array."""
    return ConvertedArray(
        array.name,
        array.method,
        array.reason,
        source.shape,
        str(source.dtype),
        array.chunk_shape,
        array.shard_shape,
        array.n_shards,
        array.piece is not None,
        cost,
    )
