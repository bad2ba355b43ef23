# lock_reach.py - how far the locks of this process reach, for each mount
# SPDX-License-Identifier: MIT
"""`scope_at`: look once at each mount on which a shard is locked, warn if its locks do not reach other nodes, and remember it.

`storage.file_systems` has the rules. The kernel gives the numbers of mount and device with each lock, so a known mount costs
one look-up in a dictionary and no system call. Before Linux 6.8 a new mount may get the numbers of a mount that has been
removed; the process then keeps the answer for the old one.
"""

from __future__ import annotations

import errno
import os
import re
import time
import warnings
from typing import Any, NamedTuple

from .. import mounts, native
from ..errors import LockScopeError, LockScopeWarning
from ..mounts import DescriptorInfo, Mount
from ..statistics import stats
from .file_systems import (
    CLUSTER,
    NODE,
    NONE,
    OUT_OF_RESOURCES,
    LockScope,
    is_on_this_machine,
    lock_scope,
    mount_of,
)

__all__ = [
    "MountScope",
    "check_absent",
    "check_held",
    "check_not_lockable",
    "lease_seconds",
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


class MountScope(NamedTuple):
    """A mount and the scope of its locks; `file_time` if a file was made to find out, `lasts` if it may be memoised."""

    mount: Mount | None
    scope: str
    reason: str
    file_time: FileTime | None = None
    lasts: bool = True

    @property
    def name(self) -> str:
        """The mount for messages, as ``'/data' (nfs4)``."""
        if self.mount is None:
            return "an unknown mount"
        return (
            f"{self.mount.point!r} ({self.mount.file_system})"
            if self.mount.point
            else f"an unknown mount ({self.mount.file_system})"
        )


# By (number of the mount, number of the device); for folders the number is 0, because `os.fstat` does not give it.
_known_scopes: dict[tuple[int, int], MountScope] = {}
_told: set[tuple[str, str]] = set()


def check_held(lock: Any, path: str, *, wants_cluster: bool) -> None:
    """Find out how far a lock that is held reaches; warn once for each mount of several nodes if it stays on this node.

    With `wants_cluster` raise `LockScopeError` if it does not reach other nodes, or this cannot be told.
    """
    known = _known_scopes.get(lock.mount)
    if known is None:
        try:
            known = _look(lock.fd)
        except OSError as error:  # the server has forgotten this client, and the lock
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path) from error
        if known.lasts:
            _known_scopes[lock.mount] = known
            _report(known)
    if wants_cluster and known.scope != CLUSTER:
        raise _error(path, known)


def check_unfenced(path: str, folder: str, *, wants_cluster: bool) -> None:
    """Warn once for each mount that a lock which can be lost is held without the lock file; with `wants_cluster` raise `LockScopeError`.

    folder: that of the lock file, which this process may not use.
    """
    why = (
        f"a node that is cut off for longer than its lease loses its locks there, and this process may not use the lock file in {folder!r}, "
        "which would end its updates (it belongs to another user, or its server maps users, as root_squash does)"
    )
    known = MountScope(mounts.mount_of_path(path), NODE, why)
    if wants_cluster:
        raise _error(path, known)
    _warn(
        known.name,
        "unfenced",
        f"locks on {known.name} can be lost: {why}; let the owner of the array make this folder, or let only one node write",
    )


def check_not_lockable(lock: Any, path: str, why: str, *, wants_cluster: bool) -> None:
    """Warn once for each mount and reason that a file could not be locked; with `wants_cluster` raise `LockScopeError`.

    why: ``"unsupported"`` or ``"denied"``, as `FileLock.try_acquire` returns it.
    """
    known = _known_scopes.get(lock.mount) if why == "unsupported" else None
    if known is None:
        known = _not_lockable(path, why, lock.refusal)
        if why == "unsupported":
            _known_scopes[lock.mount] = known
            _record(known)
    if wants_cluster:
        raise _error(path, known)
    text = {
        "unsupported": "expected a file system with locks for {path!r}, but {name} has none ({reason}): shardcodec's writers in "
        "other processes are not excluded; let only one process write",
        "denied": "expected permission to open {path!r} on {name} for writing and to lock it, but {reason} "
        "(replacing it may still be allowed): shardcodec's writers in other processes are not excluded",
    }[why]
    _warn(known.name, why, text.format(path=path, name=known.name, reason=known.reason))


def check_absent(path: str) -> None:
    """Raise `LockScopeError`, before a new shard is made, unless locks in its folder reach other nodes.

    On FUSE only a lock can tell, so a file with a temporary name is made and locked there, once for each mount.
    """
    folder = os.path.dirname(path) or "."
    while not os.path.isdir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    key = 0, os.stat(folder).st_dev
    known = _known_scopes.get(key)
    if known is None:
        known = _probe(folder)
        if known.lasts:
            _known_scopes[key] = known
            _record(known)
    if known.scope != CLUSTER:
        raise _error(path, known)


def report_unguarded(path: str) -> None:
    """Warn once for each mount on which nothing keeps two new shards of one name apart; called after a file was stored."""
    if native.load().was_unguarded():
        known = MountScope(mounts.mount_of_path(path), NONE, "")
        _warn(
            known.name,
            "unguarded",
            f"{known.name} has neither hard links nor the flags of renameat2: a new shard appears whole, but if two processes make the "
            "same new shard at the same moment, the later one replaces the other; let only one process write each shard "
            "(docs/cluster.md)",
        )


