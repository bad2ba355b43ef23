# write.py - write chunks: pending changes of one shard are written together
# SPDX-License-Identifier: MIT
"""Write chunks: edits of shards, the pending edits of one shard together, and those that `group_writes` buffers.

An edit of a chunk is a partial write of its shard, with the locks and the checks of `access.shard_change`. It may depend on the
stored shard; it is then applied while the lock of the shard is held. zarr sets the chunks of an array one by one, with many
concurrent calls: edits of one shard that arrive while the shard is written are queued and then written together.

If the store below is a transformer, too, a shard is a chunk there. The edit of the inner shard is applied inside of that of the
outer shard, under the lock of the outermost shard, which is an object. So a stack of transformers loses no update.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..access import shard_change
from ..access.buffer.buffered import BufferedWrites
from ..access.opened_shard import OpenedShard
from ..access.read import INLINE_NBYTES
from ..access.shard_change import ShardMaker, StoredShard
from ..compat import is_buffer
from ..errors import ShardError
from ..format.spec import ShardSpec
from ..options import Options
from ..storage.runner import Runner
from ..storage.store import UNCHANGED, Outcome, StoredObject
from .read import with_keys

if TYPE_CHECKING:
    from .._native import Chain


__all__ = [
    "Batch",
    "BufferedEdits",
    "Draft",
    "Edit",
    "Place",
    "Writer",
    "applier",
    "as_bytes",
    "erase",
    "overwrite_ranges",
    "put",
    "put_if_absent",
    "put_ranges",
    "within",
]


class NothingChanged(Exception):
    """Raised by `Batch.renewed` to leave the object unchanged."""


# ---------------------------------------------------------------- edits of one shard


class Draft:
    """A stored shard with edits on top. Chunks are read only when an edit asks for them.

    new: changed chunks by position; None for an erased one.
    """

    def __init__(self, shard: Callable[[], OpenedShard], chain: Chain, key: str) -> None:
        self._shard = shard
        self._chain = chain
        self._key = key
        self.new: dict[int, Any] = {}

    def exists(self, position: int) -> bool:
        """Return True if the chunk exists."""
        if position in self.new:
            return self.new[position] is not None
        return self._entry(position) is not None

    def value(self, position: int) -> Any:
        """Return the bytes of a chunk; None if it is absent."""
        if position in self.new:
            return self.new[position]
        entry = self._entry(position)
        return None if entry is None else self._shard().range(*entry)

    def _entry(self, position: int) -> tuple[int, int] | None:
        try:
            shard = self._shard()
            return None if shard.missing else shard.entry(position)
        except ShardError as error:
            raise with_keys(error, self._chain, self._key) from None


class Edit:
    """An edit of one shard: a function from the stored shard to new chunks.

    apply: takes a `Draft` and returns the new chunks by position (None erases a chunk). It may be called several times, in any
    thread; if it raises, the shard is unchanged. blind: positions that are set independently of the stored shard; empty if
    `apply` reads the draft. nbytes: bytes to write, estimated. given: new chunks by position, if they do not depend on the
    stored shard. narrowed: takes positions and returns the edit of these chunks only, with a copy of its bytes. An edit with
    neither `given` nor `narrowed` cannot be buffered.
    """

    def __init__(
        self,
        apply: Callable[[Draft], Mapping[int, Any]],
        blind: Collection[int] = (),
        nbytes: int = 0,
        *,
        given: Mapping[int, Any] | None = None,
        narrowed: Callable[[Collection[int]], Edit] | None = None,
    ) -> None:
        self.apply = apply
        self.blind = blind
        self.nbytes = nbytes
        self.given = given
        self.narrowed = narrowed

    def begin(self) -> None:
        """Compute `blind` and `nbytes`. Called when the lock of the shard is held."""


class _Within(Edit):
    """The edit of a chunk that is a shard of the transformer on top."""

    def __init__(self, position: int, batch: Batch) -> None:
        super().__init__(self._apply)
        self._position = position
        self._batch = batch

    def begin(self) -> None:
        self._batch.begin()
        self.blind = () if self._batch.depends_on_old else (self._position,)
        self.nbytes = self._batch.new_nbytes

    def _apply(self, draft: Draft) -> Mapping[int, Any]:
        old = draft.value(self._position) if self._batch.depends_on_old else None
        try:
            return {self._position: self._batch.renewed(StoredObject(0, data=old))}
        except NothingChanged:
            return {}


def put(chunks: Mapping[int, Any]) -> Edit:
    """Return the edit that sets chunks; None erases a chunk."""
    nbytes = sum(memoryview(data).nbytes for data in chunks.values() if data is not None)
    return Edit(lambda _: chunks, chunks.keys(), nbytes, given=chunks)


def put_if_absent(position: int, data: Any) -> Edit:
    """Return the edit that sets a chunk if it is absent."""
    return Edit(lambda draft: {} if draft.exists(position) else {position: data}, (), memoryview(data).nbytes)


def erase(positions: Sequence[int]) -> Edit:
    """Return the edit that erases the existing ones of some chunks."""
    return Edit(lambda draft: {p: None for p in positions if draft.exists(p)}, given=dict.fromkeys(positions))


def within(position: int, batch: Batch) -> Edit:
    """Return the edit that replaces a chunk, itself a shard, by a new one made from it."""
    return _Within(position, batch)


# ---------------------------------------------------------------- `set_partial_values`: edits that overwrite ranges of values
#
# Source: Zarr v3 core specification, draft of 2022, "Abstract store interface"; ST-10.

# Start and bytes of each range.
ByteRanges = Sequence[tuple[int, memoryview]]


def as_bytes(value: Any) -> memoryview:
    """Return a view of the bytes of a zarr Buffer or a bytes-like object."""
    return memoryview(value.as_numpy_array() if is_buffer(value) else value).cast("B")


def put_ranges(chunks: Mapping[int, tuple[str, ByteRanges]]) -> Edit:
    """Return the edit that overwrites ranges of chunks; `chunks` maps a position to the key and the ranges."""

    def apply(draft: Draft) -> Mapping[int, Any]:
        return {
            position: overwrite_ranges(key, draft.value(position), ranges)
            for position, (key, ranges) in chunks.items()
        }

    def narrowed(positions: Collection[int]) -> Edit:
        return put_ranges(
            {
                position: (
                    chunks[position][0],
                    [(start, memoryview(bytes(data))) for start, data in chunks[position][1]],
                )
                for position in positions
            }
        )

    nbytes = sum(data.nbytes for _, ranges in chunks.values() for _, data in ranges)
    return Edit(apply, (), nbytes, narrowed=narrowed)


def overwrite_ranges(key: str, old: Any, ranges: ByteRanges) -> bytearray:
    """Return a value with ranges overwritten; it is longer than the old one if a range goes beyond its end. An absent value is empty.

    ranges: start and bytes of each; a start below 0 counts from the end of the value. ValueError: a range begins beyond the end
    of the value or before its first byte, or two ranges overlap. `key` is for errors.
    """
    value = bytearray(b"" if old is None else old)
    size = len(value)
    placed = sorted(
        ((start if start >= 0 else size + start, data) for start, data in ranges), key=lambda p: p[0]
    )
    end = 0
    for i, (start, data) in enumerate(placed):
        if start < 0:
            raise ValueError(
                f"key {key!r}: expected a part that starts at {-size} or later in a value of {size} bytes, "
                f"got {start - size}"
            )
        if i and start < end:
            raise ValueError(
                f"key {key!r}: parts overlap: one begins at byte {start}, the one before it ends at byte {end}"
            )
        if start > len(value):
            what = "does not exist" if old is None else f"has {size} bytes"
            raise ValueError(f"key {key!r}: a part begins at byte {start}, but the value {what}")
        end = start + data.nbytes
        value[start : min(end, len(value))] = data
    return value


# ---------------------------------------------------------------- the writer of the shards of one array


class _QueuedEdit(NamedTuple):
    edit: Edit
    done: asyncio.Future[None]


class Place(NamedTuple):
    """The place of a shard; see `access.shard_change.ShardPlace`.

    `is_prompt`: calls on it take no network round trip.
    """

    key: str
    path: str | None = None
    staging: str | None = None
    is_prompt: bool = True


# Replaces the shard with a key by the one that a maker makes.
Exchange = Callable[[str, "Batch", Options], Awaitable[None]]

_Key = tuple[asyncio.AbstractEventLoop, str, Options]

# Strong references to tasks: the event loop holds only weak ones.
_tasks: set[asyncio.Task[None]] = set()


class Writer:
    """Writes the shards of one array.

    exchange: coroutine function that replaces a shard, see `Exchange`. place_of: coroutine function from the key of a shard to
    its `Place`.
    """

    def __init__(
        self,
        chain: Chain,
        exchange: Exchange,
        place_of: Callable[[str], Awaitable[Place]],
    ) -> None:
        self._chain = chain
        self._exchange = exchange
        self._place_of = place_of
        self._waiting: dict[_Key, list[_QueuedEdit]] = {}

    async def change(self, shard: str, edit: Edit, options: Options) -> None:
        """Change a shard and wait until the edit is stored. After an error of the edit, of damage or of a lock the shard is unchanged."""
        loop = asyncio.get_running_loop()
        queued = _QueuedEdit(edit, loop.create_future())
        queue = self._waiting.setdefault((loop, shard, options), [])
        queue.append(queued)
        if len(queue) == 1:
            task = loop.create_task(self._run((loop, shard, options)))
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)
        await asyncio.shield(queued.done)

    async def change_locked(
        self, shard: str, edit: Edit, options: Options, exchange: Callable[[Batch], Awaitable[None]]
    ) -> None:
        """Change a shard whose lock the caller holds; raises as `change`. exchange: coroutine function that replaces the shard."""
        queued = _QueuedEdit(edit, asyncio.get_running_loop().create_future())
        batch = Batch(self._chain, await self._place_of(shard), options, lambda: [queued])
        await exchange(batch)
        batch.finish(None)
        await queued.done

    async def _run(self, key: _Key) -> None:
        """Write all queued edits of a shard once its lock is held."""
        _, shard, options = key
        try:
            place = await self._place_of(shard)
        except BaseException as error:  # noqa: BLE001  # as below
            _finish(self._waiting.pop(key), {}, error)
            return
        batch = Batch(self._chain, place, options, lambda: self._waiting.pop(key))
        failure: BaseException | None = None
        try:
            await self._exchange(shard, batch, options)
        except BaseException as error:  # noqa: BLE001  # raised in each coroutine that waits for an edit
            failure = error
        batch.begin()  # takes the queued edits if the write failed before that
        batch.finish(failure)


class Batch:
    """All queued edits of one shard: a `Maker` of it, or of a shard inside a chunk (`within`).

    new_nbytes: bytes to write, estimated; small shards are written on the event loop. depends_on_old: the new shard depends on
    the stored one.
    """

    keeps_emptied = True

    def __init__(
        self, chain: Chain, place: Place, options: Options, take: Callable[[], list[_QueuedEdit]]
    ) -> None:
        self._chain = chain
        self._key = place.key
        self._order = options.order
        self._maker = ShardMaker([(place, chain, self._decide)], options)
        self._is_file = place.path is not None
        self._is_durable = options.durability != "rename"
        self._is_prompt = place.is_prompt
        self._take = take
        self._waiting: list[_QueuedEdit] | None = None
        self._errors: dict[int, Exception] = {}
        self.new_nbytes: int = 0
        self.depends_on_old: bool = True

    def begin(self) -> None:
        """Compute the attributes. Called when the lock of the object is held, perhaps several times."""
        if self._waiting is not None:
            return
        self._waiting = self._take()
        blind: set[int] = set()
        for edit, _ in self._waiting:
            edit.begin()
            blind.update(edit.blind)
            self.new_nbytes += edit.nbytes
        looks = any(not edit.blind for edit, _ in self._waiting)
        self.depends_on_old = looks or len(blind) < self._chain.n_chunks

    def needs_old(self, position: int) -> bool:
        return self.depends_on_old

    def nbytes(self, position: int) -> int:
        return 0

    async def make(self, stored: Sequence[StoredObject], runner: Runner) -> Outcome:
        is_small = self.new_nbytes + self._old_nbytes(stored[0]) <= INLINE_NBYTES
        inline = is_small and self._is_prompt and not self._is_durable
        try:
            return await runner.call(self._maker.make_all, stored, inline=inline)
        except NothingChanged:
            return Outcome([UNCHANGED], is_stored=self._is_file)

    def _old_nbytes(self, old: StoredObject) -> int:
        if old.file is not None:
            return old.file.nbytes
        return 0 if old.data is None else memoryview(old.data).nbytes

    def renewed(self, stored: StoredObject) -> Any:
        """Return the new shard, in any thread, perhaps several times."""
        return self._maker.make_all([stored]).objects[0]

    def _decide(self, stored: StoredShard) -> shard_change.Change:
        draft = Draft(lambda: stored.shard, self._chain, self._key)
        assert self._waiting is not None
        self._errors = {}
        for i, (edit, _) in enumerate(self._waiting):
            try:
                draft.new.update(edit.apply(draft))
            except Exception as error:  # noqa: BLE001  # an error of one edit must not stop the other ones
                self._errors[i] = error
        if not draft.new:
            raise NothingChanged
        return shard_change.Change.of(draft.new, self._chain.grid_shape, self._order)

    def finish(self, failure: BaseException | None) -> None:
        """Pass the result or the error to every waiting coroutine."""
        _finish(self._waiting or (), self._errors, failure)


def _finish(
    waiting: Sequence[_QueuedEdit], errors: Mapping[int, Exception], failure: BaseException | None
) -> None:
    """Pass to every waiting coroutine the error of its edit, or else `failure`, or the end of the write."""
    for i, (_, done) in enumerate(waiting):
        error = errors.get(i) or failure
        if done.done():  # cancelled
            continue
        if isinstance(error, asyncio.CancelledError):
            done.cancel()
        elif error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


# ---------------------------------------------------------------- buffered edits of one shard in a block of group_writes
#
# A chunk that was set or erased has a known new value; the last edit counts. An edit of some bytes of a chunk is applied to the
# stored chunk when the shard is flushed, so bytes that another process writes in the meantime are kept. The merged view of such
# a chunk is cached for readers.

# Memory for the bookkeeping of one buffered chunk, estimated.
CHUNK_NBYTES = 150


def applier(
    chain: Chain, key: str, edit: Edit, shown: Mapping[int, bytes | None]
) -> Callable[[OpenedShard], Mapping[int, Any]]:
    """Return a function from an opened shard to its edited chunks by position; `shown` are the buffered chunks on top."""

    def look(opened: OpenedShard) -> Mapping[int, Any]:
        draft = Draft(lambda: opened, chain, key)
        draft.new = dict(shown)
        return edit.apply(draft)

    return look


class BufferedEdits(BufferedWrites):
    """Buffered writes of one shard through a transformer: chunks that were set, erased or edited.

    shown: changed chunks as readers see them, by position; None for an erased one.
    """

    def __init__(self, spec: ShardSpec) -> None:
        self.kind: ShardSpec = spec
        self._n_chunks = spec.n_chunks
        self.shown: dict[int, bytes | None] = {}
        self._certain: set[int] = set()
        self._partial: list[tuple[frozenset[int], Edit]] = []
        self._memory_nbytes = 0
        self._store: Callable[[Edit], Awaitable[None]] | None = None

    @property
    def memory_nbytes(self) -> int:
        """Memory that the buffered edits take, in bytes."""
        return self._memory_nbytes

    @property
    def is_complete(self) -> bool:
        """True if every chunk is set or erased, so that the stored shard is not needed."""
        return len(self._certain) == self._n_chunks

    def add(self, edit: Edit, shown: Mapping[int, Any], store: Callable[[Edit], Awaitable[None]]) -> None:
        """Add an edit.

        shown: its chunks as readers see them after the edit, by position. store: coroutine function that stores all buffered
        edits in one write.
        """
        if edit.narrowed is None:
            self._certain.update(shown)
            self._drop_overridden(shown)
        elif rest := frozenset(shown) - self._certain:
            mine = edit.narrowed(rest)
            self._partial.append((rest, mine))
            self._memory_nbytes += mine.nbytes + CHUNK_NBYTES
        for position, data in shown.items():
            old = self.shown.get(position)
            new = None if data is None else bytes(data)
            self._memory_nbytes += (
                len(new or b"") - len(old or b"") + CHUNK_NBYTES * (position not in self.shown)
            )
            self.shown[position] = new
        self._store = store

    def _drop_overridden(self, given: Mapping[int, Any]) -> None:
        """Drop partial edits of chunks that were set or erased later."""
        kept = []
        for positions, edit in self._partial:
            rest = positions.difference(given)
            if rest == positions:
                kept.append((positions, edit))
                continue
            self._memory_nbytes -= edit.nbytes + CHUNK_NBYTES
            if rest and edit.narrowed is not None:
                mine = edit.narrowed(rest)
                self._memory_nbytes += mine.nbytes + CHUNK_NBYTES
                kept.append((rest, mine))
        self._partial = kept

    async def flush(self) -> None:
        """Store all buffered edits in one write."""
        assert self._store is not None
        await self._store(self._edit())

    def _edit(self) -> Edit:
        given = {position: self.shown[position] for position in self._certain}
        nbytes = sum(len(data) for data in given.values() if data is not None)
        if self.is_complete:
            return Edit(lambda _: given, given, nbytes)

        def apply(draft: Draft) -> Mapping[int, Any]:
            for _, edit in self._partial:
                draft.new.update(edit.apply(draft))
            for position, data in given.items():
                if data is not None or draft.exists(position):
                    draft.new[position] = data
            return draft.new

        return Edit(apply, (), nbytes + sum(edit.nbytes for _, edit in self._partial))
