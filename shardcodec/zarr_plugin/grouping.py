# grouping.py - partial writes that are gathered, so that each shard is written once
# SPDX-License-Identifier: MIT
"""`group_writes`.

While a block is open, what is written through shardcodec's pipeline stays in memory (`access.gathered`), keyed by the
resolved path of the object, or by store and key: for the whole process, whatever thread or array it comes from. Reads
through the pipeline see it. An object is stored at the end of a block, when the memory budget is used up, or when
something has to be done with it that cannot be gathered.

All of an object that concerns its stored state happens under its lock in the table of this process; what it holds in
the end, element by element, is what was written last.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from ..access.boxes import Box
from ..access.conditional import exchange
from ..access.flush import flush
from ..access.gathered import Gathered
from ..access.reader import INLINE_NBYTES, decoded_nbytes
from ..errors import GroupWriteError
from ..options import Options
from ..storage import filelocks, locks
from ..storage.aio import all_of, to_its_end
from . import reading, writing
from .compat import buffer_from, on_zarrs_loop
from .remote import conditional_remote_for
from .requests import Part, Request
from .stores import check_writable, is_local, is_memory, local_path, lock_keys, staging, stored_bytes

__all__ = ["active", "group_writes"]

# Objects that are stored at a time; each is encoded with all threads of its options.
CONCURRENCY = 4


@dataclass(slots=True)
class _Entry:
    """An object with gathered writes."""

    gathered: Gathered
    part: Part
    options: Options
    last_write: int


class Group:
    """What is gathered in this process."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._clock = itertools.count()
        self._nbytes = 0
        self._mutex = threading.Lock()
        self._names: dict[tuple[int, str], tuple[Any, str]] = {}
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
        keys = self._keys(request)
        at_once = {i: None for i, part in enumerate(request.parts) if not self._gathers(part)}
        if at_once:
            await self._write_at_once(request, list(at_once), [keys[i] for i in at_once], options)
        for i, part in enumerate(request.parts):
            if i in at_once:
                continue
            async with locks.table().hold_async([keys[i]]):
                gathered = await self._gather(keys[i], part, request, options)
            if gathered:
                await self._keep_within_budget()
            else:
                await self._write_at_once(request, [i], [keys[i]], options)

    def _keys(self, request: Request) -> list[str]:
        """Names of the request's objects for locks: each is resolved once."""
        names = [(id(part.target.store), part.target.path) for part in request.parts]
        unknown = [i for i, name in enumerate(names) if name not in self._names]
        if unknown:
            targets = [request.parts[i].target for i in unknown]
            for i, target, key in zip(unknown, targets, lock_keys(targets), strict=True):
                self._names[names[i]] = target.store, key  # the store stays, so that its number does
        return [self._names[name][1] for name in names]

    def _gathers(self, part: Part) -> bool:
        """Whole objects gain nothing, selections by index are rare enough, and what is staged has no elements to gather."""
        native = part.chain.stage is None
        return native and not self.is_closing and _is_box(part.box) and not part.covers

    async def _write_at_once(
        self, request: Request, chosen: Sequence[int], keys: Sequence[str], options: Options
    ) -> None:
        """Store parts of a request now. What was gathered of their objects comes first, or is overwritten whole."""
        parts = [request.parts[i] for i in chosen]
        await self.settle(key for key, part in zip(keys, parts, strict=True) if not part.covers)
        async with locks.table().hold_async(keys):
            positions = [request.positions[i] for i in chosen]
            await writing.run(replace(request, parts=parts, positions=positions), options)
            for key, part in zip(keys, parts, strict=True):
                if part.covers:
                    self._forget(key)

    async def _gather(self, key: str, part: Part, request: Request, options: Options) -> bool:
        """Take over a part; False when it is too late for that. The object's lock in the table is held."""
        entry = self._entries.get(key)
        if entry is not None and entry.gathered.chain is not part.chain:  # memory of the other byte order
            await self._store(key, entry)
            entry = None
        if entry is None:
            gathered = Gathered(part.chain, request.array.dtype)
            entry = _Entry(gathered, part, options, 0)
        before = entry.gathered.nbytes
        box = _box_of(part)
        if decoded_nbytes(part.chain, part.box) <= INLINE_NBYTES:
            entry.gathered.write(box, request.axes, request.array)
        else:
            await to_its_end(asyncio.to_thread(entry.gathered.write, box, request.axes, request.array))
        entry.part, entry.options, entry.last_write = part, options, next(self._clock)
        with self._mutex:
            if self._is_closed:
                return False
            self._entries[key] = entry
            self._nbytes += entry.gathered.nbytes - before
        return True

    async def _keep_within_budget(self) -> None:
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
            return await reading.run(request, options)
        keys = self._keys(request)
        await self.settle(key for key, part in zip(keys, request.parts, strict=True) if not _is_box(part.box))
        # looked up before the store is: what is stored meanwhile is seen here or there
        found = [
            (i, entry)
            for i, key in enumerate(keys)
            if (entry := self._entries.get(key)) is not None and _is_box(request.parts[i].box)
        ]
        if not found:
            return await reading.run(request, options)
        needless = {i for i, entry in found if entry.gathered.has_all_of(_box_of(request.parts[i]))}
        rest = [i for i in range(len(keys)) if i not in needless]
        missing = await reading.run(
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
    def _overlay(request: Request, found: Sequence[tuple[int, _Entry]]) -> None:
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
        chosen = [key for key in (list(self._entries) if keys is None else keys) if key in self._entries]
        if not chosen:
            return
        limit = asyncio.Semaphore(CONCURRENCY)
        written: list[str] = []
        failures: dict[str, Exception] = {}

        async def store(key: str) -> None:
            try:
                async with limit, locks.table().hold_async([key]):
                    entry = self._entries.get(key)
                    if entry is not None:
                        await self._store(key, entry)
                        written.append(key)
            except Exception as error:  # noqa: BLE001  # raised below, with what became of the others
                failures[key] = error

        await all_of([store(key) for key in chosen])
        if failures:
            raise _failure(written, failures)

    async def _store(self, key: str, entry: _Entry) -> None:
        """Store one object; its lock in the table is held."""
        target, prototype = entry.part.target, entry.part.spec.prototype
        store: Any = target.store
        if is_local(store):

            async def write(old_fd: int | None) -> bool:
                exist: list[int] = []
                where = {"old_fd": old_fd, "staging": staging(store), "exist": exist}
                await self._flush(entry, local_path(target), None, **where)
                return not exist

            await filelocks.update_async(key, entry.options, write)
        elif is_memory(store):
            result = await self._flush(entry, None, stored_bytes(target, prototype))
            if result is None:
                store.delete_sync(target.path)
            else:
                store.set_sync(target.path, buffer_from(prototype, result))
        elif (remote := conditional_remote_for(store)) is not None:

            async def renew(_: Sequence[int], olds: Sequence[Any]) -> list[Any]:
                (old,) = olds
                if old is None:
                    return [await self._flush(entry, None, None)]
                return [await self._flush(entry, None, old.data, keep_empty=True)]

            await exchange([target.path], renew, entry.options, remote, 1)
        else:
            old = None if entry.gathered.is_complete else await target.get(prototype=prototype)
            result = await self._flush(entry, None, None if old is None else old.as_numpy_array())
            if result is None:
                await target.delete()
            else:
                await target.set(buffer_from(prototype, result))
        self._forget(key)

    @staticmethod
    async def _flush(entry: _Entry, path: str | None, old: Any, **choices: Any) -> Any:
        return await to_its_end(
            asyncio.to_thread(
                flush,
                entry.gathered,
                path,
                old,
                entry.part.target.path,
                entry.options,
                write_empty=bool(entry.part.spec.config.write_empty_chunks),
                **choices,
            )
        )

    def _forget(self, key: str) -> None:
        with self._mutex:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self._nbytes -= entry.gathered.nbytes

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


# ---- the blocks of this process


class _Blocks:
    """The blocks that are open, and what is gathered while any is."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.open: list[group_writes] = []
        self.group: Group | None = None

    def enter(self, block: group_writes) -> None:
        with self.mutex:
            if self.open and not (block.flush_on_error and all(other.flush_on_error for other in self.open)):
                raise RuntimeError(
                    "group_writes(flush_on_error=False) drops what was gathered, so no other block may be open beside it"
                )
            self.open.append(block)
            if self.group is None:
                self.group = Group()
            self._adjust(self.group)

    def leave(self, block: group_writes) -> Group | None:
        """Return what is to be stored now; None in a child that was forked inside the block."""
        with self.mutex:
            if block not in self.open:
                return None
            self.open.remove(block)
            if self.group is not None:
                self._adjust(self.group)
            return self.group

    def close(self, group: Group, *, drop: bool) -> bool:
        """End what `leave` returned, unless other blocks go on with it; False when there is something to be stored."""
        with self.mutex:
            if self.open or self.group is not group:
                return True
            if not group.close(drop=drop):
                return False
            self.group = None
            return True

    def _adjust(self, group: Group) -> None:
        group.is_closing = not self.open
        group.max_nbytes = min((block.max_bytes for block in self.open), default=0)


_blocks = _Blocks()


def active() -> Group | None:
    """Return what is gathered in this process; None when no block is open."""
    return _blocks.group


class group_writes:  # noqa: N801  # used as a function is
    """Gather partial writes of zarr arrays and write each shard once.

    In the block, assignments to arrays on shardcodec's pipeline, in any store and from any thread of this process, are
    kept in memory, where reads through that pipeline see them. Each shard is written once, with the strategy and
    durability that hold for it, when the block ends, or before that when the memory is used up. Neighbouring elements
    that other processes write meanwhile are kept: only what was assigned here is changed.

    Parameters
    ----------
    max_bytes : int
        Memory for what is gathered: decoded inner chunks, as far as they were touched. When it is used up, shards that
        are complete are written, then those that have been left alone longest. Encoding takes memory of its own.
    flush_on_error : bool
        Whether what was assigned before an exception is written when it leaves the block; it is, without the block. With
        False it is dropped, apart from what the memory budget has forced out before.

    Raises
    ------
    GroupWriteError
        At the end of the block, or at an assignment that used up the memory: some shards could not be written;
        ``written`` and ``unwritten`` list them. At the end of the block the latter are dropped.
    RuntimeError
        Blocks may be nested and may overlap in several threads: they gather together, and the end of each writes all
        that there is. Only one with ``flush_on_error=False`` has to be alone.

    Notes
    -----
    Other pipelines, stores and processes see the writes when they are stored. Inside the block arrays must not be resized,
    overwritten or deleted. A child process forked inside starts with nothing gathered. In a coroutine
    ``async with`` waits without blocking the event loop.

    Examples
    --------
    >>> with shardcodec.group_writes():
    ...     for i in range(array.shape[0]):
    ...         array[i] = plane(i)
    """

    def __init__(self, max_bytes: int = 256 << 20, *, flush_on_error: bool = True) -> None:
        if isinstance(max_bytes, bool) or not isinstance(max_bytes, int):
            raise TypeError(f"max_bytes must be an int, not {type(max_bytes).__name__}")
        if max_bytes < 0:
            raise ValueError(f"max_bytes must be at least 0, got {max_bytes}")
        self.max_bytes = max_bytes
        self.flush_on_error = bool(flush_on_error)

    def __enter__(self) -> None:
        _blocks.enter(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        group = _blocks.leave(self)
        if group is not None:
            on_zarrs_loop(self._end(group, failed=kind is not None))

    async def __aenter__(self) -> None:
        _blocks.enter(self)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        group = _blocks.leave(self)
        if group is not None:
            await self._end(group, failed=kind is not None)

    async def _end(self, group: Group, *, failed: bool) -> None:
        drop = failed and not self.flush_on_error
        try:
            while not drop:
                await group.settle()
                if _blocks.close(group, drop=False):
                    return  # else an assignment that was under way has come in
        finally:
            _blocks.close(group, drop=True)


def _forget() -> None:
    global _blocks
    _blocks = _Blocks()


# A forked child has none of its parent's assignments: the parent stores them.
os.register_at_fork(after_in_child=_forget)
