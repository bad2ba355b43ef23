# test_stream_interrupts.py - signal handlers at each point of the calls of a stream
# SPDX-License-Identifier: MIT
"""A handler that raises, as that of Ctrl-C, or that calls the stream itself, comes at each point of a call in turn.

Each frame that counts is then stored at its place, and no call waits for ever. A slot was freed while its frame waited, so that the next
one was copied over it; a position was used up before its frame counted; a frame that counted was not in the queue.
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import zarr
from interrupts import PACKAGE, Points, ends

import shardcodec

ORDER = [3, 1, 0, 2, 5, 4, 8, 7, 6, 11, 10, 9]
N_FRAMES = 6
OF_HANDLER = 100  # the value of the frames that a handler appends


class Stop(Exception):
    """Also the handler of a timer raises an `Exception`: `close` raised a StreamError in its place, as if the store had failed."""


def stop() -> None:
    raise Stop


def new_stream(folder: Path, **arguments: Any) -> Any:
    zarr.create_array(
        folder / "a", shape=(12, 4), chunks=(1, 4), shards=(6, 4), dtype="int64", overwrite=True
    )
    return shardcodec.stream(folder / "a", max_delay="1ms", **arguments)


def go_on(frames: Any) -> None:
    while frames.position < N_FRAMES:
        frames.append(np.full(4, frames.position + 1))
    frames.close()


def check(folder: Path, positions: list[int] | None, values: list[int]) -> None:
    expected = np.zeros(12, "int64")
    expected[(positions or list(range(12)))[: len(values)]] = values
    assert (zarr.open_array(folder / "a")[...] == expected[:, np.newaxis]).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("positions", "queue", "copy"),
    [(ORDER, "1MiB", True), (None, "1MiB", True), (None, 64, True), (ORDER, "1MiB", False)],
)
def test_append_interrupted_at_each_point(
    tmp_path: Path, positions: list[int] | None, queue: Any, copy: bool
) -> None:
    for number in itertools.count(1):
        frames = new_stream(tmp_path, positions=positions, queue=queue, copy=copy)
        frames.append(np.full(4, 1))
        points = Points(number, stop)
        try:
            with points:
                frames.append(np.full(4, 2))
        except Stop:
            pass
        assert ends(lambda frames=frames: go_on(frames)) == [None]
        check(tmp_path, positions, list(range(1, N_FRAMES + 1)))
        if not points.is_reached:
            break
    assert number > 50


# From the number of a frame to the frame: texts of fixed length that are not copied, and integers of Python in an unsigned array.
FRAMES: dict[str, tuple[str, bool, Callable[[int], Any]]] = {
    "text": ("<U4", False, lambda number: np.full(4, f"f{number}", "<U4")),
    "bytes": ("S4", False, lambda number: np.full(4, f"f{number}", "S4")),
    "python": ("uint64", True, lambda number: [(1 << 64) - 1 - number] * 4),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("positions", [None, ORDER])
@pytest.mark.parametrize("kind", FRAMES)
def test_append_of_other_elements_interrupted_at_each_point(
    tmp_path: Path, kind: str, positions: list[int] | None
) -> None:
    """Each frame that counts is stored at its place also where `append` makes other elements of it, or keeps the caller's array."""
    dtype, copy, frame = FRAMES[kind]
    for number in itertools.count(1, 3):
        how: dict[str, Any] = {"shape": (12, 4), "chunks": (1, 4), "shards": (6, 4), "dtype": dtype}
        array = zarr.create_array(tmp_path / "a", overwrite=True, **how)
        frames = shardcodec.stream(array, max_delay="1ms", copy=copy, positions=positions)
        points = Points(number, stop)
        while frames.position < N_FRAMES:
            try:
                with points if frames.position == 1 and not points.is_reached else nullcontext():
                    frames.append(frame(frames.position))
            except Stop:
                pass
        assert ends(frames.close) == [None]
        expected = np.array([frame(i) for i in range(N_FRAMES)], dtype)
        assert (array[...][(positions or list(range(12)))[:N_FRAMES]] == expected).all()
        if not points.is_reached:
            break
    assert number > 30


