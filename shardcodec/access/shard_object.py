# shard_object.py - the place of one shard, and a shard that is open
# SPDX-License-Identifier: MIT
"""The operations of a store that `shardcodec.Shard` uses.

A `ShardObject` is the place of a shard, which may be missing. An `OpenObject` is one state of it: its index and inner chunks
belong together, also if another writer replaces the object meanwhile.
"""

from __future__ import annotations

import bisect
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import native
from ..options import Options
from ..storage.indexes import IndexCache
from ..storage.store import NO_OBJECT, UNKNOWN, Maker

if TYPE_CHECKING:
    from .._native import Chain

__all__ = [
    "NO_OBJECT",
    "UNKNOWN",
    "NativeShard",
    "OpenObject",
    "ShardObject",
    "content_generation",
    "cut_out",
    "joined",
]

Entries = np.ndarray[Any, np.dtype[np.uint64]]

# zarr's limits: a gap up to this size costs less than another request, and the largest merged range.
MAX_GAP_NBYTES = 1 << 20
MAX_RANGE_NBYTES = 16 << 20


class OpenObject(Protocol):
    """An opened shard: one state of its object, which may be missing."""

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
        """Fetch the encoded bytes of inner chunks.

        Parameters
        ----------
        positions : ndarray of uint64, shape (n,)
        places : ndarray of uint64, shape (n, 2)
            Filled with offset and size of each inner chunk in the returned buffer; both 2^64-1 for an absent one.
        max_nbytes : int
            Fetch the first inner chunks that fit into this size, but at least one.

        Returns
        -------
        tuple
            The buffer, and the number of inner chunks that were fetched.
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

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> list[Any]:
        """Return several ranges (offset, nbytes) as buffers; near ranges share a request."""

    def confirm(self) -> None:
        """Raise `ShardFormatError` unless all results are of one state, the present one when the shard was opened."""

    def close(self) -> None:
        """Close it."""


class ShardObject(Protocol):
    """The place of a shard: an object that may be missing.

    Attributes
    ----------
    key : str
        Its name in errors.
    path : str or None
        The file of the object, if the engine writes it itself.
    """

    key: str
    path: str | None

    @property
    def identity(self) -> str:
        """Name of the object for locks, equal for all places of this object in the process."""

    @property
    def realm(self) -> Hashable:
        """Objects of one realm are replaced together by `update_all`; None if this one cannot."""

    @property
    def is_link(self) -> bool:
        """True if a symbolic link leads to the object."""

    @property
    def staging(self) -> str | None:
        """Folder for temporary files beside the object."""

    @property
    def is_near(self) -> bool:
        """True if the engine opens the object itself, without requests."""

    @property
    def is_prompt(self) -> bool:
        """True if a small read takes no network round trip, so it may run on an event loop."""

    def open(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        """Open the present state; `cache` may have its index."""

    def open_whole(self, chain: Chain, options: Options, cache: IndexCache | None = None) -> OpenObject:
        """Open the present state for a read of the whole object, with one request."""

    def update(self, maker: Maker, options: Options) -> bytes | None:
        """Replace the object by one that is made from it; return its new state, None if the maker knows it."""

    def update_all(self, targets: Sequence[Any], maker: Maker, options: Options) -> list[bytes | None]:
        """Replace objects of this realm, all or none; return their new states."""


class NativeShard:
    """A shard that the engine opens: a file, or bytes in memory."""

    def __init__(self, chain: Chain, source: Any, options: Options, cache: IndexCache | None = None) -> None:
        self._chain = chain
        self._allow_in_index = options.allow_in_index
        self._io_rules = options.io_rules
        self._source = source
        self._shard = native.load().OpenShard(chain, source, None if cache is None else cache.native)

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
        return bytes(self._shard.version) or content_generation(self._source)

    def check(self) -> None:
        self._shard.check(allow_in_index=self._allow_in_index)

    def entries(self, *, check: bool) -> Entries:
        out = np.empty((self._chain.n_chunks, 2), dtype=np.uint64)
        self._shard.entries(out, check=check, allow_in_index=self._allow_in_index)
        return out

    def entry(self, position: int) -> tuple[int, int] | None:
        return self._shard.entry(position, allow_in_index=self._allow_in_index)  # type: ignore[no-any-return]

    def fetch(self, positions: np.ndarray[Any, Any], places: Entries, max_nbytes: int) -> tuple[Any, int]:
        return self._shard.fetch(  # type: ignore[no-any-return]
            positions,
            places,
            max_nbytes=max_nbytes,
            allow_in_index=self._allow_in_index,
            **self._io_rules,
        )

    def present(self, first: int, end: int) -> bytes:
        return self._shard.present(first, end)  # type: ignore[no-any-return]

    def range(self, offset: int, nbytes: int) -> bytes:
        return bytes(self._shard.range(offset, nbytes))

    def ranges(self, wanted: Sequence[tuple[int, int]]) -> list[Any]:
        return [self.range(offset, nbytes) for offset, nbytes in wanted]

    def confirm(self) -> None:
        """Do nothing: an open file or buffer is one state."""

    def close(self) -> None:
        self._shard.close()


def content_generation(data: Any) -> bytes:
    """Return the name of the state of an object in memory: a hash of its bytes."""
    import hashlib  # here, because it loads OpenSSL

    return NO_OBJECT if data is None else hashlib.blake2b(data, digest_size=20).digest()


def joined(entries: Any) -> list[tuple[int, int]]:
    """Return ascending ranges that cover inner chunks; near ones are merged. Each inner chunk lies in the last range that begins before it.

    `entries` are pairs (offset, nbytes), in an array or any other collection.
    """
    if isinstance(entries, np.ndarray):
        entries = entries.tolist()
    ranges: list[tuple[int, int]] = []
    for offset, nbytes in sorted(entries):
        if ranges:
            first, size = ranges[-1]
            end = max(first + size, offset + nbytes)
            near = offset - (first + size) <= MAX_GAP_NBYTES and end - first <= MAX_RANGE_NBYTES
            if near or end == first + size:
                ranges[-1] = first, end - first
                continue
        ranges.append((offset, nbytes))
    return ranges


def cut_out(
    wanted: Iterable[tuple[int, int]], ranges: Sequence[tuple[int, int]], data: Sequence[Any]
) -> list[Any]:
    """Return the bytes of each wanted range (offset, nbytes).

    `ranges` are those of `joined` that cover all wanted ranges with bytes, and `data` has their bytes.
    """
    firsts = [offset for offset, _ in ranges]
    found = []
    for offset, nbytes in wanted:
        which = bisect.bisect_right(firsts, offset) - 1
        start = offset - firsts[which] if nbytes else 0
        found.append(data[which][start : start + nbytes] if nbytes else b"")
    return found
