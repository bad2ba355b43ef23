# test_concurrent_calls.py - several calls at a time where the first one waits
# SPDX-License-Identifier: MIT
"""The order of results and errors does not depend on threads."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest
from interrupts import Interrupting

from shardcodec.storage import concurrent_calls
from shardcodec.storage.concurrent_calls import COSTLY_SECONDS, MAX_CALLS, call_all, call_each, finish_each


@pytest.mark.parametrize("costly", [0.0, 1e9])
@pytest.mark.parametrize("n", [0, 1, 2, 100])
def test_results_have_the_order_of_the_items(n: int, costly: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(concurrent_calls, "COSTLY_SECONDS", costly)
    assert call_each(lambda i: i * i, range(n)) == [i * i for i in range(n)]


def test_first_call_is_made_by_the_caller_and_the_others_by_threads() -> None:
    threads: set[int] = set()

    def work(number: int) -> int:
        here = threading.get_ident()
        if number == 0:
            time.sleep(COSTLY_SECONDS)
            return here
        threads.add(here)
        end = time.monotonic() + 60
        while len(threads) <= 10 and time.monotonic() < end:  # on a slow machine one starts after the other
            time.sleep(0.001)
        return here

    first, *rest = call_each(work, range(20))
    assert first == threading.get_ident() and len(set(rest)) > 10


@pytest.mark.parametrize("n_threads", [0, 3])
def test_calls_are_made_without_threads_if_the_system_refuses_them(
    n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As beyond `ulimit -u`, and in a function that runs when the interpreter ends."""
    start, left, made = threading.Thread.start, [None] * n_threads, []

    def limited(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    def work(i: int) -> int:
        made.append(i)
        return -i

    monkeypatch.setattr(threading.Thread, "start", limited)
    assert call_all(work, range(50)) == [-i for i in range(50)]
    assert sorted(made) == list(range(50))


def test_first_error_in_order_is_raised_after_all_calls_have_ended() -> None:
    begun, ended = [], []

    def work(i: int) -> None:
        begun.append(i)
        time.sleep(0.001 * (20 - i))
        ended.append(i)
        if i in (3, 7):
            raise OSError(f"item {i}")

    with pytest.raises(OSError, match="item 3"):
        call_all(work, range(20))
    assert sorted(ended) == sorted(begun) and 3 in ended


def test_no_call_is_begun_after_an_error() -> None:
    begun = []

    def work(i: int) -> None:
        begun.append(i)
        time.sleep(0.005)
        raise OSError(f"item {i}")

    with pytest.raises(OSError, match="item 0"):
        call_all(work, range(1000))
    assert len(begun) <= MAX_CALLS


def test_number_of_calls_at_a_time_is_limited() -> None:
    lock = threading.Lock()
    now = most = 0

    def work(_: int) -> None:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        time.sleep(0.005)
        with lock:
            now -= 1

    call_all(work, range(4 * MAX_CALLS))
    assert 1 < most <= MAX_CALLS


# ---- Ctrl-C


def test_interrupt_waits_for_the_calls_that_have_begun() -> None:
    """The caller then releases what they have taken. After an interrupt `Thread.join` of Python 3.11 does not wait again."""
    with Interrupting() as work:
        with pytest.raises(KeyboardInterrupt):
            call_all(work, range(5))
        assert sorted(work.ended) == sorted(work.begun)


def test_interrupt_comes_before_other_errors() -> None:
    both = threading.Barrier(2, timeout=60)

    def work(i: int) -> None:
        both.wait()
        raise KeyboardInterrupt if i else OSError("a file")

    with pytest.raises(KeyboardInterrupt):
        call_all(work, range(2))


@pytest.fixture
def raises_on_sigint() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also if the tests run in the background of a shell, which ignores the signal."""
    old = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, old)


@pytest.mark.usefixtures("raises_on_sigint")
@pytest.mark.parametrize("waits", [False, True])
def test_interrupt_does_not_stop_finish_each(waits: bool) -> None:
    ended: set[int] = set()

    def work(i: int) -> None:
        if i == 1 and 1 not in ended:
            ended.add(i)
            signal.raise_signal(signal.SIGINT)
        ended.add(i)

    with pytest.raises(KeyboardInterrupt):
        finish_each(work, range(5), waits=waits)
    assert ended == set(range(5))