@pytest.mark.slow
@pytest.mark.parametrize("call", ["append", "flush", "close"])
def test_handler_calls_the_stream_at_each_point_of_append(tmp_path: Path, call: str) -> None:
    for number in itertools.count(1):
        frames = new_stream(tmp_path, positions=ORDER)
        frames.append(np.full(4, 1))
        arguments = [np.full(4, OF_HANDLER)] if call == "append" else []
        points = Points(number, lambda frames=frames, call=call, more=arguments: getattr(frames, call)(*more))
        with points:
            try:
                frames.append(np.full(4, 2))
            except ValueError:
                assert call == "close" and points.is_reached
        n = frames.position
        assert ends(frames.close) == [None]
        stored = zarr.open_array(tmp_path / "a")[:, 0][ORDER]
        if call == "append" and points.is_reached:
            assert sorted(stored[:n].tolist()) == [1, 2, OF_HANDLER]
        else:
            assert stored[:n].tolist() == [1, 2][:n] and n >= (1 if call == "close" else 2)
        assert not stored[n:].any()
        if not points.is_reached:
            break
    assert number > 50


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:coroutine")  # a coroutine that an interrupt has not let begin
@pytest.mark.parametrize("call", ["flush", "close", "__exit__"])
@pytest.mark.parametrize("n_arrays", [1, 2])
def test_flush_and_close_interrupted_at_each_point(tmp_path: Path, call: str, n_arrays: int) -> None:
    """Frames that are given up are named by the exception; a second call of `close` does what the first one has left."""
    number, step = 1, 5 if n_arrays == 1 else 31
    while True:
        paths = [tmp_path / f"{i}" for i in range(n_arrays)]
        for path in paths:
            path.mkdir(exist_ok=True)
            zarr.create_array(path / "a", shape=(12, 4), chunks=(1, 4), dtype="int64", overwrite=True)
        group = shardcodec.stream([path / "a" for path in paths], max_delay="60s")
        for frames in group:
            frames.append(np.full((3, 4), 7))
        points, notes = Points(number, stop), ""
        try:
            with points:
                getattr(group, call)(*([None] * 3 if call == "__exit__" else []))
        except Stop as error:
            notes = "\n".join(getattr(error, "__notes__", ()))
        if call == "flush" and not all(each._queue.is_closed for each in group):
            for frames in group:
                frames.append(np.full(4, 8))
        assert ends(group.close) == [None]
        for path in paths:
            stored = zarr.open_array(path / "a")[:4, 0].tolist()
            if notes and f"{path / 'a'}" in notes:
                assert "0-2" in notes or "1-2" in notes or "numbers 2" in notes
            else:
                assert stored == [7, 7, 7, 8 if call == "flush" else 0]
        for thread in threading.enumerate():
            if thread.name.startswith("shardcodec-stream"):
                thread.join(30)
                assert not thread.is_alive()
        if not points.is_reached:
            break
        number += step
    assert number > 50


def test_frame_after_a_bad_position_keeps_its_place(tmp_path: Path) -> None:
    """The bad position was used up, so that the same frame, given again, and all later ones were stored one place further."""
    frames = new_stream(tmp_path, positions=[3, 12, 5, 7])
    frames.append(np.full(4, 1))
    for _ in range(3):
        with pytest.raises(IndexError, match="frame 1"):
            frames.append(np.full(4, 2))
    assert frames.position == 1
    frames.close()
    check(tmp_path, [3], [1])


def test_interrupted_close_names_the_frames_that_are_given_up(tmp_path: Path) -> None:
    frames = new_stream(tmp_path)
    frames._writers.flush = lambda *_, **__: stop()  # type: ignore[method-assign]
    frames._queue._limits = frames._queue._limits._replace(max_delay=60)
    frames.append(np.full((3, 4), 1))
    with pytest.raises(Stop) as caught:
        frames.close()
    assert "0-2" in "".join(caught.value.__notes__)
    frames.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:coroutine")  # a coroutine that an interrupt has not let begin
@pytest.mark.parametrize("n_arrays", [1, 2])
def test_second_interrupt_at_each_point_names_the_frames_that_are_given_up(
    tmp_path: Path, n_arrays: int
) -> None:
    """A second Ctrl-C as `close` began to give up, or as the threads ended, lost the numbers of the frames."""
    for number in itertools.count(1):
        paths = [tmp_path / f"{i}" for i in range(n_arrays)]
        for path in paths:
            zarr.create_array(path, shape=(12, 4), chunks=(1, 4), dtype="int64", overwrite=True)
        group = shardcodec.stream(paths, max_delay="60s")
        points = Points(number, stop)

        def interrupted(*_: Any, points: Points = points, **__: Any) -> None:
            points.__enter__()
            stop()

        group[0]._writers.flush = interrupted
        for frames in group:
            frames.append(np.full((3, 4), 7))
        try:
            group.close()
        except Stop as error:
            notes = error.__notes__
        finally:
            points._stop()
        assert sorted(notes) == [
            f"array {path}: 3 frames were taken and are not stored, with the numbers 0-2" for path in paths
        ]
        assert ends(group.close) == [None]
        if not points.is_reached:
            break
    assert number > 30


