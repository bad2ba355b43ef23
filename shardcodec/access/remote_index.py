# remote_index.py - the index of a shard behind requests, and reads that belong to one state
# SPDX-License-Identifier: MIT
"""The index of a shard behind requests, and reads that belong to one state.

Load and check the index of a shard in a store that answers requests. For files and memory the engine does this.

An object that lost its first bytes still has a valid index, but all its inner chunks are shifted. Checksums of inner
chunks detect that. Without them, a single entry that reaches outside of the object may be the only sign. So all entries
of such a shard are checked before the first inner chunk is read (`must_be_sound`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .. import native
from ..errors import ShardError, ShardFormatError
from ..options import Options
from ..storage import budget, indexes, locks
from ..storage.indexes import IndexCache, RemoteIndex
from ..storage.store import Answer, ObjectChanged, Remote
from .placement import ABSENT, sum_up
from .read import index_too_short, with_key

if TYPE_CHECKING:
    from .._native import Chain


__all__ = [
    "IndexLoader",
    "LimitedRemote",
    "WriterWatch",
    "check_entries",
    "checked_data",
    "checked_entries",
    "confirm",
    "consistent_read",
    "decode_index",
    "minimum_nbytes",
    "must_be_sound",
    "reach",
    "with_proof",
]

# Upper limit of the size of an object; used if its size is unknown.
MAX_OBJECT_NBYTES = 2**63 - 1

Entries = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class IndexLoader:
    """Loads the index of one shard.

    name: that of the object in the cache of indexes; without it, the index is not cached. cache: in place of that of the
    options.
    """

    remote: Remote
    key: str
    chain: Chain
    options: Options
    name: str | None = None
    cache: IndexCache | None = None

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


def must_be_sound(chain: Chain, options: Options) -> bool:
    """Return True if all entries must be valid before an inner chunk is read.

    One invalid entry then makes all inner chunks doubtful, because they have no checksums. The option ``allow_in_index``
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


# ---------------------------------------------------------------- read parts of a shard in one state, from a store of requests
#
# Read an index and inner chunks that belong to one state of an object, although a writer may replace it in between.
#
# The rule:
#
# 1. Take the index from the cache, or fetch it.
# 2. Bind the requests for ranges to the state of the index, if the store identifies states (entity tags).
# 3. If the object has changed, fetch its index again and repeat. Without entity tags, bytes that do not fit the index
#    show a change. If they do not fit and the index is still the same, the shard is damaged.
# 4. After `MAX_TRIES` attempts fetch the whole object with one request, which always returns one state.
#
# Requests to a store do not always show a change: in stores without entity tags, a replaced object may fit the old index.
# `WriterWatch` detects the writers of this process; writers in other processes cannot be seen.

# Most bytes by which the last range is extended, to prove the minimum size of an object of unknown size.
PROOF_NBYTES = 64 << 10

# Number of attempts to read a shard by index and ranges.
MAX_TRIES = 3

T = TypeVar("T")


async def consistent_read(
    loader: IndexLoader,
    index: RemoteIndex | None,
    by_index: Callable[[RemoteIndex], Awaitable[T]],
    whole: Callable[[], Awaitable[T | None]],
) -> T | None:
    """Read parts of a shard so that all bytes belong to one state of the object; None if it does not exist.

    index: the cached one; None to fetch it. by_index: coroutine function that reads the parts with an index; it raises
    `ObjectChanged` if it sees another state of the object, and may be called several times. whole: reads them with one request
    for the object.
    """
    for _ in range(MAX_TRIES):
        if index is None and (index := await loader.load()) is None:
            return None
        try:
            return await by_index(index)
        except ObjectChanged:
            index = None
        except ShardError:
            newer = await loader.load()
            if newer is None:
                return None
            if newer.matches(index):
                raise
            index = newer
    return await whole()


# ---- steps of a read by index


def confirm(loader: IndexLoader, index: RemoteIndex, ranges: Sequence[Any]) -> None:
    """Raise `ObjectChanged` if nothing will show whether a cached index is stale, because no range is requested."""
    if not ranges and not index.is_confirmed:
        raise ObjectChanged(loader.key)


def minimum_nbytes(loader: IndexLoader, index: RemoteIndex, end: int) -> int:
    """Return the minimum size of an object of unknown size, for a request that proves it; 0 if nothing has to be proved.

    end: that of the last requested inner chunk. The result is the end of all entries that must be checked, and of the index
    behind them.
    """
    if index.nbytes is not None:
        return 0
    if loader.must_be_sound and not index.is_sound:
        return reach(loader.chain, index.entries)
    return end + loader.nbytes if _leaves_room(loader) else 0


def with_proof(ranges: Sequence[tuple[int, int]], end: int) -> list[tuple[int, int, int]]:
    """Add to merged, ascending ranges the bytes that prove that the object has at least `end` bytes; 0: nothing has to be proved.

    Returns (offset, nbytes, n_more): each range, and the bytes to request behind it. The last range is longer if that is little
    more; else one more byte is requested, as a range with nbytes 0.
    """
    asked = [(offset, nbytes, 0) for offset, nbytes in ranges]
    if not ranges:
        return asked
    offset, nbytes = ranges[-1]
    n_more = max(0, end - offset - nbytes)
    if n_more <= PROOF_NBYTES:
        return [*asked[:-1], (offset, nbytes, n_more)]
    return [*asked, (end - 1, 0, 1)]


