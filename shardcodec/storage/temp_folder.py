# temp_folder.py - the staging folder for temporary files
# SPDX-License-Identifier: MIT
"""The folder of temporary files.

zarr lists every file below the root of a store, so temporary files are in a folder beside the hierarchy. The folder is
removed when it is empty; a folder that held journals, when the process ends.
"""

from __future__ import annotations

import functools
import os

__all__ = ["staging_folder", "staging_for"]


@functools.lru_cache(maxsize=1024)
def staging_folder(root: str) -> str | None:
    """Return the path of the staging folder for all files below a folder.

    The top of the hierarchy is the highest ancestor of `root` that is reached through folders with a ``zarr.json``; `root`
    itself need not have one.

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
    while os.path.exists(os.path.join(os.path.dirname(top), "zarr.json")) and os.path.dirname(top) != top:
        top = os.path.dirname(top)
    parent, name = os.path.split(top)
    return os.path.join(parent, f".{name}.shardcodec") if name else None


def staging_for(path: str) -> str | None:
    """Return the staging folder of the hierarchy that contains a file; None if no folder above it has a ``zarr.json``."""
    folder = os.path.dirname(os.path.realpath(path))
    while not os.path.exists(os.path.join(folder, "zarr.json")):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return staging_folder(folder)
