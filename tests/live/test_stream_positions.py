# test_stream_positions.py - iterators of positions that fail, wait, or are used by several threads
# SPDX-License-Identifier: MIT
"""An error of the user's `positions` is raised by `append`, whose frame is not taken; the same frame, given again, has its place.

It ended the order: the error closed the `islice` around the iterator, so that all later frames were refused, and while another thread
stored frames the error was lost. The iterator ran under the mutex of the writers: one that waits stopped all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import shardcodec
from shardcodec.live.record import NAME

PLACES = [3, 1, 0, 2, 5, 4, 8, 7, 6, 11, 10, 9]


class Failing:
    """Positions whose iterator raises once before each of some frames, and can go on."""

    def __init__(self, *fails: int) -> None:
        self.fails = set(fails)
        self.number = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> int:
        if self.number in self.fails:
            self.fails.remove(self.number)
            raise OSError(f"stage {self.number}")
        self.number += 1
        return PLACES[self.number - 1]


def new_array(folder: Path, name: str = "a") -> Any:
    return zarr.create_array(folder / name, shape=(12, 4), chunks=(1, 4), shards=(6, 4), dtype="int64")


def expected(values: list[int]) -> list[int]:
    found = [0] * 12
    for place, value in zip(PLACES, values, strict=False):
        found[place] = value
    return found


@pytest.mark.parametrize("delay", [0, "60s"])
def test_frame_after_an_error_of_the_positions_has_its_place(tmp_path: Path, delay: Any) -> None:
    array = new_array(tmp_path)
    with shardcodec.stream(array, positions=Failing(0, 2, 3, 7), max_delay=delay) as frames:
        told = []
        for value in range(1, 13):
            while frames.position < value:
                try:
                    frames.append(np.full(4, value))
                except OSError as error:
                    told.append(str(error))
        assert told == ["stage 0", "stage 2", "stage 3", "stage 7"]
    assert array[:, 0].tolist() == expected(list(range(1, 13)))


def test_error_in_the_positions_of_stored_frames_comes_before_anything_is_changed(tmp_path: Path) -> None:
    array = new_array(tmp_path)
    with shardcodec.stream(array, positions=PLACES) as frames:
        frames.append(np.full((5, 4), 1))
    before = (tmp_path / "a" / NAME).read_bytes()
    with pytest.raises(OSError, match="stage 2"):
        shardcodec.stream(array, positions=Failing(2), resume=True)
    assert (tmp_path / "a" / NAME).read_bytes() == before
    positions = Failing()
    with shardcodec.stream(array, positions=positions, resume=True) as frames:
        assert positions.number == 5  # those of the stored frames are left out at once
        frames.append(np.full((7, 4), 2))
    assert array[:, 0].tolist() == expected([1] * 5 + [2] * 7)


def test_iterator_that_waits_does_not_stop_the_writer(tmp_path: Path) -> None:
    may_go_on = threading.Event()

    def positions() -> Iterator[int]:
        yield 3
        frames.flush()  # it may call the stream itself
        yield 1
        assert may_go_on.wait(60)
        yield 0

    array = new_array(tmp_path)
    with shardcodec.stream(array, positions=positions(), max_delay=0) as frames:
        frames.append(np.full((2, 4), 1))
        waits = threading.Thread(target=frames.append, args=(np.full(4, 2),))
        waits.start()
        frames.flush()
        assert array[:, 0].tolist() == expected([1, 1]) and frames.stats.frames_stored == 2
        may_go_on.set()
        waits.join(60)
    assert array[:, 0].tolist() == expected([1, 1, 2])


def test_position_that_can_be_read_once_is_refused(tmp_path: Path) -> None:
    """A second attempt, while a thread stored frames, found it empty."""
    array = new_array(tmp_path)
    frames = shardcodec.stream(array, positions=[iter([3])])
    with frames, pytest.raises(IndexError, match="frame 0: expected a position inside of"):
        frames.append(np.full(4, 1))


@pytest.mark.slow
def test_streams_of_a_group_share_the_positions(tmp_path: Path) -> None:
    """Their threads ask one iterator, which is not made for that: ValueError: generator already executing."""

    def positions() -> Iterator[int]:
        for place in np.random.default_rng(0).permutation(2000).tolist():
            time.sleep(0)
            yield place

    arrays = [
        zarr.create_array(tmp_path / name, shape=(2000,), chunks=(100,), dtype="int64") for name in "ab"
    ]
    with shardcodec.stream(arrays, positions=positions()) as group:
        threads = [
            threading.Thread(target=lambda each=each: [each.append(number + 1) for number in range(1000)])
            for each in group
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    stored = np.zeros(2000, "int64")
    stored[np.random.default_rng(0).permutation(2000)[:1000]] = np.arange(1, 1001)
    assert all((array[...] == stored).all() for array in arrays)
