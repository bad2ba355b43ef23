# placement.py - where the inner chunks of an updated shard go: decisions as plain data
# SPDX-License-Identifier: MIT
"""Placement of carried inner chunks.

A partial write replaces the whole object, but most of its bytes do not change. There are two layouts:

    keep      [old bytes at their old offsets, also the dead ones ....][new chunks][index]
    compact   [live old chunks, moved together][new chunks][index]

Inner chunks that overlap the old index (this is damage, unless the switch ``allow_in_index`` is set) keep a copy of these bytes: an
index at the end stays where it is, as dead bytes; of a shard with its index at the start, the front is copied behind the
rest.

In `keep`, a new inner chunk takes the slot of the old one if its size is known and the same. A reader that finds it there
gets the complete new value of this inner chunk.

Offsets are kept as a rule. A reader that has fetched the old index and then opens the new file still finds every old inner
chunk at the offset of that index. zarr-python and zarrs read in this way. A writer that moved chunks would make them return
wrong values where there are no checksums. A shard is packed only if at least `DEAD_SHARE` of it would be dead bytes. Bytes
behind the last inner chunk of the old object are dropped, because no index ever referred to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import native

__all__ = [
    "ABSENT",
    "BLOCK_NBYTES",
    "DEAD_SHARE",
    "PACK",
    "Facts",
    "Gone",
    "NewSizes",
    "Placement",
    "Sums",
    "aligned",
    "may_overwrite",
    "new_sizes",
    "place",
    "place_behind",
    "place_in_slots",
    "sum_up",
    "way_to_append",
    "within",
]

# Both numbers of the index entry of an inner chunk that is not stored.
ABSENT = np.uint64(2**64 - 1)

# Measured (docs/durability.md): with more dead bytes `replace` copies more, with fewer `append` packs more often.
DEAD_SHARE = 0.25
# The same for less than `MIN_DEAD_NBYTES`: shards of a few small inner chunks would be packed at nearly every update.
SMALL_DEAD_SHARE = 0.5
# A dead share that always packs, even if the object becomes longer, as it may with an alignment.
PACK = -1.0

# A direct append begins and ends at a multiple of a block; a write at once lies within one block.
BLOCK_NBYTES = 4096
# A sector of any disk: written completely or not at all at a power cut.
SECTOR_NBYTES = 512
# Packing is not worth its cost for fewer dead bytes: each append wastes up to two blocks.
MIN_DEAD_NBYTES = 16 * BLOCK_NBYTES
# Up to this number, each inner chunk is compared with all others, without a sort.
FEW_CHUNKS = 4
# Limit for an update of a shard in its own file: decoded bytes of the new inner chunks, which are held in memory.
APPEND_NBYTES = 64 << 20

Entries = np.ndarray[Any, np.dtype[np.uint64]]
NewSizes = int | np.ndarray[Any, np.dtype[np.uint64]] | None
Gone = np.ndarray[Any, np.dtype[np.intp]]


def aligned(offset: Any, alignment: int) -> Any:
    """Return the smallest multiple of `alignment` that is not less than `offset`, an int or an array of uint64."""
    if isinstance(offset, int):
        return -(-offset // alignment) * alignment
    return (offset + np.uint64(alignment - 1)) // np.uint64(alignment) * np.uint64(alignment)


class Sums(NamedTuple):
    """Sums over the entries of an index, whose numbers are not checked (csrc/kernels/sc_index.h).

    n_stored: inner chunks that have bytes; the next four are over these. first, end: where their bytes begin and end; 2^64-1
    and 0 if there are none. offset_bits, nbytes_bits: all offsets, and all sizes, combined by bitwise or: a power of two
    divides all of them if it divides the result. left_nbytes: bytes of the inner chunks that are not dropped.
    """

    n_stored: int
    first: int
    end: int
    offset_bits: int
    nbytes_bits: int
    left_nbytes: int


def sum_up(
    entries: Entries, dropped: np.ndarray[Any, np.dtype[np.bool_]] | None = None, rest: Entries | None = None
) -> Sums:
    """Compute the sums of an index, shape (n_chunks, 2), in one pass.

    dropped: flags, shape (n_chunks,). rest: output, as `entries`: the entries that are not dropped, absent elsewhere.
    """
    return Sums(*native.load().index_sums(entries, dropped, rest))


@dataclass(frozen=True, eq=False)
class Placement:
    """The inner chunks that are carried over, and where they go.

    carries: uint64, shape (n, 3), runs of bytes: offset in the old object, size, offset in the new one. entries: uint64, shape
    (n_chunks, 2), the new index as far as it is known: carried inner chunks, and slots that new inner chunks take. data_offset:
    offset of the first new inner chunk. compact: inner chunks are moved together.
    """

    carries: Entries
    entries: Entries
    data_offset: int
    compact: bool

    def only_packs(self, first: int) -> bool:
        """Return True if a copy of the runs only closes gaps.

        The runs fill the new object from `first` to `data_offset` in their old order, and none moves to a larger offset.
        """
        source, nbytes, to = self.carries.T
        ends = np.concatenate(([np.uint64(first)], to + nbytes))
        in_order = np.all(source[1:] >= source[:-1] + nbytes[:-1]) and np.all(to <= source)
        return bool(in_order and np.array_equal(to, ends[:-1]) and int(ends[-1]) == self.data_offset)


def place(
    entries: Entries,
    replaced: np.ndarray[Any, np.dtype[np.bool_]],
    *,
    shard_nbytes: int,
    index_nbytes: int,
    index_at_start: bool,
    new_nbytes: NewSizes = None,
    dead_share: float = DEAD_SHARE,
    alignment: int = 1,
) -> Placement:
    """Place the inner chunks that are not replaced in a new object.

    entries: the checked old index, shape (n_chunks, 2). replaced: flags, shape (n_chunks,). shard_nbytes, index_nbytes: sizes
    of the old object and of its index. new_nbytes: encoded size of the new inner chunks, one for all or one for each, 2^64-1
    for those that become absent; None: not known yet. alignment: inner chunks that are moved or written begin at a multiple of
    this.

    dead_share: pack if at least this share of the carried bytes is dead, or half of them if fewer than 64 KiB are dead; 0: for
    any dead byte. `PACK`: always pack, unless inner chunks share so many bytes that the packed ones would take more room than
    the old ones.
    """
    first = index_nbytes if index_at_start else 0
    end = shard_nbytes if index_at_start else shard_nbytes - index_nbytes
    slots = _slots(entries, replaced, new_nbytes, alignment)
    rest = np.empty_like(entries)
    sums = sum_up(entries, replaced & ~slots, rest)
    if sums.n_stored and not first <= sums.first <= sums.end <= end:
        in_index = _overlap(entries, first, end)
        kept = (entries[:, 0] != ABSENT) & ~replaced
        if np.any(in_index & kept):
            return _with_index(entries, kept, in_index, (first, end), shard_nbytes)
        slots &= ~in_index
        sums = sum_up(entries, replaced & ~slots, rest)
    # bytes behind the last inner chunk (a footer) are dropped: they may be where the new inner chunks go
    end = max(first, min(end, sums.end))
    room, live = end - first, sums.left_nbytes
    # without the limit, an index that claims many overlapping inner chunks would make the object grow without bound
    packs = dead_share == PACK and live <= room
    if alignment > 1:
        live = max(live, int(aligned(rest[rest[:, 0] != ABSENT, 1], alignment).sum(dtype=np.uint64)))
    if packs or _has_much_dead(room, live, dead_share):
        if np.any(slots):
            sum_up(entries, replaced, rest)
        return _packed(rest, sums.n_stored, first, alignment)
    carries = np.array([[first, end - first, first]] if end > first else [], dtype=np.uint64).reshape(-1, 3)
    return Placement(carries, within(rest, end), end, compact=False)


def new_sizes(sizes: Mapping[int, int], n_chunks: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Convert encoded sizes, by position of the inner chunk, to the array `new_nbytes` of `place`."""
    by_position = np.full(n_chunks, ABSENT, dtype=np.uint64)
    n = len(sizes)
    by_position[np.fromiter(sizes, dtype=np.intp, count=n)] = np.fromiter(sizes.values(), np.uint64, n)
    return by_position


