# test_stream_take_over.py - a stream that stalls, and goes on when another one has taken the array over
# SPDX-License-Identifier: MIT
"""The record was read before the shard was locked: a program that stalled between them wrote over frames of its successor."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore, ObjectStore

import shardcodec
from shardcodec.live.record import StreamRecord
from shardcodec.live.target import FrameTarget


def store_of_kind(kind: str, folder: Path) -> Any:
    if kind == "obstore":
        obstore = pytest.importorskip("obstore")
        return ObjectStore(obstore.store.MemoryStore())
    return str(folder / "a") if kind == "files" else MemoryStore()


def image(number: int) -> np.ndarray[Any, Any]:
    return np.full((8, 8), number, "uint16")


def new_array(store: Any, **arguments: Any) -> None:
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
    new_array(store, shape=(8, 8, 8))
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
    new_array(store, shape=(8, 8, 8))
    succeeding = obstore.store.MemoryStore()
    new_array(ObjectStore(succeeding), shape=(8, 8, 8))
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
    new_array(path, shape=(0, 8, 8))
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
