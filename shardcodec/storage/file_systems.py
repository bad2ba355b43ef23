# file_systems.py - which write strategy and which locks are safe on a mount
# SPDX-License-Identifier: MIT
"""Which write strategy and which locks are safe on a mount.

The table of file systems: which of them permit an update of a shard in its own file, and how far a lock reaches there.

A file system is identified by its name in ``/proc/self/mountinfo``. The name is memoised by the number of the mount, if the
kernel never uses it again (Linux 6.8), so a locked file needs no further call. Elsewhere it is memoised by device number and
``statfs`` type, because btrfs, tmpfs, FUSE and NFS reuse the device number of an unmounted file system.
"""

from __future__ import annotations

import errno
import functools
import os
import re
import time
import warnings
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from .. import mounts, native
from ..errors import LockScopeError, LockScopeWarning
from ..mounts import Descriptor, DescriptorInfo, Mount
from ..statistics import stats

__all__ = [
    "CLUSTER",
    "LEASED_TYPES",
    "NFS_3",
    "NODE",
    "NONE",
    "SMB_TYPES",
    "UNKNOWN",
    "LockScope",
    "MountScope",
    "OpenFile",
    "appends",
    "appends_directly",
    "check_absent",
    "check_held",
    "check_not_lockable",
    "is_local",
    "is_on_this_machine",
    "is_prompt",
    "lease_seconds",
    "lock_scope",
    "loses_locks",
    "loss_of_locks",
    "name_of",
    "refuse_store",
    "report_unguarded",
    "scope_at",
    "seed_latency",
    "strategies_at",
]

# File systems where appends to a shard were tested with kills and power cuts. Elsewhere an append may fail: GlusterFS lost
# writes, because a second client sees the new size before the new bytes, and the times of a file change later.
APPEND_TYPES = frozenset({"btrfs", "ext4", "tmpfs", "xfs"})
# File systems where a direct write that extends a file sets the new size only after all its bytes are stored.
DIRECT_TYPES = frozenset({"ext4", "xfs"})
# File systems of one machine: every process sees a write of another at once, including sizes, times and link counts.
LOCAL_TYPES = APPEND_TYPES | {"bcachefs", "ext2", "ext3", "f2fs", "jfs", "overlay", "zfs"}
# More file systems of one machine. Updates in place are not tested there.
DISK_TYPES = LOCAL_TYPES | {"apfs", "exfat", "fuseblk", "nilfs2", "ntfs3", "ramfs", "reiserfs", "vfat"}

# File systems where a lock ends without a word when its node is cut off for longer than its lease, and where a name may be cached: they
# have a lock file and a fence (csrc/io/sc_guard.h). Others are added when they have been tried.
NFS_3 = "nfs"  # the kernel's name for versions 2 and 3
SMB_TYPES = frozenset({"cifs", "smb3"})
LEASED_TYPES = frozenset({NFS_3, "nfs4"}) | SMB_TYPES

# Cost of a call in seconds that is assumed until calls have been timed: FUSE has an unknown server behind it.
LOCAL_SECONDS, FUSE_SECONDS, REMOTE_SECONDS = 2e-6, 100e-6, 500e-6

# After these errors /proc can be read later, so a name that was found without it is not memoised.
OUT_OF_RESOURCES = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}

# `statfs` types that give the name if /proc does not. ext4 is missing, because it shares its type with ext2 and ext3.
MAGIC_NAMES = {0x01021994: "tmpfs", 0x58465342: "xfs", 0x9123683E: "btrfs"}

# How far a lock reaches: to other nodes, to the processes of this node, to no other process, or it cannot be told.
CLUSTER, NODE, NONE, UNKNOWN = "cluster", "node", "none", "unknown"


# The kernel counts mounts from here on, and never uses such a number again; smaller ones it does.
LASTING_MOUNTS = 2**31


class OpenFile(NamedTuple):
    """An open file as it was when it was looked at: under its lock, once. The steps of a write hand this on.

    `mount_id` is 0 if it is unknown. `is_guarded`: its lock is that of the array's lock file, so other nodes may update it: it is
    replaced, and never changed in place, because readers on NFS see neither the order of its bytes nor an undo journal in time.
    """

    fd: int
    nbytes: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    device: int = 0
    inode: int = 0
    n_links: int = 0
    mount_id: int = 0
    is_guarded: bool = False

    @classmethod
    def seen(cls, fd: int, mount_id: int = 0, *, is_guarded: bool = False) -> OpenFile:
        """Look at an open file."""
        status = os.fstat(fd)
        times = status.st_mtime_ns, status.st_ctime_ns
        return cls(
            fd, status.st_size, *times, status.st_dev, status.st_ino, status.st_nlink, mount_id, is_guarded
        )


