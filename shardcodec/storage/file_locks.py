# file_locks.py - one writer at a time for every shard, among all processes
# SPDX-License-Identifier: MIT
"""Locks between processes.

The lock of a shard in a local file is one on that very file (csrc/io/sc_lock.h tells why that is right), held from the
first look at the old bytes until the new ones are in place. A shard that does not exist has nothing to lock: it is
created exclusively, and a writer that finds that another came first starts again.

Before the lock of a file, its lock in the table of this process is taken (`storage.locks`), so that only one of all
threads and coroutines here asks the kernel. Files are locked in ascending order of their paths, and never one while a
later one is held.

Nobody is told when a lock becomes free: whoever waits asks again, after a while that grows with the time waited. No
thread sleeps for that where an event loop can.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from .. import native
from ..errors import LockError
from ..options import Options
from .retry import Patience
from .tasks import to_its_end

__all__ = [
    "MOVED",
    "NO_FILE",
    "FileLocks",
    "check_deadline",
    "hold",
    "hold_async",
    "patience_of",
    "settle",
    "update",
    "update_async",
]

T = TypeVar("T")

# Stands for the descriptor of a file that does not exist: it must be made under the condition that it still does not.
NO_FILE = -1

# Stands for the descriptor where the name has come to lead to another file, which has to be found out and locked.
MOVED = -2

# Locks of one write: each holds a file open. Beyond a quarter of what the process may open, one writer has one lock.
MAX_LOCKS = 256

# The wait between two attempts: this share of the time waited so far, within bounds in seconds, and a random part less.
WAIT_SHARE = 0.1
MIN_WAIT = 0.0005
MAX_WAIT = 0.1

# A file that appears between two calls is no sign of trouble, also where nobody wants to wait.
MIN_PATIENCE = 1.0

# So many attempts are made on the event loop itself; more of them go to a thread.
INLINE_LOCKS = 4

_REASONS = {
    "unsupported": "the file system of {path!r} has no locks: shardcodec's writers in other processes are not excluded",
    "denied": "{path!r} may not be opened for writing, so it cannot be locked (replacing it may still be allowed): "
    "shardcodec's writers in other processes are not excluded",
}
_told: set[str] = set()


class FileLocks:
    """Locks of the first few of some files; how many, `held` tells when `advance` has returned True.

    Parameters
    ----------
    paths : sequence of str
        Ascending, symbolic links resolved.
    options : Options
        ``locking`` and ``lock_timeout`` count.
    names : sequence of str, optional
        How the files are read and written; each still has to lead to its file when that is locked.

    Attributes
    ----------
    held : list of (int or None)
        For each file the descriptor that has its lock; `NO_FILE` where there is no file; None where there are no locks;
        `MOVED` where the name leads elsewhere by now.
    """

    def __init__(self, paths: Sequence[str], options: Options, names: Sequence[str] | None = None) -> None:
        self._paths = paths
        self._names = paths if names is None else names
        self._native = options.locking == "process"
        self._timeout = options.lock_timeout
        self._begun = time.monotonic()
        self.held: list[int | None] = []
        self._locks: list[Any] = []

    def advance(self) -> bool:
        """Take locks until there are enough; False when another process has the next one."""
        engine = native.load() if self._native else None
        while len(self.held) < len(self._paths) and not self._enough(engine):
            if engine is None:
                self.held.append(self._checked(None))
                continue
            lock = engine.FileLock()
            outcome = lock.try_acquire(self._paths[len(self.held)])
            if outcome == "busy":
                return False
            if outcome == "held":
                self._locks.append(lock)
                if lock.n_links > 1:  # nothing is read before that
                    engine.settle(self._paths[len(self.held)], lock.fd)
                self.held.append(self._checked(lock.fd))
            else:
                self._tell(outcome)
                self.held.append(self._checked(NO_FILE if outcome == "no file" else None))
        return True

    def _checked(self, fd: int | None) -> int | None:
        """Return what stands for the next file; `MOVED` if a link was erased or changed while its target was waited for."""
        name, path = self._names[len(self.held)], self._paths[len(self.held)]
        if name == path:  # no link
            return fd
        try:
            found = os.stat(name)
            is_there = fd != NO_FILE and os.path.samestat(
                found, os.stat(path) if fd is None else os.fstat(fd)
            )
        except FileNotFoundError:  # a dangling link leads to nothing under either name
            is_there = fd == NO_FILE or (fd is None and not os.path.lexists(path))
        except OSError:  # told by who writes the file
            return fd
        return fd if is_there else MOVED

    def _enough(self, engine: Any) -> bool:
        n = len(self.held)
        if n == 0:
            return False
        return (
            n >= MAX_LOCKS
            or self._paths[n] == self._paths[n - 1]  # two names of one file
            or (engine is not None and engine.file_locks_held() >= _most_locks())
        )

    def _tell(self, reason: str) -> None:
        if reason in _REASONS and reason not in _told:
            _told.add(reason)
            text = _REASONS[reason].format(path=self._paths[len(self.held)])
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def wait(self) -> float:
        """Return how long to wait before the next attempt.

        Raises
        ------
        LockError
            It has been long enough.
        """
        waited = time.monotonic() - self._begun
        if waited >= self._timeout:
            raise self._error(self._paths[len(self.held)])
        wait = min(max(WAIT_SHARE * waited, MIN_WAIT), MAX_WAIT)
        return min(wait * random.uniform(0.5, 1.0), max(self._timeout - waited, MIN_WAIT))

    def _error(self, path: str) -> LockError:
        holders = _holders(path)
        by = " and ".join(f"process {pid} ({command})" for pid, command in holders)
        return LockError(
            f"shard {path!r}: locked by {by or 'another process'}, not obtained within {self._timeout:g} s",
            shard=path,
            limit=self._timeout,
            holders=holders,
        )

    def release(self) -> None:
        """Give all of them back, the last first."""
        while self._locks:
            self._locks.pop().release()


@contextlib.contextmanager
def hold(
    paths: Sequence[str], options: Options, names: Sequence[str] | None = None
) -> Iterator[list[int | None]]:
    """Hold the locks of the first few of some files. Not for a thread that runs an event loop.

    Yields
    ------
    list
        See `FileLocks.held`. Whoever wants more than that many comes again, when these have been given back.

    Raises
    ------
    LockError
        Another process has not given one of them back in time.
    """
    locks = FileLocks(paths, options, names)
    try:
        while not locks.advance():
            time.sleep(locks.wait())
        yield locks.held
    finally:
        locks.release()


class AsyncHold:
    """A block in which files are locked; no generator, as in `locks.Hold`."""

    __slots__ = ("_few", "_locks", "_prompt")

    def __init__(
        self, paths: Sequence[str], options: Options, names: Sequence[str] | None, *, prompt: bool
    ) -> None:
        self._locks = FileLocks(paths, options, names)
        self._prompt = prompt
        self._few = len(paths) <= INLINE_LOCKS

    async def __aenter__(self) -> list[int | None]:
        try:
            while not await _run(self._locks.advance, inline=self._prompt and self._few):
                await asyncio.sleep(self._locks.wait())
        except BaseException:
            await _run(self._locks.release, inline=self._prompt)
            raise
        return self._locks.held

    async def __aexit__(self, *exception: object) -> None:
        await _run(self._locks.release, inline=self._prompt)


def hold_async(
    paths: Sequence[str], options: Options, names: Sequence[str] | None = None, *, prompt: bool
) -> AsyncHold:
    """Hold the locks of the first few of some files; as `hold`, without blocking the event loop.

    With `prompt`, no call on these files takes a round trip; few of them may be made on the event loop.
    """
    return AsyncHold(paths, options, names, prompt=prompt)


async def _run(work: Callable[[], T], *, inline: bool) -> T:
    """Call something; if not on the event loop itself, then to its end, because what it takes has to be given back."""
    return work() if inline else await to_its_end(asyncio.to_thread(work))


def update(
    path: str,
    options: Options,
    work: Callable[[int | None], bool],
    *,
    name: str | None = None,
    repeats: bool = True,
) -> None:
    """Do something to one file under its lock. Not for a thread that runs an event loop.

    Parameters
    ----------
    work : callable
        Gets what `FileLocks.held` has; returns False when it was told that there is no file, and there is one: then
        it is called again, with its lock.
    name : str, optional
        How `work` reads and writes the file, if that is not its path: perhaps a link, which must still lead there.

    Raises
    ------
    LockError
        The lock was not to be had in time, or the file comes and goes all the time.
    """
    deadline = time.monotonic() + options.lock_timeout
    patience = patience_of(options)
    while True:
        try:
            with hold([path], options, [name or path]) as held:
                moved = held[0] == MOVED
                done = not moved and work(held[0])
        except OSError as error:
            if not repeats:
                raise
            patience.wait(error)
            continue
        if done:
            return
        check_deadline(deadline, path, options)
        if moved:
            path = os.path.realpath(name or path)


async def update_async(
    path: str,
    options: Options,
    work: Callable[[int | None], Awaitable[bool]],
    *,
    name: str | None = None,
    prompt: bool,
) -> None:
    """Do something to one file under its lock; as `update`, without blocking the event loop (see `hold_async`)."""
    deadline = time.monotonic() + options.lock_timeout
    patience = patience_of(options)
    while True:
        try:
            async with hold_async([path], options, [name or path], prompt=prompt) as held:
                moved = held[0] == MOVED
                done = not moved and await work(held[0])
        except OSError as error:
            await asyncio.sleep(patience.pause(error))
            continue
        if done:
            return
        check_deadline(deadline, path, options)
        if moved:
            path = await asyncio.to_thread(os.path.realpath, name or path)


def patience_of(options: Options) -> Patience:
    """Return for how long a writer locks and reads a file anew that other clients replace."""
    return Patience(max(options.lock_timeout, MIN_PATIENCE))


def settle(path: str) -> None:
    """Roll back what a writer that died left of an update in place of a file that is not locked."""
    fd = native.load().open_file(path)
    if fd < 0:
        return
    try:
        native.load().settle(os.path.realpath(path), fd)
    finally:
        os.close(fd)


def check_deadline(deadline: float, path: str, options: Options) -> None:
    """Give up on a file that others make and remove again and again.

    Raises
    ------
    LockError
    """
    if time.monotonic() >= deadline + MIN_PATIENCE:
        raise LockError(
            f"shard {path!r}: made and removed by others for {options.lock_timeout:g} s, each time before it could be locked",
            shard=path,
            limit=options.lock_timeout,
        )


def _most_locks() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 4 * MAX_LOCKS if soft == resource.RLIM_INFINITY else min(4 * MAX_LOCKS, soft // 4)


def _holders(path: str) -> list[tuple[int, str]]:
    """Processes of this machine that have a lock on a file, as far as we may know: their number and command."""
    found = []
    try:
        wanted = os.stat(path)
    except OSError:
        return []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(_is_lock_on(process, fd.name, wanted) for fd in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((int(process.name), command.strip()[:200]))
    return sorted(found)


def _is_lock_on(process: Path, fd: str, wanted: os.stat_result) -> bool:
    try:
        there = (process / "fd" / fd).stat()
        if (there.st_dev, there.st_ino) != (wanted.st_dev, wanted.st_ino):
            return False
        return "OFDLCK" in (process / "fdinfo" / fd).read_text()
    except OSError:
        return False
