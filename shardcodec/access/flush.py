# flush.py - what was gathered of one object, stored
# SPDX-License-Identifier: MIT
"""From `Gathered` to an object: its inner chunks are encoded, all of a block in one call, and laid into the shard.

The caller holds the locks of the object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..options import Options
from ..storage.filelocks import NO_FILE
from .boxes import Box, pack_boxes, whole
from .encoded import EncodedItem, ordered, write_encoded
from .gathered import Array, Gathered
from .reader import ReadItem, read
from .writer import WriteItem, write

__all__ = ["flush"]


def flush(
    gathered: Gathered,
    path: str | None,
    old: Any,
    key: str,
    options: Options,
    *,
    write_empty: bool,
    keep_empty: bool = False,
    old_fd: int | None = None,
    staging: str | None = None,
    exist: list[int] | None = None,
) -> Any:
    """Store what was gathered.

    Parameters
    ----------
    path : str or None
        A local file; None when the new object is to come back as bytes.
    old : buffer or None
        The old object where it is not in a file.
    key : str
        How errors name the object.
    write_empty, keep_empty, old_fd, staging, exist
        As for `access.writer.write` and `WriteItem`.

    Returns
    -------
    buffer or None
        As for one item of `access.writer.write`.

    Raises
    ------
    ShardFormatError, ChecksumError, CodecError
        The old object is damaged where it is needed; it is as it was.
    OSError
        A file could not be read or written; the old one is as it was.
    """
    chain = gathered.chain
    source = old if path is None else path if old_fd is None else None if old_fd == NO_FILE else old_fd

    def read_old(boxes: Sequence[Box], out: Array) -> None:
        start, count, _, at = zip(*boxes, strict=True)
        read(
            [ReadItem(chain, source, pack_boxes(start, count, None, at), key)], out, range(out.ndim), options
        )

    if not chain.is_shard:
        ((_, chunks),) = gathered.blocks(read_old)
        item = WriteItem(chain, path, None, whole(chain.shape), key, old_fd)
        return write(
            [item],
            chunks,
            range(chunks.ndim),
            options,
            write_empty=write_empty,
            keep_empty=keep_empty,
            staging=staging,
            exist=exist,
        )[0]
    encoded: dict[int, Any] = {}
    for positions, chunks in gathered.blocks(read_old):
        items = [WriteItem(chain.inner, None, None, _box_of(chain, i), key) for i in range(len(positions))]
        results = write(items, chunks, chain.perm, options, write_empty=write_empty)
        encoded.update(zip(positions, results, strict=True))
    in_order = {
        position: encoded[position] for position in ordered(list(encoded), chain.grid_shape, options.order)
    }
    shard = EncodedItem(chain, path, old, in_order, key, old_fd=old_fd)
    return write_encoded([shard], options, keep_empty=keep_empty, staging=staging, exist=exist)[0]


def _box_of(chain: Any, place: int) -> Box:
    """All of an inner chunk, the one at that place in a block."""
    shape = chain.inner.shape
    at = tuple(place * extent if axis == 0 else 0 for axis, extent in zip(chain.perm, shape, strict=True))
    return Box((0,) * len(shape), shape, None, at)
