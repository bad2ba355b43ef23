# files.py - local files that Python code opens
# SPDX-License-Identifier: MIT
"""Open local files through the engine, so that one place decides which kinds of files are accepted."""

from __future__ import annotations

from typing import BinaryIO

from .. import native

__all__ = ["check_name", "open_file"]


def check_name(name: str) -> str:
    """Return a path, or the key of an object in a store, after a check for null bytes.

    Raises
    ------
    ValueError
        The name has a null byte. C would cut it there and use another file.
    """
    if "\0" in name:
        raise ValueError(f"expected a path or key without null bytes, got {name!r}")
    return name


def open_file(path: str) -> BinaryIO | None:
    """Open a regular file for reading.

    Returns
    -------
    file or None
        None if there is no file, or it is a folder.

    Raises
    ------
    ShardFileError
        The path is a FIFO, a socket or a device, which could block forever.
    ValueError
        The path has a null byte.
    """
    fd = native.load().open_file(path)
    return None if fd < 0 else open(fd, "rb")
