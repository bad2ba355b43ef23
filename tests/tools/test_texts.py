# test_texts.py - the texts of results, specs and counters in `print` and notebooks
# SPDX-License-Identifier: MIT
"""A report printed one line of 2,800 characters. Now it prints what the command prints, and ends with the command that helps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import create

import shardcodec
from shardcodec import tools
from shardcodec.cli.app import run
from shardcodec.cli.common import format_seconds


def test_print_shows_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    create(tmp_path / "a.zarr")[...] = 1
    path = str(tmp_path / "a.zarr")
    for name in ("inspect", "verify"):
        run([name, path])
        assert str(getattr(tools, name)(path)) + "\n" == capsys.readouterr().out


def test_every_report_is_short_lines_and_a_table(tmp_path: Path) -> None:
    array = create(tmp_path / "a.zarr")
    array[...] = 1
    path = str(tmp_path / "a.zarr")
    with (tmp_path / "a.zarr/c/0/0").open("r+b") as file:
        file.truncate(20)
    accesses = [tools.parse_access("1,:", (100, 100))]
    reports: list[Any] = [
        tools.inspect(path),
        tools.verify(path),
        tools.repair(path, to=str(tmp_path / "b.zarr")),
        tools.compact(path, dry_run=True),
        tools.convert(np.zeros((4, 4)), str(tmp_path / "c.zarr"), dry_run=True, chunks=(2, 2), shards=(4, 4)),
        tools.doctor(path),
        tools.advise((100, 100), "uint8", accesses),
        tools.plan_writes(path, workers=2),
        *tools.verify(path).arrays,
        *tools.verify(path).shards,
    ]
    for report in reports:
        lines = str(report).splitlines()
        assert lines and all(len(line) < 1000 for line in lines), report
        assert repr(report) != str(report)
        table = report._repr_html_()
        assert table.startswith("<div") and table.count("<tr>") == len(list(report.facts()))


@pytest.mark.parametrize(("nbytes", "has_hint"), [(4, True), (1 << 14, False)])
def test_large_index_suggests_larger_inner_chunks(nbytes: int, has_hint: bool, tmp_path: Path) -> None:
    shape = (4096, max(1, nbytes // 4))
    create(tmp_path / "a.zarr", shape=shape, shards=shape, chunks=(1, shape[1]), dtype="i4")[...] = 1
    assert ("inner chunks are too small" in str(tools.inspect(tmp_path / "a.zarr"))) == has_hint


def test_dead_bytes_suggest_compact(tmp_path: Path) -> None:
    array = create(
        tmp_path / "a.zarr", shape=(64, 64), shards=(64, 64), chunks=(8, 8), dtype="i4", compressors=None
    )
    array[...] = 1
    assert "compact" not in str(tools.inspect(tmp_path / "a.zarr"))
    handle = shardcodec.open_array(tmp_path / "a.zarr", mode="r+")
    with shardcodec.enable(write_strategy="append"):
        for i in range(64):
            handle[:8, :8] = i + 2
    report = tools.inspect(tmp_path / "a.zarr")
    stored = report.arrays[0].stored
    assert stored is not None
    if stored.dead_nbytes > 0.1 * stored.shards.nbytes:
        assert "shardcodec compact" in str(report)


def test_spec_prints_its_shapes_and_repr_evaluates() -> None:
    spec = shardcodec.ShardSpec((4, 6), (2, 3), "uint8", 7, codecs=["bytes", "crc32c"])
    text = str(spec)
    assert "4 x 6" in text and "4 of 2 x 3" in text and "crc32c" in text and "fill value 7" in text
    assert "<table>" in spec._repr_html_()
    assert repr(spec).startswith("ShardSpec(shard_shape=(4, 6)")


def test_counters_print_as_lines_and_are_a_dictionary() -> None:
    counters = shardcodec.stats()
    assert isinstance(counters, dict) and "opens" in counters
    assert any(line.startswith("  opens") for line in str(counters).splitlines())
    assert "<table>" in counters._repr_html_()
    assert json.loads(json.dumps(counters, default=str))["opens"] == counters["opens"]


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 0 s"), (7500, "2 h 5 min")])
def test_times_for_readers(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_progress_has_bytes_rate_and_time_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import shardcodec.cli.common as common

    monkeypatch.setattr(common, "PAUSE", 0.0)
    create(tmp_path / "a.zarr")[...] = 1
    run(["verify", str(tmp_path / "a.zarr"), "--progress", "plain"])
    lines = capsys.readouterr().err.splitlines()
    assert "1 of 4 shards, " in lines[0] and "/s" in lines[0] and lines[0].endswith(" left")
    assert not lines[-1].endswith(" left")
