# objects.py - the objects of an array in a zarr store, for handles without a zarr array
# SPDX-License-Identifier: MIT
"""`shardcodec.open_array` on zarr stores.

Files and buffers of this process the engine reaches itself. From other stores bytes are fetched on zarr's event loop,
as for a zarr array, while the calling thread waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..access import array_reader
from ..access.read import ReadItem
from ..access.read_remote import fetch
from ..compat import Store, StorePath, default_buffer_prototype, default_spec, on_zarrs_loop
from ..options import Options
from .remotes import limits_for, remote_for
from .renamed_store import RenamedStore, original
from .stores import (
    described,
    index_names,
    introduce,
    is_local,
    is_memory,
    local_path,
    lock_keys,
    stored_bytes,
)

__all__ = ["objects_of_store"]


class MemoryObjects:
    """Objects of a MemoryStore."""

    fetches = False

    def __init__(self, store: Store, path: str) -> None:
        self._root = StorePath(store, path)

    def get(self, key: str) -> bytes | None:
        """Return a copy of an object."""
        data = self.source(key)
        return None if data is None else bytes(data)

    def source(self, key: str) -> Any:
        """Return an object's buffer."""
        return stored_bytes(self._root / key, default_buffer_prototype())

    def names(self, keys: Sequence[str]) -> list[str]:
        """Name objects for locks."""
        return lock_keys([self._root / key for key in keys])

    def fetch(
        self, items: Sequence[ReadItem], out: np.ndarray[Any, Any], axes: tuple[int, ...], options: Options
    ) -> None:
        """Never needed."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return described(self._root)


class RemoteObjects:
    """Objects that are reached by a store's asynchronous calls."""

    fetches = True

    def __init__(self, store: Store, path: str) -> None:
        self._root = StorePath(store, path)

    def get(self, key: str) -> bytes | None:
        """Fetch an object."""
        buffer = on_zarrs_loop((self._root / key).get(prototype=default_buffer_prototype()))
        return None if buffer is None else buffer.to_bytes()

    def source(self, key: str) -> Any:
        """Never needed."""
        raise NotImplementedError

    def names(self, keys: Sequence[str]) -> list[str]:
        """Name objects for locks."""
        return lock_keys([self._root / key for key in keys])

    def fetch(
        self, items: Sequence[ReadItem], out: np.ndarray[Any, Any], axes: tuple[int, ...], options: Options
    ) -> None:
        """Fetch and decode on zarr's event loop."""
        store = self._root.store
        remote = remote_for(store, default_buffer_prototype())
        named = [item._replace(key=(self._root / item.key).path) for item in items]
        names = index_names([self._root / item.key for item in items])
        on_zarrs_loop(
            fetch(named, out, axes, options, remote, limits_for(store, default_spec()), names=names)
        )

    def __repr__(self) -> str:
        return described(self._root)


class RenamedObjects:
    """Objects that have other names in the store behind."""

    def __init__(self, store: RenamedStore, path: str) -> None:
        self._root = StorePath(store, path)
        self._base = _objects(store.base, "")

    @property
    def fetches(self) -> bool:
        return self._base.fetches

    def get(self, key: str) -> bytes | None:
        """Fetch what the store shows under a name."""
        buffer = on_zarrs_loop((self._root / key).get(prototype=default_buffer_prototype()))
        return None if buffer is None else buffer.to_bytes()

    def source(self, key: str) -> Any:
        """Return what the engine reads."""
        return self._base.source(self._located(key))

    def names(self, keys: Sequence[str]) -> list[str]:
        """Name objects of the store behind for locks."""
        return self._base.names([self._located(key) for key in keys])

    def fetch(
        self, items: Sequence[ReadItem], out: np.ndarray[Any, Any], axes: tuple[int, ...], options: Options
    ) -> None:
        """Fetch and decode, from the store behind."""
        self._base.fetch([item._replace(key=self._located(item.key)) for item in items], out, axes, options)

    def _located(self, key: str) -> str:
        return original(self._root / key).path

    def __repr__(self) -> str:
        return described(self._root)


def objects_of_store(store: Any, path: str) -> array_reader.Objects | None:
    """Return the objects below a path of a store; None where it is no zarr store."""
    if isinstance(store, StorePath):
        store, path = store.store, (store / path).path if path else store.path
    if not issubclass(type(store), Store):
        return None
    return _objects(store, path)


def _objects(store: Store, path: str) -> array_reader.Objects:
    introduce(store)
    if isinstance(store, RenamedStore):
        return RenamedObjects(store, path)
    if is_local(store):
        return array_reader.Folder(local_path(StorePath(store, path)))
    return MemoryObjects(store, path) if is_memory(store) else RemoteObjects(store, path)
