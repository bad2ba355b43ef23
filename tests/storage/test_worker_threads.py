# test_worker_threads.py - threads that end with their block
# SPDX-License-Identifier: MIT
"""No thread works after the block that has started it, whatever ended the block."""

from __future__ import annotations

import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import files_below, run_checked

from shardcodec import tools
from shardcodec.storage.worker_threads import WorkerThreads
from shardcodec.tools.monitor import Monitor
from shardcodec.tools.shard_threads import in_order

NAME = "shardcodec-"


def working() -> list[str]:
    return [one.name for one in threading.enumerate() if one.name.startswith(NAME)]


@pytest.fixture
def interrupted_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Ctrl-C come while a thread is started: the thread runs, and its starter does not learn of it."""
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if thread.name.startswith(NAME):
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    yield
    monkeypatch.undo()


class Slow:
    """An array whose elements come late."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def __getitem__(self, box: Any) -> Any:
        time.sleep(0.2)
        return self.values[box]


def test_calls_are_made_in_threads() -> None:
    here = threading.get_ident()
    with WorkerThreads[int](3, NAME) as threads:
        calls = [
            threads.submit(lambda i: i * i if threading.get_ident() != here else -1, i) for i in range(20)
        ]
        assert [threads.wait(one).result() for one in calls] == [i * i for i in range(20)]
        assert len(working()) == 3
        failing = threads.submit(int, "x")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="invalid literal"):
            threads.wait(failing).result()
    assert not working()


def test_next_finished_returns_each_call_once() -> None:
    with WorkerThreads[int](2, NAME) as threads:
        for i in range(10):
            threads.submit(int, i)
        found = [threads.next_finished() for _ in range(10)]
        assert sorted(one.result() for one in found if one is not None) == list(range(10))
        assert threads.next_finished(timeout=0.001) is None


def test_calls_that_have_not_begun_are_dropped_and_those_that_have_are_finished() -> None:
    begun, go = threading.Event(), threading.Event()
    made: list[int] = []

    def call(i: int) -> None:
        begun.set()
        assert go.wait(10)
        made.append(i)

    with pytest.raises(ZeroDivisionError), WorkerThreads[None](1, NAME) as threads:  # noqa: PT012
        calls = [threads.submit(call, i) for i in range(5)]
        assert begun.wait(10)
        assert not calls[0].cancel() and calls[1].cancel() and not calls[1].cancel()
        threading.Timer(0.05, go.set).start()
        1 / 0  # noqa: B018
    assert made == [0] and not working()


def test_interrupts_do_not_end_the_wait_for_the_last_call() -> None:
    """A second Ctrl-C must not let the threads go on either."""
    made: list[int] = []

    def call() -> None:
        time.sleep(0.3)
        made.append(1)

    def interrupt(number: int, frame: Any) -> None:
        if not made:  # a later one would end the process of the tests: the wait is over (this has happened)
            raise KeyboardInterrupt

    old = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt), WorkerThreads[None](1, NAME) as threads:  # noqa: PT012
            last = threads.submit(call)
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            threads.wait(last)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert made == [1] and not working()


def test_interrupted_start_leaves_no_thread(interrupted_start: None) -> None:
    made: list[float] = []

    def call() -> None:
        time.sleep(0.1)
        made.append(time.monotonic())

    with pytest.raises(KeyboardInterrupt), WorkerThreads[None](2, NAME) as threads:
        threads.submit(call)
    assert all(one < time.monotonic() for one in made)
    assert not working()


def test_without_threads_the_caller_makes_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with WorkerThreads[int](2, NAME) as threads:
        assert threads.submit(threading.get_ident).result() == threading.get_ident()
        assert threads.next_finished() is not None
    assert list(in_order(range(9), str, 3, Monitor())) == [*"012345678"]


