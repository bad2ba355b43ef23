# test_handler_writes.py - a signal handler writes into the shard that the interrupted statement writes
# SPDX-License-Identifier: MIT
"""A checkpoint at SIGTERM waited 60 s for the lock of its own thread; in a store without locks one of the two writes was lost."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import run_checked
from interrupts import Points, ends
from zarr.storage import MemoryStore, ObjectStore

import shardcodec
from shardcodec.access import array_write
from shardcodec.statistics import Statistics
from shardcodec.storage import process_locks


def new_handle(kind: str, folder: Path) -> Any:
    store: Any = str(folder / "a")
    if kind == "obstore":
        obstore = pytest.importorskip("obstore")
        store = ObjectStore(obstore.store.MemoryStore())
    elif kind == "memory":
        store = MemoryStore()
    zarr.create_array(store, shape=(64, 64), chunks=(8, 8), shards=(64, 64), dtype="int32")
    handle = shardcodec.open_array(store, mode="r+")
    handle[:8, :8] = 1
    return handle


def interrupt_write(monkeypatch: pytest.MonkeyPatch, handler: Callable[[], object]) -> None:
    """Call a handler once, when a write holds its locks and knows the old object, in the thread of the write."""
    write_objects, is_over = array_write.write_objects, False

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        nonlocal is_over
        if not is_over:
            is_over = True
            handler()
        return write_objects(*arguments, **keywords)

    monkeypatch.setattr(array_write, "write_objects", interrupted)


@pytest.mark.parametrize("locking", [None, "thread"])
@pytest.mark.parametrize("kind", ["files", "memory", "obstore"])
def test_write_in_a_handler_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, locking: Any
) -> None:
    handle, errors = new_handle(kind, tmp_path), []

    def handler() -> None:
        begin = time.monotonic()
        with pytest.raises(shardcodec.LockError, match="signal handler") as caught:
            handle[8:16, :8] = 5
        errors.append((caught.value.shard is not None, time.monotonic() - begin < 5))

    interrupt_write(monkeypatch, handler)
    with shardcodec.options(locking=locking):
        handle[:8, :8] = 2
        assert errors == [(True, True)]
        handle[8:16, :8] = 7
    assert handle[0, 0] == 2 and handle[8, 0] == 7


def test_write_in_a_handler_into_another_shard_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zarr.create_array(tmp_path / "b", shape=(16, 8), chunks=(8, 8), shards=(8, 8), dtype="int32")
    handle = shardcodec.open_array(tmp_path / "b", mode="r+")

    def handler() -> None:
        handle[8:] = 5

    interrupt_write(monkeypatch, handler)
    handle[:8] = 2
    assert (handle[:8] == 2).all() and (handle[8:] == 5).all()


def test_wait_in_a_handler_for_a_lock_that_the_interrupted_call_waits_for_is_refused() -> None:
    """The interrupted call would get the lock first, and cannot go on: the handler waited for ever."""
    table, errors = process_locks.LockTable(), []
    table.acquire("a")

    def handle(*_: Any) -> None:
        try:
            table.acquire("a")
        except shardcodec.LockError as error:
            errors.append(error.shard)

    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, handle)

    def interrupt_and_release() -> None:
        while not table.n_waiting("a"):
            time.sleep(0.01)
        time.sleep(0.05)
        signal.pthread_kill(main, signal.SIGUSR1)
        deadline = time.monotonic() + 30
        while not errors and time.monotonic() < deadline:
            time.sleep(0.01)
        table.release("a")

    thread = threading.Thread(target=interrupt_and_release)
    thread.start()
    try:
        table.acquire("a")
    finally:
        signal.signal(signal.SIGUSR1, before)
        thread.join(60)
    assert errors == ["a"]
    table.release("a")


@pytest.mark.parametrize("row", [4, 8], ids=["same shard", "another shard"])
@pytest.mark.parametrize("is_first", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_handler_at_each_point_of_a_buffered_write(tmp_path: Path, is_first: bool, row: int) -> None:
    """In a block of `group_writes` the handler waited for ever for the lock or a mutex of its own thread, or its write was lost."""
    path, refused = tmp_path / "a", (shardcodec.LockError, RuntimeError)
    zarr.create_array(path, shape=(16, 8), chunks=(4, 4), shards=(8, 8), dtype="int32")
    handle = shardcodec.open_array(path, mode="r+")
    kinds = set()
    for number in itertools.count(1):
        stored = np.zeros((16, 8), "int32")
        handle[...] = stored
        done: list[bool] = []

        def handler(done: list[bool] = done) -> None:
            try:
                handle[row : row + 2, :3] = 5
                done.append(True)
            except refused as error:
                done.append("signal handler" not in str(error))

        points = Points(number, handler)

        def work(points: Points = points) -> None:
            with shardcodec.group_writes():
                if not is_first:
                    handle[:2, :3] = 1
                with points:
                    handle[2:4, :3] = 2

        assert ends(work) == [None]
        stored[:2, :3], stored[2:4, :3], stored[row : row + 2, :3] = (
            0 if is_first else 1,
            2,
            5 * (True in done),
        )
        assert (handle[...] == stored).all(), f"{number}: {done}"
        kinds |= set(done)
        if not points.is_reached:
            break
    assert kinds == {True, False} and number > 100


@pytest.mark.parametrize("is_buffered", [False, True])
def test_handler_with_a_block_at_each_point_of_a_block(tmp_path: Path, is_buffered: bool) -> None:
    """Between the lines that begin or end a block, the end of the block of a handler waited for ever on zarr's event loop.

    Within a small buffered write it waited there for the lock of this write.
    """
    handle, done = new_handle("memory", tmp_path), set()

    def handler() -> None:
        try:
            with shardcodec.group_writes():
                handle[8:16, :8] = 5
            done.add("stored")
        except (shardcodec.LockError, RuntimeError) as error:
            shard = getattr(error, "shard", "")  # None would be a LockError that names no shard
            done.add(
                type(error).__name__ if "signal handler" in str(error) and shard is not None else repr(error)
            )

    for number in itertools.count(1, 3):
        points = Points(number, handler)
        handle[...] = 0

        def work(points: Points = points) -> None:
            with shardcodec.group_writes() if is_buffered else points:
                if is_buffered:
                    handle[:4, :8] = 2
                with points if is_buffered else shardcodec.group_writes():
                    handle[4:8, :8] = 2

        assert ends(work) == [None]
        assert (handle[4 * (not is_buffered) : 8, :8] == 2).all()
        if not points.is_reached:
            break
    assert done == {"stored", "RuntimeError", "LockError"}


def test_generator_with_a_block_closed_at_each_point_of_a_buffered_write(tmp_path: Path) -> None:
    """The garbage collector closed it there: the end of its block waited for ever for the lock of the write."""
    handle = new_handle("memory", tmp_path)

    def entering() -> Iterator[None]:
        with shardcodec.group_writes():
            yield

    for number in itertools.count(1, 3):
        handle[...] = 0
        generator = entering()
        next(generator)
        points = Points(number, generator.close)

        def work(points: Points = points) -> None:
            handle[:4, :8] = 2
            with points:
                handle[4:8, :8] = 2

        assert ends(work) == [None]
        generator.close()
        with shardcodec.group_writes():
            pass
        assert (handle[:8, :8] == 2).all(), number
        if not points.is_reached:
            break


@pytest.mark.parametrize("kind", ["files", "obstore"])
def test_handler_at_each_point_of_a_write_into_another_array(tmp_path: Path, kind: str) -> None:
    """Where the interrupted write dropped the old index from the cache, the handler waited for ever for the mutex of the cache."""
    one, other = new_handle(kind, tmp_path / "1"), new_handle(kind, tmp_path / "2")

    def handler() -> None:
        other[8:16, :8] += 1

    for number in itertools.count(1):
        points = Points(number, handler)

        def work(points: Points = points, number: int = number) -> None:
            with points:
                one[:8, :8] = number

        assert ends(work) == [None] and one[0, 0] == number
        if not points.is_reached:
            break
    assert number > 100 and (other[8:16, :8] == number - 1).all()


def test_handler_at_each_point_of_a_count() -> None:
    """A handler whose write was counted waited for ever for the mutex of the counters."""
    counters = Statistics()
    for number in itertools.count(1):
        points = Points(number, lambda: (counters.fallback("a"), counters.refused("a", "b"), counters()))

        def work(points: Points = points) -> None:
            with points:
                counters.fallback("a")
                counters.refused("a", "b")

        assert ends(work) == [None]
        if not points.is_reached:
            break
    found = counters()
    assert found["fallbacks"] == {"a": 2 * number - 1} and found["strategy_refused"] == {
        "a on b": 2 * number - 1
    }


@pytest.mark.parametrize("kind", ["bytes", "file", "store"])
def test_handler_at_each_point_of_a_write_with_the_same_writer(tmp_path: Path, kind: str) -> None:
    """A handler that wrote another inner chunk of a new shard waited for ever for the mutex of the writer."""
    spec, outcomes = shardcodec.ShardSpec((4, 4), (2, 2), "uint8", 0, codecs=["bytes"]), set()
    for number in itertools.count(1):
        target: Any = {"bytes": None, "file": tmp_path / "shard", "store": MemoryStore()}[kind]
        writer, done = (
            shardcodec.ShardWriter(target, spec, **({"key": "shard"} if kind == "store" else {})),
            [],
        )

        def handler(writer: Any = writer, done: list[str] = done) -> None:
            try:
                writer.write_chunk((0, 1), np.full((2, 2), 5, "uint8"))
                done.append("stored")
            except RuntimeError as error:
                done.append("refused" if "signal handler" in str(error) else repr(error))

        points = Points(number, handler)

        def work(points: Points = points, writer: Any = writer) -> None:
            with points:
                writer.write_chunk((1, 0), np.full((2, 2), 2, "uint8"))

        assert ends(work) == [None]
        if done == ["refused"]:
            writer.write_chunk((0, 1), np.full((2, 2), 5, "uint8"))
        shard = writer.commit()
        outcomes |= set(done)
        if kind == "file":
            shard = target.read_bytes()
        if kind != "store":
            assert shardcodec.decode(shard, spec)[::2, ::2].tolist() == [
                [0, 5 * points.is_reached],
                [2, 0],
            ]
        if not points.is_reached:
            break
    assert outcomes == {"stored", "refused"}


def test_flush_in_a_handler_in_a_buffered_write_is_refused_at_once(tmp_path: Path) -> None:
    """The flush before a write that is not buffered waited on zarr's event loop for the lock of the interrupted write, for ever."""
    done = run_checked(f"""
        import faulthandler, zarr, shardcodec
        from shardcodec.access.buffer.overlay import Overlay
        faulthandler.dump_traceback_later(30, exit=True)
        path = {str(tmp_path / "a")!r}
        zarr.create_array(path, shape=(64, 64), chunks=(8, 8), shards=(64, 64), dtype="int32")
        handle, write, interrupts = shardcodec.open_array(path, mode="r+"), Overlay.write, []

        def interrupted(*arguments):
            write(*arguments)
            if interrupts:
                interrupts.pop()
                try:
                    handle[[0, 9, 11]] = 5
                except shardcodec.GroupWriteError as error:
                    print(type(error.__cause__).__name__, "signal handler" in str(error))

        Overlay.write = interrupted
        with shardcodec.group_writes():
            handle[:4, :8] = 1
            interrupts.append(1)
            handle[4:8, :8] = 2
        print(handle[:8, 0].tolist())
    """)
    assert done.stdout.splitlines() == ["LockError True", "[1, 1, 1, 1, 2, 2, 2, 2]"]


