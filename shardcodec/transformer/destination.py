# destination.py - where converted arrays go
# SPDX-License-Identifier: MIT
"""The order in which an array appears: its place is free, then its chunks are there, then its metadata.

What is replaced goes in the opposite order. So a reader sees an array that is whole, or none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

from ..format.keys import KeyEncoding
from ..native import load
from ..storage.staging import staging_for
from ..zarr_plugin.compat import Store, StorePath, buffer_from, default_buffer_prototype, sync
from ..zarr_plugin.stores import is_local, local_path
from .legacy import HIERARCHY, array_key, data_prefix, group_key, parse_hierarchy, parse_json

__all__ = ["Destination", "destination_2022", "destination_v3", "put"]


class Destination(Protocol):
    """A hierarchy that arrays are put into."""

    store: Store

    def check_free(self, path: str, *, overwrite: bool) -> None:
        """Refuse a place that is taken."""

    def check_group(self, path: str) -> None:
        """Refuse a place where an array is."""

    def clear(self, path: str, *, overwrite: bool) -> None:
        """Remove what was there, metadata first."""

    def key(self, path: str, document: Mapping[str, Any], coords: tuple[int, ...]) -> str:
        """Return the key of a chunk."""

    def finish(self, path: str, document: Mapping[str, Any], *, sync: bool) -> None:
        """Store an array's metadata."""

    def finish_group(self, path: str, attributes: Mapping[str, Any], *, sync: bool) -> None:
        """Store a group's metadata."""


def put(target: StorePath, data: Any, *, durable: bool) -> None:
    """Store an object in one step; on disk, where that is asked for and the store is a folder."""
    if not is_local(target.store):
        sync(target.set(buffer_from(default_buffer_prototype(), data)))
        return
    path = local_path(target)
    file = load().NewFile(path, staging=staging_for(path))
    try:
        file.write(data, 0)
        file.commit(sync=durable)
    finally:
        file.abort()


def _get(store: Store, key: str) -> bytes | None:
    buffer = sync(store.get(key, prototype=default_buffer_prototype()))
    return None if buffer is None else buffer.to_bytes()


def _keys(store: Store, prefix: str) -> list[str]:
    """List the keys below a folder; none where the store does not tell."""

    async def listed() -> list[str]:
        return [key async for key in store.list_prefix(prefix)]

    return sync(listed()) if store.supports_listing else []


class V3Destination:
    """A hierarchy of Zarr v3."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @staticmethod
    def _metadata(path: str) -> str:
        return f"{path}/zarr.json" if path else "zarr.json"

    def check_free(self, path: str, *, overwrite: bool) -> None:
        """Refuse a place where anything is: of an array only without `overwrite`."""
        stored = _get(self.store, self._metadata(path))
        if stored is not None:
            if parse_json(stored, self._metadata(path)).get("node_type") != "array" or not overwrite:
                raise FileExistsError(f"there is {self._metadata(path)!r} in {self.store} already")
            return
        prefix = f"{path}/" if path else ""
        for key in _keys(self.store, prefix):
            if not overwrite or not key.startswith((f"{prefix}c/", f"{prefix}c.")):
                reason = "overwrite=True removes chunks without metadata, and nothing else"
                raise FileExistsError(f"there is {key!r} in {self.store} already; {reason}")

    def check_group(self, path: str) -> None:
        """Refuse a place where an array is."""
        stored = _get(self.store, self._metadata(path))
        if stored is not None and parse_json(stored, self._metadata(path)).get("node_type") != "group":
            raise FileExistsError(f"there is {self._metadata(path)!r} in {self.store} already")

    def clear(self, path: str, *, overwrite: bool) -> None:
        """Remove an array, metadata first; or chunks that have none."""
        if not overwrite:
            return
        prefix = f"{path}/" if path else ""
        if _get(self.store, self._metadata(path)) is not None:
            sync(self.store.delete(self._metadata(path)))
            sync(self.store.delete_dir(path))
        for key in list(_keys(self.store, prefix)):
            sync(self.store.delete(key))

    def key(self, path: str, document: Mapping[str, Any], coords: tuple[int, ...]) -> str:
        """Return the key of a chunk."""
        key = KeyEncoding.from_metadata(document).key(coords)
        return f"{path}/{key}" if path else key

    def finish(self, path: str, document: Mapping[str, Any], *, sync: bool) -> None:
        """Store an array's zarr.json."""
        data = json.dumps(document, indent=2).encode()
        put(StorePath(self.store, self._metadata(path)), data, durable=sync)

    def finish_group(self, path: str, attributes: Mapping[str, Any], *, sync: bool) -> None:
        """Store a group's zarr.json, unless there is one."""
        if _get(self.store, self._metadata(path)) is None:
            self.finish(path, {"zarr_format": 3, "node_type": "group", "attributes": attributes}, sync=sync)


