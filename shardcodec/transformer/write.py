# write.py - write chunks: the pending edits of one shard together
# SPDX-License-Identifier: MIT
"""The writer of the shards of one array: edits of one shard that are pending together are written together.

An edit of a chunk is a partial write of its shard, with the locks and the checks of `access.shard_change`. It may depend on the
stored shard; it is then applied while the lock of the shard is held. zarr sets the chunks of an array one by one, with many
concurrent calls: edits of one shard that arrive while the shard is written are queued and then written together.

If the store below is a transformer, too, a shard is a chunk there. The edit of the inner shard is applied inside of that of the
outer shard, under the lock of the outermost shard, which is an object. So a stack of transformers loses no update.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..access import shard_change
from ..access.read import INLINE_NBYTES
from ..access.shard_change import ShardMaker, StoredShard
from ..options import Options
from ..storage.runner import Runner
from ..storage.store import UNCHANGED, Outcome, StoredObject

if TYPE_CHECKING:
    from .._native import Chain
from .edits import Draft, Edit, NothingChanged

__all__ = ["Batch", "Place", "Writer", "within"]


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


def within(position: int, batch: Batch) -> Edit:
    """Return the edit that replaces a chunk, itself a shard, by a new one made from it."""
    return _Within(position, batch)


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
