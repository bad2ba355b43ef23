# lock_holders.py - another process that holds the lock of a file, and locks that cannot be taken
# SPDX-License-Identifier: MIT
"""A forked child takes a lock and keeps it until the test stops or kills it."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shardcodec import _native


def take(path: str) -> str:
    lock = _native.FileLock()
    outcome = lock.try_acquire(path)
    lock.release()
    return outcome


def refusing_lock(outcome: str, mount: tuple[int, int] = (0, 0), refusal: int = 0) -> type:
    """Return a class of locks that cannot be taken: each attempt has this outcome, and an errno unless it is that of the open."""

    class RefusingLock:
        fd = -1
        is_held = False

        def __init__(self) -> None:
            self.mount = mount
            self.refusal = refusal

        def try_acquire(self, path: str, *place: str | None) -> str:
            return outcome

    return RefusingLock


@contextmanager
def holder(path: str, prepare: Callable[[], None] = lambda: None) -> Iterator[int]:
    """Start a child process that holds the lock of a file. Yield its process id. Kill it at the end if it still
    runs.
    """
    told, tell = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads
        pid = os.fork()
    if pid == 0:
        try:
            prepare()
            lock = _native.FileLock()
            os.write(tell, lock.try_acquire(path).encode())
            while True:
                signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(told, 100) == b"held"
        yield pid
    finally:
        end(pid)
        os.close(told)
        os.close(tell)


def end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass  # the test has killed it
