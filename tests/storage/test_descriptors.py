# test_descriptors.py - descriptors that are open for a moment
# SPDX-License-Identifier: MIT
"""No descriptor stays open after an interrupt."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from shardcodec import mounts
from shardcodec.storage import file_systems

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="/proc/self/fd is not available")


@pytest.mark.parametrize("look", [file_systems.is_prompt, mounts.mount_of_path])
def test_interrupt_at_any_step_leaves_no_descriptor_open(look: Any, tmp_path: Path) -> None:
    """A signal handler that raised between `os.open` and the next step left the descriptor open, in interrupted kv writes."""
    codes = {look.__code__, *(f.__code__ for f in vars(mounts.Descriptor).values() if hasattr(f, "__code__"))}
    before, step, n = len(os.listdir("/proc/self/fd")), 0, 0

    def trace(frame: Any, event: str, _argument: Any) -> Any:
        nonlocal step
        if frame.f_code not in codes or frame.f_code.co_name == "__del__":
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            step += 1
            if step == n:
                raise KeyboardInterrupt
        return trace

    look(str(tmp_path))
    while True:
        step, n = 0, n + 1
        old = sys.gettrace()
        sys.settrace(trace)
        try:
            look(str(tmp_path))
            break
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(old)
        assert len(os.listdir("/proc/self/fd")) == before, f"interrupted at step {n}"
    assert n > 20
