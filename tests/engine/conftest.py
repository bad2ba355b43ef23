# conftest.py - fixtures of the tests of the engine
# SPDX-License-Identifier: MIT
"""Fixtures."""

from __future__ import annotations

from pathlib import Path

import pytest
from delays import build_library
from helpers import create

from shardcodec import native


@pytest.fixture(autouse=True)
def _unknown_latencies() -> None:
    """Forget how long calls have taken in other tests: with a sanitizer a local disk may seem slow, and shards are read whole."""
    native.load().reset_latencies()


@pytest.fixture(scope="module")
def held_writes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that records and holds writes."""
    return build_library(tmp_path_factory.mktemp("writes"), "writes")


@pytest.fixture
def missing_shards(tmp_path: Path) -> Path:
    """The folder of an array of 40 shards, none of which exists; not even their folder does."""
    create(tmp_path / "a", shape=(40, 8), dtype="u1", shards=(1, 8), chunks=(1, 4), fill_value=0)
    return tmp_path / "a"