class LockRule(NamedTuple):
    """How far byte-range locks (fcntl) reach on the file systems of one type.

    options: mount options that decide, and the scope that each means; the first of them that the mount has is taken. default:
    else.
    """

    default: str
    options: Mapping[str, str] = MappingProxyType({})


# The sources of the rules:
# afs       Linux, fs/afs/flock.c: a lock of a part of a file is local unless the mount has flock=strict or flock=write.
# beegfs    beegfs-client.conf: "tuneUseGlobalFileLocks", false by default: locks are of one client.
# ceph      Linux, fs/ceph/locks.c: the metadata server keeps the locks.
# gfs2      gfs2(5): "localflocks" hands locks to the VFS; lock_nolock is for one node.
# gpfs      IBM Storage Scale: the token manager keeps fcntl locks of all nodes.
# lustre    mount.lustre(8): flock is coherent on all clients, localflock is of one client, noflock is an error.
# nfs       nfs(5) and fs/nfs/super.c: nolock, and local_lock=posix or =all, keep fcntl locks on the client; local_lock=flock
#           does not concern them.
# ocfs2     Linux, fs/ocfs2/inode.c and file.c: fcntl locks are local with localflocks, and without a user-space cluster stack.
# pvfs2     OrangeFS in Linux, fs/orangefs/file.c: local_lock hands locks to the VFS; without it a lock is an error.
# cifs      mount.cifs(8): nobrl sends no byte-range locks to the server.
# fuse.*    These servers ask the kernel to send them the locks (FUSE_POSIX_LOCKS) and share them with all clients.
LOCK_RULES: dict[str, LockRule] = {
    "afs": LockRule(NODE, {"flock=strict": CLUSTER, "flock=write": CLUSTER}),
    "beegfs": LockRule(NODE),  # unless its configuration says otherwise; see `_beegfs`
    "ceph": LockRule(CLUSTER),
    "cifs": LockRule(CLUSTER, {"nobrl": NODE}),
    "fuse.ceph-fuse": LockRule(CLUSTER),
    "fuse.glusterfs": LockRule(CLUSTER),
    "fuse.juicefs": LockRule(CLUSTER),
    "fuse.mfs": LockRule(CLUSTER),
    "gfs2": LockRule(CLUSTER, {"localflocks": NODE, "lockproto=lock_nolock": NODE}),
    "gpfs": LockRule(CLUSTER),
    "lustre": LockRule(UNKNOWN, {"localflock": NODE, "noflock": NONE, "flock": CLUSTER}),
    "nfs": LockRule(CLUSTER, {"nolock": NODE, "local_lock=posix": NODE, "local_lock=all": NODE}),
    "nfs4": LockRule(CLUSTER, {"nolock": NODE, "local_lock=posix": NODE, "local_lock=all": NODE}),
    "ocfs2": LockRule(NODE, {"localflocks": NODE, "cluster_stack=o2cb": NODE}),  # see `_ocfs2`
    "pvfs2": LockRule(UNKNOWN, {"local_lock": NODE}),
    "smb3": LockRule(CLUSTER, {"nobrl": NODE}),
}


class LockScope(NamedTuple):
    """How far a lock reaches, and why."""

    scope: str
    reason: str


def lock_scope(mount: Mount | None, info: DescriptorInfo) -> LockScope:
    """Return how far the lock of a locked open file reaches; a mount of None is one that /proc does not show.

    ``"cluster"``: it excludes processes on other nodes. ``"node"``: on this node only; on a local disk there are no others.
    ``"none"``: no other process. ``"unknown"``: none of the rules of this file applies.
    """
    if mount is None:
        return LockScope(UNKNOWN, "/proc/self/mountinfo does not show the mount")
    name = mount.file_system
    if name in DISK_TYPES:
        return LockScope(NODE, f"{name} is a file system of one machine")
    if (name.startswith("fuse") or name == "virtiofs") and info.shows_lock:
        # fs/fuse/file.c: without FUSE_POSIX_LOCKS the kernel keeps the lock, and lists it; otherwise the server has it
        return LockScope(
            NODE, "the kernel keeps the locks of this mount and does not send them to its server"
        )
    rule = LOCK_RULES.get(name)
    if rule is None:
        return LockScope(UNKNOWN, f"nothing is known about locks on {name}")
    for option, scope in rule.options.items():
        if option in mount.options:
            return LockScope(scope, f"mount option {option!r}")
    further = _MORE_RULES[name](mount) if name in _MORE_RULES else None
    return further or LockScope(rule.default, f"default of {name}")


