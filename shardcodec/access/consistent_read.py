# consistent_read.py - parts of a remote shard, read in one state
# SPDX-License-Identifier: MIT
"""Read an index and inner chunks that belong to one state of an object, although a writer may replace it in between.

The rule:

1. Take the index from the cache, or fetch it.
2. Bind the requests for ranges to the state of the index, if the store identifies states (entity tags).
3. If the object has changed, fetch its index again and repeat. Without entity tags, bytes that do not fit the index
   show a change. If they do not fit and the index is still the same, the shard is damaged.
4. After `MAX_TRIES` attempts fetch the whole object with one request, which always returns one state.

Requests to a store do not always show a change: in stores without entity tags, a replaced object may fit the old index.
`WriterWatch` detects the writers of this process; writers in other processes cannot be seen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ..errors import ShardError, ShardFormatError
from ..storage import process_locks
from ..storage.indexes import RemoteIndex
from ..storage.store import Answer, ObjectChanged
from .placement import ABSENT
from .read import with_key
from .remote_index import IndexLoader, reach

__all__ = ["WriterWatch", "checked_data", "confirm", "consistent_read", "minimum_nbytes", "with_proof"]

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
    for attempt in range(MAX_TRIES):
        if index is None and (index := await loader.load()) is None:
            return None
        try:
            return await by_index(index)
        except ObjectChanged:
            index = None
        except ShardError as error:
            newer = await loader.load()
            if newer is None:
                return None
            # an object that was erased for a moment may have the same state again, and is not damaged
            if newer.matches(index) and (attempt or not getattr(error, "is_gone", False)):
                raise
            index = newer
    return await whole()


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
        short = _too_short(loader, index, positions(), offset, nbytes, actual)
        error: Any = with_key(short, loader.chain, loader.key)
        error.is_gone = answer is None
        raise error
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


class WriterWatch:
    """Detects writers of this process between two moments of a read, in stores without entity tags, by names of the lock table.

    Locks that the caller holds itself are ignored.
    """

    def __init__(self, names: Sequence[str]) -> None:
        table = self._counted_by = process_locks.table()
        self._names = names
        self._before = {name: None if table.holds(name) else table.calm(name) for name in names}

    @property
    def is_quiet(self) -> bool:
        """True if no other caller held a lock when the watch began."""
        table = self._table()
        return all(n is not None or table.holds(name) for name, n in self._before.items())

    def _table(self) -> process_locks.LockTable:
        """Return the table of this process. That of a forked child counts from 0."""
        table = process_locks.table()
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
