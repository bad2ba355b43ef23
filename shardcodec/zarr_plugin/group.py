# group.py - what is gathered of objects, and stored once for each
# SPDX-License-Identifier: MIT
"""What a block of `group_writes` gathers.

While one is open, what is written through shardcodec's pipeline stays in memory (`access.overlay`), keyed by the
resolved path of the object, or by store and key: for the whole process, whatever thread or array it comes from. Reads
through the pipeline see it. Another surface may have changes gathered that are no elements (`Held`). An object is stored at the end of a block, when the memory budget is used up, or when
something has to be done with it that cannot be gathered.

All of an object that concerns its stored state happens under its lock in the table of this process; what it holds in
the end, element by element, is what was written last.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..access.chunk_codec import memory_order
from ..access.overlay import Gathered
from ..access.read import INLINE_NBYTES, decoded_nbytes
from ..access.regions import Box
from ..access.shard_object import ShardObject
from ..compat import StorePath, as_numpy, on_zarrs_loop
from ..errors import GroupWriteError
from ..options import Options
from ..storage import locks
from ..storage.tasks import all_of, to_its_end
from . import flush_group, read_request, write_request
from .array_codecs import MAX_CHAINS, Kind
from .lock_names import Names
from .pending import Entry, Held, HeldEntry, is_held
from .request import Declined, Part, Request
from .stores import (
    are_links,
    check_writable,
    lies_in,
    lock_keys_async,
)

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["GatherShortcut", "Group"]

# Objects that are stored at a time; each is encoded with all threads of its options.
CONCURRENCY = 4


# Whether this task stores what was gathered. An array over a store of chunks gives its chunks to that, which gathers them.
_storing: ContextVar[bool] = ContextVar("_storing", default=False)


class Group:
    """What is gathered in this process."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry | HeldEntry] = {}
        self._clock = itertools.count()
        self._nbytes = 0
        self._mutex = threading.Lock()
        self._names = Names()
        self._is_closed = False
        self.max_nbytes = 0
        self.is_closing = False

    @property
    def nbytes(self) -> int:
        """Memory that is held."""
        return self._nbytes

    # ---- writing

    async def write(self, request: Request, options: Options) -> None:
        """Take over a request, or what of it is worth that; the rest is stored at once."""
        check_writable(request.store)
        keys = await self._keys(request)
        if len(keys) == 1 and self._gather_quickly(keys[0], request, options):
            await self.keep_within_budget()
            return
        at_once = {i: None for i, part in enumerate(request.parts) if not self._gathers(part)}
        if at_once:
            await self._write_at_once(request, list(at_once), [keys[i] for i in at_once], options)
        for i, part in enumerate(request.parts):
            if i in at_once:
                continue
            async with locks.table().hold_async([keys[i]]):
                gathered = await self._gather(keys[i], part, request, options)
            if gathered:
                await self.keep_within_budget()
            else:
                await self._write_at_once(request, [i], [keys[i]], options)

    async def _keys(self, request: Request) -> list[str]:
        """Names of the request's objects for locks."""
        return await self._names.of([part.target for part in request.parts])

    def _gathers(self, part: Part) -> bool:
        """Whole objects gain nothing, selections by index are rare enough, and what is staged has no elements to gather."""
        native = part.chain.stage is None
        return native and not self.is_closing and _is_box(part.box) and not part.covers

    async def _write_at_once(
        self, request: Request, chosen: Sequence[int], keys: Sequence[str], options: Options
    ) -> None:
        """Store parts of a request now. What was gathered of their objects comes first, or is overwritten whole.

        What was gathered of a link comes first too: to erase one leaves the file as it was, which may have other names.
        """
        parts = [request.parts[i] for i in chosen]
        links = await are_links([part.target for part in parts])
        kept = (not part.covers or link for part, link in zip(parts, links, strict=True))
        await self.settle(itertools.compress(keys, kept))
        async with locks.table().hold_async(keys):
            positions = [request.positions[i] for i in chosen]
            await write_request.run(replace(request, parts=parts, positions=positions), options)
            for key, part in zip(keys, parts, strict=True):
                if part.covers:
                    self._forget(key)

    async def _gather(self, key: str, part: Part, request: Request, options: Options) -> bool:
        """Take over a part; False when it is too late for that. The object's lock in the table is held."""
        entry = self._entries.get(key)
        if isinstance(entry, HeldEntry) or (entry is not None and entry.gathered.chain is not part.chain):
            await self._store(key, entry)  # no elements, or in memory of the other byte order
            entry = None
        if entry is None:
            gathered = Gathered(part.chain, request.array.dtype)
            entry = Entry(gathered, part.target, part.spec, options, 0)
        before = entry.gathered.nbytes
        box = _box_of(part)
        if decoded_nbytes(part.chain, part.box) <= INLINE_NBYTES:
            entry.gathered.write(box, request.axes, request.array)
        else:
            await to_its_end(asyncio.to_thread(entry.gathered.write, box, request.axes, request.array))
        return self._note(key, entry, before, part.target, part.spec, options)

    def _gather_quickly(self, key: str, request: Request, options: Options) -> bool:
        """Take over the only part of a request where that is soon done."""
        (part,) = request.parts
        if not self._gathers(part) or decoded_nbytes(part.chain, part.box) > INLINE_NBYTES:
            return False

        def write(gathered: Gathered) -> bool:
            gathered.write(_box_of(part), request.axes, request.array)
            return True

        return self._add(key, part.chain, write, part.target, part.spec, options)

    def take_slices(self, item: Any, chain: Chain, array: np.ndarray[Any, Any], options: Options) -> bool:
        """Take over the only item of a batch, if it is all of one small inner chunk of an object that is gathered already."""
        target, spec, chunk_selection, array_selection, _ = item
        key = self._names.known(target)
        if key is None or self.is_closing or target.store.read_only:
            return False

        def write(gathered: Gathered) -> bool:
            return gathered.write_slices(chunk_selection, array_selection, array)

        return self._add(key, chain, write, target, spec, options)

    def _add(
        self,
        key: str,
        chain: Chain,
        write: Callable[[Gathered], bool],
        target: StorePath,
        spec: Any,
        options: Options,
    ) -> bool:
        """Write to what is gathered of an object; False where nothing is, or somebody is at it, or `write` says so."""
        table = locks.table()
        if not table.try_acquire(key):
            return False
        try:
            entry = self._entries.get(key)
            if not isinstance(entry, Entry) or entry.gathered.chain is not chain:
                return False
            before = entry.gathered.nbytes
            return write(entry.gathered) and self._note(key, entry, before, target, spec, options)
        finally:
            table.release(key)

    def _note(
        self, key: str, entry: Entry, before: int, target: StorePath, spec: Any, options: Options
    ) -> bool:
        """Note what an object has come to; False when it is too late for that. Its lock in the table is held."""
        entry.target, entry.spec, entry.options, entry.last_write = target, spec, options, next(self._clock)
        with self._mutex:
            if self._is_closed:
                return False
            self._entries[key] = entry
            self._nbytes += entry.gathered.nbytes - before
        return True

    async def hold(
        self, target: StorePath, kind: Hashable, take: Callable[[Any], Awaitable[Held | None]]
    ) -> bool:
        """Gather a change of an object that is not one of elements.

        Parameters
        ----------
        target : StorePath
        kind : hashable
            That of the `Held`.
        take : callable
            Coroutine function: from what is held of that kind (None: nothing) to that and the change; None where the
            change cannot wait. It is called under the object's lock in the table, and may raise to leave all as it is.

        Returns
        -------
        bool
            False when the change is to be made at once; nothing is held of the object then.
        """
        (key,) = await lock_keys_async([target])
        held = None
        if not self.is_closing or _storing.get():
            async with locks.table().hold_async([key]):
                entry = self._entries.get(key)
                if entry is not None and not is_held(entry, kind):
                    await self._store(key, entry)
                    entry = None
                before = 0 if entry is None else entry.gathered.nbytes
                held = await take(None if entry is None else entry.gathered)
                if held is not None:
                    with self._mutex:
                        if self._is_closed:
                            return False
                        self._entries[key] = HeldEntry(held, next(self._clock))
                        self._nbytes += held.nbytes - before
        if held is None:
            await self.settle([key])
        elif not _storing.get():  # else who stores has an eye on it
            await self.keep_within_budget()
        return held is not None

    # as an `access.chunk_overlay.Gatherer`, for threads that wait

    def name_of(self, target: ShardObject) -> str:
        """Name an object."""
        return self._names.of_object(target)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is gathered of any object."""
        return not self._entries

    def has(self, name: str) -> bool:
        """Whether anything is gathered of this object."""
        return name in self._entries

    def hold_now(self, name: str, kind: Hashable, take: Callable[[Any], Held]) -> bool:
        """As `hold`, for a change that can always wait, but False in a caller who holds the object's lock."""
        table = locks.table()
        while not self.is_closing and not table.holds(name):
            with table.hold([name]):
                entry = self._entries.get(name)
                if entry is None or is_held(entry, kind):
                    is_taken = self._take(name, entry, take)
                    break
            self.settle_now(name)  # what is of another kind
        else:
            return False
        if self._nbytes > self.max_nbytes:
            on_zarrs_loop(self.keep_within_budget())
        return is_taken

    def _take(self, name: str, entry: Any, take: Callable[[Any], Held]) -> bool:
        """Add to what is held of an object, whose lock in the table is held; False when it is too late."""
        before = 0 if entry is None else entry.gathered.nbytes
        held = take(None if entry is None else entry.gathered)
        with self._mutex:
            if self._is_closed:
                return False
            self._entries[name] = HeldEntry(held, next(self._clock))
            self._nbytes += held.nbytes - before
        return True

    def settle_now(self, name: str) -> None:
        """As `settle`, of one object."""
        on_zarrs_loop(self.settle([name]))

    async def held(self, target: StorePath, kind: Hashable) -> Any:
        """Return what `hold` gathered of an object, None when that is nothing; what was gathered otherwise is stored."""
        if not self._entries:
            return None
        (key,) = await lock_keys_async([target])
        entry = self._entries.get(key)
        if entry is None or is_held(entry, kind):
            return None if entry is None else entry.gathered
        await self.settle([key])
        return None

    async def keep_within_budget(self) -> None:
        """Store objects until the rest fits: such as are complete, then those that have been left alone longest."""
        while self._nbytes > self.max_nbytes:
            with self._mutex:
                key = min(
                    self._entries,
                    key=lambda key: (
                        not self._entries[key].gathered.is_complete,
                        self._entries[key].last_write,
                    ),
                )
            await self.settle([key])

    # ---- reading

    async def read(self, request: Request, options: Options) -> set[int]:
        """Fill the request's array; return the positions of objects that do not exist."""
        if not self._entries:
            return await read_request.run(request, options)
        keys = await self._keys(request)
        await self.settle(
            key
            for key, part in zip(keys, request.parts, strict=True)
            if not _is_box(part.box) or isinstance(self._entries.get(key), HeldEntry)
        )
        # looked up before the store is: what is stored meanwhile is seen here or there
        found = [
            (i, entry)
            for i, key in enumerate(keys)
            if isinstance(entry := self._entries.get(key), Entry) and _is_box(request.parts[i].box)
        ]
        if not found:
            return await read_request.run(request, options)
        needless = {i for i, entry in found if entry.gathered.has_all_of(_box_of(request.parts[i]))}
        rest = [i for i in range(len(keys)) if i not in needless]
        missing = await read_request.run(
            replace(
                request,
                parts=[request.parts[i] for i in rest],
                positions=[request.positions[i] for i in rest],
            ),
            options,
        )
        if request.is_small:
            self._overlay(request, found)
        else:
            await to_its_end(asyncio.to_thread(self._overlay, request, found))
        return missing - {request.positions[i] for i, _ in found}

    @staticmethod
    def _overlay(request: Request, found: Sequence[tuple[int, Entry]]) -> None:
        for i, entry in found:
            entry.gathered.overlay(_box_of(request.parts[i]), request.axes, request.array)

    # ---- storing

    async def settle(self, keys: Iterable[str] | None = None) -> None:
        """Store what was gathered of these objects, or of all.

        Raises
        ------
        GroupWriteError
            Some could not be stored; they are kept.
        """
        names = None if keys is None else list(keys)
        if not self._entries or names == []:
            return
        limit = asyncio.Semaphore(CONCURRENCY)
        written: list[str] = []
        failures: dict[str, Exception] = {}

        async def store(key: str) -> None:
            token = _storing.set(True)
            try:
                async with limit, locks.table().hold_async([key]):
                    entry = self._entries.get(key)
                    if entry is not None:
                        await self._store(key, entry)
                        written.append(key)
            except Exception as error:  # noqa: BLE001  # raised below, with what became of the others
                failures[key] = error
            finally:
                _storing.reset(token)

        for kind in (Entry, HeldEntry):  # elements first: where they are stored may be what is held
            chosen = list(self._entries) if names is None else names
            await all_of([store(key) for key in chosen if isinstance(self._entries.get(key), kind)])
        if failures:
            raise _failure(written, failures)

    async def settle_all_of(self, targets: Sequence[StorePath]) -> None:
        """Store what was gathered of objects of one store, and of parts of them; as `settle`."""
        own = set(await lock_keys_async(targets)) if self._entries else set()
        if own:
            await self.settle(name for name in list(self._entries) if lies_in(name, own))
            await self.settle(name for name in own if name in self._entries)  # where parts may be held now

    async def _store(self, key: str, entry: Entry | HeldEntry) -> None:
        """Store one object; its lock in the table is held."""
        await flush_group.store(entry)
        self._forget(key)

    def _forget(self, key: str) -> None:
        with self._mutex:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._nbytes -= entry.gathered.nbytes

    def names(self) -> list[str]:
        """List the objects of which anything is gathered."""
        with self._mutex:
            return list(self._entries)

    def close(self, *, drop: bool) -> bool:
        """Take nothing any more, and forget what there is if `drop`; False, and still open, when there is something."""
        with self._mutex:
            if self._entries and not drop:
                return False
            self._entries.clear()
            self._nbytes = 0
            self._is_closed = True
            return True


