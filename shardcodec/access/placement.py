# placement.py - where the inner chunks of a partly rewritten shard go: decisions as plain data
# SPDX-License-Identifier: MIT
"""Placement of carried inner chunks.

A partial write replaces the whole object, but most of its bytes stay what they were. Two layouts:

    keep      [old bytes, at their old offsets, dead ones too .......][new chunks][index]
    compact   [live old chunks, moved together][new chunks][index]

Inner chunks that overlap the old index (damage, unless the user says otherwise) keep a copy of these bytes: an index at
the end stays where it is, dead as such, and of a shard that begins with its index the front is copied behind the rest.

In `keep`, a new inner chunk takes the slot of the one it replaces where its size is known and the same: a reader that
finds it there has the new value of that inner chunk, whole.

Offsets are kept as a rule: a reader that has fetched the old index and opens the new file with it still finds every
old inner chunk where that index says. zarr-python and zarrs read that way, and a writer that moves chunks makes them
return wrong values where there are no checksums. Only when more than `DEAD_SHARE` of the object would be dead bytes
is it packed. What follows the last inner chunk of the old object, no index ever referred to: it is left behind.
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

ABSENT = np.uint64(2**64 - 1)
DEAD_SHARE = 0.5
# A dead share that packs even if that makes the object longer, as alignment may.
PACK = -1.0

# What is appended past the page cache begins and ends with a block; what is written at once lies within one.
BLOCK_NBYTES = 4096
# A sector of any disk: written whole or not at all when the power goes.
SECTOR_NBYTES = 512
# Packing to save less than that costs more than it brings: appending wastes up to two blocks each time.
MIN_DEAD_NBYTES = 16 * BLOCK_NBYTES
# So many inner chunks are compared with all others one by one.
FEW_CHUNKS = 4
# New inner chunks that are held in memory until they are appended, decoded.
APPEND_NBYTES = 64 << 20

Entries = np.ndarray[Any, np.dtype[np.uint64]]
NewSizes = int | np.ndarray[Any, np.dtype[np.uint64]] | None
Gone = np.ndarray[Any, np.dtype[np.intp]]


def aligned(offset: Any, alignment: int) -> Any:
    """Return the next multiple of `alignment`, of a number or of each of an array."""
    if isinstance(offset, int):
        return -(-offset // alignment) * alignment
    return (offset + np.uint64(alignment - 1)) // np.uint64(alignment) * np.uint64(alignment)


class Sums(NamedTuple):
    """What the numbers of an index come to, whatever it claims (csrc/kernels/sc_index.h).

    Attributes
    ----------
    n_stored : int
        Inner chunks that have bytes; the next four are over them.
    first, end : int
        Where their bytes begin and end; 2^64-1 and 0 where there are none.
    offset_bits, nbytes_bits : int
        Offsets, and sizes, or-ed: a power of two divides all of them if it divides these.
    left_nbytes : int
        Bytes of those that are left.
    """

    n_stored: int
    first: int
    end: int
    offset_bits: int
    nbytes_bits: int
    left_nbytes: int


def sum_up(
    entries: Entries, dropped: np.ndarray[Any, np.dtype[np.bool_]] | None = None, left: Entries | None = None
) -> Sums:
    """Sum an index up, in one pass.

    Parameters
    ----------
    entries : ndarray of uint64, shape (n_chunks, 2), C order
    dropped : ndarray of bool, shape (n_chunks,), optional
        Inner chunks that are not left.
    left : ndarray, as `entries`, optional
        Gets the entries that are, absent elsewhere.
    """
    return Sums(*native.load().index_sums(entries, dropped, left))


@dataclass(frozen=True, eq=False)
class Placement:
    """What is carried over, and where.

    Attributes
    ----------
    carries : ndarray of uint64, shape (n, 3)
        Runs of bytes: offset in the old object, size, offset in the new one.
    entries : ndarray of uint64, shape (n_chunks, 2)
        The new index as far as it is known: carried inner chunks, and the slots of replaced ones that are used again;
        absent elsewhere.
    data_offset : int
        Where the first new inner chunk goes.
    compact : bool
        Whether chunks have moved.
    """

    carries: Entries
    entries: Entries
    data_offset: int
    compact: bool

    def only_packs(self, first: int) -> bool:
        """Tell whether the runs become, in their order and moved towards `first` at most, all that is there up to `data_offset`."""
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
    """Decide how the inner chunks that are not replaced reach the new object.

    Parameters
    ----------
    entries : ndarray of uint64, shape (n_chunks, 2)
        The old index, checked.
    replaced : ndarray of bool, shape (n_chunks,)
        Inner chunks that will be written anew.
    shard_nbytes, index_nbytes : int
        Sizes of the old object and of its index.
    index_at_start : bool
        Where the index is.
    new_nbytes : int or ndarray of uint64, shape (n_chunks,), optional
        Sizes of the inner chunks that will be written, encoded: one for all, or of each, 2^64-1 for those that go. None: not
        known yet.
    dead_share : float
        Pack when this share of the carried bytes, or more, is dead. `PACK`: unless inner chunks share so many bytes that
        it would take more than there are.
    alignment : int
        Inner chunks that are moved or written begin at a multiple of this.
    """
    first = index_nbytes if index_at_start else 0
    end = shard_nbytes if index_at_start else shard_nbytes - index_nbytes
    slots = _slots(entries, replaced, new_nbytes, alignment)
    left = np.empty_like(entries)
    sums = sum_up(entries, replaced & ~slots, left)
    if sums.n_stored and not first <= sums.first <= sums.end <= end:
        in_index = _overlap(entries, first, end)
        kept = (entries[:, 0] != ABSENT) & ~replaced
        if np.any(in_index & kept):
            return _with_index(entries, kept, in_index, (first, end), shard_nbytes)
        slots &= ~in_index
        sums = sum_up(entries, replaced & ~slots, left)
    # what follows the last inner chunk, a footer, nobody needs, and it may not fit the new inner chunks
    end = max(first, min(end, sums.end))
    room, live = end - first, sums.left_nbytes
    packs = (
        dead_share == PACK and live <= room
    )  # no more: shared bytes are multiplied, and an index may claim any number
    if alignment > 1:
        live = max(live, int(aligned(left[left[:, 0] != ABSENT, 1], alignment).sum(dtype=np.uint64)))
    if packs or (live < room and room - live >= max(0.0, dead_share) * room):
        if np.any(slots):
            sum_up(entries, replaced, left)
        return _packed(left, sums.n_stored, first, alignment)
    carries = np.array([[first, end - first, first]] if end > first else [], dtype=np.uint64).reshape(-1, 3)
    return Placement(carries, within(left, end), end, compact=False)


def new_sizes(sizes: Mapping[int, int], n_chunks: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return sizes by position in the form that `place` takes."""
    found = np.full(n_chunks, ABSENT, dtype=np.uint64)
    n = len(sizes)
    found[np.fromiter(sizes, dtype=np.intp, count=n)] = np.fromiter(sizes.values(), np.uint64, n)
    return found


