# test_tail.py - frames are yielded as they become readable, also in another process
# SPDX-License-Identifier: MIT
"""`tail` yields each frame of a stream soon after its update, and ends with the stream."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from live_frames import follow, frame_of, frames_of, image_array

import shardcodec


@pytest.mark.slow
@pytest.mark.parametrize("grow_every", [None, 1])
def test_another_process_reads_each_frame_soon(tmp_path: Path, grow_every: int | None) -> None:
    image_array(tmp_path / "a", 0 if grow_every else 40, in_shard=20, in_chunk=4)
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("spawn").Process(target=follow, args=(str(tmp_path / "a"), theirs))
    process.start()
    theirs.close()
    try:
        assert ours.recv()[0] == "begun"
        appended = []
        with shardcodec.stream(tmp_path / "a", grow_every=grow_every, max_delay="20ms") as stream:
            for number in range(40):
                appended.append(time.time())
                stream.append(frame_of(number))
                time.sleep(0.005)
        seen = [ours.recv() for _ in range(40)]
        assert [number for number, _ in seen] == list(range(40))
        delays = sorted(at - begin for (_, at), begin in zip(seen, appended, strict=True))
        assert delays[20] < 1  # 0.03 s on an idle machine
        with pytest.raises(EOFError):  # the stream is closed, so the other process has ended
            ours.recv()
    finally:
        process.join(30)
        process.kill()
    assert process.exitcode == 0


def test_tail_waits_for_a_stream_and_ends_with_it(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a")
    followed: list[Any] = []
    thread = threading.Thread(target=lambda: followed.extend(shardcodec.tail(array, 2, poll="1ms")))
    thread.start()
    with shardcodec.stream(array, max_delay=0) as stream:
        stream.append(frames_of(6))
        stream.flush()
        stream.append(frames_of(3, first=6))
    thread.join(30)
    assert [place for place, _ in followed] == [(n,) for n in range(2, 9)]
    assert all((frame == frame_of(place[0])).all() for place, frame in followed)


def test_tail_ends_with_an_error_after_the_timeout(tmp_path: Path) -> None:
    array = image_array(tmp_path / "a")
    with pytest.raises(TimeoutError, match=r"expected frame 0 within 0\.01 s"):
        next(iter(shardcodec.tail(array, timeout="10ms", poll=0)))
    with shardcodec.stream(array, max_delay=0) as stream:
        stream.append(frame_of(0))
        stream.flush()
        frames = shardcodec.tail(array, timeout=0)
        assert next(frames)[0] == (0,)
        with pytest.raises(TimeoutError, match="1 frames are readable"):
            next(frames)
    with pytest.raises(ValueError, match="start"):
        shardcodec.tail(array, -1)
