# test_convert_sparse.py - convert of nearly empty arrays
# SPDX-License-Identifier: MIT
"""A conversion, and its estimate, cost what is stored: a grid of 10 million chunks may have 3 objects."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from conversions import opened
from helpers import quiet
from templates import written_once

from shardcodec.access.box_reader import folder_at
from shardcodec.errors import ConflictError
from shardcodec.format.chunk_keys import KeyEncoding
from shardcodec.tools import convert
from shardcodec.tools.convert.grouping import parts_of_axis
from shardcodec.tools.convert.stored_objects import StoredObjects
from shardcodec.tools.convert.zarr_source import ZarrSource
from shardcodec.tools.monitor import Monitor

SHAPE = (1000, 300)
# where the sparse source has elements: in one chunk, at an edge of the array, across several chunks
BOXES = [(slice(0, 3), slice(0, 2)), (slice(995, 1000), slice(290, 300)), (slice(498, 503), slice(7, 12))]


@written_once
def sparse(place: Path, **how: Any) -> np.ndarray[Any, Any]:
    """Write a nearly empty array of 6,000 chunks; return its elements."""
    values = np.full(SHAPE, 7, "int32")
    with quiet():
        array = zarr.create_array(
            place, **{"shape": SHAPE, "chunks": (5, 10), "dtype": "int32", "fill_value": 7} | how
        )
        for number, box in enumerate(BOXES):
            array[box] = values[box] = number + 1
    return values


WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "moved": ({}, {"shards": (500, 100)}),
    "moved to shards of one chunk": ({}, {"shards": (5, 10)}),
    "encoded": ({}, {"chunks": (10, 10), "shards": (500, 100)}),
    "encoded across chunks": ({}, {"chunks": (7, 11), "shards": (70, 110)}),
    "piece by piece": ({}, {"chunks": (100, 30), "shards": (1000, 300), "memory": 200_000, "threads": 1}),
    "of v2": ({"zarr_format": 2}, {"shards": (500, 100), "verify": "full"}),
    "of shards": ({"shards": (50, 20)}, {"shards": (500, 100), "verify": "full"}),
    "of shards, encoded": ({"shards": (50, 20)}, {"chunks": (4, 4), "shards": (40, 40), "verify": "full"}),
}


@pytest.mark.parametrize("way", WAYS)
def test_only_stored_objects_are_asked_for(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each absent chunk was opened: the same for each shard of the grid, so that 10 million of them took minutes."""
    how, wanted = WAYS[way]
    values = sparse(tmp_path / "old", **how)
    n_objects = sum(path.is_file() for path in (tmp_path / "old").rglob("[0-9]*"))
    dry = convert(tmp_path / "old", tmp_path / "new", **wanted, dry_run=True).arrays[0]
    asked: list[Any] = []
    key = ZarrSource.key
    monkeypatch.setattr(ZarrSource, "key", lambda self, coords: asked.append(coords) or key(self, coords))
    report = convert(tmp_path / "old", tmp_path / "new", **wanted)
    assert len(asked) <= 12 * n_objects
    assert report.is_complete
    assert report.n_written == report.n_shards == dry.n_shards
    n_files = sum(path.is_file() for path in (tmp_path / "new/c").rglob("*"))
    # "250 shards written" was said where two were
    assert report.n_written - report.n_empty == n_files and f"\n{n_files} shard" in str(report)
    assert (opened(tmp_path / "new")[...] == values).all()
    assert dry.cost is not None and dry.cost.read_nbytes is not None
    assert n_files <= dry.cost.n_files == dry.cost.n_writes <= 60
    assert dry.cost.n_reads <= 8 * n_objects
    assert dry.cost.read_nbytes <= 8 * sum(
        path.stat().st_size for path in (tmp_path / "old").rglob("[0-9]*") if path.is_file()
    )


def test_array_that_zarr_decodes_reads_what_is_stored(tmp_path: Path) -> None:
    """zarr takes some hundred microseconds for each absent chunk."""
    numcodecs = pytest.importorskip("zarr.codecs.numcodecs")
    with quiet():
        values = sparse(tmp_path / "old", compressors=[numcodecs.BZ2(level=1)])
        report = convert(tmp_path / "old", tmp_path / "new", shards=(500, 100), verify="full")
    assert report.arrays[0].method == "encode"
    assert (opened(tmp_path / "new")[...] == values).all()


def test_object_that_appears_during_a_job_is_a_change(tmp_path: Path) -> None:
    """The listing of the beginning does not hide it: the objects are listed again before the metadata are written."""
    sparse(tmp_path / "old")

    class Late(Monitor):
        """A monitor that writes to the source once the work has begun."""

        is_due = False

        def start(self, what: str, total: int) -> None:
            self.is_due = True

        def advance(self, n: int) -> None:
            pass

        def check(self) -> None:
            if self.is_due:
                self.is_due = False
                with quiet():
                    zarr.open_array(tmp_path / "old", mode="r+")[600:605] = 3

    with pytest.raises(ConflictError, match="has changed since"):
        convert(
            tmp_path / "old",
            tmp_path / "new",
            shards=(500, 100),
            job=tmp_path / "job.json",
            monitor=Late(),
        )


@pytest.mark.parametrize(("size", "box"), [((5, 10), (20, 20)), ((5, 10), (3, 7)), ((50, 20), (7, 300))])
def test_boxes_that_stored_objects_touch(size: Any, box: Any, tmp_path: Path) -> None:
    """`touched` names each box with an element of an existing object, and no other."""
    sparse(tmp_path, chunks=size)
    stored = StoredObjects(folder_at(tmp_path, ""), KeyEncoding(True, "/"), SHAPE, size)
    assert stored.coords is not None
    is_stored = np.zeros(SHAPE, bool)
    for i, j in stored.coords.tolist():
        is_stored[i * size[0] : (i + 1) * size[0], j * size[1] : (j + 1) * size[1]] = True
    assert is_stored.sum() < 0.02 * is_stored.size
    wanted = {
        (i, j)
        for i, j in itertools.product(*(range(-(-n // k)) for n, k in zip(SHAPE, box, strict=True)))
        if is_stored[i * box[0] : (i + 1) * box[0], j * box[1] : (j + 1) * box[1]].any()
    }
    touched = stored.touched(box)
    assert touched is not None
    assert set(map(tuple, touched.tolist())) == wanted


def test_dense_and_small_arrays_are_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of a full array would cost more than it saves, so it ends early."""
    monkeypatch.setattr(sys.modules[StoredObjects.__module__], "MAX_LISTED", 100)
    keys = KeyEncoding(True, "/")
    with quiet():
        zarr.create_array(tmp_path, shape=(400,), chunks=(2,), dtype="i4")[:] = 1
    assert StoredObjects(folder_at(tmp_path, ""), keys, (400,), (2,)).coords is None
    assert StoredObjects(folder_at(tmp_path, ""), keys, (60,), (2,)).coords is None


def test_parts_of_an_axis() -> None:
    """They are those of a loop over groups, and over steps in each group."""
    for n, group, step in itertools.product((1, 9, 10, 31), (1, 4, 10, 50), (1, 3, 4, 50)):
        low, high = parts_of_axis(n, group, step)
        wanted = [
            (at, min(n, start + group, at + step))
            for start in range(0, n, group)
            for at in range(start, min(n, start + group), step)
        ]
        assert list(zip(low.tolist(), high.tolist(), strict=True)) == wanted
