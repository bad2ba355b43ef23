# protocol.py - the messages between the kernel and a FUSE file system
# SPDX-License-Identifier: MIT
"""Layouts of version 7.31 (linux/fuse.h), which every kernel since 5.2 accepts."""

from __future__ import annotations

import os
import struct
from enum import IntEnum

__all__ = ["HEADER", "Attributes", "Call", "attributes", "entry", "names", "reply", "seconds"]

MAX_WRITE = 128 << 10
ROOT = 1


class Call(IntEnum):
    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    CREATE = 35
    INTERRUPT = 36
    DESTROY = 38
    IOCTL = 39
    BATCH_FORGET = 42
    RENAME2 = 45
    TMPFILE = 51


# Bits of INIT: features that this file system asks for.
POSIX_LOCKS, BIG_WRITES, AUTO_INVAL_DATA = 1 << 1, 1 << 5, 1 << 12
# Bits of SETATTR: attributes that a request sets.
SET_MODE, SET_UID, SET_GID, SET_SIZE, SET_ATIME, SET_MTIME = (1 << bit for bit in range(6))
SET_ATIME_NOW, SET_MTIME_NOW = 1 << 7, 1 << 8

HEADER = struct.Struct("<IIQQIIIHH")  # length, call, unique, node, uid, gid, pid, extensions, padding
REPLY = struct.Struct("<IiQ")
INIT_IN = struct.Struct("<IIII")
INIT_OUT = struct.Struct("<IIIIHHIIHHI28x")
ATTRIBUTES = struct.Struct("<6Q10I")
ENTRY = struct.Struct("<4Q2I")
ATTRIBUTES_FOR = struct.Struct("<QII")
SETATTR_IN = struct.Struct("<I4x6Q8I")
OPEN_IN = struct.Struct("<II")
OPEN_OUT = struct.Struct("<QII")
CREATE_IN = struct.Struct("<4I")
READ_IN = WRITE_IN = struct.Struct("<QQIIQII")
WRITE_OUT = struct.Struct("<II")
FILE_IN = struct.Struct("<Q")  # the handle, with which FLUSH, FSYNC and RELEASE begin
MKNOD_IN = struct.Struct("<4I")
MKDIR_IN = struct.Struct("<II")
RENAME_IN = struct.Struct("<Q")
RENAME2_IN = struct.Struct("<QII")
LINK_IN = struct.Struct("<Q")
LOCK = struct.Struct("<QQII")
LOCK_IN = struct.Struct("<QQQQIIII")
FORGET_ONE = struct.Struct("<QQ")
STATFS_OUT = struct.Struct("<5Q4I24x")
DIRENT = struct.Struct("<QQII")

Attributes = os.stat_result


def seconds(value: float) -> tuple[int, int]:
    return int(value), int(value % 1 * 1e9)


def attributes(st: Attributes, nbytes: int, shift_ns: int = 0) -> bytes:
    """Encode attributes, with the file's size and a shift of its times."""
    times = [divmod(t, 10**9) for t in (st.st_atime_ns, st.st_mtime_ns + shift_ns, st.st_ctime_ns + shift_ns)]
    return ATTRIBUTES.pack(
        st.st_ino,
        nbytes,
        -(-nbytes // 512),
        *(t[0] for t in times),
        *(t[1] for t in times),
        st.st_mode,
        st.st_nlink,
        st.st_uid,
        st.st_gid,
        st.st_rdev,
        4096,
        0,
    )


def entry(node: int, attrs: bytes, entry_seconds: float, attr_seconds: float) -> bytes:
    (name_s, name_ns), (attr_s, attr_ns) = seconds(entry_seconds), seconds(attr_seconds)
    return ENTRY.pack(node, 0, name_s, attr_s, name_ns, attr_ns) + attrs


def names(body: bytes) -> list[bytes]:
    """Split the names of a request; each ends with a NUL."""
    return body.split(b"\0")[:-1]


def reply(unique: int, body: bytes, error: int = 0) -> bytes:
    return REPLY.pack(REPLY.size + len(body), -error, unique) + body
