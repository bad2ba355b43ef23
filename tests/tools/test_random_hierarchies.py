# test_random_hierarchies.py - random hierarchies through all copies
# SPDX-License-Identifier: MIT
"""500 random hierarchies went through all copies; each difference that no report names is a fault.

Documents that the hierarchy has lost are in its consolidated metadata, or in the copy that `repair` is given: the report must name each of
them. In 920-56 no array that `--exclude` leaves can be converted, in 920-150 the source does not store a chunk that the copy has.
`tests/hierarchy_copies.py` is also a program for longer runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import zarr
from hierarchy_copies import check


@pytest.fixture(autouse=True)
def rectilinear_grids() -> Iterator[None]:
    """Let zarr have rectilinear grids, if it knows them, during a test alone."""
    is_known = "rectilinear_chunks" in zarr.config.get("array")
    with zarr.config.set({"array.rectilinear_chunks": True} if is_known else {}):
        yield


@pytest.mark.parametrize("seed", ["1-1", "a-6", "a-11", "a-31", "920-56", "920-150"])
def test_copies_of_a_random_hierarchy(seed: str, tmp_path: Path) -> None:
    assert check(tmp_path, seed) == []


@pytest.mark.nightly
def test_copies_of_many_random_hierarchies(tmp_path: Path) -> None:
    """Repeat the examples of a run with its SEED."""
    seed = os.environ.get("SEED", "0")
    wrong = [each for number in range(100) for each in check(tmp_path / str(number), f"{seed}-{number}")]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:40])
