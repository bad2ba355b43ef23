# test_random_arrays.py - random arrays by all ways of access, with zarr's own pipeline as the twin
# SPDX-License-Identifier: MIT
"""Elements of all data types, filters, fill values and chunks are those of zarr, bit by bit. `tests/random_arrays.py` is also a program."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from random_arrays import check


@pytest.mark.parametrize("seed", range(6))
def test_random_array(seed: int, tmp_path: Path) -> None:
    assert [each for each in check(tmp_path, f"fixed-{seed}") if not each.startswith("SKIP")] == []


@pytest.mark.nightly
def test_many_random_arrays(tmp_path: Path) -> None:
    """Repeat the examples of a run with its SEED."""
    seed = os.environ.get("SEED", "0")
    found = [each for number in range(300) for each in check(tmp_path / str(number), f"{seed}-{number}")]
    wrong = [each for each in found if not each.startswith("SKIP")]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:40])
