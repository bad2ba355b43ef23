#!/usr/bin/env python3
# async_schedules.py - random and enumerated schedules of the asynchronous side, on a virtual event loop
# SPDX-License-Identifier: MIT
"""Runs writers and readers of shards in an object store, in several simulated processes, and checks every step of the store.

    tests/faults/async_schedules.py --seed 1 --seconds 60
    tests/faults/async_schedules.py --only random/1/17
    tests/faults/async_schedules.py --only update+erase/100/0,0,1

The last line is the number of schedules. A schedule with a problem is printed with the command that makes it again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import itertools
import sys
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

import numpy as np  # noqa: E402
from faults.async_members import ON_ARRAY, ON_KEYS, Member  # noqa: E402
from faults.async_world import (  # noqa: E402
    DOCUMENTS,
    INNER,
    KV,
    N_INNER,
    SHARDS,
    Operation,
    World,
    shard_of,
)
from faults.virtual_loop import OPERATION, Listed, Random, Violation, virtual_package  # noqa: E402
from faults.virtual_objects import virtual_obstore  # noqa: E402
from zarr.core.buffer import default_buffer_prototype  # noqa: E402

import shardcodec  # noqa: E402
from shardcodec.access import array_write, streamed_shard  # noqa: E402
from shardcodec.storage import budget, conditions, object_store  # noqa: E402

COLLECT = 200  # schedules between two collections of garbage


@contextlib.contextmanager
def small_parts(world: World) -> Iterator[None]:
    """Let the limits of a schedule be small, so that little arrays meet them; new shards are streamed in some schedules."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.object(budget, "limits_of_zarr", return_value=world.limits))
        stack.enter_context(mock.patch.multiple(conditions, _checked=set(), _told=set()))
        if world.streams:
            stack.enter_context(
                mock.patch.multiple(streamed_shard, LEAST_NBYTES=0, PIECE_NBYTES=32, INDEXES_PER_PIECE=0)
            )
            stack.enter_context(mock.patch.object(array_write, "STREAMED_NBYTES", 64))
            stack.enter_context(mock.patch.multiple(object_store, PART_NBYTES=40, IN_FLIGHT_NBYTES=80))
        yield


