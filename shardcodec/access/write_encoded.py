# write_encoded.py - encoded inner chunks into shards
# SPDX-License-Identifier: MIT
"""Writing without encoding: a shard as a map from positions to bytes.

Inner chunks that are already encoded (by another process, another codec, or in another shard) are stored unchanged; the rest
of the shard is carried over as in every partial write. The steps of a write: `write_objects`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .. import native
from ..errors import UnsupportedError
from ..options import Options
from .inner_chunks import coordinates
from .write_items import NOTHING, EncodedItem
from .write_objects import WriteResult, write_objects

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["NOTHING", "EncodedItem", "check_size", "ordered", "write_encoded"]


def write_encoded(
    items: Sequence[EncodedItem],
    options: Options,
    *,
    keep_empty: bool = False,
    staging: str | None = None,
    retry_appeared: bool = True,
) -> WriteResult:
    """Write encoded inner chunks into shards; inner chunks that are not named do not change.

    Sizes are not checked: see `check_size`. A shard all of whose inner chunks are named is not read.

    Parameters
    ----------
    items : sequence of EncodedItem
        Each shard once.
    keep_empty : bool
        Make an object even if no inner chunk is left.
    staging, retry_appeared
        As for `write.write`.

    Returns
    -------
    WriteResult

    Raises
    ------
    UnsupportedError
        Inner chunks cannot be reached one by one: codecs follow the sharding.
    ShardFormatError, ChecksumError
        The old shard is damaged where it would have been carried over; it is unchanged.
    OSError
        A file could not be written; the old one is unchanged. Items before it may have been written.
    """
    for item in items:
        if not item.chain.is_shard:
            raise UnsupportedError(
                f"shard {item.key!r}: codecs that follow the sharding hide its inner chunks", shard=item.key
            )
    return write_objects(
        items, options, keep_empty=keep_empty, staging=staging, retry_appeared=retry_appeared
    )


def check_size(chain: Chain, position: int, nbytes: int) -> None:
    """Refuse an encoded inner chunk of a size that no inner chunk of this shard can have.

    Raises
    ------
    ValueError
    """
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
    wanted = np.asarray(positions, dtype=np.int64)
    coords = np.unravel_index(wanted, tuple(grid_shape))
    first = [int(axis.min()) for axis in coords]
    last = [int(axis.max()) for axis in coords]
    box = np.empty(int(np.prod([b - a + 1 for a, b in zip(first, last, strict=True)])), dtype=np.uint64)
    native.load().order(box, grid_shape, order, first, last)
    return [int(position) for position in box[np.isin(box, wanted.astype(np.uint64))]]
