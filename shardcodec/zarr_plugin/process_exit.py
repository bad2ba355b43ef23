# process_exit.py - the end of a process while a block of `group_writes` is open
# SPDX-License-Identifier: MIT
"""Work at the end of a process, and failures there that cannot be missed.

Python ends a process in this order: the callbacks of `threading`, the last registered first, of which one shuts down all
thread pools; then it waits for threads; then come the callbacks of `atexit`, of which one stops zarr's event loop. To store
takes the pools and the loop, so it is done in a callback of `threading` that is registered after that of the pools.
"""

from __future__ import annotations

import concurrent.futures.thread as pools
import contextlib
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["at_the_end", "fail", "is_ending", "unstored", "wait_for"]

# The key of a chunk at the end of a name, in the usual encodings: the rest names the array.
_CHUNK_KEY = re.compile(r"[/.](c[/.])?\d+([/.]\d+)*$")


def at_the_end(work: Callable[[], None]) -> None:
    """Have work done when the process ends, while all is there that it takes; nothing when the process is ending already."""
    with contextlib.suppress(RuntimeError):
        threading._register_atexit(work)  # type: ignore[attr-defined]


def is_ending() -> bool:
    """Tell whether thread pools take no work any more."""
    return bool(pools._shutdown)


def wait_for(threads: Iterable[threading.Thread]) -> None:
    """Wait for threads for which Python is going to wait anyway, while they still can store.

    A thread of a pool is none of them: it waits for work until its pool is shut down.
    """
    for thread in set(threads) - {threading.current_thread(), threading.main_thread()}:
        if not thread.daemon and thread not in pools._threads_queues:
            thread.join()


def unstored(names: Iterable[str], why: object) -> str:
    """Return the message about objects that were gathered and not stored: how many of which arrays."""
    counts = Counter(_CHUNK_KEY.sub("", name) for name in names)
    arrays = ", ".join(f"{n} of {array!r}" for array, n in sorted(counts.items()))
    n = counts.total()
    return (
        f"shardcodec: {n} shard{'s' * (n != 1)} with writes of an open group_writes block "
        f"{'were' if n != 1 else 'was'} not stored when the process ended ({arrays}): {why}"
    )


def fail(message: str) -> None:
    """Write a message to stderr, and let the process end with status 120, as for output that could not be written."""
    try:
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()
    except Exception:  # noqa: BLE001  # sys.stderr may be anything, or nothing
        os.write(2, f"{message}\n".encode())
    sys.stdout = _FailingOutput(sys.stdout)


class _FailingOutput:
    """An output that fails when the interpreter flushes it last, the only failure there that changes the exit status."""

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()
        if sys.is_finalizing() or _is_a_worker():
            raise RuntimeError("shardcodec could not store all writes of a group_writes block")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_a_worker() -> bool:
    """Whether `multiprocessing` started this process: that flushes the output itself, and ends without finalizing."""
    module = sys.modules.get("multiprocessing")
    return module is not None and module.parent_process() is not None