def prepare(world: World) -> None:
    """Store the document, and in some schedules the first shard, whole or half, and two values."""
    text = DOCUMENTS[world.at_start].to_buffer_dict(default_buffer_prototype())["zarr.json"]
    world.service.set("a/zarr.json", text.to_bytes())
    n_stored = (N_INNER, N_INNER // 2, 0)[world.setup.pick([1, 1, 1])]
    if not n_stored:
        return
    value = world.value()
    elements = np.full(INNER, value, dtype="<i8").tobytes()
    for key, changes, chunks in (
        (
            SHARDS[0],
            dict.fromkeys(range(n_stored * INNER), value),
            [elements] * n_stored + [None] * (N_INNER - n_stored),
        ),
        (KV, {0: b"zero", 2: b"two"}, [b"zero", None, b"two", None]),
    ):
        token = OPERATION.set(Operation("first", {key: changes}, replaces=True))
        world.service.set(key, shard_of(chunks, at_start=world.at_start and key != KV))
        OPERATION.reset(token)


def random_schedule(seed: str) -> World:
    """Run processes with random tasks and disturbances."""
    choices = Random(seed)
    chance = choices.random
    world = World(choices, choices, fault_weight=chance.choice((0.0, 0.05, 0.3, 1.0)))
    with small_parts(world):
        prepare(world)
        actions = chance.choice((ON_ARRAY, ON_ARRAY, ON_KEYS, (*ON_ARRAY, *ON_KEYS)))

        def task(chosen: Sequence[Any]) -> Callable[[Member], Coroutine[Any, Any, None]]:
            async def work(member: Member) -> None:
                for action in chosen:
                    await action(member)

            return work

        tasks = []
        is_crowded = chance.random() < 0.2  # one process, whose tasks meet in its budgets and locks
        for i in range(1 if is_crowded else chance.choice((1, 2, 2, 3))):
            member = Member(world, "abc"[i])
            n_tasks = (2, 1, 2, 1) if is_crowded else chance.choice(((1,), (2,), (3,), (1, 1), (1, 2)))
            for n in n_tasks:
                chosen = chance.choices(actions, k=n)
                if len(n_tasks) > 1:
                    chosen = [action for action in chosen if action is not Member.group]
                tasks.append((member, task(chosen)))

        def disturb(started: list[asyncio.Task[None]]) -> None:
            for running_task in started:
                if chance.random() < (0.5 if is_crowded else 0.2):
                    delay = chance.choice((0, 0, 0, 1, 40))
                    after(
                        world,
                        delay,
                        chance.randrange(12),
                        f"cancel {running_task.get_name()}",
                        running_task.cancel,
                    )
            if chance.random() < 0.2:
                member = chance.choice(tasks)[0]
                after(
                    world,
                    chance.choice((0, 0, 1)),
                    chance.randrange(12),
                    f"lose {member.process.name}",
                    member.lose,
                )

        world.run(tasks, disturb)
    return world


PAIRS = {
    f"{one.__name__}+{other.__name__}": (one, other)
    for actions in (ON_ARRAY, ON_KEYS)
    for one, other in itertools.combinations_with_replacement(actions, 2)
}


def pair_schedule(pair: str, setup: int, choices: Listed) -> World:
    """Run two processes, each with one task, under listed choices."""
    world = World(choices, Random(f"{pair}/{setup}"), fault_weight=1.0)
    with small_parts(world):
        prepare(world)
        tasks = [(Member(world, name), action) for name, action in zip("ab", PAIRS[pair], strict=True)]
        world.run(tasks, lambda _: None)
    return world


def enumerated(seed: int) -> Iterator[Schedule]:
    """Yield schedules of all pairs, first with one unusual choice, then with two."""
    for n in itertools.count():
        for pair in PAIRS:
            listed: list[int] | None = []
            while listed is not None:
                choices = Listed(listed, bound=min(2, n + 1))
                setup = seed * 100 + n
                name = f"{pair}/{setup}/{','.join(map(str, listed))}"
                yield Schedule(name, partial(pair_schedule, pair, setup, choices))
                listed = choices.following()


def at_random(seed: int) -> Iterator[Schedule]:
    """Yield random schedules."""
    for n in itertools.count():
        yield Schedule(f"random/{seed}/{n}", partial(random_schedule, f"{seed}/{n}"))


def named(name: str) -> Schedule:
    """Return the schedule of this name."""
    pair, setup, rest = name.split("/")
    if pair == "random":
        return Schedule(name, partial(random_schedule, f"{setup}/{rest}"))
    choices = Listed([int(choice) for choice in rest.split(",") if choice])
    return Schedule(name, partial(pair_schedule, pair, int(setup), choices))


def mixed(seed: int) -> Iterator[Schedule]:
    """Yield one enumerated schedule for two random ones."""
    randoms = at_random(seed)
    for schedule in enumerated(seed):
        yield from itertools.islice(randoms, 2)
        yield schedule


class Schedule(NamedTuple):
    """A schedule, by the name that makes it again."""

    name: str
    make: Callable[[], World]


def problems_of(schedule: Schedule) -> tuple[list[str], World | None]:
    """Run a schedule; return what is wrong."""
    try:
        world = schedule.make()
    except Violation as error:
        return [str(error)], None
    return world.wrong, world


def after(world: World, delay: float, n: int, what: str, happen: Callable[[], Any]) -> None:
    """Let something happen after a delay, as the event after n others of its own."""

    def step() -> None:
        nonlocal n
        n -= 1
        if n < 0:
            happen()
        else:
            world.loop.expect(what, step)

    if delay:
        world.loop.expect_later(delay, what, step)
    else:
        world.loop.expect(what, step)


# ---------------------------------------------------------------- the command


@contextlib.contextmanager
def world_of_schedules() -> Iterator[None]:
    """Run the package on virtual loops; garbage is collected between schedules, so that it changes none."""
    gc.disable()
    with (
        shardcodec.enable(children=False, strict=True, threads=1),
        virtual_package(),
        virtual_obstore(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("error", message="partial writes", category=RuntimeWarning)
        try:
            yield
        finally:
            gc.enable()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", help="name of a schedule")
    parser.add_argument("--trace", action="store_true", help="print the events of a schedule with a problem")
    parser.add_argument("--most-problems", type=int, default=20, help="end after so many")
    arguments = parser.parse_args()
    n = n_wrong = 0
    end = time.monotonic() + arguments.seconds
    schedules = mixed(arguments.seed) if arguments.only is None else [named(arguments.only)]
    with world_of_schedules():
        for schedule in schedules:
            if time.monotonic() >= end or n_wrong == arguments.most_problems:
                break
            wrong, world = problems_of(schedule)
            n += 1
            if n % COLLECT == 0:
                gc.collect()
            if wrong:
                n_wrong += 1
                print(f"wrong: tests/faults/async_schedules.py --only {schedule.name}", *wrong, sep="\n    ")
            if world is not None and arguments.trace:
                print(*world.loop.trace, sep="\n    ")
    print(f"{n_wrong} of them with a problem")
    print(f"{n} schedules")
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
