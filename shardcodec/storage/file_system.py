# file_system.py - what the file system under a shard can do
# SPDX-License-Identifier: MIT
"""The table of file systems: which ways to update a shard in its own file are used where.

A file system is known by its name in ``/proc/self/mountinfo``. The name is remembered by device number and by the number
that ``statfs`` gives for the kind: device numbers of btrfs, tmpfs, FUSE and NFS are given to another mount after an unmount.
"""

from __future__ import annotations

import os

from .. import native

__all__ = ["appends", "appends_directly", "is_local", "is_prompt", "name_of"]

# Appending to a shard was tested there with kills and power cuts. Elsewhere it may fail: on GlusterFS it lost writes, because
# a second client sees the new size before the new bytes, and because the times of a file settle later.
APPEND_TYPES = frozenset({"btrfs", "ext4", "tmpfs", "xfs"})
# A write past the page cache that makes a file longer sets the new size when all its bytes are there.
DIRECT_TYPES = frozenset({"ext4", "xfs"})
# No other machine writes there, and what one process has written every other sees at once: sizes, times, numbers of names.
LOCAL_TYPES = APPEND_TYPES | {"bcachefs", "ext2", "ext3", "f2fs", "jfs", "overlay", "zfs"}

# Numbers of `statfs` that tell the name where /proc does not. ext4's is also that of ext2 and ext3.
MAGIC_NAMES = {0x01021994: "tmpfs", 0x58465342: "xfs", 0x9123683E: "btrfs"}


def appends(fd: int) -> bool:
    """Tell whether shards on the file system of this open file may be appended to."""
    return name_of(fd) in APPEND_TYPES


def is_local(fd: int) -> bool:
    """Tell whether this open file is seen by the processes of this machine only, and alike by all of them."""
    return name_of(fd) in LOCAL_TYPES


def is_prompt(path: str) -> bool:
    """Tell whether work on a file or folder, which need not exist yet, takes no round trip: its file system is local."""
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
    """Tell whether one write can append to this open file so that a killed process leaves all of it or nothing."""
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
    """Find the mount that a file was opened through: by its number, else (kernels before 3.15) by the device.

    The device alone does not do: a subvolume of btrfs, or a file in an overlay, has another one than its mount.
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
