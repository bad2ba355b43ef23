# destination.py - the hierarchy of Zarr v3 that receives converted arrays
# SPDX-License-Identifier: MIT
"""Write a converted array so that a reader sees all of it or nothing: chunks first, metadata last.

An array that is replaced is removed in the opposite order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from ...compat import Store, StorePath, buffer_from, default_buffer_prototype, sync
from ...errors import UnsupportedError
from ...format.metadata import KeyEncoding
from ...storage.files import staging_for
from ...storage.kinds import store_of
from ...storage.whole_file import put_file, sync_documents
from .metadata import parse_json

__all__ = ["Destination", "destination_v3", "put"]


def put(target: StorePath, data: Any, *, durable: bool) -> None:
    """Store an object in one step; `durable` waits until a file and its name are on disk."""
    path = store_of(target.store).path(target.path)
    if path is None:
        sync(target.set(buffer_from(default_buffer_prototype(), data)))
        return
    put_file(path, [data], sync=durable, staging=staging_for(path))
    if durable:
        sync_documents([os.path.realpath(path)])


def _get(store: Store, key: str) -> bytes | None:
    buffer = sync(store.get(key, prototype=default_buffer_prototype()))
    return None if buffer is None else buffer.to_bytes()


def _keys(store: Store, prefix: str) -> list[str]:
    """List the keys below a folder; an empty list if the store does not support listing."""

    async def listed() -> list[str]:
        return [key async for key in store.list_prefix(prefix)]

    return sync(listed()) if store.supports_listing else []


class Destination:
    """A hierarchy of Zarr v3."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @staticmethod
    def _metadata(path: str) -> str:
        return f"{path}/zarr.json" if path else "zarr.json"

    def check_free(self, path: str, *, overwrite: bool) -> None:
        """Check that an array can be written at a path; nothing is removed, see `clear`.

        Parameters
        ----------
        path : str
            Path of the new array in the store; "" for the root.
        overwrite : bool
            Permit an array, which `clear` removes, and chunks without metadata, as an aborted conversion leaves them.

        Raises
        ------
        FileExistsError
            The store has metadata at the path, or any key below it. With `overwrite`: it has metadata of another node
            than an array, or, without metadata, a key that is not a chunk key. Keys that the store cannot list are not
            checked.
        UnsupportedError
            With `overwrite`: an array exists, and the store cannot list or delete.
        """
        stored = _get(self.store, self._metadata(path))
        if stored is not None:
            if parse_json(stored, self._metadata(path)).get("node_type") != "array" or not overwrite:
                raise FileExistsError(f"{self._metadata(path)!r} exists already in {self.store}")
            if not (self.store.supports_listing and self.store.supports_deletes):
                reason = "overwrite=True needs a store that can list and delete"
                raise UnsupportedError(f"{self._metadata(path)!r} exists already in {self.store}; {reason}")
            return
        prefix = f"{path}/" if path else ""
        for key in _keys(self.store, prefix):
            if not overwrite or not key.startswith((f"{prefix}c/", f"{prefix}c.")):
                reason = "overwrite=True removes only arrays and chunks without metadata"
                raise FileExistsError(f"{key!r} exists already in {self.store}; {reason}")

    def check_group(self, path: str) -> None:
        """Check that a group can be written at a path; raise FileExistsError if it has metadata of another node."""
        stored = _get(self.store, self._metadata(path))
        if stored is not None and parse_json(stored, self._metadata(path)).get("node_type") != "group":
            raise FileExistsError(f"an array exists already in {self.store}: {self._metadata(path)!r}")

    def clear(self, path: str, *, overwrite: bool) -> None:
        """Remove all keys at and below a path, the metadata first; do nothing without `overwrite`.

        The caller has called `check_free`. Without metadata at the path, keys that the store cannot list stay.
        """
        if not overwrite:
            return
        prefix = f"{path}/" if path else ""
        if _get(self.store, self._metadata(path)) is not None:
            sync(self.store.delete(self._metadata(path)))
            sync(self.store.delete_dir(path))
        for key in _keys(self.store, prefix):
            sync(self.store.delete(key))

    def key(self, path: str, document: Mapping[str, Any], coords: tuple[int, ...]) -> str:
        """Return the key in the store of a chunk of an array; `document` is the array's zarr.json, parsed."""
        key = KeyEncoding.from_metadata(document).key(coords)
        return f"{path}/{key}" if path else key

    def finish(self, path: str, document: Mapping[str, Any], *, sync: bool) -> None:
        """Store a node's zarr.json, which makes the node visible to readers; `sync` waits until it is on disk."""
        data = json.dumps(document, indent=2).encode()
        put(StorePath(self.store, self._metadata(path)), data, durable=sync)

    def finish_group(self, path: str, attributes: Mapping[str, Any], *, sync: bool) -> None:
        """Store a group's zarr.json, unless the path has one; `sync` waits until it is on disk."""
        if _get(self.store, self._metadata(path)) is None:
            self.finish(path, {"zarr_format": 3, "node_type": "group", "attributes": attributes}, sync=sync)


def destination_v3(store: Store) -> Destination:
    """Return a hierarchy of Zarr v3 for new arrays.

    Raises
    ------
    FileExistsError
        The store has a hierarchy of the 2022 format.
    """
    stored = _get(store, "zarr.json")
    if stored is not None and parse_json(stored, "zarr.json").get("zarr_format") != 3:
        raise FileExistsError(
            f"expected a hierarchy of Zarr v3 or an empty store, got another format in {store}"
        )
    return Destination(store)
