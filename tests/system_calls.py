# system_calls.py - the system calls of a program, as strace reports them
# SPDX-License-Identifier: MIT
"""`calls_of` runs a program under strace and returns its calls between two marks. `MARK` is the start of such a
program.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

__all__ = ["MARK", "calls_of"]

MARK = """
import os, sys
import numpy as np
import zarr
import shardcodec

def mark():
    try:
        os.open("/mark", os.O_RDONLY)
    except FileNotFoundError:
        pass

shardcodec.enable(threads=2)
"""

strace = shutil.which("strace")


def calls_of(tmp_path: Path, code: str, which: str) -> list[str]:
    """Return the system calls that the code made between its two calls of `mark`."""
    if strace is None:
        pytest.skip("strace is not installed")
    log = tmp_path / "strace.log"
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(code))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [strace, "-f", "-e", f"trace={which}", "-o", str(log), sys.executable, str(program)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr and "not permitted" in done.stderr:
        pytest.skip("strace has no permission to trace")
    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines()
    marks = [i for i, line in enumerate(lines) if '"/mark"' in line]
    assert len(marks) == 2
    return lines[marks[0] : marks[1]]
