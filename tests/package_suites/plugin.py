# plugin.py - the pytest plug-in of run.py
# SPDX-License-Identifier: MIT
"""Check that the pipeline is in use, and report which tests fail."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import zarr.registry

SETTINGS: dict[str, Any] = json.loads(os.environ["SHARDCODEC_PACKAGE_SUITE"])
FAILED: list[str] = []
PASSED: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    cls = zarr.registry.get_pipeline_class()
    is_ours = f"{cls.__module__}.{cls.__qualname__}" == "shardcodec.ShardCodecPipeline"
    if is_ours != (SETTINGS["pipeline"] is not None):
        raise pytest.UsageError(f"the pipeline is {cls}")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and report.nodeid not in FAILED:
        FAILED.append(report.nodeid)
    elif report.passed and report.when == "call":
        PASSED.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # a worker of pytest-xdist
        found = {"failed": FAILED, "n_passed": len(PASSED)}
        Path(SETTINGS["report"]).write_text(json.dumps(found))
