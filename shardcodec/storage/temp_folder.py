# temp_folder.py - the folder in which files wait for their names
# SPDX-License-Identifier: MIT
"""Where temporary names are made.

zarr lists every file below the root of a store, so a temporary name must not be there: it is made beside the
hierarchy, in a folder that goes when nothing is in it any more; one that held journals, when the process ends.
"""

from __future__ import annotations

import functools
import os

__all__ = ["staging_folder", "staging_for"]


@functools.lru_cache(maxsize=1024)
def staging_folder(root: str) -> str | None:
    """Name the staging folder for everything below a folder.

    The top of a hierarchy is the highest folder from which down every one has a ``zarr.json``; `root` itself need not
    have one.

    Returns
    -------
    str or None
        ``<parent of top>/.<name of top>.shardcodec``; None where there is no parent.

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
    """Name the staging folder for a file: that of the hierarchy it lies in; None when there is no ``zarr.json`` above it."""
    folder = os.path.dirname(os.path.realpath(path))
    while not os.path.exists(os.path.join(folder, "zarr.json")):
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
    return staging_folder(folder)