def _beegfs(mount: Mount) -> LockScope | None:
    """Find out if the configuration file of a BeeGFS client asks for global locks."""
    paths = [option.removeprefix("cfgFile=") for option in mount.options if option.startswith("cfgFile=")]
    path = paths[0] if paths else "/etc/beegfs/beegfs-client.conf"
    value = ""
    try:
        with open(path) as lines:
            for line in lines:
                key, _, rest = line.partition("#")[0].partition("=")
                if key.strip() == "tuneUseGlobalFileLocks":
                    value = rest.strip().lower()
    except (OSError, UnicodeDecodeError):
        return None
    is_global = value in ("1", "true", "yes", "y", "on")
    return LockScope(CLUSTER if is_global else NODE, f"tuneUseGlobalFileLocks={value or 'false'} in {path}")


def _ocfs2(mount: Mount) -> LockScope | None:
    """Find the cluster stack in user space of an OCFS2 mount, which alone has fcntl locks for all nodes."""
    stacks = [option for option in mount.options if option.startswith("cluster_stack=")]
    return LockScope(CLUSTER, f"mount option {stacks[0]!r}") if stacks else None


_MORE_RULES = {"beegfs": _beegfs, "ocfs2": _ocfs2}


def is_on_this_machine(mount: Mount | None) -> bool:
    """Return True if a mount is a file system of one machine, so that processes of other nodes cannot use it."""
    return mount is not None and mount.file_system in DISK_TYPES


def appends(file: int | OpenFile) -> bool:
    """Return True if shards on the file system of this open file may be appended to."""
    return name_of(file) in APPEND_TYPES


def is_local(file: int | OpenFile) -> bool:
    """Return True if only processes of this machine use this open file, and all of them see the same state."""
    return name_of(file) in LOCAL_TYPES


def strategies_at(folder: str) -> tuple[str, bool, bool]:
    """Return the name of the file system of a folder, and whether its shards may be appended to and updated in place."""
    with Descriptor(folder) as fd:
        return name_of(fd), appends(fd), is_local(fd)


def is_inside(path: str, folder: str) -> bool:
    """Return True for a path in a folder, or the folder itself, also if links lead there, or another mount of the file system."""
    real, real_folder = os.path.realpath(path), os.path.realpath(folder)
    if os.path.commonpath([real, real_folder]) == real_folder:
        return True
    place, outer = _place_on_device(real), _place_on_device(real_folder)
    if place is None or outer is None or place[0] != outer[0]:
        return False
    return os.path.commonpath([place[1], outer[1]]) == outer[1]


def _place_on_device(path: str) -> tuple[str, str] | None:
    """Return the device of a path without links, and its path in the file system there; None if /proc does not show it."""
    mount = mounts.mount_of_path(path)
    if mount is None or not mount.point:
        return None
    return mount.device, os.path.normpath(os.path.join(mount.root, os.path.relpath(path, mount.point)))


