# undo_journal.py - does a file wait for the roll back of an update in place?
# SPDX-License-Identifier: MIT
"""Find the undo journal that a killed writer has left, and read a copy of one.

`csrc/io/sc_undo.h` describes it. Readers and writers of the engine find it themselves.
"""

from __future__ import annotations

import os
import re
import struct
from typing import NamedTuple

from .. import native
from . import absent

__all__ = ["OldBytes", "is_old_name", "is_stray_journal", "pending_journal", "read_journal"]

# csrc/io/sc_staging.h
_NAME = re.compile(r"\.shardcodec-undo-([0-9a-f]+)(\.shard|\.new)?")
# csrc/io/sc_undo_impl.h
_MAGIC = b"scundo\0\1"
_HEAD = struct.Struct("<8s4Q")
_RUN = struct.Struct("<2Q")
_CHECKSUM = struct.Struct("<I")


class OldBytes(NamedTuple):
    """The content of an undo journal. nbytes: size of the shard before the update.

    runs: offsets and old bytes; the runs ascend and do not overlap.
    """

    nbytes: int
    runs: list[tuple[int, memoryview]]


def read_journal(data: bytes, shard_nbytes: int) -> OldBytes | None:
    """Read a copy of a journal; None if it is not one of a shard of this size, so that no writer would use it.

    shard_nbytes: size of the shard with the unfinished update.
    """
    end = len(data) - _CHECKSUM.size
    if end < _HEAD.size or not data.startswith(_MAGIC):
        return None
    if _CHECKSUM.unpack_from(data, end)[0] != native.load().crc32c(data[:end]):
        return None
    _, _, nbytes, _, n_runs = _HEAD.unpack_from(data)
    at = _HEAD.size + n_runs * _RUN.size
    if at > end or nbytes > shard_nbytes:
        return None
    view, runs, last = memoryview(data), [], 0
    for offset, size in _RUN.iter_unpack(data[_HEAD.size : at]):
        if offset < last or offset + size > nbytes or at + size > end:
            return None
        runs.append((offset, view[at : at + size]))
        at, last = at + size, offset + size
    return OldBytes(nbytes, runs) if at == end else None


def is_stray_journal(key: str, path: str | None) -> bool | None:
    """Return True for an undo journal that has come with a copy, so that no shard beside it is its shard; None for another name.

    False for the names of an update that its writer, or the next one, brings to an end. `path` is that of the object, if it is
    a file.
    """
    name = _NAME.fullmatch(key.rpartition("/")[2])
    if name is None:
        return None
    if name[2]:
        return False
    if path is None:
        return True
    try:
        before = os.lstat(path)
        try:
            if os.lstat(path + ".shard").st_ino == int(name[1], 16):
                return False
        except FileNotFoundError:
            pass
        after = os.lstat(path)
    except FileNotFoundError:  # the update has ended
        return False
    # a journal that was there all the time, but not its marker
    return (before.st_ino, before.st_ctime_ns) == (after.st_ino, after.st_ctime_ns)


def is_old_name(key: str) -> bool:
    """Return True for a name that a client of NFS has given to an open file which is replaced."""
    return bool(absent.old_names([key.rpartition("/")[2]]))


def pending_journal(path: str) -> str | None:
    """Return the path of the undo journal of a shard's file; None if there is none.

    The journal of a writer that still works is one, too.
    """
    journal: str | None = native.load().pending_journal(path)
    return journal
