# crew.py - several threads or processes at the same work
# SPDX-License-Identifier: MIT
"""For tests of writers at the same time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable

import pytest

__all__ = ["PATIENCE", "Crew", "forked", "in_processes", "in_threads"]

PATIENCE = 60.0


def in_threads(n: int, work: Callable[[int], None]) -> None:
    """Run `work(0)` ... `work(n - 1)` in threads that start at the same moment."""
    barrier = threading.Barrier(n)
    failures: list[BaseException] = []

    def guarded(number: int) -> None:
        try:
            barrier.wait(PATIENCE)
            work(number)
        except BaseException as error:
            failures.append(error)

    crew = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(n)]
    for thread in crew:
        thread.start()
    for thread in crew:
        thread.join(PATIENCE)
        assert not thread.is_alive(), "a thread hangs"
    assert not failures, failures[0]


def forked(work: Callable[[], object]) -> int:
    """A child that does the work and ends at once, with status 0 or, when the work raises, 1."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


class Crew:
    """Forked processes; what one of them raises fails the test."""

    def __init__(self, n: int, work: Callable[[int], None]) -> None:
        context = multiprocessing.get_context("fork")
        if os.environ.get("SHARDCODEC_TEST_SANITIZER") == "thread":
            pytest.skip("ThreadSanitizer ends a child that was forked beside threads")
        self._told = context.SimpleQueue()
        self.members = [
            context.Process(target=self._run, args=(work, number), daemon=True) for number in range(n)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads
            for member in self.members:
                member.start()

    def _run(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            self._told.put(f"{number}: {type(error).__name__}: {error}")

    def join(self) -> None:
        for member in self.members:
            member.join(PATIENCE)
            if member.is_alive():
                member.kill()
                pytest.fail("a process hangs")
        assert self._told.empty(), self._told.get()
        ends = {member.exitcode for member in self.members}
        assert ends <= {0, -signal.SIGKILL}, ends


def in_processes(n: int, work: Callable[[int], None]) -> None:
    Crew(n, work).join()
