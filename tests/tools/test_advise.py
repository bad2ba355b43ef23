# test_advise.py - proposals for shapes, and what an access costs
# SPDX-License-Identifier: MIT
"""The arithmetic of accesses is compared with counting; proposals respect every bound."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, quiet
from tool_sources import add_unknown_codec

import shardcodec
from shardcodec import UnsupportedError
from shardcodec.cli.app import run
from shardcodec.tools import Bounds, advise, parse_access
from shardcodec.tools.advise.trials import sample_shape, try_proposal
from shardcodec.tools.hierarchy import find_arrays

SHAPE = (1000, 2048, 2048)


def counted(shape: tuple[int, ...], box: tuple[int, ...], cells: tuple[int, ...]) -> float:
    """Return the mean number of cells over all positions of a box."""
    starts = itertools.product(*(range(n - b + 1) for n, b in zip(shape, box, strict=True)))
    numbers = [
        math.prod((s + b - 1) // c - s // c + 1 for s, b, c in zip(start, box, cells, strict=True))
        for start in starts
    ]
    return float(np.mean(numbers))


@pytest.mark.parametrize(
    ("box", "cells"), [("1,:", (4, 8)), ("5,7", (4, 8)), (":,1", (16, 4)), ("4,8", (4, 8)), ("1,1", (5, 5))]
)
def test_cells_of_an_access_are_the_mean_over_all_positions(box: str, cells: tuple[int, ...]) -> None:
    shape = (64, 120)
    pattern = parse_access(box, shape)
    assert pattern.touched(shape, cells) == pytest.approx(counted(shape, pattern.box, cells), rel=0.03)


def test_no_access_touches_more_cells_than_there_are() -> None:
    assert parse_access("9", (10,)).touched((10,), (5,)) == 2
    assert parse_access(":", (10,)).touched((10,), (4,)) == 3


@pytest.mark.parametrize(("text", "error"), [
    ("1,:", "expected 3 numbers or colons"), ("1,:,:,:", "expected 3 numbers or colons"),
    ("1,:,0", "expected a number from 1 to 2048 or ':' for axis 2, got '0'"),
    ("1,:,9999", "axis 2"), ("1,:,-1", "axis 2"), ("1,:,x", "axis 2"), ("1,:,:@", None),
    ("1,:,:@0", "expected a positive weight"), ("1,:,:@nan", "expected a positive weight"),
])  # fmt: skip
def test_wrong_patterns_are_told(text: str, error: str | None) -> None:
    if error is None:
        assert parse_access(text, SHAPE).weight == 1
        return
    with pytest.raises(ValueError, match=error):
        parse_access(text, SHAPE)


def test_pattern_with_spaces_and_a_weight() -> None:
    found = parse_access(" 1 , : ,64 @2.5", SHAPE)
    assert (found.box, found.weight) == ((1, 2048, 64), 2.5)


def test_planes_get_flat_inner_chunks_and_columns_get_long_ones() -> None:
    (plane, *_) = advise(SHAPE, "uint16", [parse_access("1,:,:", SHAPE)]).proposals
    assert plane.chunk_shape[0] == 1 and plane.accesses[0].useful_share == 1
    (column, *_) = advise(SHAPE, "uint16", [parse_access(":,1,1", SHAPE)]).proposals
    assert column.chunk_shape[0] == 1000 and column.accesses[0].n_chunks == 1


def test_weights_decide_between_accesses() -> None:
    planes = [parse_access("1,:,:@100", SHAPE), parse_access(":,1,1", SHAPE)]
    columns = [parse_access("1,:,:", SHAPE), parse_access(":,1,1@100", SHAPE)]
    (a, *_), (b, *_) = (advise(SHAPE, "uint16", one).proposals for one in (planes, columns))
    assert a.chunk_shape[0] < b.chunk_shape[0]


@pytest.mark.parametrize("bounds", [
    Bounds(),
    Bounds(chunk_nbytes=1 << 16, shard_nbytes=8 << 20),
    Bounds(max_files=40), Bounds(memory=100 << 20),
])  # fmt: skip
def test_proposals_respect_the_bounds(bounds: Bounds) -> None:
    accesses = [parse_access("1,:,:", SHAPE), parse_access("16,64,64@5", SHAPE)]
    report = advise(SHAPE, "float32", accesses, bounds)
    assert 1 <= len(report.proposals) <= 3
    costs = [one.cost_nbytes for one in report.proposals]
    assert costs == sorted(costs) and len(set(costs)) == len(costs)
    for one in report.proposals:
        assert all(s % c == 0 for s, c in zip(one.shard_shape, one.chunk_shape, strict=True))
        assert bounds.chunk_nbytes / 4 <= one.chunk_nbytes <= bounds.chunk_nbytes * 2
        assert one.shard_nbytes == math.prod(one.shard_shape) * 4 <= bounds.shard_nbytes
        assert one.n_files == math.prod(-(-n // s) for n, s in zip(SHAPE, one.shard_shape, strict=True))
        assert bounds.max_files is None or one.n_files <= bounds.max_files
        assert bounds.memory is None or one.writer_nbytes <= bounds.memory


def test_costs_of_an_access() -> None:
    """Inner chunks of 10 x 10 in shards of 50 x 50, 2 bytes an element."""
    shape = (100, 100)
    access = [parse_access("1,:", shape)]
    report = advise(shape, "uint16", access, present=((10, 10), (50, 50)))
    assert report.present is not None
    (cost,) = report.present.accesses
    assert (cost.n_chunks, cost.n_shards, cost.n_requests) == (10, 2, 12)
    assert cost.read_nbytes == 10 * 100 * 2
    assert cost.useful_share == 0.1 and cost.memory_nbytes == (100 + 100) * 2
    assert (report.present.n_files, report.present.chunks_per_shard, report.present.index_nbytes) == (
        4,
        25,
        404,
    )


@pytest.mark.parametrize(("bounds", "error"), [
    (Bounds(max_files=2, shard_nbytes=1 << 20), r"max_files: expected at least 8000 shards of at most 1 MiB .* got 2; allow more shards"),
])  # fmt: skip
def test_bounds_that_exclude_everything_are_told(bounds: Bounds, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        advise(SHAPE, "uint16", [parse_access("1,:,:", SHAPE)], bounds)


@pytest.mark.parametrize("shape", [(), (0, 4), (3, -4)])
def test_array_without_elements_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="expected an array with elements"):
        advise(shape, "uint16", [])
    if shape:
        with pytest.raises(ValueError, match="expected an array with elements"):
            parse_access("1,1", shape)


def test_help_shows_defaults_as_users_write_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "[default: (1MiB)]" in shown and "[default: (512MiB)]" in shown
    assert run(["verify", "--help"]) == 0
    assert "[default: (100%)]" in " ".join(capsys.readouterr().out.split())


def test_small_array_is_one_inner_chunk() -> None:
    (one, *_) = advise((7, 5), "uint8", [parse_access(":,:", (7, 5))]).proposals
    assert one.n_files == 1 and one.chunk_nbytes <= 35


def test_array_of_many_axes_takes_few_candidates() -> None:
    shape = (50, 4, 100, 1000, 2000, 30)
    report = advise(shape, "uint16", [parse_access("1,1,:,64,64,1", shape)])
    assert report.proposals


def test_sample_is_small_and_has_whole_inner_chunks() -> None:
    assert sample_shape((1000, 100), (10, 10), 1, 5000) == (62, 50)
    assert sample_shape((1000, 100), (64, 64), 1, 10) == (64, 64)
    assert sample_shape((10, 10), (64, 64), 1, 1000) == (10, 10)


def source(folder: Path, **how: Any) -> Any:
    with quiet():
        array = zarr.create_array(folder, shape=(64, 96), dtype="int32", **how)
    array[...] = np.arange(64 * 96).reshape(64, 96)
    return array


@pytest.mark.parametrize("how", [
    {"chunks": (8, 8), "shards": (32, 32)}, {"chunks": (8, 8)},
    {"chunks": (8, 8), "zarr_format": 2, "compressors": None},
    {"chunks": (8, 8), "filters": [zarr.codecs.TransposeCodec(order=(1, 0))]},
], ids=["sharded", "plain", "v2", "transposed"])  # fmt: skip
def test_trial_measures_a_proposal(tmp_path: Path, how: Any) -> None:
    source(tmp_path / "a.zarr", **how)
    accesses = [parse_access("1,:", (64, 96)), parse_access("16,16", (64, 96))]
    report = advise((64, 96), "int32", accesses, Bounds(chunk_nbytes=1024, shard_nbytes=8192))
    (array,) = find_arrays(tmp_path / "a.zarr")
    trial = try_proposal(array, report.proposals[0], accesses, sample_nbytes=12288)
    assert trial.chunk_shape == report.proposals[0].chunk_shape
    assert math.prod(trial.sample_shape) * 4 <= 12288 and trial.ratio > 0.5
    for measured in trial.accesses:
        assert measured.seconds > 0 and measured.requests >= 1 and measured.read_nbytes > 0
    json.dumps(trial.to_json())


def test_trial_needs_no_locks_of_a_cluster(tmp_path: Path) -> None:
    """Its sample is in a temporary folder, on a local disk; `enable(locking="cluster")` refused to write it."""
    create(tmp_path / "a.zarr")[...] = 1
    (array,) = find_arrays(tmp_path / "a.zarr")
    accesses = [parse_access("1,:", (16, 24))]
    (proposal, *_) = advise((16, 24), "int32", accesses).proposals
    with shardcodec.enable(locking="cluster"):
        assert try_proposal(array, proposal, accesses).accesses


def test_codec_without_native_code_cannot_be_tried(tmp_path: Path) -> None:
    create(tmp_path / "a.zarr")[...] = 1
    add_unknown_codec(tmp_path / "a.zarr")
    (array,) = find_arrays(tmp_path / "a.zarr")
    accesses = [parse_access("1,:", (16, 24))]
    (proposal, *_) = advise((16, 24), "int32", accesses).proposals
    with pytest.raises(UnsupportedError, match=r"no\.such"):
        try_proposal(array, proposal, accesses)


def test_command_for_a_new_array(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["advise", "--access", "1,:,:", "--shape", "1000,2048,2048", "--dtype", "float32"]
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema"], found["present"], found["trials"]) == ("shardcodec.advise", None, [])
    assert run(arguments) == 0
    assert "proposal 1: inner chunks of 1 x " in capsys.readouterr().out


def test_command_for_an_array_with_a_trial(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source(tmp_path / "a.zarr", chunks=(8, 8), shards=(32, 32))
    arguments = ["advise", str(tmp_path / "a.zarr"), "--access", "1,:", "--chunks", "1KiB", "--try"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    assert "now: inner chunks of 8 x 8 (256 B), shards of 32 x 32" in out
    assert "measured 1" in out and "measured 2" in out


@pytest.mark.parametrize(("arguments", "text"), [
    (["--shape", "10,10"], "--access"),
    (["--access", "1,:"], "expected PATH or --shape"),
    (["--access", "1,:", "--shape", "10,x"], "expected positive numbers, such as 1000,2048,2048"),
    (["--access", "1,:", "--shape", "0,10"], "expected positive numbers, such as 1000,2048,2048, got '0,10'"),
    (["--access", "1,:", "--shape=-5,10"], "expected positive numbers, such as 1000,2048,2048, got '-5,10'"),
    (["--access", "1,:", "--shape", "10,10", "--try"], "expected PATH, an array with the data"),
    (["--access", "1", "--shape", "10,10"], "expected 2 numbers or colons"),
    (["--access", "1,:", "--shape", "10,10", "--dtype", "no"], "--dtype: expected a data type"),
])  # fmt: skip
def test_wrong_use_of_the_command(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["advise", *arguments]) == 2
    assert text in " ".join(capsys.readouterr().err.split())
