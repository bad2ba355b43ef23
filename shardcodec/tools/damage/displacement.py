# displacement.py - inner chunks that are not where a whole index says
# SPDX-License-Identifier: MIT
"""`displacement_of`: how far the inner chunks of a shard stand from where a whole index says, after bytes were lost or inserted.

A shard that lost bytes before its index has an intact index, and the entries behind the cut are too large by the number of
lost bytes. Nothing says where the cut is. Each chunk has two possible places, and a cut at byte c puts a chunk that ends
before c in its own place and one that begins at least `shift` bytes behind c in the other place. The cuts with the most
whole chunks are possible. A cut that leaves no more damaged chunks than these is possible too, if it explains the other whole
chunks: each is an old one, where the shard had dead bytes, or another chunk of the index. A chunk is proved if all possible cuts
put it in the same place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...access.placement import ABSENT
from ...format.spec import ShardSpec
from ..findings import FindingKind
from .index_layout import Entries, bad_entries, is_absent
from .index_search import IndexStatus, StoredIndex

__all__ = ["Displacement", "displacement_of", "drift_of", "has_all_chunks", "prove", "shifted"]

Flags = np.ndarray[Any, np.dtype[np.bool_]]
Numbers = np.ndarray[Any, np.dtype[np.int64]]
Pair = tuple[Flags, Flags]
Spans = tuple[Numbers, Numbers]

_FAR = 2**62  # behind the end of any file


@dataclass(frozen=True)
class Displacement:
    """A shift of inner chunks.

    Attributes
    ----------
    kind : FindingKind
    shift : int
        Number to add to an offset; 0 if bytes are missing and not shifted.
    detail : str
    is_packed : bool
        The entries follow each other without gaps, in the layout of writers; the only evidence without checksums.
    moves_all : bool
        True if all inner chunks are shifted; otherwise, those behind an unknown byte.
    """

    kind: FindingKind
    shift: int
    detail: str
    is_packed: bool
    moves_all: bool = False


def displacement_of(index: StoredIndex, nbytes: int, spec: ShardSpec) -> Displacement | None:
    """Return the possible shift of inner chunks in an object of `nbytes` bytes; None if nothing suggests a shift.

    `index` has entries.
    """
    assert index.entries is not None
    live = index.entries[_could_be_written(index.entries)].astype(np.int64)
    if not len(live):
        return None
    ends = live.sum(axis=1)
    first, end, n = int(live[:, 0].min()), int(ends.max()), spec.index_nbytes
    is_packed = _is_packed(live)
    if spec.index_location == "start" and index.offset > 0 and index.status is IndexStatus.ELSEWHERE:
        detail = f"{index.offset} bytes were inserted before the index"
        is_at_end = index.offset == nbytes - n and end <= index.offset
        return (
            None
            if is_at_end
            else Displacement(FindingKind.SHIFTED_DATA, index.offset, detail, is_packed, True)
        )
    if spec.index_location == "start" and index.offset == 0:
        if first == 0 and end + n <= nbytes and is_packed:
            detail = f"offsets do not count the {n} bytes of the index at the start"
            return Displacement(FindingKind.SHIFTED_DATA, n, detail, is_packed, True)
        if end > nbytes:
            detail = f"inner chunks end at byte {end}, but the object ends at byte {nbytes}"
            return Displacement(FindingKind.TRUNCATED_TAIL, 0, detail, is_packed)
        return None
    if spec.index_location == "end" and index.offset and end > index.offset:
        lost = end - index.offset
        detail = f"{lost} bytes before the index are missing: inner chunks end at byte {end}, the index begins at byte {index.offset}"
        return Displacement(FindingKind.LOST_HEAD, -lost, detail, is_packed)
    return None


def drift_of(index: StoredIndex, nbytes: int, spec: ShardSpec) -> int:
    """Return the shift of inner chunks behind a cut or an insertion, if nothing follows the last inner chunk."""
    assert index.entries is not None
    live = index.entries[_could_be_written(index.entries)].astype(np.int64)
    if not len(live):
        return 0
    return (nbytes if spec.index_location == "start" else index.offset) - int(live.sum(axis=1).max())


def has_all_chunks(entries: Entries, inside: Flags) -> bool:
    """Return True if every inner chunk of the array is present, and they follow each other without gaps."""
    live = entries[~is_absent(entries)]
    could_be = _could_be_written(live)
    return bool(
        could_be.all() and _is_packed(live.astype(np.int64)) and not (is_absent(entries) & inside).any()
    )


def _could_be_written(entries: Entries) -> Flags:
    """Return flags of the entries that do not exceed the size of any file."""
    limit = np.uint64(2**60)
    return np.asarray((entries[:, 0] < limit) & (entries[:, 1] < limit))


def _is_packed(live: np.ndarray[Any, Any]) -> bool:
    in_order = live[np.argsort(live[:, 0], kind="stable")]
    return bool((in_order[1:, 0] == in_order[:-1].sum(axis=1)).all())


def shifted(entries: Entries, shift: int, index: StoredIndex, nbytes: int) -> Entries:
    """Return the entries with shifted offsets; impossible entries become absent."""
    moved = np.full_like(entries, ABSENT)
    movable = _could_be_written(entries)
    new = entries[movable, 0].astype(np.int64) + shift
    movable[movable] = new >= 0
    moved[movable, 0] = new[new >= 0].astype(np.uint64)
    moved[movable, 1] = entries[movable, 1]
    moved[bad_entries(moved, nbytes, index.offset, index.nbytes)] = ABSENT
    return moved


def prove(
    entries: Entries, shift: int, in_place: Flags, in_other: Flags, headers: Pair | None = None
) -> Pair:
    """Return flags of the inner chunks that are proved in their own place, and in the shifted place.

    `in_place` and `in_other` have the inner chunks that are whole in the one and in the other. A negative `shift` is the
    number of lost bytes. Without checksums, one that lost its last bytes may decode with those of the next one: `headers` then
    tells which begin in the one place and in the other. Nothing is missing before the last of those that all begin in their
    places, and behind the first that, with all behind it, begins in the other. A header that may be of another proves nothing.
    """
    live = _could_be_written(entries) & ~is_absent(entries)
    own = _spans(np.where(live[:, None], entries, np.uint64(0)))
    other = own + shift
    if headers is None:
        possible = _possible_cuts((own[live], other[live]), (own[in_place], other[in_other]))
        return in_place & (own[:, 1] <= possible.min()), in_other & (other[:, 0] >= possible.max())
    offsets, moved = own[:, 0], other[:, 0]
    is_before = offsets < offsets[live & ~headers[0]].min(initial=_FAR)
    is_behind = moved > moved[live & ~headers[1]].max(initial=-_FAR)
    last = offsets[live & is_before & ~np.isin(offsets, moved[live])].max(initial=-_FAR)
    first = moved[live & is_behind & ~np.isin(moved, offsets[live])].min(initial=_FAR)
    return in_place & (own[:, 1] <= last) & (last < first), in_other & (moved >= first) & (last < first)


def _spans(entries: Entries) -> Numbers:
    """Return the first byte of each entry and the byte behind its last one."""
    return np.cumsum(entries.astype(np.int64), axis=1)


def _possible_cuts(live: Spans, whole: Spans) -> Numbers:
    """Return the bytes of the object where the missing ones may have been, among all that make a difference.

    `live` has the spans of all inner chunks in their own places, and in the shifted places; `whole` those of the whole ones.
    """
    limits = np.concatenate(live).ravel()
    cuts = np.unique(np.clip(np.concatenate([[0], limits, limits + 1]), 0, live[1].max(initial=0)))
    n_whole = _n_left(cuts, whole)
    n_damaged = _n_left(cuts, live) - n_whole
    best = n_whole == n_whole.max()
    first, last = _limits_of_whole(live, whole)
    explained = (
        (_n_around(cuts, whole[0]) + _n_around(cuts, whole[1]) == 0) & (cuts >= first) & (cuts <= last)
    )
    return np.asarray(cuts[best | (explained & (n_damaged <= n_damaged[best].min()))])


def _limits_of_whole(live: Spans, whole: Spans) -> tuple[int, int]:
    """Return the first and the last byte of a possible cut: it leaves each whole inner chunk that cannot be an old one."""
    shift = live[1][:1, 0] - live[0][:1, 0]
    known = live[0][np.lexsort(live[0].T)]
    known = known[np.append(True, (known[1:] != known[:-1]).any(axis=1))]
    first = whole[0][~_can_be_old(whole[0] - shift, known), 1].max(initial=0)
    last = whole[1][~_can_be_old(whole[1], known), 0].min(initial=_FAR)
    return int(first), int(last)


def _can_be_old(spans: Numbers, live: Numbers) -> Flags:
    """Return which spans lie among dead bytes, or are those of another live inner chunk. `live` has each span once."""
    begins, ends = np.sort(live[:, 0]), np.sort(live[:, 1])
    n_shared = np.searchsorted(begins, spans[:, 1]) - np.searchsorted(ends, spans[:, 0], side="right")
    is_live = (n_shared == 1) & np.isin(spans[:, 0], begins) & np.isin(spans[:, 1], ends)
    return np.asarray((n_shared == 0) | is_live)


def _n_left(cuts: Numbers, spans: Spans) -> Numbers:
    """Return how many inner chunks each cut leaves in their own places or in the shifted places."""
    before = np.searchsorted(np.sort(spans[0][:, 1]), cuts, side="right")
    return np.asarray(before + len(spans[1]) - np.searchsorted(np.sort(spans[1][:, 0]), cuts, side="left"))


def _n_around(cuts: Numbers, spans: Numbers) -> Numbers:
    """Return how many spans have bytes on both sides of each cut."""
    begun = np.searchsorted(np.sort(spans[:, 0]), cuts, side="left")
    return np.asarray(begun - np.searchsorted(np.sort(spans[:, 1]), cuts, side="right"))
