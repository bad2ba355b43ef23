# file_locks.py - locks of shards between processes
# SPDX-License-Identifier: MIT
"""`hold`: lock shards against the writers of other processes; `update`: change files while they are locked.

The lock of a shard in a local file is a lock on that file (csrc/io/sc_lock.h explains why this is correct). A writer holds
it from the first read of the old bytes until the new bytes are in place. A shard that does not exist cannot be locked: the
writer creates it exclusively, and starts again if another writer has created it first.

A writer first takes the lock in the table of this process (`storage.locks`), so that only one thread or coroutine of the
process asks the kernel. It locks files in ascending order of their paths. Where an attempt waits for a round trip, it
tries several at the same time; if one is busy, it releases those of later paths before it waits, and then tries only the
busy one until it has it. So the writer that holds the first lock seldom finds that a waiting one holds a later lock.
Several locks are released at the same time, too.

The kernel does not report when a lock becomes free, so a waiting writer polls, with random pauses whose bound grows with the
time waited. In a coroutine the pause is a sleep of the event loop, not of a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any, TypeVar

from .. import mounts, native
from ..errors import LockError
from ..options import Options
from . import absent, file_systems, lock_reach, object_names
from .concurrent_calls import COSTLY_SECONDS, MAX_CALLS, call_all, call_each, finish_each
from .event_loop import in_thread
from .file_systems import OpenFile
from .retry import Patience
from .staging import lock_folder
from .worker_threads import caller

__all__ = [
    "MOVED",
    "NO_FILE",
    "FileLocks",
    "calls_wait",
    "check_deadline",
    "hold",
    "hold_async",
    "interrupted",
    "patience_of",
    "roll_back",
    "update",
]

T = TypeVar("T")

# In place of a file that does not exist: the writer must create it exclusively.
NO_FILE = OpenFile(-1)

# In place of the file if the name now leads to another one: the caller must resolve and lock that one.
MOVED = OpenFile(-2)

# Most locks of one write; each keeps a file open. When the process has reached `_most_locks`, a write takes one lock.
MAX_LOCKS = 256

# Two attempts in a row of at least this duration show what a call costs; a busy processor seldom delays both so much.
SURE_SECONDS = 1e-3

# An attempt opens the file, locks it, and looks whether its name still leads to it.
CALLS_PER_ATTEMPT = 3

# The longest pause between two attempts: this share of the time waited so far, within bounds in seconds.
WAIT_SHARE = 0.1
MIN_WAIT = 0.0005
MAX_WAIT = 0.1

# Seconds to retry even with a timeout of 0: a file that appears between two calls is normal.
MIN_PATIENCE = 1.0

# Up to this many files are locked on the event loop itself; more are locked in a thread.
INLINE_LOCKS = 4


# Thread and path of each file whose lock a write holds. Only a signal handler can find its own thread here.
_writing: set[tuple[int, str]] = set()
os.register_at_fork(after_in_child=_writing.clear)


class FileLocks:
    """Locks of the first of several files; after `advance` has returned True, the length of `held` is their number.

    paths: ascending, with symbolic links resolved. names: those by which the caller reads and writes the files; each is
    checked, under the lock, to lead to its path.

    prompt: the files are on a local file system; False: that is to be found out.

    held: for each file the descriptor that holds its lock, and the file as it was then; `NO_FILE` if it does not exist; None if
    the file cannot be locked or ``locking`` is "thread"; `MOVED` if the name now leads to another file.
    """

    def __init__(
        self,
        paths: Sequence[str],
        options: Options,
        names: Sequence[str] | None = None,
        *,
        prompt: bool = False,
    ) -> None:
        self._paths = paths
        self._names = paths if names is None else names
        self._prompt = prompt
        self._native = options.locking != "thread"
        self._wants_cluster = options.locking == "cluster"
        self._options = options
        self._timeout = options.lock_timeout
        self._begun = time.monotonic()
        self._has_tried = False
        self.held: list[OpenFile | None] = []
        self._locks: list[Any] = []  # of the same files as `held`, and of those that are being tried
        self._entries: list[tuple[int, str]] = []  # in `_writing`
        self._attempts_wait = self._is_cost_known = False
        self._waited = 0.0  # seconds of the attempts before, if their cost was not known
        self._is_busy = False  # the next lock, when it was last tried
        self._doubt: tuple[float, OSError] | None = (
            None  # since when, whether a file exists that was not found
        )

    def advance(self) -> bool:
        """Take locks until there are enough; return False if another process holds the next one.

        LockScopeError: ``locking`` is "cluster", and a lock does not reach other nodes.
        """
        engine = native.load() if self._native else None
        # it calls the file system, which `__init__` must not do: that may run on an event loop
        if engine is not None and not self._has_tried and len(self._paths) > 1:
            self._attempts_wait = self._is_cost_known = calls_wait(self._paths[0], self._options)
        self._has_tried = True
        while len(self.held) < len(self._paths) and not self._enough(engine):
            if engine is None:
                self._add([None])
            elif not self._try_next(engine):
                return False
        return True

    def _try_next(self, engine: Any) -> bool:
        """Take the next lock, or the next ones at the same time where each attempt waits; return False if one is busy.

        LockError, at once: this thread, or the one that waits for it, holds it in a write that a signal handler has interrupted, and that
        cannot go on meanwhile.
        """
        paths = self._next_paths(engine)
        names = self._names[len(self.held) : len(self.held) + len(paths)]
        locks = [engine.FileLock() for _ in paths]
        self._locks += locks  # from here on `release` finds them, also after an interrupt
        doubt = self._doubt
        tried = call_all(lambda i: self._timed(locks[i], paths[i], names[i]), range(len(paths)))
        outcomes = [outcome for outcome, _ in tried]
        self._doubt = None if self._doubt is doubt else self._doubt
        self._note_duration(min(seconds for _, seconds in tried))
        taken = outcomes.index("busy") if "busy" in outcomes else len(outcomes)
        self._is_busy = taken < len(outcomes)
        if self._is_busy and not _writing.isdisjoint(
            (ident, paths[taken]) for ident in (get_ident(), caller())
        ):
            raise interrupted(paths[taken])
        if self._is_busy:  # a writer that waits for a lock holds none of a later path
            self._release_from(len(self.held) + taken)
        entries = [(get_ident(), path) for path in paths[:taken]]
        self._entries += entries
        _writing.update(entries)
        self._add(
            [self._taken(engine, *attempt) for attempt in zip(locks, paths, outcomes[:taken], strict=False)]
        )
        return not self._is_busy

    def _timed(self, lock: Any, path: str, name: str) -> tuple[str, float]:
        """Try to take a lock, that of the lock file where locks can be lost; return the outcome and the seconds."""
        begin = time.perf_counter()
        network = "" if self._prompt else file_systems.network_type(os.path.dirname(path))
        is_leased = network in file_systems.LEASED_TYPES
        folder = lock_folder(path) if is_leased else None
        outcome: str = lock.try_acquire(path, name, folder, file_systems.LOCK_KINDS.get(network, 0))
        if outcome == "guarded" and not is_leased:
            outcome = lock.try_acquire(path, name, lock_folder(path))
        if outcome == "no file" and is_leased and (doubt := absent.doubt([path])) is not None:
            lock.release()
            self._doubt = self._doubt[0] if self._doubt else time.monotonic(), doubt
            return "busy", time.perf_counter() - begin
        if outcome == "guarded":
            raise LockError(
                f"shard {path!r}: other processes update it under the lock file {lock_folder(path)}/lock, which this process may not "
                "open for writing; nothing was written; ask its owner for permission to write this folder and file",
                shard=path,
            )
        return outcome, time.perf_counter() - begin

    def _note_duration(self, seconds: float) -> None:
        """Try several locks at the same time from now on if an attempt waits; after two slow ones raise the estimate of a call."""
        self._attempts_wait |= seconds >= COSTLY_SECONDS
        least = min(self._waited, seconds)
        if not self._is_cost_known and least >= SURE_SECONDS:
            file_systems.raise_call_seconds(self._paths[0], least / CALLS_PER_ATTEMPT)
            self._is_cost_known = True
        self._waited = seconds

    def _next_paths(self, engine: Any) -> Sequence[str]:
        """Return the paths whose locks are tried at the same time: one, unless the attempts wait and the next is not busy."""
        first = len(self.held)
        most = 1
        if self._attempts_wait and not self._is_busy:
            most = min(MAX_CALLS, MAX_LOCKS - first, _most_locks() - engine.file_locks_held())
        last = first + 1
        while last < min(first + most, len(self._paths)) and self._paths[last] != self._paths[last - 1]:
            last += 1
        return self._paths[first:last]

    def _taken(self, engine: Any, lock: Any, path: str, outcome: str) -> OpenFile | None:
        """Return the entry of `held` for a file, after an attempt to lock it."""
        if outcome == "held":
            lock_reach.check_held(lock, path, wants_cluster=self._wants_cluster)
            if not (lock.is_guarded or self._prompt) and file_systems.loses_locks(os.path.dirname(path)):
                lock_reach.check_unfenced(path, lock_folder(path), wants_cluster=self._wants_cluster)
            file = OpenFile._make((lock.fd, *lock.seen, lock.mount[0], lock.is_guarded))
            if file.n_links > 1:  # roll back an unfinished update before the first read
                engine.roll_back(path, lock.fd)
                return OpenFile.seen(lock.fd, file.mount_id, is_guarded=file.is_guarded)
            return file
        if outcome == "no file":
            if self._wants_cluster:
                lock_reach.check_absent(path)
            return NO_FILE
        lock_reach.check_not_lockable(lock, path, outcome, wants_cluster=self._wants_cluster)
        return None

    def _add(self, files: list[OpenFile | None]) -> None:
        """Append entries to `held`; `MOVED` for a file whose link was erased or changed during the wait."""
        these = slice(len(self.held), len(self.held) + len(files))
        names, paths = self._names[these], self._paths[these]
        if names != paths:
            work = list(zip(names, paths, files, strict=True))
            files = call_each(lambda arguments: _checked(*arguments), work, waits=self._attempts_wait)
        self.held += files

    def _enough(self, engine: Any) -> bool:
        n = len(self.held)
        if n == 0:
            return False
        return (
            n >= MAX_LOCKS
            or self._paths[n] == self._paths[n - 1]  # two names of one file
            or (engine is not None and engine.file_locks_held() >= _most_locks())
        )

    def wait(self) -> float:
        """Return the seconds to wait before the next attempt; LockError if ``SHARDCODEC_LOCK_TIMEOUT`` has passed."""
        waited = time.monotonic() - self._begun
        if self._doubt is not None and time.monotonic() >= self._doubt[0] + min(
            self._timeout, absent.SECONDS
        ):
            self._doubt[1].errno = None  # the caller does not wait once more
            raise self._doubt[1]
        if waited >= self._timeout:
            raise self._error(self._paths[len(self.held)])
        longest = min(max(WAIT_SHARE * waited, MIN_WAIT), MAX_WAIT)
        return min(_pause(longest), max(self._timeout - waited, MIN_WAIT))

    def _error(self, path: str) -> LockError:
        holders = _holders(path)
        by = " and ".join(f"process {pid} ({command})" for pid, command in holders)
        return LockError(
            f"shard {path!r}: expected its lock within {self._timeout:g} s, but it is locked by {by or 'another process'}; "
            "nothing was written, so try again or raise SHARDCODEC_LOCK_TIMEOUT",
            shard=path,
            limit=self._timeout,
            holders=holders,
        )

    def release(self) -> None:
        """Release all locks."""
        self._release_from(0)

    def _release_from(self, first: int) -> None:
        """Release the locks of the files from the first on, in reverse order, or at the same time where each call waits."""
        _writing.difference_update(self._entries[first:])
        del self._entries[first:]
        if held := [lock for lock in reversed(self._locks[first:]) if lock.is_held]:
            keeps = self._options.open_files > 0
            finish_each(lambda lock: lock.release(keeps), held, waits=self._attempts_wait)
        del self._locks[first:]


def interrupted(path: str) -> LockError:
    """Return the error of a write in a signal handler into an object that the interrupted statement writes."""
    return LockError(
        f"shard {path!r}: expected no write into it from a signal handler, because this thread holds its lock in the write that the "
        "handler has interrupted; nothing was written. Let the handler set a flag, and write when the interrupted statement has "
        "ended, or let another thread write",
        shard=path,
    )


def _checked(name: str, path: str, file: OpenFile | None) -> OpenFile | None:
    """Return an entry of `FileLocks.held` again, or `MOVED` if the name does not lead to the path any longer."""
    if name == path:  # no link
        return file
    try:
        status = os.stat(name)
        if stat.S_ISDIR(status.st_mode):  # no shard; the engine refuses to write there
            return NO_FILE
        if file is None:
            is_there = os.path.samestat(status, os.stat(path))
        else:
            is_there = (status.st_dev, status.st_ino) == (file.device, file.inode)
    except FileNotFoundError:  # both names of a dangling link lead to nothing
        is_there = file is NO_FILE or (file is None and not os.path.lexists(path))
    except OSError:  # the write itself will raise it
        return file
    return file if is_there else MOVED


def _pause(longest: float) -> float:
    """Return a pause of at most so many seconds, of any order of magnitude with the same probability.

    A lock that another node takes again and again is free only for moments, so a writer must also ask twice in a short time.
    """
    shortest = MIN_WAIT / 2
    return float(shortest * (longest / shortest) ** random.random())


def calls_wait(path: str, options: Options) -> bool:
    """Return True if a call to the file system of a path is known to be worth a thread."""
    known = options.io_latency
    if not isinstance(known, float):
        known = file_systems.call_seconds(object_names.known_folder(path))
    return known >= COSTLY_SECONDS


@contextlib.contextmanager
def hold(
    paths: Sequence[str], options: Options, names: Sequence[str] | None = None, *, prompt: bool = False
) -> Iterator[list[OpenFile | None]]:
    """Hold the locks of the first of several files; see `FileLocks.held`. Threads that run an event loop must not call this.

    The caller locks the remaining files with another call, after it has released these.
    """
    locks = FileLocks(paths, options, names, prompt=prompt)
    try:
        while not locks.advance():
            time.sleep(locks.wait())
        yield locks.held
    finally:
        locks.release()


class AsyncFileHold:
    """An asynchronous context manager that locks files; a class instead of a generator, as `process_locks.AsyncHold`."""

    __slots__ = ("_few", "_locks", "_prompt")

    def __init__(
        self, paths: Sequence[str], options: Options, names: Sequence[str] | None, *, prompt: bool
    ) -> None:
        self._locks = FileLocks(paths, options, names, prompt=prompt)
        self._prompt = prompt
        self._few = len(paths) <= INLINE_LOCKS

    async def __aenter__(self) -> list[OpenFile | None]:
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
) -> AsyncFileHold:
    """Hold the locks of the first of several files, as `hold`, without blocking the event loop.

    With `prompt`, calls on these files need no network round trip, so up to `INLINE_LOCKS` files are locked on the event
    loop itself.
    """
    return AsyncFileHold(paths, options, names, prompt=prompt)


async def _run(work: Callable[[], T], *, inline: bool) -> T:
    """Call `work` inline or in a thread; wait for the thread to its end, because its locks must be released."""
    return work() if inline else await in_thread(work)


def update(
    path: str, options: Options, work: Callable[[OpenFile | None], bool], name: str | None = None
) -> None:
    """Update one file under its lock, for a caller that cannot repeat its work after ESTALE.

    Threads that run an event loop must not call this. path: with symbolic links resolved. name: that by which `work` replaces it, if
    it has links. work: called with the entry of
    `FileLocks.held`; it returns False if that was `NO_FILE` but the file exists by now, and is then called again with the lock.
    """
    deadline = time.monotonic() + options.lock_timeout
    while True:
        with hold([path], options, None if name is None else [name]) as held:
            if work(held[0]):
                return
        check_deadline(deadline, path, options)


def patience_of(options: Options) -> Patience:
    """Return the `Patience` of a writer that locks and reads again a file which other clients replace."""
    return Patience(max(options.lock_timeout, MIN_PATIENCE))


def roll_back(path: str) -> None:
    """Roll back the unfinished in-place update of a dead writer, in a file that is not locked."""
    fd = native.load().open_file(path)
    if fd < 0:
        return
    try:
        native.load().roll_back(os.path.realpath(path), fd)
    finally:
        os.close(fd)


def check_deadline(deadline: float, path: str, options: Options) -> None:
    """Raise LockError for a file that other processes create and remove repeatedly, when the deadline and `MIN_PATIENCE` have passed."""
    if time.monotonic() >= deadline + MIN_PATIENCE:
        raise LockError(
            f"shard {path!r}: expected its lock within {options.lock_timeout:g} s, but other processes created and removed "
            "the file each time before it could be locked; nothing was written, so try again",
            shard=path,
            limit=options.lock_timeout,
        )


def _most_locks() -> int:
    try:
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    except OSError:  # a sandbox may refuse the call
        soft = 1024
    return 4 * MAX_LOCKS if soft == resource.RLIM_INFINITY else min(4 * MAX_LOCKS, soft // 4)


def _holders(path: str) -> list[tuple[int, str]]:
    """Return (pid, command) of the processes of this machine that lock a file, as far as /proc permits to see them."""
    holders = []
    try:
        with mounts.Descriptor(path, getattr(os, "O_PATH", os.O_RDONLY)) as fd:
            file, mount = OpenFile.seen(fd), mounts.descriptor_info(fd).mount_number
    except OSError:
        return []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(_is_lock_on(process, fd.name, file, mount) for fd in (process / "fd").iterdir()):
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                holders.append((int(process.name), command.strip()[:200]))
    return sorted(holders)


def _is_lock_on(process: Path, fd: str, file: OpenFile, mount: str | None) -> bool:
    """Return True if an open file of a process is this one, and locked. One of another mount is not asked: its server may be gone."""
    try:
        info = (process / "fdinfo" / fd).read_text()
        if "OFDLCK" not in info:
            return False
        if mount is not None and f"mnt_id:\t{mount}\n" in info:
            there = (process / "fd" / fd).stat()
            return (there.st_dev, there.st_ino) == (file.device, file.inode)
        # the kernel's numbers of a locked file: another container may have the same file on a mount of its own
        return f" {os.major(file.device):02x}:{os.minor(file.device):02x}:{file.inode} " in info
    except OSError:
        return False