class Facts(NamedTuple):
    """The facts that decide whether, and how, a shard can be updated in its own file.

    new_nbytes: decoded bytes of the inner chunks to be written. n_links: names (hard links) of the file. appends: shards may be
    appended to on this file system. direct: one write that makes a file longer is atomic here. sync: a power cut must leave the
    old or the new shard. is_exclusive: False if another writer could change the file at the same time: it is not locked, or not
    on a local file system.
    """

    index_nbytes: int
    index_at_start: bool
    index_checksum: bool
    new_nbytes: int
    n_links: int
    appends: bool
    direct: bool
    sync: bool
    is_exclusive: bool = True


def way_to_append(facts: Facts) -> str | None:
    """Return the way to append to a shard, as csrc/io/sc_append.h names it; None: it must be replaced.

    ``docs/durability.md`` has the reasons.
    """
    if not facts.appends or facts.n_links != 1 or facts.new_nbytes > APPEND_NBYTES:
        return None
    if facts.index_at_start:
        most = SECTOR_NBYTES if facts.sync else BLOCK_NBYTES
        return "index" if facts.index_checksum and facts.index_nbytes <= most else None
    if facts.direct:
        return "direct"
    return "leap" if not facts.sync and facts.index_nbytes <= BLOCK_NBYTES else None


