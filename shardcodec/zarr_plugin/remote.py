# remote.py - zarr's stores as objects that are reached by requests
# SPDX-License-Identifier: MIT
"""Adapters from stores to `storage.remote.Remote`.

Any store has `get`, which says nothing but bytes. Behind zarr's `ObjectStore` is an obstore, which also tells the size
and the entity tag of an object with every answer, and takes a tag as a condition of reading and writing. A subclass may
do anything in its `get`, so only the class itself is looked behind.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from ..access.reader import MAX_GAP_NBYTES
from ..storage.remote import Answer, Changed, ConditionalRemote, Limits, Remote
from .compat import (
    FsspecStore,
    ObjectStore,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
    ZipStore,
    coalescing,
    config,
)

__all__ = [
    "ObstoreRemote",
    "StoreRemote",
    "conditional_remote_for",
    "is_near",
    "limits_for",
    "remote_for",
]

# The obstores that compare entity tags when they write (for S3 it can be switched off).
CONDITIONAL = ("AzureStore", "GCSStore", "MemoryStore", "S3Store")

# zarr works on `async.concurrency` objects at a time, and asks for so many ranges of each.
RANGES_PER_OBJECT = 10


def remote_for(store: Store, prototype: Any) -> Remote:
    """Return the way to the objects of a store."""
    if type(store) is ObjectStore:
        return ObstoreRemote(store.store)
    return StoreRemote(store, prototype)


def conditional_remote_for(store: Store) -> ConditionalRemote | None:
    """Return the way to the objects of a store that can write under a condition; None for others."""
    if type(store) is ObjectStore and type(store.store).__name__ in CONDITIONAL:
        return ObstoreRemote(store.store)
    return None


def limits_for(store: Store, spec: Any) -> Limits:
    """Return what zarr's configuration allows, and what is worth a request to this store."""
    max_gap_nbytes, max_nbytes = coalescing(spec)
    n_objects = max(1, int(config.get("async.concurrency")))
    limits = Limits(RANGES_PER_OBJECT * n_objects, max_gap_nbytes, max_nbytes, n_objects=n_objects)
    if is_near(store):
        max_gap_nbytes = min(max_gap_nbytes, MAX_GAP_NBYTES)
        limits = limits._replace(max_gap_nbytes=max_gap_nbytes, free_gap_nbytes=max_gap_nbytes)
    return limits


def is_near(store: Any) -> bool:
    """Whether a request costs as little as one to a local file: then few bytes are worth another."""
    if type(store) is ZipStore:
        return True
    if type(store) is FsspecStore:
        fs = getattr(store.fs, "sync_fs", store.fs)  # zarr wraps file systems that are not asynchronous
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        return not protocols.isdisjoint({"file", "local", "memory"})
    return type(store) is ObjectStore and type(store.store).__name__ in ("LocalStore", "MemoryStore")


class StoreRemote:
    """Any store, through its `get`."""

    def __init__(self, store: Store, prototype: Any) -> None:
        self._store = store
        self._prototype = prototype

    async def get(self, key: str) -> Answer | None:
        """All of an object."""
        return await self._get(key, None)

    async def get_range(self, key: str, start: int, end: int, version: Any = None) -> Answer | None:
        """Bytes [start, end) of an object; there are no versions."""
        return await self._get(key, RangeByteRequest(start, end))

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        """The last bytes of an object."""
        return await self._get(key, SuffixByteRequest(nbytes))

    async def _get(self, key: str, byte_range: Any) -> Answer | None:
        buffer = await self._store.get(key, prototype=self._prototype, byte_range=byte_range)
        return None if buffer is None else Answer(buffer.as_numpy_array())


class ObstoreRemote:
    """An obstore: every answer names size and state of the object."""

    def __init__(self, store: Any) -> None:
        import obstore

        self._store = store
        self._obstore = obstore

    async def get(self, key: str) -> Answer | None:
        """All of an object."""
        return await self._get(key, {})

    async def get_range(self, key: str, start: int, end: int, version: Any = None) -> Answer | None:
        """Bytes [start, end) of an object, in that state if one is named.

        Raises
        ------
        Changed
            It is in another state.
        """
        options: dict[str, Any] = {"range": (start, end)}
        if version is not None:
            options["if_match"] = version["e_tag"]
        errors = self._obstore.exceptions
        try:
            answer = await self._get(key, options)
        except errors.PreconditionError:
            raise Changed(key) from None
        except errors.GenericError:
            if (nothing := await self._nothing_from(key, start)) is None:
                raise
            return nothing
        if version is not None and answer is not None and answer.version != version:
            raise Changed(key)  # and the server does not look at conditions
        return answer

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        """The last bytes of an object; where the store cannot count from the end, after a question for its size."""
        errors = self._obstore.exceptions
        try:
            return await self._get(key, {"range": {"suffix": nbytes}})
        except errors.NotSupportedError:
            size = await self._size(key)
            return None if size is None else await self.get_range(key, max(0, size - nbytes), size)
        except errors.GenericError:
            if (nothing := await self._nothing_from(key, 0)) is None:
                raise
            return nothing

    async def _get(self, key: str, options: Any) -> Answer | None:
        try:
            result = await self._obstore.get_async(self._store, key, options=options)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        meta = result.meta  # made anew each time it is asked for
        nbytes, version = int(meta["size"]), version_of(meta)
        return Answer(np.frombuffer(await result.bytes_async(), dtype=np.uint8), nbytes, version)

    async def put(self, key: str, data: Any, expected: Answer | None) -> Any:
        """Store an object under a condition; without one where the store (S3, if so configured) knows none.

        Returns what names the new state.

        Raises
        ------
        Changed
            It is in another state than expected.
        """
        errors = self._obstore.exceptions
        mode: Any = "create" if expected is None else expected.version or "overwrite"
        try:
            result = await self._obstore.put_async(self._store, key, data, mode=mode)
        except (errors.PreconditionError, errors.AlreadyExistsError, FileNotFoundError):
            raise Changed(key) from None
        except (NotImplementedError, errors.NotSupportedError):
            result = await self._obstore.put_async(self._store, key, data)
        return version_of(result)

    async def _nothing_from(self, key: str, start: int) -> Answer | None:
        """The answer for an object that ends before a range begins, which stores call an error as they do others."""
        with contextlib.suppress(self._obstore.exceptions.BaseError):
            size = await self._size(key)
            if size is not None and size <= start:
                return Answer(np.empty(0, dtype=np.uint8), size)
        return None

    async def _size(self, key: str) -> int | None:
        try:
            return int((await self._obstore.head_async(self._store, key))["size"])
        except FileNotFoundError:
            return None


def version_of(meta: Any) -> dict[str, str] | None:
    """Return what names the state of an object; a weak entity tag does not, and never fulfils a condition."""
    e_tag = meta["e_tag"]
    if e_tag is None or e_tag.startswith("W/"):
        return None
    version = meta["version"]
    return {"e_tag": e_tag} if version is None else {"e_tag": e_tag, "version": version}
