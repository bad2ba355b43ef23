# test_live_stream.py - two writers and four readers at the same time
# SPDX-License-Identifier: MIT
"""No reader sees a wrong value or fails, and no process needs more memory as time goes by. `live_actors.py` runs for any time."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from live_actors import READERS, run

pytestmark = pytest.mark.slow

# Memory that allocators and caches may take after the first frames.
MAX_GROWTH = 48 << 20


@pytest.mark.parametrize("seconds", [3, pytest.param(120, marks=pytest.mark.nightly)])
def test_two_writers_and_four_readers(tmp_path: Path, seconds: int) -> None:
    readers = tuple(
        kind for kind in READERS if kind != "tensorstore" or importlib.util.find_spec("tensorstore")
    )
    results = run(tmp_path, seconds, readers)
    assert {kind for kind, *_ in results} == {"writer", *readers}
    for kind, n, early, late in results:
        assert n > 20, (kind, n, early)
        assert not early or late - early < MAX_GROWTH, (kind, early, late)
