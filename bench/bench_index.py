# bench_index.py - how long does it take to understand the index of a shard?
# SPDX-License-Identifier: MIT
"""Decode and check an index, and search overlaps and gaps; compared with numpy in the same run.

Parameters
----------
n
    Inner chunks of the shard: 64, 4096, and a million (an index of 16 MB, larger than any second-level cache).
order
    Order of the inner chunks in the file. "C": offsets ascend, so nothing needs to be sorted. "Morton": the order that
    zarr and shardcodec write. "shuffled": the order after many updates.

How to read the results: decoding 64 entries is mostly the cost of a call from Python. The numpy versions do the same
work in as few passes as we found.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from shardcodec import _native as native

Entries = npt.NDArray[np.uint64]

SIZES = [64, 4096, 1_000_000]
GRIDS = {64: (4, 4, 4), 4096: (16, 16, 16), 1_000_000: (100, 100, 100)}
CHUNK_NBYTES = 65536


class Shard(NamedTuple):
    """An index at the end, without a checksum, of inner chunks of equal size side by side."""

    entries: Entries

    @property
    def extent(self) -> tuple[int, int, int]:
        """Return the size of the shard, and offset and size of the index."""
        data = len(self.entries) * CHUNK_NBYTES
        return data + self.entries.nbytes, data, self.entries.nbytes


def shard_of(n: int, order: str) -> Shard:
    sequence = np.arange(n, dtype=np.uint64)
    if order == "Morton":
        assert native.order(sequence, GRIDS[n]) == n == math.prod(GRIDS[n])
    elif order == "shuffled":
        sequence = np.random.default_rng(n).permutation(sequence)
    entries = np.empty((n, 2), dtype=np.uint64)
    entries[sequence, 0] = np.arange(n, dtype=np.uint64) * np.uint64(CHUNK_NBYTES)
    entries[:, 1] = CHUNK_NBYTES
    return Shard(entries)


def finish(benchmark: Any, group: str, entries: Entries, run: Any) -> None:
    benchmark.group = group
    benchmark.extra_info["bytes"] = entries.nbytes
    benchmark(run)


# ---- decode


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("byte_order", ["<", ">"], ids=["little", "big"])
@pytest.mark.parametrize("peer", ["shardcodec", "numpy"])
def bench_decode(benchmark: Any, peer: str, byte_order: str, n: int) -> None:
    """Decode stored bytes into memory that exists."""
    entries = shard_of(n, "C").entries
    stored = entries.astype(f"{byte_order}u8").tobytes()
    out = np.zeros_like(entries)

    def numpy_decode() -> None:
        out[...] = np.frombuffer(stored, f"{byte_order}u8").reshape(-1, 2)

    native_decode = partial(native.index_decode, stored, out, big_endian=byte_order == ">")
    run = native_decode if peer == "shardcodec" else numpy_decode
    run()
    assert (out == entries).all()
    finish(benchmark, f"decode {'little' if byte_order == '<' else 'big'} {n}", entries, run)


# ---- check


def numpy_check(shard: Shard) -> bool:
    """Check with numpy that each entry is absent, or lies in the shard and not in the index; no sum overflows."""
    offset, nbytes = shard.entries[:, 0], shard.entries[:, 1]
    shard_nbytes, index_offset, index_nbytes = map(np.uint64, shard.extent)
    none = np.uint64(2**64 - 1)
    absent = (offset == none) & (nbytes == none)
    inside = (nbytes <= shard_nbytes) & (offset <= shard_nbytes - np.minimum(nbytes, shard_nbytes))
    after = offset >= index_offset + index_nbytes
    before = (offset <= index_offset) & (nbytes <= index_offset - np.minimum(offset, index_offset))
    return bool((absent | inside & (before | after)).all())


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("peer", ["shardcodec", "numpy"])
def bench_check(benchmark: Any, peer: str, n: int) -> None:
    shard = shard_of(n, "Morton")
    native.index_check(shard.entries, *shard.extent)
    assert numpy_check(shard)
    bad = Shard(shard.entries.copy())
    bad.entries[-1] = 5, 2**64 - 1
    assert not numpy_check(bad)
    native_check = partial(native.index_check, shard.entries, *shard.extent)
    run = native_check if peer == "shardcodec" else partial(numpy_check, shard)
    finish(benchmark, f"check {n}", shard.entries, run)


# ---- overlaps, gaps


def numpy_overlaps(entries: Entries) -> int:
    """Count with numpy the ranges that begin before the end of an earlier one."""
    present = entries[(entries[:, 1] != 0) & (entries[:, 0] != np.uint64(2**64 - 1))]
    present = present[np.argsort(present[:, 0], kind="stable")]
    ends = np.maximum.accumulate(present.sum(axis=1, dtype=np.uint64))
    return int((present[1:, 0] < ends[:-1]).sum())


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("order", ["C", "Morton", "shuffled"])
@pytest.mark.parametrize("peer", ["shardcodec", "numpy"])
def bench_overlaps(benchmark: Any, peer: str, order: str, n: int) -> None:
    """Find overlaps; sorting takes most of the time."""
    entries = shard_of(n, order).entries
    spoilt = entries.copy()
    spoilt[n // 2, 0] -= np.uint64(1 if spoilt[n // 2, 0] else 0)
    assert native.index_overlaps(spoilt)[1] == numpy_overlaps(spoilt)
    native_overlaps = partial(native.index_overlaps, entries)
    run = native_overlaps if peer == "shardcodec" else partial(numpy_overlaps, entries)
    finish(benchmark, f"overlaps {order} {n}", entries, run)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("order", ["C", "Morton", "shuffled"])
def bench_gaps(benchmark: Any, order: str, n: int) -> None:
    """Find the bytes that no entry refers to, as `repair` and `compact` do."""
    shard = shard_of(n, order)
    assert native.index_gaps(shard.entries, *shard.extent) == ([], 0)
    finish(benchmark, f"gaps {n}", shard.entries, partial(native.index_gaps, shard.entries, *shard.extent))
