# file_systems.py - which write strategies are safe on a mount
# SPDX-License-Identifier: MIT
"""The table of file systems: which of them permit an update of a shard in its own file, and how far a lock reaches there.

A file system is identified by its name in ``/proc/self/mountinfo``. The name is memoised by the number of the mount, if the
kernel never uses it again (Linux 6.8), so a locked file needs no further call. Elsewhere it is memoised by device number and
``statfs`` type, because btrfs, tmpfs, FUSE and NFS reuse the device number of an unmounted file system.
"""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .. import mounts, native
from ..mounts import Descriptor, DescriptorInfo, Mount

__all__ = [
    "CLUSTER",
    "LEASED_TYPES",
    "NFS_3",
    "NODE",
    "NONE",
    "SMB_TYPES",
    "UNKNOWN",
    "LockScope",
    "OpenFile",
    "appends",
    "appends_directly",
    "is_local",
    "is_on_this_machine",
    "is_prompt",
    "lock_scope",
    "loses_locks",
    "mount_of",
    "name_of",
    "network_type",
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
# File systems where, for a second, a client answers by the caches of its own process which file has a name, and where a folder is
# removed although another client has just made a file in it: both were seen on GlusterFS 10.3, and lost an update.
OLD_NAME_TYPES = frozenset({"fuse.glusterfs"})
# What a lock lacks there (`sc_guard_kind` of csrc/io/sc_guard.h).
LOCK_KINDS = {"nfs4": 0, NFS_3: 1} | dict.fromkeys(SMB_TYPES, 2) | dict.fromkeys(OLD_NAME_TYPES, 3)

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


def loses_locks(folder: str) -> bool:
    """Return True if a lock in a folder, which need not exist yet, can be lost."""
    return network_type(folder) in LEASED_TYPES


@functools.lru_cache(maxsize=1024)
def network_type(folder: str) -> str:
    """Return the name of the file system of a folder, which need not exist yet, if it is one of `LOCK_KINDS`; else an empty text.

    A folder is looked at only on a machine that has a mount of such a kind: there, each may lead to it.
    """
    if not mounts.may_reach(LOCK_KINDS):
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
                return name if name in LOCK_KINDS else ""


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
        mount, lasts = mount_of(fd)
        mounts.note_use(key[0], mount)
        name = mount.file_system if mount else MAGIC_NAMES.get(magic) or f"statfs type {magic:#x}"
        if lasts:
            _names[key] = name
    return name


def mount_of(fd: int) -> tuple[Mount | None, bool]:
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
