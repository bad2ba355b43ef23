# array_write.py - write elements of one array into many objects
# SPDX-License-Identifier: MIT
"""Write a `Request`: `storage.replace` replaces its objects by new ones, which the engine encodes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from .. import native
from ..errors import ShardError
from ..options import Options
from ..storage.replace import replace
from ..storage.runner import BLOCKING, ON_LOOP, Runner, run_blocking
from ..storage.store import Outcome, StoredObject, StreamedObject
from .array_request import Request
from .encoded_chunks import ordered
from .read import INLINE_NBYTES, INLINE_OBJECTS, ObjectSelection, with_key
from .records import EncodedItem, PlanItem
from .regions import Box, as_void
from .streamed_shard import streamed_shard
from .write import WriteItem, work_nbytes, write_objects

__all__ = ["STREAMED_NBYTES", "NewChunks", "encode_ahead", "write_request", "write_request_blocking"]

# For each object of a request: encoded inner chunks by position in its index, in the order in which they are stored.
NewChunks: TypeAlias = Sequence[Mapping[int, Any]]

# The memory of a shard that is encoded while it is stored: pieces, and parts that are under way.
STREAMED_NBYTES = 80 << 20


async def write_request(request: Request, options: Options, runner: Runner = ON_LOOP) -> None:
    """Store the elements of a request.

    After an error of one object, it is unchanged; others may be stored. `LockError`: other writers changed an object during
    each attempt for ``SHARDCODEC_LOCK_TIMEOUT``.
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
        staging = self._request.store.staging(self._request.items[stored[0].position].key)
        return write_objects(items, self._options, staging=staging, retry_appeared=False)

    def _write(self, items: Sequence[WriteItem], stored: Sequence[StoredObject]) -> Outcome:
        request, options = self._request, self._options
        staging = request.store.staging(request.items[stored[0].position].key)
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
