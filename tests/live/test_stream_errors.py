# test_stream_errors.py - a full queue, errors of the writer, and what a stream refuses
# SPDX-License-Identifier: MIT
"""Errors name the frames that are not stored."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import in_child, small_disk, zarrs_view
from live_frames import frame_of, frames_of, image_array

import shardcodec
from shardcodec import tools
from shardcodec.live.record import NAME, StreamRecord
from shardcodec.live.target import FrameTarget, seconds_of


class Gate:
    """Stops updates of streams until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.is_reached = threading.Event()
        store = FrameTarget.store

        def gated(target: FrameTarget, frames: Any, *check: Any) -> None:
            self.is_reached.set()
            assert self.is_open.wait(60)
            store(target, frames, *check)

        monkeypatch.setattr(FrameTarget, "store", gated)


def test_full_queue_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array, gate = image_array(tmp_path / "a"), Gate(monkeypatch)
    with shardcodec.stream(array, max_delay=0, queue=4 * 192) as stream:
        stream.append(frames_of(4))
        thread = threading.Thread(target=stream.append, args=(frames_of(10, first=4),))
        thread.start()
        thread.join(0.05)
        assert thread.is_alive() and stream.position == 4
        gate.is_open.set()
        thread.join(60)
    assert (array[:14] == frames_of(14)).all()


def test_full_queue_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array, gate = image_array(tmp_path / "a"), Gate(monkeypatch)
    with shardcodec.stream(array, max_delay=0, queue=4 * 192, full="raise") as stream:
        stream.append(frames_of(4))
        with pytest.raises(shardcodec.StreamFullError, match="4 frames wait") as caught:
            stream.append(frame_of(4))
        assert caught.value.numbers == (4,)
        gate.is_open.set()
        stream.flush()
        stream.append(frame_of(4))
    assert (array[:5] == frames_of(5)).all()


def test_dropped_frames_leave_their_place_empty_and_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array, gate = image_array(tmp_path / "a"), Gate(monkeypatch)
    with shardcodec.stream(array, max_delay=0, queue=4 * 192, full="drop") as stream:
        assert stream.append(frames_of(4)) == 4
        assert stream.append(frames_of(3, first=4)) == 0
        assert stream.position == 7
        gate.is_open.set()
        stream.flush()
        assert stream.append(frame_of(7)) == 1
        stream.flush()
        assert stream.stored == 8
        stats = stream.stats
    assert (stats.frames_stored, stats.frames_dropped, stats.bytes_dropped) == (5, 3, 3 * 192)
    expected = frames_of(8)
    expected[4:7] = 0
    assert (array[:8] == expected).all() and sum(1 for _ in shardcodec.tail(array)) == 8


def append_for_ever(stream: Any) -> None:
    for number in itertools.count(stream.position):
        stream.append(frame_of(number))


def full_disk(*_: Any) -> None:
    raise OSError(28, "No space left on device")


def test_error_of_the_writer_reaches_the_caller_and_no_frame_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = image_array(tmp_path / "a", 100_000)
    store, failing = FrameTarget.store, True

    def full_at_first(*arguments: Any) -> None:
        full_disk() if failing else store(*arguments)

    monkeypatch.setattr(FrameTarget, "store", full_at_first)
    with shardcodec.stream(array, max_delay=0) as stream:
        stream.append(frames_of(3))
        with pytest.raises(shardcodec.StreamError, match="3 frames from number 0 on") as caught:
            stream.flush()
        assert caught.value.numbers == (0, 1, 2) and isinstance(caught.value.__cause__, OSError)
        with pytest.raises(
            shardcodec.StreamError
        ) as caught:  # the writer tries again, and its error reaches `append`
            append_for_ever(stream)
        assert caught.value.numbers == tuple(range(stream.position))
        n = stream.position
        failing = False
        stream.flush()
        stream.append(frame_of(n))
    assert (array[: n + 1] == frames_of(n + 1)).all()


