# read.py - read chunks of many shards with two calls to the store
# SPDX-License-Identifier: MIT
"""Read chunks of shards in stores that answer requests.

The first call requests the indexes of all shards, the second call all ranges; close ranges are joined. A shard whose
chunks are all requested is fetched whole with the first call. (`local_values` reads files and objects in memory.)

If the store identifies states of objects (entity tags), ranges are requested from the state whose index was read. In
other stores a writer may replace a shard between the two calls. If a writer of this process held the lock of a shard
meanwhile, all shards are read again under their locks. Writers in other processes cannot be seen. If the bytes show
that a shard has changed, the shard is read again; if its index is still the same, the shard is damaged.
"""

from __future__ import annotations

import bisect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .. import native
from ..access.index_check import check_index, must_be_sound, reach
from ..access.placement import ABSENT
from ..access.read import ATTEMPTS, index_too_short
from ..access.shard_object import NativeShard, joined
from ..compat import (
    ObjectStore,
    RangeByteRequest,
    Store,
    StorePath,
    SuffixByteRequest,
)
from ..errors import ShardError, ShardFormatError
from ..options import Options
from ..storage import locks, remote_indexes
from ..storage.remote_indexes import RemoteIndex
from ..storage.requests import Answer
from ..zarr_plugin.stores import index_names
from .byte_ranges import cut
from .nested_shard import check_entries
from .values import Bad, Wanted, about, explained, read_opened

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Ask", "at_a_time", "read", "read_sizes"]

# Upper limit of ranges in an object of unknown size.
MAX_OBJECT_NBYTES = 2**63 - 1

# Number of shards whose indexes are requested at a time while a store is listed, and memory for these indexes in bytes.
LIST_SHARDS = 512
LIST_NBYTES = 32 << 20

Entries = np.ndarray[Any, np.dtype[np.uint64]]


Ask = Callable[[Sequence[tuple[str, Any, Any]]], Awaitable[list[Answer | None]]]


class _Span(NamedTuple):
    """Range of a shard that holds a requested chunk or a part of it."""

    wanted: Wanted
    offset: int
    nbytes: int


def _spans(
    chain: Chain, entries: Entries, nbytes: int, wanted: Sequence[Wanted], options: Options
) -> list[_Span]:
    """Return the ranges of the requested chunks in a shard, without absent chunks.

    The entries of these chunks are checked; all entries are checked if the chunks have no checksums.
    """
    try:
        check_index(chain, entries, nbytes, options)
    except ShardError as error:
        raise about(error, wanted) from None
    own = entries[[part.position for part in wanted]]
    try:
        check_entries(chain, own, nbytes, options)
    except ShardError as error:
        which = wanted[error.entry or 0]
        error.entry = which.position
        raise Bad(error, which.key) from None
    found = []
    for part, (offset, size) in zip(wanted, own.tolist(), strict=True):
        if offset != ABSENT:
            start, length = cut(part.request, size)
            found.append(_Span(part, offset + start, length))
    return found


async def read(
    store: Store,
    chain: Chain,
    shards: Mapping[str, Sequence[Wanted]],
    options: Options,
    ask: Ask,
    names: Sequence[str],
    *,
    whole: bool = False,
) -> dict[int, Any]:
    """Read chunks, or parts of them, from a store that answers requests.

    Parameters
    ----------
    store : Store
        The store with the shards.
    chain
        Compiled chain of a shard.
    shards : mapping
        From keys of shards to requests for their chunks.
    options : Options
        Options of the read.
    ask : callable
        Coroutine function that makes one call to the store: from triples of key, request and state to answers. An
        answer is None if the object does not exist in that state.
    names : sequence of str
        Names of the objects in the lock table.
    whole : bool
        Fetch every shard whole. Nested shards need this, because nothing else keeps index and chunks in one state.

    Returns
    -------
    dict
        From `Wanted.number` to buffers, without absent chunks.

    Raises
    ------
    ShardFormatError, ChecksumError
        An index, or the entry of a requested chunk, is wrong.
    """
    if type(store) is ObjectStore:
        return await _read_remote(store, chain, shards, options, ask, whole)
    table, before = locks.table(), [locks.table().calm(name) for name in names]
    if None not in before:
        try:
            found = await _read_remote(store, chain, shards, options, ask, whole)
        except ShardError:
            if before == [table.calm(name) for name in names]:
                raise
        else:
            if before == [table.calm(name) for name in names]:
                return found
    async with table.hold_async(names):
        return await _read_remote(store, chain, shards, options, ask, whole)


