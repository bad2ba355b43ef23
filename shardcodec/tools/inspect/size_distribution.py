# size_distribution.py - the distribution of many sizes, in little memory
# SPDX-License-Identifier: MIT
"""`Sizes` counts sizes in a histogram whose bins are at most 0.2 % wide, so its memory does not grow with their number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..report import Record

__all__ = ["SizeSummary", "Sizes"]

# A size below 2 * STEPS has a bin of its own. Above, STEPS bins divide the range from each power of two to the next.
BITS = 9
STEPS = 1 << BITS
N_BINS = (65 - BITS) * STEPS


@dataclass(frozen=True)
class SizeSummary(Record):
    """Numbers of bytes: how many, their sum, and percentiles.

    Attributes
    ----------
    n : int
        Number of sizes.
    nbytes : int
        Their sum in bytes.
    min_nbytes, p5_nbytes, p50_nbytes, p95_nbytes, max_nbytes : int or None
        Smallest size, 5th, 50th and 95th percentile (too small by at most 0.2 %), largest size; None without any.
    """

    n: int
    nbytes: int
    min_nbytes: int | None
    p5_nbytes: int | None
    p50_nbytes: int | None
    p95_nbytes: int | None
    max_nbytes: int | None


class Sizes:
    """A collection of sizes; only their distribution is kept."""

    def __init__(self) -> None:
        self._bins = np.zeros(N_BINS, np.int64)
        self._n = 0
        self._sum = 0
        self._low: int | None = None
        self._high: int | None = None

    def add(self, sizes: Any) -> None:
        """Add sizes in bytes, an array of uint64."""
        sizes = np.asarray(sizes, np.uint64).reshape(-1)
        if not len(sizes):
            return
        low, high = int(sizes.min()), int(sizes.max())
        self._n += len(sizes)
        self._sum += int(sizes.sum(dtype=np.uint64))
        self._low = low if self._low is None else min(low, self._low)
        self._high = high if self._high is None else max(high, self._high)
        if low == high:
            self._bins[_bins(sizes[:1])] += len(sizes)
        else:
            np.add.at(self._bins, _bins(sizes), 1)

    def merge(self, other: Sizes) -> None:
        """Add the sizes of another collection."""
        if other._low is None or other._high is None:
            return
        self._n += other._n
        self._sum += other._sum
        self._low = other._low if self._low is None else min(self._low, other._low)
        self._high = other._high if self._high is None else max(self._high, other._high)
        self._bins += other._bins

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the bins that are empty, of which there are some 10,000."""
        used = np.flatnonzero(self._bins)
        return {**vars(self), "_bins": (used, self._bins[used])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        used, counts = state["_bins"]
        self.__dict__ = {**state, "_bins": np.zeros(N_BINS, np.int64)}
        self._bins[used] = counts

    def summary(self) -> SizeSummary:
        """Return the numbers."""
        p5, p50, p95 = (self._percentile(share) for share in (0.05, 0.5, 0.95))
        return SizeSummary(self._n, self._sum, self._low, p5, p50, p95, self._high)

    def _percentile(self, share: float) -> int | None:
        if self._low is None or self._high is None:
            return None
        rank = max(1, -int(-self._n * share // 1))
        at = int(np.searchsorted(np.cumsum(self._bins), rank))
        return min(max(_smallest(at), self._low), self._high)


def _bins(sizes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the bin of each size."""
    shift = np.maximum(_bit_length(sizes) - (BITS + 1), 0)
    found: np.ndarray[Any, Any] = shift * STEPS + (sizes >> shift.astype(np.uint64)).astype(np.int64)
    return found


def _bit_length(sizes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    high = (sizes >> np.uint64(32)).astype(np.float64)
    low = (sizes & np.uint64(0xFFFFFFFF)).astype(np.float64)
    found: np.ndarray[Any, Any] = np.where(high > 0, 32 + np.frexp(high)[1], np.frexp(low)[1]).astype(
        np.int64
    )
    return found


def _smallest(at: int) -> int:
    """Return the smallest size of a bin."""
    if at < 2 * STEPS:
        return at
    shift, rest = divmod(at, STEPS)
    return (STEPS + rest) << (shift - 1)
