# index_search.py - find the index of a shard that may be damaged
# SPDX-License-Identifier: MIT
"""Find the index of a shard that may be damaged.

The places are tried in this order, up to the first whole index:

1. its own place,
2. behind a cut: only bytes of the checksum are missing at the end of the object,
3. its own place, after the correction of one damaged byte (`index_layout.correct_one_byte`),
4. the other end of the shard, if a writer had another ``index_location``,
5. anywhere: the last place where the checksum holds and all entries lie before the index. This is the index before a torn
   append, or bytes were added to the object. If the object ends with a damaged index, the older index shows only what the
   append has not changed.

Without a checksum of the index, only the bounds of all entries tell an index from other bytes. One impossible entry may mean
that bytes were cut off or appended, and that each entry is read in the place of its neighbour. Such an index is in its place
only if the inner chunks end where it begins (`_is_anchored`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ... import native
from ...access.inner_chunks import coordinates
from ...access.opened_shard import OpenedShard
from ...access.placement import ABSENT
from ...format.spec import ChainSpec, ShardSpec
from ..findings import FindingKind
from ..memory import BLOCK_NBYTES
from .index_layout import (
    CHECKSUM_NBYTES,
    Entries,
    Flags,
    bad_entries,
    correct_one_byte,
    decode_entries,
    index_offset,
    is_absent,
    wrong_sizes,
)

__all__ = [
    "UNKNOWN",
    "IndexStatus",
    "StoredIndex",
    "find_index",
]

# Both numbers of an entry whose bytes are missing; no inner chunk is empty.
UNKNOWN = np.uint64(0)

# Words of an index that the search compares before it computes a checksum.
_SAMPLE_WORDS = 8
# In a larger index, one byte may explain the damage of many by chance (255 * n / 2^32), so its inner chunks must also touch.
MAX_TRUSTED_NBYTES = 4096


class IndexStatus(enum.Enum):
    """The relation of an index to the one that the shard should have."""

    IN_PLACE = "in place"
    CORRECTED = "corrected"  # the present index, with some bytes restored
    ELSEWHERE = "elsewhere"  # another whole index of the object
    LOST = "lost"


@dataclass(frozen=True, eq=False)
class StoredIndex:
    """The index of a shard, which may be damaged or lost.

    Attributes
    ----------
    status : IndexStatus
    entries : ndarray of uint64, shape (n_chunks, 2), or None
        The entries, which may be wrong; None if the index is lost.
    offset : int
        Offset of the index in the object, or the offset that it should have.
    nbytes : int
        Bytes of the index that the object has.
    kind : FindingKind or None
        What is wrong; None for an index in its place.
    detail : str
    hints : ndarray or None
        Entries of a lost index, any of which may be wrong; both numbers are `UNKNOWN` where bytes are missing.
    checksum : bytes
        The last stored checksum of a lost index; of an index that is too short, the last bytes of the object, which are the
        checksum if the missing ones were before it. Empty if it has none.
    n_missing : int
        Bytes of a lost index that are missing.
    proved : ndarray or None
        Entries that a lost index and an older whole one have in the same position. They are absent elsewhere, which proves
        nothing.
    is_anchored : bool
        True if the inner chunks end where the index begins, or begin where it ends, so that no cut or appended bytes have
        shifted it; always with a checksum.
    doubtful : ndarray of bool or None
        Entries that are absent and may belong to stored inner chunks.
    """

    status: IndexStatus
    entries: Entries | None
    offset: int
    nbytes: int
    kind: FindingKind | None = None
    detail: str = ""
    hints: Entries | None = None
    checksum: bytes = b""
    n_missing: int = 0
    proved: Entries | None = None
    is_anchored: bool = True
    doubtful: Flags | None = None


def find_index(
    view: OpenedShard, spec: ShardSpec, block_nbytes: int = BLOCK_NBYTES, inside: Flags | None = None
) -> StoredIndex:
    """Find the index of a shard; the search reads blocks of `block_nbytes` bytes.

    `inside` has the inner chunks with elements of the array; entries of other chunks do not show damage.
    """
    at, n = index_offset(spec, view.nbytes), spec.index_nbytes
    stored = view.range(at, n) if at >= 0 else None
    entries = None if stored is None else decode_entries(spec, stored)
    if not spec.n_index_checksums:
        return _without_checksum(view, spec, entries, at, block_nbytes, inside)
    if entries is not None:
        return StoredIndex(IndexStatus.IN_PLACE, entries, at, n)
    index = _cut_checksum(view, spec) or _corrected(view, spec, stored, at)
    if index is None and not _holds_equal_indexes(spec):
        index = _other_end(view, spec, at) or _elsewhere(view, spec, at, block_nbytes)
    return _if_latest(index, view, spec, stored, at)


def _holds_equal_indexes(spec: ShardSpec) -> bool:
    """Return True if inner chunks are shards with an index of the same size, which a search could mistake for this one."""
    inner: ChainSpec | None = spec.inner
    while inner is not None and inner.sharding is not None:
        if ShardSpec.from_chain(inner).index_nbytes == spec.index_nbytes:
            return True
        inner = inner.inner
    return False


def _without_checksum(
    view: OpenedShard,
    spec: ShardSpec,
    entries: Entries | None,
    at: int,
    block_nbytes: int,
    inside: Flags | None,
) -> StoredIndex:
    n, is_nested = spec.index_nbytes, _holds_equal_indexes(spec)
    if entries is not None:
        needed = entries if inside is None else np.where(inside[:, None], entries, ABSENT)
        limit = at if spec.index_location == "end" else view.nbytes
        if _is_possible(needed, entries, view, spec, at):
            inserted = None if is_nested else _around_inserted(view, spec, entries, at)
            # entries that reach too far show that inner chunks have lost bytes; `_is_possible` has anchored them
            is_anchored = _end_of(needed) > limit or _is_anchored(entries, view, spec, at)
            return inserted or StoredIndex(IndexStatus.IN_PLACE, entries, at, n, is_anchored=is_anchored)
    index = None if is_nested else _other_end(view, spec, at)
    is_anchored = entries is not None and _is_anchored(entries, view, spec, at)
    # a search could mistake the index of a nested shard, and absent entries behind it, for an index
    if index is None and not is_anchored and spec.inner.sharding is None and spec.index_location == "end":
        index = _elsewhere(view, spec, at, block_nbytes)
    return _if_latest(index, view, spec, None if entries is None else view.range(at, n), at)


def _is_possible(needed: Entries, entries: Entries, view: OpenedShard, spec: ShardSpec, at: int) -> bool:
    """Return True if the needed entries are possible in this object, or were before it lost bytes of inner chunks."""
    if _wrong_sizes(needed, spec).any():
        return False
    n = spec.index_nbytes
    n_lost = max(0, _end_of(needed) - (at if spec.index_location == "end" else view.nbytes))
    if n_lost:
        first = 0 if spec.index_location == "end" else n
        if not _is_packed(needed) or _first_of(needed) != first:
            return False
        needed = entries  # an entry that no reader needs also shows damage of the index
    low = at + n_lost if spec.index_location == "end" else at
    return not bad_entries(needed, view.nbytes + n_lost, low, n).any()


def _is_anchored(entries: Entries, view: OpenedShard, spec: ShardSpec, at: int) -> bool:
    """Return True if an index without a checksum begins where the inner chunks end, or they begin where it ends.

    Otherwise bytes were cut off or appended. The first entry may then consist of other bytes and be impossible.
    """
    possible = _are_possible(entries, view.nbytes, at, spec)
    live = entries[possible & ~is_absent(entries)]
    if not possible[0] or not len(live):
        return False
    if spec.index_location == "start":
        return int(live[:, 0].min()) == spec.index_nbytes
    return _end_of(entries) == at


def _impossible(entries: Entries, view: OpenedShard, spec: ShardSpec, at: int) -> StoredIndex:
    """Return a lost index whose hints have impossible entries."""
    possible = _are_possible(entries, view.nbytes, at, spec)
    first = int(np.argmin(possible))
    offset, nbytes = (int(number) for number in entries[first])
    detail = (
        f"{int((~possible).sum())} entries of the index are impossible, and it has no checksum; that of inner chunk "
        f"{coordinates(first, spec.grid_shape)} claims {nbytes} bytes at offset {offset} of {view.nbytes}"
    )
    return StoredIndex(
        IndexStatus.LOST,
        None,
        at,
        spec.index_nbytes,
        FindingKind.OUT_OF_BOUNDS,
        detail,
        entries,
        is_anchored=_is_anchored(entries, view, spec, at),
    )


def _end_of(entries: Entries) -> int:
    """Return the end of the last inner chunk, without entries beyond the size of any file."""
    limit = np.uint64(2**60)
    live = entries[(entries[:, 0] < limit) & (entries[:, 1] < limit)]
    return int(live.sum(axis=1, dtype=np.uint64).max()) if len(live) else 0


def _first_of(entries: Entries) -> int:
    """Return the offset of the first inner chunk; 0 without inner chunks."""
    live = entries[~is_absent(entries)]
    return int(live[:, 0].min()) if len(live) else 0


def _around_inserted(view: OpenedShard, spec: ShardSpec, entries: Entries, at: int) -> StoredIndex | None:
    """Return the index around inserted bytes that look like possible entries, such as 16 bytes of 0xFF.

    The inner chunks end where the index begins, and it overlaps its own place. Bytes of 0xFF may have been inserted wherever
    as many entries are absent; an entry that differs between these places is doubtful.
    """
    n = spec.n_chunks
    m = min(n - 1, at // 16)
    if spec.index_location == "start" or _is_permuted(spec) or m < 1:
        return None
    order = ">u8" if spec.index_endian == "big" else "<u8"
    before = np.frombuffer(view.range(at - 16 * m, 16 * m), dtype=order).reshape(m, 2).astype(np.uint64)
    known = np.concatenate([before, entries])
    begins = at - 16 * np.arange(m, 0, -1)
    possible = _are_possible(known, at, None, spec)
    ends = np.where(is_absent(known) | ~possible, np.uint64(0), known.sum(axis=1, dtype=np.uint64))
    all_possible = np.logical_and.accumulate(possible[:m][::-1])[::-1]
    last_ends = np.maximum.accumulate(ends[::-1])[::-1][:m]
    choices = np.flatnonzero(all_possible & (last_ends == begins.astype(np.uint64)))
    if not len(choices):
        return None
    first = int(choices[-1])
    n_inserted = m - first
    of_index, is_doubtful = _without_inserted(known[first:], possible[first:], n, n_inserted)
    if of_index is None:
        return None
    detail = (
        f"{16 * n_inserted} bytes follow the index at offset {at - 16 * n_inserted}, or were inserted into it"
    )
    return StoredIndex(
        IndexStatus.ELSEWHERE,
        of_index,
        at - 16 * n_inserted,
        spec.index_nbytes,
        FindingKind.TORN_APPEND,
        detail,
        doubtful=is_doubtful,
    )


def _without_inserted(
    known: Entries, possible: Flags, n: int, n_inserted: int
) -> tuple[Entries | None, Flags]:
    """Return the `n` entries without the inserted ones, and flags of entries that depend on the place of the insertion.

    None if the inserted entries are first, so that the index is in its place, or do not explain the impossible entries.
    """
    is_free = is_absent(known) | ~possible
    n_free, n_impossible = (np.concatenate([[0], np.cumsum(flags)]) for flags in (is_free, ~possible))
    where = np.flatnonzero(
        (n_free[n_inserted:] - n_free[:-n_inserted] == n_inserted)
        & (n_impossible[n_inserted:] - n_impossible[:-n_inserted] == n_impossible[-1])
    )
    if not len(where) and not possible[:n].all():
        return None, ~possible[:n]
    low, high = (int(where[0]), int(where[-1])) if len(where) else (n, n)
    behind, before = known[:n], known[n_inserted:]
    position = np.arange(n)
    is_doubtful = (position < high) & (position >= low) & (behind != before).any(axis=1)
    entries = np.where((position < high)[:, None], behind, before)
    entries[is_doubtful] = ABSENT
    return (entries if high else None), is_doubtful


def _if_latest(
    index: StoredIndex | None, view: OpenedShard, spec: ShardSpec, stored: Any, at: int
) -> StoredIndex:
    """Return the index, or a lost one if it is only the index before an append and the object ends with a damaged index."""
    if index is None:
        return _lost(view, spec, stored, at)
    is_older = index.kind is FindingKind.TORN_APPEND and index.offset + spec.index_nbytes <= at
    if is_older and _is_index(
        None if stored is None else decode_entries(spec, stored, check=False), view, spec, at
    ):
        return _with_older(_lost(view, spec, stored, at), index.entries)
    return index


def _with_older(lost: StoredIndex, older: Entries | None) -> StoredIndex:
    """Return a lost index with the entries that are equal in an older whole index.

    An entry that is read from a wrong byte is often a small size after zeros, which may equal the first inner chunk by chance.
    """
    if older is None or lost.hints is None:
        return lost
    is_same = (lost.hints == older).all(axis=1)
    if not older[is_same & ~is_absent(older), 0].any():
        return lost
    return replace(lost, proved=np.where(is_same[:, None], older, ABSENT))


def _is_index(entries: Entries | None, view: OpenedShard, spec: ShardSpec, at: int) -> bool:
    """Return True if the bytes in the place of the index are a damaged index."""
    if entries is None:
        return False
    live = entries[_are_possible(entries, view.nbytes, at, spec) & ~is_absent(entries)]
    return len(live) > 0 and (_end_of(live) == at or 2 * len(live) >= len(entries))


def _cut_checksum(view: OpenedShard, spec: ShardSpec) -> StoredIndex | None:
    """Return the index at the end of an object whose last one to three bytes are missing."""
    if spec.index_location == "start" or spec.n_index_checksums != 1:
        return None
    for n_cut in range(1, CHECKSUM_NBYTES):
        n = spec.index_nbytes - n_cut
        at = view.nbytes - n
        if at < 0:
            continue
        stored = bytes(view.range(at, n))
        bare = stored[: 16 * spec.n_chunks]
        checksum = native.load().crc32c(bare).to_bytes(CHECKSUM_NBYTES, "little")
        if not checksum.startswith(stored[len(bare) :]):
            continue
        entries = decode_entries(spec, bare + checksum)
        if entries is not None and _is_plausible(entries, view.nbytes, at, n, spec):
            detail = f"the last {n_cut} bytes, of the checksum of the index, are missing"
            return StoredIndex(IndexStatus.CORRECTED, entries, at, n, FindingKind.TRUNCATED_TAIL, detail)
    return None


def _corrected(view: OpenedShard, spec: ShardSpec, stored: Any, at: int) -> StoredIndex | None:
    if stored is None or spec.n_index_checksums != 1:
        return None
    corrected = correct_one_byte(stored)
    entries = None if corrected is None else decode_entries(spec, corrected)
    if entries is None or not _is_plausible(entries, view.nbytes, at, spec.index_nbytes, spec):
        return None
    if spec.index_nbytes > MAX_TRUSTED_NBYTES and not _is_packed(entries):
        return None
    detail = "one byte of the index is damaged; the checksum shows which one, and its value"
    return StoredIndex(
        IndexStatus.CORRECTED, entries, at, spec.index_nbytes, FindingKind.BAD_INDEX_CHECKSUM, detail
    )


def _other_end(view: OpenedShard, spec: ShardSpec, at: int) -> StoredIndex | None:
    """Return a whole index at the other end of the object."""
    n = spec.index_nbytes
    other = 0 if spec.index_location == "end" else view.nbytes - n
    if other < 0 or other == at or view.nbytes < n:
        return None
    entries = decode_entries(spec, view.range(other, n))
    if entries is None or not _is_plausible(entries, view.nbytes, other, n, spec):
        return None
    end = "start" if other == 0 else "end"
    detail = f"expected the index at the {spec.index_location} of the shard, found it at the {end}"
    return StoredIndex(IndexStatus.ELSEWHERE, entries, other, n, FindingKind.MISPLACED_INDEX, detail)


def _is_packed(entries: Entries) -> bool:
    """Return True if the present inner chunks follow each other without gaps."""
    live = entries[~is_absent(entries)]
    live = live[np.argsort(live[:, 0], kind="stable")]
    return bool((live[1:, 0] == live[:-1].sum(axis=1, dtype=np.uint64)).all())


def _is_plausible(entries: Entries, nbytes: int, at: int, n: int, spec: ShardSpec) -> bool:
    """Return True if entries are possible and at least one inner chunk is present."""
    if is_absent(entries).all() or bad_entries(entries, nbytes, at, n).any():
        return False
    return not wrong_sizes(entries, spec.inner.fixed_nbytes).any()


def _lost(view: OpenedShard, spec: ShardSpec, stored: Any, at: int) -> StoredIndex:
    n = spec.index_nbytes
    if stored is None:
        detail = f"expected at least the {n} bytes of the index, got {view.nbytes} bytes"
        return StoredIndex(IndexStatus.LOST, None, max(at, 0), 0, FindingKind.TRUNCATED_TAIL, detail)
    rest = decode_entries(spec, stored, check=False)
    checksum = bytes(stored)[-CHECKSUM_NBYTES:] if spec.n_index_checksums else b""
    cut = _cut_index(view, spec)
    if cut is not None and not _is_damage_likelier(rest, cut.n_consistent, view, spec, at):
        n_cut, hints = cut.nbytes, cut.hints
        detail = f"the last {n_cut} bytes of the object, and of its index of {n} bytes, are missing"
        kind = FindingKind.TRUNCATED_TAIL
        return StoredIndex(
            IndexStatus.LOST,
            None,
            at + n_cut,
            n - n_cut,
            kind,
            detail,
            hints,
            checksum=checksum,
            n_missing=n_cut,
        )
    if not spec.n_index_checksums:
        assert rest is not None
        return _impossible(rest, view, spec, at)
    detail = f"the checksum of the index of {n} bytes at offset {at} is wrong, and no other index is whole"
    return StoredIndex(IndexStatus.LOST, None, at, n, FindingKind.BAD_INDEX_CHECKSUM, detail, rest, checksum)


@dataclass(frozen=True, eq=False)
class _TruncatedIndex:
    """An index without its last bytes."""

    nbytes: int  # number of missing bytes
    hints: Entries
    n_consistent: int


def _cut_index(view: OpenedShard, spec: ShardSpec) -> _TruncatedIndex | None:
    """Find the first entries of a truncated index; None if the object does not end with possible entries."""
    if spec.index_location == "start" or spec.index_endian != "little" or _is_permuted(spec):
        return None
    n = spec.index_nbytes
    tail = np.frombuffer(view.range(view.nbytes - n, n), dtype=np.uint8)
    best: _TruncatedIndex | None = None
    for phase in range(16):  # the last `phase` bytes are an incomplete entry
        whole = (n - phase) // 16
        pairs = tail[n - phase - 16 * whole : n - phase].view("<u8").reshape(whole, 2)
        first = view.nbytes - phase - 16 * np.arange(whole, 0, -1)
        possible = _are_possible(pairs, view.nbytes, None, spec)
        # the first entry of a run of possible ones to the end, all of which lie before this entry
        run = int(np.argmax(~possible[::-1])) if not possible.all() else whole
        ends = np.where(is_absent(pairs), np.uint64(0), pairs[:, 0] + pairs[:, 1])[whole - run :]
        while run and ends.size and int(ends.max()) > first[whole - run]:
            run, ends = run - 1, ends[1:]
        n_cut = n - phase - 16 * run
        if not run or not 0 < n_cut < n or run > spec.n_chunks:
            continue
        n_consistent = _n_consistent(pairs[whole - run :])
        if best is None or n_consistent > best.n_consistent:
            hints = np.full((spec.n_chunks, 2), UNKNOWN, dtype=np.uint64)
            hints[:run] = pairs[whole - run :]
            best = _TruncatedIndex(n_cut, hints, n_consistent)
    return best


def _are_possible(entries: Entries, nbytes: int, at: int | None, spec: ShardSpec) -> Flags:
    """Return flags of the entries that a writer could have stored with the index at `at`; None for no index."""
    where = (nbytes, 0) if at is None else (at, spec.index_nbytes)
    return ~bad_entries(entries, nbytes, *where) & ~_wrong_sizes(entries, spec)


def _wrong_sizes(entries: Entries, spec: ShardSpec) -> Flags:
    """Return flags of the present entries with a wrong size; a nested shard is at least as large as its index."""
    least = 0
    if spec.inner.sharding is not None and not spec.inner.bytes_codecs:
        least = ShardSpec.from_chain(spec.inner).index_nbytes
    return wrong_sizes(entries, spec.inner.fixed_nbytes) | (entries[:, 1] < np.uint64(least))


def _n_consistent(entries: Entries) -> int:
    """Return the number of entries that are absent or overlap no inner chunk with a smaller offset.

    An entry that is read from a wrong byte is often possible, but it overlaps others.
    """
    absent = is_absent(entries)
    live = entries[~absent]
    live = live[np.argsort(live[:, 0], kind="stable")]
    ends = np.maximum.accumulate(live.sum(axis=1, dtype=np.uint64))
    return int(absent.sum()) + min(1, len(live)) + int((live[1:, 0] >= ends[:-1]).sum())


def _is_damage_likelier(
    entries: Entries | None, n_consistent: int, view: OpenedShard, spec: ShardSpec, at: int
) -> bool:
    """Return True if the index is probably damaged in its place, and not truncated.

    `entries` are those in its place; `n_consistent` is the number of consistent entries of a truncated index.
    """
    if entries is None:
        return False
    possible = entries[_are_possible(entries, view.nbytes, at, spec)]
    n_in_place = _n_consistent(possible)
    if n_in_place != n_consistent:
        return n_in_place > n_consistent
    live = possible[~is_absent(possible)]
    # after a cut the last entries are missing, so the other inner chunks end before the index
    return len(live) > 0 and int(live.sum(axis=1).max()) == at


def _is_permuted(spec: ShardSpec) -> bool:
    return spec.index_perm != tuple(range(spec.ndim + 1))


def _elsewhere(view: OpenedShard, spec: ShardSpec, at: int, block_nbytes: int) -> StoredIndex | None:
    """Find the last whole index before its own place, or overlapping it."""
    n, words = spec.index_nbytes, _sampled_words(spec)
    high = view.nbytes - n
    step = max(1, block_nbytes // 8)  # the search needs some arrays of the size of a block
    for first in range(max(0, high) // step * step, -1, -step):
        n_places = min(step, high + 1 - first)
        if n_places <= 0:
            continue
        block = view.range(first, min(n_places + _reach(words), view.nbytes - first))
        for place in _candidates(block, first, n_places, words, view.nbytes, spec)[::-1]:
            place = int(place)
            entries = None if place == at else decode_entries(spec, view.range(place, n))
            if entries is None or not _lies_around(entries, place, view.nbytes, spec):
                continue
            behind = view.nbytes - place - n
            if spec.index_location == "end":
                detail = f"{behind} bytes follow the last whole index at offset {place}, and no index refers to them"
                return StoredIndex(IndexStatus.ELSEWHERE, entries, place, n, FindingKind.TORN_APPEND, detail)
            detail = f"expected the index at offset 0, found it at offset {place}"
            return StoredIndex(IndexStatus.ELSEWHERE, entries, place, n, FindingKind.MISPLACED_INDEX, detail)
    return None


def _lies_around(entries: Entries, place: int, nbytes: int, spec: ShardSpec) -> bool:
    """Return True if all entries are possible for an index at this place; those of an index at the end lie before it.

    Without a checksum, the inner chunks must also follow each other up to the index.
    """
    size = place + spec.index_nbytes if spec.index_location == "end" else nbytes
    if not _is_plausible(entries, size, place, spec.index_nbytes, spec):
        return False
    return bool(spec.n_index_checksums) or (_is_packed(entries) and _end_of(entries) == place)


def _sampled_words(spec: ShardSpec) -> list[tuple[int, bool]]:
    """Return the number of each sampled word of a stored index, and True if it is an offset."""
    shape = spec.index_shape
    logical = np.arange(2 * spec.n_chunks).reshape(shape).transpose(spec.index_perm).reshape(-1)
    return [(i, int(word) % 2 == 0) for i, word in enumerate(logical[:_SAMPLE_WORDS].tolist())]


def _reach(words: list[tuple[int, bool]]) -> int:
    return 8 * (words[-1][0] + 1) + 8


def _candidates(
    block: Any, first: int, n_places: int, words: list[tuple[int, bool]], nbytes: int, spec: ShardSpec
) -> np.ndarray[Any, Any]:
    """Return the places in a block whose first words could begin an index, in ascending order."""
    data = np.frombuffer(block, dtype=np.uint8)
    order = ">u8" if spec.index_endian == "big" else "<u8"
    possible = np.zeros(n_places, dtype=np.bool_)
    for phase in range(min(8, n_places)):
        column = data[phase : phase + (len(data) - phase) // 8 * 8].view(order).astype(np.uint64)
        small = (column <= np.uint64(nbytes)) | (column == ABSENT)
        size = small & (column != 0)  # no inner chunk is empty
        n = min(len(range(phase, n_places, 8)), len(column))
        good = np.ones(n, dtype=np.bool_)
        for word, is_offset in words:
            test = (small if is_offset else size)[word : word + n]
            good[: len(test)] &= test
            good[len(test) :] = False
        possible[phase::8][:n] = good
    return np.flatnonzero(possible) + first
