# whole_file.py - a file or a document that appears when it is whole
# SPDX-License-Identifier: MIT
"""A file or a document that appears when it is whole.

`put_file`: the one function that stores a whole file under its name, in one step.

A temporary name, where the file system needs one, identifies its process, also among processes that have the same number one after
the other, as in containers. What a killed process leaves is removed by the next one that writes into the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from .. import native

__all__ = [
    "NewWholeFile",
    "give_name",
    "put_file",
    "remove_part",
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


def give_name(old: str, path: str) -> None:
    """Give a file another name; FileExistsError if there is a file of this name."""
    os.link(old, path)
