# whole_file.py - a file or a document that appears when it is whole
# SPDX-License-Identifier: MIT
"""A file or a document that appears when it is whole.

`put_file`: the one function that stores a whole file under its name, in one step.

A temporary name, where the file system needs one, identifies its process, also among processes that have the same number one after
the other, as in containers. What a killed process leaves is removed by the next one that writes into the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from .. import native
from ..mounts import Descriptor

__all__ = [
    "NewWholeFile",
    "give_name",
    "put_file",
    "remove_part",
    "sync_documents",
]


class NewWholeFile:
    """A file that another library writes under `name`, a temporary name beside `path`, and that appears there when it is whole."""

    def __init__(self, path: str) -> None:
        self._file = native.load().NewFile(path, shared=True)
        self.name: str = self._file.place[1]

    def commit(self) -> None:
        """Give the file its name, when its bytes are on disk; an old file is replaced."""
        self._file.commit(sync=True)

    def abort(self) -> None:
        """Remove the file; it does nothing after `commit`."""
        self._file.abort()


def remove_part(path: str) -> None:
    """Remove the unfinished file that an earlier version left beside `path`, if its process had the number of this one."""
    with suppress(OSError):
        os.unlink(f"{path}.{os.getpid()}.part")


def put_file(
    path: str,
    blocks: Iterable[Any],
    *,
    sync: bool = False,
    may_replace: bool = True,
    staging: str | None = None,
    is_private: bool = False,
    before_commit: Callable[[], None] | None = None,
    check: Callable[[str], object] | None = None,
) -> bool:
    """Store a file. After an error, also of a full disk, nothing is left of it, and an old file stays.

    path: missing folders are made, a link is followed, and a file that is replaced keeps its owner and mode. blocks: its bytes,
    one after the other. sync: wait until the file and its name are on disk. staging: folder for temporary names, by default
    that of the file. is_private: only the owner may read the new file, from its first byte on. check: called with a temporary
    name of the whole file, to read it again. before_commit: called after that, before the file gets its name. Both may raise.
    Returns False if there is a file already, and `may_replace` is False.
    """
    file = native.load().NewFile(path, staging=staging, shared=is_private or check is not None)
    try:
        if is_private:
            os.chmod(file.place[1], 0o600)
        offset = 0
        for block in blocks:
            file.write(block, offset)
            offset += memoryview(block).nbytes
        if check is not None:
            check(file.place[1])
        if before_commit is not None:
            before_commit()
        return bool(file.commit(sync=sync, only_new=not may_replace))
    finally:
        file.abort()


# ---------------------------------------------------------------- with durability="fsync": the documents above a file are on disk too
#
# Sync what a durable file needs to be found again after a power cut.
#
# zarr writes documents without a sync: after a power cut a new ``zarr.json`` has 0 bytes, and on XFS also an old one that was
# changed. A file below it is then lost, however durable it is. So before a durable write is acknowledged, the documents of its array
# and of the groups above it are synced, and the names of all folders above it, which zarr or a killed process may have made. What
# this process has synced in its present state is not synced again.

# The documents of an array or group of Zarr format 3 and 2; the others of format 2 are looked for beside these.
_NODES = ("zarr.json", ".zarray", ".zgroup")
_BESIDE_V2 = (".zattrs", ".zmetadata")

_State = tuple[int, ...]

# Folders whose names are on disk, by path: device, inode, and the inode's own number. And documents whose present states are.
_folders: dict[str, _State] = {}
_documents: dict[str, _State] = {}
MAX_KNOWN = 1 << 16


def sync_documents(paths: Sequence[str]) -> None:
    """Wait until the documents above files, and the names of the files' folders, are on disk.

    paths: files, or documents themselves, with symbolic links resolved. They need not exist.
    """
    documents: dict[str, _State] = {}
    names: dict[str, _State] = {}
    for folder in dict.fromkeys(os.path.dirname(path) for path in paths):
        for node in _node_folders(folder):
            documents.update(_documents_in(node))
        _add_unknown(folder, names)
    new = {path: state for path, state in documents.items() if _documents.get(path) != state}
    for path in new:
        with suppress(FileNotFoundError):  # removed meanwhile
            native.load().sync_path(path)
    for folder in dict.fromkeys(os.path.dirname(path) for path in (*new, *names)):
        with suppress(
            FileNotFoundError, PermissionError
        ):  # a folder that this user could not have made either
            native.load().sync_path(folder)
    for known, more in ((_folders, names), (_documents, new)):
        if len(known) + len(more) > MAX_KNOWN:
            known.clear()
        known.update(more)


def _node_folders(folder: str) -> Iterator[str]:
    """Yield the folders that may be nodes: from that of a file up to the first one, and on while there is one."""
    is_below = True
    while True:
        is_node = any(os.path.exists(f"{folder}/{name}") for name in _NODES)
        if is_node:
            yield folder
        above = os.path.dirname(folder)
        if above == folder or not (is_below or is_node):
            return
        is_below = is_below and not is_node
        folder = above


def _documents_in(folder: str) -> dict[str, _State]:
    states: dict[str, _State] = {}
    for name in (*_NODES, *_BESIDE_V2):
        path = f"{folder}/{name}"
        with suppress(OSError):
            state = os.stat(path)
            states[path] = state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns
            if name == "zarr.json":
                break  # format 3 has no other document
    return states


def _add_unknown(folder: str, states: dict[str, _State]) -> None:
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


def give_name(old: str, path: str) -> None:
    """Give a file another name; FileExistsError if there is a file of this name."""
    os.link(old, path)
