# temp_folder.py - the staging folder for temporary files
# SPDX-License-Identifier: MIT
"""The folder of temporary files.

zarr lists every file below the root of a store, so temporary files are in a folder beside the hierarchy. The folder is
removed when it is empty.
"""

from __future__ import annotations

import functools
import os

__all__ = ["staging_folder", "staging_for"]

# The metadata document of an array or group of Zarr format 3 and 2.
DOCUMENTS = ("zarr.json", ".zarray", ".zgroup")


def _is_node(folder: str) -> bool:
    return any(os.path.exists(os.path.join(folder, name)) for name in DOCUMENTS)


@functools.lru_cache(maxsize=1024)
def staging_folder(root: str) -> str | None:
    """Return the path of the staging folder for all files below a folder.

    The top of the hierarchy is the highest ancestor of `root` that is reached through folders with a metadata document;
    `root` itself need not have one.

    Returns
    -------
    str or None
        ``<parent of top>/.<name of top>.shardcodec``; None if the top has no parent.

    Examples
    --------
    >>> staging_folder("/data/a.zarr/group/array")  # all three have a zarr.json
    '/data/.a.zarr.shardcodec'
    """
    top = os.path.realpath(root)
    while _is_node(os.path.dirname(top)) and os.path.dirname(top) != top:
        top = os.path.dirname(top)
    parent, name = os.path.split(top)
    return os.path.join(parent, f".{name}.shardcodec") if name else None


def staging_for(path: str) -> str | None:
    """Return the staging folder of the hierarchy that contains a file; None if no folder above it has metadata."""
    folder = os.path.dirname(os.path.realpath(path))
    while not _is_node(folder):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return staging_folder(folder)
