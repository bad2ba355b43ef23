# shard_object.py - an object of a store as a shard
# SPDX-License-Identifier: MIT
"""A `ShardObject` is the place of a shard, which may be missing; a `StoreObject` is one in a store of any kind.

`open` returns its present state: a `NativeShard` where the engine opens the object itself, a `RemoteShard` or `FetchedShard`
where the object is read by requests.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace as with_fields
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import native
from ..compat import on_zarrs_loop
from ..errors import ShardError, ShardFormatError, as_os_error
from ..options import Options
from ..storage import process_locks
from ..storage.budget import Limits
from ..storage.event_loop import all_of
from ..storage.indexes import IndexCache, RemoteIndex
from ..storage.kinds import object_at
from ..storage.ranges import coalesced, cut_out
from ..storage.replace import replace
from ..storage.runner import BLOCKING, run_blocking
from ..storage.store import NO_OBJECT, Answer, Maker, ObjectChanged, Store, state_bytes
from .consistent_read import WriterWatch, checked_data, minimum_nbytes, with_proof
from .limited_remote import LimitedRemote
from .opened_shard import Entries, NativeShard, OpenedShard, Sums, changed_error
from .placement import ABSENT
from .remote_index import IndexLoader, check_entries, checked_entries

if TYPE_CHECKING:
    from .._native import Chain


__all__ = [
    "FetchedShard",
    "RemoteObject",
    "RemoteShard",
    "ShardObject",
    "StoreObject",
    "open_object",
    "shard_object",
]


class ShardObject(Protocol):
    """The place of a shard: an object that may be missing.

    key: its name in errors. path: its file, if the engine writes it itself.
    """

    key: str
    path: str | None

    @property
    def identity(self) -> str:
        """Name of the object for locks, equal for all places of this object in the process."""

    @property
    def realm(self) -> Hashable:
        """Objects of one realm are replaced together by `update_all`; None if this one cannot."""

    @property
    def is_link(self) -> bool:
        """True if a symbolic link leads to the object."""

    @property
    def staging(self) -> str | None:
        """Folder for temporary files beside the object."""

    @property
    def is_near(self) -> bool:
        """True if the engine opens the object itself, without requests."""

    @property
    def is_prompt(self) -> bool:
        """True if a small read takes no network round trip, so it may run on an event loop."""

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenedShard:
        """Open the present state; `cache` may have its index."""

    def open_whole(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenedShard:
        """Open the present state for a read of the whole object, with one request."""

    def update(self, maker: Maker, options: Options) -> bytes | None:
        """Replace the object by one that is made from it; return its new state, None if the maker knows it."""

    def update_all(self, targets: Sequence[Any], maker: Maker, options: Options) -> list[bytes | None]:
        """Replace objects of this realm, all or none; return their new states."""


class StoreObject:
    """A `ShardObject` in a store of any kind; `key` is its name in errors."""

    def __init__(self, store: Store, object_key: str, key: str | None = None) -> None:
        self.store = store
        self.object_key = object_key
        self.key: str = object_key if key is None else key
        self.path: str | None = store.path(object_key)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreObject, (self.store, self.object_key, self.key)

    @property
    def identity(self) -> str:
        return self.store.lock_names([self.object_key])[0]

    @property
    def realm(self) -> Hashable:
        return self.store.realm

    @property
    def is_near(self) -> bool:
        return self.store.is_near

    @property
    def is_prompt(self) -> bool:
        return self.store.is_near and self.store.is_prompt

    @property
    def is_link(self) -> bool:
        return self.store.is_link(self.object_key)

    @property
    def staging(self) -> str | None:
        return self.store.staging(self.object_key)

    @property
    def data(self) -> Any:
        """Bytes of an object in memory, or path of a file."""
        return self.store.source(self.object_key)

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenedShard:
        if self.is_near:
            return NativeShard(chain, self.data, options, None if self.path is None else cache)
        name = None if cache is None else self.store.index_names([self.object_key])[0]
        loader = IndexLoader(self.store, self.object_key, chain, options, name, cache)
        size = lambda: on_zarrs_loop(self.store.size(self.object_key))  # noqa: E731
        return RemoteShard(loader, self.store.limits, size, self.identity)

    def open_whole(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenedShard:
        if self.is_near:
            return self.open(chain, options, cache)
        remote = LimitedRemote(self.store, self.store.limits().n_requests)
        return FetchedShard(chain, on_zarrs_loop(remote.get(self.object_key)), options)

    def update(self, maker: Maker, options: Options) -> bytes | None:
        return run_blocking(replace(self.store, [self.object_key], maker, options, BLOCKING))[0]

    def update_all(self, targets: Sequence[Any], maker: Maker, options: Options) -> list[bytes | None]:
        for target in targets:  # a read-only view has the realm of its store
            target.store.check_writable()
        keys = [target.object_key for target in targets]
        return run_blocking(replace(self.store, keys, maker, options, BLOCKING))


def shard_object(
    store: Any, key: str | None, storage_options: Mapping[str, Any] | None = None
) -> StoreObject:
    """Return the object for a store and a key; see `storage.kinds.object_at`."""
    return StoreObject(*object_at(store, key, storage_options))


class FetchedShard(NativeShard):
    """A shard that came with one answer."""

    def __init__(self, chain: Chain, answer: Answer | None, options: Options) -> None:
        super().__init__(chain, None if answer is None else answer.data, options)
        self._answer = answer

    @property
    def generation(self) -> bytes:
        return NO_OBJECT if self._answer is None else state_bytes(self._answer.state)


class RemoteShard:
    """A shard that is read by requests.

    If its index comes from the cache, only a request for a range, or `confirm`, shows whether it is stale.

    If the store does not report the size of the object, all entries count as inside of the object until an answer is too
    short. If the store does not identify states, `WriterWatch` detects writers of this process.

    limits: returns the limits of the store at present. size: returns the size of the object, if answers do not report it.
    lock: name of the object in the lock table.
    """

    is_remote = True

    def __init__(
        self, loader: IndexLoader, limits: Callable[[], Limits], size: Callable[[], int], lock: str
    ) -> None:
        if process_locks.table().holds(lock):
            loader = with_fields(loader, name=None)  # the caller is about to change the object
        self._loader = loader
        self._chain = loader.chain
        self._limits = limits
        self._ask_size = size
        self._lock = lock
        self._watch = WriterWatch([lock])
        index = loader.cached()
        if index is None:
            index = self._load()
        self.missing: bool = index is None
        if index is None:
            nothing = np.full((loader.chain.n_chunks, 2), ABSENT, dtype=np.uint64)
        self._index = RemoteIndex(nothing, None, None) if index is None else index
        self._is_confirmed = self._index.is_confirmed
        self._size = self._index.nbytes
        self.generation: bytes = NO_OBJECT if index is None else state_bytes(index.state)

    def _load(self) -> RemoteIndex | None:
        """Fetch the index; again under the lock if a writer may have replaced an object whose state has no name meanwhile."""
        index = self._fetch_index()
        if index is None or index.state is not None or self._watch.is_quiet:
            return index
        with process_locks.table().hold([self._lock]):
            index = self._fetch_index()
            self._watch.begin_again()
        return index

    def _fetch_index(self) -> RemoteIndex | None:
        # a wrong entry matters to reads of inner chunks only; until then the index can be inspected
        return on_zarrs_loop(with_fields(self._loader, remote=self._limited()).load(check=False))

    def _limited(self) -> LimitedRemote:
        return LimitedRemote(self._loader.remote, self._limits().n_requests)

    @property
    def nbytes(self) -> int:
        if self._size is None:
            self._size = int(self._ask_size())
        return self._size

    def check(self) -> None:
        if not self.missing:
            self._index = self._loader.checked(self._index)

    def entries(self, *, check: bool) -> Entries:
        if check:
            check_entries(self._chain, self._index.entries, self.nbytes, self._loader.options)
        return self._index.entries.copy()

    def _checked_entries(self, positions: Any) -> Entries:
        self.check()
        return checked_entries(self._chain, self._index.entries, positions, self._size, self._loader.options)

    def entry(self, position: int) -> tuple[int, int] | None:
        ((offset, nbytes),) = self._checked_entries([position]).tolist()
        return None if offset == ABSENT else (offset, nbytes)

    def present(self, first: int, end: int) -> bytes:
        return native.load().index_present(self._chain, self._index.entries, first, end)  # type: ignore[no-any-return]

    def confirm(self, *, failed: bool = False) -> None:
        """Fetch the index if no request has shown that the cached one is the present one; raise if it is stale.

        After a failed read also if the store does not identify states: another index shows another object.
        """
        is_doubtful = failed and self._index.state is None and not self.missing
        if self._is_confirmed and not is_doubtful:
            return
        index = self._fetch_index()
        if index is None or index.state != self._index.state:
            raise self._changed(forget=index is None)
        if is_doubtful and not index.matches(self._index):
            raise self._changed()
        self._is_confirmed = True

    def _changed(self, *, forget: bool = True) -> ShardFormatError:
        """Return the error for an object that was replaced."""
        self._is_confirmed = True  # nothing is left to find out
        if forget:
            self._loader.forget()
        return changed_error()

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        where = positions.astype(np.intp)
        entries = self._checked_entries(where)
        sizes = np.where(entries[:, 0] == ABSENT, 0, entries[:, 1])
        n = max(1, int(np.searchsorted(np.cumsum(sizes), max_nbytes, side="right")))
        entries, sizes = entries[:n], sizes[:n]
        ranges, data = self._get_merged(map(tuple, entries[sizes > 0].tolist()), where[:n])
        bases = np.cumsum([0, *(len(part) for part in data)]).astype(np.uint64)
        places[:n] = entries
        places[:n, 0][(sizes == 0) & (entries[:, 0] != ABSENT)] = 0
        if ranges:
            lows = np.array([low for low, _ in ranges], dtype=np.uint64)
            which = np.searchsorted(lows, entries[sizes > 0, 0], side="right") - 1
            places[:n, 0][sizes > 0] = entries[sizes > 0, 0] - lows[which] + bases[which]
        return (np.concatenate(data) if data else b""), n

    def range(self, offset: int, nbytes: int) -> bytes:
        (data,) = self._get_bytes([(offset, nbytes)], ())
        return bytes(data)

    def ranges(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        return cut_out(ranges, *self._get_merged([piece for piece in ranges if piece[1]], ()))

    def _get_merged(
        self, pieces: Iterable[tuple[int, int]], positions: Any
    ) -> tuple[list[tuple[int, int]], list[Any]]:
        """Return merged ranges that cover inner chunks, and their bytes.

        The first time, they prove that the object is as long as all entries require.
        """
        loader, index = self._loader, self._index
        ranges = coalesced(pieces, self._limits())
        must_prove = bool(ranges) and loader.must_be_sound and not index.is_sound
        end = minimum_nbytes(loader, index, 0) if must_prove else 0
        ranges = [(offset, nbytes + n_more) for offset, nbytes, n_more in with_proof(ranges, end)]
        data = self._get_bytes(ranges, positions)
        if end:
            self._index = with_fields(self._index, is_sound=True)
        return ranges, data

    def _get_bytes(self, ranges: Sequence[tuple[int, int]], positions: Any) -> list[Any]:
        """Return ranges; `positions` are those of the requested inner chunks, if they are known, for errors."""
        answers = on_zarrs_loop(self._ask(ranges))
        if self._index.state is None and self._watch.has_changed():
            raise self._changed()
        if answers and all(answer is not None for answer in answers):  # None: the object may be gone
            self._is_confirmed = True
        requested = lambda: np.asarray(positions, dtype=np.intp)  # noqa: E731
        return [
            checked_data(self._loader, self._index, requested, offset, nbytes, answer)
            for (offset, nbytes), answer in zip(ranges, answers, strict=True)
        ]

    async def _ask(self, ranges: Sequence[tuple[int, int]]) -> list[Answer | None]:
        remote, key, state = self._limited(), self._loader.key, self._index.state
        try:
            return await all_of(remote.get_range(key, first, first + n, state) for first, n in ranges)
        except ObjectChanged:
            raise self._changed() from None

    def checksums(self, ranges: Entries, max_nbytes: int) -> Sums | None:
        return None

    def close(self) -> None:
        """Do nothing: no connection is held open."""


class RemoteObject(RemoteShard):
    """The bytes of an object that is read by requests, without an index. The first answer says which state they are of."""

    missing = False

    def __init__(self, store: Store, key: str, nbytes: int) -> None:
        self._store, self._key, self._size = store, key, nbytes
        self._state: Any = None

    @property
    def generation(self) -> bytes:  # type: ignore[override]
        return state_bytes(self._state)

    def range(self, offset: int, nbytes: int) -> Any:
        if not nbytes:
            return b""
        try:
            with as_os_error(self._store.describe, self._key):
                answer = on_zarrs_loop(self._store.get_range(self._key, offset, offset + nbytes, self._state))
        except ObjectChanged:
            answer = None
        n = 0 if answer is None else len(answer.data)
        if answer is None or n != nbytes or answer.nbytes not in (None, self.nbytes):
            raise ShardFormatError(
                f"shard {self._key!r}: expected {nbytes} bytes at offset {offset} of {self.nbytes}, got {n}: another "
                "writer has changed or removed the object; run the tool again",
                shard=self._key,
                offset=offset,
                nbytes=nbytes,
            )
        self._state = answer.state
        return memoryview(answer.data).cast("B")

    def ranges(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        return [self.range(offset, nbytes) for offset, nbytes in ranges]

    def confirm(self, *, failed: bool = False) -> None:
        """Do nothing: each answer is checked."""


def open_object(store: Store, key: str) -> OpenedShard | None:
    """Open an object of any store to read its bytes, whatever state its index is in; None if it does not exist.

    All ranges belong to one state of the object where the store can name states. A file with a pending journal is read in
    the state before the unfinished update, as readers see it. `ShardFileError` for a FIFO or a device.
    """
    if not store.is_near:
        try:
            with as_os_error(store.describe, key):
                return RemoteObject(store, key, int(on_zarrs_loop(store.size(key))))
        except FileNotFoundError:
            return None
    try:
        opened = NativeShard(None, store.source(key))
    except ShardError as error:
        raise error.with_context(shard=key) from None
    return None if opened.missing else opened
