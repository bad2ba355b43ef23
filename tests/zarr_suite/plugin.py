# plugin.py - the pytest plug-in of run.py
# SPDX-License-Identifier: MIT
"""Put a pipeline under zarr's tests, and compare their outcome with `known.toml`.

Loaded with ``-p plugin`` by `run.py`, also in every worker of pytest-xdist. Some settings must be made before
zarr's own ``conftest.py`` is imported, so they are made on import and passed in the environment.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import sys
import threading
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

# The fixtures of zarr's tests leave each ZipStore open. If a test keeps one in a cycle, as in the traceback of an expected error, the
# garbage collector frees it during a later test, and these warnings, which zarr's settings make errors, fail that one.
LEFT_OPEN = [
    f"ignore:Exception ignored in[\\s\\S]*{name}:pytest.PytestUnraisableExceptionWarning"
    for name in ("<function ZipFile.__del__", "<_io.FileIO ")
]


def class_at(path: str) -> type:
    """Import the class with this dotted path."""
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    assert isinstance(found, type)
    return found


def stand_in_for_fused(pipeline: type) -> None:
    """Replace zarr's second pipeline by the one under test in zarr's registry.

    Only the registry is changed: tests that select the second pipeline in the configuration get the one under test,
    and compare it with zarr's first one. Tests that import the class still have zarr's.
    """
    if hasattr(zarr.core.codec_pipeline, "FusedCodecPipeline"):
        zarr.registry._pipeline_registry[FUSED] = pipeline


def stand_in_for_codec(codec: type) -> None:
    """Replace every name of zarr's sharding codec by `codec`, since `create_array` does not use the registry."""
    original = zarr.codecs.sharding.ShardingCodec
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "zarr" and getattr(module, "ShardingCodec", None) is original:
            module.ShardingCodec = codec  # type: ignore[attr-defined]


def count_use(pipeline: type, name: str) -> None:
    """Count the calls of one method, since a pipeline that is never called would pass all tests."""
    method: Callable[..., Awaitable[Any]] = getattr(pipeline, name)

    @functools.wraps(method)
    async def counted(self: object, *args: Any, **kwargs: Any) -> Any:
        USE[name] += 1
        return await method(self, *args, **kwargs)

    setattr(pipeline, name, counted)


def attach_every_array(attach: Callable[[Any], Any], pipeline: type) -> None:
    """Pass every array with the pipeline under test through `attach`, when it is made.

    Tests that choose another pipeline keep it.
    """
    original = zarr.Array.__init__
    running = threading.local()

    def attached(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if type(self) is not zarr.Array or getattr(running, "is_true", False):
            return
        if isinstance(self.async_array.codec_pipeline, pipeline):
            running.is_true = True
            try:
                new = attach(self)
            finally:
                running.is_true = False
            self.__class__ = type(new)
            self._async_array = new.async_array

    zarr.Array.__init__ = attached  # type: ignore[method-assign]


def count_direct_use(access: type, name: str) -> None:
    """Count the calls of one method that did the work, so that zarr's way was not taken."""
    method: Callable[..., Any] = getattr(access, name)
    USE[f"direct {name}"] = 0

    @functools.wraps(method)
    def counted(self: object, *args: Any) -> Any:
        found = method(self, *args)
        USE[f"direct {name}"] += found is not None and found is not False
        return found

    setattr(access, name, counted)


class MountScope:
    """One entry of `known.toml`."""

    def __init__(self, kind: str, entry: dict[str, Any]) -> None:
        self.id: str = entry["id"]
        self.reason: str = entry["reason"]
        self.used = False
        self._pattern = re.compile(".*".join(map(re.escape, self.id.split("*"))), re.DOTALL)
        mark = pytest.mark.xfail(strict=True) if kind == "failure" else pytest.mark.skip
        self.mark = mark.with_args(reason=self.reason)

    def marks(self, item: pytest.Item) -> bool:
        """Mark `item` if this entry applies to it."""
        if not self._pattern.fullmatch(item.nodeid):
            return False
        item.add_marker(self.mark)
        self.used = True
        return True


def applicable(kind: str, entry: dict[str, Any]) -> bool:
    """Return True if an entry applies to this run: release, pipeline, codec and the selected tests."""
    unknown = entry.keys() - {"id", "reason", "zarr", "codec", "attach"}
    if unknown:
        raise ValueError(f"known.toml: {sorted(unknown)} in the entry of {entry['id']}")
    if not SpecifierSet(entry.get("zarr", "")).contains(zarr.__version__, prereleases=True):
        return False
    if kind == "failure" and not SETTINGS["ours"]:
        return False
    if entry.get("codec", False) and not SETTINGS["codec"]:
        return False
    if entry.get("attach", SETTINGS["attach"]) != SETTINGS["attach"]:
        return False
    return any(entry["id"].startswith(chosen) for chosen in SETTINGS["tests"])


def read_known() -> list[MountScope]:
    """Return the entries that apply to this run."""
    tables = tomllib.loads(Path(SETTINGS["known"]).read_text())
    entries = [(kind, entry) for kind in ("failure", "skip") for entry in tables.get(kind, [])]
    return [MountScope(kind, entry) for kind, entry in entries if applicable(kind, entry)]


class Suite:
    """The hooks of pytest. `stale` and `USE` collect the results of all workers."""

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
        """Add the results of a worker that has ended."""
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
        attached = ", every array attached" if SETTINGS["attach"] else ""
        return f"zarr {zarr.__version__}, pipeline {SETTINGS['pipeline']}, sharding codec {codec}{attached}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.write_line(
            f"calls: {', '.join(f'{count} of {name}' for name, count in USE.items())}"
        )
        for name, count in USE.items():
            if not count:
                terminalreporter.write_line(f"FAILED the pipeline was never called to {name}", red=True)
        for entry in sorted(self.stale):
            terminalreporter.write_line(f"STALE entry in known.toml, no such test: {entry}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    # zarr's conftest.py has loaded the profile in the environment: "ci", which draws the same examples in each run,
    # so that known failures do not depend on chance. (A profile of ours would be unknown to the processes that some
    # tests start, and these would hang.)
    ci, examples = settings.get_profile("ci"), SETTINGS["examples"]
    settings.register_profile("shardcodec", parent=ci, max_examples=examples)
    settings.load_profile("shardcodec")
    for line in LEFT_OPEN:
        config.addinivalue_line("filterwarnings", line)
    config.pluginmanager.register(Suite(), "shardcodec-suite")


def prepare() -> None:
    """Make the settings that must precede zarr's tests."""
    if SETTINGS["without_engine"]:
        with pytest.warns(RuntimeWarning, match="leaves the work to zarr"):
            importlib.import_module("shardcodec").enable()
    pipeline = class_at(SETTINGS["pipeline"])
    stand_in_for_fused(pipeline)
    for name in list(USE):
        count_use(pipeline, name)
    if SETTINGS["attach"]:
        attach_every_array(importlib.import_module("shardcodec").attach, pipeline)
        access = class_at("shardcodec.zarr_plugin.direct_access.DirectAccess")
        for name in ("read", "write"):
            count_direct_use(access, name)
    if SETTINGS["codec"] and SETTINGS["codec_everywhere"]:
        stand_in_for_codec(class_at(SETTINGS["codec"]))


prepare()
