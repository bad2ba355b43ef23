# conftest.py - the files of a conversion that is run as a job, and the workers of dask
# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_files import source_array

from shardcodec.tools.jobs import batches


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return source_array(tmp_path / "a.zarr")


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return tmp_path / "b.zarr"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job.json"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """Two worker processes of one thread each."""
    pytest.importorskip("distributed", reason="distributed is not installed")
    from dask_clusters import two_workers

    with two_workers() as client:
        yield client


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task of dask has one shard, or one group of shards."""
    monkeypatch.setattr(batches, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(batches, "TARGET_SECONDS", 0.0)
