# test_placement.py - where carried inner chunks go: pure arithmetic
# SPDX-License-Identifier: MIT
"""Placement is computed from numbers alone; the tests also apply each placement to a string of bytes."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from shardcodec import native
from shardcodec.access import user_bytes
from shardcodec.access.placement import ABSENT, PACK, Placement, new_sizes, place

GONE = (2**64 - 1, 2**64 - 1)


def index(*entries: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.array(entries, dtype=np.uint64).reshape(-1, 2)


def mask(n: int, *replaced: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    chosen = np.zeros(n, dtype=np.bool_)
    chosen[list(replaced)] = True
    return chosen


def carried(placement: Placement, old: bytes) -> bytes:
    """Apply the copies to the old object; bytes of the new one that are not copied are dots."""
    new = bytearray(b"." * placement.data_offset)
    for source, nbytes, to in placement.carries.tolist():
        assert nbytes > 0
        assert source + nbytes <= len(old) and to + nbytes <= len(new)
        new[to : to + nbytes] = old[source : source + nbytes]
    return bytes(new)


def chunks(entries: np.ndarray[Any, Any], blob: bytes) -> list[bytes | None]:
    return [None if (o, n) == GONE else blob[o : o + n] for o, n in entries.tolist()]


# Four chunks of three bytes; the index after them takes four bytes, and its content does not matter.
OLD = b"aaabbbcccdddINDX"
FOUR = index((0, 3), (3, 3), (6, 3), (9, 3))


def placement_of(replaced: tuple[int, ...], entries: Any = FOUR, **changes: Any) -> Placement:
    sizes: dict[str, Any] = {"shard_nbytes": 16, "index_nbytes": 4, "index_at_start": False}
    return place(entries, mask(len(entries), *replaced), **(sizes | changes))


def test_bytes_after_the_last_chunk_are_dropped() -> None:
    placement = placement_of((1,), index((0, 3), (3, 3), (6, 3), GONE), new_nbytes=3)
    assert placement.carries.tolist() == [[0, 9, 0]]
    assert placement.data_offset == 9
    placement = placement_of((2,), index((0, 3), (3, 3), (6, 3), GONE))
    assert placement.carries.tolist() == [[0, 9, 0]]  # a reader with the old index still finds chunk 2
    assert placement.data_offset == 9


def test_nothing_replaced_keeps_all_offsets() -> None:
    placement = placement_of(())
    assert not placement.compact
    assert placement.carries.tolist() == [[0, 12, 0]]
    assert placement.entries.tolist() == FOUR.tolist()
    assert placement.data_offset == 12


def test_replaced_chunk_stays_as_dead_bytes() -> None:
    placement = placement_of((1,))
    assert not placement.compact
    assert placement.entries.tolist() == [[0, 3], list(GONE), [6, 3], [9, 3]]
    assert carried(placement, OLD) == b"aaabbbcccddd"


def test_less_than_half_dead_is_not_packed() -> None:
    assert not placement_of((0,)).compact


def test_half_dead_is_packed() -> None:
    """zarr's test suite counts the bytes of a shard of two inner chunks after one was erased."""
    assert placement_of((0, 2)).compact


@pytest.mark.parametrize(("nbytes", "is_packed"), [(64 << 10, True), ((64 << 10) - 1, False)])
def test_quarter_dead_is_packed_from_64_KiB_on(nbytes: int, is_packed: bool) -> None:
    """With fewer dead bytes shards of four small inner chunks would be packed at every update."""
    entries = index(*((i * nbytes, nbytes) for i in range(4)))
    assert placement_of((1,), entries, shard_nbytes=4 * nbytes + 64 + 4).compact == is_packed
    assert not placement_of(
        (1,), index(*((i * nbytes, nbytes) for i in range(5))), shard_nbytes=5 * nbytes + 84
    ).compact


