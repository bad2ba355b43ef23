# process_exit.py - the end of a process in which a block of `group_writes` is open
# SPDX-License-Identifier: MIT
"""Work at the end of a process, and a failure there that changes the exit status.

Python ends a process in this order. First it calls the callbacks of `threading`, the last registered one first; one of them
stops all thread pools. Then it waits for threads. Then it calls the callbacks of `atexit`; one of them stops zarr's event
loop. A flush needs the pools and the loop, so it runs in a callback of `threading` that is registered after that of the
pools.
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

__all__ = ["call_before_pools_stop", "fail", "is_ending", "loss_message", "wait_for"]

# The key of a chunk at the end of a name, in the usual encodings: the part before it names the array.
_CHUNK_KEY = re.compile(r"[/.](c[/.])?\d+([/.]\d+)*$")


def call_before_pools_stop(work: Callable[[], None]) -> None:
    """Call a function when the process ends, before the thread pools stop; never if the process is ending already."""
    with contextlib.suppress(RuntimeError):
        threading._register_atexit(work)  # type: ignore[attr-defined]


def is_ending() -> bool:
    """Return True if thread pools take no more work."""
    return bool(pools._shutdown)


def wait_for(threads: Iterable[threading.Thread]) -> None:
    """Wait for threads that Python would wait for later, when they could no longer flush.

    The threads of a pool are skipped, because they wait for work until their pool stops.
    """
    for thread in set(threads) - {threading.current_thread(), threading.main_thread()}:
        if not thread.daemon and thread not in pools._threads_queues:
            thread.join()


def loss_message(names: Iterable[str], why: object) -> str:
    """Return the message about objects whose buffered writes are lost: their number for each array."""
    counts = Counter(_CHUNK_KEY.sub("", name) for name in names)
    arrays = ", ".join(f"{n} of {array!r}" for array, n in sorted(counts.items()))
    n = counts.total()
    return (
        f"shardcodec: {n} shard{'s' * (n != 1)} with writes of an open group_writes block "
        f"{'were' if n != 1 else 'was'} not stored when the process ended ({arrays}): {why}"
    )


def fail(message: str) -> None:
    """Write a message to stderr, and let the process end with status 120, the status for output that cannot be written."""
    try:
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()
    except Exception:  # noqa: BLE001  # sys.stderr may be closed, missing or any object
        os.write(2, f"{message}\n".encode())
    sys.stdout = _FailingOutput(sys.stdout)


class _FailingOutput:
    """An output that fails when the interpreter flushes it for the last time.

    No other failure at that time changes the exit status.
    """

    closed = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()
        if sys.is_finalizing() or _is_worker():
            raise RuntimeError("shardcodec could not store all writes of a group_writes block")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _is_worker() -> bool:
    """Return True if `multiprocessing` started this process. It flushes the output itself, and does not finalize."""
    module = sys.modules.get("multiprocessing")
    return module is not None and module.parent_process() is not None
