# write_plan.py - the plan of a write: records for the engine
# SPDX-License-Identifier: MIT
"""The records of which a plan consists.

The engine reads their attributes by name (shardcodec/binding/write.pxi). `item_placement` fills them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from .placement import Entries
from .regions import Parts
from .user_bytes import HeaderFooter

if TYPE_CHECKING:
    from .._native import Chain

__all__ = ["NO_OBJECT", "ONTO", "ChunkBytes", "FileStamp", "PlanItem", "Update"]

# The way in which the engine makes a new object in the memory of the old one: only the rest needs new memory.
ONTO = "onto"


class FileStamp(NamedTuple):
    """Size and times of a file when it was looked at."""

    nbytes: int
    mtime_ns: int
    ctime_ns: int


class Update(NamedTuple):
    """How the engine makes the new object from the old one.

    Attributes
    ----------
    source : int, buffer or None
        Descriptor or bytes of the old object; None: there was none, and the write must not replace one that exists now.
    nbytes : int or None
        Size of an old shard.
    stamp : FileStamp or None
        The old file as it was looked at; the engine compares before it commits.
    old_entries, entries : ndarray of uint64, shape (n_chunks, 2), or None
        The old index, and the new one as far as it is known. The engine completes `entries`.
    carries : ndarray of uint64, shape (n, 3), or None
        As for `placement.Placement`; None: the shard is updated in its own file.
    data_offset : int or None
        As for `placement.Placement`; None: right behind an index at the start.
    way : str or None
        None: a new object. `ONTO`, or one of `UPDATE_WAYS` of the engine.
    user : HeaderFooter or None
        Header and footer, which are kept and marked.
    """

    source: Any
    nbytes: int | None = None
    stamp: FileStamp | None = None
    old_entries: Entries | None = None
    entries: Entries | None = None
    carries: Entries | None = None
    data_offset: int | None = None
    way: str | None = None
    user: HeaderFooter | None = None


# There was no object when the caller looked.
NO_OBJECT = Update(None)


class ChunkBytes(NamedTuple):
    """Encoded inner chunks of one shard.

    Attributes
    ----------
    positions : sequence of int
        In the index; each occurs once.
    buffers : sequence of buffer
        One for each position. They are stored unchanged, in this order.
    footer : buffer or None
        Bytes behind the last inner chunk.
    """

    positions: Sequence[int]
    buffers: Sequence[Any]
    footer: Any = None


class PlanItem(NamedTuple):
    """One object in a plan of the engine.

    Attributes
    ----------
    chain
        Compiled chain of the object.
    path : str or None
        The file; None: the new object is returned.
    parts : Box, Boxes, Lists, Points or None
        The elements that are written; None: `chunks` are.
    chunks : ChunkBytes or None
    update : Update or None
        None: a new object, which may replace one that exists.
    """

    chain: Chain
    path: str | None
    parts: Parts | None
    chunks: ChunkBytes | None = None
    update: Update | None = None
