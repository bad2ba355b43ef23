# test_index_arrays.py - index arrays mean the same to TensorStore and to shardcodec
# SPDX-License-Identifier: MIT
"""`oindex` and `vindex` of shards that either one has written, read and written by both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from .cases import CODECS, LAYOUTS, Case
from .peers import US, TensorStore, Zarr

pytestmark = pytest.mark.interop

# TensorStore 0.1.86 refuses bytes -> bytes codecs after sharding_indexed.
REFUSED = ("nested-zstd", "nested-start")
CASES = [case for case in [*LAYOUTS, *CODECS] if case.shape and not case.outer and case.id not in REFUSED]


def orthogonal(case: Case) -> tuple[Any, Any]:
    """Return unordered positions on every second axis, for the other implementations and for NumPy."""
    rng = np.random.default_rng(len(case.id))
    chosen: list[Any] = [
        slice(0, n) if axis % 2 else rng.permutation(n)[: max(1, n // 2)] for axis, n in enumerate(case.shape)
    ]
    axes = zip(chosen, case.shape, strict=True)
    return tuple(chosen), np.ix_(
        *(np.arange(n)[part] if isinstance(part, slice) else part for part, n in axes)
    )


def points(case: Case) -> tuple[Any, Any]:
    """Return unordered elements without repeats."""
    numbers = np.random.default_rng(len(case.id)).permutation(int(np.prod(case.shape)))[:50]
    selection = np.unravel_index(numbers, case.shape)
    return selection, selection


@pytest.mark.skipif(TensorStore().missing() is not None, reason="tensorstore is not installed")
@pytest.mark.parametrize("how", ["oindex", "vindex"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_index_arrays_select_the_same_elements(case: Case, how: str, folder: Path) -> None:
    assert isinstance(US, Zarr)
    theirs = TensorStore()
    expected = case.values()
    selection, in_numpy = orthogonal(case) if how == "oindex" else points(case)
    theirs.write(case.create(folder), case.whole, expected)
    with US._open(folder, "r+") as ours:
        np.testing.assert_array_equal(getattr(ours, how)[selection], expected[in_numpy])
        part = expected[in_numpy][::-1].copy()
        getattr(ours, how)[selection] = part
    expected[in_numpy] = part
    np.testing.assert_array_equal(theirs.read(folder, case.whole), expected)
    view = getattr(theirs._open(folder), how)[selection]
    np.testing.assert_array_equal(view.read().result(), part)
    view.write(part[::-1].copy()).result()
    expected[in_numpy] = part[::-1]
    np.testing.assert_array_equal(US.read(folder, case.whole), expected)
