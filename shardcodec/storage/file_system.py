# file_system.py - the capabilities of a shard's file system
# SPDX-License-Identifier: MIT
"""The table of file systems: which of them permit an update of a shard in its own file, and how far a lock reaches there.

A file system is identified by its name in ``/proc/self/mountinfo``. The name is memoised by device number and ``statfs``
type, because btrfs, tmpfs, FUSE and NFS reuse the device number of an unmounted file system.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .. import native
from ..mounts import Descriptor, DescriptorInfo, Mount, mount_of

__all__ = [
    "CLUSTER",
    "NODE",
    "NONE",
    "UNKNOWN",
    "LockScope",
    "appends",
    "appends_directly",
    "is_local",
    "is_on_this_machine",
    "is_prompt",
    "lock_scope",
    "name_of",
    "seed_latency",
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

# Cost of a call in seconds that is assumed until calls have been timed: FUSE has an unknown server behind it.
LOCAL_SECONDS, FUSE_SECONDS, REMOTE_SECONDS = 2e-6, 100e-6, 500e-6

# `statfs` types that give the name if /proc does not. ext4 is missing, because it shares its type with ext2 and ext3.
MAGIC_NAMES = {0x01021994: "tmpfs", 0x58465342: "xfs", 0x9123683E: "btrfs"}

# How far a lock reaches: to other nodes, to the processes of this node, to no other process, or it cannot be told.
CLUSTER, NODE, NONE, UNKNOWN = "cluster", "node", "none", "unknown"


class LockRule(NamedTuple):
    """How far byte-range locks (fcntl) reach on the file systems of one type.

    Parameters
    ----------
    default : str
        The scope if no option of the mount decides.
    options : mapping of str to str
        Mount options that decide, and the scope that each means; the first of them that the mount has is taken.
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
    """Return how far the lock of a locked open file reaches.

    Parameters
    ----------
    mount : Mount or None
        The mount of the file; None if /proc does not show it.
    info : DescriptorInfo
        Of the descriptor that holds the lock.

    Returns
    -------
    LockScope
        ``"cluster"``: it excludes processes on other nodes. ``"node"``: on this node only; on a local disk there are no
        others. ``"none"``: no other process. ``"unknown"``: none of the rules of this file applies.
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
    found = _MORE_RULES[name](mount) if name in _MORE_RULES else None
    return found or LockScope(rule.default, f"default of {name}")


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


def appends(fd: int) -> bool:
    """Return True if shards on the file system of this open file may be appended to."""
    return name_of(fd) in APPEND_TYPES


def is_local(fd: int) -> bool:
    """Return True if only processes of this machine use this open file, and all of them see the same state."""
    return name_of(fd) in LOCAL_TYPES


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
                seed_latency(fd)
                return is_local(fd)


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


def seed_latency(fd: int) -> None:
    """Set the estimated cost of a call by the type of the file system of an open file, unless calls have been timed."""
    name = name_of(fd)
    seconds = FUSE_SECONDS if name.startswith("fuse") else REMOTE_SECONDS
    native.load().seed_latency(os.fstat(fd).st_dev, LOCAL_SECONDS if name in LOCAL_TYPES else seconds)


def appends_directly(path: str, fd: int) -> bool:
    """Return True if one write appends to this open file atomically, also when the process is killed."""
    key = _key(fd)
    known = _known.get(key)
    if known is None:
        known = name_of(fd) in DIRECT_TYPES and native.load().direct_append_works(
            os.path.dirname(path) or "."
        )
        _known[key] = known
    return known


def name_of(fd: int) -> str:
    """Return the name of the file system of an open file, such as ``"ext4"`` or ``"fuse.glusterfs"``."""
    key = _key(fd)
    name = _names.get(key)
    if name is None:
        mount, magic = mount_of(fd), key[1]
        name = mount.file_system if mount else MAGIC_NAMES.get(magic) or f"statfs type {magic:#x}"
        _names[key] = name
    return name


_known: dict[tuple[int, int], bool] = {}
_names: dict[tuple[int, int], str] = {}


def _key(fd: int) -> tuple[int, int]:
    return os.fstat(fd).st_dev, native.load().file_system_magic(fd)