class LegacyDestination:
    """A hierarchy of the 2022 format."""

    def __init__(self, store: Store, suffix: str) -> None:
        self.store = store
        self.suffix = suffix

    def check_free(self, path: str, *, overwrite: bool) -> None:
        """Refuse a place where anything is, of an array only without `overwrite`; and names that zarr-python 2 refuses."""
        if not path.isascii() or set(path) - set(_KEY_CHARACTERS):
            raise ValueError(
                f"{path!r}: a path of the 2022 format has only ASCII letters, digits, '/', '.', '-' and '_'"
            )
        above = path.split("/")
        for i in range(len(above)):
            parent = "/".join(above[:i])
            if (i or path) and _get(self.store, array_key(parent, self.suffix)) is not None:
                raise FileExistsError(f"{path!r} would be within the array {parent!r}")
        if _get(self.store, array_key(path, self.suffix)) is not None:
            if not overwrite:
                raise FileExistsError(f"there is an array {path!r} in {self.store} already")
            return
        if _get(self.store, group_key(path, self.suffix)) is not None:
            raise FileExistsError(f"there is a group {path!r} in {self.store} already")
        for prefix in (f"meta/root/{path}".rstrip("/") + "/", data_prefix(path)):
            found = next(iter(_keys(self.store, prefix)), None)
            if found is not None and (prefix.startswith("meta") or not overwrite):
                raise FileExistsError(
                    f"there is {found!r} in {self.store} already; overwrite=True removes data alone"
                )

    def check_group(self, path: str) -> None:
        """Refuse a place where an array is."""
        if _get(self.store, array_key(path, self.suffix)) is not None:
            raise FileExistsError(f"there is an array {path!r} in {self.store} already")

    def clear(self, path: str, *, overwrite: bool) -> None:
        """Remove an array, metadata first; say what the hierarchy is where nothing does."""
        if overwrite:
            sync(self.store.delete(array_key(path, self.suffix)))
            sync(self.store.delete_dir(data_prefix(path).rstrip("/")))
        if _get(self.store, "zarr.json") is None:
            document = {**HIERARCHY, "metadata_key_suffix": self.suffix}
            put(StorePath(self.store, "zarr.json"), _dumped(document), durable=False)

    def key(self, path: str, document: Mapping[str, Any], coords: tuple[int, ...]) -> str:
        """Return the key of a chunk."""
        separator: str = document["chunk_grid"]["separator"]
        return f"{data_prefix(path)}c" + separator.join(map(str, coords or (0,)))

    def finish(self, path: str, document: Mapping[str, Any], *, sync: bool) -> None:
        """Store an array.json."""
        put(StorePath(self.store, array_key(path, self.suffix)), _dumped(document), durable=sync)

    def finish_group(self, path: str, attributes: Mapping[str, Any], *, sync: bool) -> None:
        """Store a group.json, unless there is one."""
        if _get(self.store, group_key(path, self.suffix)) is None:
            document = {"attributes": attributes}
            put(StorePath(self.store, group_key(path, self.suffix)), _dumped(document), durable=sync)


_KEY_CHARACTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/.-_"


def _dumped(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=4, sort_keys=True).encode()


def destination_v3(store: Store) -> V3Destination:
    """Return a hierarchy to put arrays of Zarr v3 into.

    Raises
    ------
    FileExistsError
        It is of the 2022 format.
    """
    stored = _get(store, "zarr.json")
    if stored is not None and parse_json(stored, "zarr.json").get("zarr_format") != 3:
        raise FileExistsError(f"{store} is a hierarchy of another format than Zarr v3")
    return V3Destination(store)


def destination_2022(store: Store) -> LegacyDestination:
    """Return a hierarchy to put arrays of the 2022 format into.

    Raises
    ------
    FileExistsError
        It is of Zarr v3.
    """
    stored = _get(store, "zarr.json")
    suffix = ".json"
    if stored is not None:
        document = parse_json(stored, "zarr.json")
        if document.get("zarr_format") == 3:
            raise FileExistsError(f"{store} is a hierarchy of Zarr v3")
        suffix = parse_hierarchy(document)
    return LegacyDestination(store, suffix)