def test_more_than_half_dead_is_packed() -> None:
    placement = placement_of((0, 1, 3))
    assert placement.compact
    assert placement.entries.tolist() == [list(GONE), list(GONE), [0, 3], list(GONE)]
    assert placement.data_offset == 3
    assert carried(placement, OLD) == b"ccc"


def test_everything_replaced_carries_nothing() -> None:
    placement = placement_of((0, 1, 2, 3))
    assert placement.carries.shape == (0, 3)
    assert (placement.entries == ABSENT).all()
    assert placement.data_offset == 0


def test_adjacent_chunks_move_as_one_run() -> None:
    placement = placement_of((0,), dead_share=0.0)
    assert placement.compact
    assert placement.carries.tolist() == [[3, 9, 0]]
    assert carried(placement, OLD) == b"bbbcccddd"


def test_gap_made_by_alignment_ends_a_run() -> None:
    packed = placement_of((), index((4, 3), (7, 3)), dead_share=0.0, alignment=4)
    assert packed.carries.tolist() == [[4, 3, 0], [7, 3, 4]]
    assert chunks(packed.entries, carried(packed, OLD)) == [b"bbc", b"ccd"]


def test_gap_ends_a_run() -> None:
    placement = placement_of((1,), dead_share=0.0)
    assert placement.carries.tolist() == [[0, 3, 0], [6, 6, 3]]
    assert carried(placement, OLD) == b"aaacccddd"


def test_packing_keeps_the_order_of_the_old_file() -> None:
    entries = index((9, 3), GONE, (0, 3), (3, 3))
    placement = placement_of((), entries, dead_share=0.0)
    assert placement.carries.tolist() == [[0, 6, 0], [9, 3, 6]]
    assert placement.entries.tolist() == [[6, 3], list(GONE), [0, 3], [3, 3]]


def test_dead_share_of_one_packs_only_a_completely_dead_shard() -> None:
    assert not placement_of((0, 1, 2), dead_share=1.0).compact
    assert placement_of((0, 1, 2, 3), dead_share=1.0).compact


def test_replaced_chunks_of_fixed_size_keep_their_slots() -> None:
    placement = placement_of((0, 2, 3), new_nbytes=3)
    assert not placement.compact
    assert placement.entries.tolist() == FOUR.tolist()


def test_slot_of_another_size_is_not_reused() -> None:
    entries = index((0, 2), (3, 3), (6, 3), (9, 3))
    assert placement_of((0, 1), entries, new_nbytes=3).entries.tolist() == [
        list(GONE),
        [3, 3],
        [6, 3],
        [9, 3],
    ]


def test_encoded_chunks_take_slots_of_their_own_size() -> None:
    """Slots were reused only if all inner chunks had one size: a shard of a key-value store grew to twice its size."""
    entries = index((0, 2), (2, 4), (6, 3), (9, 3))
    sizes = new_sizes({0: 2, 1: 3, 3: 3}, 4)
    assert sizes.tolist() == [2, 3, GONE[0], 3]
    placement = placement_of((0, 1, 2, 3), entries, new_nbytes=sizes, dead_share=0.9)
    assert placement.entries.tolist() == [[0, 2], list(GONE), list(GONE), [9, 3]]
    assert placement.data_offset == 12


def test_unaligned_slot_is_not_reused() -> None:
    entries = index((0, 2), (4, 2), (6, 2), (9, 2))
    placement = placement_of((0, 1, 2, 3), entries, new_nbytes=2, alignment=4, dead_share=1.0)
    assert placement.entries.tolist() == [[0, 2], [4, 2], list(GONE), list(GONE)]


def test_shared_slot_is_not_reused() -> None:
    entries = index((0, 3), (0, 3), (6, 3), (9, 3))
    assert placement_of((0,), entries, new_nbytes=3).entries.tolist() == [list(GONE), [0, 3], [6, 3], [9, 3]]


