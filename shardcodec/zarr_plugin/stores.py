# stores.py - how the bytes of a zarr store are reached
# SPDX-License-Identifier: MIT
"""Stores, by what they allow.

`LocalStore`: the engine opens the files itself. `MemoryStore`: the engine works on the stored buffers. All others:
their own asynchronous calls. A subclass may do anything in its `get` and `set`, so only the classes themselves count
as local or in memory.
"""

from __future__ import annotations

import functools
import itertools
import os
from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any

from ..compat import LocalStore, MemoryStore, ObjectStore, Store, StorePath, memory_identity, unwrapped
from ..storage import file_system
from ..storage.identity import ByIdentity
from ..storage.tasks import in_thread
from ..storage.temp_folder import staging_folder

__all__ = [
    "PartStore",
    "are_links",
    "check_writable",
    "described",
    "index_names",
    "introduce",
    "introduce_async",
    "is_direct",
    "is_link",
    "is_local",
    "is_memory",
    "is_prompt",
    "lies_in",
    "local_path",
    "lock_keys",
    "lock_keys_async",
    "staging",
    "staging_async",
    "stored_bytes",
]


class PartStore(Store):
    """A store of which some values are parts of objects of another store."""

    @abstractmethod
    def object_of(self, key: str) -> StorePath | None:
        """Return the object that a value is a part of; None for a value that is not."""


def is_local(store: Store) -> bool:
    """Tell whether objects are files below ``store.root``."""
    return type(store) is LocalStore


def is_memory(store: Store) -> bool:
    """Tell whether objects are buffers of this process."""
    return type(store) is MemoryStore


def is_direct(store: Store) -> bool:
    """Tell whether the engine reaches objects itself; else they are reached by requests."""
    return is_local(store) or is_memory(store)


def local_path(target: StorePath) -> str:
    """Return the file of an object of a LocalStore."""
    return f"{_root(target.store)}/{target.path}"


def is_link(target: StorePath) -> bool:
    """Tell whether an object is reached by a symbolic link: an erase ends that, and so changes the object's name for locks."""
    return is_local(target.store) and os.path.islink(local_path(target))


async def are_links(targets: Sequence[StorePath]) -> list[bool]:
    """As `is_link`, for objects of one store, without blocking the event loop."""
    if all(is_prompt(target.store) or not is_local(target.store) for target in targets[:1]):
        return [is_link(target) for target in targets]
    return await in_thread(lambda: [is_link(target) for target in targets])


def staging(store: Store) -> str | None:
    """Return the folder for temporary names of a LocalStore; None for other stores."""
    return staging_folder(_root(store)) if is_local(store) else None


async def staging_async(store: Store) -> str | None:
    """As `staging`, without blocking the event loop: where folders take round trips they are looked at in a thread."""
    return staging(store) if is_prompt(store) or not is_local(store) else await in_thread(staging, store)


def _root(store: Any) -> str:
    return str(_root_text(store.root))


@functools.lru_cache(maxsize=64)
def _root_text(root: Any) -> str:
    return str(root)


def introduce(store: Any) -> None:
    """Find out what reads and writes need to know of a store, when an array or a shard in it is opened.

    Its name comes from its own ``__str__``, which reads and writes must not call (`storage.identity`).
    """
    store = unwrapped(store)
    _names.of(store)
    if is_local(store):
        _prompt.of(store)


async def introduce_async(target: Any) -> None:
    """As `introduce`, where no array has done it: a codec is given objects, without a word about their store before."""
    if isinstance(target, StorePath) and is_local(target.store) and not _prompt.has(target.store):
        await in_thread(introduce, target.store)


def is_prompt(store: Store) -> bool:
    """Tell whether the engine reaches objects so soon that small work on them may be done on an event loop.

    Not where the root of a LocalStore lies on a file system that takes round trips: there nothing is done on an event loop.
    """
    return is_memory(store) or (is_local(store) and _prompt.of(store))


def described(target: StorePath) -> str:
    """Return what a message calls an object, without a call of the store's own ``__str__``."""
    name = _names.of(unwrapped(target.store))
    return "/".join(filter(None, (name.partition(":")[2] or name, target.path)))


