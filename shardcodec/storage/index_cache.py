# index_cache.py - indexes that readers keep between calls
# SPDX-License-Identifier: MIT
"""The index cache.

Local files are compared with what they were when the index was read, each time and on the opened file, so a hit is as
good as reading the index again. What holds for objects of other stores is the matter of `storage.remote_indexes`.
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

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["IndexCache", "drop", "shared"]

# Caches of different sizes that the process keeps for options; each is bounded by itself.
MAX_SHARED = 8


class IndexCache:
    """Decoded shard indexes, at most so many bytes of them; the least recently used go first.

    May be shared by threads and arrays. A forked child, and whoever unpickles it, begins with an empty one.

    Parameters
    ----------
    max_bytes : int
        Bound of all indexes kept, 16 bytes for each inner chunk of a shard; 0 keeps none.
    max_open_files : int
        Local files that stay open between calls. A call then asks whether a name still leads to the open file,
        instead of opening it: worth it on network file systems. 0 keeps none.

    Notes
    -----
    An index of more than 256 KiB is kept when it is read for the second time. A file that was changed less than two
    seconds before it is read is read anew each time: its stamps could not tell a further change.
    """

    def __init__(self, max_bytes: int, *, max_open_files: int = 0, _grain_ns: int | None = None) -> None:
        if max_bytes < 0 or max_open_files < 0:
            raise ValueError(f"sizes cannot be negative: {max_bytes}, {max_open_files}")
        self._arguments = (max_bytes, max_open_files, _grain_ns)
        grain = {} if _grain_ns is None else {"grain_ns": _grain_ns}
        self._cache = native.load().Cache(max_bytes, max_open_files, **grain)
        self._mutex = threading.Lock()
        self._n_drops = 0
        with _all_mutex:
            _all.add(self)

    @property
    def max_bytes(self) -> int:
        """Bound of all indexes kept."""
        return self._arguments[0]

    @property
    def native(self) -> Any:
        """What the engine works with."""
        return self._cache

    def ticket(self) -> int:
        """Return a number to be taken before an index is fetched, and given to `put`."""
        return self._n_drops

    def get(self, key: str, chain: Chain) -> np.ndarray[Any, Any] | None:
        """Return the index of an object that is in no file.

        Parameters
        ----------
        key : str
            Names the object among all stores of the process.
        chain
            The compiled chain of the shard.

        Returns
        -------
        ndarray of uint64, shape (n_chunks, 2), or None
            Offset and nbytes of each inner chunk; not writable, valid as long as it is referred to. None when the
            cache has none for this layout of index.
        """
        index = self._cache.get(key, chain)
        return None if index is None else np.frombuffer(index, dtype=np.uint64).reshape(-1, 2)

    def put(self, key: str, chain: Chain, entries: np.ndarray[Any, Any], ticket: int) -> None:
        """Keep a decoded index whose checksum has been checked; nothing, if an object was dropped since the ticket."""
        with self._mutex:
            if ticket == self._n_drops:
                self._cache.put(key, chain, entries)

    def drop(self, keys: Iterable[str]) -> None:
        """Forget objects: somebody has written them."""
        with self._mutex:
            for key in keys:
                self._n_drops += 1
                self._cache.drop(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._mutex:
            self._n_drops += 1
            self._cache.clear()

    def info(self) -> dict[str, int]:
        """Return bounds, present sizes, and counters since the cache was made."""
        return dict(self._cache.info())

    def __repr__(self) -> str:
        return f"IndexCache({self._arguments[0]}, max_open_files={self._arguments[1]})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, self._arguments


def _again(max_bytes: int, max_open_files: int, grain_ns: int | None) -> IndexCache:
    return IndexCache(max_bytes, max_open_files=max_open_files, _grain_ns=grain_ns)


_all: weakref.WeakSet[IndexCache] = weakref.WeakSet()
_all_mutex = threading.RLock()  # the collector may run a destructor anywhere


@functools.lru_cache(maxsize=MAX_SHARED)
def _shared(max_bytes: int, max_open_files: int) -> IndexCache:
    return IndexCache(max_bytes, max_open_files=max_open_files)


def _begin_child() -> None:
    """The native caches empty themselves in a forked child; its parent's threads may have held these mutexes."""
    global _all_mutex
    _all_mutex = threading.RLock()
    for cache in list(_all):
        cache._mutex = threading.Lock()


os.register_at_fork(after_in_child=_begin_child)


def shared(max_bytes: int, max_open_files: int) -> IndexCache | None:
    """Return the cache of that size which all calls of this process share; None for no cache at all."""
    return _shared(max_bytes, max_open_files) if max_bytes or max_open_files else None


def drop(keys: Iterable[str]) -> None:
    """Forget objects that were written, in every cache of this process."""
    keys = list(keys)
    with _all_mutex:
        caches = list(_all)
    for cache in caches:
        cache.drop(keys)
