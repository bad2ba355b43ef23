# opened_shard.py - a shard that is open
# SPDX-License-Identifier: MIT
"""An `OpenedShard` is one state of a shard: of a file or of bytes in memory, or of an inner chunk of an opened shard.

Its index and inner chunks belong together, also if another writer replaces the object meanwhile: it does not start again
when the object changes, as `consistent_read` does. It raises, and its caller opens the object again (`read_opened`).
"""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from .. import native
from ..errors import ShardFormatError
from ..options import Options
from ..storage import absent
from ..storage.budget import NEAR
from ..storage.indexes import IndexCache
from ..storage.ranges import coalesced, cut_out
from ..storage.retry import DAMAGE
from ..storage.store import NO_OBJECT, UNKNOWN
from .placement import ABSENT
from .read import index_too_short
from .remote_index import check_entries, checked_entries, decode_index, must_be_sound

if TYPE_CHECKING:
    from .._native import Chain


__all__ = [
    "NO_OBJECT",
    "UNKNOWN",
    "Entries",
    "NativeShard",
    "NestedShard",
    "OpenedShard",
    "Sums",
    "changed_error",
    "content_generation",
    "read_opened",
    "read_runs",
]

Entries = np.ndarray[Any, np.dtype[np.uint64]]
Sums = np.ndarray[Any, np.dtype[np.uint32]]

T = TypeVar("T")

# A nested shard of up to this size behind requests is read whole, because its bytes cost less than another round trip.
WHOLE_NBYTES = 1 << 20


