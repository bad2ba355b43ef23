# array_io.py - read and write parts of one array that lie in many objects
# SPDX-License-Identifier: MIT
"""Read and write parts of one array that lie in many objects.

A request for elements of one array: which parts of which objects of one store are read or written.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import native
from ..compat import has_loop_to_itself
from ..errors import ShardError
from ..format.codecs import ABSENT
from ..options import Options
from ..storage.replace import replace
from ..storage.runner import BLOCKING, ON_LOOP, Runner, run_blocking
from ..storage.store import Outcome, Store, Stored, StreamedObject
from ..storage.waiting import Patience, in_thread
from .read import INLINE_NBYTES, INLINE_OBJECTS, ObjectSelection, path_of, read, read_nbytes
from .records import Flags
from .regions import Box, Boxes, pack_boxes
from .write import Elements, WriteItem, moved_nbytes, write_objects

__all__ = [
    "PARTS_NBYTES",
    "Request",
    "new_shard_parts",
    "read_request",
    "write_request",
    "write_request_blocking",
]


@dataclass(frozen=True, slots=True, eq=False)  # two stores are never compared
class Request:
    """Parts of one array in many objects.

    Attributes
    ----------
    store : Store
        The store of the objects.
    parts : sequence of ObjectSelection
        Parts with at least one element.
    positions : sequence of int
        Their positions in zarr's batch.
    axes : tuple of int
        The axis of `array` for each axis of the chunks; -1 for none.
    array : ndarray
        The destination of a read, the source of a write.
    spec : ArraySpec
        zarr's configuration of the array.
    """

    store: Store
    parts: Sequence[ObjectSelection]
    positions: Sequence[int]
    axes: tuple[int, ...]
    array: np.ndarray[Any, Any]
    spec: Any

    @property
    def writes_empty(self) -> bool:
        """True if chunks that equal the fill value are stored."""
        return bool(self.spec.config.write_empty_chunks)

    @property
    def elements(self) -> Elements:
        """The array as the source of a write."""
        return Elements(self.array, self.axes, self.writes_empty)

    @property
    def is_small(self) -> bool:
        """True if the request may be handled on the event loop."""
        return len(self.parts) <= INLINE_OBJECTS and self.fits_into(INLINE_NBYTES)

    def fits_into(self, limit: int) -> bool:
        """Return True if at most `limit` bytes are decoded for a read."""
        total = 0
        for part in self.parts:
            total += read_nbytes(part.chain, part.box)
            if total > limit:
                return False
        return True


# ---------------------------------------------------------------- read parts of one array from many objects
#
# Read a `Request`: one native call for files and memory, requests for any other store (`access.read_remote`).

# Bytes that one thread decodes in about 10 ms, and the bound for all threads: a read that is alone on a loop may take so long.
ALONE_NBYTES = 12 << 20
MOST_ALONE_NBYTES = 64 << 20


async def read_request(request: Request, options: Options, patience: Patience | None = None) -> set[int]:
    """Read the elements of a request into its array.

    Parameters
    ----------
    request : Request
    options : Options
    patience : Patience, optional
        That of an earlier attempt on the event loop, which could not wait.

    Returns
    -------
    set of int
        Positions (`Request.positions`) of objects that do not exist; their elements have the fill value.

    Raises
    ------
    ShardFormatError, ChecksumError, CodecError
        An object is damaged.
    """
    if not request.parts:
        return set()
    store, parts = request.store, request.parts
    if not store.is_near:
        from .read_remote import fetch  # here, because most processes read files or memory

        names = store.index_names([part.key for part in parts])
        limits = store.limits(request.spec)
        missing = await fetch(parts, request.array, request.axes, options, store, limits, names=names)
    else:
        items = [ObjectSelection(part.key, part.chain, part.box, store.source(part.key)) for part in parts]
        work = items, request.array, request.axes, options
        inline = patience is None and store.is_prompt
        if inline and (request.is_small or _may_stay(request, options)):
            try:
                missing = read(*work, Patience(0))
                return {request.positions[i] for i in missing}
            except (OSError, ShardError) as error:
                patience = Patience.after(error, path_of(error, ((item.key, item.source) for item in items)))
        missing = await in_thread(read, *work, patience)
    return {request.positions[i] for i in missing}


def _may_stay(request: Request, options: Options) -> bool:
    """Return True if a read that is not small may still run on the event loop, because no other task waits for the loop.

    A change of threads costs half a millisecond, 5 % of a plane of 512^3.
    """
    limit = min(ALONE_NBYTES * options.threads, MOST_ALONE_NBYTES)
    native = all(part.chain.stage is None for part in request.parts)
    return native and request.fits_into(limit) and has_loop_to_itself()


# ---------------------------------------------------------------- a new shard, encoded piece by piece while it is stored
#
# Encode a whole new shard in pieces, for a store that accepts an object in parts.
#
# Each piece has the next inner chunks in the order of the writer, and is made by `write.write_objects` as the shard of these inner
# chunks alone. Its index is cut off, its entries are moved behind the pieces before it, and the index of all of them comes
# last. The bytes are those of a shard that is encoded at once.

# Shards with fewer decoded bytes are encoded at once.
LEAST_NBYTES = 64 << 20
# Decoded bytes of a piece. At least this number of times the size of the index, which is made for each piece.
PIECE_NBYTES = 8 << 20
INDEXES_PER_PIECE = 4


def new_shard_parts(request: Request, part: ObjectSelection, options: Options) -> StreamedObject | None:
    """Return the new object of a part that covers its shard; None if it is to be encoded at once.

    Small shards are encoded at once, and those whose index is at their start, because its content is known last.
    """
    chain = part.chain
    decoded = math.prod(chain.shape) * int(chain.itemsize)
    if decoded < LEAST_NBYTES or not request.store.takes_parts or not part.covers:
        return None
    if not chain.is_shard or chain.is_opaque or chain.index_at_start:
        return None
    is_plain = isinstance(part.box, Box) and part.box.step is None
    if not is_plain or int(chain.n_chunks) * int(chain.inner.nbytes) != decoded:  # clipped inner chunks
        return None
    piece_nbytes = max(PIECE_NBYTES, INDEXES_PER_PIECE * int(chain.index_nbytes))
    shard = _NewShard(request, part, options, max(1, piece_nbytes // int(chain.inner.nbytes)))
    return StreamedObject(shard.pieces, decoded + int(chain.index_nbytes))


class _NewShard:
    """A new shard that covers its box of the array.

    Parameters
    ----------
    request : Request
        Has the array.
    part : ObjectSelection
        Has the shard; its box is the whole shard.
    options : Options
    n_together : int
        Number of inner chunks in a piece.
    """

    def __init__(self, request: Request, part: ObjectSelection, options: Options, n_together: int) -> None:
        self._request = request
        self._part = part
        self._options = options
        self._n_together = n_together

    async def pieces(self) -> AsyncGenerator[Any, None]:
        """Yield the bytes of the shard in order: the inner chunks, then the index.

        Yield nothing if no inner chunk is stored: all have the fill value, and the request does not write such chunks.
        """
        chain = self._part.chain
        entries = np.full((chain.n_chunks, 2), ABSENT, dtype=np.uint64)
        end = 0
        for some in self._in_order():
            data = await in_thread(self._encode, some, entries, end)
            if data is not None:
                end += data.nbytes
                yield data
        if end:
            index = np.empty(chain.index_nbytes, dtype=np.uint8)
            await in_thread(native.load().store_index, chain, entries, index)
            yield index

    def _in_order(self) -> Iterator[np.ndarray[Any, np.dtype[np.uint64]]]:
        """Yield positions of inner chunks, in the order in which a writer lays them out."""
        chain = self._part.chain
        positions = np.empty(chain.n_chunks, dtype=np.uint64)
        native.load().order(positions, chain.grid_shape, self._options.order)
        for first in range(0, len(positions), self._n_together):
            yield positions[first : first + self._n_together]

    def _encode(
        self, some: np.ndarray[Any, np.dtype[np.uint64]], entries: np.ndarray[Any, Any], end: int
    ) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """Encode inner chunks and set their entries; return their bytes, None if all are absent."""
        chain, request = self._part.chain, self._request
        item = WriteItem(chain, None, None, self._boxes(some), self._part.key, chunks=some)
        (new,) = write_objects([item], self._options, request.elements).objects
        if new is None:
            return None
        data = np.frombuffer(new, dtype=np.uint8)
        n = data.nbytes - int(chain.index_nbytes)
        found = np.empty_like(entries)
        native.load().load_index(chain, data[n:], found)
        is_stored: Flags = (found != ABSENT).any(axis=1)
        found[is_stored, 0] += np.uint64(end)
        entries[is_stored] = found[is_stored]
        return data[:n]

    def _boxes(self, some: np.ndarray[Any, np.dtype[np.uint64]]) -> Boxes:
        """Return inner chunks as boxes of the shard, and their places in the array."""
        chain, box, axes = self._part.chain, self._part.box, self._request.axes
        assert isinstance(box, Box)
        coords = np.unravel_index(some.astype(np.intp), tuple(chain.grid_shape))
        start = np.empty((len(some), len(coords)), dtype=np.uint64)
        count = np.empty(len(coords), dtype=np.uint64)
        for axis, along, extent in zip(chain.perm, coords, chain.inner.shape, strict=True):
            start[:, axis] = along * extent
            count[axis] = extent
        at = np.zeros((len(some), self._request.array.ndim), dtype=np.uint64)
        for axis, place in enumerate(axes):
            if place >= 0:
                at[:, place] = start[:, axis] + np.uint64(box.at[axis])
        return pack_boxes(start, count, None, at)


# ---------------------------------------------------------------- write parts of one array into many objects
#
# Write a `Request`: `storage.replace` replaces its objects by new ones, which the engine encodes.

# The memory of a shard that is encoded while it is stored: pieces, and parts that are under way.
PARTS_NBYTES = 80 << 20


async def write_request(request: Request, options: Options, runner: Runner = ON_LOOP) -> None:
    """Store the elements of a request.

    Raises
    ------
    ValueError
        The store is read-only.
    LockError
        Other writers changed an object during each attempt for ``lock_timeout``.
    ShardFormatError, ChecksumError, CodecError
        A stored object is damaged where its bytes must be kept; it is as it was.
    """
    keys = [part.key for part in request.parts]
    await replace(request.store, keys, _Elements(request, options), options, runner)


def write_request_blocking(request: Request, options: Options) -> None:
    """Store the elements of a request, in a thread that does not run an event loop; raises as `write_request`."""
    run_blocking(write_request(request, options, BLOCKING))


class _Elements:
    """A `Maker` of objects with the elements of a request."""

    keeps_emptied = False

    def __init__(self, request: Request, options: Options) -> None:
        self._request = request
        self._options = options

    def begin(self) -> None:
        """Do nothing: the elements are known."""

    def needs_old(self, position: int) -> bool:
        return not self._request.parts[position].replaces

    def nbytes(self, position: int) -> int:
        part = self._request.parts[position]
        if self._request.store.path(part.key) is not None:
            return 0  # the engine writes the file as it encodes
        chain = part.chain
        if self._parts(position) is not None:
            return PARTS_NBYTES
        return math.prod(chain.shape) * int(chain.itemsize)

    async def make(self, stored: Sequence[Stored], runner: Runner) -> Outcome:
        streamed = {
            i: parts for i, old in enumerate(stored) if (parts := self._parts(old.position)) is not None
        }
        if not streamed:
            return await self._make(stored, runner)
        rest = [i for i in range(len(stored)) if i not in streamed]
        objects: list[Any] = [streamed.get(i) for i in range(len(stored))]
        if rest:
            outcome = await self._make([stored[i] for i in rest], runner)
            for i, new in zip(rest, outcome.objects, strict=True):
                objects[i] = new
        return Outcome(objects)

    def _parts(self, position: int) -> StreamedObject | None:
        return new_shard_parts(self._request, self._request.parts[position], self._options)

    async def _make(self, stored: Sequence[Stored], runner: Runner) -> Outcome:
        store = self._request.store
        items = [_item(store, self._request.parts[old.position], old) for old in stored]
        is_inline = store.is_prompt and self._options.durability == "rename" and self._is_small(items)
        return await runner.call(self._write, items, stored, inline=is_inline)

    def _is_small(self, items: Sequence[WriteItem]) -> bool:
        """Return True if items may be written on the event loop: few objects, and few bytes to encode or copy."""
        if len(items) > INLINE_OBJECTS:
            return False
        total = 0
        for item in items:
            total += moved_nbytes(item, self._options)
            if total > INLINE_NBYTES:
                return False
        return True

    def _write(self, items: Sequence[WriteItem], stored: Sequence[Stored]) -> Outcome:
        request, options = self._request, self._options
        staging = None if items[0].path is None else request.store.staging(items[0].key)
        outcome = write_objects(items, options, request.elements, staging=staging, retry_appeared=False)
        news = list(outcome.objects)
        emptied = [i for i, old in enumerate(stored) if old.keeps_empty and news[i] is None]
        if emptied:
            again = write_objects([items[i] for i in emptied], options, request.elements, keep_empty=True)
            for i, new in zip(emptied, again.objects, strict=True):
                news[i] = new
        return outcome._replace(objects=news)


def _item(store: Store, part: ObjectSelection, old: Stored) -> WriteItem:
    path = store.path(part.key)
    return WriteItem(part.chain, path, old.data, part.box, part.key, old.file, complete=part.ends_at_edge)
