# staging.py - the folders of temporary files and of lock files
# SPDX-License-Identifier: MIT
"""The folders of temporary files and of lock files.

zarr lists every file below the root of a store, so temporary files are in a folder beside the hierarchy. The folder is removed when it
is empty. Where a lock can be lost, they are in a folder of the array, with its lock file (csrc/io/sc_guard.h). That folder stays.
"""

from __future__ import annotations

import functools
import os
import re
import shutil

from . import file_systems

__all__ = [
    "LOCK_FOLDER",
    "is_node",
    "kept_number",
    "lock_folder",
    "remove_lock_folders",
    "staging_folder",
    "staging_for",
]

# The metadata document of an array or group of Zarr format 3 and 2.
DOCUMENTS = ("zarr.json", ".zarray", ".zgroup")

LOCK_FOLDER = ".shardcodec"

# A second name of a shard in this folder, with the number of the shard (csrc/io/sc_kept.h).
KEPT = re.compile(r"kept-[0-9a-f]+-\.shardcodec-([0-9a-f]{16})-.*")


def is_node(folder: str) -> bool:
    """Return True if a folder has the metadata document of an array or a group."""
    return any(os.path.exists(os.path.join(folder, name)) for name in DOCUMENTS)


@functools.lru_cache(maxsize=1024)
def staging_folder(root: str) -> str | None:
    """Return the staging folder for all files below a folder, such as '/data/.a.zarr.shardcodec'; None if the top has no parent.

    The top of the hierarchy is the highest ancestor of `root` that is reached through folders with a metadata document; `root`
    itself need not have one. On GlusterFS it is None, too: files would vanish with the folder, and are made beside their final names.
    """
    top = os.path.realpath(root)
    while is_node(os.path.dirname(top)) and os.path.dirname(top) != top:
        top = os.path.dirname(top)
    parent, name = os.path.split(top)
    has_one = name and file_systems.network_type(parent) not in file_systems.OLD_NAME_TYPES
    return os.path.join(parent, f".{name}.shardcodec") if has_one else None


def _node_of(folder: str) -> str | None:
    """Return the lowest folder with metadata, from `folder` upwards; None if there is none."""
    while not is_node(folder):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return folder


def staging_for(path: str) -> str | None:
    """Return the staging folder of the hierarchy that contains a file; None if no folder above it has metadata."""
    node = _node_of(os.path.dirname(os.path.realpath(path)))
    return None if node is None else staging_folder(node)


# The folders of lock files that are in an array, by the folder of the shard; an array does not move while it is written.
_arrays: dict[str, str] = {}
MAX_KNOWN = 4096


def lock_folder(path: str) -> str:
    """Return the folder of the lock file of a shard: in its array, or beside a shard that is in no array.

    Every process must find the same one, so it depends on the nearest metadata document only, which is always that of the array.

    path: with symbolic links resolved.
    """
    folder = os.path.dirname(path)
    if (known := _arrays.get(folder)) is not None:
        return known
    node = _node_of(folder)
    if node is None:
        return os.path.join(folder, LOCK_FOLDER)
    if len(_arrays) >= MAX_KNOWN:
        _arrays.clear()
    _arrays[folder] = os.path.join(node, LOCK_FOLDER)
    return _arrays[folder]


def kept_number(name: str) -> int | None:
    """Return the number of the shard (`native.shard_number`) of which this is a second name; None for another name."""
    found = KEPT.fullmatch(name)
    return None if found is None else int(found[1], 16)


def remove_lock_folders(root: str) -> None:
    """Remove lock files that were made beside shards while their array had no document yet. No process writes these shards now."""
    for folder, names, _ in os.walk(root):
        if LOCK_FOLDER in names and not is_node(folder):
            names.remove(LOCK_FOLDER)
            shutil.rmtree(os.path.join(folder, LOCK_FOLDER), ignore_errors=True)
