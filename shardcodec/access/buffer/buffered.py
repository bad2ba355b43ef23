# buffered.py - the buffered writes of one object
# SPDX-License-Identifier: MIT
"""The buffered writes of one object: its elements and their flush, its name for locks, and whether they are void by now."""

from __future__ import annotations

import contextlib
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from ...errors import ShardError
from ...options import Options
from ...storage.event_loop import all_of
from ...storage.file_locks import NO_FILE
from ...storage.replace import replace
from ...storage.runner import ON_LOOP, Runner
from ...storage.store import Outcome, Store, StoredObject
from ..read import ObjectSelection, is_damage, read
from ..regions import Boxes, whole
from ..shard_object import ShardObject
from ..write import Elements, WriteItem, write_objects
from .overlay import Array, Overlay

if TYPE_CHECKING:
    from ..._native import Chain


__all__ = [
    "BufferedElements",
    "BufferedWrites",
    "LayoutGuard",
    "LayoutLooks",
    "LockName",
    "LockNames",
    "Target",
    "resolve",
]


class BufferedWrites:
    """The buffered writes of one object. Callers hold the object's lock in the table of this process.

    kind: a write is added to buffered writes of its kind; those of another kind are flushed first. target: where elements are
    stored; None for writes that are not elements. counted: bytes that the buffer has counted for the writes. last_write: number
    of the last write; later writes have larger numbers.
    """

    kind: Hashable
    target: Target | None = None
    counted = 0
    last_write = 0

    @property
    def memory_nbytes(self) -> int:
        """Memory that the writes take, in bytes."""
        raise NotImplementedError

    @property
    def is_complete(self) -> bool:
        """True if the writes cover the whole object, so the stored object is not needed."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Store the writes; after an exception the stored object is unchanged."""
        raise NotImplementedError


class Target(NamedTuple):
    """Where and how buffered elements are stored, as the last write says.

    chain: that for the byte order of the memory. guard: the layout that the write was made for; None if it cannot change. name:
    that of the object in errors, by default its key.
    """

    store: Store
    key: str
    chain: Chain
    options: Options
    writes_empty: bool
    guard: LayoutGuard | None = None
    name: str = ""


