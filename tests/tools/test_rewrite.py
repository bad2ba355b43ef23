# test_rewrite.py - runs of inner chunks that a copy reads together
# SPDX-License-Identifier: MIT
from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardcodec.tools.rewrite import runs

Ranges = list[tuple[int, int]]


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9)), max_size=20),
    st.integers(1, 30),
    st.sampled_from([np.uint64, np.int64]),
)
def test_runs_have_all_ranges_in_order_and_no_gap(
    gaps_and_sizes: Ranges, max_nbytes: int, dtype: type
) -> None:
    at, places = 2**60, []
    for gap, nbytes in gaps_and_sizes:
        places.append((at + max(0, gap - 2), nbytes))  # half of the gaps are empty
        at = sum(places[-1])
    found = list(runs(np.array(places, dtype).reshape(-1, 2), max_nbytes))
    assert [one for run in found for one in places[run]] == places
    for run in found:
        some = places[run]
        assert all(sum(before) == after[0] for before, after in itertools.pairwise(some))
        assert len(some) == 1 or sum(some[-1]) - some[0][0] <= max_nbytes
    for before, after in itertools.pairwise(found):  # none could be longer
        first, last, following = places[before.start], places[before.stop - 1], places[after.start]
        assert sum(last) != following[0] or sum(following) - first[0] > max_nbytes
