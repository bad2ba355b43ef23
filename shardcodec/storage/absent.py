# absent.py - tell absent files from those that have no name for a moment
# SPDX-License-Identifier: MIT
"""Tell absent files from those that have no name for a moment.

A client of NFS that replaces a file which a process of its machine has open first gives the old file another name, ``.nfs...``, and
then its name to the new one. In between the shard has no name, and if the machine dies then, for ever: readers would take it for one
that was never stored. So a file is absent only if its folder, as the server lists it, has neither its name nor one of these.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Any

from .. import native
from ..errors import ShardFileError
from . import file_systems
from .staging import kept_number, lock_folder

__all__ = ["SECONDS", "check", "doubt", "is_forgotten", "may_lack", "old_names"]

# Seconds for which a name may be missing while its folder has a `.nfs...`.
SECONDS = 5.0

PREFIX = ".nfs"


def may_lack(path: str | None) -> bool:
    """Return True for a file that may exist although it was not found; the first question about a folder costs a look at it."""
    return path is not None and file_systems.loses_locks(os.path.dirname(path))


def old_names(names: Iterable[str]) -> list[str]:
    """Return the names that a client of NFS has given to open files."""
    return sorted(name for name in names if name.startswith(PREFIX))


def doubt(paths: Iterable[Any]) -> OSError | None:
    """Return an error with ESTALE for the first of several files, which were not found, that may exist; None if none does.

    Each of their folders, and of those of lock files, is listed once, if they are on a file system where a name may be missing. Paths that are not strings are no
    files, and documents are not looked for: that one of them is missing says what kind of node a folder is.
    """
    folders: dict[str, list[str]] = {}
    for path in paths:
        if isinstance(path, str):
            folder, name = os.path.split(path)
            if name.startswith(".") or name.endswith(".json"):
                continue
            if not folders and not file_systems.loses_locks(folder):  # files of one call are on one mount
                return None
            folders.setdefault(folder, []).append(name)
    for folder, missing in folders.items():
        there = _list(folder)
        if there and (found := there.intersection(missing)):
            return OSError(errno.ESTALE, os.strerror(errno.ESTALE), f"{folder}/{min(found)}")
        if old := old_names(there):
            return _missing_name(f"{folder}/{missing[0]}", old)
    return _second_name(folders) if folders else None


def _second_name(folders: dict[str, list[str]]) -> OSError | None:
    """Return the error for the first file that has only a second name. folders: names of files that were not found, by folder."""
    kept: dict[str, dict[int, str]] = {}
    for folder, missing in folders.items():
        real = os.path.realpath(folder)
        locks = lock_folder(f"{real}/{missing[0]}")
        if locks not in kept:
            kept[locks] = {number: name for name in _list(locks) if (number := kept_number(name)) is not None}
        for name in missing if kept[locks] else ():
            if (second := kept[locks].get(native.load().shard_number(locks, f"{real}/{name}"))) is not None:
                return _missing_name(f"{folder}/{name}", [f"{locks}/{second}"])
    return None


def is_forgotten(error: OSError) -> bool:
    """Return True if a server of NFS may have forgotten that this client has the file open: it was cut off for longer than its lease."""
    is_lost = error.errno in (errno.EIO, errno.EBADF) and isinstance(error.filename, str)
    return is_lost and file_systems.loses_locks(os.path.dirname(error.filename))


def check(path: Any) -> None:
    """Raise the error of `doubt` for one file, which was not found."""
    if (error := doubt([path])) is not None:
        raise error


def _list(folder: str) -> set[str]:
    native.load().look_at_folder(folder)
    try:
        return set(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return set()


def _missing_name(path: str, old: list[str]) -> ShardFileError:
    folder = os.path.dirname(path)
    error = ShardFileError(
        f"shard {path!r}: expected the file, or a folder without names that NFS gives to open files, but there is only "
        f"{', '.join(repr(name) for name in old[:3])}{' and others' if len(old) > 3 else ''}: it is the shard, if a machine has died or was "
        f"cut off while it replaced it (`shardcodec repair {folder!r}` gives it its name), or an old state of another one, which a process "
        "still has open; nothing was read or written",
        shard=path,
        kind="missing name",
        old_names=tuple(old),
    )
    error.errno = errno.ESTALE  # as long as it is worth another attempt
    return error