def may_overwrite(facts: Facts) -> bool:
    """Return True if a shard may be updated in place. ``docs/durability.md`` has the reasons."""
    return (
        facts.is_exclusive
        and facts.n_links == 1
        and facts.index_checksum
        and facts.new_nbytes <= APPEND_NBYTES
    )


def place_behind(
    entries: Entries,
    replaced: np.ndarray[Any, np.dtype[np.bool_]],
    *,
    way: str,
    shard_nbytes: int,
    index_nbytes: int,
    index_at_start: bool,
    dead_share: float = DEAD_SHARE,
    user_nbytes: int = 0,
) -> Placement | None:
    """Place new inner chunks behind the old shard; None: it is better packed, or carried inner chunks overlap the index.

    way: from `way_to_append`. user_nbytes: bytes of header and footer, which are not dead. The rest is as for `place`.
    """
    rest = np.empty_like(entries)
    live = sum_up(entries, replaced, rest).left_nbytes
    body = shard_nbytes - index_nbytes - user_nbytes
    if _is_better_packed(body, live, dead_share):
        return None
    if index_at_start and np.any(_overlap(rest, index_nbytes, shard_nbytes)):
        return None  # their bytes would change with the index
    return _in_file(rest, shard_nbytes, way)


def place_in_slots(
    entries: Entries,
    replaced: np.ndarray[Any, np.dtype[np.bool_]],
    *,
    way: str | None,
    shard_nbytes: int,
    index_nbytes: int,
    index_at_start: bool,
    dead_share: float = DEAD_SHARE,
    user_nbytes: int = 0,
    gone: Gone | None = None,
) -> Placement | None:
    """Decide which slots may be overwritten in place; None: the shard is better packed, or carried inner chunks overlap the index.

    A slot is the place of an old inner chunk that gets a new value. It is free if it shares no byte with another inner chunk or
    with the index. The engine overwrites a free slot if the new encoded bytes fit. If they do not fit, or the inner chunk has
    no free slot, it appends them; if `way` is None, it declines, and the caller writes a new object.

    gone: positions of those among `replaced` that become absent; their slots are not free. The entries of the placement are the
    old ones of carried inner chunks and of free slots; `data_offset` is where appended inner chunks begin. The rest is as for
    `place_behind`.
    """
    first = index_nbytes if index_at_start else 0
    end = shard_nbytes if index_at_start else shard_nbytes - index_nbytes
    in_index = _overlap(entries, first, end)
    if np.any(in_index & ~replaced):
        return None  # their bytes would change with the index
    free = replaced & (entries[:, 0] != ABSENT) & ~in_index
    if gone is not None:
        free[gone] = False
    if np.any(free):
        free[free] = _alone(entries, np.flatnonzero(free))
    rest = np.empty_like(entries)
    live = sum_up(entries, replaced & ~free, rest).left_nbytes
    body = end - first - user_nbytes
    if _is_better_packed(body, live, dead_share):
        return None
    return _in_file(rest, shard_nbytes, way)


def _has_much_dead(room: int, live: int, dead_share: float) -> bool:
    """Tell whether a new object is to be packed: for a share of 0 if there is any dead byte."""
    dead = room - live
    if dead <= 0 or dead < dead_share * room:
        return False
    return dead_share <= 0 or dead >= MIN_DEAD_NBYTES or dead >= SMALL_DEAD_SHARE * room


def _is_better_packed(body: int, live: int, dead_share: float) -> bool:
    """Return True if enough of the bytes between header and footer are dead; only `live` of them are in use."""
    dead = body - live
    return dead > 0 and dead >= dead_share * body and dead >= MIN_DEAD_NBYTES


def _in_file(rest: Entries, shard_nbytes: int, way: str | None) -> Placement:
    """Return the placement for an update of a shard in its own file, to which `way` appends."""
    none = np.empty((0, 3), dtype=np.uint64)
    offset = aligned(shard_nbytes, BLOCK_NBYTES) if way == "direct" else shard_nbytes
    return Placement(none, rest, offset, compact=False)


