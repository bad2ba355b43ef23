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
import itertools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ...compat import on_zarrs_loop
from ...errors import GroupWriteError
from ...options import Options
from ...storage import locks
from ...storage.kinds import store_of
from ...storage.object_names import lies_below, lies_in
from ...storage.runner import BLOCKING, run_blocking
from ...storage.store import Store
from ...storage.waiting import all_of, in_thread
from ..array_io import Request, read_request, write_request
from ..opened_shard import ShardObject
from ..read import INLINE_NBYTES, ObjectSelection, decoded_nbytes
from ..regions import Box
from .buffered_object import (
    BufferedElements,
    BufferedObject,
    BufferedWrites,
    LockName,
    LockNames,
    Target,
    lock_names,
    resolve,
)
from .layout_looks import LayoutGuard, LayoutLooks
from .overlay import Array, Overlay

if TYPE_CHECKING:
    from ..._native import Chain

__all__ = ["ProcessBuffer"]

# Objects that are flushed at a time; each is encoded with all threads of its options.
CONCURRENCY = 4
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

    Attributes
    ----------
    max_nbytes : int
        Memory budget in bytes.
    is_closing : bool
        True while no block is open, so that nothing more is buffered.
    """

    def __init__(self) -> None:
        self.max_nbytes = 0
        self.is_closing = False
        self._objects: dict[str, BufferedObject] = {}
        self._clock = itertools.count()
        self._nbytes = 0
        # Guards `_objects`, `_nbytes` and `_is_closed`. Code under it creates no objects, so it starts no garbage collection,
        # which could close a generator that leaves a block and waits for a flush.
        self._mutex = threading.Lock()
        self._is_closed = False
        self._names = LockNames()
        self._looks = LayoutLooks()

    @property
    def nbytes(self) -> int:
        """Memory of the buffered writes, in bytes."""
        return self._nbytes

    @property
    def is_empty(self) -> bool:
        """True if no object has buffered writes."""
        return not self._objects

    def has(self, name: str) -> bool:
        """Return True if an object has buffered writes."""
        return name in self._objects

    def names(self) -> list[str]:
        """Return the names of the objects with buffered writes."""
        return list(self._objects)  # one step for other threads, because strings are hashed and compared in C

    def name_of(self, target: ShardObject) -> str:
        """Return the name of the object of a handle."""
        return self._names.of_object(target)

    # ---- writing elements

    async def write(self, request: Request, options: Options, guard: LayoutGuard | None = None) -> None:
        """Buffer a request; parts that gain nothing from the buffer are stored at once."""
        request.store.check_writable()
        names = await self._names_of(request)
        if len(names) == 1 and self._buffer_quickly(names[0], request, options, guard):
            await self.keep_within_budget()
            return
        at_once = {i for i, part in enumerate(request.parts) if not self._may_buffer(names[i], part)}
        if at_once:
            await self._write_at_once(request, sorted(at_once), names, options)
        for i, part in enumerate(request.parts):
            if i in at_once:
                continue
            async with locks.table().hold_async([names[i].name]):
                is_buffered = await self._buffer(names[i].name, part, request, options, guard)
            if is_buffered:
                await self.keep_within_budget()
            else:
                await self._write_at_once(request, [i], names, options)

    async def _names_of(self, request: Request) -> list[LockName]:
        return await self._names.of(request.store, [part.key for part in request.parts])

    def _may_buffer(self, name: LockName, part: ObjectSelection) -> bool:
        """Return True if a part of a request is buffered.

        A write of a whole object gains nothing. A selection by indices is rare. Codecs without native code have no
        elements to buffer. A write through a symbolic link may remove the link, but the buffered write would have the
        name of its target.
        """
        native = part.chain.stage is None and not name.is_link
        return native and not self.is_closing and _box_of(part) is not None and not part.replaces

    async def _write_at_once(
        self, request: Request, chosen: Sequence[int], names: Sequence[LockName], options: Options
    ) -> None:
        """Store parts of a request now.

        Buffered writes of their objects are flushed first, or dropped if the part replaces the object. Those of a symbolic
        link are always flushed: an erase removes the link and keeps the file, which may have other names.
        """
        is_replaced = {i: request.parts[i].replaces and not names[i].is_link for i in chosen}
        await self.flush(names[i].name for i in chosen if not is_replaced[i])
        async with locks.table().hold_async([names[i].name for i in chosen]):
            await write_request(_selected(request, chosen), options)
            for i in chosen:
                if is_replaced[i]:
                    self._drop(names[i].name)

    async def _buffer(
        self, name: str, part: ObjectSelection, request: Request, options: Options, guard: LayoutGuard | None
    ) -> bool:
        """Buffer a part of a request; return False if the buffer is closed. The caller holds the object's lock."""
        found = self._objects.get(name)
        if found is not None and found.writes.kind is not part.chain:
            await self._flush_object(name, found)  # another surface, or memory of the other byte order
            found = None
        one = found or BufferedObject(BufferedElements(part.chain, request.array.dtype))
        writes, box = one.writes, _box_of(part)
        assert isinstance(writes, BufferedElements) and box is not None
        try:
            if decoded_nbytes(part.chain, part.box) <= INLINE_NBYTES:
                writes.overlay.write(box, request.axes, request.array)
            else:
                await in_thread(writes.overlay.write, box, request.axes, request.array)
        except BaseException:
            if found is not None:
                self._note(name, found)  # a cancelled write has taken memory
            raise
        writes.target = Target(request.store, part.key, options, request.writes_empty, guard)
        return self._note(name, one)

    def _buffer_quickly(
        self, name: LockName, request: Request, options: Options, guard: LayoutGuard | None
    ) -> bool:
        """Buffer the only part of a small request; return False if nothing was buffered."""
        (part,) = request.parts
        box = _box_of(part)
        if box is None or not self._may_buffer(name, part) or decoded_nbytes(part.chain, box) > INLINE_NBYTES:
            return False

        def write(overlay: Overlay) -> bool:
            overlay.write(box, request.axes, request.array)
            return True

        target = Target(request.store, part.key, options, request.writes_empty, guard)
        return self._write_overlay(name.name, part.chain, write, target)

    def write_slices(
        self, target: Target, chain: Chain, chunk_selection: Any, array_selection: Any, array: Array
    ) -> bool:
        """Buffer slices of an array that are exactly one inner chunk of an object with buffered elements.

        Returns False if nothing was buffered; the caller then uses `write`.
        """
        name = self._names.known(target.store, target.key)
        if name is None or self.is_closing:
            return False

        def write(overlay: Overlay) -> bool:
            return overlay.write_slices(chunk_selection, array_selection, array)

        return self._write_overlay(name.name, chain, write, target)

    def _write_overlay(
        self, name: str, chain: Chain, write: Callable[[Overlay], bool], target: Target
    ) -> bool:
        """Write to the overlay of an object.

        Returns False, and writes nothing, if the overlay does not exist, the object's lock is not free, the buffer is closed,
        or `write` returns False.
        """
        table = locks.table()
        if not table.try_acquire(name):
            return False
        try:
            found = self._objects.get(name)
            writes = None if found is None else found.writes
            if found is None or not isinstance(writes, BufferedElements) or writes.kind is not chain:
                return False
            if not write(writes.overlay):
                return False
            writes.target = target
            return self._note(name, found)
        finally:
            table.release(name)

    def _note(self, name: str, one: BufferedObject) -> bool:
        """Count the memory of an object after a write; return False if the buffer is closed. The caller holds its lock."""
        nbytes, number = one.writes.nbytes, next(self._clock)
        with self._mutex:
            if self._is_closed:
                return False
            self._objects[name] = one
            self._nbytes += nbytes - one.nbytes
            one.nbytes, one.last_write = nbytes, number
        return True

    def write_blocking(self, request: Request, options: Options, guard: LayoutGuard | None = None) -> bool:
        """Buffer a small request for one object, in a thread that does not run an event loop.

        Returns False if nothing was buffered; the caller then uses `write`.
        """
        if len(request.parts) != 1:
            return False
        (part,) = request.parts
        name = self._names_of_blocking(request.store, [part.key])[0]
        box, table = _box_of(part), locks.table()
        if box is None or not self._may_buffer(name, part) or table.holds(name.name):
            return False
        if decoded_nbytes(part.chain, box) > INLINE_NBYTES:
            return False
        with table.hold([name.name]):
            found = self._objects.get(name.name)
            if found is not None and found.writes.kind is not part.chain:
                return False
            one = found or BufferedObject(BufferedElements(part.chain, request.array.dtype))
            writes = one.writes
            assert isinstance(writes, BufferedElements)
            try:
                writes.overlay.write(box, request.axes, request.array)
            except BaseException:
                if found is not None:
                    self._note(name.name, found)  # as in `_buffer`
                raise
            writes.target = Target(request.store, part.key, options, request.writes_empty, guard)
            if not self._note(name.name, one):
                return False
        if self._nbytes > self.max_nbytes:
            on_zarrs_loop(self.keep_within_budget())
        return True

    def _names_of_blocking(self, store: Store, keys: Sequence[str]) -> list[LockName]:
        known = [name for key in keys if (name := self._names.known(store, key)) is not None]
        return known if len(known) == len(keys) else run_blocking(self._names.of(store, keys, BLOCKING))

    # ---- writing through other surfaces

    async def add(
        self,
        store: Store,
        key: str,
        kind: Hashable,
        change: Callable[[Any], Awaitable[BufferedWrites | None]],
    ) -> bool:
        """Buffer a change of an object that is not a write of elements.

        Parameters
        ----------
        store : Store
            The store of the object.
        key : str
            Its key there.
        kind : hashable
            Kind of the change; see `BufferedWrites`.
        change : callable
            Coroutine function. It gets the buffered writes of this kind, or None, and returns them with the change, or
            None if the change cannot be buffered. It is called under the object's lock in the table. If it raises, the
            buffered writes stay as they are.

        Returns
        -------
        bool
            False if the caller must store the change at once; the object then has no buffered writes.
        """
        (found,) = await resolve(store, [key])
        name = found.name
        is_buffered = False
        # a link as in `_may_buffer`
        if not found.is_link and (not self.is_closing or _is_flushing()):
            async with locks.table().hold_async([name]):
                one = self._objects.get(name)
                if one is not None and one.writes.kind != kind:
                    await self._flush_object(name, one)
                    one = None
                writes = await change(None if one is None else one.writes)
                is_buffered = writes is not None and self._note(name, one or BufferedObject(writes))
        if not is_buffered:
            await self.flush([name])
        elif not _is_flushing():
            # a flush holds a lock, under which it must not wait for the locks of other objects
            await self.keep_within_budget()
        return is_buffered

    def add_blocking(self, name: str, kind: Hashable, change: Callable[[Any], BufferedWrites]) -> bool:
        """Buffer a change in a thread that does not run an event loop. Waits for the object's lock.

        `change` is called as in `add`, but is a plain function and must not return None. The object must not be a link.

        Returns False if the caller must store the change at once: no block is open, the buffer was closed meanwhile, or
        the caller holds the object's lock. Unlike after `add`, the object may then still have buffered writes; the
        caller flushes them first.
        """
        table = locks.table()
        while not self.is_closing and not table.holds(name):
            with table.hold([name]):
                one = self._objects.get(name)
                if one is None or one.writes.kind == kind:
                    writes = change(None if one is None else one.writes)
                    is_buffered = self._note(name, one or BufferedObject(writes))
                    break
            self.flush_blocking(name)
        else:
            return False
        if self._nbytes > self.max_nbytes:
            on_zarrs_loop(self.keep_within_budget())
        return is_buffered

    async def find(self, store: Store, key: str, kind: Hashable) -> Any:
        """Return the buffered writes of an object; None if there are none. Writes of another kind are flushed first."""
        if not self._objects:
            return None
        (name,) = await lock_names(store, [key])
        one = self._objects.get(name)
        if one is None:
            return None
        if one.writes.kind == kind:
            return one.writes
        await self.flush([name])
        return None

    # ---- reading

    def has_any(self, store: Store, keys: Sequence[str]) -> bool:
        """Return True if any of these objects has buffered writes; in a thread that does not run an event loop."""
        return any(self.has(name.name) for name in self._names_of_blocking(store, keys))

    async def read(self, request: Request, options: Options) -> set[int]:
        """Read the elements of a request into its array; return the positions of objects that do not exist."""
        if not self._objects:
            return await read_request(request, options)
        names = [name.name for name in await self._names_of(request)]
        await self.flush(
            name
            for name, part in zip(names, request.parts, strict=True)
            if self.has(name) and (_box_of(part) is None or not self._fits(name, part))
        )
        # before the store is read: writes that are flushed meanwhile are seen here or there
        found = {
            i: _OverlaidBox(elements.overlay, box)
            for i, (name, part) in enumerate(zip(names, request.parts, strict=True))
            if (box := _box_of(part)) is not None and (elements := self._elements(name)) is not None
        }
        if not found:
            return await read_request(request, options)
        rest = [i for i in range(len(names)) if i not in found or not found[i].is_covered()]
        missing = await read_request(_selected(request, rest), options)
        if request.is_small:
            _copy_overlays(found.values(), request)
        else:
            await in_thread(_copy_overlays, found.values(), request)
        return missing - {request.positions[i] for i in found}

    def _fits(self, name: str, part: ObjectSelection) -> bool:
        """Return True if an object has buffered elements of the layout of a part; another process may have made it anew."""
        elements = self._elements(name)
        if elements is None:
            return False
        chain = elements.overlay.chain
        return bool(chain.shape == part.chain.shape and chain.itemsize == part.chain.itemsize)

    def _elements(self, name: str) -> BufferedElements | None:
        """Return the buffered elements of an object; None if it has none."""
        one = self._objects.get(name)
        return one.writes if one is not None and isinstance(one.writes, BufferedElements) else None

    # ---- deletions and other layouts

    @contextlib.asynccontextmanager
    async def deleting(self, base: Any, prefix: str) -> AsyncIterator[None]:
        """Drop the buffered writes of an object, or of all below a prefix, that a zarr store deletes meanwhile.

        No flush stores them again, because their locks are held. They are kept if the deletion fails.
        """
        if self.is_empty:
            yield
            return
        (folder,) = await lock_names(store_of(base), [prefix])
        folder = folder.rstrip("/")
        names = [name for name in self.names() if lies_below(name, folder)]
        async with contextlib.AsyncExitStack() as held:
            # parts before the objects that hold them, as a flush takes their locks
            for depth in sorted({name.count("[") for name in names}, reverse=True):
                await held.enter_async_context(
                    locks.table().hold_async([name for name in names if name.count("[") == depth])
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
        target = _target_of(writes)
        if target is None or target.guard is None:
            return False
        return await self._looks.why_void(target.guard, target.key) is not None

    # ---- flushing

    async def keep_within_budget(self) -> None:
        """Flush objects until the others fit into the budget: complete ones first, then those not written for longest."""
        while self._nbytes > self.max_nbytes:
            objects = [(name, one) for name in self.names() if (one := self._objects.get(name)) is not None]
            if not objects:
                return
            name, _ = min(objects, key=lambda item: (not item[1].writes.is_complete, item[1].last_write))
            await self.flush([name])

    async def flush(self, names: Iterable[str] | None = None) -> None:
        """Store the buffered writes of these objects, or of all objects.

        Raises
        ------
        GroupWriteError
            Some objects could not be stored; their buffered writes are kept.
        """
        chosen = self.names() if names is None else list(names)
        if not self._objects or not chosen:
            return
        if names is None:
            self._looks.forget()
        targets = [_target_of(one.writes) for name in chosen if (one := self._objects.get(name)) is not None]
        await self._looks.look_at(
            target.guard for target in targets if target is not None and target.guard is not None
        )
        limit = asyncio.Semaphore(CONCURRENCY)
        written: list[str] = []
        failures: dict[str, Exception] = {}

        async def flush_one(name: str) -> None:
            try:
                async with limit, locks.table().hold_async([name]):
                    one = self._objects.get(name)
                    if one is not None:
                        await self._flush_object(name, one)
                        written.append(name)
            except Exception as error:  # noqa: BLE001  # raised below, after all objects have been tried
                failures[name] = error

        # a transformer may buffer what an array above it flushes, so elements come first
        await all_of([flush_one(name) for name in chosen if self._elements(name) is not None])
        if names is None:
            chosen = self.names()
        await all_of([flush_one(name) for name in chosen if self.has(name) and self._elements(name) is None])
        if failures:
            raise _failure(written, failures)
        self._looks.report()

    def flush_blocking(self, name: str) -> None:
        """Flush one object as `flush`, in a thread that does not run zarr's event loop."""
        on_zarrs_loop(self.flush([name]))

    async def flush_objects(self, store: Store, keys: Sequence[str]) -> None:
        """Flush objects of one store; as `flush`."""
        if self._objects:
            await self.flush(await lock_names(store, keys))

    async def flush_with_parts(self, store: Store, keys: Sequence[str]) -> None:
        """Flush objects of one store, and objects of other stores that are parts of them; as `flush`."""
        whole = set(await lock_names(store, keys)) if self._objects else set()
        if whole:
            await self.flush(name for name in self.names() if lies_in(name, whole))
            # the first flush may have buffered writes of the objects
            await self.flush(name for name in whole if self.has(name))

    async def _flush_object(self, name: str, one: BufferedObject) -> None:
        """Store the buffered writes of one object, or drop them if they are void; the caller holds its lock."""
        if await self._is_void(one.writes):
            self._drop(name)
            return
        flush = _Flush()
        token = _flush.set(flush)
        try:
            await one.writes.flush()
        finally:
            flush.is_over = True
            _flush.reset(token)
        self._drop(name)

    def _drop(self, name: str) -> None:
        with self._mutex:
            one = self._objects.pop(name, None)
            if one is not None:
                self._nbytes -= one.nbytes

    def close(self, *, drop: bool) -> bool:
        """Close the buffer, so that it takes no more writes.

        Parameters
        ----------
        drop : bool
            Drop buffered writes. Without it, a buffer that is not empty stays open.

        Returns
        -------
        bool
            True if the buffer is closed.
        """
        with self._mutex:
            if self._objects and not drop:
                return False
            self._objects.clear()
            self._nbytes = 0
            self._is_closed = True
            return True


def _target_of(writes: BufferedWrites) -> Target | None:
    return writes.target if isinstance(writes, BufferedElements) else None


def _box_of(part: ObjectSelection) -> Box | None:
    """Return the elements of a part if they are a box of rank 1 or more, the only ones that an overlay takes."""
    return part.box if isinstance(part.box, Box) and len(part.box.count) > 0 else None


class _OverlaidBox(NamedTuple):
    """A box to read from an object with buffered elements."""

    overlay: Overlay
    box: Box

    def is_covered(self) -> bool:
        """Return True if the stored object is not needed."""
        return self.overlay.covers(self.box)


def _selected(request: Request, chosen: Sequence[int]) -> Request:
    """Return some parts of a request as a request."""
    parts, positions = request.parts, request.positions
    return replace(request, parts=[parts[i] for i in chosen], positions=[positions[i] for i in chosen])


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
