# test_command.py - `python -m shardcodec`
# SPDX-License-Identifier: MIT
"""The command tells what is installed, which options are in force and where each comes from."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zarr

import shardcodec
from shardcodec import build_info, native
from shardcodec.build_info import OTHER_VARIABLES
from shardcodec.options import SWITCHES, Setting, available_cpus, settings, thread_limits, variable_of

pytestmark = pytest.mark.slow


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    given = {name: value for name, value in os.environ.items() if "SHARDCODEC" not in name}
    return subprocess.run(
        [sys.executable, "-m", "shardcodec", *arguments],
        env={**given, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_text_names_versions_threads_and_the_source_of_each_option() -> None:
    done = run(SHARDCODEC_DURABILITY="fsync", ZARR_SHARDCODEC__STRICT="true", ZARR_THREADING__MAX_WORKERS="1")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"shardcodec {shardcodec.__version__} ")
    options = {line.split()[0]: line.split(maxsplit=2)[1:] for line in lines if line.startswith("  ")}
    assert options["durability"] == ["fsync", "environment variable SHARDCODEC_DURABILITY"]
    assert options["strict"] == ["True", "environment variable ZARR_SHARDCODEC__STRICT"]
    assert options["order"] == ["morton", "default"]
    assert options["threads"][0] == "1"
    assert options["threads"][1] == (
        "default" if available_cpus() == 1 else "zarr.config threading.max_workers"
    )
    assert any(line.startswith("pipeline   ") for line in lines)


def test_text_names_the_build() -> None:
    (line,) = (line for line in run().stdout.splitlines() if line.startswith("build "))
    build = build_info()["build"]
    assert f"{build['libraries']} libraries" in line and build["compiler"] in line
    assert ("stable ABI" in line) == build["abi3"] == (native.load().__file__ or "").endswith(".abi3.so")
    assert line.endswith("; the GIL is on") == build_info()["gil"]


def test_json_has_what_build_info_returns() -> None:
    done = run("--json")
    facts: dict[str, Any] = json.loads(done.stdout)
    expected = json.loads(json.dumps(build_info()))
    assert {name: facts[name] for name in expected} == expected
    assert facts["thread_limits"]["machine"] == os.cpu_count()
    assert facts["options"]["threads"] == {"value": available_cpus(), "source": "default"}


def test_invalid_option_is_told_and_the_status_is_1() -> None:
    done = run(SHARDCODEC_ORDER="hilbert")
    assert done.returncode == 1
    assert "SHARDCODEC_ORDER" in done.stderr and "'hilbert'" in done.stderr and "Traceback" not in done.stderr


def test_misspelt_variable_is_named() -> None:
    """Before the fix, the processes of a job ignored it silently."""
    given = {"SHARDCODEC_THREADS": "1", "SHARDCODEC_BOGUS": "1", "SHARDCODEC_CPU": "portable"}
    done = run(**given, SHARDCODEC_TEST_SANITIZER="thread")
    assert [line for line in done.stdout.splitlines() if line.startswith("unknown")] == [
        "unknown    SHARDCODEC_BOGUS: nothing reads this environment variable",
        "unknown    SHARDCODEC_THREADS: nothing reads this environment variable; is SHARDCODEC_NUM_THREADS meant?",
    ]
    facts = json.loads(run("--json", **given).stdout)
    assert facts["unknown_variables"] == {
        "SHARDCODEC_BOGUS": None,
        "SHARDCODEC_THREADS": "SHARDCODEC_NUM_THREADS",
    }
    assert json.loads(run("--json").stdout)["unknown_variables"] == {}


def test_list_of_variables_is_that_of_the_sources() -> None:
    """A variable that the package, the build or a test reads is not reported as unknown; one that nothing reads is."""
    reads = re.compile(
        r"""(?:environ(?:\.get\(|\[)|getenv\(|switch\()"(SHARDCODEC_\w+)"|"(SHARDCODEC_\w+)" (?:not )?in os\.environ"""
    )
    root = Path(__file__).resolve().parents[2]
    paths = [root / "setup.py"]
    for folder in ("shardcodec", "csrc", "tests", "bench", "scripts"):
        paths += [path for path in (root / folder).rglob("*") if path.suffix in (".py", ".c", ".pyx", ".pxi")]
    names = {name for path in paths for found in reads.findall(path.read_text()) for name in found if name}
    assert names - set(map(variable_of, SWITCHES)) == OTHER_VARIABLES


@pytest.mark.parametrize("value", [1, 3])
def test_source_is_the_innermost_that_has_a_value(value: int) -> None:
    with zarr.config.set({"shardcodec.threads": value}):
        assert settings({"threads": value})["threads"] == Setting(value, "zarr.config")
        with shardcodec.options(threads=7):
            assert settings({"threads": value})["threads"] == Setting(7, "shardcodec.options")
            assert settings({}, max_workers=2)["threads"] == Setting(2, "zarr.config threading.max_workers")


def test_smallest_limit_is_the_number_of_processors() -> None:
    limits = [number for number in thread_limits().values() if number is not None]
    assert available_cpus() == min(limits)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system has no affinity")
def test_processors_of_the_machine_are_not_counted_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """`os.cpu_count` reads a file of the kernel: 50 us at each read of an array."""
    expected = available_cpus()
    monkeypatch.setattr(os, "cpu_count", None)
    assert available_cpus() == expected
