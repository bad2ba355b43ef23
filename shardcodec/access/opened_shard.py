# opened_shard.py - the place of one shard in a store, and a shard that is open
# SPDX-License-Identifier: MIT
"""The place of one shard in a store, and a shard that is open.

The operations of a store that `shardcodec.Shard` uses.

A `ShardObject` is the place of a shard, which may be missing. An `OpenObject` is one state of it: its index and inner chunks
belong together, also if another writer replaces the object meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import native
from ..compat import sync
from ..errors import ShardFormatError
from ..options import Options
from ..storage import locks
from ..storage.budget import NEAR, Limits
from ..storage.indexes import IndexCache, RemoteIndex
from ..storage.kinds import object_at
from ..storage.ranges import coalesced, cut_out
from ..storage.replace import replace_blocking
from ..storage.store import NO_OBJECT, UNKNOWN, Answer, Changed, Maker, Store, state_bytes
from ..storage.waiting import all_of
from .placement import ABSENT
from .remote_index import (
    IndexLoader,
    LimitedRemote,
    WriterWatch,
    check_entries,
    checked_data,
    checked_entries,
    minimum_nbytes,
    with_proof,
)

if TYPE_CHECKING:
    from .._native import Chain


__all__ = [
    "NO_OBJECT",
    "UNKNOWN",
    "FetchedShard",
    "NativeShard",
    "OpenObject",
    "RemoteShard",
    "ShardObject",
    "StoreObject",
    "content_generation",
    "generation_of_answer",
    "shard_object",
]

Entries = np.ndarray[Any, np.dtype[np.uint64]]


class OpenObject(Protocol):
    """An opened shard: one state of its object, which may be missing."""

    @property
    def missing(self) -> bool:
        """True if the object does not exist."""

    @property
    def nbytes(self) -> int:
        """Size of the object in bytes."""

    def check(self) -> None:
        """Check all entries if nothing else detects a wrong one (`remote_index.must_be_sound`); reads of inner chunks include it."""

    def entries(self, *, check: bool) -> Entries:
        """Return the index; with `check`, raise `ShardFormatError` for a wrong entry."""

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        """Fetch the encoded bytes of inner chunks.

        Parameters
        ----------
        positions : ndarray of uint64, shape (n,)
        places : ndarray of uint64, shape (n, 2)
            Filled with offset and size of each inner chunk in the returned buffer; both 2^64-1 for an absent one.
        max_nbytes : int
            Fetch the first inner chunks that fit into this size, but at least one.

        Returns
        -------
        tuple
            The buffer, and the number of inner chunks that were fetched.
        """

    def range(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` bytes of the object from `offset` on."""

    @property
    def generation(self) -> bytes:
        """Name of the state of the object; see `NO_OBJECT` and `UNKNOWN`."""

    def entry(self, position: int) -> tuple[int, int] | None:
        """Return the checked offset and size of an inner chunk; None if it is absent."""

    def present(self, first: int, end: int) -> bytes:
        """Return one byte for each of the positions [first, end): 1 if its inner chunk exists, else 0."""

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> list[Any]:
        """Return several ranges (offset, nbytes) as buffers; near ranges share a request."""

    def confirm(self) -> None:
        """Raise `ShardFormatError` unless all results are of one state, the present one when the shard was opened."""

    def close(self) -> None:
        """Close it."""


