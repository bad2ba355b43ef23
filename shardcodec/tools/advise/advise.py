# advise.py - shapes of shards and inner chunks for the way an array is read
# SPDX-License-Identifier: MIT
"""`advise`: proposals for the shapes of shards and inner chunks, from arithmetic over patterns of access.

The inner chunk is chosen first. A candidate has along each axis a power of two, or the whole axis, and a size near the
target. Its cost is the bytes that the patterns read, with a surcharge for each request. The shard is then the number of
inner chunks along each axis for which the patterns touch the fewest shards, within the bounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...arguments import checked, show
from ...readable import format_nbytes
from .access_pattern import AccessPattern
from .report import AccessCost, AdviseReport, Bounds, Proposal

__all__ = ["advise"]


Ints = tuple[int, ...]

# The cost of a request in addition to its bytes: the bytes that a service sends in the time of one answer.
REQUEST_NBYTES = 1 << 20
# Inner chunks may be smaller or larger than the target by these factors.
SMALLEST, LARGEST = 0.25, 2.0
N_PROPOSALS = 3
MAX_CANDIDATES = 200_000


@checked
def advise(
    shape: Sequence[int],
    dtype: Any,
    accesses: Sequence[AccessPattern],
    bounds: Bounds | None = None,
    *,
    present: tuple[Ints, Ints] | None = None,
    chunk_shape: Sequence[int] | None = None,
) -> AdviseReport:
    """Propose shapes of shards and inner chunks.

    Parameters
    ----------
    shape : sequence of int
        Shape of the array, in elements.
    dtype : dtype
        Data type of an element.
    accesses : sequence of AccessPattern
        How the array is read; at least one pattern.
    bounds : Bounds, optional
        Target sizes and limits.
    present : tuple of two tuples of int, optional
        Shapes of the inner chunks and of the shards that the array has now, for comparison.
    chunk_shape : sequence of int, optional
        Shape of an inner chunk that is given; only the shards are proposed.

    Returns
    -------
    AdviseReport

    Raises
    ------
    ValueError
        No pattern is given, the array has no elements, or the bounds exclude all shapes.

    Examples
    --------
    >>> planes = tools.parse_access("1,:,:", (1000, 512, 512))
    >>> best = tools.advise((1000, 512, 512), "uint16", [planes]).proposals[0]
    >>> best.chunk_shape, best.shard_shape, best.n_files
    ((1, 512, 512), (1000, 512, 512), 1)
    """
    shape, bounds = tuple(int(n) for n in shape), bounds or Bounds()
    bounds.check()
    try:
        itemsize = np.dtype(dtype).itemsize
    except TypeError as error:
        raise TypeError(f"dtype: expected a data type, got {show(dtype)}: {error}") from None
    if not shape or min(shape) < 1 or not accesses:
        raise ValueError(
            f"shape, accesses: expected an array with elements and at least one access, got shape {shape} and "
            f"{len(accesses)} accesses"
        )
    _check_bounds(shape, itemsize, bounds)
    proposals: list[Proposal] = []
    costs: set[float] = set()
    chunks = _chunk_shapes(shape, itemsize, accesses, bounds) if chunk_shape is None else [tuple(chunk_shape)]
    for chunk in chunks:
        shard = _shard_shape(shape, chunk, itemsize, accesses, bounds)
        if shard is None:
            continue
        proposal = _proposal(shape, chunk, shard, itemsize, accesses, bounds)
        cost = float(f"{proposal.cost_nbytes:.4g}")
        if cost not in costs:  # the first of equal proposals, such as with two axes exchanged
            costs.add(cost)
            proposals.append(proposal)
        if len(proposals) == N_PROPOSALS:
            break
    if not proposals:
        raise ValueError(
            f"no shapes fit: expected at most {bounds.max_files} shards of at most {format_nbytes(bounds.largest_shard)}; "
            "change max_files, shard_nbytes or memory"
        )
    proposals.sort(key=lambda proposal: proposal.cost_nbytes)
    now = None if present is None else _proposal(shape, *present, itemsize, accesses, bounds)
    return AdviseReport(shape, str(np.dtype(dtype)), bounds, now, tuple(proposals))


def _check_bounds(shape: Ints, itemsize: int, bounds: Bounds) -> None:
    """Raise `ValueError` if `max_files` shards cannot hold the array."""
    total = math.prod(shape) * itemsize
    if bounds.max_files is not None and bounds.max_files * bounds.largest_shard < total:
        raise ValueError(
            f"max_files: expected at least {-(-total // bounds.largest_shard)} shards of at most "
            f"{format_nbytes(bounds.largest_shard)} (shard_nbytes and memory) for {format_nbytes(total)}, got {bounds.max_files}; "
            "allow more shards or larger ones"
        )


def _chunk_shapes(
    shape: Ints, itemsize: int, accesses: Sequence[AccessPattern], bounds: Bounds
) -> Iterator[Ints]:
    """Yield shapes of inner chunks, the cheapest first."""
    candidates = _candidates(shape)
    nbytes = candidates.prod(axis=1) * itemsize
    target = min(bounds.chunk_nbytes, math.prod(shape) * itemsize, bounds.largest_shard)
    fits = (nbytes >= SMALLEST * target) & (nbytes <= min(LARGEST * target, bounds.largest_shard))
    candidates, nbytes = candidates[fits], nbytes[fits]
    costs = np.zeros(len(candidates))
    for access in accesses:
        n = access.touched(shape, candidates)
        costs += access.weight * n * (nbytes + REQUEST_NBYTES)
    # of equal costs, the size nearest to the target, then the most compact shape
    order = np.lexsort((candidates.sum(axis=1), np.abs(np.log(nbytes / target)), np.round(costs, -3)))
    for at in order.tolist():
        yield tuple(candidates[at].tolist())


def _candidates(shape: Ints) -> np.ndarray[Any, Any]:
    """Return all shapes of powers of two and whole axes; if there are very many, with fewer powers."""
    for step in itertools.count(1):
        axes = [sorted({*(2**k for k in range(0, n.bit_length(), step) if 2**k < n), n}) for n in shape]
        if math.prod(map(len, axes)) <= MAX_CANDIDATES:
            break
    grids = np.meshgrid(*axes, indexing="ij")
    return np.stack([grid.reshape(-1) for grid in grids], axis=1)


def _shard_shape(
    shape: Ints, chunk: Ints, itemsize: int, accesses: Sequence[AccessPattern], bounds: Bounds
) -> Ints | None:
    """Return the shape of a shard of such inner chunks; None if the bounds exclude all."""
    counts = _candidates(tuple(-(-n // size) for n, size in zip(shape, chunk, strict=True)))
    shards = counts * np.array(chunk)
    n_files = np.prod([-(-n // shards[:, axis]) for axis, n in enumerate(shape)], axis=0)
    fits = shards.astype(float).prod(axis=1) * itemsize <= bounds.largest_shard
    if bounds.max_files is not None:
        fits &= n_files <= bounds.max_files
    shards, n_files = shards[fits], n_files[fits]
    if not len(shards):
        return None
    touched = np.zeros(len(shards))
    for access in accesses:
        touched += access.weight * access.touched(shape, shards)
    # fewest shards for each access, then fewest files
    best = np.lexsort((n_files, np.round(touched, 6)))[0]
    return tuple(shards[best].tolist())


def _proposal(
    shape: Ints,
    chunk: Ints,
    shard: Ints,
    itemsize: int,
    accesses: Sequence[AccessPattern],
    bounds: Bounds,
) -> Proposal:
    chunk_nbytes, shard_nbytes = math.prod(chunk) * itemsize, math.prod(shard) * itemsize
    costs = tuple(_cost(access, shape, chunk, shard, itemsize) for access in accesses)
    weights = sum(access.weight for access in accesses)
    mean = sum(
        access.weight * (cost.read_nbytes + REQUEST_NBYTES * cost.n_requests)
        for access, cost in zip(accesses, costs, strict=True)
    )
    n_chunks = math.prod(-(-n // size) for n, size in zip(shard, chunk, strict=True))
    return Proposal(
        chunk,
        shard,
        chunk_nbytes,
        shard_nbytes,
        math.prod(-(-n // size) for n, size in zip(shape, shard, strict=True)),
        n_chunks,
        16 * n_chunks + 4,
        2 * shard_nbytes,
        costs,
        mean / weights,
    )


def _cost(access: AccessPattern, shape: Ints, chunk: Ints, shard: Ints, itemsize: int) -> AccessCost:
    n_chunks, n_shards = float(access.touched(shape, chunk)), float(access.touched(shape, shard))
    decoded = n_chunks * math.prod(chunk)
    return AccessCost(
        access.text,
        n_chunks,
        n_shards,
        n_chunks + n_shards,
        decoded * itemsize,
        min(1.0, access.n_elements / decoded),
        (access.n_elements + math.prod(chunk)) * itemsize * 1.0,
    )
