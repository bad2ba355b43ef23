# plugin.py - the pytest plug-in of run.py
# SPDX-License-Identifier: MIT
"""Skip tests of Zarr v2 in the short set, check that the pipeline is in use, and report which tests fail."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import zarr.registry
from xarray.backends import plugins
from xarray.backends.common import BACKEND_ENTRYPOINTS
from xarray.backends.zarr import ZarrBackendEntrypoint

SETTINGS: dict[str, Any] = json.loads(os.environ["SHARDCODEC_XARRAY_SUITE"])
FAILED: list[str] = []


def pytest_configure(config: pytest.Config) -> None:
    cls = zarr.registry.get_pipeline_class()
    is_ours = f"{cls.__module__}.{cls.__qualname__}" == "shardcodec.ShardCodecPipeline"
    if is_ours != (SETTINGS["pipeline"] is not None):
        raise pytest.UsageError(f"the pipeline is {cls}")
    if SETTINGS["engine"] is not None:
        _replace_engine(SETTINGS["engine"])


def _replace_engine(name: str) -> None:
    """Make `engine="zarr"`, `open_zarr` and so all tests use another class."""
    module, _, cls = name.partition(":")
    backend = type(cls, (getattr(importlib.import_module(module), cls),), {})
    backend.guess_can_open = (
        ZarrBackendEntrypoint.guess_can_open
    )  # ours leaves paths without `engine` to xarray's
    BACKEND_ENTRYPOINTS["zarr"] = ("zarr", backend)
    plugins.refresh_engines()
    if not isinstance(plugins.get_backend("zarr"), backend):
        raise pytest.UsageError(f"the engine zarr is {plugins.get_backend('zarr')}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests of the Zarr v2 format in the short set: they use arrays in the same way as those of v3."""
    if SETTINGS["every_format"]:
        return
    left = [item for item in items if _format_of(item) == 2]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if _format_of(item) != 2]


def _format_of(item: pytest.Item) -> Any:
    callspec = getattr(item, "callspec", None)
    params = {} if callspec is None else callspec.params
    return params.get("zarr_format", params.get("default_zarr_format"))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed and report.nodeid not in FAILED:
        FAILED.append(report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # a worker of pytest-xdist
        Path(SETTINGS["report"]).write_text(json.dumps(FAILED))