async def _read_remote(
    store: Store,
    chain: Chain,
    shards: Mapping[str, Sequence[Wanted]],
    options: Options,
    ask: Ask,
    whole: bool,
) -> dict[int, Any]:
    found: dict[int, Any] = {}
    old: dict[str, RemoteIndex] = {}
    for attempt in range(1, ATTEMPTS + 1):
        # one request for the whole object always returns one state, also if writers replace the object often
        reader = _Round(store, chain, shards, options, ask, old, whole or attempt == ATTEMPTS)
        await reader.run()
        found |= reader.found
        old = reader.again
        if not old:
            break
        shards = {shard: shards[shard] for shard in old}
    return found


def _sliced(spans: Sequence[_Span], ranges: Sequence[tuple[int, int]], data: Sequence[Any]) -> dict[int, Any]:
    firsts = [offset for offset, _ in ranges]
    found: dict[int, Any] = {}
    for part, offset, nbytes in spans:
        if not nbytes:
            found[part.number] = b""
            continue
        which = bisect.bisect_right(firsts, offset) - 1
        start = offset - firsts[which]
        found[part.number] = memoryview(data[which])[start : start + nbytes]
    return found


# ---- one attempt


class _Round:
    """One attempt to read some shards.

    Attributes
    ----------
    found : dict
        From `Wanted.number` to buffers.
    again : dict
        From keys of shards that must be read again to the index of this attempt.
    """

    def __init__(
        self,
        store: Store,
        chain: Chain,
        shards: Mapping[str, Sequence[Wanted]],
        options: Options,
        ask: Ask,
        old: Mapping[str, RemoteIndex],
        whole: bool,
    ) -> None:
        self.found: dict[int, Any] = {}
        self.again: dict[str, RemoteIndex] = {}
        self._whole = whole
        self._chain = chain
        self._shards = shards
        self._options = options
        self._ask = ask
        self._kept: set[str] = set()
        self._old = old
        self._names = dict(
            zip(shards, index_names([StorePath(store, shard) for shard in shards]), strict=True)
        )

    async def run(self) -> None:
        known: dict[str, RemoteIndex] = {}
        if not self._old and not self._whole:
            for shard, name in self._names.items():
                kept = remote_indexes.get(name, self._chain, self._options)
                if kept is not None:
                    known[shard] = kept
                    self._kept.add(shard)
        since = remote_indexes.ticket(self._options)
        asked = [shard for shard in self._shards if shard not in known]
        if asked:
            answers = await self._ask([(shard, self._first(shard), None) for shard in asked])
            for shard, answer in zip(asked, answers, strict=True):
                if answer is None:
                    continue
                if self._is_whole(shard):
                    self._slice_whole(shard, answer)
                    continue
                index = _load_index(self._chain, shard, answer)
                remote_indexes.put(self._names[shard], self._chain, index, self._options, since)
                known[shard] = index
        await self._fetch(known)

    def _is_whole(self, shard: str) -> bool:
        """Return True if the shard is fetched whole, because all chunks are requested or `whole` is set."""
        if self._whole:
            return True
        wanted = self._shards[shard]
        whole = {part.position for part in wanted if part.request is None}
        return len(whole) == int(self._chain.n_chunks)

    def _first(self, shard: str) -> Any:
        return None if self._is_whole(shard) else _index_request(self._chain)

    def _slice_whole(self, shard: str, answer: Answer) -> None:
        try:
            self.found.update(
                read_opened(NativeShard(self._chain, answer.data, self._options), self._shards[shard])
            )
        except Bad as bad:
            raise explained(bad.error, self._chain, shard, bad.key) from None
        except ShardError as error:
            raise explained(error, self._chain, shard) from None

    async def _fetch(self, known: Mapping[str, RemoteIndex]) -> None:
        """Request the ranges of all shards."""
        spans: dict[str, list[_Span]] = {}
        ranges: dict[str, list[tuple[int, int]]] = {}
        requests = []
        for shard, index in known.items():
            size = MAX_OBJECT_NBYTES if index.nbytes is None else index.nbytes
            try:
                spans[shard] = _spans(self._chain, index.entries, size, self._shards[shard], self._options)
            except Bad as bad:
                self._repeat(shard, index, explained(bad.error, self._chain, shard, bad.key))
                continue
            parts = [(s.offset, s.nbytes) for s in spans[shard] if s.nbytes]
            if parts and index.nbytes is None and (end := self._minimum_nbytes(shard, index)):
                parts.append((end - 1, 1))  # proves that an object of unknown size is long enough
            if not parts and shard in self._kept and not self._options.immutable:
                self.again[shard] = index  # no request would show that the cached index is stale
                continue
            ranges[shard] = joined(np.array(parts, dtype=np.uint64).reshape(-1, 2))
            requests += [(shard, RangeByteRequest(a, a + b), index.version) for a, b in ranges[shard]]
        answers = iter(await self._ask(requests) if requests else [])
        for shard, parts in ranges.items():
            data = [next(answers) for _ in parts]
            self._take(shard, known[shard], spans[shard], parts, data)

    def _minimum_nbytes(self, shard: str, index: RemoteIndex) -> int:
        """Return the minimum size of a shard according to its index, or 0 if the requested ranges prove it.

        It covers all entries if all must be checked, else the requested chunks and the index behind them.
        """
        if must_be_sound(self._chain, self._options):
            return reach(self._chain, index.entries)
        if self._chain.index_at_start or self._options.allow_in_index:
            return 0
        return self._last(shard, index)[2] + int(self._chain.index_nbytes)

    def _last(self, shard: str, index: RemoteIndex) -> tuple[int, str | None, int]:
        """Return position, key (None if not requested) and end of the last chunk among those that must be checked."""
        keys: dict[int, str | None] = {part.position: part.key for part in self._shards[shard]}
        if must_be_sound(self._chain, self._options):
            keys = dict.fromkeys(range(int(self._chain.n_chunks))) | keys
        entries = index.entries[[*keys]]
        ends = np.where(entries[:, 0] == ABSENT, 0, entries.sum(axis=1, dtype=np.uint64))
        position = [*keys][int(ends.argmax())]
        return position, keys[position], int(ends.max())

    def _take(
        self,
        shard: str,
        index: RemoteIndex,
        spans: Sequence[_Span],
        parts: Sequence[tuple[int, int]],
        data: Sequence[Answer | None],
    ) -> None:
        for (offset, nbytes), answer in zip(parts, data, strict=True):
            actual = 0 if answer is None else len(answer.data)
            if answer is not None and actual == nbytes:
                continue
            end = offset + actual
            which = next((s for s in spans if s.offset < offset + nbytes and s.offset + s.nbytes > end), None)
            key: str | None
            if which is not None:
                position, key = which.wanted.position, which.wanted.key
                text = f"expected {nbytes} bytes at offset {offset}, got {actual} from the store"
            else:
                position, key, last = self._last(shard, index)
                text = (
                    f"the chunk ends at byte {last}: expected at least {self._chain.index_nbytes} bytes behind it for "
                    f"the index, got a shorter object"
                )
            error = ShardFormatError(text, entry=position, offset=offset, expected=nbytes, actual=actual)
            self._repeat(shard, index, explained(error, self._chain, shard, key))
            return
        self.found.update(_sliced(spans, parts, [answer.data for answer in data if answer is not None]))

    def _repeat(self, shard: str, index: RemoteIndex, error: ShardError) -> None:
        """Schedule another attempt for a shard, or raise `error` if its index is the same as in the last attempt."""
        old = self._old.get(shard)
        if old is not None and index.is_that_of(old):
            raise error
        self.again[shard] = index


