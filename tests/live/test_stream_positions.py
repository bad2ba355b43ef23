# test_stream_positions.py - positions of the user, and streams that another one takes over
# SPDX-License-Identifier: MIT
"""An error of the user's `positions` is raised by `append`, whose frame is not taken; the same frame, given again, has its place.

It ended the order: the error closed the `islice` around the iterator, so that all later frames were refused, and while another thread
stored frames the error was lost. The iterator ran under the mutex of the writers: one that waits stopped all of them.

The record was read before the shard was locked: a program that stalled between them wrote over frames of its successor.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore, ObjectStore

import shardcodec
from shardcodec.live.record import NAME, StreamRecord
from shardcodec.live.target import FrameTarget

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


def store_of_kind(kind: str, folder: Path) -> Any:
    if kind == "obstore":
        obstore = pytest.importorskip("obstore")
        return ObjectStore(obstore.store.MemoryStore())
    return str(folder / "a") if kind == "files" else MemoryStore()


def image(number: int) -> np.ndarray[Any, Any]:
    return np.full((8, 8), number, "uint16")


def new_stack(store: Any, **arguments: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zarr.create_array(store, chunks=(1, 8, 8), shards=(4, 8, 8), dtype="uint16", **arguments)


def succeed(store: Any) -> None:
    with shardcodec.stream(store, resume=True, max_delay=0) as new:
        new.append(image(7))


@pytest.mark.filterwarnings("ignore:.*stored as a whole:RuntimeWarning")
@pytest.mark.parametrize("n_before", [0, 1])
@pytest.mark.parametrize("kind", ["files", "memory", "obstore"])
def test_stalled_stream_does_not_write_over_its_successor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, n_before: int
) -> None:
    store, is_over = store_of_kind(kind, tmp_path), False
    new_stack(store, shape=(8, 8, 8))
    old = shardcodec.stream(store, max_delay=0)
    for _ in range(n_before):
        old.append(image(1))
        old.flush()
    real_store = FrameTarget.store

    def late_store(self: FrameTarget, *arguments: Any) -> None:
        nonlocal is_over
        if not is_over:
            is_over = True
            succeed(store)
        real_store(self, *arguments)

    monkeypatch.setattr(FrameTarget, "store", late_store)
    old.append(image(1111))
    with pytest.raises(shardcodec.StreamError, match="another one has begun"):
        old.close()
    array = zarr.open_array(store)
    assert array[n_before, 0, 0] == 7 and not (array[...] == 1111).any()


@pytest.mark.filterwarnings("ignore:.*stored as a whole:RuntimeWarning")
@pytest.mark.parametrize("n_frames", [1, 4])
def test_object_is_stored_under_the_condition_of_the_record(
    monkeypatch: pytest.MonkeyPatch, n_frames: int
) -> None:
    """No lock is held on an object store: the stream stalls between its look at the record and the put, also of a whole shard."""
    obstore = pytest.importorskip("obstore")
    objects = obstore.store.MemoryStore()
    store = ObjectStore(objects)
    new_stack(store, shape=(8, 8, 8))
    succeeding = obstore.store.MemoryStore()
    new_stack(ObjectStore(succeeding), shape=(8, 8, 8))
    with shardcodec.stream(ObjectStore(succeeding)) as new:
        new.append(np.stack([image(7)] * 4))
    old, check, checks = shardcodec.stream(store), StreamRecord.check, []

    def check_and_stall(self: StreamRecord) -> None:
        check(self)
        checks.append(1)
        for key in ("c/0/0/0", "shardcodec-stream.json"):
            objects.put(key, succeeding.get(key).bytes())

    monkeypatch.setattr(StreamRecord, "check", check_and_stall)
    old.append(np.stack([image(1111)] * n_frames))
    with pytest.raises(shardcodec.StreamError, match="another one has begun"):
        old.close()
    assert len(checks) == 1 and (zarr.open_array(store)[:4] == 7).all()


def test_stalled_stream_does_not_change_the_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape would count frames that no stream has stored."""
    path = str(tmp_path / "a")
    new_stack(path, shape=(0, 8, 8))
    old = shardcodec.stream(path, grow_every=3, max_delay=0)
    real_grow = FrameTarget.grow

    def late_grow(self: FrameTarget, *arguments: Any) -> None:
        monkeypatch.setattr(FrameTarget, "grow", real_grow)
        with shardcodec.stream(path, resume=True, grow_every=3) as new:
            assert new.position == 3
        real_grow(self, 5, *arguments[1:])

    monkeypatch.setattr(FrameTarget, "grow", late_grow)
    old.append(np.stack([image(1)] * 3))
    with pytest.raises(shardcodec.StreamError, match="another one has begun"):
        old.close()
    assert zarr.open_array(path).shape == (3, 8, 8)
