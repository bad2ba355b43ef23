# index_cache.py - the cache of shard indexes between calls
# SPDX-License-Identifier: MIT
"""The index cache.

Each use of a cached index compares the opened local file with its state when the index was read, so a hit is as reliable
as a new read of the index. `storage.remote_indexes` handles objects of other stores.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..arguments import checked

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["IndexCache", "drop", "shared"]

# Maximum number of shared caches, one for each pair of the options `index_cache` and `open_files`; each has its own bound.
MAX_SHARED = 8


class IndexCache:
    """A cache of decoded shard indexes with a bound in bytes; it evicts the least recently used index first.

    Threads and arrays may share a cache. It is empty in a forked child and after unpickling.

    Parameters
    ----------
    max_bytes : int
        Bound in bytes of all cached indexes, 16 bytes for each inner chunk of a shard; 0 caches none.
    max_open_files : int
        Number of local files that stay open between calls. A call then checks that the name still leads to the open
        file, instead of opening it; this is faster on network file systems. 0 keeps none open.

    Raises
    ------
    ValueError
        A size is negative.

    Notes
    -----
    An index of more than 256 KiB is cached at its second read. An index is not cached if its file was changed less than
    two seconds before the read, because the times of the file could not reveal another change.
    """

    @checked
    def __init__(self, max_bytes: int, *, max_open_files: int = 0, _grain_ns: int | None = None) -> None:
        if not (0 <= max_bytes < 2**63 and 0 <= max_open_files < 2**31):
            raise ValueError(
                f"expected sizes from 0 to 2^63 - 1 and 2^31 - 1, got max_bytes={max_bytes}, max_open_files={max_open_files}"
            )
        self._arguments = (max_bytes, max_open_files, _grain_ns)
        grain = {} if _grain_ns is None else {"grain_ns": _grain_ns}
        self._cache = native.load().Cache(max_bytes, max_open_files, **grain)
        self._mutex = threading.Lock()
        self._n_drops = 0
        with _all_mutex:
            _all.add(self)

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
        return self._n_drops

    def get(self, key: str, chain: Chain) -> np.ndarray[Any, Any] | None:
        """Return the cached index of an object that is not a local file, without a check that it is still current.

        `storage.remote_indexes` includes the state of the object in `key`, so that a caller can detect a stale index.
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
        with self._mutex:
            if ticket == self._n_drops:
                self._cache.put(key, chain, entries)

    def drop(self, keys: Iterable[str]) -> None:
        """Remove the indexes of objects that a writer has changed.

        Parameters
        ----------
        keys : iterable of str
            Names of the objects; local files are named by their paths.
        """
        with self._mutex:
            for key in keys:
                self._n_drops += 1
                self._cache.drop(key)

    def clear(self) -> None:
        """Empty the cache."""
        with self._mutex:
            self._n_drops += 1
            self._cache.clear()

    def info(self) -> dict[str, int]:
        """Return bounds, current sizes, and counters since the creation of the cache.

        Returns
        -------
        dict of str to int
            ``max_nbytes``, ``nbytes`` and ``n_indexes``: bound and size of the cached indexes in bytes, and their number.
            ``hits``, ``misses``, ``evictions``: counters of indexes. ``max_files``, ``n_files``: bound and number of open
            files. ``file_hits``, ``file_misses``: counters of open files.
        """
        return dict(self._cache.info())

    def __repr__(self) -> str:
        return f"IndexCache({self._arguments[0]}, max_open_files={self._arguments[1]})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._arguments


def _again(max_bytes: int, max_open_files: int, grain_ns: int | None) -> IndexCache:
    return IndexCache(max_bytes, max_open_files=max_open_files, _grain_ns=grain_ns)


_all: weakref.WeakSet[IndexCache] = weakref.WeakSet()
_all_mutex = threading.RLock()  # reentrant, because garbage collection may run a destructor at any point


@functools.lru_cache(maxsize=MAX_SHARED)
def _shared(max_bytes: int, max_open_files: int) -> IndexCache:
    return IndexCache(max_bytes, max_open_files=max_open_files)


def _begin_child() -> None:
    """Replace the mutexes in a forked child, because threads of the parent may have held them.

    The native caches empty themselves.
    """
    global _all_mutex
    _all_mutex = threading.RLock()
    for cache in list(_all):
        cache._mutex = threading.Lock()


os.register_at_fork(after_in_child=_begin_child)


def shared(max_bytes: int, max_open_files: int) -> IndexCache | None:
    """Return the cache with these bounds that all calls of this process share; None if both are 0."""
    return _shared(max_bytes, max_open_files) if max_bytes or max_open_files else None


def drop(keys: Iterable[str]) -> None:
    """Remove the indexes of changed objects from every cache of this process; `keys` as for `IndexCache.drop`."""
    keys = list(keys)
    with _all_mutex:
        caches = list(_all)
    for cache in caches:
        cache.drop(keys)
