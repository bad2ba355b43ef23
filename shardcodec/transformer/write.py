# write.py - changes of chunks, gathered so that a shard is written once for all that wait for it
# SPDX-License-Identifier: MIT
"""Writing.

A change of a chunk is one of its shard: a partial write like any other, by the ways, under the locks and with the checks of
`access.shard_change`. What a change makes of a chunk may depend on what is stored; it finds that out when the shard's lock is
held.

Whoever writes an array through the transformer sets its chunks one by one, many at a time. Changes of one shard that come
while it is being written wait, and are then written together.

Where the store below is a transformer itself, a shard is a chunk of its own: the change of one is then made within the change
of the other, under the lock of the shard that really is an object. So a stack loses nothing either.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ..access import shard_change
from ..access.shard_change import Found, Maker
from ..errors import ShardError
from ..options import Options
from ..zarr_plugin.codec_update import Unchanged, Work
from .nested_shard import Opened
from .values import explained

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["Change", "Draft", "Writer", "erase", "put", "put_if_absent", "within"]


class Look(Protocol):
    """What a draft is made on; see `access.shard_change.Found`."""

    @property
    def shard(self) -> Opened: ...


class Draft:
    """A shard as it is about to be: what was found, and changes that have been made to it. Nothing is read in vain."""

    def __init__(self, found: Look, chain: Chain, key: str) -> None:
        self._found = found
        self._chain = chain
        self._key = key
        self.new: dict[int, Any] = {}

    def exists(self, position: int) -> bool:
        """Tell whether there is a chunk."""
        if position in self.new:
            return self.new[position] is not None
        return self._entry(position) is not None

    def value(self, position: int) -> Any:
        """Return a chunk; None where there is none."""
        if position in self.new:
            return self.new[position]
        entry = self._entry(position)
        return None if entry is None else self._found.shard.range(*entry)

    def _entry(self, position: int) -> tuple[int, int] | None:
        try:
            shard = self._found.shard
            return None if shard.missing else shard.entry(position)
        except ShardError as error:
            raise explained(error, self._chain, self._key) from None


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
    given : mapping, optional
        What becomes of its chunks whatever is stored: as from `apply`.
    part : callable, optional
        Returns the change of some of its chunks alone, with bytes of its own. A change with neither cannot wait.
    """

    def __init__(
        self,
        apply: Callable[[Draft], Mapping[int, Any]],
        blind: Collection[int] = (),
        nbytes: int = 0,
        *,
        given: Mapping[int, Any] | None = None,
        part: Callable[[Collection[int]], Change] | None = None,
    ) -> None:
        self.apply = apply
        self.blind = blind
        self.nbytes = nbytes
        self.given = given
        self.part = part

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
    return Change(lambda _: chunks, chunks.keys(), nbytes, given=chunks)


def put_if_absent(position: int, data: Any) -> Change:
    """Set a chunk that does not exist."""
    return Change(
        lambda draft: {} if draft.exists(position) else {position: data}, (), memoryview(data).nbytes
    )


def erase(positions: Sequence[int]) -> Change:
    """Erase those chunks that exist."""
    return Change(
        lambda draft: {p: None for p in positions if draft.exists(p)}, given=dict.fromkeys(positions)
    )


def within(position: int, work: Work) -> Change:
    """Exchange a chunk for another that is made of it."""
    return _Within(position, work)


class _Waiting(NamedTuple):
    change: Change
    done: asyncio.Future[None]


class _Place(NamedTuple):
    key: str
    path: str | None
    staging: str | None


# Runs what makes a new shard, as `zarr_plugin.codec_update.update` does, from the shard's key.
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
        Coroutine function: from a key to the file of the object (None where it is in no file), and a folder for temporary names.
    """

    def __init__(
        self,
        chain: Chain,
        exchange: Exchange,
        file_of: Callable[[str], Awaitable[tuple[str | None, str | None]]],
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

    async def change_held(
        self, shard: str, change: Change, options: Options, exchange: Callable[[Work], Awaitable[None]]
    ) -> None:
        """Change a shard that is ours already; as `change`.

        Parameters
        ----------
        exchange : callable
            Runs what makes the new shard.
        """
        one = _Waiting(change, asyncio.get_running_loop().create_future())
        batch = _Batch(self._chain, _Place(shard, *await self._file_of(shard)), options, lambda: [one])
        await exchange(batch)
        batch.settle(None)
        await one.done

    async def _run(self, key: _Key) -> None:
        """Write what waits for a shard, when its turn has come."""
        _, shard, options = key
        place = _Place(shard, *await self._file_of(shard))
        batch = _Batch(self._chain, place, options, lambda: self._waiting.pop(key))
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
        self, chain: Chain, place: _Place, options: Options, take: Callable[[], list[_Waiting]]
    ) -> None:
        self._chain = chain
        self._key = place.key
        self._order = options.order
        self._maker = Maker(place, chain, self._decide, options, place.staging)
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
        self.needs_old = looks or len(blind) < self._chain.n_chunks

    def __call__(self, old: Any, keep_empty: bool) -> Any:
        return self._maker.make(old, keep_empty)

    def _decide(self, found: Found) -> shard_change.Change:
        draft = Draft(found, self._chain, self._key)
        assert self._waiting is not None
        self._errors = {}
        for i, (change, _) in enumerate(self._waiting):
            try:
                draft.new.update(change.apply(draft))
            except Exception as error:  # noqa: BLE001  # that of one change, which others need not suffer from
                self._errors[i] = error
        if not draft.new:
            raise Unchanged
        return shard_change.Change.of(draft.new, self._chain.grid_shape, self._order)

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