@pytest.mark.parametrize("replaced", [(), (2,), (0, 1, 2, 3)])
def test_index_at_the_start_keeps_its_space(replaced: tuple[int, ...]) -> None:
    old = b"INDXaaabbbcccddd"
    entries = index((4, 3), (7, 3), (10, 3), (13, 3))
    placement = placement_of(replaced, entries, index_at_start=True)
    assert placement.data_offset == (4 if len(replaced) == 4 else 16)
    new = carried(placement, old)
    assert new[:4] == b"...."
    for before, after in zip(chunks(entries, old), chunks(placement.entries, new), strict=True):
        assert after in (before, None)


def test_object_that_is_only_an_index_is_placed() -> None:
    for at_start in (False, True):
        placement = placement_of((), index(GONE, GONE), shard_nbytes=4, index_at_start=at_start)
        assert placement.carries.shape == (0, 3)
        assert placement.data_offset == 4 * at_start


def test_empty_chunk_stays_present() -> None:
    entries = index((0, 3), (3, 0), (3, 3), GONE)
    assert placement_of((), entries, shard_nbytes=10).entries.tolist() == entries.tolist()
    packed = placement_of((0,), entries, shard_nbytes=10, dead_share=0.0)
    assert packed.entries[1].tolist() == [0, 0]
    assert chunks(packed.entries, carried(packed, b"aaacccINDX")) == [None, b"", b"ccc", None]


@pytest.mark.parametrize("at_start", [False, True])
def test_empty_chunk_is_moved_inside_the_carried_bytes(at_start: bool) -> None:
    """The bytes after the last inner chunk are dropped, so an empty chunk that points there gets a new offset."""
    entries = index((4, 3), GONE, (12, 0))
    placement = placement_of((1,), entries, dead_share=1.0, index_at_start=at_start)
    assert placement.entries.tolist() == [[4, 3], list(GONE), [7, 0]]
    assert placement.data_offset == 7


def test_chunks_that_share_a_range_stay_readable() -> None:
    entries = index((0, 3), (0, 3), (6, 3), GONE)
    kept = placement_of((0,), entries, dead_share=1.0)
    assert kept.entries.tolist() == [list(GONE), [0, 3], [6, 3], list(GONE)]
    packed = placement_of((2,), entries, dead_share=0.0)
    assert chunks(packed.entries, carried(packed, OLD)) == [b"aaa", b"aaa", None, None]


@pytest.mark.parametrize("alignment", [1, 4])
def test_sizes_whose_sum_overflows_are_not_packed(alignment: int) -> None:
    """In a sparse file, many entries may claim the same bytes. A sum of sizes that overflowed made packing look useful,
    although packing multiplies these bytes."""
    half = 1 << 62
    entries = index(*[(0, half)] * 5)
    for dead_share in (0.0, 0.5, PACK):
        placement = placement_of(
            (0,), entries, shard_nbytes=2 * half, dead_share=dead_share, alignment=alignment, new_nbytes=half
        )
        assert not placement.compact


def test_forced_packing_may_grow_by_alignment_but_not_by_shared_bytes() -> None:
    assert not placement_of((0,), dead_share=0.0, alignment=16).compact
    packed = placement_of((0,), dead_share=PACK, alignment=16)
    assert packed.entries.tolist() == index(GONE, (0, 3), (16, 3), (32, 3)).tolist()
    assert chunks(packed.entries, carried(packed, OLD)) == [None, b"bbb", b"ccc", b"ddd"]
    assert not placement_of((0,), index((0, 3), (3, 9), (3, 9), (3, 9)), dead_share=PACK).compact


def test_old_index_is_not_modified() -> None:
    entries = FOUR.copy()
    placement_of((0, 1, 3), entries)
    assert (entries == FOUR).all()


@st.composite
def old_objects(draw: st.DrawFn) -> tuple[bytes, Any, int]:
    """Draw chunks anywhere in a body, also overlapping, some absent; return body, entries and n."""
    body = bytes(draw(st.lists(st.integers(1, 255), max_size=40)))
    n = draw(st.integers(1, 8))
    entries = []
    for _ in range(n):
        low, high = sorted(draw(st.tuples(*[st.integers(0, len(body))] * 2)))
        entries.append(draw(st.sampled_from([(low, high - low), GONE])))
    return body, index(*entries), n


