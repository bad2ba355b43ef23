# stop_requests.py - Ctrl-C and SIGTERM while a command works
# SPDX-License-Identifier: MIT
"""`StopRequests`: the first Ctrl-C or SIGTERM asks the command to stop after the current shard, the second ends the process.

A Python handler runs only between two steps of the main thread, which may wait for a long native call. So a thread reads
the numbers of the signals from a pipe, into which the interpreter writes them at once. A process may end at any time: no
write leaves a part of a shard (``docs/durability.md``).
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from .early_stop import replace_handlers
from .exit_code import ExitCode

__all__ = ["StopRequests"]

_NOTE = b"\nshardcodec: stopping after the current shard; Ctrl-C again to stop at once\n"
# Written to the pipe to end the thread; not the number of a signal.
_END = b"\0"


class StopRequests:
    """Handle signals in a with block. Outside of the main thread, which alone may set handlers, it does nothing.

    Attributes
    ----------
    requested : bool
        True if the user asked to stop.
    """

    def __init__(self) -> None:
        self.requested: bool = False
        self._old: dict[int, Any] = {}
        self._pipe = (-1, -1)
        self._old_fd = -1
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._old_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="shardcodec-signals", daemon=True)
        self._thread.start()
        self._old = replace_handlers(_ignore)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        os.write(self._pipe[1], _END)
        self._thread.join()
        for fd in self._pipe:
            os.close(fd)

    def _listen(self) -> None:
        while (number := os.read(self._pipe[0], 1)) != _END:
            if number[0] not in (signal.SIGINT, signal.SIGTERM):
                continue
            if self.requested:
                os._exit(ExitCode.INTERRUPTED)
            self.requested = True
            os.write(2, _NOTE)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: a handler of Python must exist, so that the number of the signal is written to the pipe."""
