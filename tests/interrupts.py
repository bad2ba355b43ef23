# interrupts.py - Ctrl-C while several threads work
# SPDX-License-Identifier: MIT

from __future__ import annotations

import signal
import threading
import time
from typing import Any, Self


class Interrupting:
    """Work for several threads. Another thread than the main one interrupts the main thread several times during a call.

    Outside of its `with` block the signal does nothing, so that a test which fails does not stop the others.
    """

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self._turn = threading.Lock()
        self._has_begun, self._has_ended = threading.Event(), threading.Event()
        self._raises = False

    def __call__(self, i: int) -> None:
        self.begun.append(i)
        if threading.current_thread() is threading.main_thread():
            assert self._has_begun.wait(60)
        elif self._turn.acquire(blocking=False):
            self._has_begun.set()
            self._interrupt()
        self.ended.append(i)

    def _interrupt(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        for _ in range(3):
            time.sleep(0.02)  # the main thread waits meanwhile, and once more after the first signal
            signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.1)
        self._has_ended.set()

    def _handle(self, *_: Any) -> None:
        if self._raises:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        self._old = signal.signal(signal.SIGINT, self._handle)
        self._raises = True
        return self

    def __exit__(self, *_: object) -> None:
        self._raises = False
        assert self._has_ended.wait(60)
        signal.signal(signal.SIGINT, self._old)
