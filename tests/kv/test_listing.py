# test_listing.py - lazy lists of keys
# SPDX-License-Identifier: MIT
"""`shardcodec.kv.KeyList`, compared with a plain list of the same keys."""

from __future__ import annotations

import asyncio
import copy
import itertools
import math
import pickle
import struct
import tracemalloc
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_stores import key, open_kv
from zarr.storage import MemoryStore

from shardcodec import native
from shardcodec.kv import KeyList, KeyRange
from shardcodec.kv.listing import flags_of, no_positions, positions_among


def both(shape: tuple[int, ...], flags: Any, skip: int, first: int, end: int) -> tuple[KeyList, list[bytes]]:
    """Return the keys of flagged entries among [first, end) as a KeyList and as a list."""
    present = positions_among(shape, np.asarray(flags, dtype=np.bool_), first, end)
    every = [key(*at)[skip:] for at in itertools.product(*map(range, shape))]
    return KeyList(present, skip), [
        k for k, flag in zip(every[first:end], flags[first:end], strict=True) if flag
    ]


SHAPES = st.one_of(
    st.lists(st.integers(1, 4), max_size=4).map(tuple),
    st.sampled_from([(3, 700), (700, 3), (2, 1, 257), (1500,), (1, 513), (512,), (64, 2)]),
)
INDICES = st.none() | st.integers(-9, 9) | st.integers(-1600, 1600)
SLICES = st.builds(slice, INDICES, INDICES, INDICES.filter(lambda step: step != 0))


@st.composite
def listings(draw: Any) -> tuple[KeyList, list[bytes]]:
    """Draw a KeyList and the equal list, sliced and reversed at random."""
    shape = draw(SHAPES)
    n = math.prod(shape)
    density = draw(st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.0]))
    flags = np.random.default_rng(draw(st.integers(0, 1 << 30))).random(n) < density
    first, end = sorted((draw(st.integers(0, n)), draw(st.integers(0, n)))) if draw(st.booleans()) else (0, n)
    keys, twin = both(shape, flags, draw(st.integers(0, 4 * len(shape))), first, end)
    for cut in draw(st.lists(SLICES, max_size=3)):
        keys, twin = keys[cut], twin[cut]
    return keys, twin


@given(listings(), st.data())
def test_key_list_behaves_as_list(case: tuple[KeyList, list[bytes]], data: st.DataObject) -> None:
    keys, twin = case
    assert list(keys) == twin and len(keys) == len(twin) and bool(keys) == bool(twin)
    assert list(reversed(keys)) == twin[::-1]
    assert keys == twin and twin == keys and keys == tuple(twin) and not (keys != twin)  # noqa: SIM202  # both operators
    assert pickle.loads(pickle.dumps(keys)) == keys and copy.copy(keys) == twin == copy.deepcopy(keys)
    cut = data.draw(SLICES)
    assert list(keys[cut]) == twin[cut] and (keys[cut] == keys) == (twin[cut] == twin)
    assert pickle.loads(pickle.dumps(keys[cut])) == twin[cut]
    for at in data.draw(st.lists(st.integers(-len(twin) - 1, len(twin)), max_size=5)):
        if -len(twin) <= at < len(twin):
            assert keys[at] == twin[at]
        else:
            with pytest.raises(IndexError):
                keys[at]


@given(listings(), st.data())
def test_key_list_finds_keys_as_list(case: tuple[KeyList, list[bytes]], data: st.DataObject) -> None:
    keys, twin = case
    one_of_them = st.sampled_from(twin) if twin else st.nothing()
    other = st.lists(st.integers(0, 4), max_size=4).map(lambda at: key(*at))
    wanted: Any = data.draw(one_of_them | other | st.binary(max_size=16))
    start, stop = data.draw(INDICES), data.draw(INDICES)
    for given_as in (wanted, bytearray(wanted)):
        assert (given_as in keys) == (given_as in twin) and keys.count(given_as) == twin.count(given_as)
    ends = [0 if start is None else start, len(twin) if stop is None else stop]
    try:
        at = twin.index(wanted, *ends)
    except ValueError:
        with pytest.raises(ValueError, match="is not in this list of"):
            keys.index(wanted, *ends)
    else:
        assert keys.index(wanted, *ends) == at
    assert (wanted in keys[::-1]) == (wanted in twin)
    assert wanted not in keys or keys[::-1].index(wanted) == twin[::-1].index(wanted)


