# retry.py - read again while another writer changes the object
# SPDX-License-Identifier: MIT
"""Read again while another writer changes the object: `retry` is the one loop.

Three errors are worth another attempt:

1. ESTALE. A server of a network file system forgets a file that another client has replaced by a new one. For up to about
   a second, this client's file descriptor and cached name of it lead nowhere. The engine reports ESTALE
   (csrc/io/sc_file.h), also if the file system reports ENOENT. The new file exists under the name.
2. An error with ``changed``: the reader knows that the object is no longer in the state that it began to read.
3. Damage in a file that was changed a moment ago. A writer that appends shrinks the file to its new end and overwrites an
   index at the start; in place it overwrites inner chunks. A reader in between may see bytes of two states. A file that
   does not change from one attempt to the next is damaged.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import random
import time
from collections.abc import Callable, Iterable
from typing import Any, Self, TypeVar

from ..errors import ChecksumError, CodecError, ShardError, ShardFileError, ShardFormatError
from . import absent

__all__ = ["DAMAGE", "Patience", "is_replaced", "retry"]

T = TypeVar("T")

# Seconds for which readers retry after ESTALE. GlusterFS, and FUSE in general, cache a directory entry for one second; under
# load, with writers that replace the file all the time, 3 of 19,627 reads did not succeed within 3 s.
READ_SECONDS = 10.0

# Bounds of the pause between two attempts, in seconds. The upper bound doubles from attempt to attempt; the pause is random,
# so that it does not keep step with a writer that replaces the file at regular times.
FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.1

# Seconds before each further attempt to read a file that a writer is changing. The first is longer than the time that some
# file systems need to show a change in the times of a file.
CHANGE_PAUSES = (0.01, 0.02, 0.04, 0.08)

# Attempts to open a file that is in its folder but was not found: a shard without inner chunks counts as not found, too.
MAX_FOUND = 3

# For this long after its last change a file counts as changing.
CHANGING_SECONDS = 2.0

# Errors that bytes of two states cause.
DAMAGE = (ShardFormatError, ChecksumError, CodecError)


def is_replaced(error: BaseException) -> bool:
    """Return True for ESTALE: another client has replaced a file; or the server has forgotten that this client has it open."""
    return isinstance(error, OSError) and (error.errno == errno.ESTALE or absent.is_forgotten(error))


class Patience:
    """The pauses between attempts of one piece of work.

    seconds: time to retry after the first ESTALE; 0: each first error is raised, because the caller cannot wait.
    """

    def __init__(self, seconds: float = READ_SECONDS) -> None:
        self._seconds = seconds
        self._deadline = 0.0
        self._bound = FIRST_PAUSE
        self._n_attempts = self._n_found = 0
        self._paths: set[Any] = set()
        self._owed = 0.0
        self._stale: Any = None  # the file of the last ESTALE, until it is looked at
        self._n_changes = 0
        self._seen: tuple[int, ...] | None = None

    @classmethod
    def after(cls, error: Exception, path: str | None = None) -> Self:
        """Return a `Patience` after an attempt that could not wait; raise its error unless another attempt may succeed."""
        patience = cls()
        patience._owed = patience.pause(error, path)
        return patience

    def catch_up(self) -> None:
        """Wait as long as the caller of `after` could not."""
        if self._owed:
            self._sleep(self._owed)
            self._owed = 0.0

    def _sleep(self, seconds: float) -> None:
        """Sleep; then look at a stale file by its name, so that a client of NFS forgets the cached name, by which an open goes again."""
        time.sleep(seconds)
        stale, self._stale = self._stale, None
        if stale is not None:
            with contextlib.suppress(OSError, TypeError, ValueError):
                os.stat(stale)

    def pause(self, error: Exception, path: str | None = None) -> float:
        """Return the seconds to wait before the next attempt; `path` is the file that was read.

        Raises `error` if the next attempt would fail like this one, or the time for retries is over; after ESTALE a note then
        says how often it was tried.
        """
        if isinstance(error, DAMAGE):
            seconds = self._change_pause(path, is_certain=getattr(error, "changed", False))
            if seconds is None:
                raise error
            return seconds
        if not is_replaced(error):
            raise error
        assert isinstance(error, OSError)
        if not self._paths:
            is_missing = isinstance(error, ShardFileError)
            self._deadline = time.monotonic() + min(self._seconds, absent.SECONDS if is_missing else math.inf)
        self._stale = error.filename
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

    def _change_pause(self, path: str | None, *, is_certain: bool) -> float | None:
        """Return the seconds to wait before a damaged object is read again; None if no writer is changing it."""
        n = self._n_changes
        if n == len(CHANGE_PAUSES) or not self._seconds:
            return None
        if path is not None:
            before, self._seen = self._seen, _state_of(path)
            is_certain = is_certain or (_is_changing(self._seen) and (n == 0 or self._seen != before))
        if not is_certain:
            return None
        self._n_changes += 1
        return 0.0 if path is None else CHANGE_PAUSES[n]  # other objects are replaced in one step

    def wait(self, error: Exception, path: str | None = None) -> None:
        """Wait before the next attempt, as `pause`. Threads that run an event loop must not call this."""
        self._sleep(self.pause(error, path))

    def sees_change(self, path: str | None) -> bool:
        """Return True, after a pause, if a writer is changing a file in which damage was found."""
        seconds = self._change_pause(path, is_certain=False)
        if seconds is not None:
            time.sleep(seconds)
        return seconds is not None

    def misses(self, paths: Iterable[Any]) -> bool:
        """Return True, after a pause, if the caller must repeat its attempt because a file may be missing only for a moment.

        `paths` are the files that this attempt did not find. True: an earlier attempt had ESTALE for one of them, and the time for
        retries is not over, or `absent.doubt` has an error. False, at once: otherwise; then the files do not exist. It blocks, so
        with time for retries it must not be called on an event loop.
        """
        missing = [path for path in paths if isinstance(path, str)]
        if self._paths and time.monotonic() < self._deadline and not self._paths.isdisjoint(missing):
            time.sleep(self._next_pause())
            return True
        error = absent.doubt(missing)
        is_found = error is not None and not isinstance(error, ShardFileError)
        self._n_found = self._n_found + 1 if is_found else 0
        if error is None or (self._n_found > MAX_FOUND and os.path.exists(error.filename)):
            return False
        self.wait(error)
        return True


def _state_of(path: str) -> tuple[int, ...] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _is_changing(state: tuple[int, ...] | None) -> bool:
    """Return True for a file that was changed a moment ago, or deleted since its bytes were read."""
    return state is None or abs(time.time() - state[0] / 1e9) < CHANGING_SECONDS


def retry(
    work: Callable[[], T],
    path: str | Callable[[Exception], str | None] | None = None,
    *,
    again: Callable[[T, Patience], bool] | None = None,
    patience: Patience | None = None,
) -> T:
    """Run work that reads, and repeat it with pauses while another writer changes what it reads; not on an event loop.

    path: the file that is read, or a function from an error to it; None if it is not a file. again: from a result to True if it
    must not be believed; it has waited then, by a method of the `Patience`. patience: that of an earlier attempt.
    """
    if patience is None:
        patience = Patience()
    else:
        patience.catch_up()
    while True:
        try:
            result = work()
        except (OSError, ShardError) as error:
            patience.wait(error, path(error) if callable(path) else path)
        else:
            if again is None or not again(result, patience):
                return result