def test_full_disk_keeps_frames_until_there_is_room(tmp_path: Path) -> None:
    def append_all() -> None:
        for frame in frames_of(4000):
            stream.append(frame)
        stream.flush()

    with small_disk(tmp_path / "disk", 4 << 20):
        array = image_array(tmp_path / "disk/a", 4000, in_shard=200, compressors=None)
        ballast = tmp_path / "disk/ballast"
        ballast.write_bytes(bytes(3700 << 10))
        with shardcodec.stream(array, max_delay=60, max_frames=100) as stream:
            with pytest.raises(shardcodec.StreamError, match="No space left") as caught:
                append_all()
            n, waiting = stream.position, caught.value.numbers
            assert waiting == tuple(range(waiting[0], waiting[0] + len(waiting)))
            assert (zarrs_view(array)[: stream.stored] == frames_of(stream.stored)).all()
            ballast.unlink()
            stream.flush()
            assert stream.stored == n > 1000
        assert (zarrs_view(array)[:n] == frames_of(n)).all()
        assert tools.verify(tmp_path / "disk/a", level="decode").n_findings == 0


@pytest.mark.parametrize("call", ["append", "flush", "close"])
def test_signal_ends_a_call_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    array, gate = image_array(tmp_path / "a"), Gate(monkeypatch)
    stream: Any = shardcodec.stream(array, max_delay=0, queue=4 * 192)
    stream.append(frames_of(4))
    assert gate.is_reached.wait(60)
    timers = [threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])]
    if call == "close":  # it waits for the update that has begun
        timers.append(threading.Timer(0.1, gate.is_open.set))
    for timer in timers:
        timer.start()
    with pytest.raises(KeyboardInterrupt):
        stream.append(frame_of(4)) if call == "append" else getattr(stream, call)()
    gate.is_open.set()
    for timer in timers:
        timer.join()
    if call != "close":
        stream.flush()
        assert stream.append(frame_of(4)) == 1
        stream.close()
        assert (array[:5] == frames_of(5)).all()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shardcodec-stream")]


def test_close_names_what_was_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = image_array(tmp_path / "a")
    stream: Any = shardcodec.stream(array, max_delay=0)
    stream.append(frames_of(3))
    stream.flush()

    monkeypatch.setattr(FrameTarget, "store", full_disk)
    stream.append(frames_of(2, first=3))
    with pytest.raises(shardcodec.StreamError) as caught:
        stream.close()
    assert caught.value.numbers == (3, 4)
    stream.close()
    for call in (stream.flush, lambda: stream.append(frame_of(0))):
        with pytest.raises(ValueError, match="closed"):
            call()
    with shardcodec.stream(array, resume=True) as stream:
        assert stream.position == 3


def test_error_of_the_block_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = image_array(tmp_path / "a")

    with pytest.raises(ZeroDivisionError) as caught, shardcodec.stream(array) as stream:  # noqa: PT012
        monkeypatch.setattr(FrameTarget, "store", full_disk)
        stream.append(frame_of(0))
        raise ZeroDivisionError
    assert "frame 0 could not be stored" in caught.value.__notes__[0]


def test_error_of_the_block_comes_first_in_a_forked_child(tmp_path: Path) -> None:
    """`sys.exit` of the child once became a RuntimeError."""
    array = image_array(tmp_path / "a")

    def work() -> None:
        error = SystemExit(5)
        stream.__exit__(SystemExit, error, None)
        assert "expected the process" in error.__notes__[0]

    with shardcodec.stream(array) as stream:
        in_child(work)