@given(listings())
def test_key_lists_with_equal_keys_are_equal(case: tuple[KeyList, list[bytes]]) -> None:
    keys, twin = case
    for other in (KeyList(no_positions((2,))), keys[1:], keys[::-1], keys[:-1], keys[:]):
        assert (keys == other) == (twin == list(other))
    assert keys != [*twin, b"more"] and (not twin or keys != [*twin[:-1], b"another"])
    assert keys != "".join(map(chr, range(len(twin)))) and keys != b"\0" * len(twin)


# ---- a sequence


def test_key_list_is_immutable_sequence() -> None:
    keys, twin = both((2, 3), [True] * 6, 0, 0, 6)
    assert isinstance(keys, Sequence) and isinstance(keys[1:3], KeyList) and keys == deque(twin)
    with pytest.raises(TypeError, match="unhashable"):
        hash(keys)
    with pytest.raises(TypeError):
        keys[0] = b""  # type: ignore[index]
    with pytest.raises(AttributeError):
        keys.more = 1  # type: ignore[attr-defined]
    with pytest.raises(IndexError, match="index 6 is out of range for a list of 6 keys"):
        keys[6]
    with pytest.raises(TypeError):
        keys["0"]  # type: ignore[call-overload]
    assert 3 not in keys and "text" not in keys and None not in keys and keys != range(6) and keys != 6
    match keys:
        case [first, *_, last]:
            assert (first, last) == (twin[0], twin[-1])


def test_repr_shows_first_and_last_keys() -> None:
    few, twin = both((3,), [True, False, True], 0, 0, 3)
    assert repr(few) == f"KeyList({twin})" and repr(few[:0]) == "KeyList([])"
    many, _ = both((1000,), [True] * 1000, 2, 0, 1000)
    shown = r"[b'\x00\x00', b'\x00\x01', b'\x00\x02', b'\x00\x03', ..., b'\x03\xe7']"
    assert repr(many) == f"KeyList({shown}) of 1000 keys"


def test_iterator_has_length_hint() -> None:
    keys, twin = both((2000,), [True] * 2000, 0, 0, 2000)
    left = iter(keys)
    assert left.__length_hint__() == 2000 and next(left) == twin[0] and left.__length_hint__() == 1999  # type: ignore[attr-defined]
    assert list(left) == twin[1:] and list(left) == [] and iter(left) is left


def test_equal_stripped_keys_are_counted_separately() -> None:
    """The constant-time search found the first of two equal keys for both, or found none."""
    keys, twin = both((3, 2), [True, True, False, True, True, False], 4, 0, 6)
    assert twin == [key(0), key(1), key(1), key(0)]
    assert (keys.count(key(1)), keys.index(key(1)), keys.index(key(1), 2), keys.index(key(0), 1)) == (
        2,
        1,
        2,
        3,
    )
    assert keys[2:3].count(key(1)) == 1 and key(2) not in keys
    assert keys[:2].index(key(1)) == 1 and keys[2:].index(key(0)) == 1
    nothing, _ = both((3, 2), [True] * 6, 8, 0, 6)
    assert nothing.count(b"") == 6 and nothing.index(b"") == 0 and b"" in nothing and b"\0" not in nothing


def test_slice_is_pickled_without_other_keys() -> None:
    keys, twin = both((1 << 16,), [True] * (1 << 16), 0, 0, 1 << 16)
    assert len(pickle.dumps(keys)) > 8000 > 500 > len(pickle.dumps(keys[40_000:40_100]))
    assert pickle.loads(pickle.dumps(keys[40_100:40_000:-7])) == twin[40_100:40_000:-7]


def test_key_list_needs_less_memory_than_its_keys() -> None:
    bits = b"\xff" * 125_000
    tracemalloc.start()
    try:
        keys = KeyList(native.load().Positions((1000, 1000), 0, 1_000_000, bits))
        assert sum(1 for _ in keys) == len(keys) == 1_000_000 and keys == keys[:]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


# ---- from a store


@pytest.mark.parametrize("kind", ["file", "memory", "nested"])
def test_key_list_is_a_snapshot(tmp_path: Path, kind: str) -> None:
    base: Any = tmp_path / "shard"
    if kind == "memory":
        base = MemoryStore(), "shard"
    elif kind == "nested":
        base = open_kv(tmp_path / "outer", (4,)), key(3)
    store = open_kv(base)
    assert store.list_sync() == [] and isinstance(store.list_sync(), KeyList)
    for at in ((0, 1), (1, 2)):
        store[key(*at)] = b"v"
    before = store.list_sync()
    assert before == [key(0, 1), key(1, 2)] == asyncio.run(store.list()) and len(store) == 2
    for k in store:  # iteration uses a snapshot, too
        del store[k]
    store[key(0, 0)] = b"w"
    assert before == [key(0, 1), key(1, 2)] and store.list_sync() == [key(0, 0)] == list(store.keys())
    assert store.list_sync(KeyRange(key(1))) == [] and store.popitem() == (key(0, 0), b"w") and not store


