# array_report.py - the results of inspect
# SPDX-License-Identifier: MIT
"""The results of inspect.

`InspectReport` and its parts: plain records. ``docs/tools.md`` describes the members of the JSON.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .report import Record, Report

__all__ = [
    "ArrayReport",
    "DamagedShard",
    "InspectReport",
    "LayoutRecord",
    "SizeSummary",
    "Sizes",
    "StoredRecord",
]


# ---------------------------------------------------------------- the distribution of many sizes, in little memory
#
# `Sizes` counts sizes in a histogram whose bins are at most 0.2 % wide, so its memory does not grow with their number.

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


# ---------------------------------------------------------------- the results of `inspect`

Ints = tuple[int, ...]


@dataclass(frozen=True)
class LayoutRecord(Record):
    """The metadata of an array.

    Attributes
    ----------
    zarr_format : int
        2 or 3.
    shape : tuple of int
        Shape of the array, in elements.
    dtype : str
        Data type of an element, as numpy names it.
    fill_value : str
        Value of elements that are not stored.
    dimension_names : tuple or None
        Names of the axes, if there are any.
    shard_shape : tuple of int or None
        Shape of a shard, in elements; None if the array is not sharded, or its shards have no common shape.
    chunk_shape : tuple of int or None
        Shape of an inner chunk along the axes of the array, in elements; of a chunk if the array is not sharded. None for a
        rectilinear grid without shards.
    codecs, index_codecs : list of dict
        Codecs of an inner chunk (of a chunk) and of the index, as in the metadata.
    index_location : str or None
        ``"start"`` or ``"end"``.
    index_nbytes : int
        Size of the index of one shard in bytes; 0 without shards.
    grid_sizes : tuple of tuple of int, or None
        Of a rectilinear grid the sizes that its chunks (with shards: its shards) have along each axis, in elements. Such
        chunks have no common shape.
    """

    zarr_format: int
    shape: Ints
    dtype: str
    fill_value: str
    dimension_names: tuple[str | None, ...] | None
    shard_shape: Ints | None
    chunk_shape: Ints | None
    codecs: list[Any]
    index_codecs: list[Any]
    index_location: str | None
    index_nbytes: int
    grid_sizes: tuple[Ints, ...] | None = None


@dataclass(frozen=True)
class StoredRecord(Record):
    """The stored shards of an array. Ranges of bytes are counted for sound shards only.

    Attributes
    ----------
    n_grid_shards, n_shards : int
        Number of shards of the grid, and of those that exist.
    n_grid_chunks, n_chunks : int
        Number of inner chunks of the grid, and of those that exist.
    shards : SizeSummary
        Sizes of the objects in bytes.
    chunks : SizeSummary
        Encoded sizes of the inner chunks in bytes.
    decoded_nbytes : int
        Size of the existing inner chunks without encoding, in bytes; 0 if elements have no fixed size.
    chunk_nbytes, index_nbytes, header_nbytes, footer_nbytes, padding_nbytes, unmarked_nbytes, dead_nbytes : int
        Bytes of the shards by what they hold; their sum is the size of the sound shards. Unmarked: before the first or
        after the last inner chunk, without a mark that says whether they are header, footer or dead.
    ratio : float or None
        ``decoded_nbytes`` divided by the bytes of the inner chunks; None if elements have no fixed size.
    orders : dict of str to int
        Number of shards for each order of inner chunks: ``morton``, ``lexicographic``, ``colexicographic``, ``any``
        (all three agree, such as with one inner chunk) or ``other``.
    alignments : dict of int to int
        Number of shards for each alignment of inner chunks in bytes.
    n_without_index_checksum : int
        Shards whose index has no checksum, so that damage to it may stay unnoticed.
    n_with_header, n_with_footer : int
        Shards with a header, and with a footer.
    n_damaged : int
        Shards whose index or entries are damaged, or that cannot be read.
    n_foreign : int
        Other objects in the folder of the array.
    """

    n_grid_shards: int
    n_shards: int
    n_grid_chunks: int
    n_chunks: int
    shards: SizeSummary
    chunks: SizeSummary
    decoded_nbytes: int
    chunk_nbytes: int
    index_nbytes: int
    header_nbytes: int
    footer_nbytes: int
    padding_nbytes: int
    unmarked_nbytes: int
    dead_nbytes: int
    ratio: float | None
    orders: dict[str, int]
    alignments: dict[int, int]
    n_without_index_checksum: int
    n_with_header: int
    n_with_footer: int
    n_damaged: int
    n_foreign: int


@dataclass(frozen=True)
class DamagedShard(Record):
    """A shard whose index cannot be used.

    Attributes
    ----------
    shard : str
        Its path or key.
    message : str
        What is wrong.
    """

    shard: str
    message: str


@dataclass(frozen=True)
class ArrayReport(Report):
    """The result of `inspect` for one array.

    Attributes
    ----------
    name : str
        Path of the array in the group; empty for the target itself.
    place : str
        Path or URL of the array.
    problem : str or None
        Why its shards cannot be read.
    foreign_codec : str or None
        A codec of the inner chunks that shardcodec does not have.
    layout : LayoutRecord or None
        Its metadata; None if they are invalid.
    stored : StoredRecord or None
        What is stored; None if the array is not sharded or has a problem.
    damaged : list of DamagedShard
        The first damaged shards; ``stored.n_damaged`` counts all.
    foreign : list of str
        The first other objects in the folder; ``stored.n_foreign`` counts all.
    is_complete : bool
        False if the inspection was stopped at a finding.
    """

    schema: ClassVar[str] = "shardcodec.inspect.array"
    schema_version: ClassVar[int] = 1

    name: str
    place: str
    problem: str | None
    foreign_codec: str | None
    layout: LayoutRecord | None
    stored: StoredRecord | None
    damaged: tuple[DamagedShard, ...] = ()
    foreign: tuple[str, ...] = ()
    is_complete: bool = True

    @property
    def n_findings(self) -> int:
        """Number of findings: damaged shards, and 1 if the metadata are invalid."""
        n_damaged = 0 if self.stored is None else self.stored.n_damaged
        return n_damaged + (self.layout is None)


@dataclass(frozen=True)
class InspectReport(Report):
    """The result of `inspect`.

    Parameters
    ----------
    target : str
        The path that was given.
    n_arrays : int
        Number of arrays.
    n_findings : int
        Number of findings in all arrays.
    arrays : tuple of ArrayReport
        One for each array; empty if each was printed on a line of its own.
    """

    schema: ClassVar[str] = "shardcodec.inspect"
    schema_version: ClassVar[int] = 1

    target: str
    n_arrays: int
    n_findings: int
    arrays: tuple[ArrayReport, ...] = ()
