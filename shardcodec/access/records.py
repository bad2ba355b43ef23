# records.py - the records of a write: items of the caller, and the plan for the engine
# SPDX-License-Identifier: MIT
"""The records of a write: the items that a caller hands to `write.write_objects`, and the plan for the engine.

An item names the object and says what is new in it. It also answers the questions that arise before the object is written:
does a part of the old object stay, and which inner chunks change?
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ..storage.file_systems import OpenFile
from .placement import Entries, Facts, Gone, NewSizes, Placement, new_sizes
from .regions import Positions, Selection, covered, covers, is_filled, touched
from .user_bytes import HeaderFooter, UserBytes

if TYPE_CHECKING:
    from .._native import Chain


__all__ = [
    "MISSING",
    "NOTHING",
    "ONTO",
    "ChunkBytes",
    "ChunkChange",
    "Elements",
    "EncodedItem",
    "Item",
    "OldObject",
    "PlanItem",
    "WriteItem",
]

NOTHING: Gone = np.empty(0, dtype=np.intp)

Flags: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]


class ChunkChange(NamedTuple):
    """The inner chunks of one shard that a write changes.

    replaced: flags of those that get a new value. covered: flags of those of which no old byte is needed, so that their old
    entries may be damaged. gone: positions of those in `replaced` that are known to be absent in the new shard.
    """

    replaced: Flags
    covered: Flags
    gone: Gone = NOTHING


class Elements(NamedTuple):
    """The array that a write takes its values from.

    axes: for each axis of the objects the axis of `value`; -1 for an axis along which the value is repeated. write_empty: store
    chunks that equal the fill value.
    """

    value: np.ndarray[Any, Any]
    axes: Sequence[int]
    write_empty: bool


class WriteItem(NamedTuple):
    """Elements for one object.

    path: a local file; None: the new object is returned as bytes. old: the old object if it is not in a file. box: if several
    elements of the array go to the same element of the object, the last one is stored. key: name in errors. old_file: the old
    file, opened, locked and looked at by the caller; `file_locks.NO_FILE`: the caller has seen no file, and a file that exists by
    now must not be replaced; None: the write opens the file. chunks: positions of whole inner chunks of which `box` consists,
    each as a box. complete: all other elements get the fill value, and the old object is not looked at. inside: as in
    `ObjectSelection`.
    """

    chain: Chain
    path: str | None
    old: Any
    box: Selection
    key: str
    old_file: OpenFile | None = None
    chunks: Positions | None = None
    complete: bool = False
    inside: tuple[int, ...] | None = None

    @property
    def keeps_old(self) -> bool:
        """True if a part of the old object may stay, so that it has to be looked at."""
        if self.complete:
            return False
        if self.chunks is not None:
            return len(self.chunks) < int(self.chain.n_chunks)
        return not covers(self.box, self.chain.shape)

    @property
    def spares_old(self) -> bool:
        """True if a damaged old object counts as missing: all elements within the array are new."""
        return self.inside is not None and covers(self.box, self.inside)

    def change(self) -> ChunkChange:
        """Return the inner chunks that change; this allocates flags for all inner chunks of the shard."""
        chain = self.chain
        if self.chunks is not None:
            flags = np.zeros(chain.n_chunks, dtype=np.bool_)
            flags[self.chunks] = True
            return ChunkChange(flags, flags)
        grid = (chain.perm, chain.inner.shape, chain.grid_shape)
        return ChunkChange(touched(self.box, *grid), covered(self.box, *grid, self.inside))

    def new_sizes(self, elements: Elements) -> NewSizes:
        """Return the encoded size of the new inner chunks; None if it is not known yet or they become absent."""
        nbytes = self.chain.inner.fixed_nbytes
        if nbytes is None or elements.write_empty:
            return nbytes
        erases = is_filled(self.box, elements.value, elements.axes, self.chain.fill)
        return None if erases else nbytes


class EncodedItem(NamedTuple):
    """Encoded inner chunks for one shard. path, old, key and old_file are as for `WriteItem`.

    chunks: from positions in the index to buffers, which are stored unchanged, in the order of the mapping. gone: positions of
    inner chunks that become absent, each once, and none that `chunks` names. spares_old: a damaged old object counts as missing. user: new header, footer and alignment; None:
    header and footer are treated as dead bytes. complete: all inner chunks that are not named become absent, and the old object
    is not looked at.
    """

    chain: Chain
    path: str | None
    old: Any
    chunks: Mapping[int, Any]
    key: str
    gone: Gone = NOTHING
    user: UserBytes | None = None
    old_file: OpenFile | None = None
    complete: bool = False
    spares_old: bool = False

    @property
    def keeps_old(self) -> bool:
        """True if a part of the old shard may stay, so that it has to be looked at."""
        if self.complete:
            return False
        return bool(self.user is not None or len(self.chunks) + len(self.gone) != self.chain.n_chunks)

    def change(self) -> ChunkChange:
        """Return the inner chunks that change; this allocates flags for all inner chunks of the shard."""
        flags = np.zeros(self.chain.n_chunks, dtype=np.bool_)
        flags[np.fromiter(self.chunks, dtype=np.intp, count=len(self.chunks))] = True
        flags[self.gone] = True
        return ChunkChange(flags, flags, self.gone)

    def sizes(self) -> dict[int, int]:
        """Return the sizes of the new inner chunks by position."""
        return {position: memoryview(chunk).nbytes for position, chunk in self.chunks.items()}

    def new_sizes(self) -> NewSizes:
        """Return the sizes of the new inner chunks in the form that `placement.place` takes; None if there are none."""
        return new_sizes(self.sizes(), self.chain.n_chunks) if self.chunks else None


Item: TypeAlias = WriteItem | EncodedItem


# The records of which a plan consists.
#
# The engine reads their attributes by name (shardcodec/binding/write.pxi). `write_place.place_item` fills them in.

# The way in which the engine makes a new object in the memory of the old one: only the rest needs new memory.
ONTO = "onto"


class OldObject(NamedTuple):
    """An old object as it was looked at, and of a shard its index.

    source: descriptor of the file, or the bytes; None for a missing object. file: the file as it was looked at under its lock,
    before its index was read; the engine compares before it commits; None: not a file. entries: the checked index, shape
    (n_chunks, 2); None: no shard. change: the inner chunks that the write changes. user: None if it is not needed, or inner
    chunks lie in the index. facts: they decide how the shard is updated in its own file; None: it must be replaced.
    """

    source: Any
    nbytes: int = 0
    file: OpenFile | None = None
    entries: Entries | None = None
    change: ChunkChange | None = None
    user: HeaderFooter | None = None
    facts: Facts | None = None

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return a range of the object."""
        if isinstance(self.source, int):
            return os.pread(self.source, nbytes, offset)
        return bytes(memoryview(self.source).cast("B")[offset : offset + nbytes])


# There was no object when the caller looked, and the write must not replace one that exists now.
MISSING = OldObject(None)


class ChunkBytes(NamedTuple):
    """Encoded inner chunks of one shard, one buffer for each position, each position once. They are stored unchanged, in this order.

    footer: bytes behind the last inner chunk.
    """

    positions: Sequence[int]
    buffers: Sequence[Any]
    footer: Any = None


class PlanItem(NamedTuple):
    """One object in a plan of the engine, and how it is made from the old one.

    path: None: the new object is returned. selection: the elements that are written; None: `chunks` are. old: None: a new object,
    which may replace one that exists. placement: where inner chunks go; the engine completes its entries. way: None: a new
    object; `ONTO`, or one of `UPDATE_WAYS` of the engine: nothing is carried. user: header and footer, which are kept and
    marked. inside: extents of the part of the object that lies within the array: elements beyond it are kept from an old
    inner chunk only if it can be decoded; None: all elements that are not given are needed.
    """

    chain: Chain
    path: str | None
    selection: Selection | None
    chunks: ChunkBytes | None = None
    old: OldObject | None = None
    placement: Placement | None = None
    way: str | None = None
    user: HeaderFooter | None = None
    inside: tuple[int, ...] | None = None
