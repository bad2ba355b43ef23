# retry.py - retries after another client of a network file system has replaced a file
# SPDX-License-Identifier: MIT
"""Retries for stale files.

A server forgets a file that another client has replaced by a new one. For up to about a second, this client's file
descriptor and cached name of it lead nowhere. The engine then reports ESTALE (csrc/io/sc_file.h), also if the file system
reports ENOENT. The new file exists under the name, so the work starts again after a pause.
"""

from __future__ import annotations

import errno
import random
import time
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

__all__ = ["Patience", "is_replaced", "retried"]

T = TypeVar("T")

# Seconds for which readers retry. GlusterFS, and FUSE in general, cache a directory entry for one second; under load, with
# writers that replace the file all the time, 3 of 19,627 reads did not succeed within 3 s.
READ_SECONDS = 10.0

# Bounds of the pause between two attempts, in seconds. The upper bound doubles from attempt to attempt; the pause is random,
# so that it does not keep step with a writer that replaces the file at regular times.
FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.1


def is_replaced(error: BaseException) -> bool:
    """Return True for ESTALE: another client has replaced a file."""
    return isinstance(error, OSError) and error.errno == errno.ESTALE


class Patience:
    """The pauses between attempts of one piece of work.

    Parameters
    ----------
    seconds : float
        Time to retry after the first error; 0 raises the first error.
    """

    def __init__(self, seconds: float = READ_SECONDS) -> None:
        self._seconds = seconds
        self._deadline = 0.0
        self._bound = FIRST_PAUSE
        self._n_attempts = 0
        self._paths: set[Any] = set()

    @classmethod
    def after(cls, error: OSError) -> Self:
        """Return a `Patience` after an attempt that could not wait; raise its error unless a file has been replaced."""
        patience = cls()
        patience.pause(error)
        return patience

    def pause(self, error: OSError) -> float:
        """Return the seconds to wait before the next attempt.

        Raises
        ------
        OSError
            `error`, if it is not ESTALE, or the time for retries is over; a note then says how often it was tried.
        """
        if not is_replaced(error):
            raise error
        if not self._paths:
            self._deadline = time.monotonic() + self._seconds
        self._paths.add(error.filename)
        self._n_attempts += 1
        if time.monotonic() >= self._deadline:
            if self._seconds:
                error.add_note(
                    f"tried {self._n_attempts} times in {self._seconds:g} s; other clients replace the file"
                )
            raise error
        return self._next_pause()

    def _next_pause(self) -> float:
        self._bound = min(2 * self._bound, LONGEST_PAUSE)
        return random.uniform(FIRST_PAUSE, self._bound)

    def wait(self, error: OSError) -> None:
        """Wait before the next attempt, as `pause`. Threads that run an event loop must not call this."""
        time.sleep(self.pause(error))

    def misses(self, paths: Iterable[Any]) -> bool:
        """Return True, after a pause, if the caller must repeat its attempt because a file may be missing only for a moment.

        `paths` are the files that this attempt did not find. True: an earlier attempt had ESTALE for one of them, and
        the time for retries is not over. False, at once: otherwise; then the files do not exist. It blocks, so with
        time for retries it must not be called on an event loop.
        """
        if not self._paths or time.monotonic() >= self._deadline or self._paths.isdisjoint(paths):
            return False
        time.sleep(self._next_pause())
        return True


def retried(work: Callable[[], T]) -> T:
    """Run work that reads files, and repeat it with pauses while another client replaces them; not on an event loop."""
    patience = Patience()
    while True:
        try:
            return work()
        except OSError as error:
            patience.wait(error)
