# test_convert_runs.py - convert: reads, memory, cost, verification, failures, the command
# SPDX-License-Identifier: MIT
"""A conversion stays within its memory, says what it costs, finds what went wrong, and leaves no metadata then."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from conversions import VALUES, hierarchy, same, source
from helpers import quiet
from monitors import StopAfter
from zarr.codecs import Crc32cCodec

import shardcodec
from shardcodec.cli.app import run
from shardcodec.options import resolve
from shardcodec.storage import mount_scopes
from shardcodec.tools import Prices, convert
from shardcodec.tools.convert import intermediate_shape
from shardcodec.tools.convert.array_conversion import ArrayConversion
from shardcodec.tools.convert.choices import Choices
from shardcodec.tools.convert.open_source import open_source
from shardcodec.tools.convert.plan import ConvertPlan, make_plan
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
    report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", temp=temp, verify="full", **CROSSED)
    assert report.is_complete and not temp.exists()
    same(tmp_path / "b.zarr", values)


@pytest.mark.usefixtures("cheap_chunks")
def test_intermediate_array_needs_no_locks_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is on a disk of the node, while the new array is on a file system of the cluster."""
    crossed(tmp_path / "a.zarr")
    checked: list[str] = []
    monkeypatch.setattr(mount_scopes, "check_absent", checked.append)
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
        prices=Prices(get=0.4, put=5),
    )
    cost = report.arrays[0].cost
    assert not (tmp_path / "b.zarr").exists() and not report.is_complete
    # chunks that equal the fill value are not stored, so the sample finds fewer bytes
    assert 0 < cost.read_nbytes <= array.nchunks * 4 * 8 * 4 * 4
    assert (cost.n_reads, cost.n_writes, cost.n_files) == (array.nchunks, 9, 9)
    assert cost.price == pytest.approx((array.nchunks * 0.4 + 9 * 5) / 1000)
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


@pytest.mark.parametrize("verify", ["checksum", "full"])
@pytest.mark.parametrize("how", [{}, {"codecs": ["zstd", "crc32c"]}])
def test_verification_finds_a_shard_that_is_not_stored_as_it_was_written(
    verify: str, how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    source(tmp_path / "a.zarr", compressors=[Crc32cCodec()])
    original = ArrayConversion._verify

    def verify_damaged(self: Any, coords: Any, written: Any) -> None:
        path = Path(self.new.describe(coords))
        data = bytearray(path.read_bytes())
        data[10] ^= 1
        path.write_bytes(data)
        original(self, coords, written)

    monkeypatch.setattr(ArrayConversion, "_verify", verify_damaged)
    report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", verify=verify, **how)
    assert report.n_failed == 1 and not report.is_complete
    assert not (tmp_path / "b.zarr/zarr.json").exists()


@pytest.mark.parametrize("how", [{}, {"codecs": ["gzip"]}])
def test_damaged_source_is_named_and_the_metadata_are_not_written(
    how: dict[str, Any], tmp_path: Path
) -> None:
    source(tmp_path / "a.zarr", shards=(8, 16, 8))
    path = tmp_path / "a.zarr/c/1/1/0"
    path.write_bytes(path.read_bytes()[:-3])
    report = convert(tmp_path / "a.zarr", tmp_path / "b.zarr", shards=(8, 16, 8), fail_fast=False, **how)
    assert report.n_failed == 1 and report.n_written == report.n_shards - 1
    assert report.failures[0].shard.endswith("c/1/1/0") and "index" in report.failures[0].detail
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
            if box[0].start == 8:
                raise RuntimeError("no such tile")
            return VALUES[box]

    report = convert(Unreliable(), tmp_path / "a.zarr", chunks=(4, 33, 7), shards=(4, 33, 7))
    assert [one.detail for one in report.failures] == [
        "<Unreliable>: elements from (8, 0, 0) to (12, 33, 7): RuntimeError: no such tile"
    ]
    assert (report.n_written, report.is_complete) == (4, False)
    report = convert(
        Unreliable(), tmp_path / "b.zarr", chunks=(4, 33, 7), shards=(4, 33, 7), threads=1, fail_fast=True
    )
    assert report.n_written < 4 and not report.is_complete


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
    assert run(["convert", *arguments, "--dry-run", "--price-put", "5"]) == 0
    out = capsys.readouterr().out
    assert "moved without decoding" in out and "amplification 1" in out and "price" in out
    assert run(["reshard", *arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["is_complete"]) == ("shardcodec.convert", True)
    assert run(["convert", *arguments]) == 3
    assert "expected a new path" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "b.zarr")
    assert run(["convert", *arguments, "--jsonl", "--codecs", "gzip", "--verify", "full"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["schema"] for line in lines] == ["shardcodec.convert.array"] * 2 + ["shardcodec.convert"]
    assert lines[0]["method"] == "encode"
    assert run(["convert", *arguments, "--chunks", "much"]) == 2


def test_failure_has_exit_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source(tmp_path / "a.zarr", shards=(8, 16, 8))
    (tmp_path / "a.zarr/c/1/1/0").write_bytes(b"torn")
    assert run(["convert", str(tmp_path / "a.zarr"), str(tmp_path / "b.zarr")]) == 3
    assert "incomplete" in capsys.readouterr().out