class ShardObject(Protocol):
    """The place of a shard: an object that may be missing.

    Attributes
    ----------
    key : str
        Its name in errors.
    path : str or None
        The file of the object, if the engine writes it itself.
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

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        """Open the present state; `cache` may have its index."""

    def open_whole(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        """Open the present state for a read of the whole object, with one request."""

    def update(self, maker: Maker, options: Options) -> bytes | None:
        """Replace the object by one that is made from it; return its new state, None if the maker knows it."""

    def update_all(self, targets: Sequence[Any], maker: Maker, options: Options) -> list[bytes | None]:
        """Replace objects of this realm, all or none; return their new states."""


class NativeShard:
    """A shard that the engine opens: a file, or bytes in memory."""

    def __init__(self, chain: Chain, source: Any, options: Options, cache: IndexCache | None = None) -> None:
        self._chain = chain
        self._allow_in_index = options.allow_in_index
        self._io_rules = options.io_rules
        self._source = source
        self._shard = native.load().OpenShard(chain, source, None if cache is None else cache.native)

    @property
    def missing(self) -> bool:
        return bool(self._shard.missing)

    @property
    def nbytes(self) -> int:
        return int(self._shard.nbytes)

    @property
    def generation(self) -> bytes:
        if self.missing:
            return NO_OBJECT
        return bytes(self._shard.version) or content_generation(self._source)

    def check(self) -> None:
        self._shard.check(allow_in_index=self._allow_in_index)

    def entries(self, *, check: bool) -> Entries:
        out = np.empty((self._chain.n_chunks, 2), dtype=np.uint64)
        self._shard.entries(out, check=check, allow_in_index=self._allow_in_index)
        return out

    def entry(self, position: int) -> tuple[int, int] | None:
        return self._shard.entry(position, allow_in_index=self._allow_in_index)  # type: ignore[no-any-return]

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        return self._shard.fetch(  # type: ignore[no-any-return]
            positions,
            places,
            max_nbytes=max_nbytes,
            allow_in_index=self._allow_in_index,
            **self._io_rules,
        )

    def present(self, first: int, end: int) -> bytes:
        return self._shard.present(first, end)  # type: ignore[no-any-return]

    def range(self, offset: int, nbytes: int) -> bytes:
        return bytes(self._shard.range(offset, nbytes))

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> list[Any]:
        if len(wanted) == 1:
            return [self.range(*wanted[0])]
        merged = coalesced([one for one in wanted if one[1]], NEAR)
        return cut_out(wanted, merged, [memoryview(self.range(*one)) for one in merged])

    def confirm(self) -> None:
        """Do nothing: an open file or buffer is one state."""

    def close(self) -> None:
        self._shard.close()


def content_generation(data: Any) -> bytes:
    """Return the name of the state of an object in memory: a hash of its bytes."""
    import hashlib  # here, because it loads OpenSSL

    return NO_OBJECT if data is None else hashlib.blake2b(data, digest_size=20).digest()


# ---------------------------------------------------------------- opened shards in stores of requests
#
# `RemoteShard` and `FetchedShard`: an `OpenObject` that reads by requests, and one that came with one answer.
#
# An opened shard shows one state of its object. So it does not start again when the object changes, as `consistent_read`
# does; it raises, and its caller opens the object again.


def generation_of_answer(answer: Answer | None) -> bytes:
    """Return the generation of an object, or `NO_OBJECT` for a missing object."""
    return NO_OBJECT if answer is None else state_bytes(answer.version)


class FetchedShard(NativeShard):
    """A shard that came with one answer."""

    def __init__(self, chain: Chain, answer: Answer | None, options: Options) -> None:
        super().__init__(chain, None if answer is None else answer.data, options)
        self._answer = answer

    @property
    def generation(self) -> bytes:
        return generation_of_answer(self._answer)


class RemoteShard:
    """A shard that is read by requests.

    If its index comes from the cache, only a request for a range, or `confirm`, shows whether it is stale.

    If the store does not report the size of the object, all entries count as inside of the object until an answer is too
    short. If the store does not identify states, `WriterWatch` detects writers of this process.

    Parameters
    ----------
    loader : IndexLoader
        Loads the index of the shard.
    limits : callable
        Returns the limits of the store at present.
    size : callable
        Returns the size of the object in bytes, if answers do not report it.
    lock : str
        Name of the object in the lock table.
    """

    def __init__(
        self, loader: IndexLoader, limits: Callable[[], Limits], size: Callable[[], int], lock: str
    ) -> None:
        if locks.table().holds(lock):
            loader = replace(loader, name=None)  # the caller is about to change the object
        self._loader = loader
        self._chain = loader.chain
        self._limits = limits
        self._ask_size = size
        self._lock = lock
        self._watch = WriterWatch([lock])
        found = loader.cached()
        if found is None:
            found = self._load()
        self.missing = found is None
        self._index = _no_index(loader.chain) if found is None else found
        self._is_confirmed = self._index.is_confirmed
        self._size = self._index.nbytes
        self.generation = NO_OBJECT if found is None else state_bytes(found.version)

    def _load(self) -> RemoteIndex | None:
        """Fetch the index; again under the lock if a writer may have replaced an object without a version meanwhile."""
        index = self._fetch_index()
        if index is None or index.version is not None or self._watch.is_quiet:
            return index
        with locks.table().hold([self._lock]):
            index = self._fetch_index()
            self._watch.begin_again()
        return index

    def _fetch_index(self) -> RemoteIndex | None:
        # a wrong entry matters to reads of inner chunks only; until then the index can be inspected
        return sync(replace(self._loader, remote=self._limited()).load(check=False))

    def _limited(self) -> LimitedRemote:
        return LimitedRemote(self._loader.remote, self._limits().n_requests)

    @property
    def nbytes(self) -> int:
        if self._size is None:
            self._size = int(self._ask_size())
        return self._size

    # ---- the index

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

    def confirm(self) -> None:
        """Fetch the index if no request has shown that the cached one is the present one; raise if it is stale."""
        if self._is_confirmed:
            return
        index = self._fetch_index()
        if index is None or index.version != self._index.version:
            raise self._changed(forget=index is None)
        self._is_confirmed = True

    def _changed(self, *, forget: bool = True) -> ShardFormatError:
        """Return the error for an object that was replaced."""
        self._is_confirmed = True  # nothing is left to find out
        if forget:
            self._loader.forget()
        return ShardFormatError("another object has taken its place since it was opened")

    # ---- bytes

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        where = positions.astype(np.intp)
        wanted = self._checked_entries(where)
        sizes = np.where(wanted[:, 0] == ABSENT, 0, wanted[:, 1])
        n = max(1, int(np.searchsorted(np.cumsum(sizes), max_nbytes, side="right")))
        wanted, sizes = wanted[:n], sizes[:n]
        ranges, data = self._get_merged(map(tuple, wanted[sizes > 0].tolist()), where[:n])
        bases = np.cumsum([0, *(len(part) for part in data)]).astype(np.uint64)
        places[:n] = wanted
        places[:n, 0][(sizes == 0) & (wanted[:, 0] != ABSENT)] = 0
        if ranges:
            lows = np.array([low for low, _ in ranges], dtype=np.uint64)
            which = np.searchsorted(lows, wanted[sizes > 0, 0], side="right") - 1
            places[:n, 0][sizes > 0] = wanted[sizes > 0, 0] - lows[which] + bases[which]
        return (np.concatenate(data) if data else b""), n

    def range(self, offset: int, nbytes: int) -> bytes:
        (data,) = self._get_bytes([(offset, nbytes)], ())
        return bytes(data)

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> list[Any]:
        return cut_out(wanted, *self._get_merged([one for one in wanted if one[1]], ()))

    def _get_merged(
        self, wanted: Iterable[tuple[int, int]], positions: Any
    ) -> tuple[list[tuple[int, int]], list[Any]]:
        """Return merged ranges that cover inner chunks, and their bytes.

        The first time, they prove that the object is as long as all entries require.
        """
        loader, index = self._loader, self._index
        ranges = coalesced(wanted, self._limits())
        must_prove = bool(ranges) and loader.must_be_sound and not index.is_sound
        end = minimum_nbytes(loader, index, 0) if must_prove else 0
        ranges = [(offset, nbytes + n_more) for offset, nbytes, n_more in with_proof(ranges, end)]
        data = self._get_bytes(ranges, positions)
        if end:
            self._index = replace(self._index, is_sound=True)
        return ranges, data

    def _get_bytes(self, ranges: Sequence[tuple[int, int]], positions: Any) -> list[Any]:
        """Return ranges; `positions` are those of the requested inner chunks, if they are known, for errors."""
        answers = sync(self._ask(ranges))
        if self._index.version is None and self._watch.has_changed():
            raise self._changed()
        self._is_confirmed = self._is_confirmed or bool(answers)
        wanted = lambda: np.asarray(positions, dtype=np.intp)  # noqa: E731
        return [
            checked_data(self._loader, self._index, wanted, offset, nbytes, answer)
            for (offset, nbytes), answer in zip(ranges, answers, strict=True)
        ]

    async def _ask(self, ranges: Sequence[tuple[int, int]]) -> list[Answer | None]:
        remote, key, version = self._limited(), self._loader.key, self._index.version
        try:
            return await all_of(remote.get_range(key, first, first + n, version) for first, n in ranges)
        except Changed:
            raise self._changed() from None

    def close(self) -> None:
        """Do nothing: no connection is held open."""


def _no_index(chain: Chain) -> RemoteIndex:
    """Return the index of an object that does not exist."""
    return RemoteIndex(np.full((chain.n_chunks, 2), ABSENT, dtype=np.uint64), None, None)


# ---------------------------------------------------------------- the object of one shard in a store
#
# `StoreObject`: the place of one shard, in a store of any kind.


class StoreObject:
    """The object of one shard in a store; see `shard_object.ShardObject`.

    Parameters
    ----------
    store : Store
    object_key : str
        Key of the object in the store.
    key : str, optional
        Its name in errors.
    """

    def __init__(self, store: Store, object_key: str, key: str | None = None) -> None:
        self.store = store
        self._object_key = object_key
        self.key = object_key if key is None else key
        self.path = store.path(object_key)

    def __reduce__(self) -> tuple[Any, ...]:
        return StoreObject, (self.store, self._object_key, self.key)

    @property
    def identity(self) -> str:
        """Name for locks."""
        return self.store.lock_names([self._object_key])[0]

    @property
    def realm(self) -> Hashable:
        """Objects of one realm are replaced together; None if the store cannot do that."""
        return self.store.realm

    @property
    def is_near(self) -> bool:
        """True if the engine opens the object itself."""
        return self.store.is_near

    @property
    def is_prompt(self) -> bool:
        """True if a small read takes no network round trip."""
        return self.store.is_near and self.store.is_prompt

    @property
    def is_link(self) -> bool:
        """True if a symbolic link leads to the object."""
        return self.store.is_link(self._object_key)

    @property
    def staging(self) -> str | None:
        """Folder for temporary files beside the object."""
        return self.store.staging(self._object_key)

    @property
    def data(self) -> Any:
        """Bytes of an object in memory, or path of a file."""
        return self.store.source(self._object_key)

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        """Open what is stored now."""
        if self.is_near:
            return NativeShard(chain, self.data, options, None if self.path is None else cache)
        name = None if cache is None else self.store.index_names([self._object_key])[0]
        loader = IndexLoader(self.store, self._object_key, chain, options, name, cache)
        size = lambda: sync(self.store.size(self._object_key))  # noqa: E731
        return RemoteShard(loader, self.store.limits, size, self.identity)

    def open_whole(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        """Open what is stored now, with one request for all of it."""
        if self.is_near:
            return self.open(chain, options, cache)
        answer = sync(self.store.get(self._object_key))
        native.load().totals_add(reads=1, bytes_read=0 if answer is None else len(answer.data))
        return FetchedShard(chain, answer, options)

    def update(self, maker: Maker, options: Options) -> bytes | None:
        """Replace the object; return its new state, None if the maker knows it."""
        return replace_blocking(self.store, [self._object_key], maker, options)[0]

    def update_all(self, targets: Sequence[Any], maker: Maker, options: Options) -> list[bytes | None]:
        """Replace objects of this realm, all or none."""
        for target in targets:  # a read-only view has the realm of its store
            target.store.check_writable()
        return replace_blocking(self.store, [target._object_key for target in targets], maker, options)


def shard_object(
    store: Any, key: str | None, storage_options: Mapping[str, Any] | None = None
) -> StoreObject:
    """Return the object for a store and a key; see `storage.kinds.object_at`."""
    return StoreObject(*object_at(store, key, storage_options))