def _alone(
    entries: Entries, positions: np.ndarray[Any, np.dtype[np.intp]]
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return flags for the inner chunks at the positions `positions`: True if it shares no byte with any other inner chunk."""
    offset, end = entries[:, 0], entries.sum(axis=1, dtype=np.uint64)
    stored = (entries[:, 0] != ABSENT) & (entries[:, 1] > 0)
    if len(positions) <= FEW_CHUNKS:  # cheaper than a sort of all entries
        shared = [np.count_nonzero(stored & (offset < end[i]) & (end > offset[i])) for i in positions]
        few: np.ndarray[Any, np.dtype[np.bool_]] = np.array(shared, dtype=np.intp) <= stored[positions]
        return few
    order = np.flatnonzero(stored)
    order = order[np.argsort(offset[order], kind="stable")]
    shares = np.zeros(len(order), dtype=np.bool_)
    shares[1:] = np.maximum.accumulate(end[order])[:-1] > offset[order][1:]
    shares[:-1] |= offset[order][1:] < end[order][:-1]
    alone = np.ones(len(entries), dtype=np.bool_)
    alone[order] = ~shares
    return np.asarray(alone[positions])


def _overlap(entries: Entries, first: int, end: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return flags, True for inner chunks that overlap the index: they have bytes outside of [first, end)."""
    offset, nbytes = entries[:, 0], entries[:, 1]
    overlaps: np.ndarray[Any, np.dtype[np.bool_]] = (offset < first) | (offset + nbytes > end)
    overlaps &= (offset != ABSENT) & (nbytes > 0)
    return overlaps


def _with_index(
    entries: Entries,
    kept: np.ndarray[Any, np.dtype[np.bool_]],
    in_index: np.ndarray[Any, np.dtype[np.bool_]],
    body: tuple[int, int],
    shard_nbytes: int,
) -> Placement:
    """Place inner chunks some of which overlap the old index: its bytes are carried too; see the head of this file."""
    first, end = body
    entries = np.where(kept[:, None], entries, ABSENT)
    if end < shard_nbytes:
        carries = np.array([[0, shard_nbytes, 0]], dtype=np.uint64)
        return Placement(carries, entries, shard_nbytes, compact=False)
    moved = kept & in_index
    reach = int(entries[moved].sum(axis=1, dtype=np.uint64).max())
    entries[moved, 0] += np.uint64(end)
    carries = np.array([[first, end - first, first], [0, reach, end]], dtype=np.uint64)
    return Placement(carries[carries[:, 1] > 0], within(entries, end + reach), end + reach, compact=False)


def within(entries: Entries, end: int) -> Entries:
    """Return the entries, with the offsets of inner chunks of zero bytes reduced to at most `end`.

    All other inner chunks lie before `end`. The old offset of one without bytes may be beyond the end of the new object.
    """
    beyond = entries[:, 1] == 0
    if np.any(beyond):
        beyond &= entries[:, 0] > np.uint64(end)
        entries = entries.copy()
        entries[beyond, 0] = end
    return entries


def _slots(
    entries: Entries, replaced: np.ndarray[Any, np.dtype[np.bool_]], new_nbytes: NewSizes, alignment: int
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Select the replaced inner chunks whose old bytes a new one of the same size may overwrite.

    None is selected if any two stored inner chunks overlap, or if `new_nbytes` is None. One whose old offset is not a multiple
    of `alignment` is not selected.
    """
    if new_nbytes is None:
        return np.zeros_like(replaced)
    stored = entries[:, 0] != ABSENT
    offset, nbytes = entries.T if stored.all() else entries[stored].T
    if np.any(offset[1:] < offset[:-1]):
        order = np.argsort(offset, kind="stable")
        offset, nbytes = offset[order], nbytes[order]
    if np.any(offset[1:] < offset[:-1] + nbytes[:-1]):
        return np.zeros_like(replaced)
    usable: np.ndarray[Any, np.dtype[np.bool_]] = replaced & stored & (entries[:, 1] == new_nbytes)
    if alignment > 1:
        usable &= entries[:, 0] % np.uint64(alignment) == 0
    return usable


def _packed(rest: Entries, n_stored: int, first: int, alignment: int) -> Placement:
    """Move inner chunks together, in their old order; at most `n_stored` of them have bytes."""
    room = np.empty((n_stored, 3), dtype=np.uint64)
    n, end = native.load().index_pack(rest, room, first, alignment)
    rest[rest[:, 1] == 0, 0] = first  # an inner chunk without bytes may be anywhere inside the shard
    return Placement(room[:n].copy(), rest, end if n else first, compact=True)
