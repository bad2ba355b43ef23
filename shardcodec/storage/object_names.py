# object_names.py - names of objects for locks, caches and messages; the keys of a store
# SPDX-License-Identifier: MIT
"""Names of objects for locks, caches and messages; the keys of a store.

Two ways to one object must lead to one lock, so a file is named by its path without symbolic links, and an object of another
store by the name of the store, which comes from the store's ``__str__``.

``str``, ``repr``, ``==`` and ``hash`` of a store are foreign code. They may wait for a lock whose owner waits for the GIL,
which is a deadlock. So dictionaries must not have stores as keys, and reads and writes must not format them: a store is
named when its array is opened, and `ByIdentity` memoises the name.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from typing import Any, Generic, NamedTuple, TypeVar

from .. import native
from ..compat import is_zarrs_loop, memory_identity, on_zarrs_loop, submit, unwrap
from ..errors import as_os_error
from .concurrent_calls import call_each

__all__ = [
    "ByIdentity",
    "LeftFolder",
    "describe",
    "file_keys",
    "file_names",
    "folders_above",
    "holders_of",
    "in_real_folders",
    "index_names",
    "known_folder",
    "lies_below",
    "lies_in",
    "memory_name",
    "nested_name",
    "real_paths",
    "store_name",
    "zarr_keys",
    "zarr_names",
]


T = TypeVar("T")

# Maximum number of objects without weak references that stay in memory with their facts.
MAX_KEPT = 64


class ByIdentity(Generic[T]):
    """A memo of facts about objects; each fact is kept as long as its object lives.

    `make` computes a fact. Two threads may call it at the same time for one object; both get the same fact.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._facts: dict[int, tuple[Callable[[], Any], T]] = {}
        self._kept: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._facts)

    def has(self, thing: Any) -> bool:
        """Return True if the fact about an object is memoised."""
        fact = self._facts.get(id(thing))
        return fact is not None and fact[0]() is thing

    def of(self, thing: Any) -> T:
        """Return the fact about an object; the first call computes it."""
        fact = self._facts.get(id(thing))
        if fact is not None and fact[0]() is thing:
            return fact[1]
        new = self._reference(thing), self._make(thing)
        fact = self._facts.setdefault(id(thing), new)
        if fact[0]() is not thing:  # stale: the fact of a deleted object with the same id
            self._facts[id(thing)] = fact = new
        return fact[1]

    def _reference(self, thing: Any) -> Callable[[], Any]:
        number = id(thing)

        def forget(reference: Any) -> None:
            fact = self._facts.get(number)
            if fact is not None and fact[0] is reference:
                self._facts.pop(number, None)

        try:
            return weakref.ref(thing, forget)
        except TypeError:  # a class with slots and without `__weakref__`
            self._kept.append(number)
            if len(self._kept) > MAX_KEPT:
                self._facts.pop(self._kept.popleft(), None)
            return lambda: thing


def store_name(store: Any) -> str:
    """Return the name of a zarr store; equal for stores of one place, as far as their ``__str__`` tells."""
    return _names.of(unwrap(store))


def memory_name(store: Any) -> str:
    """Return the name of a memory store, which a read-only view shares."""
    return f"memory:{memory_identity(unwrap(store))}"


def describe(store: Any, key: str) -> str:
    """Return the name of an object for messages."""
    name = store_name(store)
    return "/".join(filter(None, (name.partition(":")[2] or name, key)))


def index_names(store: Any, keys: Sequence[str]) -> list[str]:
    """Return the names of objects for index caches; no other store ever has them, even after this one is deleted."""
    prefix = _tokens.of(store)
    return [f"store {prefix}/{key}" for key in keys]


def nested_name(name: str, holder: str) -> str:
    """Return the lock name of a value in an object, from the names of the value and of the object."""
    return f"{holder}[{name}]"


def lies_in(name: str, objects: Collection[str]) -> bool:
    """Return True for the lock name of a value in one of these objects."""
    return any(holder in objects for holder in holders_of(name))


def holders_of(name: str) -> list[str]:
    """Return the lock names of the objects in which a value may lie; none for a name without brackets."""
    return [name[:i] for i, character in enumerate(name) if character == "["] if "[" in name else []


def lies_below(name: str, folder: str) -> bool:
    """Return True for the lock name of a folder, of an object below it, or of a value in one of these."""
    return name == folder or name.startswith((f"{folder}/", f"{folder}[")) or f"[{folder}/" in name


