# whole_file.py - files that appear when they are whole
# SPDX-License-Identifier: MIT
"""`put_file`: the one function that stores a whole file under its name, in one step.

A temporary name, where the file system needs one, identifies its process, also among processes that have the same number one after
the other, as in containers. What a killed process leaves is removed by the next one that writes into the folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from .. import native

__all__ = ["NewWholeFile", "put_file", "remove_part"]


class NewWholeFile:
    """A file that another library writes, and that appears when it is whole.

    Parameters
    ----------
    path : str
        The final name.

    Attributes
    ----------
    name : str
        The temporary name, beside it.

    Raises
    ------
    OSError, ShardFileError
        The file cannot be made.
    """

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
) -> bool:
    """Store a file. After an error, also of a full disk, nothing is left of it, and an old file stays.

    Parameters
    ----------
    path : str
        Missing folders are made. A link is followed. A file that is replaced keeps its owner and mode.
    blocks : iterable of buffer
        Its bytes, one after the other.
    sync : bool
        Wait until the file and its name are on disk.
    may_replace : bool
        Replace a file of this name.
    staging : str, optional
        Folder for temporary names; by default that of the file.
    is_private : bool
        Only the owner may read the new file, from its first byte on.
    before_commit : callable, optional
        Called before the file gets its name; it may raise.

    Returns
    -------
    bool
        False if there is a file already, and `may_replace` is False.

    Raises
    ------
    OSError, ShardFileError
        The file cannot be written.
    """
    file = native.load().NewFile(path, staging=staging, shared=is_private)
    try:
        if is_private:
            os.chmod(file.place[1], 0o600)
        offset = 0
        for block in blocks:
            file.write(block, offset)
            offset += memoryview(block).nbytes
        if before_commit is not None:
            before_commit()
        return bool(file.commit(sync=sync, only_new=not may_replace))
    finally:
        file.abort()
