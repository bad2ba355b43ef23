# conftest.py - the files of a conversion that is run as a job, and the workers of dask
# SPDX-License-Identifier: MIT

from __future__ import annotations

from contextlib import ExitStack
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


# The cluster that all tests of dask share, while it is open.
_cluster = ExitStack()
_clients: list[Any] = []


@pytest.fixture
def client() -> Any:
    """Two worker processes of one thread each, which the tests of all `test_dask*.py` share."""
    pytest.importorskip("distributed", reason="distributed is not installed")
    from dask_clusters import two_workers

    if not _clients:
        _clients.append(_cluster.enter_context(two_workers()))
    _clients[0].wait_for_workers(2)  # an earlier test may have killed one
    return _clients[0]


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End the cluster before a test without dask, which may count the threads and the children of this process."""
    if nextitem is None or not nextitem.path.name.startswith("test_dask"):
        _clients.clear()
        _cluster.close()


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task of dask has one shard, or one group of shards."""
    monkeypatch.setattr(batches, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(batches, "TARGET_SECONDS", 0.0)
