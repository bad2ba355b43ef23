# delays.py - other interpreters in which calls to files take some time, or writes wait for each other
# SPDX-License-Identifier: MIT
"""Calls are delayed by a preloaded library (tests/mounts/round_trip.c), or recorded and held by one (tests/mounts/writes.c)."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from helpers import run_checked

SOURCES = Path(__file__).parent / "mounts"


def build_library(folder: Path, name: str = "round_trip", sources: Path = SOURCES) -> str:
    """Compile a library that delays or records calls; skip the test where that is not possible."""
    if sys.platform != "linux" or platform.libc_ver()[0] != "glibc":
        pytest.skip("needs Linux with glibc")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or "SHARDCODEC_SANITIZE" in os.environ or "LD_PRELOAD" in os.environ:
        pytest.skip("needs a C compiler, and no other preloaded library")
    library, source = folder / f"{name}.so", sources / f"{name}.c"
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return str(library)


def run_delayed(code: str, library: str, folder: Path, us: float) -> str:
    """Run code with `folder` in another interpreter, where each open and read below the folder takes so many microseconds."""
    return _run(code, library, folder, us).stdout


def count_delayed(
    code: str, library: str, folder: Path, us: float, *, more: str = "WRITES"
) -> dict[str, tuple[int, int]]:
    """Run code as `run_delayed`, where the other calls of a writer ("WRITES"), or looks at files alone ("STATS"), take so long,
    too; return for each kind of call their number and how many of them waited at the same time."""
    done = _run(code, library, folder, us, **{f"ROUND_TRIP_{more}": "1"}, ROUND_TRIP_COUNTS="1")
    found = re.findall(r"^(\w+) (\d+) at most (\d+)$", done.stderr, re.MULTILINE)
    return {name: (int(n), int(most)) for name, n, most in found}


def _run(code: str, library: str, folder: Path, us: float, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "LD_PRELOAD": library,
        "ROUND_TRIP_FOLDER": str(folder),
        "ROUND_TRIP_US": str(us),
        **more,
    }
    return run_checked(f"folder = {str(folder)!r}\n" + code, **environment)


class Writes(NamedTuple):
    """The writes of another interpreter: where each began and how long it was, and how many waited together at most."""

    calls: list[tuple[int, int]]
    together: int


def run_with_held_writes(code: str, library: str, folder: Path, **settings: object) -> Writes:
    """Run code with `folder` in another interpreter, and record the writes to files below the folder.

    `settings` are those of tests/mounts/writes.c, in lower case.
    """
    told = {f"WRITES_{name.upper()}": str(value) for name, value in settings.items()}
    done = run_checked(
        f"folder = {str(folder)!r}\n" + code, LD_PRELOAD=library, WRITES_FOLDER=str(folder), **told
    )
    lines = [line.split() for line in done.stderr.splitlines()]
    (together,) = [int(line[1]) for line in lines if line[:1] == ["together"]]
    return Writes([(int(line[1]), int(line[2])) for line in lines if line[:1] == ["write"]], together)
