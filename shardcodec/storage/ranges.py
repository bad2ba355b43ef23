# ranges.py - coalescing of the ranges of an object
# SPDX-License-Identifier: MIT
"""Coalescing: fewer requests, or fewer bytes.

A request for several ranges also transfers the bytes between them. Concurrent requests share a round trip, so merging two
ranges saves much less than a round trip, but the extra bytes cost their full time:

    time  ~  round trips x latency  +  (bytes wanted + extra bytes) / bandwidth

So the narrowest gaps are closed first, while the extra bytes stay within a tenth of the wanted bytes, or within the value
of one round trip of the call (`Limits.max_gap_nbytes`) if that is more. A small read then needs the fewest requests, and a
plane across a large array does not transfer many times its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .store import Limits

__all__ = ["coalesced"]

# Wanted bytes per extra byte.
WANTED_PER_VAIN = 10


def coalesced(ranges: Sequence[tuple[int, int]], limits: Limits, n_objects: int = 1) -> list[tuple[int, int]]:
    """Merge ranges of one object.

    Parameters
    ----------
    ranges : sequence of (offset, nbytes)
        Ranges in ascending order of offset.
    limits : Limits
        Gaps wider than ``max_gap_nbytes`` stay open; gaps up to ``free_gap_nbytes`` are always closed. No merged range
        exceeds ``max_nbytes``.
    n_objects : int
        Number of objects that the call reads.

    Returns
    -------
    list of (offset, nbytes)
        Merged ranges in the same order.
    """
    gaps = [after - offset - nbytes for (offset, nbytes), (after, _) in pairwise(ranges)]
    closed = _closed(gaps, sum(nbytes for _, nbytes in ranges), limits, n_objects)
    merged = list(ranges[:1])
    for i, (offset, nbytes) in enumerate(ranges[1:]):
        first = merged[-1][0]
        if i in closed and offset + nbytes - first <= limits.max_nbytes:
            merged[-1] = first, offset + nbytes - first
        else:
            merged.append((offset, nbytes))
    return merged


def _closed(gaps: Sequence[int], n_wanted: int, limits: Limits, n_objects: int) -> set[int]:
    """Return the positions of the gaps to close."""
    left = max(limits.share_nbytes(n_objects), n_wanted // WANTED_PER_VAIN)
    closed = set()
    for i in sorted(range(len(gaps)), key=gaps.__getitem__):
        if gaps[i] > limits.max_gap_nbytes:
            break
        if gaps[i] > limits.free_gap_nbytes:
            left -= gaps[i]
            if left < 0:
                break
        closed.add(i)
    return closed
