# write_buffer.py - buffered writes to one shard
# SPDX-License-Identifier: MIT
"""Buffered writes: values by position, and deleted ranges of positions. A later write overrides an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..access.placement import Gone
from ..access.write_encoded import NOTHING

__all__ = ["WriteBuffer"]


class WriteBuffer:
    """Buffered writes to the entries of one shard."""

    def __init__(self) -> None:
        self._writes: dict[int, bytes | None] = {}
        # disjoint and ascending; a position in `_writes` was written after its range was cleared
        self._cleared: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._writes or self._cleared)

    def write(self, position: int, value: bytes | None) -> None:
        """Buffer a value for an entry; None deletes the entry."""
        self._writes[position] = value

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

    def gone(self, exist: Callable[[], np.ndarray[Any, Any]]) -> Gone:
        """Return the positions of existing entries that are deleted, in ascending order.

        Parameters
        ----------
        exist : callable
            Returns one flag for each entry, True if it exists. Called only if a deletion is buffered.
        """
        if not self._cleared and None not in self._writes.values():
            return NOTHING
        before = exist()
        after = before.copy()
        self.overlay(after)
        return np.flatnonzero(before & ~after)

    def overlay(self, exist: np.ndarray[Any, Any]) -> None:
        """Apply the buffered writes to flags, one for each entry, that are True for existing entries."""
        for low, high in self._cleared:
            exist[low:high] = False
        positions, written = self._written()
        exist[positions] = written

    def _written(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the written positions and flags: True for a value, False for a deletion."""
        n = len(self._writes)
        values = (value is not None for value in self._writes.values())
        return np.fromiter(self._writes, np.intp, n), np.fromiter(values, np.bool_, n)