class OpenedShard(Protocol):
    """An opened shard: one state of its object, which may be missing."""

    @property
    def is_remote(self) -> bool:
        """True if each call may be a request."""

    @property
    def missing(self) -> bool:
        """True if the object does not exist."""

    @property
    def nbytes(self) -> int:
        """Size of the object in bytes."""

    def check(self) -> None:
        """Check all entries if nothing else detects a wrong one (`remote_index.must_be_sound`); reads of inner chunks include it."""

    def entries(self, *, check: bool) -> Entries:
        """Return the index; with `check`, raise `ShardFormatError` for a wrong entry."""

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        """Fetch the first inner chunks that fit into a size, but at least one; return a buffer and their number.

        `places`, shape (n, 2), gets offset and size of each in the buffer; both 2^64-1 for an absent one.
        """

    def range(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` bytes of the object from `offset` on."""

    @property
    def generation(self) -> bytes:
        """Name of the state of the object; see `NO_OBJECT` and `UNKNOWN`."""

    def entry(self, position: int) -> tuple[int, int] | None:
        """Return the checked offset and size of an inner chunk; None if it is absent."""

    def present(self, first: int, end: int) -> bytes:
        """Return one byte for each of the positions [first, end): 1 if its inner chunk exists, else 0."""

    def ranges(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        """Return several ranges (offset, nbytes) as buffers; near ranges share a request."""

    def checksums(self, ranges: Entries, max_nbytes: int) -> Sums | None:
        """Return the stored and the computed CRC-32C of ranges that end with it, in at most `max_nbytes` of memory.

        Ascending ranges share reads. None: only `range` can read the object.
        """

    def confirm(self, *, failed: bool = False) -> None:
        """Raise `ShardFormatError` unless all results are of one state, the present one when the shard was opened.

        With `failed`, after an error of a read, also raise it if the object is in another state now: its ``changed`` is
        True then, and the read may succeed with the object opened again (`storage.retry.retry`).
        """

    def close(self) -> None:
        """Close it."""


class NativeShard:
    """A shard that the engine opens: a file, or bytes in memory.

    chain: None for the bytes of an object whose index may be damaged.
    """

    is_remote = False

    def __init__(
        self,
        chain: Chain | None,
        source: Any,
        options: Options | None = None,
        cache: IndexCache | None = None,
    ) -> None:
        self._chain = chain
        if options is not None:
            self._allow_in_index = options.allow_in_index
            self._io_rules = options.io_rules
        self._source = source
        self._shard = native.load().OpenShard(chain, source, None if cache is None else cache.native)
        if self._shard.missing:
            absent.check(source)

    @property
    def missing(self) -> bool:
        return bool(self._shard.missing)

    @property
    def nbytes(self) -> int:
        return int(self._shard.nbytes)

    @property
    def generation(self) -> bytes:
        if self.missing:
            return NO_OBJECT
        return bytes(self._shard.state) or content_generation(self._source)

    def check(self) -> None:
        self._shard.check(allow_in_index=self._allow_in_index)

    def entries(self, *, check: bool) -> Entries:
        assert self._chain is not None
        out = np.empty((self._chain.n_chunks, 2), dtype=np.uint64)
        self._shard.entries(out, check=check, allow_in_index=self._allow_in_index)
        return out

    def entry(self, position: int) -> tuple[int, int] | None:
        return self._shard.entry(position, allow_in_index=self._allow_in_index)  # type: ignore[no-any-return]

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        how = {"max_nbytes": max_nbytes, "allow_in_index": self._allow_in_index, **self._io_rules}
        return self._shard.fetch(positions, places, **how)  # type: ignore[no-any-return]

    def present(self, first: int, end: int) -> bytes:
        return self._shard.present(first, end)  # type: ignore[no-any-return]

    def range(self, offset: int, nbytes: int) -> bytes:
        return bytes(self._shard.range(offset, nbytes))

    def ranges(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        if len(ranges) == 1:
            return [self.range(*ranges[0])]
        merged = coalesced([piece for piece in ranges if piece[1]], NEAR)
        return cut_out(ranges, merged, [memoryview(self.range(*piece)) for piece in merged])

    def checksums(self, ranges: Entries, max_nbytes: int) -> Sums | None:
        sums = np.empty((len(ranges), 2), dtype=np.uint32)
        self._shard.sums(np.ascontiguousarray(ranges), sums, max_nbytes=max_nbytes)
        return sums

    def confirm(self, *, failed: bool = False) -> None:
        """Without `failed` do nothing: an open file or buffer is one state, until a writer updates the file in place."""
        if failed and isinstance(self._source, str):
            now = native.load().OpenShard(None, self._source)
            is_other = now.missing or now.state != self._shard.state
            now.close()
            if is_other:
                raise changed_error()

    def close(self) -> None:
        self._shard.close()


def read_opened(opened: OpenedShard, work: Callable[[OpenedShard], T]) -> T:
    """Call `work` with an opened shard and close it; an error has ``changed`` if the object is in another state now."""
    failed = False
    try:
        return work(opened)
    except DAMAGE as error:
        failed = not getattr(error, "changed", False)
        raise
    finally:
        try:
            opened.confirm(failed=failed)
        finally:
            opened.close()


def changed_error() -> ShardFormatError:
    """Return the error for an object that is in another state than when it was opened."""
    return ShardFormatError("another object has taken its place since it was opened", changed=True)


class NestedShard:
    """A shard that is an inner chunk of an opened shard, and is read through it: only so its index and bytes are of one state.

    chain: None to read bytes only; else `key` and `options` are needed. place: offset and size in the outer shard; None if
    the inner shard is absent. `close` closes the outer shard.
    """

    def __init__(
        self,
        chain: Chain | None,
        outer: OpenedShard,
        place: tuple[int, int] | None,
        key: str = "",
        options: Options | None = None,
    ) -> None:
        self._chain = chain
        self._outer = outer
        self._options = options
        self.missing: bool = place is None
        self.nbytes: int
        self._first, self.nbytes = place or (0, 0)
        self._data: bytes | None = None
        if chain is None or place is None:
            return
        assert options is not None
        n = int(chain.index_nbytes)
        if self.nbytes < n:  # before bytes outside of the shard are read
            raise index_too_short(key, self.nbytes, n)
        if outer.is_remote and self.nbytes <= WHOLE_NBYTES:
            self._data = self.range(0, self.nbytes)
        stored = self.range(0 if chain.index_at_start else self.nbytes - n, n)
        self._entries = decode_index(chain, stored, key)
        if must_be_sound(chain, options):
            check_entries(chain, self._entries, self.nbytes, options)

    @property
    def is_remote(self) -> bool:
        return self._outer.is_remote and self._data is None

    @property
    def generation(self) -> bytes:
        return self._outer.generation

    def check(self) -> None:
        """Do nothing: the index was checked when the shard was opened."""

    def entries(self, *, check: bool) -> Entries:
        if check:
            assert self._chain is not None and self._options is not None
            check_entries(self._chain, self._entries, self.nbytes, self._options)
        return self._entries

    def _checked_entries(self, positions: Any) -> Entries:
        assert self._chain is not None and self._options is not None
        return checked_entries(self._chain, self._entries, positions, self.nbytes, self._options)

    def entry(self, position: int) -> tuple[int, int] | None:
        ((offset, nbytes),) = self._checked_entries([position]).tolist()
        return None if offset == ABSENT else (offset, nbytes)

    def present(self, first: int, end: int) -> bytes:
        return native.load().index_present(self._chain, self._entries, first, end)  # type: ignore[no-any-return]

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        entries = self._checked_entries(positions.astype(np.intp))
        sizes = np.where(entries[:, 0] == ABSENT, 0, entries[:, 1])
        ends = np.cumsum(sizes)
        n = max(1, int(np.searchsorted(ends, max_nbytes, side="right")))
        is_stored = entries[:n, 0] != ABSENT
        places[:n] = entries[:n]
        places[:n, 0][is_stored] = (ends - sizes)[:n][is_stored]
        return b"".join(self.ranges([*map(tuple, entries[:n][is_stored].tolist())])), n

    def range(self, offset: int, nbytes: int) -> Any:
        if self._data is not None:
            return self._data[offset : offset + nbytes]
        return self._outer.range(self._first + offset, nbytes)

    def ranges(self, ranges: Sequence[tuple[int, int]]) -> list[Any]:
        if self._data is not None:
            return [self.range(offset, nbytes) for offset, nbytes in ranges]
        return self._outer.ranges([(self._first + offset, nbytes) for offset, nbytes in ranges])

    def checksums(self, ranges: Entries, max_nbytes: int) -> Sums | None:
        return self._outer.checksums(ranges + np.array([self._first, 0], dtype=np.uint64), max_nbytes)

    def confirm(self, *, failed: bool = False) -> None:
        self._outer.confirm(failed=failed)

    def close(self) -> None:
        self._outer.close()


def content_generation(data: Any) -> bytes:
    """Return the name of the state of an object in memory: a hash of its bytes."""
    import hashlib  # here, because it loads OpenSSL

    return NO_OBJECT if data is None else hashlib.blake2b(data, digest_size=20).digest()


# `read_runs`: unused bytes that are read to save another read, and inner chunks whose ranges are compared at a time.
READ_GAP_NBYTES = 64 << 10
TOGETHER = 4096


def read_runs(
    view: OpenedShard, entries: Entries, positions: Any, block_nbytes: int
) -> Iterator[tuple[int, Any]]:
    """Read inner chunks in the order of their offsets; near ones share a read of at most a block, or of one inner chunk.

    Parameters
    ----------
    view : OpenedShard
    entries : ndarray of uint64, shape (n_chunks, 2)
        Those of `positions` are possible: their ranges lie inside the object.
    positions : array of int
    block_nbytes : int

    Yields
    ------
    position : int
    data : buffer or OSError
        Its bytes, valid until the next one is asked for; the error of a part of the disk that cannot be read.
    """
    where = np.asarray(positions, dtype=np.intp)
    where = where[np.argsort(entries[where, 0], kind="stable")]
    limits = NEAR._replace(
        max_gap_nbytes=READ_GAP_NBYTES, free_gap_nbytes=READ_GAP_NBYTES, max_nbytes=block_nbytes
    )
    for some in range(0, len(where), TOGETHER):
        group = where[some : some + TOGETHER]
        chosen = entries[group].tolist()
        merged = coalesced(map(tuple, chosen), limits)
        i = 0
        for (low, size), following in itertools.zip_longest(merged, merged[1:]):
            j = i
            while j < len(group) and (following is None or chosen[j][0] < following[0]):
                j += 1
            run = try_range(view, low, size)
            if isinstance(run, OSError):
                for k in range(i, j):
                    yield int(group[k]), try_range(view, *chosen[k])
            else:
                with run:  # frees its memory before the next read, even if the caller keeps a chunk
                    for k in range(i, j):
                        offset, nbytes = chosen[k]
                        with run[offset - low : offset - low + nbytes] as chunk:
                            yield int(group[k]), chunk
            i = j


def try_range(view: OpenedShard, offset: int, nbytes: int) -> memoryview | OSError:
    """Return a range of an object, or the error of a part of the disk that cannot be read."""
    try:
        return memoryview(view.range(offset, nbytes))
    except OSError as error:
        if error.errno != errno.EIO:  # others may go away
            raise
        return error