def test_frames_of_other_streams_are_stored_if_one_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error of the last record was once an OSError, and the streams behind this one lost their frames."""
    arrays = [image_array(tmp_path / name) for name in "ab"]
    publish = StreamRecord.publish

    def full_at_the_end(record: StreamRecord, n_frames: int, *, is_open: bool = True) -> None:
        if not is_open and repr(record._folder).endswith("a"):
            full_disk()
        publish(record, n_frames, is_open=is_open)

    monkeypatch.setattr(StreamRecord, "publish", full_at_the_end)
    streams = shardcodec.stream(arrays, max_delay="1h")
    for stream in streams:
        stream.append(frames_of(3))
    with pytest.raises(shardcodec.StreamError, match="all frames are stored, but the end of the stream"):
        streams.close()
    for array in arrays:
        assert (array[:3] == frames_of(3)).all()


def test_removed_array_is_named(tmp_path: Path) -> None:
    """The error once spoke of another stream."""
    array = image_array(tmp_path / "a")
    stream: Any = shardcodec.stream(array, max_delay="1h")
    stream.append(frame_of(0))
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(shardcodec.StreamError, match="the array was removed"):
        stream.close()
    assert not (tmp_path / "a").exists()


def test_array_that_is_given_twice_is_refused(tmp_path: Path) -> None:
    """The second stream once took the array over, and the first one lost its frames."""
    image_array(tmp_path / "a")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for other in ("a", "link"):
        with pytest.raises(ValueError, match="expected different arrays"):
            shardcodec.stream([tmp_path / "a", tmp_path / other])
    assert not (tmp_path / "a" / NAME).exists()


def test_frames_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a")
    with shardcodec.stream(array) as stream:
        for frame, error in [
            (np.zeros((8, 12), "uint16"), ValueError),
            (np.zeros((2, 8, 12), "uint16"), ValueError),
            (np.zeros(8, "uint16"), ValueError),
            (np.zeros((12, 8), "float32"), TypeError),
            (np.zeros((12, 8), "int64"), TypeError),
        ]:
            with pytest.raises(error, match="frames: expected"):
                stream.append(frame)
        stream.append(np.ones((12, 8), "uint8"))
    assert (array[0] == 1).all() and stream.position == 1


@pytest.mark.parametrize(("arguments", "error", "match"), [
    ({"axis": 3}, ValueError, "3 axes"),
    ({"axis": (0, 0)}, ValueError, "different axes"),
    ({"axis": ()}, ValueError, "one or several"),
    ({"axis": "time"}, ValueError, "dimensions"),
    ({"axis": 1.5}, TypeError, "numbers or names"),
    ({"axis": (0, 1, 2), "start": -1}, ValueError, "start"),
    ({"max_delay": "5 parsecs"}, ValueError, "max_delay"),
    ({"max_delay": -1}, ValueError, "max_delay"),
    ({"queue": "100"}, ValueError, "queue"), ({"queue": "many"}, ValueError, "size"),
    ({"max_frames": 0}, ValueError, "max_frames"),
    ({"grow_every": 0}, ValueError, "grow_every"),
    ({"grow_every": 1, "positions": [0]}, ValueError, "grow_every"),
    ({"full": "wait"}, ValueError, "full"),
    ({"durability": "hope"}, ValueError, "durability"),
    ({"threads": 0}, ValueError, "threads"), ({"resume": 1}, TypeError, "resume"),
])  # fmt: skip
def test_wrong_arguments_are_refused(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], match: str
) -> None:
    array = image_array(tmp_path / "a")
    with pytest.raises(error, match=match):
        shardcodec.stream(array, **arguments)
    with pytest.raises(ValueError, match="at least one array"):
        shardcodec.stream([])
    assert not (tmp_path / "a" / NAME).exists()


def test_arrays_that_cannot_take_frames_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="room for frames"):
        shardcodec.stream(image_array(tmp_path / "a", 0))
    text = zarr.create_array(tmp_path / "t", shape=(4, 4), chunks=(1, 4), dtype=str)
    with pytest.raises(shardcodec.UnsupportedError, match="fixed size"):
        shardcodec.stream(text)
    with pytest.raises(FileNotFoundError):
        shardcodec.stream(tmp_path / "nothing")


def test_durations_have_units() -> None:
    assert [seconds_of(each, "x") for each in (2, 0.5, 1e-7, "50ms", "1.5 s", "2min", "100us", "3")] == [
        2,
        0.5,
        1e-7,
        0.05,
        1.5,
        120,
        pytest.approx(1e-4),
        3,
    ]


@pytest.mark.parametrize("given", [7, "x", [1]])
def test_attributes_that_are_no_object_are_named(given: Any, tmp_path: Path) -> None:
    """zarr opens such an array; the names of its dimensions and its attributes ended with an AttributeError."""
    image_array(tmp_path / "a")
    document = tmp_path / "a/zarr.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "attributes": given}))
    array = shardcodec.open_array(tmp_path / "a", mode="r+")
    for use in (
        lambda: array.attrs,
        lambda: shardcodec.stream(array),
        lambda: shardcodec.stream(array, axis="t"),
    ):
        with pytest.raises(shardcodec.SpecError, match=r"/a': attributes: expected an object, got "):
            use()
