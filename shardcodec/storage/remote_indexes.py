# remote_indexes.py - indexes of objects that are reached by requests, kept between calls
# SPDX-License-Identifier: MIT
"""What `storage.index_cache` is to files, for stores that answer requests.

An index that was fetched is worth keeping only with something that tells whether it still holds. Where the store names
states of objects (entity tags), the state is kept with the index, and requests for ranges are bound to it: a kept index is
then as good as a fresh one, and costs no request. Where it does not, an index is kept only if the user says that objects
are ``immutable``.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..options import Options
from . import index_cache

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["RemoteIndex", "drop", "get", "put", "ticket"]

# Objects whose state is remembered; the indexes themselves are bounded by the cache.
MAX_STATES = 1 << 16


class RemoteIndex(NamedTuple):
    """An index: n_chunks pairs, and of the state of its object what the store told.

    `is_sound`: the object has been seen to be as long as all entries say.
    """

    entries: np.ndarray[Any, Any]
    nbytes: int | None
    version: Any
    is_sound: bool = False

    def is_that_of(self, other: RemoteIndex) -> bool:
        """Tell whether nothing speaks for another state of the object."""
        return bool(self.version == other.version and np.array_equal(self.entries, other.entries))


_states: OrderedDict[str, tuple[int | None, Any, bool]] = OrderedDict()
_mutex = threading.Lock()


def _begin_child() -> None:
    """A forked child, whose parent's threads may have held the mutex."""
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
    """An index of another state has another name, so a state and an index that do not belong together never meet."""
    return name if version is None else f"{name}\0{version}"


def ticket(options: Options) -> int:
    """Return a number to be taken before an index is fetched, and given to `put`."""
    kept = index_cache.shared(options.index_cache, options.open_files)
    return 0 if kept is None else kept.ticket()


def get(
    name: str, chain: Chain, options: Options, kept: index_cache.IndexCache | None = None
) -> RemoteIndex | None:
    """Return the index of an object, None where none is kept.

    Parameters
    ----------
    name : str
        Names the object among all stores of the process.
    chain
        The compiled chain of the shard.
    options : Options
        ``index_cache`` and ``immutable`` count.
    kept : IndexCache, optional
        Where to look instead of in the cache of the options.
    """
    with _mutex:
        state = _states.get(name)
        if state is None:
            return None
        _states.move_to_end(name)
    nbytes, version, is_sound = state
    kept = _cache_of(options, version, kept)
    entries = None if kept is None else kept.get(_name_of_state(name, version), chain)
    return None if entries is None else RemoteIndex(entries, nbytes, version, is_sound)


def put(
    name: str,
    chain: Chain,
    index: RemoteIndex,
    options: Options,
    since: int,
    kept: index_cache.IndexCache | None = None,
) -> None:
    """Keep an index whose checksum has been checked, if that is any use; `since` is from the same cache."""
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
    """Forget objects that were written."""
    names = list(names)
    with _mutex:
        for name in names:
            _states.pop(name, None)
    index_cache.drop(names)
