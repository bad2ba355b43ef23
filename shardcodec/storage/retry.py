# retry.py - files that another client of a network file system replaces
# SPDX-License-Identifier: MIT
"""When to look again at a file that has gone stale.

A server forgets a file that another client has replaced by a new one: whatever this client knows of it, a descriptor or a
name, leads nowhere for up to a second or so. The engine says ESTALE then (csrc/io/sc_file.h), also where the file system says
ENOENT. Nothing is wrong: under the name there is the new file. So the work is begun again, after a pause.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

__all__ = ["Patience", "is_replaced", "retried"]

T = TypeVar("T")

# How long readers try. A directory entry is remembered for one second on GlusterFS, and by FUSE in general.
READ_SECONDS = 3.0

# The pause between two attempts, in seconds; each is twice the one before.
FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.1


def is_replaced(error: BaseException) -> bool:
    """Tell whether an error says that another client has replaced a file."""
    return isinstance(error, OSError) and error.errno == errno.ESTALE


class Patience:
    """The pauses between attempts of one piece of work.

    Parameters
    ----------
    seconds : float
        How long to try, from the first error on; 0 raises that one.
    """

    def __init__(self, seconds: float = READ_SECONDS) -> None:
        self._seconds = seconds
        self._deadline = 0.0
        self._pause = FIRST_PAUSE / 2
        self._paths: set[Any] = set()

    @classmethod
    def after(cls, error: OSError) -> Self:
        """Begin after an attempt that was not allowed to wait; raises its error unless a file has been replaced."""
        patience = cls()
        patience.pause(error)
        return patience

    def pause(self, error: OSError) -> float:
        """Return for how long to wait before the next attempt.

        Raises
        ------
        OSError
            `error`, if it does not say that a file has been replaced, or when it is time to give up.
        """
        if not is_replaced(error):
            raise error
        if not self._paths:
            self._deadline = time.monotonic() + self._seconds
        self._paths.add(error.filename)
        if time.monotonic() >= self._deadline:
            raise error
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return self._pause

    def wait(self, error: OSError) -> None:
        """Wait before the next attempt; as `pause`. Not for a thread that runs an event loop."""
        time.sleep(self.pause(error))

    def misses(self, paths: Iterable[Any]) -> bool:
        """Tell whether an attempt has not found a file that was there before, and wait: it has to be repeated.

        After the last attempt it is believed that the file has been removed.
        """
        if not self._paths or time.monotonic() >= self._deadline or self._paths.isdisjoint(paths):
            return False
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        time.sleep(self._pause)
        return True


def retried(work: Callable[[], T]) -> T:
    """Do work that reads files; again, with pauses, while another client replaces them. Not on an event loop."""
    patience = Patience()
    while True:
        try:
            return work()
        except OSError as error:
            patience.wait(error)
