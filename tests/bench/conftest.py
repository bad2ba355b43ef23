# conftest.py - the modules of bench/, which are programs in a folder and no package
# SPDX-License-Identifier: MIT

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Return a function that imports a module of bench/; afterwards no such module stays."""
    monkeypatch.setenv("RAYON_NUM_THREADS", "2")  # peers.py would set it for all later tests
    monkeypatch.syspath_prepend(BENCH)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file and Path(file).is_relative_to(BENCH):
            del sys.modules[name]