def test_flush_of_another_thread_ends_when_close_gives_up(tmp_path: Path) -> None:
    """It waited for ever, because its frames were neither stored nor waiting any more."""
    frames = new_stream(tmp_path)
    store, is_reached, is_open = frames._queue.target.store, threading.Event(), threading.Event()

    def gated(*arguments: Any) -> None:
        is_reached.set()
        assert is_open.wait(30)
        store(*arguments)

    frames._queue.target.store = gated
    flush, frames._writers.flush = frames._writers.flush, lambda *_, **__: stop()
    frames.append(np.full(4, 1))
    assert is_reached.wait(30)
    frames.append(np.full((2, 4), 2))
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(ends(lambda: flush(frames._queue))))
    thread.start()
    while not frames._queue.flush_until:
        time.sleep(0.01)
    threading.Timer(0.1, is_open.set).start()
    with pytest.raises(Stop) as caught:
        frames.close()
    assert "1-2" in "".join(caught.value.__notes__)
    thread.join(60)
    assert isinstance(found[0], shardcodec.StreamError) and found[0].numbers == (1, 2)


def test_exception_of_a_handler_is_raised_also_if_a_thread_makes_a_change_meanwhile(tmp_path: Path) -> None:
    """The call was repeated, as after an error of a torn read, and the exception of a timer was lost."""
    frames = new_stream(tmp_path)
    writers, n_calls = frames._writers, itertools.count()

    def prepare() -> tuple[None, list[Any]]:
        if not next(n_calls):
            with writers._mutex:  # a change of another thread
                pass
            stop()
        return None, []

    with pytest.raises(Stop):
        writers._change(prepare)
    frames.close()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
@pytest.mark.filterwarnings("ignore:coroutine")  # a coroutine that an interrupt has not let begin
def test_second_signal_while_close_gives_up(tmp_path: Path) -> None:
    """The threads had ended and the stream was open, so that the next `close` waited for ever."""
    chance, raised, is_on = random.Random(0), 0, False

    def handle(_: int, frame: FrameType | None) -> None:
        nonlocal raised
        while frame is not None and not frame.f_code.co_filename.startswith(PACKAGE):
            frame = frame.f_back
        if is_on and frame is not None:  # in `close`, or in what it has called
            raised += 1
            if raised < 2:
                signal.setitimer(signal.ITIMER_REAL, chance.choice([2e-6, 2e-5, 2e-4]))
            raise Stop

    before, n_twice = signal.signal(signal.SIGALRM, handle), 0
    try:
        for _ in range(150):
            array = zarr.create_array(
                tmp_path / "a", shape=(12, 4), chunks=(1, 4), dtype="int64", overwrite=True
            )
            frames = shardcodec.stream(array, max_delay="60s")
            frames.append(np.full((3, 4), 7))
            raised, notes = 0, ""
            try:
                is_on = True
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 1e-3))
                frames.close()
            except Stop as error:
                notes = str(getattr(error, "__notes__", ()))
            is_on = False
            given_up = set(frames._queue.given_up)
            assert ("numbers 0-2" in notes) == (given_up == {0, 1, 2})
            n_twice += raised == 2
            assert ends(frames.close) == [None]
            with pytest.raises(ValueError, match="closed"):
                frames.append(np.full(4, 8))
    finally:
        is_on = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert n_twice > 10


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_signals_while_the_caller_stores_the_frames_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system starts no thread, an interrupted update lost its frames, or left the mutex locked for ever."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    n, chance = 400, random.Random(0)
    array = zarr.create_array(tmp_path / "a", shape=(n, 4), chunks=(1, 4), shards=(50, 4), dtype="int64")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        frames = shardcodec.stream(array, max_delay=0, positions=range(n))
    before = signal.signal(signal.SIGALRM, lambda *_: stop())
    n_stops = 0
    try:
        while (number := frames.position) < n:
            try:
                signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 2e-3))
                frames.append(np.full(4, number + 1))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Stop:
                n_stops += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    frames.close()
    assert n_stops > 20 and (array[...] == np.arange(1, n + 1)[:, np.newaxis]).all()


def test_interrupted_begin_leaves_no_threads(tmp_path: Path) -> None:
    """The threads were not ended: the caller had no stream that could be closed."""
    zarr.create_array(tmp_path / "a", shape=(12, 4), chunks=(1, 4), shards=(6, 4), dtype="int64")
    module = Path(PACKAGE, "live", "writers.py")
    n_left = []
    for number in itertools.count(1):
        points = Points(number, stop, str(module))
        try:
            with points:
                frames = shardcodec.stream(tmp_path / "a", start=0)
        except Stop:
            n_left.append(
                sum(thread.name.startswith("shardcodec-stream") for thread in threading.enumerate())
            )
        else:
            frames.close()
        if not points.is_reached:
            break
    assert len(n_left) > 20 and not any(n_left), n_left
