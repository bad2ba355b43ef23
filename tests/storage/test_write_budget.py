# test_write_budget.py - all writes of a process to one store share limits
# SPDX-License-Identifier: MIT
"""Requests and memory of writes from several threads to one store."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from typing import Any
from unittest import mock

import numpy as np
import pytest
import zarr
from helpers import OtherMemoryStore, create, ours

import shardcodec
from shardcodec.compat import on_zarrs_loop
from shardcodec.storage import budget
from shardcodec.storage.budget import Budget, HeldFromThread

N_SHARDS = 8
SHARD = 4096


class SlowStore(OtherMemoryStore):
    """Each request takes 5 ms. Counts the requests under way, and the bytes of the objects that are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.n = self.most = 0

    async def _count(self, work: Any) -> Any:
        self.n += 1
        self.most = max(self.most, self.n)
        try:
            await asyncio.sleep(0.005)
            return await work
        finally:
            self.n -= 1

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        return await self._count(super().get(key, prototype, byte_range))

    async def set(self, key: str, value: Any, byte_range: Any = None) -> None:
        await self._count(super().set(key, value))


def array_in(store: SlowStore) -> Any:
    shape = (N_SHARDS * SHARD,)
    return create(store, shape=shape, shards=(SHARD,), chunks=(64,), dtype="u1", fill_value=0)


def write_in_threads(array: Any, length: int) -> None:
    """Write the first elements of each shard, each shard in a thread of its own."""
    together = threading.Barrier(N_SHARDS)

    def work(i: int) -> None:
        together.wait(10)
        array[i * SHARD : i * SHARD + length] = np.full(length, i + 1, "u1")

    with ThreadPoolExecutor(N_SHARDS) as pool:
        list(pool.map(work, range(N_SHARDS)))


@pytest.mark.parametrize("way", ["pipeline", "attach"])
@pytest.mark.parametrize(
    ("length", "n_at_a_time"), [(SHARD, 4), (100, 2)], ids=["whole shards", "old and new shards"]
)
def test_objects_of_all_writes_fit_into_one_limit(way: str, length: int, n_at_a_time: int) -> None:
    """Eight threads held eight shards: each call had a limit of its own."""
    store = SlowStore()
    array_in(store)
    array = ours(store) if way == "pipeline" else shardcodec.attach(zarr.open_array(store, mode="r+"))
    store.most = 0
    with zarr.config.set({"async.concurrency": 1}), mock.patch.object(budget, "OBJECT_NBYTES", 4 * SHARD):
        write_in_threads(array, length)
    assert 1 <= store.most <= n_at_a_time
    for i in range(N_SHARDS):
        assert (array[i * SHARD : i * SHARD + length] == i + 1).all()


def test_requests_of_all_writes_fit_into_one_limit() -> None:
    store = SlowStore()
    array_in(store)
    array = ours(store)
    store.most = 0
    with (
        zarr.config.set({"async.concurrency": 2}),
        mock.patch("shardcodec.storage.budget.RANGES_PER_OBJECT", 1),
    ):
        write_in_threads(array, SHARD)
    assert store.most == 2


def shared() -> Budget:
    return budget.of_store("test_write_budget").writes


async def held() -> int:
    return shared()._held


def test_threads_stay_within_the_limit() -> None:
    now, most, mutex = 0, 0, threading.Lock()

    def work(i: int) -> None:
        nonlocal now, most
        for _ in range(20):
            with HeldFromThread(shared, 2, 5):
                with mutex:
                    now += 2
                    most = max(most, now)
                with HeldFromThread(shared, 5, 5):  # is part of it
                    pass
                with mutex:
                    now -= 2

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert most <= 4
    assert on_zarrs_loop(held()) == 0


class Interrupt(BaseException):
    """Raised by a signal handler."""


def test_amount_of_a_thread_that_was_interrupted_is_given_back() -> None:
    """The handler raised before the block began; an interpreter that keeps the last error kept the amount."""

    def interrupted(work: Any) -> None:
        on_zarrs_loop(work)
        raise Interrupt

    kept = None
    with mock.patch.object(budget, "on_zarrs_loop", interrupted):
        try:
            with HeldFromThread(shared, 5, 5):
                raise AssertionError("the block must not begin")
        except Interrupt as error:
            kept = error
    assert kept is not None
    assert on_zarrs_loop(held()) == 0


def test_amount_that_is_granted_after_an_interrupt_is_given_back() -> None:
    async def waiting() -> int:
        return len(shared()._waiting)

    def interrupted(work: Any) -> None:
        loop = on_zarrs_loop(running_loop())
        future = asyncio.run_coroutine_threadsafe(work, loop)
        while not on_zarrs_loop(waiting()):
            time.sleep(0.001)
        ended.append(future)
        raise Interrupt

    ended: list[Any] = []
    with HeldFromThread(shared, 5, 5):
        with ThreadPoolExecutor(1) as pool, mock.patch.object(budget, "on_zarrs_loop", interrupted):
            # a new context: in a free-threaded Python a thread inherits that of its starter, which holds a part
            failed = pool.submit(Context().run, HeldFromThread(shared, 3, 5).__enter__)
            assert isinstance(failed.exception(), Interrupt)
        assert on_zarrs_loop(held()) == 5
    ended[0].result(10)
    assert on_zarrs_loop(held()) == 0


async def running_loop() -> asyncio.AbstractEventLoop:
    return asyncio.get_running_loop()


def test_interrupted_end_does_not_let_later_writes_pass_uncounted() -> None:
    first = HeldFromThread(shared, 5, 5)
    first.__enter__()
    first._leave()  # the handler raised before the rest of the end
    with HeldFromThread(shared, 4, 5):
        assert on_zarrs_loop(held()) == 4
    assert on_zarrs_loop(held()) == 0
    first.__exit__()


async def test_writes_that_count_nothing_do_not_wait() -> None:
    """Small changes of a key-value store waited until a large object was stored."""
    one = Budget()
    async with one.hold(9, 5), asyncio.timeout(1):
        await asyncio.create_task(nothing(one))


async def nothing(one: Budget) -> None:
    async with one.hold(0, 5):
        pass
