# test_convert_runs.py - memory, cost and failures of a conversion, also of arrays that are nearly empty
# SPDX-License-Identifier: MIT
"""A conversion stays within its memory, says what it costs, finds what went wrong, and leaves no metadata then.

A conversion, and its estimate, cost what is stored: a grid of 10 million chunks may have 3 objects.
"""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from conversions import VALUES, hierarchy, opened, same, source
from helpers import quiet
from monitors import StopAfter
from templates import written_once

import shardcodec
from shardcodec.access.box_reader import folder_at
from shardcodec.cli.app import run
from shardcodec.errors import ConflictError
from shardcodec.format.chunk_keys import KeyEncoding
from shardcodec.options import resolve
from shardcodec.storage import lock_reach
from shardcodec.tools import convert
from shardcodec.tools.convert import intermediate_shape
from shardcodec.tools.convert.choices import Choices
from shardcodec.tools.convert.grouping import parts_of_axis
from shardcodec.tools.convert.open_source import open_source
from shardcodec.tools.convert.plan import ConvertPlan, make_plan
from shardcodec.tools.convert.stored_objects import StoredObjects
from shardcodec.tools.convert.zarr_source import ZarrSource
from shardcodec.tools.job_mark import MARK
from shardcodec.tools.monitor import Monitor, Stopped
from shardcodec.tools.new_hierarchy import NewHierarchy


def test_source_chunks_are_read_once_if_the_memory_permits(tmp_path: Path) -> None:
    source(tmp_path / "a.zarr", chunks=(20, 33, 1))
    how: dict[str, Any] = {"chunks": (4, 4, 7), "shards": (4, 12, 7), "threads": 1, "dry_run": True}
    plenty = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", **how).arrays[0]
    assert plenty.cost.amplification == 1 and plenty.cost.n_reads == 7
    little = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", memory=7000, **how).arrays[0]
    assert little.cost.amplification > 2 and little.cost.n_reads > 14
    convert(tmp_path / "a.zarr", tmp_path / "b.zarr", memory=7000, **(how | {"dry_run": False}))
    same(tmp_path / "b.zarr")


CROSSED: dict[str, Any] = {"chunks": (1, 16, 16), "shards": (1, 64, 64), "threads": 1, "memory": 40000}


def crossed(place: Path) -> np.ndarray[Any, Any]:
    """Write an array of columns, of which each shard needs all."""
    values = np.random.default_rng(0).integers(0, 1000, (64, 64, 64)).astype("u2")
    with quiet():
        zarr.create_array(place, shape=values.shape, chunks=(64, 4, 4), dtype="u2")[...] = values
    return values


@pytest.fixture
def cheap_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small chunks cost little, so that a small array has an intermediate one."""
    monkeypatch.setattr(intermediate_shape, "CHUNK_COST_NBYTES", 16)


@pytest.mark.usefixtures("cheap_chunks")
def test_intermediate_array_saves_reads(tmp_path: Path) -> None:
    values = crossed(tmp_path / "a.zarr")
    temp = tmp_path / "temp"
    direct = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", dry_run=True, **CROSSED).arrays[0]
    planned = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", dry_run=True, temp=temp, **CROSSED).arrays[0]
    assert direct.cost.amplification > 15 and direct.via_chunk_shape is None
    assert planned.cost.amplification <= 3 and planned.via_chunk_shape is not None
    assert planned.cost.n_reads < direct.cost.n_reads / 4 and planned.cost.n_writes > direct.cost.n_writes
    assert not temp.exists()
    report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", temp=temp, level="compare", **CROSSED)
    assert report.is_complete and not temp.exists()
    same(tmp_path / "b.zarr", values)


@pytest.mark.usefixtures("cheap_chunks")
def test_intermediate_array_needs_no_locks_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is on a disk of the node, while the new array is on a file system of the cluster."""
    crossed(tmp_path / "a.zarr")
    checked: list[str] = []
    monkeypatch.setattr(lock_reach, "check_absent", checked.append)
    with shardcodec.options(locking="cluster"):
        report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", temp=tmp_path / "temp", **CROSSED)
    assert report.is_complete and report.arrays[0].via_chunk_shape is not None
    assert len(checked) == report.n_shards
    assert all(path.startswith(str(tmp_path / "b.zarr")) for path in checked)


@pytest.mark.usefixtures("cheap_chunks")
def test_intermediate_array_is_resumed(tmp_path: Path) -> None:
    values = crossed(tmp_path / "a.zarr")
    temp, job = tmp_path / "temp", tmp_path / "job.json"
    how = {**CROSSED, "temp": temp, "job": job}
    first = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", monitor=StopAfter(3), **how)
    assert not first.is_complete and temp.exists() and first.n_written >= 3
    precious = temp / "precious"
    precious.write_text("x")
    with pytest.raises(ValueError, match="temp: expected the folder"):
        convert(tmp_path / "a.zarr", tmp_path / "b.zarr", resume=True, **(how | {"temp": None}))
    before = {
        file: file.stat().st_mtime_ns for file in temp.rglob("*") if file.is_file() and file.name != MARK
    }
    second = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", monitor=StopAfter(40), resume=True, **how)
    assert not second.is_complete
    assert {file: file.stat().st_mtime_ns for file in before} == before
    third = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", resume=True, **how)
    assert third.is_complete and [file.name for file in temp.rglob("*")] == ["precious"]
    assert convert(
        tmp_path / "a.zarr", tmp_path / "b.zarr", resume=True, **(how | {"temp": None})
    ).is_complete
    same(tmp_path / "b.zarr", values)