def _name_of(store: Any) -> str:
    try:
        return f"{type(store).__name__}:{store}"
    except Exception:  # noqa: BLE001  # a store that cannot be formatted is still a store
        return f"{type(store).__name__} {_tokens.of(store)}"


_names = ByIdentity(_name_of)

# A number for each store that no other store has or had.
_count = itertools.count()
_tokens = ByIdentity(lambda _: next(_count))


def real_paths(paths: Sequence[str]) -> list[str]:
    """Resolve symbolic links; each folder is resolved once, because a write has many files in few folders."""
    return call_each(_real_file, in_real_folders(paths))


def in_real_folders(paths: Sequence[str]) -> list[str]:
    """Resolve symbolic links in the folders of files, but not files that are links."""
    splits = [os.path.split(path) for path in paths]
    real = _real_folders(list(dict.fromkeys(folder for folder, _ in splits)))
    return [f"{real[folder][0].rstrip('/')}/{name}" for folder, name in splits]  # "/" too


def _real_file(path: str) -> str:
    """Resolve a file whose folder is resolved."""
    found = native.load().look_at_known(path, follows=False)
    return os.path.realpath(path) if found is not None and found[2] else path


# Device and inode of a folder.
Id = tuple[int, int]

# The path of a folder without symbolic links; None: nothing is there.
RealFolder = tuple[str, Id | None]

# Folders whose links were resolved.
_real: dict[str, RealFolder] = {}
MAX_REAL = 4096


def _real_folders(folders: list[str]) -> dict[str, RealFolder]:
    """Resolve folders: each folder above them is looked at once, and none below one that is missing."""
    found: dict[str, RealFolder] = {}
    levels = []
    while folders:
        known = dict(zip(folders, call_each(_memoised, folders), strict=True))
        found.update((folder, real) for folder, real in known.items() if real is not None)
        levels.append([folder for folder, real in known.items() if real is None])
        above = dict.fromkeys(filter(None, map(_above, levels[-1])))
        folders = [folder for folder in above if folder not in found]
    for level in reversed(levels):
        found.update(zip(level, call_each(partial(_real_folder, found), level), strict=True))
    return found


def _above(folder: str) -> str:
    """Return the parent of a folder; an empty text for a path that ends with "", "." or "..", or that has one part only."""
    head, name = os.path.split(folder)
    return "" if name in ("", ".", "..") else head


def _memoised(folder: str) -> RealFolder | None:
    """Return the memoised result, which is valid while both names lead to the same folder."""
    known = _real.get(folder)
    if known is None:
        return None
    seen = [native.load().look_at_known(name) for name in dict.fromkeys((folder, known[0]))]
    return known if all(found is not None and found[:2] == known[1] for found in seen) else None


def _real_folder(found: dict[str, RealFolder], folder: str) -> RealFolder:
    """Resolve a folder; `found` has the one above it."""
    look = native.load().look_at_known
    path, seen = folder, None
    if above := _above(folder):
        path = os.path.join(found[above][0], os.path.basename(folder))
        if found[above][1] is None:
            return path, None
        seen = look(path, follows=False)
    if not above or (seen is not None and seen[2]):
        path = os.path.realpath(path)
        seen = look(path)
    if seen is None:
        return path, None  # not created yet
    if len(_real) >= MAX_REAL:
        _real.clear()
    _real[folder] = _real[path] = real = path, seen[:2]
    return real


def known_folder(path: str) -> str:
    """Return the nearest folder above a path that was there when it was resolved; the path if none was."""
    folder = os.path.dirname(path)
    while folder not in _real:
        folder, below = os.path.dirname(folder), folder
        if folder == below:
            return path
    return folder


# Number of keys that one call of zarr's event loop collects, so that memory never holds all keys.
PAGE_KEYS = 1000


def zarr_keys(base: Any, prefix: str, left: list[LeftFolder] | None = None) -> Iterator[str]:
    """Yield the keys of a zarr store that begin with a prefix, which is empty or ends with a slash.

    left: gets the folder if the store refuses to list it; without it, that is an error.
    """

    async def begin() -> Any:
        return aiter(base.list_prefix(prefix))

    async def end() -> None:
        await listed.aclose()

    # the methods of some stores need the running event loop before they are awaited
    listed = on_zarrs_loop(begin())
    try:
        while page := on_zarrs_loop(_page(listed)):
            yield from page
    except OSError as error:
        if left is None:
            raise
        left.append(LeftFolder(prefix.rstrip("/"), error))
    finally:
        if hasattr(listed, "aclose"):
            # the collector of garbage may close this generator in any thread, also in that of the loop
            (submit if is_zarrs_loop() else on_zarrs_loop)(end())


