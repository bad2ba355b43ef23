# test_index.py - the index of a shard, as bytes and as numbers that may be invalid
# SPDX-License-Identifier: MIT
"""Decode and encode, checks of single entries, and overlaps and gaps compared with a byte-by-byte reference."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardcodec import _native as native
from shardcodec.errors import ShardFormatError

Entries = npt.NDArray[np.uint64]

no_deadline = settings(deadline=None)

ABSENT = 2**64 - 1
words = st.integers(0, ABSENT) | st.sampled_from([0, 1, 2**63 - 1, 2**63, ABSENT - 1, ABSENT])


def entries_of(pairs: Any) -> Entries:
    return np.array(pairs, dtype=np.uint64).reshape(-1, 2)


# ---- decode, encode


@pytest.mark.parametrize("big_endian", [False, True], ids=["little", "big"])
class TestBytes:
    @no_deadline
    @given(pairs=st.lists(st.tuples(words, words), max_size=40), shift=st.integers(0, 7))
    def test_decode_and_encode_are_inverse_at_every_alignment(
        self, big_endian: bool, pairs: list[tuple[int, int]], shift: int
    ) -> None:
        order = "big" if big_endian else "little"
        stored = b"".join(word.to_bytes(8, order) for pair in pairs for word in pair)  # type: ignore[arg-type]
        decoded = entries_of([(7, 7)] * len(pairs))
        native.index_decode(memoryview(bytes(shift) + stored)[shift:], decoded, big_endian=big_endian)
        assert decoded.tolist() == [list(pair) for pair in pairs]
        encoded = np.full(shift + len(stored), 0xA5, dtype=np.uint8)
        native.index_encode(decoded, encoded[shift:], big_endian=big_endian)
        assert encoded.tobytes() == b"\xa5" * shift + stored

    def test_two_entries_are_decoded(self, big_endian: bool) -> None:
        stored = bytes.fromhex("0000000000000102 0000000000000304 ffffffffffffffff ffffffffffffffff")
        decoded = entries_of([(0, 0), (0, 0)])
        native.index_decode(stored, decoded, big_endian=big_endian)
        first = [0x0102, 0x0304] if big_endian else [0x0201000000000000, 0x0403000000000000]
        assert decoded.tolist() == [first, [ABSENT, ABSENT]]

    @pytest.mark.parametrize("n_bytes", [1, 8, 15, 17])
    def test_part_of_an_entry_is_refused(self, big_endian: bool, n_bytes: int) -> None:
        with pytest.raises(ValueError, match="pairs"):
            native.index_decode(bytes(n_bytes), entries_of([(0, 0), (0, 0)]), big_endian=big_endian)

    def test_buffer_of_another_size_is_refused(self, big_endian: bool) -> None:
        with pytest.raises(ValueError, match="bytes"):
            native.index_decode(bytes(32), entries_of([(0, 0)]), big_endian=big_endian)
        with pytest.raises(ValueError, match="bytes"):
            native.index_encode(entries_of([(0, 0)]), bytearray(32), big_endian=big_endian)


# ---- check


class Extent(NamedTuple):
    """A shard of a given size, and the offset and size of its index."""

    shard_nbytes: int
    index_offset: int
    index_nbytes: int


AT_END = Extent(1000, 932, 68)
AT_START = Extent(1000, 0, 68)
ALONE = Extent(68, 0, 68)

OK, HALF_EMPTY, BAD_RANGE, IN_INDEX = None, "both or neither", "but the shard has", "overlaps the index"

CASES = [
    # SC-28: absent means that both numbers are 2^64-1
    ("absent", AT_END, (ABSENT, ABSENT), OK),
    ("offset alone is absent", AT_END, (ABSENT, 3), HALF_EMPTY),
    ("offset alone is absent, nothing stored", AT_END, (ABSENT, 0), HALF_EMPTY),
    ("nbytes alone is absent", AT_END, (3, ABSENT), HALF_EMPTY),
    ("nbytes alone is absent, at 0", AT_END, (0, ABSENT), HALF_EMPTY),
    # SC-29: the range lies inside the object; no sum may overflow
    ("whole body", AT_END, (0, 932), OK),
    ("one byte", AT_END, (931, 1), OK),
    ("one byte past the object", AT_START, (68, 933), BAD_RANGE),
    ("just after the object", AT_START, (1000, 1), BAD_RANGE),
    ("last byte", AT_START, (999, 1), OK),
    ("sum is 2^64", AT_START, (2**64 - 8, 8), BAD_RANGE),
    ("sum wraps into the shard", AT_START, (2**64 - 8, 108), BAD_RANGE),
    ("sum wraps with 2^63 twice", AT_START, (2**63, 2**63), BAD_RANGE),
    ("offset is 2^64-2", AT_START, (ABSENT - 1, 1), BAD_RANGE),
    ("more than 2^63-1 bytes", AT_START, (100, 2**63), BAD_RANGE),
    # SC-30: sizes are compared, nothing is allocated
    ("one TiB", AT_START, (100, 2**40), BAD_RANGE),
    ("2^64-2 bytes", AT_START, (0, ABSENT - 1), BAD_RANGE),
    # SC-31 belongs to the codecs; a range of no bytes is valid anywhere inside the object
    ("nothing at 0", AT_START, (0, 0), OK),
    ("nothing inside the index", AT_START, (30, 0), OK),
    ("nothing at the end", AT_START, (1000, 0), OK),
    ("nothing past the end", AT_START, (1001, 0), BAD_RANGE),
    ("nothing at 2^64-2", AT_START, (ABSENT - 1, 0), BAD_RANGE),
    # SC-33: the range does not overlap the index
    ("touches the end index", AT_END, (900, 33), IN_INDEX),
    ("up to the end index", AT_END, (900, 32), OK),
    ("in the end index", AT_END, (940, 8), IN_INDEX),
    ("last byte of the end index", AT_END, (999, 1), IN_INDEX),
    ("all of the object", AT_END, (0, 1000), IN_INDEX),
    ("around a start index", AT_START, (0, 1000), IN_INDEX),
    ("data-relative offset, SC-22", AT_START, (0, 4), IN_INDEX),
    ("last byte of the start index", AT_START, (67, 1), IN_INDEX),
    ("right after the start index", AT_START, (68, 1), OK),
    ("the object is its index", ALONE, (0, 1), IN_INDEX),
    ("an index of no bytes", Extent(1000, 500, 0), (400, 200), OK),
]


@pytest.mark.parametrize(
    ("extent", "entry", "verdict"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
class TestEntry:
    def test_verdict_and_numbers_are_reported(
        self, extent: Extent, entry: tuple[int, int], verdict: str | None
    ) -> None:
        entries = entries_of([(ABSENT, ABSENT), (ABSENT, ABSENT), entry])
        if verdict is None:
            native.index_check(entries, *extent)
            return
        with pytest.raises(ShardFormatError, match=verdict) as caught:
            native.index_check(entries, *extent)
        error = caught.value
        assert (error.entry, error.offset, error.nbytes, error.limit) == (2, *entry, extent.shard_nbytes)
        if verdict == IN_INDEX:
            assert (error.expected, error.actual) == extent[1:]

    def test_allow_in_index_allows_only_that(
        self, extent: Extent, entry: tuple[int, int], verdict: str | None
    ) -> None:
        if verdict in (OK, IN_INDEX):
            native.index_check(entries_of([entry]), *extent, allow_in_index=True)
        else:
            with pytest.raises(ShardFormatError, match=verdict):
                native.index_check(entries_of([entry]), *extent, allow_in_index=True)


def naive_is_good(entry: tuple[int, int], extent: Extent) -> bool:
    offset, nbytes = entry
    if ABSENT in entry:
        return offset == nbytes
    touches = (
        nbytes
        and extent.index_nbytes
        and max(offset, extent.index_offset) < min(offset + nbytes, extent.index_offset + extent.index_nbytes)
    )
    return offset + nbytes <= extent.shard_nbytes and not touches


small = st.integers(0, 40)
extents = st.tuples(small, small, small).map(lambda t: Extent(sum(t), t[0], t[1]))


@no_deadline
@given(pairs=st.lists(st.tuples(small | words, small | words), max_size=6), extent=extents)
def test_lowest_bad_entry_is_reported(pairs: list[tuple[int, int]], extent: Extent) -> None:
    bad = [i for i, pair in enumerate(pairs) if not naive_is_good(pair, extent)]
    if not bad:
        native.index_check(entries_of(pairs), *extent)
        return
    with pytest.raises(ShardFormatError) as caught:
        native.index_check(entries_of(pairs), *extent)
    assert caught.value.entry == bad[0]


# ---- overlaps, gaps


def by_offset(pairs: list[tuple[int, int]]) -> list[int]:
    present = [i for i, pair in enumerate(pairs) if pair != (ABSENT, ABSENT) and pair[1]]
    return sorted(present, key=lambda i: (pairs[i][0], i))


def naive_overlaps(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return each range that overlaps earlier ones, with the earlier one that reaches furthest."""
    order, found = by_offset(pairs), []
    for k, b in enumerate(order):
        sharing = [a for a in order[:k] if sum(pairs[a]) > pairs[b][0]]
        if sharing:
            found.append((max(sharing, key=lambda a: sum(pairs[a])), b))  # the first of several equal ones
    return found


