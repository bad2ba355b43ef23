# legacy_keys.py - keys of documents and chunks in a 2022 hierarchy
# SPDX-License-Identifier: MIT
"""The keys under which a 2022 hierarchy has its documents and chunks."""

from __future__ import annotations

from ...storage.files import check_name

__all__ = ["array_key", "data_prefix", "group_key", "normalized"]


def normalized(path: str) -> str:
    """Return a path with normal slashes, none of them at its ends.

    ValueError: a name in the path is empty, "." or "..", or the path has a null byte.
    """
    path = check_name(path).replace("\\", "/").strip("/")
    if any(part in ("", ".", "..") for part in path.split("/")) and path:
        raise ValueError(f"path: expected parts that are neither empty nor dots, got {path!r}")
    return path


def array_key(path: str, suffix: str) -> str:
    """Return the key of an array's metadata."""
    return f"meta/root/{path}.array{suffix}" if path else f"meta/root.array{suffix}"


def group_key(path: str, suffix: str) -> str:
    """Return the key of a group's metadata."""
    return f"meta/root/{path}.group{suffix}" if path else f"meta/root.group{suffix}"


def data_prefix(path: str) -> str:
    """Return the common start of all chunk keys of an array, without "c"."""
    return f"data/root/{path}/" if path else "data/root/"
