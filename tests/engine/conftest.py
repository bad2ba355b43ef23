# conftest.py - fixtures of the tests of the engine
# SPDX-License-Identifier: MIT
"""Fixtures."""

from __future__ import annotations

import pytest
from delays import build_library


@pytest.fixture(scope="module")
def delays(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that delays calls."""
    return build_library(tmp_path_factory.mktemp("delays"))


@pytest.fixture(scope="module")
def held_writes(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The library that records and holds writes."""
    return build_library(tmp_path_factory.mktemp("writes"), "writes")
