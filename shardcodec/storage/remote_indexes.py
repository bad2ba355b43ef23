# remote_indexes.py - the cache of indexes of remote objects between calls
# SPDX-License-Identifier: MIT
"""The counterpart of `storage.index_cache` for stores that answer requests.

A cached index is useful only if a reader can detect that it is stale. If the store identifies states of objects (entity
tags), the state is cached with the index and bound to requests for ranges: a cached index is then as reliable as a fresh
one and needs no request. If the store does not, an index is cached only if the user declares objects ``immutable``.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..options import Options
from . import index_cache

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["RemoteIndex", "drop", "get", "put", "ticket"]

# Most objects with a remembered state; the cache bounds the indexes themselves.
MAX_STATES = 1 << 16


@dataclass(frozen=True, eq=False)
class RemoteIndex:
    """An index, and the state of its object as the store reported it.

    Attributes
    ----------
    entries : ndarray of uint64, shape (n_chunks, 2)
    nbytes : int or None
        Size of the object in bytes, if it is known.
    version
        Name of the state, if the store reports it; see `requests.Answer`.
    is_sound : bool
        True if the size of the object is known to fit all entries.
    is_confirmed : bool
        False if the index comes from the cache and the object may have changed since.
    """

    entries: np.ndarray[Any, Any]
    nbytes: int | None
    version: Any
    is_sound: bool = False
    is_confirmed: bool = True

    def is_that_of(self, other: RemoteIndex) -> bool:
        """Return True if version and entries are equal, so that both indexes seem to be of one state of the object."""
        return bool(self.version == other.version and np.array_equal(self.entries, other.entries))


_states: OrderedDict[str, tuple[int | None, Any, bool]] = OrderedDict()
_mutex = threading.Lock()


def _begin_child() -> None:
    """Replace the mutex in a forked child, because threads of the parent may have held it."""
    global _mutex
    _mutex = threading.Lock()


os.register_at_fork(after_in_child=_begin_child)


def _cache_of(
    options: Options, version: Any, kept: index_cache.IndexCache | None
) -> index_cache.IndexCache | None:
    if version is None and not options.immutable:
        return None
    return index_cache.shared(options.index_cache, options.open_files) if kept is None else kept


def _name_of_state(name: str, version: Any) -> str:
    """Return the name of an index; it includes the state, so that a state is never paired with the index of another."""
    return name if version is None else f"{name}\0{version}"


def ticket(options: Options, kept: index_cache.IndexCache | None = None) -> int:
    """Return a number for `put` of the same cache; take it before fetching an index."""
    kept = index_cache.shared(options.index_cache, options.open_files) if kept is None else kept
    return 0 if kept is None else kept.ticket()


def get(
    name: str, chain: Chain, options: Options, kept: index_cache.IndexCache | None = None
) -> RemoteIndex | None:
    """Return the index of an object, or None if it is not cached.

    Parameters
    ----------
    name : str
        Name of the object, unique among all stores of the process.
    chain
        The compiled chain of the shard.
    options : Options
        ``index_cache``, ``open_files`` and ``immutable`` are used.
    kept : IndexCache, optional
        The cache to search instead of the cache of the options.
    """
    with _mutex:
        state = _states.get(name)
        if state is None:
            return None
        _states.move_to_end(name)
    nbytes, version, is_sound = state
    kept = _cache_of(options, version, kept)
    entries = None if kept is None else kept.get(_name_of_state(name, version), chain)
    if entries is None:
        return None
    return RemoteIndex(entries, nbytes, version, is_sound, is_confirmed=options.immutable)


def put(
    name: str,
    chain: Chain,
    index: RemoteIndex,
    options: Options,
    since: int,
    kept: index_cache.IndexCache | None = None,
) -> None:
    """Cache an index with a checked checksum, if a later call can use it; `since` is the `ticket` of the same cache."""
    kept = _cache_of(options, index.version, kept)
    if kept is None:
        return
    kept.put(_name_of_state(name, index.version), chain, index.entries, since)
    with _mutex:
        _states[name] = index.nbytes, index.version, index.is_sound
        _states.move_to_end(name)
        while len(_states) > MAX_STATES:
            _states.popitem(last=False)


def drop(names: Iterable[str]) -> None:
    """Remove objects that were written from the cache."""
    names = list(names)
    with _mutex:
        for name in names:
            _states.pop(name, None)
    index_cache.drop(names)
