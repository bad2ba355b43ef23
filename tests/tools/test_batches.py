# test_batches.py - how units are divided into batches for workers
# SPDX-License-Identifier: MIT
"""Each unit comes once; sizes follow the measured times and shrink at the end."""

from __future__ import annotations

import itertools

from shardcodec.tools.convert.grouping import Grouping
from shardcodec.tools.convert.layout import NewLayout
from shardcodec.tools.convert.plan import ConvertPlan, PlannedArray, Unit
from shardcodec.tools.jobs.shard_work import (
    FIRST_SECONDS,
    FIRST_SPEED,
    MOST_SHARDS,
    TARGET_SECONDS,
    batches_of_plan,
)

SHARD = 1000


def plan_of(n: int, *, shard: int = SHARD) -> ConvertPlan:
    layout, grouping = NewLayout({}, "encode"), Grouping((1,), None, 1, 1.0)
    array = PlannedArray("a", layout, (10,), (shard,), (n,), grouping)
    return ConvertPlan("s", "d", (array,), {}, (), 1, 1, "none", "f")


def test_each_unit_comes_once_and_the_last_batches_are_small() -> None:
    plan = plan_of(1000)
    batches = batches_of_plan(plan, plan.units())
    sizes = []
    units: list[Unit] = []
    while batch := batches.take(4):
        sizes.append(len(batch))
        units += batch
    assert units == list(plan.units())
    assert sizes[0] == 125 and sizes == sorted(sizes, reverse=True) and sizes[-1] == 1


def test_units_that_were_not_run_come_next() -> None:
    plan = plan_of(100)
    batches = batches_of_plan(plan, plan.units())
    first = batches.take(1)
    batches.give_back(first[10:])
    assert batches.take(1)[: len(first) - 10] == first[10:]


def test_size_follows_the_measured_time() -> None:
    plan = plan_of(10**6, shard=10**6)
    batches = batches_of_plan(plan, plan.units())
    first = batches.take(2)
    assert len(first) == FIRST_SECONDS * FIRST_SPEED / 10**6
    batches.measured(first, 2.0 * len(first))  # a unit takes 2 s
    assert len(batches.take(2)) == TARGET_SECONDS / 2
    for _ in range(30):
        batches.measured(first, 0.1 * len(first))
    assert 0.9 * TARGET_SECONDS / 0.1 <= len(batches.take(2)) <= TARGET_SECONDS / 0.1


def test_batch_has_at_least_one_unit_and_not_too_many() -> None:
    slow = plan_of(10, shard=10**12)
    assert len(batches_of_plan(slow, slow.units()).take(1)) == 1
    many = plan_of(10**9, shard=1)
    batches = batches_of_plan(many, many.units())  # no list of 10^9 units is made
    assert len(batches.take(8)) == MOST_SHARDS
    empty = batches_of_plan(many, itertools.islice(many.units(), 0))
    assert empty.take(1) == []