def _index_request(chain: Chain) -> Any:
    n = int(chain.index_nbytes)
    return RangeByteRequest(0, n) if chain.index_at_start else SuffixByteRequest(n)


def _load_index(chain: Chain, shard: str, answer: Answer) -> RemoteIndex:
    """Return the decoded index after its checksum was verified."""
    n = int(chain.index_nbytes)
    if len(answer.data) < n:  # before memory is allocated for the index that the metadata describe
        raise index_too_short(shard, len(answer.data), n)
    if len(answer.data) > n:
        raise ShardFormatError(
            f"shard {shard!r}: expected an index of {n} bytes, got {len(answer.data)} bytes from the store",
            shard=shard,
            expected=n,
            actual=len(answer.data),
        )
    entries = np.empty((chain.n_chunks, 2), dtype=np.uint64)
    try:
        native.load().load_index(chain, answer.data, entries)
    except ShardError as error:
        raise explained(error, chain, shard) from None
    return RemoteIndex(entries, answer.nbytes, answer.version)


# ---- indexes alone


async def read_sizes(chain: Chain, shards: Sequence[str], options: Options, ask: Ask) -> Entries:
    """Read the sizes of chunks from the indexes of some shards with one call to the store.

    Returns
    -------
    ndarray of uint64, shape (n, n_chunks)
        Sizes of chunks in bytes; 2^64-1 for an absent chunk.

    Raises
    ------
    ShardFormatError, ChecksumError
        An index or one of its entries is wrong.
    """
    sizes = np.full((len(shards), chain.n_chunks), ABSENT, dtype=np.uint64)
    answers = await ask([(shard, _index_request(chain), None) for shard in shards])
    for shard, answer, out in zip(shards, answers, sizes, strict=True):
        if answer is None:
            continue
        index = _load_index(chain, shard, answer)
        size = MAX_OBJECT_NBYTES if index.nbytes is None else index.nbytes
        try:
            check_entries(chain, index.entries, size, options)
        except ShardError as error:
            raise explained(error, chain, shard) from None
        out[:] = index.entries[:, 1]
    return sizes


def at_a_time(chain: Chain) -> int:
    """Return the number of shards whose indexes are in memory at a time."""
    return max(1, min(LIST_SHARDS, LIST_NBYTES // (16 * int(chain.n_chunks))))