def checked_data(
    loader: IndexLoader,
    index: RemoteIndex,
    positions: Callable[[], np.ndarray[Any, Any]],
    offset: int,
    nbytes: int,
    answer: Answer | None,
) -> Any:
    """Return the bytes of an answer to a request for a range; raise if it is shorter or longer than the range.

    positions: returns those of the requested inner chunks, for the error. answer: None if the object is gone, or ends before
    `offset`.
    """
    actual = 0 if answer is None else len(answer.data)
    if actual > nbytes:
        raise ShardFormatError(
            f"shard {loader.key!r}: expected {nbytes} bytes at offset {offset}, got {actual} bytes from the store",
            shard=loader.key,
            offset=offset,
            expected=nbytes,
            actual=actual,
        )
    if answer is None or actual < nbytes:
        error = _too_short(loader, index, positions(), offset, nbytes, actual)
        raise with_key(error, loader.chain, loader.key)
    return answer.data


def _leaves_room(loader: IndexLoader) -> bool:
    """Return True if an index must follow the last inner chunk."""
    return not loader.chain.index_at_start and not loader.options.allow_in_index


def _too_short(
    loader: IndexLoader,
    index: RemoteIndex,
    positions: np.ndarray[Any, Any],
    offset: int,
    nbytes: int,
    actual: int,
) -> ShardFormatError:
    """Return the error for an object without the last bytes of a range; it names the first entry that needs more."""
    end = offset + actual
    doubtful = np.arange(len(index.entries)) if loader.must_be_sound else np.sort(positions)
    entries = index.entries[doubtful]
    last = max(0, end - (loader.nbytes if _leaves_room(loader) else 0))
    beyond = (entries[:, 0] != ABSENT) & (entries.sum(axis=1, dtype=np.uint64) > last)
    if not beyond.any():
        return ShardFormatError(
            f"expected {nbytes} bytes at offset {offset}, got {actual} bytes from the store",
            offset=offset,
            expected=nbytes,
            actual=actual,
        )
    which = int(beyond.argmax())
    first, size = (int(number) for number in entries[which])
    what = "the store has none" if first + size > end else "the index is there; the store has no more"
    return ShardFormatError(
        f"index entry claims {size} bytes at offset {first}, but {what} from {end} on",
        entry=int(doubtful[which]),
        offset=first,
        nbytes=size,
        limit=end,
    )


# ---- stores that do not identify states


class WriterWatch:
    """Detects writers of this process between two moments of a read, in stores without entity tags, by names of the lock table.

    Locks that the caller holds itself are ignored.
    """

    def __init__(self, names: Sequence[str]) -> None:
        table = self._counted_by = locks.table()
        self._names = names
        self._before = {name: None if table.holds(name) else table.calm(name) for name in names}

    @property
    def is_quiet(self) -> bool:
        """True if no other caller held a lock when the watch began."""
        table = self._table()
        return all(n is not None or table.holds(name) for name, n in self._before.items())

    def _table(self) -> locks.LockTable:
        """Return the table of this process. That of a forked child counts from 0."""
        table = locks.table()
        if table is not self._counted_by:
            self._counted_by, self._before = table, dict.fromkeys(self._names, 0)
        return table

    def has_changed(self) -> bool:
        """Return True if another caller has taken a lock since the watch began."""
        table = self._table()
        return any(not table.holds(name) and table.calm(name) != n for name, n in self._before.items())

    def begin_again(self) -> None:
        """Begin again; the caller holds all locks and releases them without a change."""
        self._before = {name: self._table().n_taken(name) for name in self._names}


# ---------------------------------------------------------------- a store of requests with a limit of concurrent requests
#
# `LimitedRemote`: limits the concurrent requests to a store, and counts them for `shardcodec.stats`.


class LimitedRemote:
    """A `Remote` that makes at most `n_requests` concurrent requests to another one, with other calls to the same store.

    It belongs to one event loop.
    """

    budget_name = None  # the limit of the store is kept here

    def __init__(self, remote: Remote, n_requests: int) -> None:
        self._remote = remote
        self._most = n_requests
        self._budget: budget.Budget | None = None

    async def get(self, key: str) -> Answer | None:
        """Return all of an object."""
        return await self._ask(self._remote.get, key)

    async def get_range(self, key: str, start: int, end: int, state: Any = None) -> Answer | None:
        """Return bytes [start, end) of an object; raise `ObjectChanged` if it is not in the state `state`."""
        return await self._ask(self._remote.get_range, key, start, end, state)

    async def get_suffix(self, key: str, nbytes: int) -> Answer | None:
        """Return the last bytes of an object, or all of a shorter one."""
        return await self._ask(self._remote.get_suffix, key, nbytes)

    async def _ask(self, request: Callable[..., Awaitable[Answer | None]], *arguments: Any) -> Answer | None:
        if self._budget is None:  # here an event loop runs
            self._budget = budget.of_store(self._remote.budget_name).requests
        async with self._budget.hold(1, self._most):
            answer = await request(*arguments)
        native.load().totals_add(reads=1, bytes_read=0 if answer is None else len(answer.data))
        return answer
