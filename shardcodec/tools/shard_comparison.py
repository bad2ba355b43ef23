# shard_comparison.py - is a stored shard the one that a repair would write?
# SPDX-License-Identifier: MIT
"""`ShardComparison`: takes the inner chunks of a new shard as a writer does, and compares them with a stored shard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .index_layout import Entries, is_absent
from .stored_bytes import StoredBytes

__all__ = ["ShardComparison"]


class ShardComparison:
    """Compares a stored shard with the one that is written to this object. Memory holds one inner chunk of it.

    Parameters
    ----------
    view : StoredBytes
        The stored shard.
    entries : ndarray of uint64, shape (n_chunks, 2)
        Its index.
    grid_shape : tuple of int
        Number of inner chunks along each axis.
    """

    def __init__(self, view: StoredBytes, entries: Entries, grid_shape: tuple[int, ...]) -> None:
        self.grid_shape = grid_shape
        self._view, self._entries = view, entries
        self._left = int((~is_absent(entries)).sum())
        self._end = 0
        self._is_equal = True

    @property
    def is_equal(self) -> bool:
        """True if the stored shard has the inner chunks that were written, in their order, and no others."""
        return self._is_equal and not self._left

    def write_joined(self, coords: Sequence[Sequence[int]], sizes: Any, data: Any) -> None:
        """Compare inner chunks that lie one after the other in a buffer."""
        view, at = memoryview(data).cast("B"), 0
        for where, size in zip(coords, sizes, strict=True):
            self.write_encoded(where, view[at : at + int(size)])
            at += int(size)

    def write_encoded(self, coords: Sequence[int], data: Any) -> None:
        """Compare one inner chunk."""
        new = memoryview(data).cast("B")
        offset, nbytes = map(int, self._entries[np.ravel_multi_index(tuple(coords), self.grid_shape)])
        self._left -= 1
        self._is_equal = (
            self._is_equal
            and nbytes == new.nbytes
            and self._end <= offset
            and offset + nbytes <= self._view.nbytes
            and memoryview(self._view.range(offset, nbytes)) == new
        )
        self._end = offset + nbytes
