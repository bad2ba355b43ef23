# placement.py - where the inner chunks of a partly rewritten shard go: decisions as plain data
# SPDX-License-Identifier: MIT
"""Placement of carried inner chunks.

A partial write replaces the whole object, but most of its bytes stay what they were. Two layouts:

    keep      [old bytes, at their old offsets, dead ones too .......][new chunks][index]
    compact   [live old chunks, moved together][new chunks][index]

Inner chunks that overlap the old index (damage, unless the user says otherwise) keep a copy of these bytes: an index at
the end stays where it is, dead as such, and of a shard that begins with its index the front is copied behind the rest.

In `keep`, a new inner chunk takes the slot of the one it replaces where both have the same fixed size: a reader that
finds it there has the new value of that inner chunk, whole.

Offsets are kept as a rule: a reader that has fetched the old index and opens the new file with it still finds every
old inner chunk where that index says. zarr-python and zarrs read that way, and a writer that moves chunks makes them
return wrong values where there are no checksums. Only when more than `DEAD_SHARE` of the object would be dead bytes
is it packed. What follows the last inner chunk of the old object, no index ever referred to: it is left behind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .. import native

__all__ = [
    "ABSENT",
    "BLOCK_NBYTES",
    "DEAD_SHARE",
    "Facts",
    "Placement",
    "Sums",
    "aligned",
    "may_overwrite",
    "place",
    "place_behind",
    "place_in_slots",
    "sum_up",
    "way_to_append",
    "within",
]

ABSENT = np.uint64(2**64 - 1)
DEAD_SHARE = 0.5

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


def aligned(offset: Any, alignment: int) -> Any:
    """Return the next multiple of `alignment`, of a number or of each of an array."""
    if isinstance(offset, int):
        return -(-offset // alignment) * alignment
    return (offset + np.uint64(alignment - 1)) // np.uint64(alignment) * np.uint64(alignment)


class Sums(NamedTuple):
    """What the numbers of an index come to, whatever it claims (csrc/sc_index.h).

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


def place(
    entries: Entries,
    replaced: np.ndarray[Any, np.dtype[np.bool_]],
    *,
    shard_nbytes: int,
    index_nbytes: int,
    index_at_start: bool,
    fixed_nbytes: int | None = None,
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
    fixed_nbytes : int, optional
        Size of an encoded inner chunk where all have the same.
    dead_share : float
        Pack when this share of the carried bytes, or more, is dead.
    alignment : int
        Inner chunks that are moved begin at a multiple of this.
    """
    kept = (entries[:, 0] != ABSENT) & ~replaced
    first = index_nbytes if index_at_start else 0
    end = shard_nbytes if index_at_start else shard_nbytes - index_nbytes
    in_place = _slots(entries, replaced, fixed_nbytes)
    in_index = _overlap(entries, first, end)
    end = min(end, max(first, _reach(entries)))
    if np.any(in_index & kept):
        return _with_index(entries, kept, in_index, (first, end), shard_nbytes)
    in_place &= ~in_index
    live = int(aligned(entries[kept | in_place, 1], alignment).sum(dtype=np.uint64))
    if live < end - first and end - first - live >= dead_share * (end - first):
        return _packed(np.where(kept[:, None], entries, ABSENT), kept, first, alignment)
    end = max(end, first)
    carried = within(np.where((kept | in_place)[:, None], entries, ABSENT), end)
    carries = np.array([[first, end - first, first]] if end > first else [], dtype=np.uint64).reshape(-1, 3)
    return Placement(carries, carried, end, compact=False)


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
    direct : bool
        Whether one write that makes a file longer leaves all of it or nothing (`storage.filesystem`).
    sync : bool
        Whether a power cut must leave the old or the new shard.
    """

    index_nbytes: int
    index_at_start: bool
    index_checksum: bool
    new_nbytes: int
    n_links: int
    direct: bool
    sync: bool


def way_to_append(facts: Facts) -> str | None:
    """Choose the way to append to a shard; None: it has to be replaced. ``docs/durability.md`` has the reasons.

    Returns
    -------
    {"direct", "leap", "index"} or None
        See csrc/sc_append.h.
    """
    if facts.n_links != 1 or facts.new_nbytes > APPEND_NBYTES:
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
    """
    first = index_nbytes if index_at_start else 0
    end = shard_nbytes if index_at_start else shard_nbytes - index_nbytes
    in_index = _overlap(entries, first, end)
    if np.any(in_index & ~replaced):
        return None  # their bytes would change with the index
    free = replaced & (entries[:, 0] != ABSENT) & ~in_index
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
    beyond = (entries[:, 0] > np.uint64(end)) & (entries[:, 1] == 0)
    if np.any(beyond):
        entries = entries.copy()
        entries[beyond, 0] = end
    return entries


def _reach(entries: Entries) -> int:
    """Where the last inner chunk ends. What follows, a footer, nobody needs, and it may not fit the new inner chunks."""
    return sum_up(entries).end


def _slots(
    entries: Entries, replaced: np.ndarray[Any, np.dtype[np.bool_]], fixed_nbytes: int | None
) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Replaced chunks whose bytes may be overwritten: of the right size, and no other chunk refers to any of them."""
    if fixed_nbytes is None:
        return np.zeros_like(replaced)
    ranges = entries[entries[:, 0] != ABSENT]
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    if np.any(ranges[1:, 0] < ranges[:-1, 0] + ranges[:-1, 1]):
        return np.zeros_like(replaced)
    usable: np.ndarray[Any, np.dtype[np.bool_]] = replaced & (entries[:, 0] != ABSENT)
    usable &= entries[:, 1] == np.uint64(fixed_nbytes)
    return usable


def _packed(
    entries: Entries, kept: np.ndarray[Any, np.dtype[np.bool_]], first: int, alignment: int
) -> Placement:
    """Move the kept chunks together, in the order they have in the old object."""
    chosen = np.flatnonzero(kept)
    chosen = chosen[np.argsort(entries[chosen, 0], kind="stable")]
    sizes = entries[chosen, 1]
    room = aligned(sizes, alignment)
    starts = np.cumsum(room, dtype=np.uint64) - room + np.uint64(aligned(first, alignment))
    ends = starts + sizes
    carries = np.stack([entries[chosen, 0], sizes, starts], axis=1)
    moved = entries.copy()
    moved[chosen, 0] = starts
    end = int(ends[sizes > 0].max(initial=np.uint64(first)))
    return Placement(_merged(carries[sizes > 0]), within(moved, end), end, compact=True)


def _merged(carries: Entries) -> Entries:
    """Join runs that are neighbours in both objects, so that few copies move many chunks."""
    if len(carries) < 2:
        return carries
    old_end, new_end = (carries[:-1, [0, 2]] + carries[:-1, [1]]).T
    breaks = np.flatnonzero((old_end != carries[1:, 0]) | (new_end != carries[1:, 2])) + 1
    firsts = np.concatenate([[0], breaks]).astype(np.intp)
    merged = carries[firsts]
    merged[:, 1] = np.add.reduceat(carries[:, 1], firsts)
    return merged
