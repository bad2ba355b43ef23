# lock_scopes.py - how far the locks of this process reach, for each mount
# SPDX-License-Identifier: MIT
"""Looks once at each mount on which a shard is locked, warns if its locks do not reach other nodes, and remembers it.

`storage.file_system` has the rules. The kernel gives the numbers of mount and device with each lock, so a known mount costs
one look-up in a dictionary and no system call. Before Linux 6.8 a new mount may get the numbers of a mount that has been
removed; the process then keeps the answer for the old one.
"""

from __future__ import annotations

import os
import time
import warnings
from typing import Any, NamedTuple

from .. import mounts, native
from ..errors import LockScopeError, LockScopeWarning
from ..mounts import DescriptorInfo, Mount
from ..statistics import stats
from . import file_system
from .file_system import CLUSTER, NODE, NONE

__all__ = [
    "Known",
    "check_absent",
    "check_held",
    "check_not_lockable",
    "refuse_store",
    "report_unguarded",
    "scope_at",
]

_ADVICE = "let only one node write, or mount the file system with locks for all nodes (docs/cluster.md)"


class FileTime(NamedTuple):
    """When a file was made: by the clock of its file system, and by that of this machine before and after; in seconds."""

    stamp: float
    before: float
    after: float


class Known(NamedTuple):
    """A mount and the scope of its locks; `file_time` if a file was made to find out."""

    mount: Mount | None
    scope: str
    reason: str
    file_time: FileTime | None = None

    @property
    def name(self) -> str:
        """The mount for messages, as ``'/data' (nfs4)``."""
        return (
            "an unknown mount" if self.mount is None else f"{self.mount.point!r} ({self.mount.file_system})"
        )


# By (number of the mount, number of the device); for folders the number is 0, because `os.fstat` does not give it.
_known: dict[tuple[int, int], Known] = {}
_told: set[tuple[str, str]] = set()


def check_held(lock: Any, path: str, *, wants_cluster: bool) -> None:
    """Find out how far a lock that is held reaches; warn once for each mount of several nodes if it stays on this node.

    Parameters
    ----------
    lock : FileLock
        The lock of the file.
    path : str
        The file, for the error.
    wants_cluster : bool
        True if the lock must reach other nodes.

    Raises
    ------
    LockScopeError
        It must, but does not, or this cannot be told.
    """
    known = _known.get(lock.mount)
    if known is None:
        known = _known.setdefault(lock.mount, _look(lock.fd))
        _report(known)
    if wants_cluster and known.scope != CLUSTER:
        raise _error(path, known)


def check_not_lockable(lock: Any, path: str, why: str, *, wants_cluster: bool) -> None:
    """Warn once for each mount and reason that a file could not be locked.

    Parameters
    ----------
    lock : FileLock
        The lock after the attempt.
    path : str
        The file.
    why : str
        ``"unsupported"`` or ``"denied"``, as `FileLock.try_acquire` returns it.
    wants_cluster : bool
        True if the lock must reach other nodes.

    Raises
    ------
    LockScopeError
        It must.
    """
    known = _known.get(lock.mount) if why == "unsupported" else None
    if known is None:
        known = _not_lockable(path, why)
        if why == "unsupported":
            _known[lock.mount] = known
            _record(known)
    if wants_cluster:
        raise _error(path, known)
    text = {
        "unsupported": "expected a file system with locks for {path!r}, but {name} has none: shardcodec's writers in other "
        "processes are not excluded; let only one process write",
        "denied": "expected permission to open {path!r} on {name} for writing, but it is denied, so the file cannot be locked "
        "(replacing it may still be allowed): shardcodec's writers in other processes are not excluded",
    }[why]
    _warn(known.name, why, text.format(path=path, name=known.name))


def check_absent(path: str) -> None:
    """Check, before a new shard is made, that locks in its folder reach other nodes.

    On FUSE only a lock can tell, so a file with a temporary name is made and locked there, once for each mount.

    Raises
    ------
    LockScopeError
        They do not, or this cannot be told.
    """
    folder = os.path.dirname(path) or "."
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    key = 0, os.stat(folder).st_dev
    known = _known.get(key)
    if known is None:
        known = _known[key] = _probe(folder)
        _record(known)
    if known.scope != CLUSTER:
        raise _error(path, known)


