# object_states.py - what names the state of an object between processes
# SPDX-License-Identifier: MIT
"""Stamps: an object that has the same one still has the same bytes.

Of a file: size, inode and times. One that was changed within the last two seconds has none, for its times could not tell a
further change; nor has one with several names, which an update in place may be under way in. Of an object in an object
store: size and entity tag, unless that is weak.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..compat import ObjectStore, Store
from .remotes import version_of

__all__ = ["file_states", "names_states", "state_of", "states"]

# The clock's grain, generously, of local and network file systems.
GRAIN_NS = 2_000_000_000

# From so many files on, several threads ask.
MANY_FILES = 64

# The obstores whose entity tags mean the same in every process.
LASTING = ("AzureStore", "GCSStore", "S3Store")


def names_states(store: Store) -> bool:
    """Tell whether a list of the store names states of its objects, for all processes alike."""
    return type(store) is ObjectStore and type(store.store).__name__ in LASTING


def state_of(nbytes: int, e_tag: str) -> str:
    """Return the stamp of an object of that size and entity tag."""
    return f"{nbytes}-{e_tag}"


async def states(store: Any, path: str) -> dict[str, str | None]:
    """List the objects below a path of an `ObjectStore`, with their stamps."""
    import obstore

    found: dict[str, str | None] = {}
    async for some in obstore.list(store.store, prefix=path or None):
        for meta in some:
            version = version_of(meta)
            found[meta["path"]] = None if version is None else state_of(meta["size"], version["e_tag"])
    return found


def file_states(paths: Sequence[str], n_threads: int) -> list[str | None]:
    """Return stamps of files; None where there is none."""
    if len(paths) < MANY_FILES or n_threads == 1:
        return [_file_state(path) for path in paths]
    with ThreadPoolExecutor(n_threads) as threads:
        return list(threads.map(_file_state, paths, chunksize=16))


def _file_state(path: str) -> str | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    if not stat.S_ISREG(found.st_mode):
        return None
    last = max(found.st_mtime_ns, found.st_ctime_ns)
    if time.time_ns() - last < GRAIN_NS or found.st_nlink != 1:
        return None
    return f"{found.st_size}-{found.st_ino}-{found.st_mtime_ns}-{found.st_ctime_ns}"
