# streamed_shard.py - a new shard, encoded piece by piece while it is stored
# SPDX-License-Identifier: MIT
"""`streamed_shard`: encode a whole new shard in pieces, for a store that accepts an object in parts.

Each piece has the next inner chunks in the order of the writer, and is made by `write.write_objects` as the shard of these inner
chunks alone. Its index is cut off, its entries are moved behind the pieces before it, and the index of all of them comes
last. The bytes are those of a shard that is encoded at once.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator
from typing import Any

import numpy as np

from .. import native
from ..options import Options
from ..storage.event_loop import in_thread
from ..storage.store import StreamedObject
from .array_request import Request
from .placement import ABSENT
from .read import ObjectSelection
from .records import Flags
from .regions import Box, Boxes, pack_boxes
from .write import WriteItem, write_objects

__all__ = ["streamed_shard"]

# Shards with fewer decoded bytes are encoded at once.
LEAST_NBYTES = 64 << 20
# Decoded bytes of a piece. At least this number of times the size of the index, which is made for each piece.
PIECE_NBYTES = 8 << 20
INDEXES_PER_PIECE = 4


def streamed_shard(request: Request, item: ObjectSelection, options: Options) -> StreamedObject | None:
    """Return the new object of an item that covers its shard; None if it is to be encoded at once.

    Small shards are encoded at once, and those whose index is at their start, because its content is known last.
    """
    chain = item.chain
    decoded = math.prod(chain.shape) * int(chain.itemsize)
    if decoded < LEAST_NBYTES or not request.store.takes_parts or not item.covers:
        return None
    if not chain.is_shard or chain.is_opaque or chain.index_at_start:
        return None
    is_plain = isinstance(item.box, Box) and item.box.step is None
    if not is_plain or int(chain.n_chunks) * int(chain.inner.nbytes) != decoded:  # clipped inner chunks
        return None
    piece_nbytes = max(PIECE_NBYTES, INDEXES_PER_PIECE * int(chain.index_nbytes))
    shard = _NewShard(request, item, options, max(1, piece_nbytes // int(chain.inner.nbytes)))
    return StreamedObject(shard.pieces, decoded + int(chain.index_nbytes))


class _NewShard:
    """A new shard that covers its box of the array; `n_together` inner chunks make a piece."""

    def __init__(self, request: Request, item: ObjectSelection, options: Options, n_together: int) -> None:
        self._request = request
        self._item = item
        self._options = options
        self._n_together = n_together

    async def pieces(self) -> AsyncGenerator[Any, None]:
        """Yield the bytes of the shard in order: the inner chunks, then the index.

        Yield nothing if no inner chunk is stored: all have the fill value, and the request does not write such chunks.
        """
        chain = self._item.chain
        entries = np.full((chain.n_chunks, 2), ABSENT, dtype=np.uint64)
        end = 0
        for positions in self._in_order():
            data = await in_thread(self._encode, positions, entries, end)
            if data is not None:
                end += data.nbytes
                yield data
        if end:
            index = np.empty(chain.index_nbytes, dtype=np.uint8)
            await in_thread(native.load().store_index, chain, entries, index)
            yield index

    def _in_order(self) -> Iterator[np.ndarray[Any, np.dtype[np.uint64]]]:
        """Yield positions of inner chunks, in the order in which a writer lays them out."""
        chain = self._item.chain
        positions = np.empty(chain.n_chunks, dtype=np.uint64)
        native.load().order(positions, chain.grid_shape, self._options.order)
        for first in range(0, len(positions), self._n_together):
            yield positions[first : first + self._n_together]

    def _encode(
        self, positions: np.ndarray[Any, np.dtype[np.uint64]], entries: np.ndarray[Any, Any], end: int
    ) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """Encode inner chunks and set their entries; return their bytes, None if all are absent."""
        chain, request = self._item.chain, self._request
        item = WriteItem(chain, None, None, self._boxes(positions), self._item.key, chunks=positions)
        (new,) = write_objects([item], self._options, request.elements).objects
        if new is None:
            return None
        data = np.frombuffer(new, dtype=np.uint8)
        n = data.nbytes - int(chain.index_nbytes)
        piece_entries = np.empty_like(entries)
        native.load().load_index(chain, data[n:], piece_entries)
        is_stored: Flags = (piece_entries != ABSENT).any(axis=1)
        piece_entries[is_stored, 0] += np.uint64(end)
        entries[is_stored] = piece_entries[is_stored]
        return data[:n]

    def _boxes(self, positions: np.ndarray[Any, np.dtype[np.uint64]]) -> Boxes:
        """Return inner chunks as boxes of the shard, and their places in the array."""
        chain, box, axes = self._item.chain, self._item.box, self._request.axes
        assert isinstance(box, Box)
        coords = np.unravel_index(positions.astype(np.intp), tuple(chain.grid_shape))
        start = np.empty((len(positions), len(coords)), dtype=np.uint64)
        count = np.empty(len(coords), dtype=np.uint64)
        for axis, along, extent in zip(chain.perm, coords, chain.inner.shape, strict=True):
            start[:, axis] = along * extent
            count[axis] = extent
        at = np.zeros((len(positions), self._request.array.ndim), dtype=np.uint64)
        for axis, place in enumerate(axes):
            if place >= 0:
                at[:, place] = start[:, axis] + np.uint64(box.at[axis])
        return pack_boxes(start, count, None, at)
