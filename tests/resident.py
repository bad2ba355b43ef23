# resident.py - how much the resident memory of a program grows
# SPDX-License-Identifier: MIT
"""`run_measuring` runs code in another interpreter, in which ``peak_of(work)`` returns the result and the growth in bytes."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

from helpers import python_environment

__all__ = ["run_measuring"]

PEAK_OF = """
import json, os
from pathlib import Path

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

def peak_of(work):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = peak()
    return work(), peak() - before
"""


def run_measuring(code: str, *, seconds: float = 120, **environment: str) -> Any:
    """Run code in another interpreter, and return the JSON that it prints."""
    command = [sys.executable, "-P", "-c", PEAK_OF + textwrap.dedent(code)]
    env = python_environment(**environment)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=seconds, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
