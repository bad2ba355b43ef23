# delays.py - other interpreters in which each open and read of a file, or every call of a writer, takes some time
# SPDX-License-Identifier: MIT
"""Calls are delayed by a preloaded library (tests/mounts/round_trip.c)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers import run_python

SOURCE = Path(__file__).parent / "mounts" / "round_trip.c"


def build_library(folder: Path) -> str:
    """Compile the library that delays calls; skip the test where that is not possible."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or "SHARDCODEC_SANITIZE" in os.environ or "LD_PRELOAD" in os.environ:
        pytest.skip("needs a C compiler, and no other preloaded library")
    library = folder / "round_trip.so"
    done = subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"], check=False
    )
    if done.returncode:
        pytest.skip("the library that delays calls needs Linux")
    return str(library)


def run_delayed(code: str, library: str, folder: Path, us: float) -> str:
    """Run code with `folder` and `measure` in another interpreter, where each open and read below the folder takes so long."""
    return _run(code, library, folder, us).stdout


def count_delayed(code: str, library: str, folder: Path, us: float) -> dict[str, tuple[int, int]]:
    """Run code as `run_delayed`, where the other calls of a writer take so long, too; return for each kind of call their number
    and how many of them waited at the same time."""
    done = _run(code, library, folder, us, ROUND_TRIP_WRITES="1", ROUND_TRIP_COUNTS="1")
    found = re.findall(r"^(\w+) (\d+) at most (\d+)$", done.stderr, re.MULTILINE)
    return {name: (int(n), int(most)) for name, n, most in found}


def _run(code: str, library: str, folder: Path, us: float, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "LD_PRELOAD": library,
        "ROUND_TRIP_FOLDER": str(folder),
        "ROUND_TRIP_US": str(us),
        **more,
    }
    done = run_python(f"folder = {str(folder)!r}\n" + code, **environment)
    assert done.returncode == 0, done.stderr
    return done