def _name_of_store(store: Any) -> str:
    """Return a name that two store objects for one place share, as far as their ``__str__`` tells."""
    try:
        return f"{type(store).__name__}:{store}"
    except Exception:  # noqa: BLE001  # a store that cannot be formatted is still a store
        return f"{type(store).__name__} {_tokens.of(store)}"


def lock_keys(targets: Sequence[StorePath]) -> list[str]:
    """Name objects of one store for the lock table: the same through whichever store this process reaches them.

    The name of a part of an object begins with that of the object.
    """
    if not targets:
        return []
    store: Any = unwrapped(targets[0].store)
    if is_local(store):
        return _real_paths([f"{_root(store)}/{target.path}" for target in targets])
    if is_memory(store):
        prefix = f"memory:{memory_identity(store)}"
    else:
        prefix = _names.of(store)
    names = [f"{prefix}/{target.path}" for target in targets]
    if isinstance(store, PartStore):
        return [
            _name_of_part(name, store.object_of(target.path))
            for name, target in zip(names, targets, strict=True)
        ]
    return names


async def lock_keys_async(
    targets: Sequence[StorePath], resolve: Callable[[Sequence[StorePath]], list[str]] | None = None
) -> list[str]:
    """As `lock_keys`, or as `resolve`, which calls that, without blocking the event loop."""
    resolve = resolve or lock_keys
    if all(_is_named_promptly(target) for target in targets[:1]):
        return resolve(targets)
    return await in_thread(resolve, targets)


def _is_named_promptly(target: StorePath) -> bool:
    """Tell whether the names of a target and of others in its store take no look at a slow file system."""
    store: Any = unwrapped(target.store)
    if isinstance(store, PartStore):
        holder = store.object_of(target.path)
        return holder is None or _is_named_promptly(holder)
    return is_prompt(store) or not is_local(store)


def _name_of_part(name: str, holder: StorePath | None) -> str:
    return name if holder is None else f"{lock_keys([holder])[0]}[{name}]"


def lies_in(name: str, objects: Collection[str]) -> bool:
    """Tell whether `lock_keys` has given a name to a part of one of these objects."""
    return any(name[:i] in objects for i, character in enumerate(name) if character == "[")


def index_names(targets: Sequence[StorePath]) -> list[str]:
    """Name objects of one store for caches of indexes: never as those of another store, be that gone meanwhile."""
    store: Any = unwrapped(targets[0].store)
    prefix = _tokens.of(store.store if type(store) is ObjectStore else store)
    return [f"store {prefix}/{target.path}" for target in targets]


# What `lock_keys` calls a store.
_names = ByIdentity(_name_of_store)

# Whether the files of a LocalStore are reached without round trips.
_prompt: ByIdentity[bool] = ByIdentity(lambda store: file_system.is_prompt(_root(store)))

# A number for each store that no other store has or had.
_count = itertools.count()
_tokens = ByIdentity(lambda _: next(_count))


def _real_paths(paths: Sequence[str]) -> list[str]:
    """Resolve symbolic links, folder by folder: a batch has many files in few of them."""
    folders: dict[str, str] = {}
    real = []
    for path in paths:
        folder, name = os.path.split(path)
        if folder not in folders:
            folders[folder] = _real_folder(folder)
        path = f"{folders[folder]}/{name}"
        real.append(os.path.realpath(path) if os.path.islink(path) else path)
    return real


# Folders whose links were resolved, with the device and inode that both names lead to.
_real: dict[str, tuple[str, int, int]] = {}
MAX_REAL = 4096


def _real_folder(folder: str) -> str:
    """Resolve a folder; what was found before counts as long as both names lead to the same folder still."""
    known = _real.get(folder)
    if known is not None and _leads_to(folder, known) and (known[0] == folder or _leads_to(known[0], known)):
        return known[0]
    real = os.path.realpath(folder)
    try:
        found = os.stat(real)
    except OSError:
        return real  # not made yet
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


def stored_bytes(target: StorePath, prototype: Any) -> Any:
    """Return an object of a MemoryStore as an array, not copied; None when there is none."""
    store: Any = target.store
    buffer = store.get_sync(target.path, prototype=prototype)
    return None if buffer is None else buffer.as_numpy_array()


def check_writable(store: Store) -> None:
    """Refuse what the store would refuse.

    Raises
    ------
    ValueError
        The store is read-only.
    """
    if store.read_only:
        raise ValueError("store was opened in read-only mode and does not support writing")
