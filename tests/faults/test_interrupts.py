# test_interrupts.py - a write that signals interrupt all the time ends
# SPDX-License-Identifier: MIT
"""Calls are repeated after EINTR. Without a limit a file system that answers nothing else would hold a write for ever."""

from __future__ import annotations

from pathlib import Path

from delays import build_library
from helpers import run_checked

CODE = """
import ctypes
from shardcodec import native

library = ctypes.CDLL(None)
file = native.load().NewFile(folder + "/file")
file.write(b"old", 0)
library.interrupt(1)
try:
    file.write(b"new", 0)
except InterruptedError as error:
    print(type(error).__name__, library.interrupted())
library.interrupt(0)
file.write(b"new", 0)
file.commit()
print(open(folder + "/file").read())
"""


def test_write_that_is_always_interrupted_ends(tmp_path: Path) -> None:
    library = build_library(tmp_path, "interrupted", Path(__file__).parent)
    done = run_checked(f"folder = {str(tmp_path)!r}\n" + CODE, LD_PRELOAD=library)
    assert done.stdout == "InterruptedError 10000\nnew\n"