def test_dry_run_writes_nothing_and_estimates(tmp_path: Path) -> None:
    array = source(tmp_path / "a.zarr", compressors=None)
    report = convert(
        tmp_path / "a.zarr",
        tmp_path / "b.zarr",
        shards=(8, 16, 8),
        dry_run=True,
    )
    cost = report.arrays[0].cost
    assert not (tmp_path / "b.zarr").exists() and not report.is_complete
    # chunks that equal the fill value are not stored, so the sample finds fewer bytes
    assert 0 < cost.read_nbytes <= array.nchunks * 4 * 8 * 4 * 4
    assert (cost.n_reads, cost.n_writes, cost.n_files) == (array.nchunks, 9, 9)
    assert report.memory_nbytes > 0


def test_plan_survives_json(tmp_path: Path) -> None:

    hierarchy(tmp_path / "a.zarr", 3)
    options = resolve()
    plan = make_plan(
        open_source(tmp_path / "a.zarr", options),
        NewHierarchy(tmp_path / "b.zarr"),
        Choices(shards=(4, 8, 4)),
        options,
    )
    stored = json.loads(json.dumps(plan.to_json()))
    assert ConvertPlan.from_json(stored) == plan
    # jobs that an earlier version has begun have these members
    facts = {
        "chunk_shape", "shard_shape", "grid", "shards", "piece", "need_nbytes", "amplification", "via_chunk",
    }  # fmt: skip
    assert set(stored["arrays"][0]) == {*facts, "name", "method", "reason", "via_shard", "kept"}
    units = list(plan.units())
    assert [unit for part in range(7) for unit in plan.part(part, 7)] == units
    shards = [(unit.array, at) for unit in units for at in plan.arrays[unit.array].coords(unit.group)]
    assert len(set(shards)) == len(shards) == plan.n_shards


@pytest.mark.parametrize("how", [{}, {"codecs": ["gzip"]}])
def test_damaged_source_is_named_and_the_metadata_are_not_written(
    how: dict[str, Any], tmp_path: Path
) -> None:
    source(tmp_path / "a.zarr", shards=(8, 16, 8))
    path = tmp_path / "a.zarr/c/1/1/0"
    path.write_bytes(path.read_bytes()[:-3])
    report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", shards=(8, 16, 8), fail_fast=False, **how)
    assert report.n_failed == 1 and report.n_written == report.n_shards - 1
    assert report.failures[0].shard.endswith("c/1/1/0")
    assert "index" in report.failures[0].detail and str(path) in report.failures[0].detail
    assert not (tmp_path / "b.zarr/zarr.json").exists()


def test_truncated_chunk_is_not_moved(tmp_path: Path) -> None:
    source(tmp_path / "a.zarr", compressors=None)
    path = tmp_path / "a.zarr/c/3/1/0"
    path.write_bytes(path.read_bytes()[:-3])
    report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr")
    assert "expected 512 bytes, got 509" in report.failures[0].detail


def test_error_of_an_object_fails_only_its_shards(tmp_path: Path) -> None:
    class Unreliable:
        shape, dtype = VALUES.shape, VALUES.dtype

        def __getitem__(self, box: Any) -> Any:
            if box[0].start <= 8 < box[0].stop:
                raise RuntimeError("no such tile")
            return np.zeros([part.stop - part.start for part in box], self.dtype)

    layout: dict[str, Any] = {"chunks": (4, 33, 7), "shards": (4, 33, 7)}
    report = convert(Unreliable(), tmp_path / "a.zarr", **layout)
    assert [one.detail for one in report.failures] == [
        "<Unreliable>: elements from (8, 0, 0) to (12, 33, 7): RuntimeError: no such tile"
    ]
    assert (report.n_written, report.is_complete) == (4, False)
    Unreliable.shape = (400, *VALUES.shape[1:])  # one thread reads a few shards ahead
    report = convert(Unreliable(), tmp_path / "b.zarr", **layout, threads=1, fail_fast=True)
    assert report.n_written < 99 and not report.is_complete


def test_stop_without_job(tmp_path: Path) -> None:
    class Stopping(Monitor):
        def check(self) -> None:
            raise Stopped

    source(tmp_path / "a.zarr")
    with pytest.raises(Stopped):
        convert(tmp_path / "a.zarr", tmp_path / "b.zarr", monitor=Stopping())
    assert not (tmp_path / "b.zarr/zarr.json").exists()


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hierarchy(tmp_path / "a.zarr", 3)
    arguments = [str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr"), "--shards", "8,16,8"]
    assert run(["convert", *arguments, "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "moved without decoding" in out and "amplification 1" in out
    assert run(["convert", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_complete"]
    assert run(["convert", *arguments]) == 3
    assert "expected a new path" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "b.zarr")
    assert run(["convert", *arguments, "--jsonl", "--codecs", "gzip", "--level", "compare"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["schema"] for line in lines] == ["shardcodec.convert.array"] * 2 + ["shardcodec.convert"]
    assert lines[0]["method"] == "encode"
    assert run(["convert", *arguments, "--chunks", "much"]) == 2


def test_failure_has_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source(tmp_path / "a.zarr", shards=(8, 16, 8))
    (tmp_path / "a.zarr/c/1/1/0").write_bytes(b"torn")
    assert run(["convert", str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr")]) == 3
    assert "incomplete" in capsys.readouterr().out


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
    "of v2": ({"zarr_format": 2}, {"shards": (500, 100), "level": "compare"}),
    "of shards": ({"shards": (50, 20)}, {"shards": (500, 100), "level": "compare"}),
    "of shards, encoded": ({"shards": (50, 20)}, {"chunks": (4, 4), "shards": (40, 40), "level": "compare"}),
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
        report = convert(tmp_path / "old", tmp_path / "new", shards=(500, 100), level="compare")
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