def test_options_apply_to_open_handles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handle kept the options of its opening, so that a block with fsync stored without it."""
    handle, used, write_objects = new_handle("files", tmp_path), [], array_write.write_objects

    def spy(items: Any, options: Any, *arguments: Any, **keywords: Any) -> Any:
        used.append((options.durability, options.write_strategy))
        return write_objects(items, options, *arguments, **keywords)

    monkeypatch.setattr(array_write, "write_objects", spy)
    handle[0, 0] = 1
    with shardcodec.options(durability="fsync", write_strategy="replace"):
        handle[0, 0] = 2
        inner = shardcodec.open_array(tmp_path / "a", mode="r+")
        with shardcodec.options(write_strategy="append"):
            inner[0, 0] = 3
    inner[0, 0] = np.int32(4)
    handle[0, 0] = 5
    assert used[0] == used[4] == ("rename", used[0][1])
    with shardcodec.options(threads=2):  # a block that says nothing of what the handle has from another one
        inner[0, 0] = 6
    assert used.pop() == ("fsync", "replace")
    assert used[1:4] == [("fsync", "replace"), ("fsync", "append"), ("fsync", "replace")]


def test_argument_of_a_handle_stays_in_a_block_inside_of_that_of_its_opening(tmp_path: Path) -> None:
    """The whole outer block counted as begun after the opening, and overrode the argument."""
    new_handle("files", tmp_path)
    with shardcodec.options(threads=3, durability="fsync"):
        handle = shardcodec.open_array(tmp_path / "a", mode="r+", threads=1)
        with shardcodec.options(compact=False):
            found = handle._options
            assert (found.threads, found.durability, found.compact) == (1, "fsync", False)
        with shardcodec.options(threads=2):
            assert handle._options.threads == 2
    assert handle._options.threads == 1 and handle._options.durability == "fsync"