def is_prompt(path: str) -> bool:
    """Return True if the file system of a file or folder is local; the path need not exist yet."""
    while True:
        try:
            opened = Descriptor(path, os.O_RDONLY | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            path, below = os.path.dirname(path), path
            if path == below:
                return False
        except OSError:
            return False
        else:
            with opened as fd:
                return seed_latency(fd) in LOCAL_TYPES


def loss_of_locks(folder: str) -> int:
    """Return how a lock in a folder where one can be lost is lost (`sc_guard_kind` of csrc/io/sc_guard.h)."""
    return 2 if (name := loses_locks(folder)) in SMB_TYPES else int(name == NFS_3)


@functools.lru_cache(maxsize=1024)
def loses_locks(folder: str) -> str:
    """Return the name of the file system if a lock in a folder, which need not exist yet, can be lost; else an empty text.

    A folder is looked at only on a machine that has a mount of such a kind: there, each may lead to it.
    """
    if not mounts.may_reach(LEASED_TYPES):
        return ""
    while True:
        try:
            opened = Descriptor(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            folder, below = os.path.dirname(folder), folder
            if folder == below:
                return ""
        else:
            with opened as fd:
                name = name_of(fd)
                return name if name in LEASED_TYPES else ""


def call_seconds(path: str) -> float:
    """Return the estimated cost of a call to the file system of a path, which need not exist yet; 0.0: none is known."""
    device = _device_of(path)
    return 0.0 if device is None else float(native.load().latencies().get(device, 0.0))


def raise_call_seconds(path: str, seconds: float) -> None:
    """Raise the estimated cost of a call to the file system of a path to what calls have taken."""
    if (device := _device_of(path)) is not None:
        native.load().raise_latency(device, seconds)


def _device_of(path: str) -> int | None:
    """Return the device of a path, or of the nearest folder above it that exists; None if it cannot be told."""
    while True:
        try:
            return os.stat(path).st_dev
        except (FileNotFoundError, NotADirectoryError):
            path, below = os.path.dirname(path), path
            if path == below:
                return None
        except OSError:
            return None


def seed_latency(fd: int) -> str:
    """Set the estimated cost of a call by the type of the file system of an open file, unless calls have been timed.

    Return the name of the file system.
    """
    file = OpenFile.seen(fd)
    name = name_of(file)
    seconds = FUSE_SECONDS if name.startswith("fuse") else REMOTE_SECONDS
    native.load().seed_latency(file.device, LOCAL_SECONDS if name in LOCAL_TYPES else seconds)
    return name


def appends_directly(path: str, file: int | OpenFile) -> bool:
    """Return True if one write appends to this open file atomically, also when the process is killed."""
    key = _key(file)
    known = _known.get(key)
    if known is None:
        known = name_of(file) in DIRECT_TYPES and native.load().direct_append_works(
            os.path.dirname(path) or "."
        )
        if key in _names:
            _known[key] = known
    return known


def name_of(file: int | OpenFile) -> str:
    """Return the name of the file system of an open file, such as ``"ext4"`` or ``"fuse.glusterfs"``."""
    key = _key(file)
    name = _names.get(key)
    if name is None:
        fd = file if isinstance(file, int) else file.fd
        magic = native.load().file_system_magic(fd)
        mount, lasts = _mount_of(fd)
        mounts.note_use(key[0], mount)
        name = mount.file_system if mount else MAGIC_NAMES.get(magic) or f"statfs type {magic:#x}"
        if lasts:
            _names[key] = name
    return name


def _mount_of(fd: int) -> tuple[Mount | None, bool]:
    """Return the mount of an open file, and whether this answer may be memoised."""
    try:
        return mounts.find_mount_of(fd), True
    except OSError as error:
        if error.filename is None:  # it is the file that cannot be looked at, and not /proc
            raise
        return None, error.errno not in OUT_OF_RESOURCES


# By device, `statfs` type, and number of the mount; the one of the last two that is not known or not needed is 0.
_known: dict[tuple[int, int, int], bool] = {}
_names: dict[tuple[int, int, int], str] = {}


def _key(file: int | OpenFile) -> tuple[int, int, int]:
    if isinstance(file, int):
        file = OpenFile.seen(file)
    if file.mount_id >= LASTING_MOUNTS:
        return file.device, 0, file.mount_id
    return file.device, _magic(file), 0


@functools.lru_cache(maxsize=64)
def _magic(file: OpenFile) -> int:
    """Return the `statfs` type; it is asked once for each state of a file."""
    return int(native.load().file_system_magic(file.fd))


# ---------------------------------------------------------------- how far the locks of this process reach, for each mount
#
# Looks once at each mount on which a shard is locked, warns if its locks do not reach other nodes, and remembers it.
#
# `storage.file_systems` has the rules. The kernel gives the numbers of mount and device with each lock, so a known mount costs
# one look-up in a dictionary and no system call. Before Linux 6.8 a new mount may get the numbers of a mount that has been
# removed; the process then keeps the answer for the old one.

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
    mount, lasts = _mount_of(fd)
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
    elif refusal == errno.ENOLCK and mount is not None and mount.file_system.startswith("nfs"):
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
