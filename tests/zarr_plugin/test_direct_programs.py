# test_direct_programs.py - random programs on two equal arrays, one of them with the option `direct`
# SPDX-License-Identifier: MIT
"""Results, errors, warnings and stored objects are equal after each step; planted faults are found.

`tests/direct_programs.py` is also a program for longer runs.
"""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from direct_programs import check

import shardcodec
from shardcodec.zarr_plugin.direct_access import DirectAccess

Change = Callable[[Any], Any]


def check_programs(seed: str, count: int) -> None:
    kinds: Counter[str] = Counter()
    hits = shardcodec.stats()["chunk_hits"]
    wrong = [found for number in range(count) if (found := check(seed, number, kinds))]
    assert shardcodec.stats()["chunk_hits"] > hits, "one of both arrays has a cache of inner chunks"
    assert {"read", "write", "group", "threads", "open"} <= set(kinds)
    assert not wrong, f"{len(wrong)} of {count}:\n" + "\n".join(wrong[:40])


def test_random_programs() -> None:
    """Random examples are repeated with the SEED of their run."""
    is_random = os.environ.get("HYPOTHESIS_PROFILE") in ("random", "long")
    check_programs(os.environ.get("SEED", "0") if is_random else "fixed", 40)


@pytest.mark.nightly
@pytest.mark.parametrize("part", range(10))
def test_many_random_programs(part: int) -> None:
    check_programs(f"{os.environ.get('SEED', '0')}-{part}", 100)


def is_found() -> bool:
    """Return True if one of the programs that pass without a fault finds it."""
    return any(check("fixed", number, Counter()) for number in range(40))


def wrong_element(found: Any) -> Any:
    """Change a bit of the first element."""
    if np.asarray(found).dtype.kind not in "iuf" or not np.size(found):
        return found
    raw = bytearray(np.asarray(found).tobytes())
    raw[0] ^= 1
    changed = np.frombuffer(bytes(raw), found.dtype).reshape(np.shape(found))
    return changed.copy(order="F" if np.isfortran(found) else "C") if np.ndim(found) else changed[()]


def other_order(found: Any) -> Any:
    return found.copy(order="C" if np.isfortran(found) else "F") if np.ndim(found) else found


def rank_0(found: Any) -> Any:
    return np.asarray(found) if found is not None and not np.ndim(found) else found


def read_only(found: Any) -> Any:
    if isinstance(found, np.ndarray):
        found.flags.writeable = False
    return found


def swapped(found: Any) -> Any:
    is_number = isinstance(found, np.ndarray) and found.dtype.kind in "iufcmM"
    return found.astype(found.dtype.newbyteorder()) if is_number else found


def warned(found: Any) -> Any:
    warnings.warn("of a read", RuntimeWarning, stacklevel=2)
    return found


@pytest.mark.parametrize("change", [wrong_element, other_order, rank_0, read_only, swapped, warned])
def test_changed_result_is_found(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    own = DirectAccess.read

    def read(self: Any, *arguments: Any, **others: Any) -> Any:
        found = own(self, *arguments, **others)
        return found if found is None else change(found)

    monkeypatch.setattr(DirectAccess, "read", read)
    assert is_found()


def test_read_that_fails_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: Any, *arguments: Any, **others: Any) -> Any:
        raise ValueError("of a read")

    monkeypatch.setattr(DirectAccess, "read", read)
    assert is_found()


def test_write_that_stores_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectAccess, "write", lambda *_, **__: True)
    assert is_found()
