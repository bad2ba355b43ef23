# shards.py - `open_shard`: one shard, wherever it is
# SPDX-License-Identifier: MIT
"""`shardcodec.open_shard`, and shards behind zarr's stores.

Files go to the engine, buffers of a MemoryStore too. Any other store is asked, through its own asynchronous calls on
zarr's event loop, for the index and for coalesced ranges.
"""

from __future__ import annotations

import asyncio
import bisect
import contextlib
import itertools
import json
import os
import random
import time
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import native
from ..access.conditional_write import FIRST_WAIT, LONGEST_WAIT
from ..access.index_check import check_index, must_be_sound, reach
from ..access.placement import ABSENT
from ..access.read import index_too_short
from ..access.shard import Shard
from ..access.shard_object import (
    NO_OBJECT,
    UNKNOWN,
    Entries,
    FileObject,
    Look,
    Make,
    MemoryObject,
    NativeShard,
    OpenObject,
    Part,
    ShardObject,
    content_generation,
    joined,
)
from ..compat import (
    ObjectStore,
    Store,
    StorePath,
    buffer_from,
    config,
    default_buffer_prototype,
    memory_identity,
    sync,
)
from ..errors import LockError, ShardFormatError
from ..format.spec import ShardSpec
from ..options import Options
from ..storage import locks, remote_indexes
from ..storage.files import check_name
from ..storage.index_cache import IndexCache
from ..storage.remote_indexes import RemoteIndex
from ..storage.requests import Answer, Changed, ConditionalRemote, Remote
from ..storage.tasks import all_of
from .remotes import ObstoreRemote, conditional_remote_for, remote_for
from .renamed_store import original
from .stores import (
    check_writable,
    index_names,
    introduce,
    is_direct,
    is_local,
    is_memory,
    is_prompt,
    local_path,
    lock_keys,
    stored_bytes,
)

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["open_shard", "shard_object"]

# No object is larger; bounds a range where the size of the object is not known.
MAX_OBJECT_NBYTES = 2**63 - 1


def open_shard(store: Any, key: str | None, spec: ShardSpec, *, mode: str = "r", **choices: Any) -> Shard:
    """Open one shard, whether it exists or not.

    Parameters
    ----------
    store : path-like, bytes-like, or zarr store
        A folder, or with `key` None or "" the shard's file itself; the bytes of a shard; any zarr store or `StorePath`.
    key : str or None
        Name of the object in the folder or store, such as ``"a/c/0/1"``. For bytes only a name for errors.
    spec : ShardSpec
        How the shard is encoded; `ShardSpec.from_metadata` makes it of a ``zarr.json``.
    mode : {"r", "r+"}
        Read only, or with changes. Bytes are not changed: `Shard.tobytes` returns the new ones.
    **choices
        Options for this shard, as in `shardcodec.options`.

    Returns
    -------
    Shard

    Raises
    ------
    UnsupportedError
        Codecs follow the sharding and hide the inner chunks.
    ValueError
        The store is read-only, and `mode` is not.

    Examples
    --------
    >>> spec = shardcodec.ShardSpec.from_metadata(json.loads(Path("a.zarr/zarr.json").read_text()))
    >>> shard = shardcodec.open_shard("a.zarr", "c/0/0", spec)
    >>> shard.state().sum(), shard.read_chunks([(0, 0), (0, 1)]).shape
    """
    target = shard_object(store, key)
    if mode != "r" and isinstance(target, StoreObject):
        check_writable(target.target.store)
    return Shard(target, spec, mode, choices)


