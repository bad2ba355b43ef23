# object_store.py - object stores with entity tags
# SPDX-License-Identifier: MIT
"""Objects behind zarr's `ObjectStore`.

Its obstore reports the size and the entity tag of an object with every answer. A tag can be a condition of a read or a
write. An object store has no locks, but it refuses to replace an object that has changed since it was read. The writer
then reads the object again and repeats its update. Of several writers one succeeds; the others wait for a random time
that grows. No update is lost, and no writer waits for a writer that has died.

Services have no conditional delete. An update that leaves no inner chunk therefore stores a shard without inner chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Any

import numpy as np

from . import conditions, object_names
from .lock_reach import refuse_store
from .store import (
    NO_OBJECT,
    Answer,
    Maker,
    ObjectChanged,
    OwnBytes,
    StoredObject,
    StreamedObject,
    state_bytes,
)
from .zarr_store import ZarrStore

__all__ = ["ObjectStore", "state_of", "state_text"]

# The obstores that compare entity tags when they write (for S3 it can be switched off).
CONDITIONAL = ("AzureStore", "GCSStore", "MemoryStore", "S3Store")

# Objects of this size and more are fetched piece by piece into a buffer of this process, in which the new object is made.
OWN_NBYTES = 8 << 20
PIECE_NBYTES = 4 << 20

# A multipart upload: the smallest part, the largest number of parts (S3 has 10,000), and the bytes in flight.
PART_NBYTES = 8 << 20
MAX_PARTS = 8_000
IN_FLIGHT_NBYTES = 24 << 20

# Metadata of an object that names the write that stored it. No underscore: some proxies drop headers that have one.
WRITE_ID = "shardcodecwrite"
# How long a write without an answer may take to find out whether it was stored, in seconds.
CONFIRM_SECONDS = 30.0

# The obstores whose entity tags are valid in every process.
LASTING = ("AzureStore", "GCSStore", "S3Store")

# The obstores that have multipart uploads, with metadata.
MULTIPART = ("AzureStore", "GCSStore", "MemoryStore", "S3Store")


class ObjectStore(ZarrStore):
    """Objects of a zarr `ObjectStore`. A subclass of that may do anything in its methods, so it is a `ZarrStore`."""

    identifies_states = True

    def __init__(self, base: Any) -> None:
        import obstore

        super().__init__(base)
        self._is_conditional = type(base.store).__name__ in CONDITIONAL
        self._obstore = obstore

    @property
    def _store(self) -> Any:
        return self._base.store

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStore, (self._given,)

    @property
    def is_cheap(self) -> bool:
        """True if a request costs as little as one to a local file."""
        return type(self._given.store).__name__ in ("LocalStore", "MemoryStore")

    def index_names(self, keys: Sequence[str]) -> list[str]:
        """Return names for caches, equal for all zarr stores over one obstore."""
        return object_names.index_names(self._given.store, keys)

    @property
    def has_unique_states(self) -> bool:
        """True if each write of an object gives it another entity tag, or one of its content.

        The tag of obstore's `LocalStore` has the time of the file in microseconds, and that of many HTTP servers in seconds.
        """
        return self._is_conditional

    @property
    def has_lasting_states(self) -> bool:
        """True if entity tags are valid in every process."""
        return type(self._store).__name__ in LASTING

    def lasting_state(self, nbytes: int, state: Any) -> str | None:
        """Return the name of a state from size and entity tag."""
        return state_text(nbytes, state["e_tag"]) if self.has_lasting_states else None

    async def states(self, prefix: str) -> dict[str, str | None] | None:
        """List objects with their states, if entity tags are valid in every process."""
        if not self.has_lasting_states:
            return None
        states: dict[str, str | None] = {}
        async for page in self._obstore.list(self._store, prefix=prefix or None):
            for meta in page:
                state = state_of(meta)
                states[meta["path"]] = None if state is None else state_text(meta["size"], state["e_tag"])
        return states

    @property
    def supports_listing(self) -> bool:
        """False for HTTP: zarr says that it lists, but obstore needs PROPFIND for it."""
        return type(self._store).__name__ != "HTTPStore" and super().supports_listing

    async def _old(self, key: str, *, is_update: bool) -> Answer | None:
        if not is_update:
            return None
        if not self._is_conditional or conditions.is_known(self._store):
            return await self._get(key, {}, owns=self._is_conditional)
        # concurrent, so that no write waits for the probe. The probe ends even if the read fails, or its object might stay.
        read, probe = self._get(key, {}, owns=True), conditions.check(self._store, key)
        answer: Answer | BaseException | None
        failure: BaseException | None
        answer, failure = await asyncio.gather(read, probe, return_exceptions=True)
        if isinstance(answer, BaseException):
            raise answer
        if failure is not None:
            raise failure
        return answer

    def _stored(self, position: int, answer: Answer | None, maker: Maker) -> StoredObject:
        is_update = maker.needs_old(position)
        stored = super()._stored(position, answer, maker)
        return stored._replace(keeps_empty=answer is not None and is_update and self._is_conditional)

    async def _check_cluster(self, key: str, olds: Sequence[Answer | None]) -> None:
        reason: str | None = "the store has no conditions for writes"
        if self._is_conditional:
            await conditions.check(self._store, key)
            reason = conditions.known_reason(self._store)
        if any(old is not None and old.state is None for old in olds):
            reason = conditions.NO_TAGS
        if reason is not None:
            raise refuse_store(key, reason)

    async def _put(
        self, key: str, new: Any, old: Answer | None, *, is_update: bool
    ) -> tuple[bool, bytes | None]:
        is_conditional = self._is_conditional and is_update
        if isinstance(new, StreamedObject):
            state = await self.put_parts(key, new)
            if state is not None:
                return True, state
            new = None
        if new is None:
            if not is_conditional:  # with a condition, there was no object and is none
                await self._base.delete(key)
            return True, NO_OBJECT
        if not is_conditional:
            return True, state_bytes(await self.put_always(key, new))
        try:
            return True, state_bytes(await self.put(key, new, old))
        except ObjectChanged:
            return False, None

    async def get(self, key: str) -> Answer | None:
        """Return all of an object."""
        return await self._get(key, {})

    async def get_range(self, key: str, start: int, end: int, state: Any = None) -> Answer | None:
        """Return bytes [start, end) of an object; raise `ObjectChanged` if it is not in the state `state`."""
        options: dict[str, Any] = {"range": (start, end)}
        if state is not None:
            options["if_match"] = state["e_tag"]
        errors = self._obstore.exceptions
        try:
            answer = await self._get(key, options)
        except errors.PreconditionError:
            raise ObjectChanged(key) from None
        except errors.NotSupportedError:  # a server without ranges
            answer = await self._get(key, {name: options[name] for name in options if name != "range"})
            if answer is not None:
                answer = answer._replace(data=answer.data[start:end])
        except errors.GenericError as error:
            return await self._after_refusal(error, key, options, start, state)
        if state is not None and answer is not None and answer.state != state:
            raise ObjectChanged(key)  # the server ignores conditions
        return answer

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        """Return the last bytes of an object. If the server has no suffix ranges, request the size first.

        Some HTTP servers answer them with an error. Each server is asked once.
        """
        store, errors = self._store, self._obstore.exceptions
        known = conditions.has_suffixes(store) if type(store).__name__ == "HTTPStore" else True
        if known is False:
            return await self._end_by_size(key, nbytes)
        asked = store if known else conditions.without_retries(store)
        try:
            answer = await self._get(key, {"range": {"suffix": nbytes}}, store=asked)
        except (errors.NotSupportedError, errors.GenericError) as error:
            try:
                answer = await self._end_by_size(key, nbytes)
            except (errors.BaseError, OSError) as why:
                raise (why if isinstance(error, errors.NotSupportedError) else error) from None
            if not known and answer is not None and answer.data.size:
                conditions.note_suffix(store, error)
            return answer
        if known is None and answer is not None:
            conditions.note_suffix(store, None)
        return answer

    async def _end_by_size(self, key: str, nbytes: int) -> Answer | None:
        """Return the last bytes of an object by its size and a range from its start."""
        size = await self._size(key)
        if not size:
            return None if size is None else Answer(np.empty(0, dtype=np.uint8), 0)
        answer = await self.get_range(key, max(0, size - nbytes), size)
        if answer is not None and answer.nbytes not in (None, size):  # another writer was in between
            whole = await self._get(key, {})
            answer = None if whole is None else whole._replace(data=whole.data[-nbytes:])
        return answer

    async def _get(self, key: str, options: Any, *, owns: bool = False, store: Any = None) -> Answer | None:
        try:
            result = await self._obstore.get_async(store or self._store, key, options=options)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
            if conditions.says_not_allowed(error):
                raise self._obstore.exceptions.NotSupportedError(str(error)) from None
            return None
        meta = result.meta  # each access makes a new dictionary
        nbytes, state = int(meta["size"]), state_of(meta)
        if owns and nbytes >= OWN_NBYTES:
            return Answer(await own_bytes(result, nbytes), nbytes, state)
        return Answer(np.frombuffer(await result.bytes_async(), dtype=np.uint8), nbytes, state)

    async def put(self, key: str, data: Any, expected: Answer | None) -> Any:
        """Store an object under a condition; return the name of the new state. Raise `ObjectChanged` if the object is in another state.

        If the store has no conditions, or does not name the old state, warn once and store the object without a condition.
        FileNotFoundError: the bucket or container does not exist.
        """
        try:
            return await self._put_if(key, data, expected)
        except self._obstore.exceptions.BaseError as error:
            conditions.advise(error)
            raise

    async def _put_if(self, key: str, data: Any, expected: Answer | None) -> Any:
        await conditions.check(self._store, key)
        if expected is not None and expected.state is None:
            conditions.warn(self._store, conditions.NO_TAGS)
            return await self.put_always(key, data)
        if conditions.refuses(self._store):
            return await self.put_always(key, data)
        errors = self._obstore.exceptions
        mode: Any = "create" if expected is None else expected.state
        write_id = os.urandom(16).hex()
        try:
            result = await self._obstore.put_async(
                self._store, key, data, mode=mode, attributes={WRITE_ID: write_id}
            )
        except (NotImplementedError, errors.NotSupportedError):  # known since the check
            return await self.put_always(key, data)
        except (errors.PreconditionError, errors.AlreadyExistsError, FileNotFoundError) as error:
            if expected is None and isinstance(error, FileNotFoundError):
                raise  # a condition of absence cannot fail for a missing object: the bucket is missing
            return await self._confirmed(key, data, write_id, may_be_repeated=conditions.was_repeated(error))
        except errors.GenericError as error:  # perhaps only the answer is lost
            if conditions.says_not_implemented(error):  # of the two conditions it has only that of the probe
                conditions.note_refusal(self._store)
                return await self.put_always(key, data)
            with contextlib.suppress(ObjectChanged, OSError, TimeoutError, errors.BaseError):
                async with asyncio.timeout(CONFIRM_SECONDS):
                    return await self._confirmed(key, data, write_id, may_be_repeated=True)
            raise
        return state_of(result)

    async def put_always(self, key: str, data: Any) -> Any:
        """Store an object without a condition; return its state."""
        how = {"use_multipart": False} if isinstance(data, tuple) else {}
        return state_of(await self._obstore.put_async(self._store, key, data, **how))

    @property
    def takes_parts(self) -> bool:
        """True if the service has multipart uploads."""
        return type(self._store).__name__ in MULTIPART

    async def put_parts(self, key: str, new: StreamedObject) -> bytes | None:
        """Store an object while it is made: in one request if it is small, otherwise as a multipart upload.

        obstore aborts the upload after an error. A multipart upload has no conditions, so an update never comes here.
        """
        if not self.takes_parts:
            return await super().put_parts(key, new)
        part_nbytes = max(PART_NBYTES, -(-new.nbytes // MAX_PARTS))
        async with contextlib.aclosing(new.pieces()) as pieces:
            first, n = deque[Any](), 0
            async for piece in pieces:
                first.append(piece)
                n += memoryview(piece).nbytes
                if n > part_nbytes:
                    break
            else:
                return state_bytes(await self.put_always(key, tuple(first))) if first else None
            return state_bytes(await self._upload(key, first, pieces, part_nbytes))

    async def _upload(self, key: str, first: deque[Any], rest: AsyncIterator[Any], part_nbytes: int) -> Any:
        is_cancelled = False

        async def body() -> AsyncIterator[Any]:
            while first:
                yield first.popleft()
            async for piece in rest:
                if is_cancelled:
                    raise asyncio.CancelledError
                yield piece
            if is_cancelled:
                raise asyncio.CancelledError

        write_id = os.urandom(16).hex()
        task = asyncio.ensure_future(
            self._obstore.put_async(
                self._store,
                key,
                body(),
                attributes={WRITE_ID: write_id},
                chunk_size=part_nbytes,
                max_concurrency=max(1, IN_FLIGHT_NBYTES // part_nbytes),
            )
        )
        try:
            return state_of(await asyncio.shield(task))
        except asyncio.CancelledError:
            # obstore aborts an upload after an error, but not if its task is cancelled
            is_cancelled = True
            while not task.done():  # `all_of` cancels again what `gather` has cancelled
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # or asyncio reports it as not retrieved
            raise
        except (self._obstore.exceptions.BaseError, OSError):  # perhaps only the answer is lost
            with contextlib.suppress(OSError, TimeoutError, self._obstore.exceptions.BaseError):
                async with asyncio.timeout(CONFIRM_SECONDS):
                    answer = await self._obstore.get_async(self._store, key, options={"head": True})
                if answer.attributes.get(WRITE_ID) == write_id:
                    return state_of(answer.meta)
            raise

    async def _confirmed(self, key: str, data: Any, write_id: str, *, may_be_repeated: bool) -> Any:
        """Return the name of the stored state if a write that was refused, or got no answer, is what is stored.

        Otherwise raise `ObjectChanged`. A client repeats a write whose answer is lost. If the first one was stored, the second
        one is refused because of the first. The id in the metadata tells such an object from one of another writer, even if
        both have the same bytes. Bytes are compared only where the service keeps no metadata, and the request may have been
        repeated.
        """
        try:
            answer = await self._obstore.get_async(self._store, key, options={"head": True})
            stored_id = answer.attributes.get(WRITE_ID)
            if stored_id is None and may_be_repeated:
                answer = await self._obstore.get_async(self._store, key)
                stored_id = answer.attributes.get(WRITE_ID)  # of another writer that has come since
            is_stored = stored_id == write_id if stored_id else may_be_repeated and await holds(answer, data)
        except FileNotFoundError:
            is_stored = False
        if not is_stored:
            raise ObjectChanged(key)
        return state_of(answer.meta)

    async def _after_refusal(
        self, error: Exception, key: str, options: Any, start: int, state: Any
    ) -> Answer | None:
        """Return the answer to a range from `start` on after a general error, by which services report that the object ends before it.

        Some services look at the range before the condition, and another writer may have stored a longer object since then.
        """
        try:
            meta: Any = await self._obstore.head_async(self._store, key)
        except FileNotFoundError:
            return None
        except self._obstore.exceptions.BaseError:
            raise error from None
        if state is not None and state_of(meta) != state:
            raise ObjectChanged(key)
        if int(meta["size"]) <= start:
            return Answer(np.empty(0, dtype=np.uint8), int(meta["size"]))
        if state is None and conditions.was_beyond_end(error):
            return await self._get(key, options)
        raise error

    async def size(self, key: str) -> int:
        """Return the size of an object in bytes, also from a server that refuses HEAD."""
        if (size := await self._size(key)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.describe(key))
        return size

    async def _size(self, key: str) -> int | None:
        errors = self._obstore.exceptions
        try:
            return int((await self._obstore.head_async(self._store, key))["size"])
        except (FileNotFoundError, errors.BaseError) as error:
            if isinstance(error, FileNotFoundError) and not conditions.says_not_allowed(error):
                return None
            # a server without HEAD: each answer to a range has the size
            answer = await self.get_range(key, 0, 1)
            return None if answer is None else answer.nbytes


def state_text(nbytes: int, e_tag: str) -> str:
    """Return the name of the state of an object of this size and entity tag, valid in every process."""
    return f"{nbytes}-{e_tag}"


def state_of(meta: Any) -> dict[str, str] | None:
    """Return the name of the state of an object; None for a weak entity tag, which never fulfils a condition."""
    e_tag = meta["e_tag"]
    if e_tag is None or e_tag.startswith("W/"):
        return None
    state = meta["version"]
    return {"e_tag": e_tag} if state is None else {"e_tag": e_tag, "version": state}


async def holds(answer: Any, data: Any) -> bool:
    """Return True if the object of an answer has exactly these bytes; compare piece by piece."""
    buffers = data if isinstance(data, tuple) else (data,)
    expected = deque(np.frombuffer(buffer, dtype=np.uint8) for buffer in buffers)
    if int(answer.meta["size"]) != sum(buffer.nbytes for buffer in expected):
        return False
    async for received in answer.stream(PIECE_NBYTES):
        piece = np.frombuffer(received, dtype=np.uint8)
        while piece.size and expected:
            n = min(piece.size, expected[0].size)
            if not np.array_equal(piece[:n], expected[0][:n]):
                return False
            piece, expected[0] = piece[n:], expected[0][n:]
            if not expected[0].size:
                expected.popleft()
    return not any(buffer.size for buffer in expected)


async def own_bytes(answer: Any, nbytes: int) -> OwnBytes:
    """Fetch the object of an answer into a buffer that the caller may change."""
    data, n = OwnBytes.of_size(nbytes), 0
    async for received in answer.stream(PIECE_NBYTES):
        piece = np.frombuffer(received, dtype=np.uint8)
        data[n : n + piece.nbytes] = piece
        n += piece.nbytes
    return data[:n].view(OwnBytes)
