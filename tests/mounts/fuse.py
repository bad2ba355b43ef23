# fuse.py - mounts for tests that behave like those of a network file system
# SPDX-License-Identifier: MIT
"""`mount(backing, folder)` shows the folder `backing` again in `folder`, with faults that a test switches on.

Two mounts of one backing folder are two clients of one server. The switches are those of `switches.SWITCHES`; they, and errors
for the next calls, can be set at any time::

    with mount(backing, tmp_path / "a") as a, mount(backing, tmp_path / "b") as b:
        a.set(write_back=True)
        a.fail("flush", errno.ENOSPC)
        ...
        a.heal()

`locks="one"`: a lock is valid on its own mount only; `"all"`: on all mounts. Needs root and `/dev/fuse`.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from shardcodec.mounts import MOUNTINFO, parse_line

__all__ = ["FILE_SYSTEM", "Mount", "mount"]

SERVER = Path(__file__).with_name("server.py")
FILE_SYSTEM = "fuse.shardcodec-test"
PATIENCE = 20.0


class Mount:
    """One mount, served by a separate process. Closing it ends the process; when either ends, the mount is removed."""

    def __init__(self, backing: Path, folder: Path, *, locks: str = "all") -> None:
        self.path = folder
        folder.mkdir(exist_ok=True)
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-ESs", SERVER, backing, folder, str(theirs.fileno()), locks]
        # An environment without LD_PRELOAD: the server runs without the sanitizer of the tests.
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env={"LC_ALL": "C.UTF-8"})
        theirs.close()
        ours.settimeout(PATIENCE)
        self._control = ours
        self._lines = ours.makefile("rwb", buffering=0)
        self._mutex = threading.Lock()
        answer = json.loads(self._lines.readline() or '{"error": "the server has ended"}')
        if "error" in answer:
            self.close()
            raise OSError(answer.get("errno"), answer["error"])

    @property
    def pid(self) -> int:
        """Process ID of the server."""
        return self.process.pid

    def _ask(self, **command: Any) -> dict[str, Any]:
        with self._mutex:
            self._lines.write(json.dumps(command).encode() + b"\n")
            return json.loads(self._lines.readline())

    def set(self, **switches: Any) -> None:
        """Set switches; the others stay."""
        self._ask(set=switches)

    def fail(
        self, call: str, error: int, *, times: int | None = None, after: int = 0, name: str = "*"
    ) -> None:
        """Make a call (`flush`, `fsync`, `write`, `open`, `getattr`, `setlk`, ...: names of `protocol.Call`) fail with an
        errno: the next `times` ones (None: all) after `after` good ones, of files whose name matches. A flush or fsync
        that fails drops what was pending.
        """
        self._ask(fail={"call": call, "errno": error, "times": times, "after": after, "name": name})

    def heal(self) -> None:
        """Forget every `fail`."""
        self._ask(heal=True)

    def delay(self, call: str, seconds: float) -> None:
        """Answer this call later, and all others meanwhile too."""
        self._ask(delay={call: seconds})

    def calls(self) -> Counter[str]:
        """Return how often the kernel has made each call."""
        return Counter(self._ask()["calls"])

    def failed(self) -> Counter[str]:
        """Return how often a call has failed because of `fail`."""
        return Counter(self._ask()["failed"])

    def close(self) -> None:
        with suppress(OSError):
            self._lines.close()
            self._control.close()
        _unmount(self.path)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        _unmount(self.path)


def _unmount(folder: Path) -> None:
    libc = ctypes.CDLL(None)
    libc.umount2(os.fsencode(folder), 2)  # MNT_DETACH: also while files are open


def _clean_up() -> None:
    """Unmount what a killed test run has left: mounts whose server has ended."""
    for line in Path(MOUNTINFO).read_bytes().split(b"\n"):
        found = parse_line(line)
        if found is None or found.file_system != FILE_SYSTEM:
            continue
        try:
            os.statvfs(found.point)
        except OSError:
            _unmount(Path(found.point))


@contextmanager
def mount(backing: Path, folder: Path, *, locks: str = "all", **switches: Any) -> Iterator[Mount]:
    """Mount; skips the test where that is not possible."""
    if (
        not sys.platform.startswith("linux")
        or os.geteuid() != 0
        or not os.access("/dev/fuse", os.R_OK | os.W_OK)
    ):
        pytest.skip("FUSE: needs Linux, root and /dev/fuse")
    _clean_up()
    backing.mkdir(exist_ok=True)
    try:
        mounted = Mount(backing, folder, locks=locks)
    except PermissionError as error:
        pytest.skip(f"FUSE: mounting is not allowed here: {error}")
    try:
        mounted.set(**switches)
        yield mounted
    finally:
        mounted.close()
