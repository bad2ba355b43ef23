# write_buffer.py - writes to one shard that are not stored yet
# SPDX-License-Identifier: MIT
"""Pending writes: values by position, and ranges of positions that are deleted. A later one overrides an earlier one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..access.placement import Gone
from ..access.write_encoded import NOTHING

__all__ = ["Pending"]


class Pending:
    """What is to become of the entries of a shard."""

    def __init__(self) -> None:
        self._writes: dict[int, bytes | None] = {}
        self._cleared: list[
            tuple[int, int]
        ] = []  # disjoint, ascending; writes to positions in them came later

    def __bool__(self) -> bool:
        return bool(self._writes or self._cleared)

    def write(self, position: int, value: bytes | None) -> None:
        """Give an entry a value; None deletes it."""
        self._writes[position] = value

    def clear(self, first: int, end: int) -> None:
        """Delete the entries at [first, end)."""
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
        """Tell whether something is pending for an entry, and its value (None: it is deleted)."""
        if position in self._writes:
            return True, self._writes[position]
        return any(low <= position < high for low, high in self._cleared), None

    def covers(self, n: int) -> bool:
        """Tell whether all of n entries are settled, whatever is stored."""
        cleared = sum(high - low for low, high in self._cleared)
        beside = (
            sum(not any(low <= p < high for low, high in self._cleared) for p in self._writes)
            if self._cleared
            else len(self._writes)
        )
        return cleared + beside == n

    def values(self) -> dict[int, bytes]:
        """Return what is written, in ascending order."""
        return {p: value for p, value in sorted(self._writes.items()) if value is not None}

    def gone(self, exist: Callable[[], np.ndarray[Any, Any]]) -> Gone:
        """Return the positions of existing entries that go, ascending.

        Parameters
        ----------
        exist : callable
            Tells of every entry whether it exists; asked only where something is deleted.
        """
        if not self._cleared and None not in self._writes.values():
            return NOTHING
        before = exist()
        after = before.copy()
        self.overlay(after)
        return np.flatnonzero(before & ~after)

    def overlay(self, exist: np.ndarray[Any, Any]) -> None:
        """Change flags that tell of every entry whether it exists to what they would be."""
        for low, high in self._cleared:
            exist[low:high] = False
        positions, written = self._written()
        exist[positions] = written

    def _written(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Positions that writes name, and whether each gets a value or is deleted."""
        n = len(self._writes)
        values = (value is not None for value in self._writes.values())
        return np.fromiter(self._writes, np.intp, n), np.fromiter(values, np.bool_, n)