def naive_gaps(pairs: list[tuple[int, int]], extent: Extent) -> list[tuple[int, int]]:
    """Find the gaps by looking at every byte of the shard."""
    covered = bytearray(extent.shard_nbytes)
    for offset, nbytes in [*(pairs[i] for i in by_offset(pairs)), extent[1:]]:
        covered[offset : offset + nbytes] = b"\1" * nbytes
    gaps, start = [], None
    for at, byte in enumerate([*covered, 1]):
        if byte and start is not None:
            gaps.append((start, at - start))
        start = None if byte else at if start is None else start
    return gaps


@st.composite
def shards(draw: st.DrawFn) -> tuple[list[tuple[int, int]], Extent]:
    extent = draw(extents)
    edges = st.integers(0, extent.shard_nbytes)
    ranges = st.tuples(edges, edges).map(lambda t: (min(t), max(t) - min(t)))
    return draw(st.lists(ranges | st.just((ABSENT, ABSENT)), max_size=12)), extent


class TestOverlaps:
    @no_deadline
    @given(shard=shards(), scale=st.sampled_from([1, 255, 2**16, 2**33, 2**55]))
    def test_overlaps_equal_the_reference(
        self, shard: tuple[list[tuple[int, int]], Extent], scale: int
    ) -> None:
        """Large offsets are sorted by other digits; the largest do not fit into one word together with a position."""
        pairs = [p if p[0] == ABSENT else (p[0] * scale, p[1] * scale) for p in shard[0]]
        expected = naive_overlaps(pairs)
        assert native.index_overlaps(entries_of(pairs)) == (expected, len(expected))

    def test_one_range_over_many_is_reported_with_each(self) -> None:
        pairs = [(50, 10), (0, 100), (60, 10), (20, 5)]
        assert native.index_overlaps(entries_of(pairs)) == ([(1, 3), (1, 0), (1, 2)], 3)

    def test_shared_ranges_take_linear_time(self) -> None:
        """SC-35: ranges may be shared, so a million equal ones must be reported in linear time and memory."""
        entries = np.full((1_000_000, 2), 5, dtype=np.uint64)
        pairs, found = native.index_overlaps(entries, capacity=3)
        assert (pairs, found) == ([(0, 1), (0, 2), (0, 3)], 999_999)

    def test_adjacent_ranges_do_not_overlap(self) -> None:
        assert native.index_overlaps(entries_of([(10, 10), (0, 10), (20, 1), (15, 0)])) == ([], 0)

    @pytest.mark.parametrize("capacity", [0, 1, 2, 3])
    def test_overlaps_beyond_the_capacity_are_counted(self, capacity: int) -> None:
        expected = [(0, 1), (1, 2)]
        pairs = entries_of([(0, 10), (5, 10), (12, 10)])
        assert native.index_overlaps(pairs, capacity=capacity) == (expected[:capacity], 2)


