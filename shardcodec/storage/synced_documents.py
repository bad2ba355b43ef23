# synced_documents.py - the documents above a durable file are on disk too
# SPDX-License-Identifier: MIT
"""Sync what a durable file needs to be found again after a power cut.

zarr writes documents without a sync: after a power cut a new ``zarr.json`` has 0 bytes, and on XFS also an old one that was changed. A
file below it is then lost, however durable it is. So before a durable write is acknowledged, the documents of its array and of the
groups above it are synced, and the names of all folders above it, which zarr or a killed process may have made. What this process has
synced in its present state is not synced again.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress

from .. import native
from ..mounts import Descriptor
from .staging import DOCUMENTS

__all__ = ["sync_documents"]

# The documents of format 2 beside those that make a folder a node.
_BESIDE_V2 = (".zattrs", ".zmetadata")

_State = tuple[int, ...]
_States = dict[str, _State]

# Folders whose names are on disk, by path: device, inode, and the inode's own number. And documents whose present states are.
_folders: _States = {}
_documents: _States = {}
MAX_KNOWN = 1 << 16


def sync_documents(paths: Sequence[str]) -> None:
    """Wait until the documents above files, and the names of the files' folders, are on disk.

    paths: files, or documents themselves, with symbolic links resolved. They need not exist: the caller syncs them.
    """
    documents: _States = {}
    names: _States = {}
    own = frozenset(paths)
    seen: dict[str, _States] = {}
    for folder in dict.fromkeys(os.path.dirname(path) for path in paths):
        for states in _documents_above(folder, own, seen):
            documents.update(states)
        _add_unknown(folder, names)
    new = {path: state for path, state in documents.items() if state and _documents.get(path) != state}
    for path in (*new, *dict.fromkeys(os.path.dirname(path) for path in (*new, *names))):
        # removed meanwhile, or without permission: this user has not made it
        with suppress(FileNotFoundError, PermissionError):
            native.load().sync_path(path)
    for known, more in ((_folders, names), (_documents, new)):
        if len(known) + len(more) > MAX_KNOWN:
            known.clear()
        known.update(more)


def _documents_above(folder: str, own: Collection[str], seen: dict[str, _States]) -> Iterator[_States]:
    """Yield the documents of each node: from the folder of a file up to the first node, and on while there is one.

    own: documents that the caller syncs; they have empty states. seen: the documents of folders that this call of `sync_documents` has
    looked at.
    """
    is_below = True
    while True:
        if (states := seen.get(folder)) is None:
            states = seen[folder] = _documents_in(folder, own)
        if states:
            yield states
        above = os.path.dirname(folder)
        if above == folder or not (is_below or states):
            return
        is_below = is_below and not states
        folder = above


def _documents_in(folder: str, own: Collection[str]) -> _States:
    """Return the documents in a folder with their states; an empty dict if the folder is not a node."""
    states: _States = {}
    for name in DOCUMENTS:
        _add_state(f"{folder}/{name}", own, states)
        if states and name == "zarr.json":
            return states  # format 3 has no other document
    for name in _BESIDE_V2 if states else ():
        _add_state(f"{folder}/{name}", own, states)
    return states


def _add_state(path: str, own: Collection[str], states: _States) -> None:
    if path in own:
        states[path] = ()
        return
    with suppress(OSError):
        state = os.stat(path)
        states[path] = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _add_unknown(folder: str, states: _States) -> None:
    """Add the folders from that of a file up to the mount whose names this process has not synced."""
    device = None
    while folder not in states:
        with suppress(
            FileNotFoundError
        ):  # an erased shard leaves its folder, but other programs may remove it
            state = _folder_state(folder)
            if device not in (None, state[0]) or _folders.get(folder) == state:
                return
            device = state[0]
            states[folder] = state
        above = os.path.dirname(folder)
        if above == folder:
            return
        folder = above


def _folder_state(folder: str) -> _State:
    """Return what names a folder; a new one may have the inode of one that was removed."""
    state = os.stat(folder)
    number = 0
    with suppress(PermissionError), Descriptor(folder, os.O_RDONLY | os.O_DIRECTORY) as fd:
        number = native.load().inode_number(fd)
    return state.st_dev, state.st_ino, number
