# test_wheel.py - the installed wheel is small and its import is fast
# SPDX-License-Identifier: MIT
"""Limits for what every user downloads, and for what every process that opens an array with zarr imports."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import shardcodec

MAX_NBYTES = 2_500_000
MAX_SECONDS = 0.030
# Processor time of zarr's import on an idle machine. A slower or busier machine gets more time, in proportion.
ZARR_SECONDS = 0.120

# Seconds of processor time: waiting does not count.
IMPORTS = """
import time
begin = time.process_time()
import zarr
middle = time.process_time()
import shardcodec
shardcodec.enable()
print(middle - begin, time.process_time() - middle)
"""


def test_wheel_is_small() -> None:
    """A wheel is a zip file: each of its files, compressed."""
    if (Path(shardcodec.__file__).resolve().parents[1] / "setup.py").exists():
        pytest.skip("the package is imported from the checkout; no wheel is installed")
    files = [Path(str(file.locate())) for file in importlib.metadata.files("shardcodec") or []]
    contents = [path.read_bytes() for path in files if path.suffix != ".pyc" and path.is_file()]
    assert any(path.suffix == ".so" for path in files)
    assert sum(len(zlib.compress(content)) for content in contents) <= MAX_NBYTES


def test_import_costs_little_beside_that_of_zarr(tmp_path: Path) -> None:
    """The import and `enable`, which loads the pipeline. The first run may write bytecode, so the best of six counts."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    times = []
    for _ in range(6):
        done = subprocess.run(
            [sys.executable, "-P", "-c", IMPORTS],
            cwd=tmp_path, env=environment, check=True, capture_output=True, text=True,
        )  # fmt: skip
        times.append([float(seconds) for seconds in done.stdout.split()])
    zarrs, ours = (min(column) for column in zip(*times, strict=True))
    assert ours <= MAX_SECONDS * max(1, zarrs / ZARR_SECONDS), times


def test_import_draws_nothing() -> None:
    """The pictures of the handles are loaded when the first one is drawn."""
    code = "import sys, shardcodec; print(*(name for name in sys.modules if 'drawing' in name or 'pictures' in name))"
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "\n"