class BufferedElements(BufferedWrites):
    """Buffered elements, written through arrays or as whole inner chunks through handles; the `Maker` of the new object.

    The kind of those of an array is their chain. Those of a handle have another kind: they belong to no layout of an array.
    One native call encodes the inner chunks and writes them. If the stored object is damaged where it is needed, `make`
    raises, and the object is unchanged.
    """

    target: Target
    keeps_emptied = True
    inside: tuple[int, ...] | None = None  # as in `ObjectSelection`; known from the flush on

    def __init__(self, kind: Hashable, target: Target, dtype: np.dtype[Any]) -> None:
        self.kind = kind
        self.target = target
        self.overlay: Overlay = Overlay(target.chain, dtype)

    @property
    def memory_nbytes(self) -> int:
        """Memory of the elements, in bytes."""
        return self.overlay.nbytes

    @property
    def is_complete(self) -> bool:
        """True if every element of the object is buffered."""
        return self.overlay.is_complete

    def fits(self, chain: Chain, dtype: np.dtype[Any]) -> bool:
        """Return True if a read with this layout sees these elements.

        Another process may have made the object anew, or a handle may take its bytes for another data type.
        """
        mine = self.overlay.chain
        is_same = mine.shape == chain.shape and mine.itemsize == chain.itemsize
        return is_same and self.overlay.dtype.newbyteorder("=") == dtype.newbyteorder("=")

    async def flush(self) -> None:
        """Store the elements; raises errors of codecs and of the store."""
        await replace(self.target.store, [self.target.key], self, self.target.options)

    def begin(self) -> None:
        """Do nothing: the elements are known."""

    def needs_old(self, position: int) -> bool:
        return not self.is_complete

    def nbytes(self, position: int) -> int:
        if self._path is not None:
            return 0  # the engine writes the file as it encodes
        chain = self.overlay.chain
        return math.prod(chain.shape) * int(chain.itemsize)

    async def make(self, stored: Sequence[StoredObject], runner: Runner) -> Outcome:
        (old,) = stored
        return await runner.call(self._write, old, inline=False)

    @property
    def _path(self) -> str | None:
        return self.target.store.path(self.target.key)

    def _write(self, old: StoredObject) -> Outcome:
        store, key, chain, options, writes_empty, _, name = self.target
        path, name = self._path, name or key

        def read_old(boxes: Boxes, out: Array) -> None:
            read([ObjectSelection(name, chain, boxes, _source(path, old))], out, range(out.ndim), options)

        def read_sound(boxes: Boxes, out: Array) -> None:
            try:
                read_old(boxes, out)
            except ShardError:
                for number in range(len(boxes.rows)):
                    self._read_or_fill(read_old, Boxes(boxes.rows[number : number + 1]), out)

        positions, chunks = self.overlay.chunks(read_sound)
        if chain.is_shard:
            boxes, inside = self.overlay.boxes(positions), self.inside
            item = WriteItem(chain, path, old.data, boxes, name, old.file, positions, inside=inside)
        else:
            item = WriteItem(chain, path, None, whole(chain.shape), name, old.file)
        return write_objects(
            [item],
            options,
            Elements(chunks, range(chunks.ndim), writes_empty),
            keep_empty=old.keeps_empty,
            staging=None if path is None else store.staging(key),
            retry_appeared=False,
        )

    def _read_or_fill(self, read_old: Callable[[Boxes, Array], None], box: Boxes, out: Array) -> None:
        """Read an inner chunk of the stored object; if it is damaged and not needed, the elements get the fill value."""
        try:
            read_old(box, out)
        except ShardError as error:
            if not is_damage(error) or self.inside is None or not self.overlay.gives(box, self.inside):
                raise
            chain = self.overlay.chain
            read([ObjectSelection("", chain, box, None)], out, range(out.ndim), self.target.options)


def _source(path: str | None, old: StoredObject) -> Any:
    """Return the stored object for a read: a buffer, the descriptor of the locked file, or the path of the file."""
    if path is None:
        return old.data
    if old.file is None:
        return path
    return None if old.file is NO_FILE else old.file.fd


# To resolve a path takes several system calls, so names are memoised while blocks of `group_writes` are open. The name of a
# symbolic link is not memoised: an erase removes the link and keeps its target, so the path then names another object.

# Number of memoised names. The memo is cleared when it is full.
MAX_NAMES = 1 << 16


class LockName(NamedTuple):
    """The name of an object for locks, for a symbolic link that of its target; and whether a link leads to the object."""

    name: str
    is_link: bool


class LockNames:
    """Memoised names for locks, by store and key, or by handle."""

    def __init__(self) -> None:
        # with the store or handle: while it is in memory, no other object has its id
        self._known: dict[tuple[int, str], tuple[Any, LockName]] = {}

    def known(self, store: Store, key: str) -> LockName | None:
        """Return a memoised name; None if there is none."""
        entry = self._known.get((id(store), key))
        return None if entry is None else entry[1]

    async def of(self, store: Store, keys: Sequence[str], runner: Runner = ON_LOOP) -> list[LockName]:
        """Return the names of objects of one store."""
        names = {key: self.known(store, key) for key in keys}
        unknown = [key for key, name in names.items() if name is None]
        if unknown:
            resolved = await resolve(store, unknown, runner)
            for key, name in zip(unknown, resolved, strict=True):
                self._note(store, key, name)
                names[key] = name
        return [names[key] for key in keys]  # type: ignore[misc]

    def of_object(self, target: ShardObject) -> LockName:
        """Return the name of the object of a handle."""
        entry = self._known.get((id(target), ""))
        if entry is not None:
            return entry[1]
        name = LockName(target.identity, target.is_link)
        self._note(target, "", name)
        return name

    def _note(self, owner: Any, key: str, name: LockName) -> None:
        if name.is_link:
            return
        if len(self._known) >= MAX_NAMES:
            self._known.clear()
        self._known[id(owner), key] = owner, name


