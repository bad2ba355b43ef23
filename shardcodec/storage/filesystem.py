# filesystem.py - what the file system under a shard can do
# SPDX-License-Identifier: MIT
"""Facts about file systems, found out once for each."""

from __future__ import annotations

import functools
import os

from .. import native

__all__ = ["appends_directly", "is_local", "is_prompt"]

# A write past the page cache that makes a file longer sets the new size when all its bytes are there.
DIRECT_TYPES = frozenset({"ext4", "xfs"})
# No other machine writes there, and what one process has written every other sees at once: sizes, times, numbers of names.
LOCAL_TYPES = frozenset(
    {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}
)


def is_local(device: int) -> bool:
    """Tell whether files of this device are seen by the processes of this machine only, and alike by all of them."""
    return _type_of(device) in LOCAL_TYPES


def is_prompt(path: str) -> bool:
    """Tell whether work on a file or folder, which need not exist yet, takes no round trip: its file system is local."""
    while True:
        try:
            return is_local(os.stat(path).st_dev)
        except (FileNotFoundError, NotADirectoryError):
            path, below = os.path.dirname(path), path
            if path == below:
                return False
        except OSError:
            return False


def appends_directly(path: str, device: int) -> bool:
    """Tell whether one write can append to a file of this device so that a killed process leaves all of it or nothing."""
    known = _known.get(device)
    if known is None:
        known = _type_of(device) in DIRECT_TYPES and native.load().direct_append_works(
            os.path.dirname(path) or "."
        )
        _known[device] = known
    return known


_known: dict[int, bool] = {}


@functools.lru_cache(maxsize=256)
def _type_of(device: int) -> str | None:
    """Return the name of the file system that is mounted with this device number."""
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open("/proc/self/mountinfo") as mounts:
            for line in mounts:
                fields = line.split()
                if fields[2] == wanted:
                    return fields[fields.index("-") + 1]
    except (OSError, ValueError, IndexError):
        pass
    return None
