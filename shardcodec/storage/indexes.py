# indexes.py - caches of shard indexes and of decoded inner chunks
# SPDX-License-Identifier: MIT
"""Caches of shard indexes of local files and remote objects, and of decoded inner chunks.

The engine compares an opened local file with its state when the index was read. A remote index is cached with the state of
its object (the entity tag), which a request for ranges then requires. Either way a hit is as reliable as a new read of the
index. If the store does not identify states, an index is cached only if the user declares objects ``immutable``. A decoded inner
chunk is cached under its index, so it is as current.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..arguments import checked
from ..options import Options

if TYPE_CHECKING:
    from .._native import Chain

__all__ = [
    "IndexCache",
    "RemoteIndex",
    "chunk_state",
    "drop",
    "forget",
    "get",
    "of_options",
    "own",
    "put",
    "shared",
    "ticket",
]

# Maximum number of shared caches, one for each choice of the options `index_cache`, `open_files` and `cache`; each has its own bounds.
MAX_SHARED = 8


class IndexCache:
    """A cache of decoded shard indexes, and of decoded inner chunks, with bounds in bytes.

    Threads and arrays may share a cache. It is empty in a forked child and after unpickling.

    Parameters
    ----------
    max_bytes : int or str
        Bound in bytes, or as ``"64MiB"``, of all cached indexes, 16 bytes for each inner chunk of a shard; 0 caches none.
    max_open_files : int
        Number of local files that stay open between calls. A call then checks that the name still leads to the open
        file, instead of opening it; this is faster on network file systems. 0 keeps none open.
    max_chunk_bytes : int or str
        Bound in bytes of all decoded inner chunks; 0 caches none. Each counts about 380 bytes more, for its entry and for what the
        allocator takes.

    Raises
    ------
    ValueError
        A size is negative.

    Notes
    -----
    The least recently used index is evicted first; inner chunks are evicted by S3-FIFO, so that a scan leaves those that are
    used again. An index of more than 256 KiB is cached at its second read. An index is not cached if its file was changed less than
    two seconds before the read, because the times of the file could not reveal another change. Without its
    index no inner chunk is cached.

    Examples
    --------
    >>> cache = shardcodec.IndexCache(2**20)
    >>> arrays = [shardcodec.open_array("a.zarr", index_cache=cache) for _ in range(2)]
    >>> [int(array[0, 1]) for array in arrays]
    [1, 1]
    """

    @checked
    def __init__(
        self,
        max_bytes: int | str,
        *,
        max_open_files: int = 0,
        max_chunk_bytes: int | str = 0,
        _grain_ns: int | None = None,
    ) -> None:
        from ..readable import as_nbytes  # here, because hardly an import of the package needs it

        max_bytes = as_nbytes(max_bytes, "max_bytes")
        max_chunk_bytes = as_nbytes(max_chunk_bytes, "max_chunk_bytes")
        if not (0 <= max_bytes < 2**63 and 0 <= max_open_files < 2**31 and 0 <= max_chunk_bytes < 2**63):
            raise ValueError(
                f"expected sizes from 0 to 2^63 - 1 and 2^31 - 1, got max_bytes={max_bytes}, "
                f"max_open_files={max_open_files}, max_chunk_bytes={max_chunk_bytes}"
            )
        self._arguments = (max_bytes, max_open_files, max_chunk_bytes, _grain_ns)
        grain = {} if _grain_ns is None else {"grain_ns": _grain_ns}
        self._cache = native.load().Cache(max_bytes, max_open_files, max_chunk_bytes, **grain)
        _all[id(self)] = self

    @property
    def max_bytes(self) -> int:
        """Bound in bytes of all cached indexes."""
        return self._arguments[0]

    @property
    def native(self) -> Any:
        """The native cache."""
        return self._cache

    def ticket(self) -> int:
        """Return a number for `put`. The caller takes it before it fetches an index.

        Returns
        -------
        int
            Number of removals from the cache so far.
        """
        return self._cache.n_drops  # type: ignore[no-any-return]

    def get(self, key: str, chain: Chain) -> np.ndarray[Any, Any] | None:
        """Return the cached index of an object that is not a local file, without a check that it is still current.

        The module's `get` includes the state of the object in `key`, so that a caller can detect a stale index.
        The engine itself looks up local files.

        Parameters
        ----------
        key : str
            Name of the object, unique among all stores of the process.
        chain
            The compiled chain of the shard.

        Returns
        -------
        ndarray of uint64, shape (n_chunks, 2), or None
            Offset and size of each inner chunk in bytes, in C order over the stored grid; both 2^64-1 for an absent one.
            It is a read-only view of cached memory, which stays valid after an eviction. None if the cache has no index of
            this object, or one of another size or encoding than the chain has.
        """
        index = self._cache.get(key, chain)
        return None if index is None else np.frombuffer(index, dtype=np.uint64).reshape(-1, 2)

    def put(self, key: str, chain: Chain, entries: np.ndarray[Any, Any], ticket: int) -> None:
        """Cache a copy of a decoded index whose checksum was verified.

        Does nothing if any object was dropped since the ticket was taken, because the index may be stale.

        Parameters
        ----------
        key : str
            Name of the object, as for `get`.
        chain
            The compiled chain of the shard.
        entries : ndarray of uint64, shape (n_chunks, 2)
            Offset and size of each inner chunk in bytes.
        ticket : int
            Result of `ticket` from before the index was fetched.
        """
        self._cache.put(key, chain, entries, ticket)

    def drop(self, keys: Iterable[str]) -> None:
        """Remove the indexes of objects that a writer has changed.

        Parameters
        ----------
        keys : iterable of str
            Names of the objects; local files are named by their paths.
        """
        for key in keys:
            self._cache.drop(key)

    def clear(self) -> None:
        """Empty the cache."""
        self._cache.clear()

    def info(self) -> dict[str, Any]:
        """Return bounds, current sizes, and counters since the creation of the cache.

        Returns
        -------
        dict
            ``max_nbytes``, ``nbytes`` and ``n_indexes``: bound and size of the cached indexes in bytes, and their number.
            ``hits``, ``misses``, ``evictions``: counters of indexes. ``max_files``, ``n_files``: bound and number of open
            files. ``file_hits``, ``file_misses``: counters of open files. ``chunks``: a dictionary of inner chunks, with
            ``max_nbytes``, ``nbytes``, ``n_chunks`` and ``evictions``; `stats` counts their hits and misses.
        """
        return dict(self._cache.info())

    def __repr__(self) -> str:
        chunks = f", max_chunk_bytes={self._arguments[2]}" if self._arguments[2] else ""
        return f"IndexCache({self._arguments[0]}, max_open_files={self._arguments[1]}{chunks})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._arguments


def _again(max_bytes: int, max_open_files: int, max_chunk_bytes: int, grain_ns: int | None) -> IndexCache:
    return IndexCache(
        max_bytes, max_open_files=max_open_files, max_chunk_bytes=max_chunk_bytes, _grain_ns=grain_ns
    )


# By `id`. It is changed and copied in one step: a signal handler and another thread may make a cache at any point.
_all: weakref.WeakValueDictionary[int, IndexCache] = weakref.WeakValueDictionary()


@functools.lru_cache(maxsize=MAX_SHARED)
def _shared(max_bytes: int, max_open_files: int, max_chunk_bytes: int) -> IndexCache:
    return IndexCache(max_bytes, max_open_files=max_open_files, max_chunk_bytes=max_chunk_bytes)


def shared(max_bytes: int, max_open_files: int) -> IndexCache | None:
    """Return the cache with these bounds that all calls of this process share; None if both are 0."""
    return _shared(max_bytes, max_open_files, 0) if max_bytes or max_open_files else None


def of_options(options: Options) -> IndexCache | None:
    """Return the shared cache with the bounds of the options."""
    bounds = options.index_cache, options.open_files, options.cache
    return _shared(*bounds) if bounds[0] or bounds[1] else None


def own(options: Options) -> IndexCache:
    """Return a new cache with these bounds."""
    return IndexCache(options.index_cache, max_open_files=options.open_files, max_chunk_bytes=options.cache)


def drop(keys: Iterable[str]) -> None:
    """Remove the indexes of changed objects from every cache of this process; `keys` as for `IndexCache.drop`."""
    keys = list(keys)
    for reference in _all.valuerefs():
        if (cache := reference()) is not None:
            cache.drop(keys)


# Maximum number of objects with a remembered state; the cache bounds the indexes themselves.
MAX_STATES = 1 << 16


@dataclass(frozen=True, eq=False)
class RemoteIndex:
    """An index, and the state of its object as the store reported it.

    nbytes: size of the object, if it is known. state: its name; see `storage.store.Answer`. is_sound: the size of
    the object is known to fit all entries. is_confirmed: False if the index comes from the cache and the object may have
    changed since.
    """

    entries: np.ndarray[Any, Any]
    nbytes: int | None
    state: Any
    is_sound: bool = False
    is_confirmed: bool = True

    def matches(self, other: RemoteIndex) -> bool:
        """Return True if state and entries are equal, so that both indexes seem to be of one state of the object."""
        return bool(self.state == other.state and np.array_equal(self.entries, other.entries))


# In the order of their entry. Each use is one step, under no mutex: a signal handler would wait for ever for what it has interrupted.
_states: dict[str, tuple[int | None, Any, bool]] = {}


def _cache_of(options: Options, state: Any, cache: IndexCache | None) -> IndexCache | None:
    """Return the cache for an index; None if a reader could not detect that the index is stale."""
    if state is None and not options.immutable:
        return None
    return of_options(options) if cache is None else cache


def _name_of_state(name: str, state: Any) -> str:
    """Return the name of an index with its state, so that the index of another state is never found."""
    return name if state is None else f"{name}\0{state}"


def ticket(options: Options, cache: IndexCache | None = None) -> int:
    """Return a number for `put` of the same cache; take it before fetching an index."""
    cache = of_options(options) if cache is None else cache
    return 0 if cache is None else cache.ticket()


def get(name: str, chain: Chain, options: Options, cache: IndexCache | None = None) -> RemoteIndex | None:
    """Return the index of an object, or None if it is not cached.

    `name` is unique among all stores of the process. `cache` is searched instead of the cache of the options.
    """
    remembered = _states.get(name)
    if remembered is None:
        return None
    nbytes, state, is_sound = remembered
    cache = _cache_of(options, state, cache)
    entries = None if cache is None else cache.get(_name_of_state(name, state), chain)
    if entries is None:
        return None
    return RemoteIndex(entries, nbytes, state, is_sound, is_confirmed=options.immutable)


def chunk_state(
    name: str, chain: Chain, index: RemoteIndex, options: Options, cache: IndexCache | None = None
) -> int:
    """Return the number under which inner chunks of an object are cached; 0: none are."""
    cache = _cache_of(options, index.state, cache)
    return 0 if cache is None else int(cache.native.state(_name_of_state(name, index.state), chain))


def put(
    name: str,
    chain: Chain,
    index: RemoteIndex,
    options: Options,
    since: int,
    cache: IndexCache | None = None,
) -> None:
    """Cache an index with a checked checksum, if a later call can use it; `since` is the `ticket` of the same cache."""
    cache = _cache_of(options, index.state, cache)
    if cache is None:
        return
    cache.put(_name_of_state(name, index.state), chain, index.entries, since)
    _states.pop(name, None)
    _states[name] = index.nbytes, index.state, index.is_sound
    if len(_states) > MAX_STATES:
        for old in list(_states)[: MAX_STATES // 8 or 1]:
            _states.pop(old, None)


def forget(names: Iterable[str]) -> None:
    """Remove the indexes and states of remote objects that were written; `drop` is for local files."""
    names = list(names)
    for name in names:
        _states.pop(name, None)
    drop(names)