async def resolve(store: Store, keys: Sequence[str], runner: Runner = ON_LOOP) -> list[LockName]:
    """Return the names of objects of one store as they are now."""
    return await runner.call(_resolve, store, keys, inline=store.is_prompt)


def _resolve(store: Store, keys: Sequence[str]) -> list[LockName]:
    return [
        LockName(name, store.is_link(key)) for key, name in zip(keys, store.lock_names(keys), strict=True)
    ]


# A write that was buffered for one layout must not be stored in an array of another layout, and not in one that is gone.
# Deletions in this process are seen at once (`ProcessBuffer.deleting`), those by other processes only here.

# A look counts for this many seconds: shards that leave the buffer one by one, because of its budget, share it.
LOOK_SECONDS = 1.0


class LayoutGuard(Protocol):
    """The array and the layout that writes were made for."""

    @property
    def name(self) -> str:
        """Name of the array for messages."""

    @property
    def identity(self) -> Hashable:
        """Equal for guards of one array and one layout, for which one look is enough."""

    async def look(self) -> StoredLayout:
        """Look at the metadata as they are stored now, with one request."""


class StoredLayout(Protocol):
    """The layout of an array as a look has found it; objects have their keys."""

    def why_void(self, key: str) -> str | None:
        """Return why writes of an object are void; None if they are not."""

    def inside(self, key: str) -> tuple[int, ...] | None:
        """Return the extents of the part of an object that lies within the array; None if they are unknown."""


class _LayoutAnswer(NamedTuple):
    begun: float
    layout: StoredLayout


class LayoutLooks:
    """The looks of one buffer, and the writes that they have found void."""

    def __init__(self) -> None:
        self._looks: dict[Hashable, _LayoutAnswer] = {}
        self._n_void: Counter[tuple[str, str]] = Counter()

    def forget(self) -> None:
        """Look again at each array."""
        self._looks.clear()

    async def look_at(self, guards: Iterable[LayoutGuard]) -> None:
        """Look once at each array, before many tasks ask for it. Errors are those of `why_void`, later."""
        chosen = {guard.identity: guard for guard in guards}
        with contextlib.suppress(Exception):
            await all_of([self._look(guard) for guard in chosen.values()])

    async def why_void(self, guard: LayoutGuard, key: str) -> str | None:
        """Return why writes of an object are void; None if they are not. The caller drops void writes, which are counted."""
        known = self._looks.get(guard.identity)
        look = await self._look(guard)
        why = look.layout.why_void(key)
        if why is not None and look is known:
            # the array may have grown since this look, and the write may be to its new part
            self._looks.pop(guard.identity, None)
            why = (await self._look(guard)).layout.why_void(key)
        if why is not None:
            self._n_void[guard.name, why] += 1
        return why

    async def inside(self, guard: LayoutGuard, key: str) -> tuple[int, ...] | None:
        """Return the extents of the part of an object that lies within its array; None if they are unknown."""
        return (await self._look(guard)).layout.inside(key)

    async def _look(self, guard: LayoutGuard) -> _LayoutAnswer:
        look, now = self._looks.get(guard.identity), time.monotonic()
        if look is None or now - look.begun > LOOK_SECONDS:
            look = self._looks[guard.identity] = _LayoutAnswer(now, await guard.look())
        return look

    def report(self) -> None:
        """Warn of the writes that were void since the last report."""
        while self._n_void:
            (array, why), n = self._n_void.popitem()
            warnings.warn(
                f"group_writes: the buffered writes of {n} {'shard' if n == 1 else 'shards'} of {array} were dropped: {why}",
                RuntimeWarning,
                stacklevel=2,
            )