class TestGaps:
    @no_deadline
    @given(shard=shards())
    def test_gaps_equal_the_reference(self, shard: tuple[list[tuple[int, int]], Extent]) -> None:
        pairs, extent = shard
        expected = naive_gaps(pairs, extent)
        assert native.index_gaps(entries_of(pairs), *extent) == (expected, len(expected))

    @pytest.mark.parametrize("capacity", [0, 1, 2, 3])
    def test_gaps_beyond_the_capacity_are_counted(self, capacity: int) -> None:
        expected = [(0, 10), (20, 912)]
        got = native.index_gaps(entries_of([(10, 10)]), *AT_END, capacity=capacity)
        assert got == (expected[:capacity], 2)

    def test_header_and_footer_are_gaps(self) -> None:
        extent = Extent(200, 132, 68)
        assert native.index_gaps(entries_of([(60, 40), (20, 40)]), *extent) == ([(0, 20), (100, 32)], 2)

    def test_shard_without_index_or_chunks_is_one_gap(self) -> None:
        assert native.index_gaps(entries_of([]), 10, 0, 0) == ([(0, 10)], 1)
        assert native.index_gaps(entries_of([]), 0, 0, 0) == ([], 0)

    @pytest.mark.parametrize("entry", [(2**64 - 2, 2**63), (3, ABSENT), (ABSENT, 3), (12, 1)])
    def test_gaps_of_an_unchecked_entry_stay_inside_the_shard(self, entry: tuple[int, int]) -> None:
        """The caller must check entries first; without a check the gaps are meaningless, but lie inside the shard."""
        gaps, _ = native.index_gaps(entries_of([entry, (2, 2)]), 10, 8, 2)
        assert all(0 <= offset < offset + nbytes <= 10 for offset, nbytes in gaps)


