# process_buffer.py - the buffered writes of this process
# SPDX-License-Identifier: MIT
"""`ProcessBuffer`: the buffered writes of this process, by object.

While a block of `group_writes` is open, writes through shardcodec stay in memory, from any thread and any array. Reads
through shardcodec see them. The buffered writes of an object are `BufferedElements`, or those of another surface
(`BufferedWrites`). An object is named by its name for locks, so two ways to one object lead to the same buffered writes.

Buffered writes are flushed at the end of a block, when they exceed the memory budget, and before an operation that cannot
be buffered. Each change to the buffered writes of an object is made under the object's lock in the table of this process.
If several writes assign the same element, the last one counts.

Buffered writes are void when their object is deleted. Deletions through the stores of this process drop them at once
(`ProcessBuffer.deleting`); those by other processes are noticed at the flush, which compares the layout that the writes were
made for with the stored metadata (`LayoutGuard`).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from threading import get_ident
from typing import Any, NamedTuple

import numpy as np

from ... import native
from ...errors import GroupWriteError
from ...options import Options
from ...storage import file_locks, process_locks
from ...storage.event_loop import all_of, in_thread
from ...storage.kinds import store_of
from ...storage.object_names import holders_of, lies_below, lies_in
from ...storage.runner import BLOCKING, ON_LOOP, Runner, run_blocking
from ...storage.store import Store
from ..array_read import read_request
from ..array_request import Request
from ..array_write import write_request
from ..read import INLINE_NBYTES, ObjectSelection, decoded_nbytes
from ..regions import Box
from ..shard_object import ShardObject
from .buffered import BufferedElements, BufferedWrites, LayoutGuard, LayoutLooks, LockName, LockNames, Target
from .overlay import Overlay

__all__ = ["ProcessBuffer"]

# Objects that are flushed at the same time; each is encoded with all threads of its options.
CONCURRENCY = 4
# Most memory that the overlay takes per byte of an inner chunk: each element of one byte has one byte of the mask.
MASKED = 2
# Shards that the message of an error names; its attributes have all of them.
NAMES_IN_ERROR = 5


class _Flush:
    """A flush, which may be over for a task or a thread that it has started."""

    is_over = False


# The flush that this task is a part of. An array over a transformer stores its chunks there, and the transformer buffers them.
_flush: ContextVar[_Flush | None] = ContextVar("shardcodec.flush", default=None)


def _is_flushing() -> bool:
    flush = _flush.get()
    return flush is not None and not flush.is_over


class ProcessBuffer:
    """The buffered writes of this process.

    max_nbytes: memory budget. is_closing: True while no block is open, so that nothing more is buffered.
    """

    def __init__(self) -> None:
        self.max_nbytes = 0
        self.is_closing = False
        self._objects: dict[str, BufferedWrites] = {}
        self._clock = itertools.count()
        self._nbytes = 0
        # Guards `_objects`, `_nbytes` and `_is_closed`. Code under it creates no objects, so it starts no garbage collection,
        # which could close a generator that leaves a block and waits for a flush.
        self._mutex = native.load().Mutex()
        self._is_closed = False
        self._names = LockNames()
        self._looks = LayoutLooks()
        # Objects with values that have had buffered writes, such as shards with chunks of an array over a transformer. No name
        # is removed, so that no lock is needed.
        self._holders: dict[str, None] = {}

    def check_not_interrupted(self) -> None:
        """Raise RuntimeError or LockError if the caller is a signal handler for which a flush would wait: that needs what is interrupted."""
        _ = self._mutex.version
        if (name := self.interrupted_name()) is not None:
            raise file_locks.interrupted(name)

    def interrupted_name(self) -> str | None:
        """Return the name of an object with buffered writes whose lock this thread needs in code that is interrupted, if there is one."""
        return next((name for name in process_locks.table().wanted_by(get_ident()) if self.has(name)), None)

    @property
    def nbytes(self) -> int:
        """Memory of the buffered writes, in bytes."""
        return self._nbytes

    @property
    def is_empty(self) -> bool:
        """True if no object has buffered writes."""
        return not self._objects

    def has(self, name: str) -> bool:
        """Return True if an object, or a value in it, has buffered writes."""
        return name in self._objects or bool(self._values_in([name]))

    def names(self) -> list[str]:
        """Return the names of the objects with buffered writes."""
        return list(self._objects)  # one step for other threads, because strings are hashed and compared in C

    def name_of(self, target: ShardObject) -> LockName:
        """Return the name of the object of a handle."""
        return self._names.of_object(target)

    def _values_in(self, names: Iterable[str]) -> list[str]:
        """Return the names of values in these objects that have buffered writes; none in a flush, which may store one of them."""
        if not self._holders or _is_flushing():
            return []
        whole = {name for name in names if name in self._holders}
        return [name for name in self.names() if lies_in(name, whole)] if whole else []

    def _chosen(self, names: Iterable[str]) -> dict[str, BufferedWrites]:
        """Return the buffered writes of those of the objects that have any."""
        return {name: writes for name in names if (writes := self._objects.get(name)) is not None}

    async def write(
        self, request: Request, options: Options, guard: LayoutGuard | None = None, runner: Runner = ON_LOOP
    ) -> None:
        """Buffer a request; items that gain nothing from the buffer are stored at once."""
        store, items = request.store, request.items
        store.check_writable()
        if self.write_quickly(request, options, guard):
            return
        names = await self._names.of(store, [item.key for item in items], runner)
        await self._flush_values(runner, [name.name for name in names])
        at_once = [i for i, item in enumerate(items) if not self._may_buffer(names[i], item)]
        if at_once:
            await self._write_at_once(request, at_once, names, options, runner)
        for i, item in enumerate(items):
            if i in at_once:
                continue
            target = Target(store, item.key, item.chain, options, request.writes_empty, guard)
            put, nbytes = _put_box(item, request), decoded_nbytes(item.chain, item.box)
            inline = nbytes <= INLINE_NBYTES
            if inline and self.put_quickly(names[i], item.chain, target, put, nbytes):
                continue
            is_buffered = await self.add_elements(
                names[i], item.chain, target, request.array.dtype, put, runner, inline=inline
            )
            if not is_buffered:
                await self._write_at_once(request, [i], names, options, runner)

    def write_quickly(self, request: Request, options: Options, guard: LayoutGuard | None) -> bool:
        """Buffer a small request for one object of a writable store; return as `put_quickly`."""
        if len(request.items) != 1:
            return False
        (item,) = request.items
        name, nbytes = self._names.known(request.store, item.key), decoded_nbytes(item.chain, item.box)
        if name is None or nbytes > INLINE_NBYTES or not self._may_buffer(name, item):
            return False
        target = Target(request.store, item.key, item.chain, options, request.writes_empty, guard)
        return self.put_quickly(name, item.chain, target, _put_box(item, request), nbytes)

    def put_quickly(
        self, name: LockName, kind: Hashable, target: Target, put: Callable[[Overlay], bool], nbytes: int
    ) -> bool:
        """Write elements to an overlay that exists, without waiting; the coroutines take longer than a small write.

        Returns False if nothing was buffered: the object has no elements of this kind yet, or values with writes of their own;
        its lock is not free, the memory budget may be exceeded, or `put` has returned False. The caller then uses `write` or
        `add_elements`.

        Parameters
        ----------
        name : LockName
            The name of the object.
        kind : hashable
            Kind of the elements; see `BufferedWrites`.
        target : Target
            Where and how they are stored.
        put : callable
            Writes the elements.
        nbytes : int
            Size of the inner chunks with these elements.
        """
        if name.is_link or self.is_closing or self._nbytes + MASKED * nbytes > self.max_nbytes:
            return False
        if name.name in self._holders:
            return False
        with process_locks.table().hold_free(name.name) as is_held:
            writes = self._objects.get(name.name)
            if not is_held or not isinstance(writes, BufferedElements) or writes.kind != kind:
                return False
            if not put(writes.overlay):
                return False
            writes.target = target
            return self._note(name.name, writes)

    def _may_buffer(self, name: LockName, item: ObjectSelection) -> bool:
        """Return True if an item of a request is buffered.

        A write of a whole object gains nothing. A selection by indices is rare. Codecs without native code have no
        elements to buffer.
        """
        is_native = item.chain.stage is None
        return is_native and self._takes(name) and _box_of(item) is not None and not item.replaces

    def _takes(self, name: LockName) -> bool:
        """Return True if writes of an object are buffered now.

        A write through a symbolic link may remove the link, but the buffered write would have the name of its target.
        """
        return not name.is_link and (not self.is_closing or _is_flushing())

    async def _write_at_once(
        self,
        request: Request,
        chosen: Sequence[int],
        names: Sequence[LockName],
        options: Options,
        runner: Runner,
    ) -> None:
        """Store items of a request now.

        Buffered writes of their objects are flushed first, or dropped if the item replaces the object. Those of a symbolic
        link are always flushed: an erase removes the link and keeps the file, which may have other names.
        """
        replaced = [names[i].name for i in chosen if request.items[i].replaces and not names[i].is_link]
        changed = [names[i].name for i in chosen]
        await self._flush_from(runner, [name for name in changed if name not in replaced])

        async def work() -> None:
            await write_request(_selected(request, chosen), options, runner)
            for name in replaced:
                self._drop(name)

        await runner.under_locks(changed, work)

    async def add_elements(
        self,
        name: LockName,
        kind: Hashable,
        target: Target,
        dtype: np.dtype[Any],
        put: Callable[[Overlay], bool],
        runner: Runner,
        *,
        inline: bool,
    ) -> bool:
        """Buffer elements, which `put` writes to the overlay of their object; return as `add`."""

        async def change(writes: BufferedElements | None) -> BufferedElements:
            writes = writes or BufferedElements(kind, target, dtype)
            await runner.call(put, writes.overlay, inline=inline)
            writes.target = target
            return writes

        await self._flush_values(runner, [name.name])
        return await self.add(name, kind, change, runner)

    async def add(
        self,
        name: LockName,
        kind: Hashable,
        change: Callable[[Any], Coroutine[Any, Any, BufferedWrites | None]],
        runner: Runner = ON_LOOP,
    ) -> bool:
        """Buffer a change of an object; return False if the caller must store it at once, and the object has no buffered writes.

        change: coroutine function, called under the object's lock in the table. It gets the buffered writes of this kind, or
        None, and returns them with the change, or None if the change cannot be buffered.

        LockError: the caller holds the lock, so it is a signal handler that has interrupted a write.
        """
        if process_locks.table().holds(name.name):
            raise file_locks.interrupted(name.name)
        has_changed: bool | None = False
        while self._takes(name):
            work = functools.partial(self._change, name.name, kind, change)
            has_changed = await runner.under_locks([name.name], work)
            if has_changed is not None:
                break
            await self._flush_from(
                runner, [name.name]
            )  # no lock is held: a thread waits for zarr's event loop
        if not has_changed:
            await self._flush_from(runner, [name.name])
        elif self._nbytes > self.max_nbytes and not _is_flushing():
            # a flush holds a lock, under which it must not wait for the locks of other objects
            await runner.request(self.keep_within_budget())
        return bool(has_changed)

    async def _change(
        self, name: str, kind: Hashable, change: Callable[[Any], Coroutine[Any, Any, BufferedWrites | None]]
    ) -> bool | None:
        """Call `change` and count the memory; None if the object has buffered writes of another kind."""
        before = self._objects.get(name)
        if before is not None and before.kind != kind:
            return None
        try:
            after = await change(before)
        except BaseException:
            if before is not None:
                self._note(name, before)  # a cancelled write has taken memory
            raise
        return after is not None and self._note(name, after)

    def _note(self, name: str, writes: BufferedWrites) -> bool:
        """Count the memory of an object after a write; return False if the buffer is closed. The caller holds its lock."""
        nbytes, number = writes.memory_nbytes, next(self._clock)
        if name not in self._objects:
            self._holders.update(dict.fromkeys(holders_of(name)))
        with self._mutex:
            if self._is_closed:
                return False
            self._objects[name] = writes
            self._nbytes += nbytes - writes.counted
            writes.counted, writes.last_write = nbytes, number
        return True

    async def find(self, store: Store, key: str, kind: Hashable) -> Any:
        """Return the buffered writes of an object; None if there are none. Writes of another kind are flushed first."""
        if not self._objects:
            return None
        (name,) = await _lock_names(store, [key])
        writes = self._objects.get(name)
        if writes is None or writes.kind == kind:
            return writes
        await self.flush([name])
        return None

    def has_any(self, store: Store, keys: Sequence[str]) -> bool:
        """Return True if any of these objects has buffered writes; in a thread that does not run an event loop."""
        return any(self.has(name.name) for name in run_blocking(self._names.of(store, keys, BLOCKING)))

    async def read(self, request: Request, options: Options) -> set[int]:
        """Read the elements of a request into its array; return the positions of objects that do not exist."""
        if not self._objects:
            return await read_request(request, options)
        found_names = await self._names.of(request.store, [item.key for item in request.items])
        names = [name.name for name in found_names]
        await self.flush(self._values_in(names))
        await self.flush(
            name
            for name, item in zip(names, request.items, strict=True)
            if name in self._objects and (_box_of(item) is None or not self._fits(name, item, request))
        )
        # before the store is read: writes that are flushed meanwhile are seen here or there
        overlaid = {
            i: _OverlaidBox(elements.overlay, box)
            for i, (name, item) in enumerate(zip(names, request.items, strict=True))
            if (box := _box_of(item)) is not None and (elements := self._elements(name)) is not None
        }
        if not overlaid:
            return await read_request(request, options)
        rest = [i for i in range(len(names)) if i not in overlaid or not overlaid[i].is_covered()]
        missing = await read_request(_selected(request, rest), options)
        if request.is_small:
            _copy_overlays(overlaid.values(), request)
        else:
            await in_thread(_copy_overlays, overlaid.values(), request)
        return missing - {request.positions[i] for i in overlaid}

    def _fits(self, name: str, item: ObjectSelection, request: Request) -> bool:
        """Return True if an object has buffered elements that this read sees."""
        elements = self._elements(name)
        return elements is not None and elements.fits(item.chain, request.array.dtype)

    def _elements(self, name: str) -> BufferedElements | None:
        """Return the buffered elements of an object; None if it has none."""
        writes = self._objects.get(name)
        return writes if isinstance(writes, BufferedElements) else None

    @contextlib.asynccontextmanager
    async def deleting(self, base: Any, prefix: str) -> AsyncIterator[None]:
        """Drop the buffered writes of an object, or of all below a prefix, that a zarr store deletes meanwhile.

        No flush stores them again, because their locks are held. They are kept if the deletion fails.
        """
        if self.is_empty:
            yield
            self._looks.forget()
            return
        (folder,) = await _lock_names(store_of(base), [prefix])
        folder = folder.rstrip("/")
        names = [name for name in self.names() if lies_below(name, folder)]
        async with contextlib.AsyncExitStack() as held:
            # chunks before the objects that hold them, as a flush takes their locks
            for depth in sorted({name.count("[") for name in names}, reverse=True):
                await held.enter_async_context(
                    process_locks.table().hold_async([name for name in names if name.count("[") == depth])
                )
            yield
            if names != [folder]:  # an array or group, and not only one object
                self._looks.forget()
            for name in names:
                self._drop(name)

    @contextlib.asynccontextmanager
    async def describing(self, base: Any, document: str) -> AsyncIterator[None]:
        """Drop the buffered writes of an array that has no document, while a zarr store gets one: it is made anew.

        The store has not seen how the old one was deleted, for instance by `shutil.rmtree`.
        """
        if self.is_empty or await base.exists(document):
            yield
            return
        async with self.deleting(base, document.rpartition("/")[0]):
            yield

    async def _is_void(self, writes: BufferedWrites) -> bool:
        """Return True if buffered writes must not be stored, because their array is another one by now."""
        target = writes.target
        if target is None or target.guard is None:
            return False
        return await self._looks.why_void(target.guard, target.key) is not None

    async def keep_within_budget(self) -> None:
        """Flush objects until the others fit into the budget: complete ones first, then those not written for longest."""
        while self._nbytes > self.max_nbytes:
            objects = self._chosen(self.names())
            if not objects:
                return
            await self.flush(
                [min(objects, key=lambda n: (not objects[n].is_complete, objects[n].last_write))]
            )

    async def flush(self, names: Iterable[str] | None = None) -> None:
        """Store the buffered writes of these objects, or of all objects. Those of objects in a `GroupWriteError` are kept."""
        chosen = self.names() if names is None else list(names)
        if not self._objects or not chosen:
            return
        if names is None:
            self._looks.forget()
        targets = [writes.target for writes in self._chosen(chosen).values()]
        guards = [target.guard for target in targets if target is not None]
        await self._looks.look_at(guard for guard in guards if guard is not None)
        limit = asyncio.Semaphore(CONCURRENCY)
        written: list[str] = []
        failures: dict[str, Exception] = {}

        async def flush_one(name: str) -> None:
            try:
                async with limit, process_locks.table().hold_async([name]):
                    writes = self._objects.get(name)
                    if writes is not None:
                        await self._flush_object(name, writes)
                        written.append(name)
            except Exception as error:  # noqa: BLE001  # raised below, after all objects have been tried
                failures[name] = error

        # a transformer may buffer what an array above it flushes, so elements come first
        await all_of([flush_one(name) for name in chosen if self._elements(name) is not None])
        if names is None:
            chosen = self.names()
        await all_of(
            [flush_one(name) for name in chosen if name in self._objects and self._elements(name) is None]
        )
        if failures:
            raise _failure(written, failures)
        self._looks.report()

    async def _flush_from(self, runner: Runner, names: Iterable[str]) -> None:
        """Flush objects as `flush`, with requests of a runner."""
        chosen = [name for name in names if name in self._objects]
        if chosen:
            await runner.request(self.flush(chosen))

    async def _flush_values(self, runner: Runner, names: Iterable[str]) -> None:
        """Flush values in objects before the objects are written; the caller holds no lock."""
        if values := self._values_in(names):
            await runner.request(self.flush(values))

    async def flush_objects(self, store: Store, keys: Sequence[str]) -> None:
        """Flush objects of one store; as `flush`."""
        if self._objects:
            await self.flush(await _lock_names(store, keys))

    async def flush_with_values(self, store: Store, keys: Sequence[str]) -> None:
        """Flush objects of one store, and the values in them; as `flush`."""
        if self._objects:
            await self.flush_named(await _lock_names(store, keys))

    async def flush_named(self, names: Sequence[str]) -> None:
        """Flush objects, and the values in them, by their names for locks; as `flush`."""
        await self.flush(self._values_in(names))
        # the first flush may have buffered writes of the objects
        await self.flush(name for name in names if name in self._objects)

    async def _flush_object(self, name: str, writes: BufferedWrites) -> None:
        """Store the buffered writes of one object, or drop them if they are void; the caller holds its lock."""
        if await self._is_void(writes):
            self._drop(name)
            return
        target = writes.target
        if isinstance(writes, BufferedElements) and target is not None and target.guard is not None:
            writes.inside = await self._looks.inside(target.guard, target.key)
        flush = _Flush()
        token = _flush.set(flush)
        try:
            await writes.flush()
        finally:
            flush.is_over = True
            _flush.reset(token)
        self._drop(name)

    def _drop(self, name: str) -> None:
        with self._mutex:
            writes = self._objects.pop(name, None)
            if writes is not None:
                self._nbytes -= writes.counted

    def close(self, *, drop: bool) -> bool:
        """Close the buffer, so that it takes no more writes; return False if it is not empty and stays open. `drop` drops its writes."""
        with self._mutex:
            if self._objects and not drop:
                return False
            self._objects.clear()
            self._nbytes = 0
            self._is_closed = True
            return True


def _box_of(item: ObjectSelection) -> Box | None:
    """Return the elements of an item if they are a box of rank 1 or more, the only ones that an overlay takes."""
    return item.box if isinstance(item.box, Box) and len(item.box.count) > 0 else None


class _OverlaidBox(NamedTuple):
    """A box to read from an object with buffered elements."""

    overlay: Overlay
    box: Box

    def is_covered(self) -> bool:
        """Return True if the stored object is not needed."""
        return self.overlay.covers(self.box)


async def _lock_names(store: Store, keys: Sequence[str]) -> list[str]:
    """Return the names of objects of one store, which are not memoised: there may be many."""
    return await ON_LOOP.call(store.lock_names, keys, inline=store.is_prompt)


def _put_box(item: ObjectSelection, request: Request) -> Callable[[Overlay], bool]:
    """Return the function that writes the elements of an item to the overlay of its object."""
    box = item.box
    assert isinstance(box, Box)

    def put(overlay: Overlay) -> bool:
        overlay.write(box, request.axes, request.array)
        return True

    return put


def _selected(request: Request, chosen: Sequence[int]) -> Request:
    """Return some items of a request as a request."""
    items, positions = request.items, request.positions
    return replace(request, items=[items[i] for i in chosen], positions=[positions[i] for i in chosen])


def _copy_overlays(boxes: Iterable[_OverlaidBox], request: Request) -> None:
    """Copy buffered elements over the stored ones in the array of a request."""
    for overlay, box in boxes:
        overlay.copy_to(box, request.axes, request.array)


def _failure(written: Sequence[str], failures: dict[str, Exception]) -> GroupWriteError:
    first = next(iter(failures.values()))
    shown = ", ".join(itertools.islice(failures, NAMES_IN_ERROR))
    if len(failures) > NAMES_IN_ERROR:
        shown += f" and {len(failures) - NAMES_IN_ERROR} more"
    error = GroupWriteError(
        f"{len(failures)} of {len(failures) + len(written)} shards could not be stored ({shown}): {first}",
        written=tuple(written),
        unwritten=tuple(failures),
        failures=failures,
    )
    error.__cause__ = first
    return error
