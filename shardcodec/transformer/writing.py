# writing.py - changes of chunks, gathered so that a shard is written once for all that wait for it
# SPDX-License-Identifier: MIT
"""Writing.

A change of a chunk is one of its shard: a partial write like any other, by the ways, under the locks and with the checks of
`access.encoded`. What a change makes of a chunk may depend on what is stored; it finds that out when the shard's lock is
held.

Whoever writes an array through the transformer sets its chunks one by one, many at a time. Changes of one shard that come
while it is being written wait, and are then written together.

Where the store below is a transformer itself, a shard is a chunk of its own: the change of one is then made within the change
of the other, under the lock of the shard that really is an object. So a stack loses nothing either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..access.encoded import EncodedItem, ordered, write_encoded
from ..access.objects import NativeShard
from ..access.placement import ABSENT
from ..errors import ShardError
from ..options import Options
from ..storage.filelocks import NO_FILE
from ..zarr_plugin.updates import Unchanged, Work
from .reading import explained

__all__ = ["Change", "Draft", "Writer", "erase", "put", "put_if_absent", "within"]


class Draft:
    """A shard as it is about to be: what is stored, and changes that have been made to it. Nothing is read in vain.

    Parameters
    ----------
    chain
        Compiled chain of the shard.
    key : str
        How errors name it.
    source
        As for `NativeShard`.
    options : Options
    """

    def __init__(self, chain: Any, key: str, source: Any, options: Options) -> None:
        self._chain = chain
        self._key = key
        self._source = source
        self._options = options
        self._shard: NativeShard | None = None
        self.new: dict[int, Any] = {}

    def exists(self, position: int) -> bool:
        """Tell whether there is a chunk."""
        if position in self.new:
            return self.new[position] is not None
        return self._stored(lambda shard: bool(shard.entries(check=False)[position, 0] != ABSENT)) is True

    def value(self, position: int) -> Any:
        """Return a chunk; None where there is none."""
        if position in self.new:
            return self.new[position]

        def fetch(shard: NativeShard) -> Any:
            places = np.empty((1, 2), dtype=np.uint64)
            data, _ = shard.fetch(np.array([position], dtype=np.uint64), places, 1)
            offset, nbytes = places[0].tolist()
            return None if offset == ABSENT else memoryview(data).cast("B")[offset : offset + nbytes]

        return self._stored(fetch)

    def _stored(self, work: Callable[[NativeShard], Any]) -> Any:
        try:
            if self._shard is None:
                self._shard = NativeShard(self._chain, self._source, self._options)
            return None if self._shard.missing else work(self._shard)
        except ShardError as error:
            raise explained(error, self._chain, self._key) from None

    def close(self) -> None:
        """Let go of the shard."""
        if self._shard is not None:
            self._shard.close()


class Change:
    """A change of one shard.

    Parameters
    ----------
    apply : callable
        From a `Draft` to new chunks by position (None erases one). It may be called several times, in any thread, and raise
        to change nothing.
    blind : collection of int
        Positions that it sets whatever is stored. If it looks at the draft it has none.
    nbytes : int
        About as many bytes are written.
    """

    def __init__(
        self, apply: Callable[[Draft], Mapping[int, Any]], blind: Collection[int] = (), nbytes: int = 0
    ) -> None:
        self.apply = apply
        self.blind = blind
        self.nbytes = nbytes

    def begin(self) -> None:
        """The shard is ours: `blind` and `nbytes` count from now on."""


class _Within(Change):
    """A change of a chunk that is a shard of the transformer above."""

    def __init__(self, position: int, work: Work) -> None:
        super().__init__(self._apply)
        self._position = position
        self._work = work

    def begin(self) -> None:
        self._work.begin()
        self.blind = () if self._work.needs_old else (self._position,)
        self.nbytes = self._work.new_nbytes

    def _apply(self, draft: Draft) -> Mapping[int, Any]:
        old = draft.value(self._position) if self._work.needs_old else None
        try:
            return {self._position: self._work(old, False)}
        except Unchanged:
            return {}


def put(chunks: Mapping[int, Any]) -> Change:
    """Set chunks; None erases one, whether it is there or not."""
    nbytes = sum(memoryview(data).nbytes for data in chunks.values() if data is not None)
    return Change(lambda _: chunks, chunks.keys(), nbytes)


def put_if_absent(position: int, data: Any) -> Change:
    """Set a chunk that does not exist."""
    return Change(
        lambda draft: {} if draft.exists(position) else {position: data}, (), memoryview(data).nbytes
    )


def erase(positions: Sequence[int]) -> Change:
    """Erase those chunks that exist."""
    return Change(lambda draft: {p: None for p in positions if draft.exists(p)})


def within(position: int, work: Work) -> Change:
    """Exchange a chunk for another that is made of it."""
    return _Within(position, work)


class _Waiting(NamedTuple):
    change: Change
    done: asyncio.Future[None]


# Runs what makes a new shard, as `zarr_plugin.updates.update` does, from the shard's key.
Exchange = Callable[[str, Work, Options], Awaitable[None]]

_Key = tuple[asyncio.AbstractEventLoop, str, Options]

# Somebody has to hold on to tasks.
_tasks: set[asyncio.Task[None]] = set()


class Writer:
    """Writes the shards of one array.

    Parameters
    ----------
    chain
        Compiled chain of a shard.
    exchange : callable
    file_of : callable
        From a key to the file of the object (None where it is in no file), and a folder for temporary names.
    """

    def __init__(
        self, chain: Any, exchange: Exchange, file_of: Callable[[str], tuple[str | None, str | None]]
    ) -> None:
        self._chain = chain
        self._exchange = exchange
        self._file_of = file_of
        self._waiting: dict[_Key, list[_Waiting]] = {}

    async def change(self, shard: str, change: Change, options: Options) -> None:
        """Change a shard; returns when that is done.

        Raises
        ------
        ShardFormatError, ChecksumError
            The shard is damaged where it would have been carried over; it is as it was.
        LockError
            Another process writes to it, and did not end in time.
        Exception
            What the change raises.
        """
        loop = asyncio.get_running_loop()
        one = _Waiting(change, loop.create_future())
        queue = self._waiting.setdefault((loop, shard, options), [])
        queue.append(one)
        if len(queue) == 1:
            task = loop.create_task(self._run((loop, shard, options)))
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)
        await asyncio.shield(one.done)

    async def _run(self, key: _Key) -> None:
        """Write what waits for a shard, when its turn has come."""
        _, shard, options = key
        path, staging = self._file_of(shard)
        batch = _Batch(
            EncodedItem(self._chain, path, None, {}, shard), staging, options, lambda: self._waiting.pop(key)
        )
        failure: BaseException | None = None
        try:
            await self._exchange(shard, batch, options)
        except BaseException as error:  # noqa: BLE001  # raised where somebody waits for it
            failure = error
        batch.begin()  # if it did not come to that
        batch.settle(failure)


class _Batch:
    """All that waits for one shard, as `Work`."""

    def __init__(
        self, item: EncodedItem, staging: str | None, options: Options, take: Callable[[], list[_Waiting]]
    ) -> None:
        self._item = item
        self._staging = staging
        self._options = options
        self._take = take
        self._waiting: list[_Waiting] | None = None
        self._errors: dict[int, Exception] = {}
        self.new_nbytes = 0
        self.needs_old = True

    def begin(self) -> None:
        if self._waiting is not None:
            return
        self._waiting = self._take()
        blind: set[int] = set()
        for change, _ in self._waiting:
            change.begin()
            blind.update(change.blind)
            self.new_nbytes += change.nbytes
        looks = any(not change.blind for change, _ in self._waiting)
        self.needs_old = looks or len(blind) < self._item.chain.n_chunks

    def __call__(self, old: Any, keep_empty: bool) -> Any:
        chain, path, _, _, key, *_ = self._item
        source = old
        if path is not None and old is None:
            source = path  # there are no locks between processes
        elif path is not None and old == NO_FILE:
            source = None
        draft = Draft(chain, key, source, self._options)
        try:
            self._apply(draft)
        finally:
            draft.close()
        if not draft.new:
            raise Unchanged
        sequence = ordered(list(draft.new), chain.grid_shape, self._options.order)
        item = self._item._replace(chunks={position: draft.new[position] for position in sequence})
        if path is None:
            return write_encoded([item._replace(old=old)], self._options, keep_empty=keep_empty)[0]
        exist: list[int] = []
        item = item._replace(old_fd=old)
        write_encoded([item], self._options, staging=self._staging, exist=exist)
        return not exist

    def _apply(self, draft: Draft) -> None:
        assert self._waiting is not None
        self._errors = {}
        for i, (change, _) in enumerate(self._waiting):
            try:
                draft.new.update(change.apply(draft))
            except Exception as error:  # noqa: BLE001  # that of one change, which others need not suffer from
                self._errors[i] = error

    def settle(self, failure: BaseException | None) -> None:
        """Tell all that waited."""
        for i, (_, done) in enumerate(self._waiting or ()):
            error = self._errors.get(i) or failure
            if done.done():  # cancelled
                continue
            if isinstance(error, asyncio.CancelledError):
                done.cancel()
            elif error is None:
                done.set_result(None)
            else:
                done.set_exception(error)
