# remote_shard.py - opened shards in stores of requests
# SPDX-License-Identifier: MIT
"""`RemoteShard` and `FetchedShard`: an `OpenObject` that reads by requests, and one that came with one answer.

An opened shard shows one state of its object. So it does not start again when the object changes, as `consistent_read`
does; it raises, and its caller opens the object again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import native
from ..compat import sync
from ..errors import ShardFormatError
from ..options import Options
from ..storage import locks
from ..storage.indexes import RemoteIndex
from ..storage.store import Answer, Changed, n_concurrent, state_bytes
from ..storage.waiting import all_of
from .consistent_read import WriterWatch, checked_data, minimum_nbytes
from .limited_remote import LimitedRemote
from .placement import ABSENT
from .remote_index import IndexLoader, check_entries, checked_entries
from .shard_object import NO_OBJECT, Entries, NativeShard, cut_out, joined

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["FetchedShard", "RemoteShard", "generation_of_answer"]


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
    size : callable
        Returns the size of the object in bytes, if answers do not report it.
    lock : str
        Name of the object in the lock table.
    """

    def __init__(self, loader: IndexLoader, size: Callable[[], int], lock: str) -> None:
        if locks.table().holds(lock):
            loader = replace(loader, name=None)  # the caller is about to change the object
        self._loader = loader
        self._chain = loader.chain
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
        return LimitedRemote(self._loader.remote, n_concurrent())

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
        ranges = joined(wanted[sizes > 0])
        data = self._get_ranges(ranges, where[:n])
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
        whole = joined([part for part in wanted if part[1]])
        return cut_out(wanted, whole, self._get_ranges(whole, ()))

    def _get_ranges(self, ranges: Sequence[tuple[int, int]], positions: Any) -> list[Any]:
        """Return ranges of inner chunks; the first time, prove that the object is as long as all entries require."""
        loader, index = self._loader, self._index
        must_prove = bool(ranges) and loader.must_be_sound and not index.is_sound
        end = minimum_nbytes(loader, index, 0) if must_prove else 0
        if not end:
            return self._get_bytes(ranges, positions)
        *data, _ = self._get_bytes([*ranges, (end - 1, 1)], positions)
        self._index = replace(self._index, is_sound=True)
        return data

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