async def _page(keys: Any) -> list[str]:
    page: list[str] = []
    with as_os_error():
        async for key in keys:
            page.append(key)
            if len(page) == PAGE_KEYS:
                break
    return page


def zarr_names(base: Any, prefix: str) -> list[str]:
    """Return the names of the objects and folders in a folder of a zarr store."""

    async def listed() -> list[str]:
        with as_os_error():
            return [name.rstrip("/") async for name in base.list_dir(prefix.rstrip("/"))]

    return sorted(set(on_zarrs_loop(listed())))


class LeftFolder(NamedTuple):
    """A folder that a listing has not entered. error: why it cannot be read; None if it is one of those above it."""

    key: str
    error: OSError | None

    @property
    def reason(self) -> str:
        """Why it was not entered."""
        if self.error is None:
            return "a link or a mount that leads to a folder above it"
        return f"the folder cannot be read: {self.error}"


def file_keys(
    root: str, prefix: str, *, with_folders: bool = False, left: list[LeftFolder] | None = None
) -> Iterator[str]:
    """Yield the keys, relative to `root`, of all files below a folder; symbolic links are followed, but never to a folder above them.

    A link to nothing is a file here, so that opening it is an error. prefix: the folder, relative to `root`; empty, or with a
    slash at its end. with_folders: also yield the folders, with a slash at the end. left: gets the folders that are not
    entered; without it, one that cannot be read is an error.
    """
    for key in _walk(f"{root}/{prefix}", prefix, None):
        if isinstance(key, LeftFolder):
            if left is None and key.error is not None:
                raise key.error
            if left is not None:
                left.append(key)
        elif with_folders or not key.endswith("/"):
            yield key


def _walk(folder: str, prefix: str, entry: os.DirEntry[str] | None) -> Iterator[str | LeftFolder]:
    """Yield the keys of files and, with a slash at the end, of folders; also the folders that are not entered."""
    try:
        if entry is not None and _is_loop(entry):
            yield LeftFolder(prefix.rstrip("/"), None)
            return
        entries = os.scandir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        yield LeftFolder(prefix.rstrip("/"), error)
        return
    with entries:
        for entry in entries:
            key = prefix + entry.name
            if _is_folder(entry):
                yield f"{key}/"
                yield from _walk(entry.path, f"{key}/", entry)
            else:
                yield key


def _is_loop(entry: os.DirEntry[str]) -> bool:
    """Return True for a folder that is one of those above it. Only a link, or a mount over the folder of the listing, leads there."""
    try:
        status = entry.stat()
    except OSError:  # it was removed; or the next step raises the error
        return False
    if not entry.is_symlink() and status.st_ino == entry.inode():
        return False
    return (status.st_dev, status.st_ino) in folders_above(entry.path)


def folders_above(path: str) -> set[Id]:
    """Return device and inode of the folders above a file or folder, those of its path and those that contain them."""
    up = os.path.dirname(os.path.abspath(path))
    found = set()
    for named in [up, *map(str, PurePath(up).parents)]:
        with suppress(OSError):
            found.add(_id_at(named))
    with suppress(OSError):
        last = None
        while (above := _id_at(up)) != last:
            found.add(above)
            last, up = above, f"{up}/.."
    return found


def _id_at(path: str) -> Id:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return True for a folder or a link to one. Any other link is a file, such as one to itself, to nothing or into a closed folder."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def file_names(
    root: str, prefix: str, left: list[LeftFolder] | None = None, *, with_files: bool = False
) -> list[str]:
    """Return the names of the folders in a folder, by default without files; `left` is as for `file_keys`."""
    names = []
    try:
        with os.scandir(f"{root}/{prefix}") as entries:
            for entry in filter(None if with_files else _is_folder, entries):
                if not _is_loop(entry):
                    names.append(entry.name)
                elif left is not None:
                    left.append(LeftFolder(prefix + entry.name, None))
        return sorted(names)
    except (FileNotFoundError, NotADirectoryError):
        return []
