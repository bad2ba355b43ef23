# journals.py - does a file wait for the roll back of an update in place?
# SPDX-License-Identifier: MIT
"""Find the undo journal that a killed writer has left.

`csrc/io/sc_undo.h` describes it. Readers and writers of the engine find it themselves.
"""

from __future__ import annotations

import os

__all__ = ["pending_journal"]

# csrc/io/sc_staging.h
_PREFIX = ".shardcodec-undo-"
_MARKER = ".shard"


def pending_journal(path: str) -> str | None:
    """Return the path of the undo journal of a file; None if there is none.

    The journal of a writer that still works is one too.

    Parameters
    ----------
    path : str
        The file of a shard.
    """
    try:
        found = os.stat(path)
    except OSError:
        return None
    if found.st_nlink < 2:
        return None
    above = os.path.dirname(os.path.realpath(path))
    while os.path.dirname(above) != above:
        parent, name = os.path.split(above)
        journal = os.path.join(parent, f".{name}.shardcodec", f"{_PREFIX}{found.st_ino:x}")
        try:
            marker = os.lstat(journal + _MARKER)
        except OSError:
            marker = None
        is_own = marker is not None and (marker.st_ino, marker.st_dev) == (found.st_ino, found.st_dev)
        if is_own and os.path.exists(journal):
            return journal
        above = parent
    return None
