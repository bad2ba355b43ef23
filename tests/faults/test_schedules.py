# test_schedules.py - writers, readers and tools on one shard, in schedules of their calls
# SPDX-License-Identifier: MIT
"""Some schedules of each kind; `make schedules` runs more. docs/testing.md says what is enumerated."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from delays import build_library

PROGRAM = Path(__file__).with_name("schedule_run.py")


def run_schedules(tmp_path: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    build_library(tmp_path, "schedule_stops", PROGRAM.parent)  # skips where none can be built
    command = [sys.executable, "-P", str(PROGRAM), *map(str, arguments)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_no_schedule_loses_a_write_or_shows_a_mixture(tmp_path: Path) -> None:
    done = run_schedules(tmp_path, "--schedules", 120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.fullmatch("120 schedules", done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_one_schedule_can_be_run_again(tmp_path: Path) -> None:
    choices = "0:30,1:*,0:k"
    done = run_schedules(tmp_path, "--only", "stored/raw-end/in_place+reader", "--choices", choices)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "1 schedules"), done.stdout + done.stderr
