# encoded_chunks.py - inner chunks that are encoded before they are written
# SPDX-License-Identifier: MIT
"""The size and the sequence of inner chunks that are already encoded, by another process, by another codec or in another shard.

`write.write_objects` stores them unchanged; the rest of the shard is carried over as in every partial write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .. import native
from .inner_chunks import coordinates

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["check_size", "ordered"]


def check_size(chain: Chain, position: int, nbytes: int) -> None:
    """Refuse an encoded inner chunk (ValueError) of a size that no inner chunk of this shard can have."""
    due = chain.inner.fixed_nbytes
    if due is not None and nbytes != due:
        at = coordinates(position, chain.grid_shape)
        raise ValueError(
            f"inner chunk {at}: expected {due} bytes, as every encoded inner chunk has, got {nbytes}"
        )


def ordered(positions: Sequence[int], grid_shape: Sequence[int], order: str) -> list[int]:
    """Sort positions of inner chunks into the sequence in which a writer lays them out."""
    if order == "lexicographic" or len(positions) < 2:
        return sorted(positions)
    given = np.asarray(positions, dtype=np.int64)
    coords = np.unravel_index(given, tuple(grid_shape))
    first = [int(axis.min()) for axis in coords]
    last = [int(axis.max()) for axis in coords]
    box = np.empty(int(np.prod([b - a + 1 for a, b in zip(first, last, strict=True)])), dtype=np.uint64)
    native.load().order(box, grid_shape, order, first, last)
    return [int(position) for position in box[np.isin(box, given.astype(np.uint64))]]
