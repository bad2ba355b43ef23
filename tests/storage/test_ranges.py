# test_ranges.py - which ranges share a request
# SPDX-License-Identifier: MIT
"""`storage.ranges`: the fewest requests for a bounded number of superfluous bytes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardcodec.storage.budget import Limits
from shardcodec.storage.ranges import WANTED_PER_VAIN, coalesced, cut_out

KIB = 1 << 10
Ranges = list[tuple[int, int]]


def apart(sizes: list[int], gaps: list[int]) -> Ranges:
    """Return ranges of these sizes with these gaps between them."""
    starts = itertools.accumulate(
        (nbytes + gap for nbytes, gap in zip(sizes, gaps, strict=False)), initial=100
    )
    return list(zip(starts, sizes, strict=False))


def ends(ranges: Ranges) -> list[int]:
    return [offset + nbytes for offset, nbytes in ranges]


@pytest.mark.parametrize("limits", [Limits(10), Limits(10, max_gap_nbytes=0)])
def test_no_range_and_one_range(limits: Limits) -> None:
    assert coalesced([], limits) == []
    assert coalesced([(7, 0)], limits) == [(7, 0)]


def test_small_read_merges_gaps_worth_a_round_trip() -> None:
    ranges = apart([KIB] * 3, [500 * KIB, 500 * KIB])
    assert coalesced(ranges, Limits(10)) == [(100, 1003 * KIB)]
    # together more than 1 MiB: only the narrower gap is merged
    ranges = apart([KIB] * 3, [500 * KIB, 525 * KIB])
    assert coalesced(ranges, Limits(10)) == [(100, 502 * KIB), ranges[2]]


def test_objects_of_one_call_share_the_allowance_of_a_round_trip() -> None:
    ranges = apart([KIB] * 3, [200 * KIB, 300 * KIB])
    assert len(coalesced(ranges, Limits(10), n_objects=2)) == 1
    assert len(coalesced(ranges, Limits(10), n_objects=3)) == 2
    assert len(coalesced(ranges, Limits(10), n_objects=6)) == 3
    # at least two round trips: the shared allowance is smaller
    assert len(coalesced(ranges, Limits(2), n_objects=6)) == 1


def test_large_read_requests_few_superfluous_bytes() -> None:
    """Every second of 512 inner chunks of 64 KiB."""
    ranges = apart([64 * KIB] * 256, [64 * KIB] * 255)
    merged = coalesced(ranges, Limits(100))
    in_vain = sum(nbytes for _, nbytes in merged) - 256 * 64 * KIB
    assert len(merged) == 256 - 25 and in_vain == 25 * 64 * KIB


def test_any_number_of_narrow_gaps_is_merged() -> None:
    ranges = apart([100] * 1000, [16 * KIB] * 999)
    assert len(coalesced(ranges, Limits(100, max_nbytes=1 << 30))) == 1
    assert len(coalesced(ranges, Limits(100, max_nbytes=1 << 20))) == 16
    wider = apart([100] * 1000, [16 * KIB + 1] * 999)
    assert len(coalesced(wider, Limits(100))) == 1000 - 63


@given(
    st.lists(st.tuples(st.integers(1, 300), st.integers(0, 300)), max_size=20),
    st.builds(
        Limits,
        n_requests=st.integers(1, 8),
        max_gap_nbytes=st.integers(0, 400),
        max_nbytes=st.sampled_from([300, 1 << 40]),
        free_gap_nbytes=st.integers(0, 50),
    ),
    st.integers(1, 20),
)
def test_merged_ranges_are_minimal(
    sizes_and_gaps: list[tuple[int, int]], limits: Limits, n_objects: int
) -> None:
    sizes, gaps = [size for size, _ in sizes_and_gaps], [gap for _, gap in sizes_and_gaps]
    ranges = apart(sizes, gaps)
    merged = coalesced(ranges, limits, n_objects)
    # runs of ranges, in order: each run starts and ends at a range
    assert set(merged) <= {(a, b - a) for a, b in itertools.product([r[0] for r in ranges], ends(ranges))}
    assert all(any(a <= start and end <= b for a, b in zip([m[0] for m in merged], ends(merged), strict=True))
               for start, end in zip([r[0] for r in ranges], ends(ranges), strict=True))  # fmt: skip
    assert merged == sorted(merged) and len(merged) <= len(ranges)
    assert all(nbytes <= limits.max_nbytes for offset, nbytes in set(merged) - set(ranges))
    starts = {offset for offset, _ in merged}
    closed = [gap for gap, (offset, _) in zip(gaps, ranges[1:], strict=False) if offset not in starts]
    assert all(gap <= limits.max_gap_nbytes for gap in closed)
    most = max(limits.share_nbytes(n_objects), sum(sizes) // WANTED_PER_VAIN)
    in_vain = [gap for gap in closed if gap > limits.free_gap_nbytes]
    assert sum(in_vain) <= most
    if limits.max_nbytes > 300:  # without another bound no more gaps could be merged
        left = [gap for gap, (offset, _) in zip(gaps, ranges[1:], strict=False) if offset in starts]
        assert all(gap > limits.max_gap_nbytes or sum(in_vain) + gap > most for gap in left)


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 60)), max_size=20),
    st.builds(
        Limits, n_requests=st.just(4), max_gap_nbytes=st.integers(0, 100), max_nbytes=st.integers(1, 200)
    ),
)
def test_ranges_in_any_order_are_cut_out_of_the_merged_ones(wanted: Ranges, limits: Limits) -> None:
    """Ranges may overlap, repeat and lie inside of each other."""
    stored = np.random.default_rng(0).bytes(460)
    merged = coalesced([one for one in wanted if one[1]], limits)
    assert merged == sorted(merged)
    data = [stored[offset : offset + nbytes] for offset, nbytes in merged]
    assert cut_out(wanted, merged, data) == [stored[offset : offset + nbytes] for offset, nbytes in wanted]


def test_range_inside_of_another_one_is_never_requested_again() -> None:
    assert coalesced([(0, 100), (20, 5), (0, 100)], Limits(1, max_nbytes=1)) == [(0, 100)]
