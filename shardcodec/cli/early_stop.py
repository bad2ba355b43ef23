# early_stop.py - Ctrl-C and SIGTERM before a command works
# SPDX-License-Identifier: MIT
"""`EarlyStop`: a signal while the command imports its modules ends the process; nothing was begun.

`replace_handlers` serves this block and that of `shardcodec.cli.stop_requests`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

__all__ = ["EarlyStop", "replace_handlers"]

# The exit code INTERRUPTED of `shardcodec.cli.exit_code`, which must not be imported yet.
INTERRUPTED = 130


def replace_handlers(handler: Callable[[int, FrameType | None], None]) -> dict[int, Any]:
    """Set the handler of SIGINT and SIGTERM; only the main thread may.

    Ignored signals stay ignored, as under ``nohup``, and handlers that Python did not set stay too: it could not restore them.

    Parameters
    ----------
    handler : callable
        As `signal.signal` takes it.

    Returns
    -------
    dict
        The former handler of each number that was changed.
    """
    stop = (
        number
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) not in (signal.SIG_IGN, None)
    )
    return {number: signal.signal(number, handler) for number in stop}


class EarlyStop:
    """End the process at the first signal in a with block. Outside of the main thread it does nothing."""

    def __init__(self) -> None:
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._old = replace_handlers(_end)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)


def _end(number: int, frame: FrameType | None) -> None:
    """End without an exception, which an import could swallow or print."""
    with contextlib.suppress(Exception):  # it may be interrupted in a flush
        sys.stdout.flush()  # after the work: the report
    os._exit(INTERRUPTED)
