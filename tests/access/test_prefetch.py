# test_prefetch.py - inner chunks that are read ahead
# SPDX-License-Identifier: MIT
"""`Array.prefetch`: a later read decodes nothing, closing ends it, and errors come to the one who waits."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import random_array
from zarr.codecs import BloscCodec, ZstdCodec

import shardcodec
from shardcodec.access.prefetch import chunks_of_boxes

VALUES = random_array((40, 30), "int32")
BOXES = [(3, 4), (17, 0), (30, 21)]
SHAPE = (7, 9)


def new_array(folder: Path, codec: Any = None, **arguments: Any) -> Any:
    zarr.create_array(
        folder, data=VALUES, shards=(20, 15), chunks=(5, 5), compressors=codec or ZstdCodec(level=1)
    )
    cache = shardcodec.IndexCache(1 << 20, max_chunk_bytes=1 << 20, _grain_ns=0)
    return shardcodec.open_array(folder, index_cache=cache, **arguments)


def expected() -> np.ndarray[Any, Any]:
    return np.stack([VALUES[row : row + SHAPE[0], column : column + SHAPE[1]] for row, column in BOXES])


@pytest.mark.parametrize("codec", [ZstdCodec(level=1), BloscCodec(cname="lz4")])
def test_a_read_after_it_decodes_nothing(tmp_path: Path, codec: Any) -> None:
    array = new_array(tmp_path / "a.zarr", codec)
    array.prefetch(BOXES, SHAPE).wait()
    before = shardcodec.stats()
    np.testing.assert_array_equal(array.read_boxes(BOXES, SHAPE), expected())
    after = shardcodec.stats()
    assert after["chunks_decoded"] == before["chunks_decoded"]
    assert after["chunk_hits"] > before["chunk_hits"]


def test_boxes_of_several_shapes_and_none(tmp_path: Path) -> None:
    array = new_array(tmp_path / "a.zarr")
    array.prefetch(BOXES, [(2, 3), (0, 4), (7, 9)]).wait()
    array.prefetch([], SHAPE).wait()
    assert array._index_cache.info()["chunks"]["n_chunks"] == 2 * 1 + 3 * 2 - 2


@pytest.mark.parametrize(
    ("begin", "count"), [([(3, 4), (3, 5), (0, 0)], (7, 9)), ([(3, 4)], (1, 1)), ([(3, 4)], (0, 1))]
)
def test_positions_are_those_that_the_boxes_touch_each_once(begin: Any, count: Any) -> None:
    touched = {
        (row // 5, column // 5)
        for first_row, first_column in begin
        for row in range(first_row, first_row + count[0])
        for column in range(first_column, first_column + count[1])
    }
    found = chunks_of_boxes(np.array(begin), np.array(count), (5, 5)).tolist()
    assert len(found) == len(touched)
    assert {tuple(position) for position in found} == touched


def test_closing_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = new_array(tmp_path / "a.zarr")
    monkeypatch.setattr("shardcodec.access.prefetch.GROUP_NBYTES", 1)
    slow, read = threading.Event(), array.read_boxes
    monkeypatch.setattr(array, "read_boxes", lambda *args: (slow.set(), time.sleep(0.05), read(*args)))
    with array.prefetch([(0, 0)], (40, 30)):
        assert slow.wait(10)
    assert array._index_cache.info()["chunks"]["n_chunks"] < 48
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shardcodec-prefetch")]


def test_damage_is_told_to_who_waits(tmp_path: Path) -> None:
    array = new_array(tmp_path / "a.zarr")
    path = tmp_path / "a.zarr/c/0/0"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    ahead = array.prefetch([(0, 0)], (3, 3))
    with pytest.raises(shardcodec.ChecksumError, match="c/0/0"):
        ahead.wait()
    ahead.close()
    ahead.close()


def test_who_waits_goes_on_after_closing(tmp_path: Path) -> None:
    array = new_array(tmp_path / "a.zarr")
    ahead = array.prefetch([(0, 0)], (40, 30))
    ahead.close()
    ahead.wait()


def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    array = new_array(tmp_path / "a.zarr")
    array.prefetch([(0, 0)], (1, 1))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("shardcodec-prefetch")]
    with pytest.raises(IndexError, match="reaches outside"):
        array.prefetch([(39, 0)], (2, 2))
    with pytest.raises(ValueError, match="cache"):
        shardcodec.open_array(tmp_path / "a.zarr").prefetch(BOXES, SHAPE)
