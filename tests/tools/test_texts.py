# test_texts.py - the texts of results, specs and counters in `print` and notebooks
# SPDX-License-Identifier: MIT
"""A report printed one line of 2,800 characters. Now it prints what the command prints, and ends with the command that helps."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import create, quiet
from tool_sources import change, filled

import shardcodec
from shardcodec import tools
from shardcodec.cli import progress
from shardcodec.cli.app import run
from shardcodec.cli.progress import format_seconds


def test_print_shows_what_the_command_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Reports of convert, repair, compact, advise and status printed their fields, a damaged shard as one line of 750 characters."""
    group = zarr.create_group(tmp_path / "a.zarr")
    for name in "ab":
        create(tmp_path / "a.zarr" / name)[...] = 1
    group.create_array("plain", shape=(4,), chunks=(2,), dtype="u1")[...] = 1
    (tmp_path / "a.zarr/notes.txt").write_text("precious")
    with (tmp_path / "a.zarr/a/c/0/0").open("r+b") as file:
        file.truncate(20)
    path, new, job = (str(tmp_path / name) for name in ("a.zarr", "new", "plan"))
    access = ["--shape", "100,100", "--access", "1,:"]
    cases: list[tuple[list[str], Callable[[], Any]]] = [
        (["inspect", f"{path}/b"], lambda: tools.inspect(f"{path}/b")),
        (["verify", path], lambda: tools.verify(path)),
        (["repair", path, "--dry-run"], lambda: tools.repair(path, dry_run=True)),
        (["compact", path, "--dry-run"], lambda: tools.compact(path, dry_run=True)),
        (["convert", path, new, "--dry-run"], lambda: tools.convert(path, new, dry_run=True)),
        (["convert", f"{path}/b", new, "--dry-run"], lambda: tools.convert(f"{path}/b", new, dry_run=True)),
        (["advise", *access], lambda: tools.advise((100, 100), "uint16", [tools.parse_access("1,:", (100, 100))])),
        (["status", job], lambda: tools.status(job)),
    ]  # fmt: skip
    tools.plan_convert(f"{path}/b", new, job, parts=2)
    for arguments, report in cases:
        run(arguments)
        out = capsys.readouterr().out
        assert str(report()) + "\n" == out, arguments
        assert max(map(len, out.splitlines())) < 300, out
    assert "a.zarr/a/c/0/0: would be left: nothing can be restored" in str(tools.repair(path, dry_run=True))


def test_every_report_is_short_lines_and_a_table(tmp_path: Path) -> None:
    array = create(tmp_path / "a.zarr")
    array[...] = 1
    path = str(tmp_path / "a.zarr")
    with (tmp_path / "a.zarr/c/0/0").open("r+b") as file:
        file.truncate(20)
    accesses = [tools.parse_access("1,:", (100, 100))]
    reports: list[Any] = [
        tools.inspect(path), tools.verify(path),
        tools.repair(path, to=str(tmp_path / "b.zarr")),
        tools.compact(path, dry_run=True),
        tools.convert(np.zeros((4, 4)), str(tmp_path / "c.zarr"), dry_run=True, chunks=(2, 2), shards=(4, 4)),
        tools.doctor(path), tools.advise((100, 100), "uint8", accesses), tools.plan_writes(path, workers=2),
        *tools.verify(path).arrays, *tools.verify(path).shards,
    ]  # fmt: skip
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


COMMANDS = {
    "verify": ["{old}"],
    "convert": ["{old}", "{new}", "--shards", "8,12"],
    "repair": ["{old}", "--to", "{new}"],
    "compact": ["{old}", "--to", "{new}"],
}


# The member of each report that `--jsonl` prints line by line.
PARTS = {
    "inspect": "arrays",
    "verify": "shards",
    "repair": "shards",
    "compact": "shards",
    "convert": "arrays",
}


