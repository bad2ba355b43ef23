# ranges.py - which ranges of an object share a request
# SPDX-License-Identifier: MIT
"""Coalescing: fewer requests, or fewer bytes. All ways to read a shard merge ranges here.

A request for several ranges also transfers the bytes between them. Concurrent requests share a round trip, so merging two
ranges saves much less than a round trip, but the extra bytes cost their full time:

    time  ~  round trips x latency  +  (requested + extra bytes) / bandwidth

So the narrowest gaps are closed first, while the extra bytes stay within a tenth of the requested bytes, or within the value
of one round trip of the call (`Limits.max_gap_nbytes`) if that is more. A small read then needs the fewest requests, and a
plane across a large array does not transfer many times its bytes.

The native plan of a read (`sc_plan_ranges`) closes the free gaps before: there may be a million inner chunks, and the few
ranges that are left are compared here, because only the sorted gaps of all of them show which ones are worth a round trip.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

from .budget import Limits

__all__ = ["coalesced", "cut_out"]

# Offset and size in bytes.
Range = tuple[int, int]

# Wanted bytes per extra byte.
WANTED_PER_VAIN = 10


def coalesced(ranges: Iterable[Range], limits: Limits, n_objects: int = 1) -> list[Range]:
    """Merge ranges of one object, in any order; they may overlap. The result ascends.

    Gaps wider than ``max_gap_nbytes`` of the limits stay open; gaps up to ``free_gap_nbytes`` are always closed. No merged
    range exceeds ``max_nbytes``. Each given range lies in the last merged one that begins at its offset or before. n_objects:
    those that the call reads.
    """
    ordered = sorted(ranges)
    ends = list(itertools.accumulate((offset + nbytes for offset, nbytes in ordered), max))
    gaps = [
        offset - end for (offset, _), end in zip(ordered[1:], ends, strict=False)
    ]  # negative in an overlap
    closed = _closed(gaps, sum(nbytes for _, nbytes in ordered), limits, n_objects)
    merged = ordered[:1]
    for i, (offset, nbytes) in enumerate(ordered[1:]):
        first, size = merged[-1]
        end = max(first + size, offset + nbytes)
        if end == first + size or (i in closed and end - first <= limits.max_nbytes):
            merged[-1] = first, end - first
        else:
            merged.append((offset, nbytes))
    return merged


def cut_out(ranges: Iterable[Range], merged: Sequence[Range], data: Sequence[Any]) -> list[Any]:
    """Return the bytes of each range; `merged` are those of `coalesced` for them, and `data` has their bytes.

    A range without bytes need not be one of those that were merged.
    """
    firsts = [offset for offset, _ in merged]
    pieces = []
    for offset, nbytes in ranges:
        which = bisect.bisect_right(firsts, offset) - 1
        start = offset - firsts[which] if nbytes else 0
        pieces.append(data[which][start : start + nbytes] if nbytes else b"")
    return pieces


def _closed(gaps: Sequence[int], n_wanted: int, limits: Limits, n_objects: int) -> set[int]:
    """Return the positions of the gaps to close."""
    allowance = max(limits.share_nbytes(n_objects), n_wanted // WANTED_PER_VAIN)
    closed = set()
    for i in sorted(range(len(gaps)), key=gaps.__getitem__):
        if gaps[i] > limits.max_gap_nbytes:
            break
        if gaps[i] > limits.free_gap_nbytes:
            allowance -= gaps[i]
            if allowance < 0:
                break
        closed.add(i)
    return closed
