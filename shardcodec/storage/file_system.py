# file_system.py - the capabilities of a shard's file system
# SPDX-License-Identifier: MIT
"""The table of file systems: which of them permit an update of a shard in its own file.

A file system is identified by its name in ``/proc/self/mountinfo``. The name is memoised by device number and ``statfs``
type, because btrfs, tmpfs, FUSE and NFS reuse the device number of an unmounted file system.
"""

from __future__ import annotations

import os

from .. import native

__all__ = ["appends", "appends_directly", "is_local", "is_prompt", "name_of"]

# File systems where appends to a shard were tested with kills and power cuts. Elsewhere an append may fail: GlusterFS lost
# writes, because a second client sees the new size before the new bytes, and the times of a file change later.
APPEND_TYPES = frozenset({"btrfs", "ext4", "tmpfs", "xfs"})
# File systems where a direct write that extends a file sets the new size only after all its bytes are stored.
DIRECT_TYPES = frozenset({"ext4", "xfs"})
# File systems of one machine: every process sees a write of another at once, including sizes, times and link counts.
LOCAL_TYPES = APPEND_TYPES | {"bcachefs", "ext2", "ext3", "f2fs", "jfs", "overlay", "zfs"}

# `statfs` types that give the name if /proc does not. ext4 is missing, because it shares its type with ext2 and ext3.
MAGIC_NAMES = {0x01021994: "tmpfs", 0x58465342: "xfs", 0x9123683E: "btrfs"}


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
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            path, below = os.path.dirname(path), path
            if path == below:
                return False
        except OSError:
            return False
        else:
            try:
                return is_local(fd)
            finally:
                os.close(fd)


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
        device, magic = key
        name = _names[key] = _mounted_type(fd, device) or MAGIC_NAMES.get(magic) or f"statfs type {magic:#x}"
    return name


_known: dict[tuple[int, int], bool] = {}
_names: dict[tuple[int, int], str] = {}


def _key(fd: int) -> tuple[int, int]:
    return os.fstat(fd).st_dev, native.load().file_system_magic(fd)


def _mounted_type(fd: int, device: int) -> str | None:
    """Return the type of the mount of an open file, found by its mount number or (kernels before 3.15) by its device.

    The device alone is ambiguous: a subvolume of btrfs, or a file in an overlay, has a different device than its mount.
    """
    wanted = f"{os.major(device)}:{os.minor(device)}"
    by_device = None
    try:
        number = _mount_number(fd)
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                fields = line.split()
                name = fields[fields.index("-") + 1]
                if fields[0] == number:
                    return name
                if fields[2] == wanted:
                    by_device = name
    except (OSError, ValueError, IndexError):
        pass
    return by_device


def _mount_number(fd: int) -> str | None:
    with open(f"/proc/self/fdinfo/{fd}") as info:
        for line in info:
            name, _, value = line.partition(":")
            if name == "mnt_id":
                return value.strip()
    return None
