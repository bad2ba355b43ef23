# test_locks.py - the lock table: first in, first out, for threads and coroutines of any event loop
# SPDX-License-Identifier: MIT
"""No test depends on timing: each one waits until a caller is in the queue, never for a fixed time."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

import pytest
from helpers import in_child

from shardcodec.storage import process_locks
from shardcodec.storage.process_locks import LockTable

PATIENCE = 30.0


def waiting(table: LockTable, key: str) -> int:
    return table.n_waiting(key)


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "the condition stayed false for too long"
        time.sleep(0.0005)


@contextmanager
def threads(*work: Callable[[], Any]) -> Iterator[list[threading.Thread]]:
    """Start threads. At the end all of them must have returned without an exception."""
    failures: list[BaseException] = []

    def guarded(part: Callable[[], Any]) -> None:
        try:
            part()
        except BaseException as error:
            failures.append(error)

    started = [threading.Thread(target=guarded, args=(part,), daemon=True) for part in work]
    for thread in started:
        thread.start()
    yield started
    for thread in started:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"
    assert not failures, failures


def test_lock_is_held_once_and_released_without_a_rest() -> None:
    table = LockTable()
    assert table.try_acquire("a")
    assert not table.try_acquire("a")
    assert table.try_acquire("b")
    assert len(table) == 2
    table.release("a")
    table.release("b")
    assert len(table) == 0
    assert table.try_acquire("a")


def test_block_holds_a_lock_only_if_it_is_free() -> None:
    """The fast path of `group_writes` runs on event loops and must not wait; its lock is free after an error, too."""
    table = LockTable()
    with table.hold_free("a") as is_held:
        assert is_held and table.n_waiting("a") == 0
        with table.hold_free("a") as is_held_twice:
            assert not is_held_twice
        assert not table.try_acquire("a")
    with pytest.raises(KeyError), table.hold_free("a"):
        raise KeyError
    forgotten = table.hold_free("a")
    forgotten.__enter__()
    del forgotten  # as a signal handler between `__enter__` and the block
    assert len(table) == 0


def test_reader_detects_a_writer_in_between() -> None:
    table = LockTable()
    before = table.calm("a")
    assert before is not None
    assert table.calm("a") == before
    assert table.try_acquire("a")
    assert table.calm("a") is None
    table.release("a")
    assert table.calm("a") not in (None, before)


def test_threads_get_the_lock_in_order() -> None:
    table = LockTable()
    table.acquire("a")
    served: list[int] = []
    line: list[threading.Thread] = []

    def want(number: int) -> None:
        table.acquire("a")
        served.append(number)
        table.release("a")

    for number in range(5):
        line.append(threading.Thread(target=want, args=(number,), daemon=True))
        line[-1].start()
        wait_until(lambda: waiting(table, "a") == len(line))
    table.release("a")
    for thread in line:
        thread.join(PATIENCE)
    assert served == [0, 1, 2, 3, 4]
    assert len(table) == 0


def test_threads_and_coroutines_share_one_queue() -> None:
    table = LockTable()
    table.acquire("a")
    served: list[str] = []

    def thread(name: str) -> None:
        with table.hold(["a"]):
            served.append(name)

    async def coroutine(name: str) -> None:
        async with table.hold_async(["a"]):
            served.append(name)

    kinds: list[Callable[[], Any]] = [
        lambda: thread("t0"),
        lambda: asyncio.run(coroutine("c1")),
        lambda: thread("t2"),
        lambda: asyncio.run(coroutine("c3")),
    ]
    line = []
    for work in kinds:
        line.append(threading.Thread(target=work, daemon=True))
        line[-1].start()
        wait_until(lambda: waiting(table, "a") == len(line))
    table.release("a")
    for member in line:
        member.join(PATIENCE)
    assert served == ["t0", "c1", "t2", "c3"]
    assert len(table) == 0


def test_try_acquire_does_not_overtake_the_queue() -> None:
    table = LockTable()
    table.acquire("a")
    got = threading.Event()
    go = threading.Event()

    def patient() -> None:
        table.acquire("a")
        got.set()
        go.wait(PATIENCE)
        table.release("a")

    with threads(patient):
        wait_until(lambda: waiting(table, "a") == 1)
        table.release("a")
        assert not table.try_acquire("a")  # the release has already handed it to the waiting thread
        assert got.wait(PATIENCE)
        go.set()


def test_waiting_coroutine_does_not_block_its_loop() -> None:
    table = LockTable()
    table.acquire("a")
    ticks: list[str] = []

    async def main() -> None:
        task = asyncio.create_task(table.acquire_async("a"))
        for _ in range(3):
            await asyncio.sleep(0)
            ticks.append("tick")
        table.release("a")
        await task
        ticks.append("held")
        table.release("a")

    asyncio.run(main())
    assert ticks == ["tick", "tick", "tick", "held"]
    assert len(table) == 0


def test_cancelled_coroutine_leaves_the_queue() -> None:
    table = LockTable()

    async def main() -> None:
        assert table.try_acquire("a")
        first = asyncio.create_task(table.acquire_async("a"))
        second = asyncio.create_task(table.acquire_async("a"))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert waiting(table, "a") == 1
        table.release("a")
        await asyncio.wait_for(second, PATIENCE)
        table.release("a")

    asyncio.run(main())
    assert len(table) == 0


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_coroutine_cancelled_during_the_grant_passes_the_lock_on(steps: int) -> None:
    """The cancellation comes before the grant reaches the loop, after it, and after the task has been woken."""
    table = LockTable()

    async def main() -> None:
        assert table.try_acquire("a")
        first = asyncio.create_task(table.acquire_async("a"))
        second = asyncio.create_task(table.acquire_async("a"))
        await asyncio.sleep(0)
        table.release("a")
        for _ in range(steps):
            await asyncio.sleep(0)
        if first.cancel():
            with pytest.raises(asyncio.CancelledError):
                await first
        else:
            await first
            table.release("a")
        await asyncio.wait_for(second, PATIENCE)
        table.release("a")

    asyncio.run(main())
    assert len(table) == 0


def test_cancelled_wait_for_several_locks_releases_all() -> None:
    table = LockTable()

    async def main() -> None:
        assert table.try_acquire("b")

        async def both() -> None:
            async with table.hold_async(["b", "a"]):
                pytest.fail("the lock of b is taken, so `hold_async` must wait")

        task = asyncio.create_task(both())
        await asyncio.sleep(0)
        assert not table.try_acquire("a")  # taken first, since keys are locked in ascending order
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert table.try_acquire("a")

    asyncio.run(main())


def test_waiter_of_a_closed_loop_is_skipped() -> None:
    table = LockTable()
    table.acquire("a")

    async def queue_up() -> None:
        task = asyncio.ensure_future(table.acquire_async("a"))
        await asyncio.sleep(0)
        task._log_destroy_pending = False  # type: ignore[attr-defined]

    loop = asyncio.new_event_loop()
    loop.run_until_complete(queue_up())
    assert waiting(table, "a") == 1
    loop.close()
    table.release("a")
    assert table.try_acquire("a")


def test_repeated_keys_are_locked_once_and_released_on_errors() -> None:
    table = LockTable()

    def leave() -> None:
        assert len(table) == 2
        raise KeyError

    with pytest.raises(KeyError), table.hold(["b", "a", "b"]):
        leave()
    assert len(table) == 0


def test_context_that_outlives_a_block_does_not_have_its_locks() -> None:
    """A task, and a thread of a free-threaded Python, keeps the context of its starter: it would write without a lock."""
    table = LockTable()
    with table.hold(["a"]):
        context = copy_context()
        assert context.run(table.holds, "a")
    assert not context.run(table.holds, "a")

    def n_locked() -> int:
        with table.hold(["a"]):
            return len(table)

    assert context.run(n_locked) == 1


def test_opposite_orders_do_not_deadlock() -> None:
    table = LockTable()
    rounds = 200

    def take(*keys: str) -> None:
        for _ in range(rounds):
            with table.hold(keys):
                pass

    async def take_async(*keys: str) -> None:
        for _ in range(rounds):
            async with table.hold_async(keys):
                pass

    with threads(
        lambda: take("a", "b", "c"),
        lambda: take("c", "b", "a"),
        lambda: asyncio.run(take_async("b", "a", "c")),
        lambda: asyncio.run(take_async("c", "a", "b")),
    ):
        pass
    assert len(table) == 0


@pytest.mark.threads
def test_threads_and_coroutines_exclude_each_other() -> None:
    """Six threads and six coroutines of two event loops increment a counter, which has no lock of its own."""
    table = LockTable()
    count = 0
    rounds = 100

    def bump() -> None:
        nonlocal count
        before = count
        time.sleep(0)  # let other threads run
        count = before + 1

    def thread() -> None:
        for _ in range(rounds):
            with table.hold(["a"]):
                bump()

    async def coroutine() -> None:
        for _ in range(rounds):
            async with table.hold_async(["a"]):
                before = count
                await asyncio.sleep(0)
                bump_from(before)

    def bump_from(before: int) -> None:
        nonlocal count
        count = before + 1

    async def loop() -> None:
        await asyncio.gather(*(coroutine() for _ in range(3)))

    with threads(*[thread] * 6, lambda: asyncio.run(loop()), lambda: asyncio.run(loop())):
        pass
    assert count == 12 * rounds
    assert len(table) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not available")
def test_forked_child_starts_without_locks() -> None:
    key = "a shard of test_locks"

    def child() -> None:
        assert len(process_locks.table()) == 0
        assert process_locks.table().try_acquire(key)

    with process_locks.table().hold([key]):
        in_child(child)
        assert not process_locks.table().try_acquire(key)  # the lock of the parent is still held there
    assert process_locks.table().try_acquire(key)
    process_locks.table().release(key)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not available")
def test_child_forked_by_the_holder_may_leave_the_block() -> None:
    key = "another shard of test_locks"
    parent = os.getpid()

    def child() -> None:
        with process_locks.table().hold([key]):
            pass

    with process_locks.table().hold([key]):
        in_child(child)
    assert os.getpid() == parent
    assert process_locks.table().try_acquire(key)
    process_locks.table().release(key)


def test_block_that_never_began_releases_its_locks() -> None:
    """Since Python 3.14 a signal handler may raise after `__enter__` and before the block; `__exit__` is not called then."""
    table = LockTable()

    def enter_only() -> None:
        hold = table.hold(["a", "b"])
        hold.__enter__()
        assert table.holds("a") and table.holds("b") and len(table) == 2
        del hold
        assert not table.holds("a") and len(table) == 0

    copy_context().run(enter_only)


def test_block_that_never_began_releases_its_locks_from_a_cycle() -> None:
    """An exception that a program keeps may refer to its own frame; then the garbage collector finds the block."""
    table = LockTable()

    def enter_only() -> None:
        hold = table.hold(["a", "b"])
        hold.__enter__()
        cycle: list[Any] = [hold]
        cycle.append(cycle)

    copy_context().run(enter_only)
    gc.collect()
    assert len(table) == 0