def test_no_thread_of_a_conversion_that_was_interrupted_writes_to_the_next_one(
    tmp_path: Path, interrupted_start: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 30, 10: the forgotten thread put its shard, with the old codec, into the new, complete hierarchy."""
    values = np.arange(1, 1601, dtype="int32").reshape(40, 40)
    shapes: dict[str, Any] = {"chunks": (10, 10), "shards": (40, 40)}
    with pytest.raises(KeyboardInterrupt):
        tools.convert(Slow(values), tmp_path / "new.zarr", codecs=["gzip"], **shapes)
    # the thread has finished its shard
    assert not working() and files_below(tmp_path / "new.zarr") == [".shardcodec-job", "c/0/0"]
    monkeypatch.undo()
    with pytest.raises(FileExistsError, match="another conversion writes there"):
        tools.convert(values, tmp_path / "new.zarr", codecs=["zstd"], **shapes)
    shutil.rmtree(tmp_path / "new.zarr")
    assert tools.convert(values, tmp_path / "new.zarr", codecs=["zstd"], **shapes).is_complete
    assert not tools.verify(tmp_path / "new.zarr", level="decode").n_findings


def test_job_that_was_interrupted_at_a_start_is_resumed(
    tmp_path: Path, interrupted_start: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs were given up although a thread still wrote: the files of the job were gone, and its shard was there."""
    values = np.arange(1, 1601, dtype="int32").reshape(40, 40)
    zarr.create_array(tmp_path / "old.zarr", data=values, chunks=(10, 10))
    how: dict[str, Any] = {"shards": (20, 40), "job": tmp_path / "job"}
    with pytest.raises(KeyboardInterrupt):
        tools.convert(tmp_path / "old.zarr", tmp_path / "new.zarr", **how)
    assert not working() and (tmp_path / "job").exists()
    monkeypatch.undo()
    report = tools.convert(tmp_path / "old.zarr", tmp_path / "new.zarr", resume=True, **how)
    assert report.is_complete
    assert not tools.verify(tmp_path / "new.zarr", against=tmp_path / "old.zarr").n_findings


def test_error_of_a_caller_ends_the_threads_before_it_is_seen(tmp_path: Path) -> None:
    """The traceback keeps a generator alive; the threads of `verify` went on until it was forgotten."""
    zarr.create_array(tmp_path / "a.zarr", shape=(40,), chunks=(1,), shards=(2,), dtype="i4", fill_value=1)[
        ...
    ] = 0

    class Interrupting(Monitor):
        def advance(self, n: int = 1) -> None:
            raise KeyboardInterrupt

    for tool in (tools.verify, tools.inspect):
        with pytest.raises(KeyboardInterrupt) as error:
            tool(tmp_path / "a.zarr", threads=3, monitor=Interrupting())
        assert error.tb is not None and not working()


def test_looks_at_the_callers_of_threads_do_not_stop_the_process() -> None:
    """Python 3.11.7 stood still when garbage was collected within `sys._current_frames` while another thread was started.

    Arrays call it while they wait for a thread, so 64 threads that wrote one shard of an object store waited for ever, about once in
    10,000 times. Here each look collects garbage, whose finalizers give the GIL to threads that start threads.
    """
    run_checked(
        """
        import faulthandler, gc, threading, time
        from shardcodec.compat import Caller

        faulthandler.dump_traceback_later(30, exit=True)

        class Garbage:
            def __init__(self):
                self.cycle = self

            def __del__(self):
                if is_looking:
                    time.sleep(0.001)

        def start():
            while time.monotonic() < end:
                thread = threading.Thread(target=int)
                thread.start()
                thread.join()

        is_looking = False
        n_looks = 0
        end = time.monotonic() + 1
        gc.freeze()
        gc.set_threshold(5)
        threads = [threading.Thread(target=start) for _ in range(2)]
        for thread in threads:
            thread.start()
        while time.monotonic() < end:
            look = Caller(None).is_waiting
            gc.disable()
            garbage = [Garbage() for _ in range(10)]
            del garbage
            is_looking = True
            gc.enable()
            assert not look()
            is_looking = False
            gc.collect(0)
            n_looks += 1
        for thread in threads:
            thread.join()
        assert n_looks > 10, n_looks
        """
    )