def shard_object(store: Any, key: str | None) -> ShardObject:
    """Return the place that a store and a key name."""
    if isinstance(store, StorePath):
        store, key = store.store, "/".join(filter(None, (store.path, key)))
    check_name(key or "")
    if isinstance(store, Store):
        if not key:
            raise ValueError("a store needs the key of the shard")
        return StoreObject(original(StorePath(store, key)))
    if isinstance(store, str | os.PathLike):
        path = check_name(os.path.abspath(os.path.join(os.fspath(store), key) if key else os.fspath(store)))
        return FileObject(str(path), key or str(path))
    try:
        return MemoryObject(memoryview(store).cast("B"), key or "")
    except TypeError:
        raise TypeError(f"expected a path, bytes or a zarr store, not {type(store).__name__}") from None


class StoreObject:
    """An object of a zarr store."""

    def __init__(self, target: StorePath) -> None:
        self.target = target
        self.key = target.path
        introduce(target.store)
        self.path = local_path(target) if is_local(target.store) else None
        self._prototype = default_buffer_prototype()
        if not self.is_near:  # before 3.2, zip files do not open themselves
            sync(target.store._ensure_open())

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreObject, (self.target,)

    @property
    def identity(self) -> str:
        return lock_keys([self.target])[0]

    @property
    def realm(self) -> Hashable:
        store: Any = self.target.store
        return f"memory:{memory_identity(store)}" if is_memory(store) else None

    @property
    def is_near(self) -> bool:
        return is_direct(self.target.store)

    @property
    def is_prompt(self) -> bool:
        return is_prompt(self.target.store)

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        if self.path is not None:
            return NativeShard(chain, self.path, options, cache)
        if is_memory(self.target.store):
            return NativeShard(chain, stored_bytes(self.target, self._prototype), options)
        remote = remote_for(self.target.store, self._prototype)
        return RemoteShard(
            remote,
            self.key,
            chain,
            options,
            lambda: sync(self.target.store.getsize(self.key)),
            self.identity,
            None if cache is None else _Kept(index_names([self.target])[0], cache),
        )

    def open_whole(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        if self.is_near:
            return self.open(chain, options, cache)
        answer = sync(remote_for(self.target.store, self._prototype).get(self.key))
        native.load().totals_add(reads=1, bytes_read=0 if answer is None else len(answer.data))
        return FetchedShard(chain, answer, options)

    def update(self, make: Make, options: Options, look: Look | None = None, *, blind: bool = False) -> bytes:
        check_writable(self.target.store)
        if self.path is not None:
            return FileObject(self.path).update(make, options)
        with locks.table().hold([self.identity]):
            remote = conditional_remote_for(self.target.store)
            try:
                if blind and self.target.store.supports_deletes:
                    return self._store(make(None, False), remote)
                if remote is not None:
                    return self._update_conditionally(remote, make, options, look)
                return self._store(self._made(make, look))
            finally:
                remote_indexes.drop(index_names([self.target]))

    def update_all(self, parts: Sequence[Part], options: Options) -> list[bytes]:
        check_writable(self.target.store)
        with locks.table().hold([part.target.identity for part in parts]):
            news = [part.target._made(part.make, part.look) for part in parts]
            return [part.target._store(new) for part, new in zip(parts, news, strict=True)]

    def _made(self, make: Make, look: Look | None) -> Any:
        if is_memory(self.target.store):
            data = stored_bytes(self.target, self._prototype)
            generation = content_generation(data) if look is not None else UNKNOWN
        else:
            old = sync(remote_for(self.target.store, self._prototype).get(self.key))
            data, generation = None if old is None else old.data, _generation_of(old)
        if look is not None:
            look(generation)
        return make(data, data is not None and not self.target.store.supports_deletes)

    def _store(self, new: Any, remote: ConditionalRemote | None = None) -> bytes:
        if new is None:
            sync(self.target.delete())
            return NO_OBJECT
        if remote is None and type(self.target.store) is ObjectStore:
            remote = ObstoreRemote(
                self.target.store.store
            )  # knows no conditions, but may name what it stores
        if remote is not None:
            return _generation(sync(remote.replace(self.key, new)))
        sync(self.target.set(buffer_from(self._prototype, new)))
        return content_generation(new) if is_memory(self.target.store) else UNKNOWN

    def _update_conditionally(
        self, remote: ConditionalRemote, make: Make, options: Options, look: Look | None
    ) -> bytes:
        """Store the new object if the old one is still there; see `access.conditional_write`."""
        deadline = time.monotonic() + options.lock_timeout
        for n_tries in itertools.count(1):
            old = sync(remote.get(self.key))
            if look is not None:
                look(_generation_of(old))
            new = make(None if old is None else old.data, old is not None)
            if new is None:
                break
            try:
                return _generation(sync(remote.put(self.key, new, old)))
            except Changed:
                if time.monotonic() >= deadline:
                    raise LockError(
                        f"shard {self.key!r}: others changed it during each of {n_tries} attempts to update it "
                        f"within {options.lock_timeout:g} s",
                        shard=self.key,
                        n_tries=n_tries,
                    ) from None
            old = new = None  # before another is fetched
            time.sleep(random.uniform(0, min(LONGEST_WAIT, FIRST_WAIT * 2 ** min(n_tries, 10))))
        return NO_OBJECT


def _generation(version: Any) -> bytes:
    return UNKNOWN if version is None else json.dumps(version, sort_keys=True).encode()


def _generation_of(answer: Answer | None) -> bytes:
    return NO_OBJECT if answer is None else _generation(answer.version)


class FetchedShard(NativeShard):
    """A shard that came in one answer."""

    def __init__(self, chain: Chain, answer: Answer | None, options: Options) -> None:
        super().__init__(chain, None if answer is None else answer.data, options)
        self._answer = answer

    @property
    def generation(self) -> bytes:
        return _generation_of(self._answer)


class _Kept(NamedTuple):
    """Where the index of an object is kept between calls, and under what name."""

    name: str
    cache: IndexCache


class RemoteShard:
    """A shard that is reached by requests.

    Its index may have been kept from an earlier call. Requests for ranges are bound to the state that it belongs to; what
    was told without such a request is worth nothing before `confirm` has looked at the object.

    Where the store does not tell the size, it is found out when somebody wants to know it. Until then an entry is believed
    to lie inside the object, and an answer that is too short says otherwise.

    Where the store names no states, nothing tells whether index and inner chunks belong together. Of the writers of this process
    the lock table knows; who does not hold the lock himself is not given what they have changed since the index was read.
    """

    def __init__(
        self,
        remote: Remote,
        key: str,
        chain: Chain,
        options: Options,
        size: Callable[[], int],
        lock: str,
        kept: _Kept | None = None,
    ) -> None:
        self._remote = remote
        self._ask_size = size
        self._key = key
        self._chain = chain
        self._allow_in_index = options.allow_in_index
        self._lock = lock
        self._options = options
        self._kept = None if locks.table().holds(lock) else kept
        index = (
            None
            if self._kept is None
            else remote_indexes.get(self._kept.name, chain, options, self._kept.cache)
        )
        self._is_confirmed = index is None or options.immutable
        if index is None:
            index, self._calm = self._fetch_index()
        else:
            index = self._checked(index)
            native.load().totals_add(index_hits=1)
            self._calm = locks.table().calm(lock)
        self._is_sound = index is not None and index.is_sound
        self.missing = index is None
        self._entries = (
            np.full((chain.n_chunks, 2), ABSENT, dtype=np.uint64) if index is None else index.entries
        )
        self._size = None if index is None else index.nbytes
        self._version = None if index is None else index.version
        self.generation = NO_OBJECT if index is None else _generation(index.version)

    def _fetch_index(self) -> tuple[RemoteIndex | None, int | None]:
        """Ask for the index, and keep it; also what `_ask_index` says of the lock table."""
        since = 0 if self._kept is None else self._kept.cache.ticket()
        answer, calm = self._ask_index()
        if answer is None:
            return None, calm
        n = int(self._chain.index_nbytes)
        if len(answer.data) < n:
            raise index_too_short(self._key, len(answer.data), n)
        entries = np.empty((self._chain.n_chunks, 2), dtype=np.uint64)
        native.load().load_index(self._chain, answer.data, entries)
        index = self._checked(RemoteIndex(entries, answer.nbytes, answer.version))
        if self._kept is not None:
            remote_indexes.put(self._kept.name, self._chain, index, self._options, since, self._kept.cache)
        return index, calm

    def _checked(self, index: RemoteIndex) -> RemoteIndex:
        """Note whether all entries are true, where they must be. If not, who wants to read is told; the index can be looked at."""
        if must_be_sound(self._chain, self._options) and index.nbytes is not None and not index.is_sound:
            with contextlib.suppress(ShardFormatError):
                check_index(self._chain, index.entries, index.nbytes, self._options)
                return index._replace(is_sound=True)
        return index

    def check(self) -> None:
        if not self._is_sound and not self.missing:
            check_index(self._chain, self._entries, self._size, self._options)

    def confirm(self) -> None:
        """Find out whether the object is in the state that a kept index belongs to, if no request has told."""
        if self._is_confirmed:
            return
        index, _ = self._fetch_index()
        if index is None or index.version != self._version:
            raise self._exchanged(forget=index is None)
        self._is_confirmed = True

    def _exchanged(self, *, forget: bool = True) -> ShardFormatError:
        """The error for an object that is another one by now."""
        self._is_confirmed = True  # there is nothing more to find out
        if forget and self._kept is not None:
            remote_indexes.drop([self._kept.name])
        return ShardFormatError("another object has taken its place since it was opened")

    def _ask_index(self) -> tuple[Answer | None, int | None]:
        """Return the index, and what the lock table says of a time before; None where the caller has the lock."""
        table, n = locks.table(), int(self._chain.index_nbytes)

        def ask() -> Answer | None:
            remote = self._remote
            return sync(
                remote.get_range(self._key, 0, n)
                if self._chain.index_at_start
                else remote.get_suffix(self._key, n)
            )

        calm = None if table.holds(self._lock) else table.calm(self._lock)
        answer = ask()
        if calm is not None or table.holds(self._lock) or answer is None or answer.version is not None:
            return answer, calm
        with table.hold([self._lock]):  # somebody was writing
            return ask(), table.n_taken(self._lock)

    def _is_exchanged(self) -> bool:
        """Whether somebody may have exchanged the object since its index was read."""
        table = locks.table()
        return self._version is None and not table.holds(self._lock) and table.calm(self._lock) != self._calm

    @property
    def nbytes(self) -> int:
        if self._size is None:
            self._size = int(self._ask_size())
        return self._size

    def entries(self, *, check: bool) -> Entries:
        if check:
            self._check(self._entries, self.nbytes)
        return self._entries.copy()

    def _check(self, entries: Entries, nbytes: int) -> None:
        n = self._chain.index_nbytes
        first = 0 if self._chain.index_at_start else max(0, nbytes - n)
        native.load().index_check(entries, nbytes, first, n, allow_in_index=self._allow_in_index)

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        self.check()
        where = positions.astype(np.intp)
        only = np.full_like(self._entries, ABSENT)  # inner chunks that are not wanted may be damaged
        only[where] = self._entries[where]
        self._check(only, MAX_OBJECT_NBYTES if self._size is None else self._size)
        wanted = self._entries[where]
        sizes = np.where(wanted[:, 0] == ABSENT, 0, wanted[:, 1])
        n = max(1, int(np.searchsorted(np.cumsum(sizes), max_nbytes, side="right")))
        wanted, sizes = wanted[:n], sizes[:n]
        ranges = joined(wanted[sizes > 0])
        try:
            data = self._get_ranges(ranges)
        except ShardFormatError as error:
            error.entry = self._beyond(positions[:n], error) if error.entry is None else error.entry
            raise
        bases = np.cumsum([0, *(len(part) for part in data)]).astype(np.uint64)
        places[:n] = wanted
        places[:n, 0][(sizes == 0) & (wanted[:, 0] != ABSENT)] = 0
        if ranges:
            lows = np.array([low for low, _ in ranges], dtype=np.uint64)
            which = np.searchsorted(lows, wanted[sizes > 0, 0], side="right") - 1
            places[:n, 0][sizes > 0] = wanted[sizes > 0, 0] - lows[which] + bases[which]
        return (np.concatenate(data) if data else b""), n

    def _beyond(self, positions: np.ndarray[Any, Any], error: ShardFormatError) -> int | None:
        """The first of some inner chunks that needs more than the store has."""
        if error.offset is None:
            return None
        offset, nbytes = self._entries[positions.astype(np.intp)].T
        wanted = (
            (offset != ABSENT) & (offset >= error.offset) & (offset + nbytes > error.offset + error.actual)
        )
        return min((int(p) for p in positions[wanted]), default=None)

    def _get_ranges(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        """Return ranges that inner chunks lie in; the first time see whether the object is as long as all entries say."""
        if self._is_sound or not ranges or not must_be_sound(self._chain, self._options):
            return self._get_bytes(ranges)
        last = reach(self._chain, self._entries) - 1
        try:
            *data, _ = self._get_bytes([*ranges, (last, 1)])
        except ShardFormatError as error:
            if error.offset == last:  # the inner chunk that reaches furthest tells
                ends = np.where(self._entries[:, 0] == ABSENT, 0, self._entries.sum(axis=1, dtype=np.uint64))
                error.entry = int(ends.argmax())
            raise
        self._is_sound = True
        return data

    def _get_bytes(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        answers = sync(self._ask(ranges))
        if self._is_exchanged():
            raise self._exchanged()
        self._is_confirmed = self._is_confirmed or bool(answers)
        for (offset, nbytes), answer in zip(ranges, answers, strict=True):
            if answer is None or len(answer.data) != nbytes:
                actual = 0 if answer is None else len(answer.data)
                raise ShardFormatError(
                    f"{nbytes} bytes at offset {offset} are due, but the store has {actual}",
                    offset=offset,
                    expected=nbytes,
                    actual=actual,
                )
        return [answer.data for answer in answers]

    async def _ask(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        limit = asyncio.Semaphore(max(1, int(config.get("async.concurrency"))))

        async def ask(offset: int, nbytes: int) -> Any:
            async with limit:
                return await self._remote.get_range(self._key, offset, offset + nbytes, self._version)

        try:
            return await all_of(ask(offset, nbytes) for offset, nbytes in ranges)
        except Changed:
            raise self._exchanged() from None

    def range(self, offset: int, nbytes: int) -> bytes:
        (data,) = self._get_bytes([(offset, nbytes)])
        return bytes(data)

    def entry(self, position: int) -> tuple[int, int] | None:
        self.check()
        only = np.full_like(self._entries, ABSENT)
        only[position] = self._entries[position]
        self._check(only, MAX_OBJECT_NBYTES if self._size is None else self._size)
        offset, nbytes = self._entries[position].tolist()
        return None if only[position, 0] == ABSENT else (offset, nbytes)

    def positions(self, first: int, end: int) -> Any:
        return native.load().index_positions(self._chain, self._entries, first, end)

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> list[Any]:
        whole = joined([part for part in wanted if part[1]])
        firsts = [offset for offset, _ in whole]
        data = self._get_ranges(whole)
        found = []
        for offset, nbytes in wanted:
            which = bisect.bisect_right(firsts, offset) - 1
            start = offset - firsts[which] if nbytes else 0
            found.append(data[which][start : start + nbytes] if nbytes else b"")
        return found

    def close(self) -> None:
        """Nothing is held open."""
