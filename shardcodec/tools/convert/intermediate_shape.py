# intermediate_shape.py - shapes of an intermediate array
# SPDX-License-Identifier: MIT
"""`choose_intermediate`: an array between source and destination whose chunks suit both, so that little is read twice."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from .grouping import Geometry, Grouping, encode_grouping
from .source import Ints

__all__ = ["IntermediateShape", "choose_intermediate"]

# An intermediate array is written and read once, so it pays off from here on.
LEAST_AMPLIFICATION = 3.0
# Bytes that could be read or written in the time that one more chunk costs.
CHUNK_COST_NBYTES = 64 << 10


class IntermediateShape(NamedTuple):
    """The shapes of an inner chunk and of a shard of an intermediate array, in elements.

    `amplification`: bytes that are read from the source, and from the intermediate array, divided by those of the array.
    """

    chunk: Ints
    shard: Ints
    amplification: float


def choose_intermediate(geometry: Geometry, memory: int, direct: Grouping) -> IntermediateShape | None:
    """Return the shapes of an intermediate array; None if it would cost more than it saves against the `direct` grouping."""
    if geometry.source is None or direct.amplification < LEAST_AMPLIFICATION:
        return None
    best: tuple[float, IntermediateShape] | None = None
    for chunk in itertools.product(*_candidates(geometry)):
        try:
            first = encode_grouping(replace(geometry, shard=chunk, chunk=chunk, held_nbytes=0), memory)
            second = encode_grouping(replace(geometry, source=chunk), memory)
        except ValueError:
            continue  # such a chunk does not fit into the memory
        n_chunks = math.prod(-(-n // size) for n, size in zip(geometry.shape, chunk, strict=True))
        amplification = first.amplification + second.amplification
        cost = amplification + 1 + n_chunks * CHUNK_COST_NBYTES / geometry.nbytes(geometry.shape)
        if cost < (best[0] if best else direct.amplification):
            shard = tuple(k * size for k, size in zip(first.shards, chunk, strict=True))
            best = cost, IntermediateShape(chunk, shard, amplification)
    return None if best is None else best[1]


def _candidates(geometry: Geometry) -> Iterator[list[int]]:
    """Yield sizes of a chunk along each axis."""
    assert geometry.source is not None
    for n, source, shard in zip(geometry.shape, geometry.source, geometry.shard, strict=True):
        small = min(source, shard)
        yield sorted({min(n, size) for size in (small, 4 * small, source, shard, math.gcd(source, shard))})
