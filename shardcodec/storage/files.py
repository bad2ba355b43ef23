# files.py - local files that Python code opens itself
# SPDX-License-Identifier: MIT
"""The engine opens most files. What Python opens goes through it as well, so that one place decides what is a file."""

from __future__ import annotations

from typing import BinaryIO

from .. import native

__all__ = ["check_name", "open_file"]


def check_name(name: str) -> str:
    """Return a path, or the key of an object in a store, unless it has a null byte.

    Raises
    ------
    ValueError
        C would cut it there, so it would name another file.
    """
    if "\0" in name:
        raise ValueError(f"a path or key cannot have a null byte: {name!r}")
    return name


def open_file(path: str) -> BinaryIO | None:
    """Open a regular file for reading.

    Returns
    -------
    file or None
        None where there is no file, or a folder.

    Raises
    ------
    ShardFileError
        A FIFO, a socket or a device, which could be waited for without end.
    ValueError
        The path has a null byte.
    """
    fd = native.load().open_file(path)
    return None if fd < 0 else open(fd, "rb")