@given(
    st.data(), old_objects(), st.booleans(), st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.sampled_from([1, 4])
)
def test_carried_chunks_keep_their_bytes(
    data: st.DataObject, old: tuple[bytes, Any, int], at_start: bool, share: float, alignment: int
) -> None:
    body, entries, n = old
    first = 4 if at_start else 0
    entries = np.where(entries == ABSENT, entries, entries + np.array([first, 0], dtype=np.uint64))
    blob = b"INDX" + body if at_start else body + b"INDX"
    replaced = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=np.bool_)
    placement = place(
        entries,
        replaced,
        shard_nbytes=len(blob),
        index_nbytes=4,
        index_at_start=at_start,
        dead_share=share,
        alignment=alignment,
    )
    new = carried(placement, blob)
    for i, before in enumerate(chunks(entries, blob)):
        after = chunks(placement.entries, new)[i]
        assert after == (None if replaced[i] else before)
    assert placement.data_offset >= first
    present = placement.entries[placement.entries[:, 0] != ABSENT]
    assert (present.sum(axis=1) <= placement.data_offset).all()
    assert all(to >= first for to in placement.carries[:, 2].tolist())
    if not placement.compact:
        keep = ~replaced & (entries[:, 1] > 0)
        assert (placement.entries[keep] == entries[keep]).all()
    elif alignment > 1:
        assert (present[present[:, 1] > 0, 0] % alignment == 0).all()
    elif len(placement.carries):  # packed bytes are contiguous and do not overlap
        ends = placement.carries[:, 2] + placement.carries[:, 1]
        assert placement.carries[:, 2].tolist() == [first, *ends[:-1].tolist()]
        assert ends[-1] == placement.data_offset


# ---- inner chunks that overlap the index, where the caller allows it


def test_old_index_at_the_end_is_kept_for_chunks_that_overlap_it() -> None:
    entries = index((0, 3), (11, 3), (6, 3), (13, 3))
    placement = placement_of((0, 3), entries, new_nbytes=3)
    assert placement.data_offset == 16
    assert carried(placement, OLD) == OLD
    assert placement.entries.tolist() == index(GONE, (11, 3), (6, 3), GONE).tolist()


def test_start_of_the_shard_is_copied_for_chunks_that_overlap_an_index_there() -> None:
    old = b"INDXaaabbbcccddd"
    entries = index((2, 3), (7, 3), (0, 3), (13, 3))
    placement = placement_of((1,), entries, index_at_start=True)
    new = carried(placement, old)
    assert chunks(placement.entries, new) == [b"DXa", None, b"IND", b"ddd"]
    assert placement.data_offset == 16 + 5


@pytest.mark.parametrize("at_start", [False, True])
def test_replaced_chunk_that_overlaps_the_index_is_no_slot(at_start: bool) -> None:
    entries = index((5, 3), (1, 3) if at_start else (11, 3), (8, 3), (11, 1))
    placement = placement_of((1,), entries, index_at_start=at_start, new_nbytes=3)
    assert placement.entries[1].tolist() == list(GONE)


@pytest.mark.parametrize(
    ("alignment", "counts"), [(0, True), (1, True), (512, True), (3, False), (1 << 31, False)]
)
def test_mark_with_an_impossible_alignment_is_ignored(alignment: int, counts: bool) -> None:
    """Packing needs a power of two: a mark that says 3 stopped every packing update, and the error named no shard."""
    end = 12 + user_bytes.MARK.size
    where = user_bytes.Extents(0, 0, 12, end)
    mark = user_bytes.MARK.pack(user_bytes.MAGIC, 12, end, 0, 0, alignment, 0)[:-4]
    tail = mark + native.load().crc32c(mark).to_bytes(4, "little")
    found = user_bytes._find_mark(tail, 12, where)
    assert found == ((0, 0, max(1, alignment), 12) if counts else None)  # the last number: where the mark is