def report_unguarded(path: str) -> None:
    """Warn once for each mount on which nothing keeps two new shards of one name apart; called after a file was stored."""
    if native.load().was_unguarded():
        known = Known(mounts.mount_of_path(path), NONE, "")
        _warn(
            known.name,
            "unguarded",
            f"{known.name} has neither hard links nor the flags of renameat2: a new shard appears whole, but if two processes make the "
            "same new shard at the same moment, the later one replaces the other; let only one process write each shard "
            "(docs/cluster.md)",
        )


def scope_at(folder: str, *, probe: bool) -> Known:
    """Find out how far locks of files in a folder reach, for a report.

    Parameters
    ----------
    folder : str
        It exists.
    probe : bool
        Make a file with a temporary name there, lock it and remove it. Without it, only the mount and its options tell,
        which is not enough on FUSE.
    """
    if probe:
        return _probe(folder)
    with mounts.Descriptor(folder) as fd:
        mount = mounts.mount_of(fd)
    return Known(mount, *file_system.lock_scope(mount, DescriptorInfo()))


def refuse_store(name: str, reason: str) -> LockScopeError:
    """Return the error for a store whose objects are not protected from writers on other nodes.

    Parameters
    ----------
    name : str
        The object.
    reason : str
        What the store lacks.
    """
    return LockScopeError(
        f"object {name!r}: locking='cluster' expects that writers on other nodes are excluded, but {reason}; nothing was "
        "written; let only one process write, with locking='process'",
        shard=name,
        scope=NONE,
        reason=reason,
    )


def _look(fd: int) -> Known:
    mount = mounts.mount_of(fd)
    try:
        info = mounts.descriptor_info(fd)
    except OSError:
        info = DescriptorInfo()
    found = file_system.lock_scope(mount, info)
    return Known(mount, found.scope, found.reason)


def _probe(folder: str) -> Known:
    """Lock a file with a temporary name in a folder."""
    engine = native.load()
    lock = engine.FileLock()
    before = time.time()
    file = engine.NewFile(f"{folder}/lock", shared=True)
    try:
        temp = file.place[1]
        made = FileTime(os.stat(temp).st_mtime, before, time.time())
        outcome = lock.try_acquire(temp)
        known = _look(lock.fd) if outcome == "held" else _not_lockable(temp, outcome)
        return known._replace(file_time=made)
    finally:
        lock.release()
        file.abort()


def _not_lockable(path: str, why: str) -> Known:
    reason = "the file may not be opened for writing" if why == "denied" else "the file system has no locks"
    return Known(mounts.mount_of_path(path), NONE, reason)


def _error(path: str, known: Known) -> LockScopeError:
    return LockScopeError(
        f"shard {path!r}: locking='cluster' expects a lock that reaches other nodes, but on {known.name} the scope of locks is "
        f"{known.scope!r} ({known.reason}); nothing was written; {_ADVICE}, or use locking='process'",
        shard=path,
        mount=known.mount and known.mount.point,
        file_system=known.mount and known.mount.file_system,
        scope=known.scope,
        reason=known.reason,
    )


def _report(known: Known) -> None:
    """Add a mount to `stats`; warn if several nodes may use it but its locks stay on this node."""
    _record(known)
    if known.scope == NODE and not file_system.is_on_this_machine(known.mount):
        _warn(
            known.name,
            known.scope,
            f"locks on {known.name} exclude shardcodec's writers on this node only ({known.reason}): updates of other nodes may be "
            f"lost; {_ADVICE}",
        )


def _record(known: Known) -> None:
    if known.mount is not None:
        stats.lock_scope(known.mount.point, known.mount.file_system, known.scope)


def _warn(name: str, why: str, text: str) -> None:
    if (name, why) not in _told:
        _told.add((name, why))
        warnings.warn(text, LockScopeWarning, stacklevel=2)
