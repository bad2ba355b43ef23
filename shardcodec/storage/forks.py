# forks.py - stores of other libraries in a forked child
# SPDX-License-Identifier: MIT
"""Make the stores of a forked child's parent usable in the child, or raise.

An open zip file shares its file offset with the parent and with all other children, so each of them reads from wrong places.
Clients of services have connections of the parent. The libraries obstore and icechunk have threads, which exist only in the
parent: a request in the child never ends, not even one of a new client. So the child opens the file or the client again
where it can; otherwise it raises.
"""

from __future__ import annotations

import contextlib
import glob
import io
import os
import pickle
import sys
from typing import Any

from ..compat import FsspecStore, ObjectStore, StorePath, ZipStore, unwrap, wrapped, zip_again
from .object_names import ByIdentity, store_name

__all__ = ["is_local", "note", "own", "own_batch"]

# Libraries that do all their work in threads, and do not start them again in a child.
_THREADED = ("obstore", "icechunk")

_generation = 0
_lost: frozenset[str] = frozenset()  # libraries whose threads are in a parent
_running: frozenset[str] = frozenset()  # libraries that have threads at the moment of a fork


def note(store: Any) -> None:
    """Remember that this process uses a zarr store, so that a forked child can tell it from its own stores."""
    if type(inner := unwrap(store)) is ZipStore:
        _noted.of(inner)


def own(store: Any) -> Any:
    """Return a zarr store that this process may use: the given one, or one with its file or client opened again.

    RuntimeError: the store works only in the parent process.
    """
    return _own.of(store) if _generation else store


def own_batch(batch: list[Any]) -> list[Any]:
    """Return a batch of zarr's pipeline whose stores this process may use."""
    if not _generation:
        return batch
    return [
        (StorePath(own(target.store), target.path) if isinstance(target, StorePath) else target, *rest)
        for target, *rest in batch
    ]


def _make_own(store: Any) -> Any:
    inner = unwrap(store)
    again = _reopened(inner)
    return store if again is inner else wrapped(store, again)


def _reopened(store: Any) -> Any:
    library = _library(store)
    if library in _lost:
        raise _refused(store, f"the threads of {library} exist only in its parent")
    if isinstance(store, ZipStore):
        return _reopened_zip(store)
    if isinstance(store, FsspecStore) and getattr(store.fs, "_pid", None) not in (None, os.getpid()):
        return _reopened_client(store)
    return store


def _library(store: Any) -> str:
    """Return the library of `_THREADED` behind a zarr store; "" if it is another one."""
    if isinstance(store, ObjectStore):
        return "obstore"
    client = store.fs if isinstance(store, FsspecStore) else getattr(store, "_fileobj", None)
    raw = getattr(client, "raw", client)  # zarr wraps a reader of obstore
    for owner in (store, client, getattr(raw, "_fileobj", None)):
        library = type(owner).__module__.partition(".")[0]
        if library in _THREADED:
            return library
    return ""


def _reopened_zip(store: Any) -> Any:
    """Return a zip store that has opened the file again, unless this process has opened it."""
    if not store._is_open or (_noted.has(store) and _noted.of(store) == _generation):
        return store
    if not store.read_only:
        if not _noted.has(store):
            return store  # perhaps opened in this process
        raise _refused(
            store, "its parent has the zip file open for writing; close it before, and open it again here"
        )
    file = getattr(store, "_fileobj", None)
    if file is None:
        return zip_again(store)
    if isinstance(file, io.BytesIO) or not _noted.has(store):
        return store
    raise _refused(
        store, "its zip file was given as an open file, whose position all processes share; give a path"
    )


def is_local(store: Any) -> bool:
    """Return True if a store of fsspec has local files, or memory of this process."""
    fs = getattr(store.fs, "sync_fs", store.fs)  # zarr wraps file systems that are not asynchronous
    protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    return not protocols.isdisjoint({"file", "local", "memory"})


def _reopened_client(store: Any) -> Any:
    if is_local(store):
        return store
    try:
        return pickle.loads(pickle.dumps(store))
    except Exception as error:
        raise _refused(store, f"its client cannot be made again: {error}") from error


def _refused(store: Any, why: str) -> RuntimeError:
    return RuntimeError(
        f"{store_name(store)}: cannot be used in a forked process: {why}. Start processes with spawn or forkserver: "
        "multiprocessing.get_context('spawn'), DataLoader(multiprocessing_context='spawn')"
    )


def _before() -> None:
    global _running
    libraries = frozenset(name for name in _THREADED if name in sys.modules)
    _running = libraries if libraries and _has_threads() else frozenset()


def _has_threads() -> bool:
    """Return True if a thread of these libraries runs, or if the system does not list threads."""
    names = glob.glob("/proc/self/task/*/comm")
    for name in names:
        with contextlib.suppress(OSError), open(name) as file:  # the thread may have ended
            if "tokio" in file.read():
                return True
    return not names


def _begin_child() -> None:
    global _generation, _lost, _own
    _generation += 1
    _lost |= _running
    _own = ByIdentity(_make_own)


# The generation in which a store was used first.
_noted = ByIdentity(lambda _: _generation)
_own = ByIdentity(_make_own)

os.register_at_fork(before=_before, after_in_child=_begin_child)
