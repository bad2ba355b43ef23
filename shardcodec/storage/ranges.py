# ranges.py - which ranges of an object are asked for together
# SPDX-License-Identifier: MIT
"""Coalescing: fewer requests, or fewer bytes.

Ranges that one request has asked for together cost the bytes between them. Requests that are under way at the same time
share a round trip, so to have asked for two ranges by one request saves much less than a round trip; what it costs is
paid in full:

    time  ~  round trips x latency  +  (bytes wanted + bytes in vain) / bandwidth

So the narrowest gaps are closed first, and no more of them than keep the bytes in vain within a tenth of those wanted,
or within what one round trip of the call is worth (`Limits.max_gap_nbytes`) where that is more: a small read takes the
fewest requests, a plane across a large array not many times its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from .requests import Limits

__all__ = ["coalesced"]

# Bytes in vain, as a part of those wanted: one in so many.
WANTED_PER_VAIN = 10


def coalesced(ranges: Sequence[tuple[int, int]], limits: Limits, n_objects: int = 1) -> list[tuple[int, int]]:
    """Merge ranges of one object.

    Parameters
    ----------
    ranges : sequence of (offset, nbytes)
        In the order of their offsets.
    limits : Limits
        No gap wider than ``max_gap_nbytes`` is closed, one up to ``free_gap_nbytes`` always, as long as what becomes of it
        is no longer than ``max_nbytes``.
    n_objects : int
        Objects that the call reads.

    Returns
    -------
    list of (offset, nbytes)
        In the same order.
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
    """Positions of the gaps that are worth closing."""
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
