# object_names.py - names of objects for locks, caches and messages
# SPDX-License-Identifier: MIT
"""Names of objects.

Two ways to one object must lead to one lock, so a file is named by its path without symbolic links, and an object of another
store by the name of the store, which comes from the store's ``__str__``. That is foreign code which reads and writes must not
call (`storage.identity`), so it is called when an array is opened, and its result is memoised.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Sequence
from typing import Any

from ..compat import memory_identity, unwrap
from .concurrent_calls import call_each
from .identity import ByIdentity

__all__ = [
    "describe",
    "index_names",
    "lies_below",
    "lies_in",
    "memory_name",
    "part_name",
    "real_paths",
    "store_name",
]


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
    """Return the names of objects for caches of indexes: no other store returns them, also after this one is gone."""
    prefix = _tokens.of(store)
    return [f"store {prefix}/{key}" for key in keys]


def part_name(name: str, holder: str) -> str:
    """Return the name of a part of an object for locks, from its own name and that of the object."""
    return f"{holder}[{name}]"


def lies_in(name: str, objects: Collection[str]) -> bool:
    """Return True if a name for locks is that of a part of one of these objects."""
    return any(name[:i] in objects for i, character in enumerate(name) if character == "[")


def lies_below(name: str, folder: str) -> bool:
    """Return True if a name for locks is that of a folder, of an object below it, or of a part of one of these."""
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
    """Resolve symbolic links, folder by folder: a write has many files in few folders."""
    parts = [os.path.split(path) for path in paths]
    folders = list(dict.fromkeys(folder for folder, _ in parts))
    real = dict(zip(folders, call_each(_real_folder, folders), strict=True))
    return call_each(_real_file, [f"{real[folder].rstrip('/')}/{name}" for folder, name in parts])  # "/" too


def _real_file(path: str) -> str:
    """Resolve a file whose folder is resolved."""
    return os.path.realpath(path) if os.path.islink(path) else path


# Folders whose links were resolved, with the device and inode that both names lead to.
_real: dict[str, tuple[str, int, int]] = {}
MAX_REAL = 4096


def _real_folder(folder: str) -> str:
    """Resolve a folder; a memoised result counts as long as both names lead to the same folder."""
    known = _real.get(folder)
    if known is not None and _leads_to(folder, known) and (known[0] == folder or _leads_to(known[0], known)):
        return known[0]
    real = os.path.realpath(folder)
    try:
        found = os.stat(real)
    except OSError:
        return real  # not created yet
    if len(_real) >= MAX_REAL:
        _real.clear()
    _real[folder] = real, found.st_dev, found.st_ino
    return real


def _leads_to(path: str, known: tuple[str, int, int]) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == known[1:]
