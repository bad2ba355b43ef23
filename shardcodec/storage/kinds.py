# kinds.py - from a path, a URL, bytes or a zarr store to the store of shards
# SPDX-License-Identifier: MIT
"""From a path, a URL, bytes or a zarr store to the store of shards.

A subclass may do anything in its methods, so only zarr's own classes count as files, memory or object stores.
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

from .. import compat
from ..compat import ObjectStore, StorePath, on_zarrs_loop, unwrap
from . import object_names
from .event_loop import in_thread
from .files import FileStore, check_name, introduce_files, is_introduced
from .memory_store import BytesStore, MemoryStore
from .renamed_store import original
from .store import Store
from .url_stores import PlacedOptions, is_url, split_url, store_at

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
    "service_of",
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
    """Return the store that has an object, and the object's key there, behind all views."""
    target = original(target)
    return store_of(target.store), target.path


def is_zarr_store(value: Any) -> bool:
    """Return True for an instance of zarr's class of stores. A mock's ``__class__`` does not count."""
    return issubclass(type(value), compat.Store)


def at_url(target: Any, storage_options: Mapping[str, Any] | None) -> Any:
    """Return the store or the path that a URL leads to; return any other target unchanged.

    TypeError: there are options, but the target is not a URL. Raises also as `store_at`.
    """
    if isinstance(storage_options, PlacedOptions):
        storage_options = storage_options.of(target)
    if is_url(target):
        return store_at(check_name(target), storage_options)
    if storage_options is not None:
        raise TypeError(f"storage_options: expected them only with a URL, got a {type(target).__name__}")
    return target


def readable_at(target: Any, storage_options: Mapping[str, Any] | None) -> Any:
    """Return the result of `at_url`; for a path to a zip file or into one, the zip store and the path in it."""
    place = at_url(target, storage_options)
    if isinstance(place, str | os.PathLike) and "\0" not in os.fspath(place):
        file, rest = file_above(os.path.abspath(os.fspath(place)))
        if file and is_zip(file):
            return StorePath(zip_at(file), rest)
    return place


def file_above(path: str) -> tuple[str, str]:
    """Return the regular file at an absolute path or above it, and the rest of the path.

    Both are empty if the nearest existing name is not a regular file.
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
    """Return True for a regular file that is a zip file by its content or by its name."""
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
    """Open a zip file for reading, as a zarr store; ValueError if it is not a zip file."""
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

    store: a folder, or the file itself if `key` is None or ""; a URL of either; the bytes of the object; any zarr store or
    StorePath. key: for bytes only a name for errors. TypeError: another type, or options without a URL. ValueError: the key has
    a null byte, or a store comes without a key. Raises also as `store_at`.
    """
    if is_url(store):
        if isinstance(storage_options, PlacedOptions):
            storage_options = storage_options.of(store)
        url, name = (store, key) if key else split_url(store)
        place = at_url(url, storage_options)
        store, key = (place, name) if key or is_zarr_store(place) else (f"{place}/{name}", None)
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
        return store_of(target.store), target.path, key
    if isinstance(store, str | os.PathLike):
        path = check_name(os.path.abspath(os.path.join(os.fspath(store), key) if key else os.fspath(store)))
        folder, name = os.path.split(str(path))
        return FileStore(folder), name, key or str(path)
    try:
        return BytesStore(memoryview(store).cast("B")), key or "", key or ""
    except TypeError:
        raise TypeError(
            f"store: expected a path, bytes or a zarr store, got {type(store).__name__}"
        ) from None


def service_of(base: Any) -> tuple[Any, str] | None:
    """Return what tells the service of a store of requests from others, None for local files, and the path of its root there.

    None for any other store, such as zarr's own.
    """
    store = unwrap(base)
    if isinstance(store, compat.FsspecStore):
        system = getattr(store.fs, "sync_fs", None) or store.fs  # zarr wraps systems without coroutines
        options = {name: value for name, value in system.storage_options.items() if name != "asynchronous"}
        service = (type(system), system.storage_args, options)
        return (None if "file" in system.protocol else service), str(store.path)
    if not isinstance(store, ObjectStore):
        return None
    client = store.store
    root = str(getattr(client, "prefix", None) or "")
    if type(client).__name__ == "LocalStore":
        return None, root
    settings = getattr(client, "config", None)
    if settings is None:
        url = getattr(client, "url", None)
        return (client if url is None else type(client), str(url or root))  # memory, or a server of HTTP
    return (type(client), *map(settings.get, ("bucket", "endpoint", "account_name", "container_name"))), root


def introduce(base: Any) -> None:
    """Memoise the name of a zarr store and, for a LocalStore, whether its file system is local; open a zip file.

    Callers open an array or a shard. Later reads and writes then need no system calls for these facts.
    """
    base = unwrap(base)
    # before zarr 3.2, it does not open itself
    if compat.ZipStore in type(base).__mro__ and not base._is_open:
        base._sync_open()
    object_names.store_name(base)
    if type(base) is compat.LocalStore:
        introduce_files(base)


async def introduce_async(target: Any) -> None:
    """Call `introduce` in a thread for the LocalStore of a StorePath, if its file system is not known yet; ignore the rest.

    An object whose array was not opened then makes no blocking system calls on the event loop.
    """
    if not isinstance(target, StorePath):
        return
    base = unwrap(target.store)
    if type(base) is compat.LocalStore and not is_introduced(base):
        await in_thread(introduce, base)
