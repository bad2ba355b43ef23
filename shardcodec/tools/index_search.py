# index_search.py - find the index of a shard that may be damaged
# SPDX-License-Identifier: MIT
"""Find the index of a damaged shard.

The places are tried in this order; the first whole index is taken:

1. its own place,
2. behind a cut: only bytes of the checksum are missing at the end of the object,
3. its own place, after the correction of one damaged byte (`index_layout.correct_one_byte`),
4. the other end of the shard, if a writer had another ``index_location``,
5. anywhere: the last place where the checksum holds and all entries lie before the index. This is the shard before an
   append that was torn, or bytes were added to the object.

Without a checksum of the index, only places 1 and 4 can be told apart from other bytes, by the bounds of all entries.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import native
from ..access.placement import ABSENT
from ..format.chain_spec import ChainSpec
from ..format.spec import ShardSpec
from .findings import FindingKind
from .index_layout import (
    CHECKSUM_NBYTES,
    Entries,
    bad_entries,
    correct_one_byte,
    decode_entries,
    index_offset,
    is_absent,
    wrong_sizes,
)
from .stored_bytes import BLOCK_NBYTES, StoredBytes

__all__ = ["UNKNOWN", "FoundIndex", "How", "find_index"]

# Both numbers of an entry whose bytes are missing; no inner chunk is empty.
UNKNOWN = np.uint64(0)

# Words of an index that the search compares before it computes a checksum.
_SAMPLE_WORDS = 8


class How(enum.Enum):
    """How an index was found."""

    IN_PLACE = "in place"
    CORRECTED = "corrected"  # the present index, with some bytes restored
    ELSEWHERE = "elsewhere"  # another whole index of the object
    LOST = "lost"


@dataclass(frozen=True, eq=False)
class FoundIndex:
    """The index of a shard.

    Attributes
    ----------
    how : How
    entries : ndarray of uint64, shape (n_chunks, 2), or None
        The entries, which may be wrong; None if the index is lost.
    offset : int
        Where the index begins in the object, or where it should.
    nbytes : int
        Bytes of the index that the object has.
    kind : FindingKind or None
        What is wrong; None for an index in its place.
    detail : str
    hints : ndarray or None
        Entries of a lost index, of two numbers `UNKNOWN` where its bytes are missing. Any of them may be wrong.
    """

    how: How
    entries: Entries | None
    offset: int
    nbytes: int
    kind: FindingKind | None = None
    detail: str = ""
    hints: Entries | None = None


def find_index(view: StoredBytes, spec: ShardSpec, block_nbytes: int = BLOCK_NBYTES) -> FoundIndex:
    """Find the index of a shard.

    Parameters
    ----------
    view : StoredBytes
        The object.
    spec : ShardSpec
        Its encoding.
    block_nbytes : int
        Bytes of the object to search at a time.

    Returns
    -------
    FoundIndex
    """
    at, n = index_offset(spec, view.nbytes), spec.index_nbytes
    stored = view.range(at, n) if at >= 0 else None
    entries = None if stored is None else decode_entries(spec, stored)
    if entries is not None and (spec.n_index_checksums or not _any_bad(view, spec, entries, at)):
        return FoundIndex(How.IN_PLACE, entries, at, n)
    if not spec.n_index_checksums:
        return _without_checksum(view, spec, entries, at)
    found = _cut_checksum(view, spec) or _corrected(view, spec, stored, at)
    if found is None and not _holds_equal_indexes(spec):
        found = _other_end(view, spec, at) or _elsewhere(view, spec, at, block_nbytes)
    return found or _lost(view, spec, stored, at)


def _holds_equal_indexes(spec: ShardSpec) -> bool:
    """Return True if inner chunks are shards with an index of the same size, which a search could take for that of the shard."""
    inner: ChainSpec | None = spec.inner
    while inner is not None and inner.sharding is not None:
        if ShardSpec.from_chain(inner).index_nbytes == spec.index_nbytes:
            return True
        inner = inner.inner
    return False


def _any_bad(view: StoredBytes, spec: ShardSpec, entries: Entries, at: int) -> bool:
    return bool(bad_entries(entries, view.nbytes, at, spec.index_nbytes).any())


def _without_checksum(view: StoredBytes, spec: ShardSpec, entries: Entries | None, at: int) -> FoundIndex:
    found = None if _holds_equal_indexes(spec) else _other_end(view, spec, at)
    if found is not None:
        return found
    if entries is None:
        return _lost(view, spec, None, at)
    return FoundIndex(How.IN_PLACE, entries, at, spec.index_nbytes)


def _cut_checksum(view: StoredBytes, spec: ShardSpec) -> FoundIndex | None:
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
            return FoundIndex(How.CORRECTED, entries, at, n, FindingKind.TRUNCATED_TAIL, detail)
    return None


def _corrected(view: StoredBytes, spec: ShardSpec, stored: Any, at: int) -> FoundIndex | None:
    if stored is None or spec.n_index_checksums != 1:
        return None
    corrected = correct_one_byte(stored)
    entries = None if corrected is None else decode_entries(spec, corrected)
    if entries is None or not _is_plausible(entries, view.nbytes, at, spec.index_nbytes, spec):
        return None
    detail = "one byte of the index is damaged; the checksum shows which one, and its value"
    return FoundIndex(How.CORRECTED, entries, at, spec.index_nbytes, FindingKind.BAD_INDEX_CHECKSUM, detail)


def _other_end(view: StoredBytes, spec: ShardSpec, at: int) -> FoundIndex | None:
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
    return FoundIndex(How.ELSEWHERE, entries, other, n, FindingKind.MISPLACED_INDEX, detail)


def _is_plausible(entries: Entries, nbytes: int, at: int, n: int, spec: ShardSpec) -> bool:
    """Return True if entries are possible and at least one inner chunk is present."""
    if is_absent(entries).all() or bad_entries(entries, nbytes, at, n).any():
        return False
    return not wrong_sizes(entries, spec.inner.fixed_nbytes).any()


def _lost(view: StoredBytes, spec: ShardSpec, stored: Any, at: int) -> FoundIndex:
    n = spec.index_nbytes
    if stored is None:
        detail = f"expected at least the {n} bytes of the index, got {view.nbytes} bytes"
        return FoundIndex(How.LOST, None, max(at, 0), 0, FindingKind.TRUNCATED_TAIL, detail)
    rest = decode_entries(spec, stored, check=False)
    cut = _cut_index(view, spec)
    if cut is not None and not _is_damage_likelier(rest, cut.n_consistent, view, spec, at):
        n_cut, hints = cut.nbytes, cut.hints
        detail = f"the last {n_cut} bytes of the object, and of its index of {n} bytes, are missing"
        return FoundIndex(How.LOST, None, at + n_cut, n - n_cut, FindingKind.TRUNCATED_TAIL, detail, hints)
    if not spec.n_index_checksums:
        return FoundIndex(
            How.LOST, None, at, n, FindingKind.OUT_OF_BOUNDS, "no entry of the index can be right", rest
        )
    detail = f"the checksum of the index of {n} bytes at offset {at} is wrong, and no other index is whole"
    return FoundIndex(How.LOST, None, at, n, FindingKind.BAD_INDEX_CHECKSUM, detail, rest)


# ---- an index that was cut off


@dataclass(frozen=True, eq=False)
class _Cut:
    """An index without its last bytes."""

    nbytes: int  # number of missing bytes
    hints: Entries
    n_consistent: int


def _cut_index(view: StoredBytes, spec: ShardSpec) -> _Cut | None:
    """Find the first entries of an index whose last bytes are missing; None if the object does not end with possible entries."""
    if spec.index_location == "start" or spec.index_endian != "little" or _is_permuted(spec):
        return None
    n = spec.index_nbytes
    tail = np.frombuffer(view.range(view.nbytes - n, n), dtype=np.uint8)
    best: _Cut | None = None
    for phase in range(16):  # the last `phase` bytes belong to an entry that is not whole
        whole = (n - phase) // 16
        pairs = tail[n - phase - 16 * whole : n - phase].view("<u8").reshape(whole, 2)
        first = view.nbytes - phase - 16 * np.arange(whole, 0, -1)
        possible = _are_possible(pairs, view.nbytes, 0, spec)
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
            best = _Cut(n_cut, hints, n_consistent)
    return best


def _are_possible(entries: Entries, nbytes: int, index_nbytes: int, spec: ShardSpec) -> np.ndarray[Any, Any]:
    """Return which entries a writer could have stored in a shard that ends with an index of this size."""
    bad: np.ndarray[Any, Any] = bad_entries(entries, nbytes, nbytes - index_nbytes, index_nbytes)
    return ~bad & ~wrong_sizes(entries, spec.inner.fixed_nbytes)


def _n_consistent(entries: Entries) -> int:
    """Return the number of absent entries, and of those that overlap no inner chunk with a smaller offset.

    An entry that is read from a wrong byte is often possible too, but it overlaps others.
    """
    absent = is_absent(entries)
    live = entries[~absent]
    live = live[np.argsort(live[:, 0], kind="stable")]
    ends = np.maximum.accumulate(live.sum(axis=1, dtype=np.uint64))
    return int(absent.sum()) + min(1, len(live)) + int((live[1:, 0] >= ends[:-1]).sum())


def _is_damage_likelier(
    entries: Entries | None, n_consistent: int, view: StoredBytes, spec: ShardSpec, at: int
) -> bool:
    """Return True if the index is probably damaged in its place, and not cut.

    Parameters
    ----------
    entries : ndarray or None
        The entries in its place.
    n_consistent : int
        The number of consistent entries if it was cut.
    """
    if entries is None:
        return False
    possible = entries[_are_possible(entries, view.nbytes, spec.index_nbytes, spec)]
    n_in_place = _n_consistent(possible)
    if n_in_place != n_consistent:
        return n_in_place > n_consistent
    live = possible[~is_absent(possible)]
    # after a cut the last entries are missing, so the other inner chunks end before the index
    return len(live) > 0 and int(live.sum(axis=1).max()) == at


def _is_permuted(spec: ShardSpec) -> bool:
    return spec.index_perm != tuple(range(spec.ndim + 1))


# ---- an index anywhere in the object


def _elsewhere(view: StoredBytes, spec: ShardSpec, at: int, block_nbytes: int) -> FoundIndex | None:
    """Find the last whole index before the place where it should be, or around it."""
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
                return FoundIndex(How.ELSEWHERE, entries, place, n, FindingKind.TORN_APPEND, detail)
            detail = f"expected the index at offset 0, found it at offset {place}"
            return FoundIndex(How.ELSEWHERE, entries, place, n, FindingKind.MISPLACED_INDEX, detail)
    return None


def _lies_around(entries: Entries, place: int, nbytes: int, spec: ShardSpec) -> bool:
    """Return True if all entries are possible for an index at this place: before one at the end of a shard."""
    size = place + spec.index_nbytes if spec.index_location == "end" else nbytes
    return _is_plausible(entries, size, place, spec.index_nbytes, spec)


def _sampled_words(spec: ShardSpec) -> list[tuple[int, bool]]:
    """Return the first words of a stored index: number of the word, and True if it is an offset."""
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
