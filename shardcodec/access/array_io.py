# array_io.py - read and write elements of one array that lie in many objects
# SPDX-License-Identifier: MIT
"""Read and write elements of one array that lie in many objects.

A `Request` says which elements of which objects of one store are read or written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from .. import native
from ..compat import has_loop_to_itself
from ..errors import ShardError
from ..options import Options
from ..storage.event_loop import in_thread
from ..storage.replace import replace
from ..storage.retry import Patience
from ..storage.runner import BLOCKING, ON_LOOP, Runner, run_blocking
from ..storage.store import Outcome, Store, StoredObject, StreamedObject
from .placement import ABSENT
from .read import INLINE_NBYTES, INLINE_OBJECTS, ObjectSelection, path_of, read, read_nbytes, with_key
from .records import EncodedItem, Flags, PlanItem
from .regions import Box, Boxes, as_void, pack_boxes
from .write import Elements, WriteItem, ordered, work_nbytes, write_objects

__all__ = [
    "STREAMED_NBYTES",
    "NewChunks",
    "Request",
    "encode_ahead",
    "read_request",
    "streamed_shard",
    "write_request",
    "write_request_blocking",
]


@dataclass(frozen=True, slots=True, eq=False)  # two stores are never compared
class Request:
    """A read or a write of elements of one array, which lie in many objects of one store.

    items: one for each object, with at least one element. positions: their positions in zarr's batch. axes: for each axis of
    the chunks the axis of `array`, -1 for none. array: the destination of a read, the source of a write. spec: zarr's
    `ArraySpec`. names_paths: errors of a write name the path of a file instead of the key.
    """

    store: Store
    items: Sequence[ObjectSelection]
    positions: Sequence[int]
    axes: tuple[int, ...]
    array: np.ndarray[Any, Any]
    spec: Any
    names_paths: bool = False

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
        return len(self.items) <= INLINE_OBJECTS and self.fits_into(INLINE_NBYTES)

    def fits_into(self, limit: int) -> bool:
        """Return True if at most `limit` bytes are decoded for a read."""
        total = 0
        for item in self.items:
            total += read_nbytes(item.chain, item.box)
            if total > limit:
                return False
        return True


# ---------------------------------------------------------------- read elements of one array from many objects
#
# Read a `Request`: one native call for files and memory, requests for any other store (`access.read_remote`).

# Bytes that one thread decodes in about 10 ms, and the bound for all threads: a read that is alone on a loop may take so long.
ALONE_NBYTES = 12 << 20
MAX_ALONE_NBYTES = 64 << 20


async def read_request(request: Request, options: Options, patience: Patience | None = None) -> set[int]:
    """Read the elements of a request into its array; return the `positions` of missing objects, whose elements have the fill value.

    patience: that of an earlier attempt on the event loop, which could not wait.
    """
    if not request.items:
        return set()
    store, items = request.store, request.items
    if not store.is_near:
        from .read_remote import fetch  # here, because most processes read files or memory

        names = store.index_names([item.key for item in items])
        limits = store.limits(request.spec)
        missing = await fetch(items, request.array, request.axes, options, store, limits, names=names)
    else:
        items = [ObjectSelection(item.key, item.chain, item.box, store.source(item.key)) for item in items]
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
    limit = min(ALONE_NBYTES * options.threads, MAX_ALONE_NBYTES)
    native = all(item.chain.stage is None for item in request.items)
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


# ---------------------------------------------------------------- write elements of one array into many objects
#
# Write a `Request`: `storage.replace` replaces its objects by new ones, which the engine encodes.

# For each object of a request: encoded inner chunks by position in its index, in the order in which they are stored.
NewChunks: TypeAlias = Sequence[Mapping[int, Any]]

# The memory of a shard that is encoded while it is stored: pieces, and parts that are under way.
STREAMED_NBYTES = 80 << 20


async def write_request(request: Request, options: Options, runner: Runner = ON_LOOP) -> None:
    """Store the elements of a request.

    After an error of one object, it is unchanged; others may be stored. `LockError`: other writers changed an object during
    each attempt for ``lock_timeout``.
    """
    keys = [item.key for item in request.items]
    await replace(request.store, keys, _ElementsMaker(request, options), options, runner)


def write_request_blocking(
    request: Request,
    options: Options,
    chunks: NewChunks | None = None,
    check: Callable[[], None] | None = None,
) -> None:
    """Store the elements of a request, in a thread that does not run an event loop; raises as `write_request`.

    chunks: from `encode_ahead`. check: called under the locks of the objects, and after the read of the states in which an object
    store must still have them. If it raises, the objects do not change.
    """
    keys = [item.key for item in request.items]
    maker = _ElementsMaker(request, options, chunks, check)
    run_blocking(replace(request.store, keys, maker, options, BLOCKING))


def encode_ahead(request: Request, options: Options) -> NewChunks | None:
    """Encode the inner chunks of a write before it takes the locks of its objects; None if it does not give them whole.

    The result has a mapping for each object, from positions of inner chunks to encoded bytes, in the order in which they are stored.
    Errors are those of the write.
    """
    grids = [grid for item in request.items if (grid := _whole_chunks(item)) is not None]
    if len(grids) < len(request.items):
        return None
    places = [
        (item, at) for item, (positions, _) in zip(request.items, grids, strict=True) for at in positions
    ]
    boxes = itertools.chain.from_iterable(boxes for _, boxes in grids)
    plan = [PlanItem(item.chain.inner, None, box) for (item, _), box in zip(places, boxes, strict=True)]
    rules: dict[str, Any] = {
        "order": options.order,  # of shards in shards
        "write_empty": request.writes_empty,
        "n_threads": options.threads,
        "only_encodes": True,
        "cancel": native.current(),
        **options.io_rules,
    }
    try:
        new, *_ = native.load().write(plan, as_void(request.array), request.axes, **rules)
    except ShardError as error:
        if not isinstance(error.shard, int):
            raise
        item, error.entry = places[error.shard]
        raise with_key(error, item.chain, _name_of(request, item.key)) from error.__cause__
    encoded = iter(new)
    chunks = [dict(zip(positions, encoded, strict=False)) for positions, _ in grids]
    return [
        {position: of[position] for position in ordered(list(of), item.chain.grid_shape, options.order)}
        for of, item in zip(chunks, request.items, strict=True)
    ]


def _whole_chunks(item: ObjectSelection) -> tuple[list[int], list[Box]] | None:
    """Return the positions of the inner chunks of a write, and the box of each in the array; None if it does not give them whole."""
    chain, box = item.chain, item.box
    is_native = chain.is_shard and chain.stage is None and not chain.is_opaque
    if not is_native or not isinstance(box, Box) or box.step is not None:
        return None
    shape = tuple(chain.inner.shape)
    sides = list(zip(box.start, box.count, shape, strict=True))
    if chain.perm != tuple(range(len(shape))) or any(start % n or count % n for start, count, n in sides):
        return None
    steps = np.array(list(np.ndindex(*(count // n for _, count, n in sides)))).T
    first = np.array([[start // n] for start, _, n in sides])
    positions = np.ravel_multi_index(tuple(steps + first), tuple(chain.grid_shape)).tolist()
    begins = (steps.T * shape + box.at).tolist()
    return positions, [Box((0,) * len(shape), shape, None, tuple(begin)) for begin in begins]


class _ElementsMaker:
    """A `Maker` of objects with the elements of a request. chunks: the same elements, if they are encoded already; check: see `write_request_blocking`."""

    keeps_emptied = False

    def __init__(
        self,
        request: Request,
        options: Options,
        chunks: NewChunks | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._request = request
        self._options = options
        self._chunks = chunks
        self._check = check

    def begin(self) -> None:
        """Do nothing: the elements are known."""

    def needs_old(self, position: int) -> bool:
        # with a check, an object that is written whole too: an object store then has a condition
        return self._check is not None or not self._request.items[position].replaces

    def nbytes(self, position: int) -> int:
        item = self._request.items[position]
        if self._request.store.path(item.key) is not None:
            return 0  # the engine writes the file as it encodes
        chain = item.chain
        if self._streamed(position) is not None:
            return STREAMED_NBYTES
        return math.prod(chain.shape) * int(chain.itemsize)

    async def make(self, stored: Sequence[StoredObject], runner: Runner) -> Outcome:
        if self._check is not None:
            await runner.call(self._check, inline=False)
        store = self._request.store
        streamed = [self._streamed(old.position) for old in stored]
        at_once = [old for old, new in zip(stored, streamed, strict=True) if new is None]
        if not at_once:
            return Outcome(streamed)
        if self._chunks is not None:
            return await runner.call(self._write_encoded, at_once, self._chunks, inline=False)
        items = [_item(self._request, old) for old in at_once]
        is_inline = store.is_prompt and self._options.durability == "rename" and self._is_small(items)
        outcome = await runner.call(self._write, items, at_once, inline=is_inline)
        if len(at_once) == len(stored):
            return outcome
        encoded = iter(outcome.objects)
        return Outcome([next(encoded) if new is None else new for new in streamed])

    def _streamed(self, position: int) -> StreamedObject | None:
        if self._check is not None:  # a multipart upload has no condition
            return None
        return streamed_shard(self._request, self._request.items[position], self._options)

    def _is_small(self, items: Sequence[WriteItem]) -> bool:
        """Return True if items may be written on the event loop: few objects, and few bytes to encode or copy."""
        if len(items) > INLINE_OBJECTS:
            return False
        total = 0
        for item in items:
            total += work_nbytes(item, self._options)
            if total > INLINE_NBYTES:
                return False
        return True

    def _write_encoded(self, stored: Sequence[StoredObject], chunks: NewChunks) -> Outcome:
        elements = [_item(self._request, old) for old in stored]
        items = [
            EncodedItem(
                item.chain,
                item.path,
                item.old,
                chunks[old.position],
                item.key,
                old_file=item.old_file,
                spares_old=item.spares_old,
            )
            for item, old in zip(elements, stored, strict=True)
        ]
        staging = None if items[0].path is None else self._request.store.staging(items[0].key)
        return write_objects(items, self._options, staging=staging, retry_appeared=False)

    def _write(self, items: Sequence[WriteItem], stored: Sequence[StoredObject]) -> Outcome:
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


def _item(request: Request, old: StoredObject) -> WriteItem:
    item = request.items[old.position]
    path, name = request.store.path(item.key), _name_of(request, item.key)
    return WriteItem(
        item.chain,
        path,
        old.data,
        item.box,
        name,
        old.file,
        complete=item.ends_at_edge,
        inside=item.inside,
    )


def _name_of(request: Request, key: str) -> str:
    """Return the name of an object in errors."""
    path = request.store.path(key) if request.names_paths else None
    return key if path is None else path
