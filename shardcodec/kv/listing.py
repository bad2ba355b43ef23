# listing.py - the keys of a shard, listed but not made yet
# SPDX-License-Identifier: MIT
"""`KeyList`.

A million `bytes` objects take 48 MB, and Python 40 ms to make them, whoever asks. Which entries exist is told by a
bit for each; keys are made from the bits when they are taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from .. import native

__all__ = ["KeyList", "flags_of", "no_positions", "positions_among"]

# Positions that one word of the native set tells of.
WORD_BITS = 64

# Keys that are compared at a time, and keys that a repr shows: all of them, or the first and the last.
COMPARED_KEYS = 4096
SHOWN_KEYS = 8


class KeyList(Sequence[bytes]):
    """Keys of entries that exist, in ascending order: an immutable sequence of bytes that makes them as they are taken.

    It is a snapshot: what is written later does not change it. It equals any sequence with the same keys, and slices of it are
    such sequences again. Whether a key is among them is arithmetic, not a search; but not where the bytes that were left
    out at their beginning differ, so that several may have become equal.

    Parameters
    ----------
    present
        Which entries exist: native `Positions`.
    skip : int
        Bytes that are left out at the beginning of each key.
    ranks : range, optional
        Which of them are listed, and in which order: 0 is the first that exists. Default: all.
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
            raise IndexError(f"{at} is not an index of {len(self)} keys") from None
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
        """Return where a key is listed first, among [start, stop).

        Raises
        ------
        ValueError
            It is not there.
        """
        first, end, _ = slice(start, stop).indices(len(self))
        at = self[first:end]._find(key)
        if at is None:
            raise ValueError(f"{key!r} is not among the keys")
        return first + at

    def count(self, key: Any) -> int:
        """Return how often a key is listed: once at most, unless several keys became equal."""
        if self._head() is None:
            return sum(listed == key for listed in self)
        return int(key in self)

    def _find(self, key: Any) -> int | None:
        """Where a key is first; as a list says it, so that only bytes are compared with bytes in a quicker way."""
        head = self._head()
        if head is None or not isinstance(key, bytes | bytearray):
            return next((at for at, listed in enumerate(self) if listed == key), None)
        rank = self._present.find(head + key)
        return self._ranks.index(rank) if rank is not None and rank in self._ranks else None

    def _head(self) -> bytes | None:
        """What was left out, where that is the same of all: keys then are different, and tell where they are."""
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
            alike = n == m and (not n or self._width == other._width)  # then blocks of both are as long
            return alike and all(map(bytes.__eq__, self._blocks(), other._blocks()))
        if not isinstance(other, Sequence) or isinstance(other, str | bytes | bytearray | memoryview):
            return NotImplemented
        return len(self) == len(other) and all(
            mine is theirs or mine == theirs for mine, theirs in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]  # it equals lists, which have none

    def _blocks(self) -> Iterator[bytes]:
        """Some thousand keys at a time, in one."""
        for first in range(0, len(self), COMPARED_KEYS):
            ranks = self._ranks[first : first + COMPARED_KEYS]
            yield self._present.packed(self._skip, ranks[0], len(ranks), ranks.step)

    def __repr__(self) -> str:
        if len(self) <= SHOWN_KEYS:
            return f"KeyList({list(self)!r})"
        shown = [*map(repr, self[: SHOWN_KEYS // 2]), "...", repr(self[-1])]
        return f"KeyList([{', '.join(shown)}]) of {len(self)} keys"

    def __reduce__(self) -> tuple[Any, ...]:
        """A piece takes along what tells of its own keys."""
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
    """Return the positions of no entries."""
    return native.load().Positions(grid_shape, 0, 0, b"")


def positions_among(grid_shape: tuple[int, ...], flags: np.ndarray[Any, Any], first: int, end: int) -> Any:
    """Return the positions among [first, end) that flags, one for each entry of the grid, tell of."""
    words = np.zeros((-(-(end - first) // WORD_BITS), WORD_BITS), dtype=np.bool_)
    words.reshape(-1)[: end - first] = flags[first:end]
    return native.load().Positions(grid_shape, first, end, np.packbits(words, bitorder="little").tobytes())


def flags_of(present: Any, n: int) -> np.ndarray[Any, Any]:
    """Tell of each of n entries whether it is among positions."""
    flags = np.zeros(n, dtype=np.bool_)
    bits = np.frombuffer(present.bits, dtype=np.uint8)
    count = present.end - present.first
    flags[present.first : present.end] = np.unpackbits(bits, count=count, bitorder="little")
    return flags
