# remote_index.py - the index of a shard behind requests
# SPDX-License-Identifier: MIT
"""Load and check the index of a shard in a store that answers requests. For files and memory the engine does this.

An object that lost its first bytes still has a valid index, but all its inner chunks are shifted. Checksums of inner
chunks detect that. Without them, a single entry that reaches outside of the object may be the only sign. So all entries
of such a shard are checked before the first inner chunk is read (`must_be_sound`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..errors import ShardError, ShardFormatError
from ..options import Options
from ..storage import indexes
from ..storage.indexes import IndexCache, RemoteIndex
from ..storage.store import Answer, Remote
from .placement import sum_up
from .read import index_too_short, with_key

if TYPE_CHECKING:
    from .._native import Chain

__all__ = [
    "IndexLoader",
    "check_entries",
    "checked_entries",
    "chunk_ticket",
    "decode_index",
    "must_be_sound",
    "reach",
]

# Upper limit of the size of an object; used if its size is unknown.
MAX_OBJECT_NBYTES = 2**63 - 1

Entries = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class IndexLoader:
    """Loads the index of one shard.

    name: that of the object in the cache of indexes; without it, the index is not cached. cache: in place of that of the
    options. since: result of `chunk_ticket` from before the object was looked up; None: no inner chunk is cached.
    """

    remote: Remote
    key: str
    chain: Chain
    options: Options
    name: str | None = None
    cache: IndexCache | None = None
    since: int | None = None

    @property
    def nbytes(self) -> int:
        """Size of the index in bytes."""
        return int(self.chain.index_nbytes)

    @property
    def must_be_sound(self) -> bool:
        """True if all entries must be checked before an inner chunk is read."""
        return must_be_sound(self.chain, self.options)

    def cached(self) -> RemoteIndex | None:
        """Return the cached index, which may be stale; None if there is none, or if an entry makes the shard unreadable."""
        if self.name is None or not self.chain.is_shard:
            return None
        index = indexes.get(self.name, self.chain, self.options, self.cache)
        if index is None:
            return None
        native.load().totals_add(index_hits=1)
        try:
            return self.checked(index)
        except ShardFormatError:
            return None

    def ticket(self) -> int:
        """Return a number for `keep`; take it before a request for the index."""
        return 0 if self.name is None else indexes.ticket(self.options, self.cache)

    def keep(self, index: RemoteIndex, since: int) -> None:
        """Cache an index; `since` is the `ticket` from before its request."""
        if self.name is not None:
            indexes.put(self.name, self.chain, index, self.options, since, self.cache)

    def chunk_state(self, index: RemoteIndex) -> int:
        """Return the number under which inner chunks of the object are cached in memory; 0: none are.

        The number belongs to the cached index of this state. If the state has no name, that is the index of another state as soon as
        a writer of this process has changed an object.
        """
        if self.name is None or self.since is None:
            return 0
        if index.state is None and self.since != self.ticket():
            return 0
        return indexes.chunk_state(self.name, self.chain, index, self.options, self.cache)

    def forget(self) -> None:
        """Remove the index from all caches."""
        if self.name is not None:
            indexes.forget([self.name])

    async def load(self, *, check: bool = True) -> RemoteIndex | None:
        """Fetch the index with one request, decode it and cache it; None if the object does not exist. The cache is not searched.

        With `check`, raise for an invalid entry if `must_be_sound`. Without it, ``is_sound`` of the index is False then.
        """
        since = self.ticket()
        if self.chain.index_at_start:
            answer = await self.remote.get_range(self.key, 0, self.nbytes)
        else:
            answer = await self.remote.get_suffix(self.key, self.nbytes)
        if self.name is not None:
            native.load().totals_add(index_misses=1)
        if answer is None:
            return None
        index = self.decoded(answer)
        try:
            index = self.checked(index)
        except ShardFormatError:
            if check:
                raise
        self.keep(index, since)
        return index

    async def load_sizes(self, out: np.ndarray[Any, Any]) -> RemoteIndex | None:
        """Fetch the index, check all entries, and copy the encoded sizes to `out`, uint64, shape (n_chunks,).

        The size of an absent inner chunk is 2^64-1. `out` is unchanged if the object does not exist (the result is None then),
        and after an error.
        """
        index = await self.load()
        if index is None:
            return None
        if not index.is_sound:
            self._check_all(index)
        out[:] = index.entries[:, 1]
        return index

    def of_whole(self, answer: Answer) -> RemoteIndex:
        """Decode the index in the bytes of a whole object; raises as `decoded`."""
        stored = answer.data[: self.nbytes] if self.chain.index_at_start else answer.data[-self.nbytes :]
        return self.decoded(answer._replace(data=stored, nbytes=len(answer.data)))

    def decoded(self, answer: Answer) -> RemoteIndex:
        """Decode an answer to a request for the index. The entries are not checked."""
        if answer.nbytes is not None and answer.nbytes < self.nbytes:
            raise index_too_short(self.key, answer.nbytes, self.nbytes)
        entries = decode_index(self.chain, answer.data, self.key)
        return RemoteIndex(entries, answer.nbytes, answer.state)

    def checked(self, index: RemoteIndex) -> RemoteIndex:
        """Check all entries if `must_be_sound`, and return the index with the result in ``is_sound``.

        If the size of the object is unknown, entries beyond its end are not found, and ``is_sound`` remains False.
        """
        if index.is_sound or not self.must_be_sound:
            return index
        self._check_all(index)
        return index if index.nbytes is None else replace(index, is_sound=True)

    def _check_all(self, index: RemoteIndex) -> None:
        try:
            check_entries(self.chain, index.entries, index.nbytes, self.options)
        except ShardError as error:
            raise with_key(error, self.chain, self.key) from None


def chunk_ticket(remote: Remote, chain: Chain, options: Options) -> int | None:
    """Return a number for `IndexLoader.since`; None if no inner chunks are cached.

    None are if codecs in Python decode them, or if a state may have two contents.
    """
    is_unique = options.immutable or getattr(remote, "has_unique_states", False)
    return indexes.ticket(options) if options.cache and is_unique and chain.stage is None else None


def must_be_sound(chain: Chain, options: Options) -> bool:
    """Return True if all entries must be valid before an inner chunk is read.

    One invalid entry then makes all inner chunks doubtful, because they have no checksums. The switch ``allow_in_index``
    disables this.
    """
    return bool(chain.needs_sound_index) and not options.allow_in_index


def decode_index(chain: Chain, stored: Any, key: str) -> Entries:
    """Decode a stored index and verify its checksum; the entries, shape (n_chunks, 2), are not checked."""
    nbytes, n = len(stored), int(chain.index_nbytes)
    if nbytes < n:  # before memory is allocated for the index
        raise index_too_short(key, nbytes, n)
    if nbytes > n:
        raise ShardFormatError(
            f"shard {key!r}: expected an index of {n} bytes, got {nbytes} bytes from the store",
            shard=key,
            expected=n,
            actual=nbytes,
        )
    entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
    try:
        native.load().load_index(chain, stored, entries)
    except ShardError as error:
        raise with_key(error, chain, key) from None
    return entries


def check_entries(chain: Chain, entries: Entries, nbytes: int | None, options: Options) -> None:
    """Check entries of an index, shape (n, 2); ``.entry`` of the error is a number among them.

    nbytes: size of the object; None if it is unknown.
    """
    size, n = MAX_OBJECT_NBYTES if nbytes is None else nbytes, int(chain.index_nbytes)
    first = 0 if chain.index_at_start else max(0, size - n)
    native.load().index_check(entries, size, first, n, allow_in_index=options.allow_in_index)


def checked_entries(
    chain: Chain, entries: Entries, positions: Any, nbytes: int | None, options: Options
) -> Entries:
    """Check the entries at some positions, and return them; ``.entry`` of the error is the position. Other entries may be invalid."""
    chosen: Entries = entries[positions]
    try:
        check_entries(chain, chosen, nbytes, options)
    except ShardError as error:
        if error.entry is not None:
            error.entry = int(positions[error.entry])
        raise
    return chosen


def reach(chain: Chain, entries: Entries) -> int:
    """Return the minimum size in bytes of an object with these entries.

    An index at the end of the object follows the last inner chunk.
    """
    return sum_up(entries).end + (0 if chain.index_at_start else int(chain.index_nbytes))