def scope_at(folder: str, *, probe: bool) -> MountScope:
    """Find out how far locks of files in a folder reach, for a report. The folder exists.

    probe: make a file with a temporary name there, lock it and remove it. Without it, only the mount and its options tell,
    which is not enough on FUSE.
    """
    if probe:
        return _probe(folder)
    with mounts.Descriptor(folder) as fd:
        mount = mounts.mount_of(fd)
    return MountScope(mount, *_scope_here(mount, DescriptorInfo()))


def lease_seconds(mount: Mount) -> int | None:
    """Return the seconds after which a server of NFS 4 gives the locks of a silent client away; None if it is not known."""
    try:
        with open("/proc/self/mountstats") as lines:
            told = lines.read().partition(f" mounted on {mount.point} ")[2].partition("\ndevice ")[0]
    except OSError:
        return None
    found = re.search(r"lease_time=(\d+)", told)
    return int(found[1]) if found else None


def refuse_store(name: str, reason: str) -> LockScopeError:
    """Return the error for a store whose objects are not protected from writers on other nodes. reason: what the store lacks."""
    return LockScopeError(
        f"object {name!r}: locking='cluster' expects that writers on other nodes are excluded, but {reason}; nothing was "
        "written; let only one process write, with locking='process'",
        shard=name,
        scope=NONE,
        reason=reason,
    )


def _look(fd: int) -> MountScope:
    mount, lasts = mount_of(fd)
    try:
        info = mounts.descriptor_info(fd)
    except OSError as error:
        info, lasts = DescriptorInfo(), lasts and error.errno not in OUT_OF_RESOURCES
    scope = _scope_here(mount, info)
    return MountScope(mount, scope.scope, scope.reason, lasts=lasts)


def _scope_here(mount: Mount | None, info: DescriptorInfo) -> LockScope:
    """Return the scope of a lock, as far as the kernel of this process can use it."""
    scope = lock_scope(mount, info)
    if scope.scope == CLUSTER and not native.load().looks_anew():
        reason = "this kernel or sandbox has no statx(), so a file that another node has replaced may not be noticed"
        return LockScope(NODE, reason)
    return scope


def _probe(folder: str) -> MountScope:
    """Lock a file with a temporary name in a folder."""
    engine = native.load()
    lock = engine.FileLock()
    before = time.time()
    file = engine.NewFile(f"{folder}/lock", shared=True)
    try:
        temp = file.place[1]
        made = FileTime(os.stat(temp).st_mtime, before, time.time())
        outcome = lock.try_acquire(temp)
        known = _look(lock.fd) if outcome == "held" else _not_lockable(temp, outcome, lock.refusal)
        return known._replace(file_time=made)
    finally:
        lock.release()
        file.abort()


def _not_lockable(path: str, why: str, refusal: int) -> MountScope:
    """Describe a file that could not be locked. refusal: the errno of the lock, 0 if the file could not be opened."""
    mount = mounts.mount_of_path(path)
    code = errno.errorcode.get(refusal, str(refusal))
    if not refusal:
        reason = "the file may not be opened for writing"
    elif why == "denied":
        reason = f"a lock is refused with {code}, as by a security module or a sandbox"
    elif refusal == errno.ENOLCK and mount is not None and mount.file_system == "nfs":
        reason = (
            "the kernel answers ENOLCK: NFS 3 locks through services of its own, lockd in the kernel and rpc.statd; start rpc.statd on this "
            "node and on the server (systemctl start rpc-statd), let firewalls pass both (`rpcinfo -p SERVER` must list nlockmgr and "
            "status), or mount NFS 4, or nolock for one node"
        )
    else:
        reason = f"a lock is answered with {code}"
    return MountScope(mount, NONE, reason)


def _error(path: str, known: MountScope) -> LockScopeError:
    return LockScopeError(
        f"shard {path!r}: locking='cluster' expects a lock that reaches other nodes, but on {known.name} the scope of locks is "
        f"{known.scope!r} ({known.reason}); nothing was written; {_ADVICE}, or use locking='process'",
        shard=path,
        mount=known.mount and known.mount.point,
        file_system=known.mount and known.mount.file_system,
        scope=known.scope,
        reason=known.reason,
    )


def _report(known: MountScope) -> None:
    """Add a mount to `stats`; warn if several nodes may use it but its locks stay on this node."""
    _record(known)
    if known.scope == NODE and not is_on_this_machine(known.mount):
        _warn(
            known.name,
            known.scope,
            f"locks on {known.name} exclude shardcodec's writers on this node only ({known.reason}): updates of other nodes may be "
            f"lost; {_ADVICE}",
        )


def _record(known: MountScope) -> None:
    if known.mount is not None:
        stats.lock_scope(known.mount.point or "unknown", known.mount.file_system, known.scope)


def _warn(name: str, why: str, text: str) -> None:
    if (name, why) not in _told:
        _told.add((name, why))
        warnings.warn(text, LockScopeWarning, stacklevel=2)
