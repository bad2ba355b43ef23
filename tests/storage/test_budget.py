# test_budget.py - limits that all calls to one store share
# SPDX-License-Identifier: MIT
from __future__ import annotations

import asyncio
import gc
import random

import pytest

from shardcodec.storage import budget
from shardcodec.storage.budget import Budget, of_store


async def test_holders_stay_within_the_limit_and_in_order() -> None:
    shared = Budget()
    held, started, most_held = 0, [], 0

    async def work(number: int, amount: int) -> None:
        nonlocal held, most_held
        async with shared.hold(amount, 10):
            started.append(number)
            held += amount
            assert held <= 10 or held == amount
            most_held = max(most_held, held)
            await asyncio.sleep(0.001 * random.random())
            held -= amount

    rng = random.Random(0)
    amounts = [rng.choice([1, 2, 5, 9, 40]) for _ in range(60)]
    await asyncio.gather(*(work(i, amount) for i, amount in enumerate(amounts)))
    assert started == list(range(60))  # a large one is not overtaken by small ones for ever
    assert most_held == 40
    async with shared.hold(10, 10):
        pass


@pytest.mark.parametrize("seed", range(20))
async def test_cancelled_waiters_leave_nothing_held(seed: int) -> None:
    rng, shared = random.Random(seed), Budget()

    async def work(amount: int) -> None:
        async with shared.hold(amount, 4):
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)

    tasks = [asyncio.ensure_future(work(rng.randrange(1, 6))) for _ in range(30)]
    while not all(task.done() for task in tasks):
        if rng.random() < 0.5:
            rng.choice(tasks).cancel()
        await asyncio.sleep(0)
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(end is None or isinstance(end, asyncio.CancelledError) for end in ends), ends
    async with asyncio.timeout(1), shared.hold(4, 4):
        assert shared._held == 4
        assert not shared._waiting


async def test_requests_within_a_request_to_a_store_of_the_same_name_do_not_wait() -> None:
    """A store that reads another one of its name would wait for a limit that it holds itself."""
    shared = Budget()

    async def outer() -> None:
        async with shared.hold(1, 2):
            await asyncio.gather(*(inner() for _ in range(3)))

    async def inner() -> None:
        async with shared.hold(1, 1):
            await asyncio.sleep(0)

    async with asyncio.timeout(5):
        await asyncio.gather(*(outer() for _ in range(4)))
    assert shared._held == 0


async def test_task_that_outlives_the_block_is_counted() -> None:
    """Before the fix, it had the amount of its starter without a limit, for all its life."""
    shared = Budget()
    over = asyncio.Event()

    async def later() -> None:
        await over.wait()
        async with shared.hold(4, 4):
            assert shared._held == 4

    async with shared.hold(1, 4):
        task = asyncio.ensure_future(later())
        await asyncio.sleep(0)
    over.set()
    await task
    assert shared._held == 0


async def test_calls_to_one_store_share_a_budget() -> None:
    assert of_store("a").requests is of_store("a").requests is not of_store("b").requests
    assert of_store("a").reads is not of_store("a").requests
    assert of_store(None).reads is not of_store(None).reads


def test_each_event_loop_has_its_own_budgets() -> None:
    async def find() -> Budget:
        return of_store("a").requests

    assert asyncio.run(find()) is not asyncio.run(find())
    gc.collect()
    assert len(budget._budgets) <= 2