class TestMany:
    """Tests with enough entries for every pass of the sort."""

    @pytest.mark.parametrize("shift", [0, 7, 20, 44])
    @pytest.mark.parametrize("kind", ["ascending", "descending", "shuffled"])
    def test_adjacent_chunks_do_not_overlap(self, kind: str, shift: int) -> None:
        n = 70_000
        place = np.arange(n, dtype=np.uint64)
        if kind != "ascending":
            place = place[::-1] if kind == "descending" else np.random.default_rng(1).permutation(place)
        entries = np.stack([place << np.uint64(shift), np.full(n, 1 << shift, dtype=np.uint64)], axis=1)
        end = n << shift
        assert native.index_overlaps(entries) == ([], 0)
        assert native.index_gaps(entries, end + 9, end + 3, 4) == ([(end, 3), (end + 7, 2)], 2)
        entries[n // 2, 1] += np.uint64(1)
        spoilt = int(place[n // 2])
        after = np.flatnonzero(place == spoilt + 1)
        expected = [(n // 2, int(after[0]))] if len(after) else []
        assert native.index_overlaps(entries) == (expected, len(expected))

    def test_equal_offsets_keep_the_order_of_positions(self) -> None:
        rng = np.random.default_rng(2)
        offsets = rng.integers(0, 500, 20_000, dtype=np.uint64) * np.uint64(1000)
        entries = np.stack([offsets, np.full(len(offsets), 1000, dtype=np.uint64)], axis=1)
        order = np.lexsort([np.arange(len(offsets)), offsets])
        first = {int(offsets[i]): int(i) for i in order[::-1]}
        expected = [(first[int(offsets[i])], int(i)) for i in order if first[int(offsets[i])] != i]
        assert native.index_overlaps(entries, capacity=len(expected)) == (expected, len(expected))


# ---- sums


@no_deadline
@given(data=st.data(), pairs=st.lists(st.tuples(words, words), max_size=40))
def test_sums_equal_the_reference(data: st.DataObject, pairs: list[tuple[int, int]]) -> None:
    dropped = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(pairs), max_size=len(pairs))), dtype=bool
    )
    stored = [(offset, nbytes) for offset, nbytes in pairs if offset != ABSENT and nbytes]
    kept = [
        pair if pair[0] != ABSENT and not gone else (ABSENT, ABSENT)
        for pair, gone in zip(pairs, dropped, strict=True)
    ]
    left = entries_of([(5, 5)] * len(pairs))
    n, first, end, offset_bits, nbytes_bits, left_nbytes = native.index_sums(entries_of(pairs), dropped, left)
    assert left.tolist() == [list(pair) for pair in kept]
    assert left_nbytes == min(sum(pair[1] for pair in kept if pair[0] != ABSENT), ABSENT)
    assert n == len(stored)
    assert first == min((pair[0] for pair in stored), default=ABSENT)
    assert end == max((min(sum(pair), ABSENT) for pair in stored), default=0)
    for power in (1 << bit for bit in range(64)):
        assert (offset_bits % power == 0) == all(pair[0] % power == 0 for pair in stored)
        assert (nbytes_bits % power == 0) == all(pair[1] % power == 0 for pair in stored)


def test_sums_without_flags_keep_all_entries() -> None:
    entries = entries_of([(0, 7), (ABSENT, ABSENT), (7, 0), (9, 3)])
    left = np.zeros_like(entries)
    assert native.index_sums(entries, left=left) == (2, 0, 12, 9, 7, 10)
    assert np.array_equal(left, entries)
    with pytest.raises(ValueError, match="expected 4 flags, one per entry, got 3"):
        native.index_sums(entries, np.zeros(3, dtype=bool))
