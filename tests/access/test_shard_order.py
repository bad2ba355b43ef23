# test_shard_order.py - ShardOrder: a random order of boxes by shard
# SPDX-License-Identifier: MIT
"""Every epoch has each box once over all processes, shard by shard in windows, in an order that a seed determines."""

from __future__ import annotations

import itertools
import math
import pickle
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import run_checked
from hypothesis import given
from hypothesis import strategies as st

import shardcodec
from shardcodec import ShardOrder

ARRAY = SimpleNamespace(shape=(40, 30), shards=(8, 15), chunks=(4, 5))
STARTS = np.random.default_rng(0).integers(0, 30, (500, 2))


def shard_of(index: int) -> tuple[int, ...]:
    return tuple((STARTS[index] // ARRAY.shards).tolist())


@given(
    n=st.integers(0, 60),
    world=st.integers(1, 7),
    window=st.integers(1, 9),
    batch=st.none() | st.integers(1, 9),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 3),
)
def test_each_box_is_visited_once_over_all_ranks(
    n: int, world: int, window: int, batch: int | None, seed: int, epoch: int
) -> None:
    """If the ranks cannot have equal shares, fewer boxes than ranks are repeated."""
    visited: list[int] = []
    for rank in range(world):
        order = ShardOrder(ARRAY, STARTS[:n], window=window, batch=batch, seed=seed, rank=rank, world=world)
        order.set_epoch(epoch)
        own = list(order)
        assert len(order) == len(own)
        if batch is not None:
            assert all(len(part) == batch for part in own[:-1])
            own = list(itertools.chain(*own))
        assert len(own) == math.ceil(n / world) == len(set(own))
        visited += own
    counts = Counter(visited)
    assert sorted(counts) == list(range(n))
    assert counts.total() - n < world and (n % world or counts.total() == n)


@pytest.mark.parametrize("world", [1, 3])
@pytest.mark.parametrize("window", [1, 2, 4, 100])
def test_boxes_are_mixed_within_a_window_of_shards(window: int, world: int) -> None:
    seen: list[set[tuple[int, ...]]] = []
    for rank in range(world):
        order = [
            shard_of(index) for index in ShardOrder(ARRAY, STARTS, window=window, rank=rank, world=world)
        ]
        places = {shard: [i for i, one in enumerate(order) if one == shard] for shard in order}
        windows = []
        begin = 0
        while begin < len(order):
            some = list(dict.fromkeys(order[begin:]))[:window]
            end = 1 + max(places[shard][-1] for shard in some)
            windows.append(set(order[begin:end]))
            begin = end
        assert all(len(shards) <= window for shards in windows)
        assert len(windows) == math.ceil(len(places) / window)
        assert sum(map(len, windows)) == len(places), "a shard is in one window"
        seen.append(set(places))
    shared = sum(map(len, seen)) - len(set().union(*seen))
    assert shared < world, "only shards at the border are of two processes"


def test_shards_and_boxes_come_in_random_order() -> None:
    order = list(ShardOrder(ARRAY, STARTS, window=1))
    shards = [shard for shard, _ in itertools.groupby(order, shard_of)]
    assert len(shards) == len(set(shards)) and shards != sorted(shards)
    of_first = [index for index in order if shard_of(index) == shards[0]]
    assert of_first != sorted(of_first)


def test_seed_and_epoch_give_the_order() -> None:
    orders = {}
    for seed, epoch in itertools.product(range(3), range(3)):
        order = ShardOrder(ARRAY, STARTS, seed=seed)
        order.set_epoch(epoch)
        orders[seed, epoch] = list(order)
        assert list(order) == list(pickle.loads(pickle.dumps(order))) == orders[seed, epoch]
    assert len(set(map(tuple, orders.values()))) == 9


def test_order_is_the_same_in_every_process() -> None:
    code = """
        from types import SimpleNamespace
        from shardcodec import ShardOrder
        array = SimpleNamespace(shape=(40,), shards=(8,), chunks=(4,))
        print(list(ShardOrder(array, [[i] for i in range(40)], window=2, batch=7, seed=5, rank=1, world=2)))
    """
    told = {run_checked(code, PYTHONHASHSEED=seed).stdout for seed in ("1", "2")}
    array = SimpleNamespace(shape=(40,), shards=(8,), chunks=(4,))
    here = ShardOrder(array, [[i] for i in range(40)], window=2, batch=7, seed=5, rank=1, world=2)
    assert told == {f"{list(here)}\n"}


@pytest.mark.parametrize("batch", [None, 16])
def test_epoch_goes_on_where_it_was_interrupted(batch: int | None) -> None:
    order = ShardOrder(ARRAY, STARTS, batch=batch, seed=3, rank=1, world=2)
    order.set_epoch(4)
    whole = list(order)
    for start in (0, 1, 7, len(whole)):
        again = ShardOrder(ARRAY, STARTS, batch=batch, seed=3, rank=1, world=2)
        again.set_epoch(4, start)
        assert list(again) == whole[start:] and len(again) == len(whole) - start
    again.set_epoch(4)
    assert list(again) == whole


def test_arrays_of_zarr_and_handles_have_the_same_order() -> None:
    store: dict[str, Any] = {}
    created = zarr.create_array(store, shape=(40,), shards=(8,), chunks=(4,), dtype="i4")
    plain = zarr.create_array({}, shape=(40,), chunks=(8,), dtype="i4")
    starts = np.arange(41)[:, None]  # an empty row of a sparse matrix may begin at the end
    orders = [
        list(ShardOrder(array, starts)) for array in (created, plain, shardcodec.open_array(created.store))
    ]
    assert orders[0] == orders[1] == orders[2]
    assert sorted(orders[0]) == list(range(41))


@pytest.mark.parametrize(
    ("error", "message", "arguments"),
    [
        (IndexError, r"box 1 at \(41, 0\)", {"starts": [(0, 0), (41, 0)]}),
        (ValueError, r"starts: expected shape \(n, 2\)", {"starts": [0]}),
        (TypeError, "starts: expected integers", {"starts": [(0.5, 1.0)]}),
        (ValueError, "window: expected at least 1, got 0", {"window": 0}),
        (ValueError, "batch: expected at least 1, got 0", {"batch": 0}),
        (ValueError, "world: expected at least 1, got 0", {"world": 0}),
        (ValueError, "rank: expected 0 to 1, because world is 2, got 2", {"rank": 2, "world": 2}),
        (ValueError, "seed: .* not negative, got -1", {"seed": -1}),
        (TypeError, "window", {"window": 1.5}),
    ],
)
def test_wrong_arguments_are_refused(error: Any, message: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(error, match=message):
        ShardOrder(ARRAY, **{"starts": STARTS, **arguments})


def test_wrong_positions_are_refused() -> None:
    order = ShardOrder(ARRAY, STARTS, batch=100)
    for epoch, start in ((-1, 0), (0, -1), (0, 6)):
        with pytest.raises(ValueError, match="expected"):
            order.set_epoch(epoch, start)
    assert len(order) == 5


def test_torch_takes_the_order_as_a_sampler() -> None:
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    order = ShardOrder(ARRAY, STARTS, seed=1)
    loaded = [int(i) for part in data.DataLoader(range(500), sampler=order, batch_size=16) for i in part]
    batches = ShardOrder(ARRAY, STARTS, seed=1, batch=16)
    assert loaded == list(order) == list(itertools.chain(*batches))
    assert [part.tolist() for part in data.DataLoader(range(500), batch_sampler=batches)] == list(batches)