class Facts(NamedTuple):
    """What decides whether, and how, a shard can be updated in its own file.

    Attributes
    ----------
    index_nbytes : int
    index_at_start, index_checksum : bool
    new_nbytes : int
        Decoded bytes of the inner chunks to be written.
    n_links : int
        Names of the file.
    appends : bool
        Whether shards are appended to on this file system (`storage.file_system`).
    direct : bool
        Whether one write that makes a file longer leaves all of it or nothing (`storage.file_system`).
    sync : bool
        Whether a power cut must leave the old or the new shard.
    """

    index_nbytes: int
    index_at_start: bool
    index_checksum: bool
    new_nbytes: int
    n_links: int
    appends: bool
    direct: bool
    sync: bool


def way_to_append(facts: Facts) -> str | None:
    """Choose the way to append to a shard; None: it has to be replaced. ``docs/durability.md`` has the reasons.

    Returns
    -------
    {"direct", "leap", "index"} or None
        See csrc/io/sc_append.h.
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
    """Tell whether a shard may be updated in place, as far as these facts go. ``docs/durability.md`` has the reasons."""
    return facts.n_links == 1 and facts.index_checksum and facts.new_nbytes <= APPEND_NBYTES


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
    """Decide where inner chunks go that are appended; None when the shard had better be packed, or must not be.

    Parameters
    ----------
    way : str
        As from `way_to_append`.
    entries, replaced, shard_nbytes, index_nbytes, index_at_start, dead_share
        As for `place`.
    user_nbytes : int
        Header and footer: not dead.
    """
    left = np.empty_like(entries)
    live = sum_up(entries, replaced, left).left_nbytes
    body = shard_nbytes - index_nbytes - user_nbytes
    if live < body and body - live >= dead_share * body and body - live >= MIN_DEAD_NBYTES:
        return None
    if index_at_start and np.any(_overlap(left, index_nbytes, shard_nbytes)):
        return None  # their bytes would change with the index
    none = np.empty((0, 3), dtype=np.uint64)
    offset = aligned(shard_nbytes, BLOCK_NBYTES) if way == "direct" else shard_nbytes
    return Placement(none, left, offset, compact=False)


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
    """Decide which slots may be overwritten; None when the shard had better be packed, or must not be changed in place.

    A slot is where an inner chunk was that is written anew. It is free for that if it shares no byte with another inner
    chunk nor with the index. Whether what is new fits is known when it is encoded; what does not goes to the end.

    Parameters
    ----------
    way : str or None
        How to append, as from `way_to_append`.
    entries, replaced, shard_nbytes, index_nbytes, index_at_start, dead_share
        As for `place`.
    user_nbytes : int
        Header and footer: not dead.
    gone : ndarray of intp, optional
        Positions of those among `replaced` that nothing new takes the place of.
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
    left = np.empty_like(entries)
    live = sum_up(entries, replaced & ~free, left).left_nbytes
    body = end - first - user_nbytes
    if live < body and body - live >= dead_share * body and body - live >= MIN_DEAD_NBYTES:
        return None
    none = np.empty((0, 3), dtype=np.uint64)
    offset = aligned(shard_nbytes, BLOCK_NBYTES) if way == "direct" else shard_nbytes
    return Placement(none, left, offset, compact=False)