def _is_box(parts: Any) -> bool:
    """Whether parts of an object are a box of rank 1 or more."""
    return isinstance(parts, Box) and len(parts.count) > 0


def _box_of(part: Part) -> Box:
    """The box of a part that has one."""
    assert isinstance(part.box, Box)
    return part.box


def _failure(written: Sequence[str], failures: dict[str, Exception]) -> GroupWriteError:
    first = next(iter(failures.values()))
    error = GroupWriteError(
        f"{len(failures)} of {len(failures) + len(written)} shards could not be stored ({', '.join(failures)}): {first}",
        written=tuple(written),
        unwritten=tuple(failures),
        failures=failures,
    )
    error.__cause__ = first
    return error


class GatherShortcut:
    """Assignments of one whole inner chunk each while a block of `group_writes` is open, as loops over them make.

    Everything else, and the first of each object, is left to `Group.write`.
    """

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._chain = functools.lru_cache(MAX_CHAINS)(self._usual_chain)

    def gather(self, item: Any, buffer: Any, options: Options, group: Group) -> bool:
        """Take over the only item of a batch; False when nothing has been done."""
        target, spec, *_ = item
        array = as_numpy(buffer)
        if array is None or type(target) is not StorePath:
            return False
        chain = self._chain(spec.shape, array.dtype)
        return chain is not None and group.take_slices(item, chain, array, options)

    def _usual_chain(self, shape: tuple[int, ...], dtype: Any) -> Chain | None:
        """The chain of such chunks; None where it takes no inner chunks by themselves, or large ones."""
        native_order = memory_order(dtype, self._kind.dtype)
        if native_order is None:
            return None
        try:
            chain = self._kind.chain(shape, native_order)
        except Declined:
            return None
        usual = chain.is_shard and chain.stage is None and chain.n_chunks > 1
        return chain if usual and chain.inner.nbytes + chain.index_nbytes <= INLINE_NBYTES else None
