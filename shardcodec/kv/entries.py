# entries.py - read, write and buffer the entries of one shard by position
# SPDX-License-Identifier: MIT
"""`Entries`: the key-value store without keys.

All bytes that one call reads belong to one state of the object. Indexes come from the cache of the process. The cache
compares each index with its file, or binds requests to the state of the object (`storage.indexes`). A read
that fails is repeated with a fresh index if a writer may have changed the object meanwhile (`storage.retry.retry`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from .. import native
from ..access.buffer import flush_buffered, has_buffered
from ..access.inner_chunks import coordinates
from ..access.opened_shard import OpenedShard, read_opened
from ..access.placement import ABSENT, Gone
from ..access.read import INLINE_NBYTES, with_key
from ..access.shard_change import Change, StoredShard, change
from ..access.shard_object import ShardObject
from ..access.write import NOTHING
from ..compat import options_of_zarr
from ..errors import ConflictError, ShardError
from ..option_sources import current_options
from ..options import Options, active
from ..storage import absent, indexes, process_locks
from ..storage.retry import Patience, retry
from .base_object import NestedObject, Renew
from .keys import (
    FAILED,
    NO_VALUE,
    ByteRange,
    ConditionFailed,
    ReadResult,
    Stamp,
    TooLarge,
    is_known,
    is_there,
    result_of,
)
from .spec import Layout

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Entries", "WriteBuffer"]

# One flag for each of some positions: True if the entry exists.
Flags = np.ndarray[Any, np.dtype[np.bool_]]

T = TypeVar("T")

# Bytes of values that one call fetches.
FETCH_NBYTES = 64 << 20
# Files that an index cache keeps open: to check that a path still leads to an open file is cheaper than to open it.
OPEN_FILES = 32
ABSENT_OFFSET = int(ABSENT)


class Entries:
    """The entries of one shard. cache_nbytes: limit of the index cache; None stands for the option ``index_cache``."""

    def __init__(self, target: ShardObject, layout: Layout, cache_nbytes: int | None) -> None:
        self.target = target
        self.layout = layout
        self.chain: Chain = layout.chain()
        self._cache_nbytes = cache_nbytes
        self._outermost = target
        while isinstance(self._outermost, NestedObject):
            self._outermost = self._outermost.outer.target
        self._is_prompt = target.is_prompt and not isinstance(target, NestedObject)
        self._path = None if target.path is None else os.fsencode(target.path)
        self._read = native.load().read_encoded
        # memoised for `value`: options of blocks and of zarr, index cache, allow_in_index; recomputed when the options change
        self._known: tuple[Any, Any, Any, bool] = (None, None, None, False)

    @property
    def key(self) -> str:
        """Name of the shard in errors."""
        return self.target.key

    @property
    def n(self) -> int:
        """Number of entries in a full shard."""
        return int(self.chain.n_chunks)

    @property
    def can_read_inline(self) -> bool:
        """True if a value can be read on the event loop.

        This needs a shard without network requests, without buffered writes, outside of other shards, and with a
        small index.
        """
        return (
            self._is_prompt
            and not has_buffered(self.target)
            and int(self.chain.index_nbytes) <= INLINE_NBYTES
        )

    def options(self) -> Options:
        """Return the options of a write.

        A shard with its index at the start is replaced. An erasure by an append could leave size and time of its file
        unchanged, and the generation would not show the change.
        """
        return current_options(argument={"write_strategy": "replace"} if self.chain.index_at_start else {})

    def cache(self, options: Options) -> indexes.IndexCache | None:
        """Return the index cache; None if the cache is off."""
        nbytes = options.index_cache if self._cache_nbytes is None else self._cache_nbytes
        return indexes.shared(nbytes, max(OPEN_FILES, options.open_files)) if nbytes else None

    def flush(self) -> None:
        """Store the writes that `group_writes` has buffered for the shard; for a nested shard the outer store does this."""
        if not isinstance(self.target, NestedObject):
            flush_buffered(self.target)

    def value(self, position: int) -> bytes | None:
        """Return a value; None if it is absent."""
        patience = None
        if self._path is not None:
            flush_buffered(self.target)
            choices, configured = active(), options_of_zarr()
            known = self._known
            if known[0] is not choices or known[1] != configured:
                options = current_options()
                kept = self.cache(options)
                known = choices, configured, None if kept is None else kept.native, options.allow_in_index
                self._known = known
            _, _, kept_indexes, allow = known
            try:
                found = self._read(self.chain, self._path, position, kept_indexes, allow_in_index=allow)
            except (ShardError, OSError) as error:
                named = with_key(error, self.chain, self.key) if isinstance(error, ShardError) else error
                patience = Patience.after(named, self.target.path)
            else:
                if found is not None or self._is_prompt or not absent.may_lack(self.target.path):
                    return found  # type: ignore[no-any-return]
        return self.look(lambda shard: self.value_in(shard, position), patience=patience)

    def read(
        self,
        position: int,
        byte_range: ByteRange | None = None,
        if_not_equal: bytes | None = None,
        most: int | None = None,
    ) -> ReadResult:
        """Read a value, or a range of it.

        Raises `TooLarge` before the value is read if this takes more than `most` bytes (`nbytes_to_read`; the index does
        not count); None means no limit.
        """

        def work(shard: OpenedShard) -> ReadResult:
            if most is not None and self.nbytes_to_read(shard, position, byte_range) > most:
                raise TooLarge
            return self.read_in(shard, position, byte_range, if_not_equal)

        return self.look(work)

    def read_many(
        self,
        positions: np.ndarray[Any, Any],
        ranges: Sequence[ByteRange | None] | None = None,
        if_not_equal: bytes | None = None,
    ) -> list[ReadResult]:
        """Read several values, or ranges of them, all from one state of the shard."""
        whole = ranges is None and if_not_equal is None and self._are_all(positions)
        return self.look(lambda shard: self.read_many_in(shard, positions, ranges, if_not_equal), whole=whole)

    def _are_all(self, positions: np.ndarray[Any, Any]) -> bool:
        return len(positions) >= self.n and len(np.unique(positions)) == self.n

    def exists(self, position: int) -> bool:
        """Return True if an entry exists, also if it is damaged."""
        return self.look(lambda shard: is_there(shard, position))

    def present(self, first: int, end: int) -> Flags:
        """Return one flag for each of the positions [first, end)."""
        return self.look(lambda shard: self.present_in(shard, first, end))

    def look(
        self, work: Callable[[OpenedShard], T], *, whole: bool = False, patience: Patience | None = None
    ) -> T:
        """Call `work` with the opened shard in its present state; repeat it if a writer changes the shard meanwhile.

        whole: `work` reads all values, so that the object is fetched with one request. patience: that of an earlier attempt.
        """
        self.flush()
        path = self._outermost.path

        def attempt() -> T:
            try:
                return read_opened(self._open(whole=whole), work)
            except ShardError as error:
                if isinstance(error, ConflictError):
                    raise
                if path is not None:
                    indexes.drop([path])
                raise with_key(error, self.chain, self.key) from None

        try:
            return retry(attempt, path, patience=patience)
        except ShardError as error:
            if self.target.is_near or not getattr(error, "changed", False):
                raise
        # no writer of this process can replace the object during the last attempt
        with process_locks.table().hold([self._outermost.identity]):
            return attempt()

    def _open(self, *, whole: bool = False) -> OpenedShard:
        options = current_options()
        open_shard = self.target.open_whole if whole else self.target.open
        return open_shard(self.chain, options, self.cache(options))

    def open_entry(self, position: int) -> tuple[OpenedShard, tuple[int, int] | None]:
        """Open the shard; return it with offset and size of an entry, None if the entry is absent."""
        self.flush()
        try:
            shard = self._open()
            try:
                return shard, None if shard.missing else shard.entry(position)
            except BaseException:
                shard.close()
                raise
        except ShardError as error:
            raise with_key(error, self.chain, self.key) from None

    def read_in(
        self, shard: OpenedShard, position: int, byte_range: ByteRange | None, if_not_equal: bytes | None
    ) -> ReadResult:
        """Read a value of an opened shard; see `read`."""
        stamp = Stamp(shard.generation, time.time())
        if is_known(stamp.generation, if_not_equal):
            return ReadResult("unspecified", b"", stamp)
        return result_of(self.value_in(shard, position, byte_range), stamp)

    def read_many_in(
        self,
        shard: OpenedShard,
        positions: np.ndarray[Any, Any],
        ranges: Sequence[ByteRange | None] | None,
        if_not_equal: bytes | None,
    ) -> list[ReadResult]:
        """Read values of an opened shard; see `read_many`."""
        stamp = Stamp(shard.generation, time.time())
        if is_known(stamp.generation, if_not_equal):
            return [ReadResult("unspecified", b"", stamp)] * len(positions)
        return [result_of(value, stamp) for value in self.values_in(shard, positions, ranges)]

    def value_in(
        self, shard: OpenedShard, position: int, byte_range: ByteRange | None = None
    ) -> bytes | None:
        """Return a value of an opened shard, or a range of it; None if it is absent. ValueError: the value is shorter than the range."""
        entry = None if shard.missing else shard.entry(position)
        if entry is None:
            return None
        offset, nbytes = entry if byte_range is None else self._range_in(position, entry, byte_range)
        return bytes(shard.ranges([(offset, nbytes)])[0]) if nbytes else b""

    def nbytes_to_read(self, shard: OpenedShard, position: int, byte_range: ByteRange | None) -> int:
        """Return the number of bytes that a read of a value must look at.

        For an object in memory this is the whole object, because its generation is computed from all bytes.
        """
        if self._path is None:
            return 0 if shard.missing else shard.nbytes
        entry = None if shard.missing else shard.entry(position)
        if entry is None:
            return 0
        return entry[1] if byte_range is None else self._range_in(position, entry, byte_range)[1]

    def values_in(
        self,
        shard: OpenedShard,
        positions: np.ndarray[Any, Any],
        ranges: Sequence[ByteRange | None] | None = None,
    ) -> list[bytes | None]:
        """Return values, or ranges of them; None for absent ones. Ranges that are close are read together."""
        if ranges is not None:
            requests = [
                (p, byte_range or (0, None)) for p, byte_range in zip(positions.tolist(), ranges, strict=True)
            ]
            return self._parts_in(shard, requests)
        values: list[bytes | None] = []
        if shard.missing:
            return [None] * len(positions)
        places = np.full((len(positions), 2), ABSENT, dtype=np.uint64)
        while len(values) < len(positions):
            done = len(values)
            data, n = shard.fetch(positions[done:], places[done:], FETCH_NBYTES)
            view = memoryview(data).cast("B")
            offsets, sizes = places[done : done + n].T.tolist()
            values += [
                None if offset == ABSENT_OFFSET else bytes(view[offset : offset + nbytes])
                for offset, nbytes in zip(offsets, sizes, strict=True)
            ]
        return values

    def _parts_in(self, shard: OpenedShard, requests: Sequence[tuple[int, ByteRange]]) -> list[bytes | None]:
        """Return ranges of values; None for absent ones. Ranges that are close are requested together."""
        if shard.missing:
            return [None] * len(requests)
        entries = [shard.entry(position) for position, _ in requests]
        places = [
            None if entry is None else self._range_in(position, entry, byte_range)
            for entry, (position, byte_range) in zip(entries, requests, strict=True)
        ]
        data = iter(shard.ranges([place for place in places if place is not None]))
        return [None if place is None else bytes(next(data)) for place in places]

    def cut(self, position: int, value: bytes, byte_range: ByteRange | None) -> bytes:
        """Return a range of a buffered value. ValueError: the value is shorter than the range."""
        if byte_range is None:
            return value
        first, nbytes = self._range_in(position, (0, len(value)), byte_range)
        return value[first : first + nbytes]

    def _range_in(self, position: int, entry: tuple[int, int], byte_range: ByteRange) -> tuple[int, int]:
        try:
            return range_in(*entry, byte_range)
        except ValueError as error:
            at = coordinates(position, self.layout.grid_shape)
            raise ValueError(f"{error}: entry {at} of shard {self.key!r}") from None

    def present_in(self, shard: OpenedShard, first: int, end: int) -> Flags:
        """Return one flag for each of the positions [first, end) of an opened shard."""
        if shard.missing:
            return np.zeros(end - first, np.bool_)
        return np.frombuffer(shard.present(first, end), np.bool_)

    def write(self, position: int, value: bytes | None, condition: bytes | None = None) -> Stamp:
        """Store a value, or delete the entry if it is None, if the condition holds; see `keys.condition_of`."""

        def check(stored: StoredShard) -> None:
            if condition == NO_VALUE:
                if is_there(stored.shard, position):
                    raise ConditionFailed
            elif stored.generation != condition:
                raise ConditionFailed

        pending = WriteBuffer.of(position, value)
        try:
            generation = self.store(pending, None if condition is None else check)
            return Stamp(generation, time.time())
        except ConditionFailed:
            return Stamp(FAILED, time.time())

    def remove(self, position: int) -> bool:
        """Delete an entry; return True if it existed."""
        existed: list[bool] = []

        def check(stored: StoredShard) -> None:
            existed[:] = [is_there(stored.shard, position)]

        self.store(WriteBuffer.of(position, None), check)
        return existed[-1]

    def store(self, pending: WriteBuffer, check: Callable[[StoredShard], None] | None = None) -> bytes:
        """Store buffered writes in one atomic write; return the generation of the shard after it.

        check: called with the stored shard while its lock is held; if it raises, the shard is unchanged.
        """
        self.flush()
        try:
            blind = check is None and pending.covers(self.n)
            decide = partial(self.decide, pending, check)
            return change(self.target, self.chain, decide, self.options(), blind=blind)
        except NothingToWrite as same:
            return same.generation

    def exchange(self, positions: Sequence[int], renew: Renew) -> bytes:
        """Replace values by new ones made from them, in one atomic write; return the generation of the shard after it.

        positions: ascending. renew: takes a position, its value (None if absent) and the generation of the shard; returns the
        new value. It may be called several times; if it raises, the shard is unchanged.
        """

        def decide(stored: StoredShard) -> Change:
            chunks: dict[int, bytes | None] = {}
            for position in positions:
                try:
                    old = self.value_in(stored.shard, position)
                except ShardError as error:
                    raise with_key(error, self.chain, self.key) from None
                new = renew(position, old, stored.generation)
                if new is not None or old is not None:
                    chunks[position] = new
            return Change.of(chunks, self.layout.grid_shape, "lexicographic")

        self.flush()
        return change(self.target, self.chain, decide, self.options())

    def decide(
        self,
        pending: WriteBuffer,
        check: Callable[[StoredShard], None] | None,
        stored: StoredShard,
        *,
        keep: bool = False,
    ) -> Change:
        """Return the change that stores buffered writes.

        Raises `NothingToWrite` if there is nothing to write; with `keep` the old shard is stored again.
        """
        if check is not None:
            check(stored)
        if pending.covers(self.n):
            return Change(pending.values(), complete=True)
        change = Change(pending.values(), pending.gone(lambda: self.present_in(stored.shard, 0, self.n)))
        if not change.chunks and not len(change.gone) and not keep:
            raise NothingToWrite(stored.generation)
        return change


class WriteBuffer:
    """Buffered writes to the entries of one shard: values by position, and deleted ranges of positions.

    A later write overrides an earlier one.
    """

    def __init__(self) -> None:
        self._writes: dict[int, bytes | None] = {}
        # disjoint and ascending; a position in `_writes` was written after its range was cleared
        self._cleared: list[tuple[int, int]] = []

    @classmethod
    def of(cls, position: int, value: bytes | None) -> WriteBuffer:
        """Return a buffer with one write."""
        pending = cls()
        pending.write(position, value)
        return pending

    def __bool__(self) -> bool:
        return bool(self._writes or self._cleared)

    def write(self, position: int, value: bytes | None) -> None:
        """Buffer a value for an entry; None deletes the entry."""
        self._writes[position] = value

    def add(self, later: WriteBuffer) -> None:
        """Buffer the writes of another buffer, which override those of this one."""
        for first, end in later._cleared:
            self.clear(first, end)
        self._writes.update(later._writes)

    def clear(self, first: int, end: int) -> None:
        """Buffer the deletion of the entries at [first, end)."""
        if first >= end:
            return
        for position in [p for p in self._writes if first <= p < end]:
            del self._writes[position]
        kept = []
        for low, high in self._cleared:
            if high < first or low > end:
                kept.append((low, high))
            else:
                first, end = min(first, low), max(end, high)
        self._cleared = sorted([*kept, (first, end)])

    def find(self, position: int) -> tuple[bool, bytes | None]:
        """Return (True if a write to the entry is buffered, its value or None for a deletion)."""
        if position in self._writes:
            return True, self._writes[position]
        return any(low <= position < high for low, high in self._cleared), None

    def covers(self, n: int) -> bool:
        """Return True if every one of n entries is overwritten or deleted, so that the stored shard is not needed."""
        cleared = sum(high - low for low, high in self._cleared)
        beside = (
            sum(not any(low <= p < high for low, high in self._cleared) for p in self._writes)
            if self._cleared
            else len(self._writes)
        )
        return cleared + beside == n

    def values(self) -> dict[int, bytes]:
        """Return the buffered values by position, in ascending order."""
        return {p: value for p, value in sorted(self._writes.items()) if value is not None}

    def gone(self, exist: Callable[[], Flags]) -> Gone:
        """Return the positions of existing entries that are deleted, in ascending order.

        exist: returns one flag for each entry; called only if a deletion is buffered.
        """
        if not self._cleared and None not in self._writes.values():
            return NOTHING
        before = exist()
        return np.flatnonzero(before & ~self.over(before))

    def over(self, exist: Flags) -> Flags:
        """Return the flags of all entries after the buffered writes; `exist` has those before."""
        exist = exist.copy()
        for low, high in self._cleared:
            exist[low:high] = False
        positions, written = self._written()
        exist[positions] = written
        return exist

    def _written(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the written positions and flags: True for a value, False for a deletion."""
        n = len(self._writes)
        values = (value is not None for value in self._writes.values())
        return np.fromiter(self._writes, np.intp, n), np.fromiter(values, np.bool_, n)


class NothingToWrite(Exception):
    """There is nothing to write, because the entries to delete do not exist."""

    def __init__(self, generation: bytes) -> None:
        super().__init__()
        self.generation = generation


def range_in(offset: int, nbytes: int, byte_range: ByteRange) -> tuple[int, int]:
    """Return offset and size of a range of a value. ValueError: the value is shorter than the range (KV-23)."""
    first, end = byte_range
    start = nbytes + first if first < 0 else first
    stop = nbytes if end is None else end
    if not 0 <= start <= stop <= nbytes:
        shown = "?" if end is None else end
        raise ValueError(f"Requested byte range [{first}, {shown}) is not valid for value of size {nbytes}")
    return offset + start, stop - start
