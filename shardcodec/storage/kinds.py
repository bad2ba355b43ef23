# kinds.py - the kind of a store
# SPDX-License-Identifier: MIT
"""Find the `storage.store.Store` for a zarr store, a path, or the bytes of an object.

A subclass may do anything in its methods, so only zarr's own classes count as files, memory or object stores.
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

from .. import compat
from ..compat import StorePath, on_zarrs_loop, unwrap
from . import object_names
from .files import FileStore, check_name, introduce_files, is_introduced
from .memory import BytesStore, MemoryStore
from .renamed_store import original
from .store import Store
from .urls import PlacedOptions, is_url, split_url, store_at
from .waiting import in_thread

__all__ = [
    "ZIP_SUFFIXES",
    "at_url",
    "file_above",
    "introduce",
    "introduce_async",
    "is_zarr_store",
    "is_zip",
    "locate",
    "object_at",
    "readable_at",
    "store_of",
    "zip_at",
]

# Names of zip files; `.ozx` is that of OME-Zarr.
ZIP_SUFFIXES = (".zip", ".ozx")
# The first entry of a zip file, or the end of one without entries.
_ZIP_BEGINS = (b"PK\3\4", b"PK\5\6")

# The kinds that the engine reads itself. Any other class, and any subclass, is a store of requests.
KINDS: dict[type, Callable[[Any], Store]] = {
    compat.LocalStore: FileStore,
    compat.MemoryStore: MemoryStore,
}


def store_of(base: Any) -> Store:
    """Return the store for a zarr store."""
    kind = KINDS.get(type(base))
    if kind is not None:
        return kind(base)
    return _store_of_requests(base)


def _store_of_requests(base: Any) -> Store:
    # imported here, because most processes use files or memory
    if type(base) is compat.ObjectStore:
        from .object_store import ObjectStore

        return ObjectStore(base)
    from .zarr_store import ZarrStore

    inner = unwrap(base)
    return ZarrStore(base) if inner is base else ZarrStore(base, store_of(inner))


def locate(target: StorePath) -> tuple[Store, str]:
    """Return the store that has an object, and the object's key there; see `renamed_store`."""
    target = original(target)
    return store_of(target.store), target.path


def is_zarr_store(value: Any) -> bool:
    """Return True for an instance of zarr's class of stores, by its type and not by what it says of itself."""
    return issubclass(type(value), compat.Store)


def at_url(target: Any, storage_options: Mapping[str, Any] | None) -> Any:
    """Return the store or the path that a URL leads to; any other target as it is.

    Raises
    ------
    TypeError
        There are options for something that is not a URL.
    ImportError, ValueError
        As for `urls.store_at`.
    """
    if isinstance(storage_options, PlacedOptions):
        storage_options = storage_options.of(target)
    if is_url(target):
        return store_at(check_name(target), storage_options)
    if storage_options is not None:
        raise TypeError(f"storage_options: expected them only with a URL, got a {type(target).__name__}")
    return target


def readable_at(target: Any, storage_options: Mapping[str, Any] | None) -> Any:
    """Return what `at_url` does; of a path that leads to a zip file, or into one, its store and the path in it.

    Raises
    ------
    TypeError, ImportError, ValueError, OSError
        As for `at_url` and `zip_at`.
    """
    found = at_url(target, storage_options)
    if isinstance(found, str | os.PathLike) and "\0" not in os.fspath(found):
        file, rest = file_above(os.path.abspath(os.fspath(found)))
        if file and is_zip(file):
            return StorePath(zip_at(file), rest)
    return found


def file_above(path: str) -> tuple[str, str]:
    """Return the regular file at an absolute path, or the one in place of a folder above it, and the rest of the path.

    Both are empty if there is a folder at the path, or the nearest thing above it is one.
    """
    file, rest = path, ""
    while True:
        try:
            mode = os.stat(file).st_mode
        except OSError:
            mode = 0
        if mode:
            return (file, rest) if stat.S_ISREG(mode) else ("", "")
        file, name = os.path.split(file)
        if not name:
            return "", ""
        rest = f"{name}/{rest}" if rest else name


def is_zip(path: str) -> bool:
    """Return True for a regular file that is a zip file by its content, or says so by its name."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        if path.lower().endswith(ZIP_SUFFIXES):
            return True
        with open(path, "rb") as file:
            return file.read(4) in _ZIP_BEGINS and zipfile.is_zipfile(file)
    except OSError:
        return False


def zip_at(path: str) -> Any:
    """Open a zip file for reading, as a zarr store.

    Raises
    ------
    OSError
        The file cannot be read.
    ValueError
        It is not a zip file.
    """
    store = compat.ZipStore(path, mode="r")
    try:
        on_zarrs_loop(store._ensure_open())
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path!r}: expected a zip file: {error}") from error
    return store


def object_at(
    store: Any, key: str | None, storage_options: Mapping[str, Any] | None = None
) -> tuple[Store, str, str]:
    """Return the store, the key and the name for errors of an object.

    Parameters
    ----------
    store : path-like, URL, bytes-like, zarr store or StorePath
        A folder, or with `key` None or "" the file itself; the same as a URL; the bytes of the object; any zarr store.
    key : str or None
        Key of the object. For bytes only a name for errors.
    storage_options : mapping, optional
        Options for the store of a URL.

    Raises
    ------
    TypeError
        `store` is nothing of this kind, or there are options without a URL.
    ValueError
        The key has a null byte, or a store comes without a key.
    ImportError, ValueError
        The URL cannot be opened; see `urls.store_at`.
    """
    if is_url(store):
        if isinstance(storage_options, PlacedOptions):
            storage_options = storage_options.of(store)
        url, name = (store, key) if key else split_url(store)
        found = at_url(url, storage_options)
        store, key = (found, name) if key or is_zarr_store(found) else (f"{found}/{name}", None)
    else:
        at_url(store, storage_options)
    if isinstance(store, StorePath):
        store, key = store.store, "/".join(filter(None, (store.path, key)))
    check_name(key or "")
    if isinstance(store, compat.Store):
        if not key:
            raise ValueError(f"key: expected the key of the shard in the store, got {key!r}")
        introduce(store)
        target = original(StorePath(store, key))
        found = store_of(target.store)
        if not found.is_near:  # before zarr 3.2, zip files do not open themselves
            on_zarrs_loop(target.store._ensure_open())
        return found, target.path, key
    if isinstance(store, str | os.PathLike):
        path = check_name(os.path.abspath(os.path.join(os.fspath(store), key) if key else os.fspath(store)))
        folder, name = os.path.split(str(path))
        return FileStore(folder), name, key or str(path)
    try:
        return BytesStore(memoryview(store).cast("B")), key or "", key or ""
    except TypeError:
        raise TypeError(f"expected a path, bytes or a zarr store, got {type(store).__name__}") from None


def introduce(base: Any) -> None:
    """Compute the name of a zarr store, and for a LocalStore whether its file system is local.

    Called when an array or a shard is opened, so that reads and writes need no system calls for it.
    """
    base = unwrap(base)
    object_names.store_name(base)
    if type(base) is compat.LocalStore:
        introduce_files(base)


async def introduce_async(target: Any) -> None:
    """Call `introduce` in a thread for the LocalStore of a StorePath, if its file system is not known yet.

    Anything else is ignored. For objects whose array was not opened, so that their first read or write makes no blocking
    system calls on the event loop.
    """
    if not isinstance(target, StorePath):
        return
    base = unwrap(target.store)
    if type(base) is compat.LocalStore and not is_introduced(base):
        await in_thread(introduce, base)
