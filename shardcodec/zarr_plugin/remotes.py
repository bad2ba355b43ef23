# remotes.py - zarr's stores as objects that are reached by requests
# SPDX-License-Identifier: MIT
"""Adapters from stores to `storage.requests.Remote`.

Any store has `get`, which says nothing but bytes. Behind zarr's `ObjectStore` is an obstore, which also tells the size
and the entity tag of an object with every answer, and takes a tag as a condition of reading and writing. A subclass may
do anything in its `get`, so only the class itself is looked behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections import deque
from typing import Any

import numpy as np

from ..access.read import MAX_GAP_NBYTES
from ..compat import (
    FsspecStore,
    ObjectStore,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
    ZipStore,
    coalescing,
    config,
)
from ..storage.requests import Answer, Changed, ConditionalRemote, Limits, OwnBytes, Remote
from . import conditions

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

# Objects from this size on are fetched into memory of our own, piece by piece, so that the new object can be made of it.
OWN_NBYTES = 8 << 20
PIECE_NBYTES = 4 << 20

# Metadata of an object that names the write that stored it. No underscore: some proxies drop headers that have one.
WRITE_ID = "shardcodecwrite"
# How long a write that has failed may take to find out whether it was stored all the same, in seconds.
CONFIRM_SECONDS = 30.0
# Where obstore says in an error that it has sent a request more than once.
REPEATED = re.compile(r"after [1-9][0-9]* retries")

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
        return ObstoreRemote(store.store, owns=True)
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
    """An obstore: every answer names size and state of the object.

    Parameters
    ----------
    store : obstore store
    owns : bool
        `get` returns large objects as `OwnBytes`.
    """

    def __init__(self, store: Any, *, owns: bool = False) -> None:
        import obstore

        self._store = store
        self._owns = owns
        self._obstore = obstore
        self._checking = asyncio.Lock()

    async def get(self, key: str) -> Answer | None:
        """All of an object."""
        return await self._get(key, {}, owns=self._owns)

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

    async def _get(self, key: str, options: Any, *, owns: bool = False) -> Answer | None:
        try:
            result = await self._obstore.get_async(self._store, key, options=options)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            return None
        meta = result.meta  # made anew each time it is asked for
        nbytes, version = int(meta["size"]), version_of(meta)
        if owns and nbytes >= OWN_NBYTES:
            return Answer(await own_bytes(result, nbytes), nbytes, version)
        return Answer(np.frombuffer(await result.bytes_async(), dtype=np.uint8), nbytes, version)

    async def put(self, key: str, data: Any, expected: Answer | None) -> Any:
        """Store an object under a condition, and return what names the new state.

        Where the store has no conditions, or the old object has no name of its state, the user is warned once, and the object
        is stored without one.

        Raises
        ------
        Changed
            It is in another state than expected.
        FileNotFoundError
            There is no such bucket or container.
        """
        await self._check(key)
        if expected is not None and expected.version is None:
            reason = (
                "the server, or a proxy before it, does not name the states of objects (strong entity tags)"
            )
            conditions.warn(self._store, reason)
            return await self.replace(key, data)
        errors = self._obstore.exceptions
        mode: Any = "create" if expected is None else expected.version
        write_id = secrets.token_hex(16)
        try:
            result = await self._obstore.put_async(
                self._store, key, data, mode=mode, attributes={WRITE_ID: write_id}
            )
        except (NotImplementedError, errors.NotSupportedError):  # known since the check
            return await self.replace(key, data)
        except (errors.PreconditionError, errors.AlreadyExistsError, FileNotFoundError) as error:
            if expected is None and isinstance(error, FileNotFoundError):
                raise  # no object can be missing where there shall be none
            return await self._confirmed(key, data, write_id, may_be_repeated=was_repeated(error))
        except errors.GenericError:  # perhaps only the answer is lost
            with contextlib.suppress(Changed, OSError, TimeoutError, errors.BaseError):
                async with asyncio.timeout(CONFIRM_SECONDS):
                    return await self._confirmed(key, data, write_id, may_be_repeated=True)
            raise
        return version_of(result)

    async def replace(self, key: str, data: Any) -> Any:
        """Store an object, whatever is there; return what names the new state."""
        how = {"use_multipart": False} if isinstance(data, tuple) else {}
        return version_of(await self._obstore.put_async(self._store, key, data, **how))

    async def _check(self, key: str) -> None:
        async with self._checking:  # the writes of one call send one probe
            await conditions.check(self._store, key)

    async def _confirmed(self, key: str, data: Any, write_id: str, *, may_be_repeated: bool) -> Any:
        """Find out whether a write that was refused, or got no answer, is what is stored; return the name of that state.

        A client repeats a write whose answer is lost. If the first one was stored, the second one is refused because of the
        first. The id in the metadata tells such an object from one of another writer, even if both have the same bytes. Bytes
        are compared only where the service keeps no metadata, and the request may have been repeated.

        Raises
        ------
        Changed
            Something else is stored.
        """
        try:
            found = await self._obstore.get_async(self._store, key, options={"head": True})
            stored_id = found.attributes.get(WRITE_ID)
            if stored_id is None and may_be_repeated:
                found = await self._obstore.get_async(self._store, key)
                is_stored = await holds(found, data)
            else:
                is_stored = stored_id == write_id
        except FileNotFoundError:
            is_stored = False
        if not is_stored:
            raise Changed(key)
        return version_of(found.meta)

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


def was_repeated(error: Exception) -> bool:
    """Tell whether obstore has sent the request more than once before it raised this error."""
    return REPEATED.search(str(error)) is not None


async def holds(found: Any, data: Any) -> bool:
    """Tell whether the object of an answer has exactly these bytes; of the answer only some are held at a time."""
    buffers = data if isinstance(data, tuple) else (data,)
    left = deque(np.frombuffer(buffer, dtype=np.uint8) for buffer in buffers)
    if int(found.meta["size"]) != sum(expected.nbytes for expected in left):
        return False
    async for part in found.stream(PIECE_NBYTES):
        here = np.frombuffer(part, dtype=np.uint8)
        while here.size and left:
            n = min(here.size, left[0].size)
            if not np.array_equal(here[:n], left[0][:n]):
                return False
            here, left[0] = here[n:], left[0][n:]
            if not left[0].size:
                left.popleft()
    return not any(expected.size for expected in left)


async def own_bytes(found: Any, nbytes: int) -> OwnBytes:
    """Fetch what an answer has to bring, into memory of our own."""
    data, n = OwnBytes.of_size(nbytes), 0
    async for part in found.stream(PIECE_NBYTES):
        here = np.frombuffer(part, dtype=np.uint8)
        data[n : n + here.nbytes] = here
        n += here.nbytes
    return data[:n].view(OwnBytes)