@pytest.mark.parametrize("command", PARTS)
def test_json_is_one_document_or_a_line_for_each_part(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(tmp_path / "old")
    change(zarr.storage.LocalStore(tmp_path / "old"), "c/0/1", lambda data: data[:-1])
    words = [command, str(tmp_path / "old"), *([str(tmp_path / "new")] if command == "convert" else [])]
    words += ["--dry-run"] * (command in ("repair", "compact", "convert"))
    code = run([*words, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["schema_version"]) == (f"shardcodec.{command}", 1)
    assert code == (0 if command == "convert" else 1) == run([*words, "--jsonl"])
    *parts, last = map(json.loads, capsys.readouterr().out.splitlines())
    listed = document[PARTS[command]]
    assert last == {**document, PARTS[command]: []} and len(listed) == 1
    assert parts == listed and listed[0]["schema"] == f"shardcodec.{command}.{PARTS[command][:-1]}"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("how", ["plain", "file", "terminal"])
def test_progress_has_bytes_rate_and_time_left(
    command: str,
    how: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only verify showed bytes and their rate. Standard output has the report alone."""
    for name in ("PAUSE", "LONG_PAUSE", "REPLACE_PAUSE"):
        monkeypatch.setattr(progress, name, 0.0)
    if how == "terminal":
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
        monkeypatch.setattr(progress.importlib.util, "find_spec", lambda name: None)
    create(tmp_path / "old")[...] = np.random.default_rng(0).integers(0, 99, (16, 24))
    places = {name: str(tmp_path / name) for name in ("old", "new")}
    arguments = [argument.format(**places) for argument in COMMANDS[command]]
    run(
        [command, *arguments, "--json", "--threads", "1", "--progress", "plain" if how == "plain" else "auto"]
    )
    out, err = capsys.readouterr()
    assert json.loads(out)["schema"] == f"shardcodec.{command}"
    lines = err.split("\x1b[K")[:-1] if how == "terminal" else err.splitlines()
    assert all(line.startswith("\r") for line in lines) == (how == "terminal")
    *first, last = [line for line in lines if line.strip()]
    assert all(" of 4 shards, " in line and "/s, " in line and line.endswith(" left") for line in first)
    assert last.endswith("/s") and "4 of 4 shards, " in last and ": 0 B" not in last
    assert err.endswith("\r\x1b[K") == (how == "terminal")


@pytest.mark.parametrize("is_beside", [False, True])
def test_report_is_whole_beside_a_bar(
    is_beside: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bar of rich, the JSON of each command went to stderr, wrapped at the width of the terminal, and a file stayed empty."""
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_beside)
    folder = tmp_path / ("longer than a line " * 6)
    create(folder)[...] = 1
    run(["verify", str(folder), "--json"])
    out, err = capsys.readouterr()
    assert "\x1b[?25l" in err  # a bar hides the cursor
    text = err[err.index("{") : err.rindex("}") + 1] if is_beside else out
    assert json.loads(text)["schema"] == "shardcodec.verify"


@pytest.mark.parametrize("is_terminal", [True, False])
def test_names_are_neither_markup_nor_commands_of_a_terminal(
    is_terminal: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal an array `deep[/b]` ended each command with a traceback of rich, and the name of another one could set colours."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    with quiet():
        zarr.create_group(tmp_path / "g")
    names = ("deep[/b]", "x[red]", "line\nand \x1b[31mred")
    for name in names:
        create(tmp_path / "g" / name)[...] = 1
    with quiet():
        zarr.create_group(tmp_path / "g/deep[")
    assert run(["verify", str(tmp_path / "g")]) == 0
    out, err = capsys.readouterr()
    assert {"deep[/b]", r"line\nand \x1b[31mred"} <= set(out.splitlines())
    assert is_terminal == ("x[red]" in err) and "\x1b[31mred" not in out + err


def test_time_left_follows_from_the_last_shards() -> None:
    """A resumed job skips the first thousand shards at once, and then needs a second for each."""
    pace = progress.Pace(1100, 0.0)
    pace.advance(1000, 0.5)
    for second in range(1, 71):
        pace.add_nbytes(1 << 20)
        pace.advance(1, float(second))
    assert pace.shards() == "1070 of 1100 shards"
    assert pace.rate(70.0) == "70 MiB, 1 MiB/s, 30 s left"


def test_next_step_of_objects_that_differ_is_no_repair(tmp_path: Path) -> None:
    """`repair` was named for elements that differ from a copy, and it finds no damage in them."""
    create(tmp_path / "old")[...] = 1
    create(tmp_path / "new")[...] = 2
    text = str(tools.verify(tmp_path / "new", against=tmp_path / "old"))
    assert "copy objects that differ, or are missing, from the hierarchy that is right" in text
    assert "shardcodec repair" not in text
