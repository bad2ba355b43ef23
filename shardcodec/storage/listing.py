# listing.py - the keys of a store, one by one
# SPDX-License-Identifier: MIT
"""List the objects below a folder, and the folders in it, without a list of all of them in memory.

The functions block, so an event loop must not call them. `storage.store.Store` has them as methods.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from ..compat import on_zarrs_loop

__all__ = ["file_keys", "file_names", "zarr_keys", "zarr_names"]

# Number of keys that one call of zarr's event loop collects.
PAGE_KEYS = 1000


def zarr_keys(base: Any, prefix: str) -> Iterator[str]:
    """Yield the keys of a zarr store that begin with a prefix, which is empty or ends with a slash."""

    async def begin() -> Any:
        return aiter(base.list_prefix(prefix))

    async def end() -> None:
        await listed.aclose()

    # the methods of some stores need the running event loop before they are awaited
    listed = on_zarrs_loop(begin())
    try:
        while page := on_zarrs_loop(_page(listed)):
            yield from page
    finally:
        if hasattr(listed, "aclose"):
            on_zarrs_loop(end())


async def _page(keys: Any) -> list[str]:
    page: list[str] = []
    async for key in keys:
        page.append(key)
        if len(page) == PAGE_KEYS:
            break
    return page


def zarr_names(base: Any, prefix: str) -> list[str]:
    """Return the names in a folder of a zarr store, of objects and of folders."""

    async def listed() -> list[str]:
        return [name.rstrip("/") async for name in base.list_dir(prefix.rstrip("/"))]

    return sorted(set(on_zarrs_loop(listed())))


def file_keys(root: str, prefix: str, *, with_folders: bool = False) -> Iterator[str]:
    """Yield the keys of all files below a folder; symbolic links are followed, but never to a folder above them.

    A link to nothing is a file here, so that opening it is an error.

    Parameters
    ----------
    root : str
        The folder to which keys are relative.
    prefix : str
        The folder, relative to `root`; empty, or with a slash at its end.
    with_folders : bool
        Also yield the folders, with a slash at the end.
    """
    yield from _walk(f"{root}/{prefix}", prefix, frozenset(), with_folders)


def _walk(folder: str, prefix: str, above: frozenset[tuple[int, int]], with_folders: bool) -> Iterator[str]:
    try:
        found = os.stat(folder)
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    own = found.st_dev, found.st_ino
    if own in above:
        entries.close()
        return
    with entries:
        for entry in entries:
            key = prefix + entry.name
            if entry.is_dir():
                if with_folders:
                    yield f"{key}/"
                yield from _walk(entry.path, f"{key}/", above | {own}, with_folders)
            else:
                yield key


def file_names(root: str, prefix: str) -> list[str]:
    """Return the names of the folders in a folder; no name of a file."""
    try:
        with os.scandir(f"{root}/{prefix}") as entries:
            return sorted(entry.name for entry in entries if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
