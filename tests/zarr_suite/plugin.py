# plugin.py - the pytest side of run.py
# SPDX-License-Identifier: MIT
"""Put a pipeline under zarr's tests, and hold their outcome against `known.toml`.

Loaded with ``-p plugin`` by `run.py`, in every worker of pytest-xdist too. What has to be in place before zarr's
own ``conftest.py`` is imported is done on import; that is why the settings come through the environment.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import zarr
import zarr.codecs.sharding
import zarr.core.codec_pipeline
import zarr.registry
from hypothesis import settings
from packaging.specifiers import SpecifierSet

FUSED = "zarr.core.codec_pipeline.FusedCodecPipeline"
SETTINGS: dict[str, Any] = json.loads(os.environ["SHARDCODEC_SUITE"])
USE = {"read": 0, "write": 0}


def class_at(path: str) -> type:
    """The class with this dotted path."""
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, type)
    return found


def stand_in_for_fused(pipeline: type) -> None:
    """Let zarr's name of its second pipeline lead to the one under test.

    Only the registry is changed: tests that select that pipeline in the configuration get ours, and compare it with
    zarr's first one. Tests that import the class still have zarr's.
    """
    if hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):
        zarr.registry._pipeline_registry[FUSED] = pipeline


def stand_in_for_codec(codec: type) -> None:
    """Let every name of zarr's sharding codec lead to `codec`: `create_array` does not ask the registry."""
    original = zarr.codecs.sharding.ShardingCodec
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "zarr" and getattr(module, "ShardingCodec", None) is original:
            module.ShardingCodec = codec  # type: ignore[attr-defined]


def count_use(pipeline: type, name: str) -> None:
    """Count the calls of one method: a pipeline that is never reached would pass everything."""
    method: Callable[..., Awaitable[Any]] = getattr(pipeline, name)

    @functools.wraps(method)
    async def counted(self: object, *args: Any, **kwargs: Any) -> Any:
        USE[name] += 1
        return await method(self, *args, **kwargs)

    setattr(pipeline, name, counted)


class Known:
    """One entry of `known.toml`."""

    def __init__(self, kind: str, entry: dict[str, Any]) -> None:
        self.id: str = entry["id"]
        self.reason: str = entry["reason"]
        self.used = False
        self._pattern = re.compile(".*".join(map(re.escape, self.id.split("*"))), re.DOTALL)
        mark = pytest.mark.xfail(strict=True) if kind == "failure" else pytest.mark.skip
        self.mark = mark.with_args(reason=self.reason)

    def marks(self, item: pytest.Item) -> bool:
        """Mark `item` if this entry speaks about it."""
        if not self._pattern.fullmatch(item.nodeid):
            return False
        item.add_marker(self.mark)
        self.used = True
        return True


def applicable(kind: str, entry: dict[str, Any]) -> bool:
    """Whether an entry speaks about this run: release, pipeline, codec, and the tests selected."""
    unknown = entry.keys() - {"id", "reason", "zarr", "codec"}
    if unknown:
        raise ValueError(f"known.toml: {sorted(unknown)} in the entry of {entry['id']}")
    if not SpecifierSet(entry.get("zarr", "")).contains(zarr.__version__, prereleases=True):
        return False
    if kind == "failure" and not SETTINGS["ours"]:
        return False
    if entry.get("codec", False) and not SETTINGS["codec"]:
        return False
    return any(entry["id"].startswith(chosen) for chosen in SETTINGS["tests"])


def read_known() -> list[Known]:
    """The entries that speak about this run."""
    tables = tomllib.loads(Path(SETTINGS["known"]).read_text())
    entries = [(kind, entry) for kind in ("failure", "skip") for entry in tables.get(kind, [])]
    return [Known(kind, entry) for kind, entry in entries if applicable(kind, entry)]


class Suite:
    """The hooks. `stale` and `USE` are gathered here from all workers."""

    def __init__(self) -> None:
        self.stale: set[str] = set()

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        known = read_known()
        for item in items:
            any(entry.marks(item) for entry in known)
        if SETTINGS["whole"]:
            self.stale = {entry.id for entry in known if not entry.used}

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker has ended: take over what it saw."""
        seen = getattr(node, "workeroutput", {}).get("shardcodec_suite", {"stale": [], "use": {}})
        self.stale.update(seen["stale"])
        for name, count in seen["use"].items():
            USE[name] += count

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["shardcodec_suite"] = {"stale": sorted(self.stale), "use": USE}
        elif not session.config.option.collectonly and (self.stale or not all(USE.values())):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_report_header(self) -> str:
        codec = SETTINGS["codec"] or "zarr's"
        return f"zarr {zarr.__version__}, pipeline {SETTINGS['pipeline']}, sharding codec {codec}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(f"pipeline: {USE['read']} reads, {USE['write']} writes")
        for name, count in USE.items():
            if not count:
                terminalreporter.write_line(f"FAILED the pipeline was never asked to {name}", red=True)
        for entry in sorted(self.stale):
            terminalreporter.write_line(f"STALE entry in known.toml, no such test: {entry}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    # zarr's conftest.py has loaded the profile that the environment names: "ci", which draws the same examples in
    # each run, so that what is known does not depend on luck. (A name of our own there would be unknown to the
    # processes that some tests start, and those would wait for ever.)
    ci, examples = settings.get_profile("ci"), SETTINGS["examples"]
    settings.register_profile("shardcodec", parent=ci, max_examples=examples)
    settings.load_profile("shardcodec")
    config.pluginmanager.register(Suite(), "shardcodec-suite")


def prepare() -> None:
    """What must be done before zarr's tests import anything."""
    pipeline = class_at(SETTINGS["pipeline"])
    stand_in_for_fused(pipeline)
    for name in USE:
        count_use(pipeline, name)
    if SETTINGS["codec"] and SETTINGS["codec_everywhere"]:
        stand_in_for_codec(class_at(SETTINGS["codec"]))


prepare()