def test_list_in_transaction_has_earlier_writes_only(tmp_path: Path) -> None:
    store = open_kv(tmp_path / "shard", (3, 3))
    store.update({key(0, j): b"v" for j in range(3)})
    with store.transaction() as t:
        t.delete_range_sync(KeyRange(key(0, 1), key(0, 2)))
        t[key(2, 2)] = b"w"
        t.delete_sync(key(0, 0))
        before = t.list_sync()
        t[key(1, 1)] = b"x"
        assert before == [key(0, 2), key(2, 2)]
        assert t.list_sync() == [key(0, 2), key(1, 1), key(2, 2)] == list(t) and len(t) == 3
        assert t.list_sync(KeyRange(key(1), key(2)), strip_prefix_length=4) == [key(1)]
        assert store.list_sync() == [key(0, j) for j in range(3)]
    assert store.list_sync() == [key(0, 2), key(1, 1), key(2, 2)]


def test_listed_keys_can_be_read(tmp_path: Path) -> None:
    store = open_kv(tmp_path / "shard", (20, 50))
    store.update({key(i, j): b"%d" % (50 * i + j) for i in range(20) for j in range(i, 50, 3)})
    found = store.read_many_sync(store.list_sync())
    assert [f.value for f in found] == list(store.values())


def test_empty_and_half_absent_entries_are_listed(tmp_path: Path) -> None:
    """As in TensorStore, an entry is absent only if both its offset and its size have the mark."""
    absent = 2**64 - 1
    pairs = np.array([[absent, absent], [0, 0], [absent, 7], [3, absent]], dtype="<u8").tobytes()
    (tmp_path / "shard").write_bytes(pairs + struct.pack("<I", native.load().crc32c(pairs)))
    store = open_kv(tmp_path / "shard", (4,))
    assert store.list_sync() == [key(1), key(2), key(3)] and len(store) == 3


# ---- the native set


@pytest.mark.parametrize(
    ("shape", "first", "end", "bits", "message"),
    [
        ((2, 3), 0, 7, bytes(8), "expected 0 <= first <= end <= 6, got first 0 and end 7"),
        ((2, 3), 4, 3, b"", "expected 0 <= first <= end <= 6, got first 4 and end 3"),
        ((2, 3), 0, 6, b"", "expected 8 bytes for positions 0 to 6, got 0"),
        ((2, 3), 0, 6, bytes(16), "expected 8 bytes for positions 0 to 6, got 16"),
        ((2, 3), 0, 6, b"\x40" + bytes(7), "expected only positions less than 6, got bits of later ones"),
        ((2, 0), 0, 0, b"", "expected a grid with extents from 1 to"),
        ((1 << 32,), 0, 0, b"", "expected a grid with extents from 1 to"),
        ((1,) * 33, 0, 0, b"", "expected at most 32 axes, got 33"),
    ],
)
def test_positions_outside_of_grid_raise(shape: Any, first: int, end: int, bits: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native.load().Positions(shape, first, end, bits)


def test_positions_give_keys_of_members_only() -> None:
    present = positions_among((2, 3), np.array([1, 0, 1, 1, 0, 0], dtype=np.bool_), 0, 6)
    assert [present.position(rank) for rank in range(3)] == [0, 2, 3]
    assert flags_of(present, 6).tolist() == [True, False, True, True, False, False]
    for first, n, step in (
        (3, 1, 1),
        (0, 4, 1),
        (-1, 1, 1),
        (0, 2, -1),
        (2, 4, -1),
        (0, -1, 1),
        (0, 2, 1 << 70),
    ):
        with pytest.raises(IndexError):
            present.packed(0, first, n, step)
        with pytest.raises(IndexError):
            present.keys(0, first, n, step)
    with pytest.raises(ValueError, match="expected skip at most 8, the bytes of a key, got 9"):
        present.packed(9, 0, 1, 1)
    for skip, rank in ((0, 3), (9, 0)):
        with pytest.raises(IndexError):
            present.key(skip, rank)
    with pytest.raises(IndexError):
        present.position(3)
    assert (
        present.packed(0, 2, 1, 1 << 70) == key(1, 0)
        and list(present.keys(0, 9, 0, 1)) == []
        and present.key(4, 2) == key(0)
    )
    assert present.find(key(0, 1)) is None and present.find(key(0, 2)) == 1
    assert present.find(key(9, 9)) is None and present.find(b"") is None
