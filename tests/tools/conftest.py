# conftest.py - the files of a conversion that is run as a job
# SPDX-License-Identifier: MIT

from __future__ import annotations

from pathlib import Path

import pytest
from job_files import source_array


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return source_array(tmp_path / "a.zarr")


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "b.zarr"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job.json"
