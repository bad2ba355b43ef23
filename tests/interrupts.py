# interrupts.py - Ctrl-C while several threads work, and a signal handler at each point of a call
# SPDX-License-Identifier: MIT

from __future__ import annotations

import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Self

import shardcodec

PACKAGE = os.path.dirname(shardcodec.__file__)


class Interrupting:
    """Work for several threads. Another thread than the main one interrupts the main thread several times during a call.

    The signal raises KeyboardInterrupt only inside of the `with` block, so that a test which fails does not stop the others.

    Attributes
    ----------
    begun, ended : list of int
        The items of the calls that other threads than the main one have begun and ended.
    """

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self._turn = threading.Lock()
        self._has_begun, self._has_ended = threading.Event(), threading.Event()
        self._handled: queue.SimpleQueue[None] = queue.SimpleQueue()  # its `put` may interrupt itself
        self._raises = False

    def __call__(self, i: int) -> None:
        if threading.current_thread() is threading.main_thread():
            assert self._has_begun.wait(60)
            return  # the interrupt may end this call
        self.begun.append(i)
        if self._turn.acquire(blocking=False):
            self._has_begun.set()
            self._interrupt()
        self.ended.append(i)

    def _interrupt(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        for _ in range(3):
            time.sleep(0.02)  # the main thread waits meanwhile, and once more after the first signal
            signal.pthread_kill(main, signal.SIGINT)
            self._handled.get(timeout=60)
        time.sleep(0.1)  # a main thread that does not wait for this call has time to go on
        self._has_ended.set()

    def _handle(self, *_: Any) -> None:
        self._handled.put(None)
        if self._raises:
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        self._old = signal.signal(signal.SIGINT, self._handle)
        self._raises = True
        return self

    def __exit__(self, *_: object) -> None:
        self._raises = False
        try:
            assert self._has_ended.wait(60)
        finally:
            signal.signal(signal.SIGINT, self._old)


class Points:
    """Calls a handler at point `number` of the block: at a line or the begin of a function of the package, or behind a call of C.

    place: the beginning of the paths of the modules that have points.
    """

    def __init__(self, number: int, handler: Callable[[], object], place: str = PACKAGE) -> None:
        self._left = number
        self._handler = handler
        self._place = place
        self.is_reached = False

    def _count(self, frame: Any, event: str, _: Any) -> Any:
        if event in ("call", "line", "c_return") and frame.f_code.co_filename.startswith(self._place):
            self._left -= 1
            if not self._left:
                self.is_reached = True
                self._stop()
                self._handler()
        return self._count

    def _stop(self) -> None:
        sys.setprofile(self._profile)
        sys.settrace(self._trace)

    def __enter__(self) -> Self:
        self._trace, self._profile = sys.gettrace(), sys.getprofile()
        sys.setprofile(lambda frame, event, _: self._count(frame, event, _) if event == "c_return" else None)
        sys.settrace(self._count)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop()


def ends(work: Callable[[], Any]) -> list[Any]:
    """Return the result of work, or its error; it must end soon."""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(30)
    assert found, "does not end"
    return found
