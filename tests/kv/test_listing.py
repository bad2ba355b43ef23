# test_listing.py - lists of keys
# SPDX-License-Identifier: MIT
"""`list`, and the native function that makes the keys, compared with a plain loop."""

from __future__ import annotations

import asyncio
import itertools
import math
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kv_stores import key, open_kv
from zarr.storage import MemoryStore

from shardcodec import native
from shardcodec.kv import KeyRange

SHAPES = st.one_of(
    st.lists(st.integers(1, 4), max_size=4).map(tuple),
    st.sampled_from([(3, 700), (700, 3), (2, 1, 257), (1500,), (1, 513), (512,), (64, 2)]),
)


@given(SHAPES, st.data())
def test_keys_are_those_of_a_loop(shape: tuple[int, ...], data: st.DataObject) -> None:
    n = math.prod(shape)
    density = data.draw(st.sampled_from([0.0, 0.01, 0.5, 0.99, 1.0]))
    flags = np.random.default_rng(data.draw(st.integers(0, 1 << 30))).random(n) < density
    first, end = sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n))))
    skip = data.draw(st.integers(0, 4 * len(shape)))
    keys = native.load().present_keys(shape, flags[first:end], first, skip)
    every = [key(*at)[skip:] for at in itertools.product(*map(range, shape))]
    assert keys == [k for k, flag in zip(every[first:end], flags[first:end], strict=True) if flag]


def test_coordinates_carry_over_all_axes() -> None:
    """A step of a walk may leave several axes at once, and the highest coordinate may need all 32 bits."""
    shape = (2, (1 << 32) - 1, 3)
    n = math.prod(shape)
    for first in (0, 3 * ((1 << 32) - 2) - 1, n - 5):
        keys = native.load().present_keys(shape, b"\1\0\0\0\1", first, 0)
        assert keys == [key(*map(int, np.unravel_index(at, shape))) for at in (first, first + 4)]


@pytest.mark.parametrize(
    ("shape", "n", "first", "skip", "message"),
    [
        ((2, 3), 7, 0, 0, "expected flags of at most 6 positions, got those from 0 to 7"),
        ((2, 3), 1, 6, 0, "expected flags of at most 6 positions, got those from 6 to 7"),
        ((2, 3), 1, 2**64 - 1, 0, "expected flags of at most 6 positions"),
        ((2, 3), 1, 0, 9, "expected skip at most 8, the bytes of a key, got 9"),
        ((2, 0), 0, 0, 0, "expected a grid with extents from 1 to"),
        ((1 << 32,), 0, 0, 0, "expected a grid with extents from 1 to"),
        ((1,) * 33, 0, 0, 0, "expected at most 32 axes, got 33"),
    ],
)
def test_positions_outside_of_grid_raise(shape: Any, n: int, first: int, skip: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        native.load().present_keys(shape, b"\1" * n, first, skip)


# ---- from a store


@pytest.mark.parametrize("kind", ["file", "memory", "nested"])
def test_list_is_a_snapshot(tmp_path: Path, kind: str) -> None:
    base: Any = tmp_path / "shard"
    if kind == "memory":
        base = MemoryStore(), "shard"
    elif kind == "nested":
        base = open_kv(tmp_path / "outer", (4,)), key(3)
    store = open_kv(base)
    assert store.list() == [] and type(store.list()) is list
    for at in ((0, 1), (1, 2)):
        store[key(*at)] = b"v"
    before = store.list()
    assert before == [key(0, 1), key(1, 2)] == asyncio.run(store.list_async()) and len(store) == 2
    for k in store:  # iteration uses a snapshot, too
        del store[k]
    store[key(0, 0)] = b"w"
    assert before == [key(0, 1), key(1, 2)] and store.list() == [key(0, 0)] == list(store.keys())
    assert store.list(KeyRange(key(1))) == [] and store.popitem() == (key(0, 0), b"w") and not store


def test_list_in_transaction_has_earlier_writes_only(tmp_path: Path) -> None:
    store = open_kv(tmp_path / "shard", (3, 3))
    store.update({key(0, j): b"v" for j in range(3)})
    with store.transaction() as t:
        t.delete_range(KeyRange(key(0, 1), key(0, 2)))
        t[key(2, 2)] = b"w"
        t.delete(key(0, 0))
        before = t.list()
        t[key(1, 1)] = b"x"
        assert before == [key(0, 2), key(2, 2)]
        assert t.list() == [key(0, 2), key(1, 1), key(2, 2)] == list(t) and len(t) == 3
        assert t.list(KeyRange(key(1), key(2)), strip_prefix_length=4) == [key(1)]
        assert store.list() == [key(0, j) for j in range(3)]
    assert store.list() == [key(0, 2), key(1, 1), key(2, 2)]


def test_listed_keys_can_be_read(tmp_path: Path) -> None:
    store = open_kv(tmp_path / "shard", (20, 50))
    store.update({key(i, j): b"%d" % (50 * i + j) for i in range(20) for j in range(i, 50, 3)})
    found = store.read_many(store.list())
    assert [f.value for f in found] == list(store.values())


def test_empty_and_half_absent_entries_are_listed(tmp_path: Path) -> None:
    """As in TensorStore, an entry is absent only if both its offset and its size have the mark."""
    absent = 2**64 - 1
    pairs = np.array([[absent, absent], [0, 0], [absent, 7], [3, absent]], dtype="<u8").tobytes()
    (tmp_path / "shard").write_bytes(pairs + struct.pack("<I", native.load().crc32c(pairs)))
    store = open_kv(tmp_path / "shard", (4,))
    assert store.list() == [key(1), key(2), key(3)] and len(store) == 3
