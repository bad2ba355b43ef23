# workers.py - several threads or processes that work at the same time
# SPDX-License-Identifier: MIT
"""Threads and processes for tests of concurrent writers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable

import pytest

__all__ = ["PATIENCE", "Workers", "forked", "in_processes", "in_threads"]

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

    threads = [threading.Thread(target=guarded, args=(number,), daemon=True) for number in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"a thread did not end within {PATIENCE} s"
    assert not failures, failures[0]


def forked(work: Callable[[], object]) -> int:
    """Fork a child that runs `work` and exits with status 0, or 1 if the work raises. Return its process id."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads
        pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


class Workers:
    """Forked processes. An exception in any of them fails the test."""

    def __init__(self, n: int, work: Callable[[int], None]) -> None:
        context = multiprocessing.get_context("fork")
        if os.environ.get("SHARDCODEC_TEST_SANITIZER") == "thread":
            pytest.skip("ThreadSanitizer ends a child that was forked beside threads")
        self._errors = context.SimpleQueue()
        self.members = [
            context.Process(target=self._run, args=(work, number), daemon=True) for number in range(n)
        ]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads
            for member in self.members:
                member.start()

    def _run(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            self._errors.put(f"{number}: {type(error).__name__}: {error}")

    def join(self) -> None:
        for member in self.members:
            member.join(PATIENCE)
            if member.is_alive():
                member.kill()
                pytest.fail(f"a process did not end within {PATIENCE} s")
        assert self._errors.empty(), self._errors.get()
        exit_codes = {member.exitcode for member in self.members}
        assert exit_codes <= {0, -signal.SIGKILL}, exit_codes


def in_processes(n: int, work: Callable[[int], None]) -> None:
    Workers(n, work).join()