def _alone(entries: Entries, some: np.ndarray[Any, np.dtype[np.intp]]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which of some inner chunks share no byte with any other."""
    offset, end = entries[:, 0], entries.sum(axis=1, dtype=np.uint64)
    stored = (entries[:, 0] != ABSENT) & (entries[:, 1] > 0)
    if len(some) <= FEW_CHUNKS:  # cheaper than to sort them all
        shared = [np.count_nonzero(stored & (offset < end[i]) & (end > offset[i])) for i in some]
        few: np.ndarray[Any, np.dtype[np.bool_]] = np.array(shared, dtype=np.intp) <= stored[some]
        return few
    order = np.flatnonzero(stored)
    order = order[np.argsort(offset[order], kind="stable")]
    shares = np.zeros(len(order), dtype=np.bool_)
    shares[1:] = np.maximum.accumulate(end[order])[:-1] > offset[order][1:]
    shares[:-1] |= offset[order][1:] < end[order][:-1]
    alone = np.ones(len(entries), dtype=np.bool_)
    alone[order] = ~shares
    return np.asarray(alone[some])


def _overlap(entries: Entries, first: int, end: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Chunks that are present and have bytes outside of [first, end), which is to say in the index."""
    offset, nbytes = entries[:, 0], entries[:, 1]
    found: np.ndarray[Any, np.dtype[np.bool_]] = (offset < first) | (offset + nbytes > end)
    found &= (offset != ABSENT) & (nbytes > 0)
    return found


def _with_index(
    entries: Entries,
    kept: np.ndarray[Any, np.dtype[np.bool_]],
    in_index: np.ndarray[Any, np.dtype[np.bool_]],
    body: tuple[int, int],
    shard_nbytes: int,
) -> Placement:
    """Keep the bytes of an index for the chunks that overlap it; see the head of this file."""
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
    """Return entries that all lie before `end`, before which all bytes of inner chunks do.

    An inner chunk without bytes may stand behind what is carried, and the new object may not be as long as that.
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
    """Replaced chunks whose bytes may be overwritten: of the right size, and no other chunk refers to any of them."""
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


def _packed(left: Entries, n_stored: int, first: int, alignment: int) -> Placement:
    """Move inner chunks together, in the order they have in the old object, of which no more than so many have bytes."""
    room = np.empty((n_stored, 3), dtype=np.uint64)
    n, end = native.load().index_pack(left, room, first, alignment)
    left[left[:, 1] == 0, 0] = first  # what has no bytes is anywhere, but inside the shard
    return Placement(room[:n].copy(), left, end if n else first, compact=True)
