# listing.py - lazy list of the keys of a shard
# SPDX-License-Identifier: MIT
"""`KeyList`: a lazy sequence of keys.

A million `bytes` objects take 48 MB and 40 ms to create. So the list holds one bit for each entry of the grid, True
if it exists, and creates a key when the caller takes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from .. import native

__all__ = ["KeyList", "flags_of", "no_positions", "positions_among"]

# Positions in one word of native `Positions`.
WORD_BITS = 64

# Number of keys that are compared at a time, and number of keys up to which a repr shows all of them.
COMPARED_KEYS = 4096
SHOWN_KEYS = 8


class KeyList(Sequence[bytes]):
    """An immutable, lazy sequence of the keys of existing entries, in ascending order.

    The list is a snapshot: later writes do not change it. It equals every sequence with the same keys, and a slice of
    it is a `KeyList` again. ``key in keys`` takes constant time. It takes a linear search if the skipped bytes of the
    keys differ, because several listed keys may then be equal.

    Parameters
    ----------
    present
        Positions of existing entries, native `Positions`.
    skip : int
        Number of bytes that are left out at the start of each key.
    ranks : range, optional
        Ranks of the listed entries, in the order of the list; 0 is the first existing entry. Default: all entries.
    """

    __slots__ = ("_present", "_ranks", "_skip", "_width")

    def __init__(self, present: Any, skip: int = 0, ranks: range | None = None) -> None:
        self._present = present
        self._skip = skip
        self._ranks = range(len(present)) if ranks is None else ranks
        self._width = 4 * len(present.grid_shape) - skip

    def __len__(self) -> int:
        return len(self._ranks)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> KeyList: ...
    def __getitem__(self, at: int | slice) -> bytes | KeyList:
        if isinstance(at, slice):
            return KeyList(self._present, self._skip, self._ranks[at])
        try:
            rank = self._ranks[at]
        except IndexError:
            raise IndexError(f"index {at} is out of range for a list of {len(self)} keys") from None
        return self._present.key(self._skip, rank)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[bytes]:
        ranks = self._ranks
        return self._present.keys(self._skip, ranks.start, len(ranks), ranks.step)  # type: ignore[no-any-return]

    def __reversed__(self) -> Iterator[bytes]:
        return iter(self[::-1])

    # ---- searching

    def __contains__(self, key: object) -> bool:
        return self._find(key) is not None

    def index(self, key: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the first index of a key among the indexes [start, stop), as `list.index`.

        Parameters
        ----------
        key : bytes
            The key, without the skipped bytes.
        start, stop : int, optional
            Part of the list to search; negative numbers count from its end. Default: the whole list.

        Returns
        -------
        int

        Raises
        ------
        ValueError
            The key is not in this part of the list.
        """
        first, end, _ = slice(start, stop).indices(len(self))
        at = self[first:end]._find(key)
        if at is None:
            raise ValueError(f"{key!r} is not in this list of {len(self)} keys")
        return first + at

    def count(self, key: Any) -> int:
        """Return the number of times that a key is listed.

        Parameters
        ----------
        key : bytes
            The key, without the skipped bytes.

        Returns
        -------
        int
            0 or 1; more if keys that differ only in skipped bytes are listed.
        """
        if self._head() is None:
            return sum(listed == key for listed in self)
        return int(key in self)

    def _find(self, key: Any) -> int | None:
        """Return the first index of a key or None. The fast path takes bytes only; other types are compared as in a list."""
        head = self._head()
        if head is None or not isinstance(key, bytes | bytearray):
            return next((at for at, listed in enumerate(self) if listed == key), None)
        rank = self._present.find(head + key)
        return self._ranks.index(rank) if rank is not None and rank in self._ranks else None

    def _head(self) -> bytes | None:
        """Return the skipped bytes if all keys share them, else None. If they do, each listed key belongs to one entry."""
        if not self._skip or not self:
            return b""
        first, last = (self._present.key(0, rank)[: self._skip] for rank in (self._ranks[0], self._ranks[-1]))
        return first if first == last else None

    # ---- as a value

    def __eq__(self, other: object) -> bool:
        if isinstance(other, KeyList):
            if self._present is other._present and (self._skip, self._ranks) == (other._skip, other._ranks):
                return True
            n, m = len(self), len(other)
            # equal widths, so that the blocks of both have equal sizes
            alike = n == m and (not n or self._width == other._width)
            return alike and all(map(bytes.__eq__, self._blocks(), other._blocks()))
        if not isinstance(other, Sequence) or isinstance(other, str | bytes | bytearray | memoryview):
            return NotImplemented
        return len(self) == len(other) and all(
            mine is theirs or mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # equals lists, which are not hashable

    def _blocks(self) -> Iterator[bytes]:
        """Yield the keys in blocks of `COMPARED_KEYS`, joined."""
        for first in range(0, len(self), COMPARED_KEYS):
            ranks = self._ranks[first : first + COMPARED_KEYS]
            yield self._present.packed(self._skip, ranks[0], len(ranks), ranks.step)

    def __repr__(self) -> str:
        if len(self) <= SHOWN_KEYS:
            return f"KeyList({list(self)!r})"
        shown = [*map(repr, self[: SHOWN_KEYS // 2]), "...", repr(self[-1])]
        return f"KeyList([{', '.join(shown)}]) of {len(self)} keys"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the bits of the listed entries, not those of the whole grid."""
        present, ranks = self._present, self._ranks
        if not ranks:
            return KeyList, (no_positions(present.grid_shape), self._skip)
        low, high = sorted((ranks[0], ranks[-1]))
        first, end = ((present.position(rank) - present.first) // WORD_BITS for rank in (low, high))
        cut = native.load().Positions(
            present.grid_shape,
            present.first + WORD_BITS * first,
            min(present.end, present.first + WORD_BITS * (end + 1)),
            present.bits[first * WORD_BITS // 8 : (end + 1) * WORD_BITS // 8],
        )
        n_before = low - cut.find(present.key(0, low))
        return KeyList, (
            cut,
            self._skip,
            range(ranks.start - n_before, ranks.stop - n_before, ranks.step),
        )


def no_positions(grid_shape: tuple[int, ...]) -> Any:
    """Return empty native `Positions`."""
    return native.load().Positions(grid_shape, 0, 0, b"")


def positions_among(grid_shape: tuple[int, ...], flags: np.ndarray[Any, Any], first: int, end: int) -> Any:
    """Return the positions among [first, end) whose flag is set; `flags` has one item for each entry of the grid."""
    words = np.zeros((-(-(end - first) // WORD_BITS), WORD_BITS), dtype=np.bool_)
    words.reshape(-1)[: end - first] = flags[first:end]
    return native.load().Positions(grid_shape, first, end, np.packbits(words, bitorder="little").tobytes())


def flags_of(present: Any, n: int) -> np.ndarray[Any, Any]:
    """Return n flags, True for the entries in native `Positions`."""
    flags = np.zeros(n, dtype=np.bool_)
    bits = np.frombuffer(present.bits, dtype=np.uint8)
    count = present.end - present.first
    flags[present.first : present.end] = np.unpackbits(bits, count=count, bitorder="little")
    return flags
