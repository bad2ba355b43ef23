# test_async_schedules.py - some schedules of the asynchronous side, and the virtual loop itself
# SPDX-License-Identifier: MIT
"""`make schedules` runs many; see docs/testing.md."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from functools import partial

import pytest

pytest.importorskip("obstore")

from faults.async_members import Member
from faults.async_schedules import (
    after,
    at_random,
    enumerated,
    mixed,
    named,
    prepare,
    problems_of,
    small_parts,
    world_of_schedules,
)
from faults.async_world import SHARD, SHARDS, Operation, World, shard_of
from faults.virtual_loop import OPERATION, Listed, Random, Violation, VirtualLoop


@pytest.fixture(autouse=True, scope="module")
def _virtual_world() -> Iterator[None]:
    with world_of_schedules():
        yield


def test_no_schedule_has_a_problem() -> None:
    for schedule in itertools.islice(mixed(1), 150):
        wrong, _ = problems_of(schedule)
        assert not wrong, schedule.name


def test_a_name_makes_the_same_schedule_again() -> None:
    """Also after other schedules, which fill caches."""
    for schedule in [*itertools.islice(at_random(3), 8), *itertools.islice(enumerated(3), 8)]:
        traces = []
        for run in (schedule, named(schedule.name)):
            _, world = problems_of(run)
            assert world is not None
            traces.append(world.loop.trace)
        assert traces[0] == traces[1]
        assert traces[0]


def test_reads_of_a_key_value_store_share_the_limit_of_requests() -> None:
    """A read of all values asked for the whole object beside the limit, which `docs/object-stores.md` promises for all calls."""
    world = World(Listed(), Listed(), fault_weight=0.0)
    world.limits = world.limits._replace(n_requests=1)
    with small_parts(world):
        prepare(world)
        member = Member(world, "a")
        world.run([(member, Member.read_keys)] * 4, lambda _: None)
    assert not world.wrong
    assert member.client.most_under_way == 1


def test_a_cancelled_write_of_several_uploads_waits_for_all_of_them() -> None:
    """When one upload had ended, the other one was cancelled again, and went on after the write: it read its array, and nothing would abort it."""
    n_events = 0
    for n in range(30):
        world = World(Listed(), Listed(), fault_weight=0.0)
        world.streams, world.limits = True, world.limits._replace(n_requests=1)
        with small_parts(world):
            member = Member(world, "a")
            work = partial(Member.store_elements, first=0, values=[1] * 2 * SHARD, name="replace")
            world.run([(member, work)], lambda tasks: after(world, 0, n, "cancel", tasks[0].cancel))  # noqa: B023
        assert not world.wrong
        n_events = len(world.loop.trace)
    assert n_events > 30


def test_lists_of_choices_are_complete() -> None:
    """All sequences of three choices among two, three and two possibilities, with at most two unusual ones."""
    taken, listed = [], []
    while listed is not None:
        choices = Listed(listed, bound=2)
        taken.append(tuple(choices.pick([1] * n) for n in (2, 3, 2)))
        listed = choices.following()
    every = itertools.product(range(2), range(3), range(2))
    assert sorted(taken) == [t for t in every if sum(choice > 0 for choice in t) <= 2]


def test_time_passes_only_when_nothing_else_can_happen() -> None:
    loop = VirtualLoop(Listed())
    woken = []

    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append(loop.time())

    async def all_waits() -> None:
        await asyncio.gather(wait(3600), wait(1))

    loop.run_until_complete(all_waits())
    loop.close()
    assert woken == [1, 3600]


def test_a_deadlock_is_a_violation() -> None:
    loop = VirtualLoop(Random("1"))

    async def wait_for_ever() -> None:
        await loop.create_future()

    with pytest.raises(Violation, match="wait_for_ever"):
        loop.run_until_complete(wait_for_ever())
    loop.close()


def test_a_lost_update_is_a_problem() -> None:
    """The checks themselves: an update that forgets another writer's element, and one that was never stored."""
    _, world = problems_of(named("read+read/1/"))
    assert world is not None
    assert not world.wrong
    key, n = SHARDS[0], len(SHARDS)
    operation = Operation("update", {key: {n: 7}})
    old, new = (1,) * 8, (0, 0, 7, 0, 0, 0, 0, 0)
    world._check_change(operation, key, old, new)
    assert len(world.wrong) == 1
    world.acknowledge(Operation("update", {key: {0: -5}}))
    assert len(world.wrong) == 2
    world.check_read(key, 0, [-5], 0)
    assert len(world.wrong) == 3


def test_a_late_write_of_the_bytes_that_are_stored_changes_nothing() -> None:
    """An erasure without an answer found what it wanted stored and returned; its late request then stored the same bytes, which counted as a fault."""
    world = World(Listed(), Listed(), fault_weight=0.0)
    half = shard_of([bytes(16), None, None, None], at_start=world.at_start)
    whole = shard_of([bytes(16)] * 4, at_start=world.at_start)
    operation = Operation("erase", {SHARDS[0]: dict.fromkeys(range(2, SHARD), 0)})
    operation.is_over = True
    token = OPERATION.set(operation)
    world._noted(SHARDS[0], half, half)
    assert not world.wrong
    world._noted(SHARDS[0], half, whole)
    OPERATION.reset(token)
    assert len(world.wrong) == 1


@pytest.mark.parametrize(("failed", "n_wrong"), [((), 1), ((0,), 0), ((1,), 0)])
def test_a_failed_look_at_one_shard_excuses_though_the_other_is_stored_later(
    failed: tuple[int, ...], n_wrong: int
) -> None:
    """An update of two shards got no answer for the first and could not look at it; that the second was stored afterwards hid the failed look."""
    world = World(Listed(), Listed(), fault_weight=0.0)
    new = (7, *(0,) * (SHARD - 1))
    operation = Operation("update", {key: {0: 7} for key in SHARDS})
    for n in (*failed, *(n for n in range(len(SHARDS)) if n not in failed)):
        world._n_changes[SHARDS[n]] += 1
        world._check_change(operation, SHARDS[n], (0,) * SHARD, new)
        if n in failed:
            operation.look_failed(SHARDS[n])
    world.check_failure(operation, OSError("no answer"))
    assert len(world.wrong) == n_wrong
