# test_results.py - stored results of benchmarks: the pages have their figures, and two of them can be compared
# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import shardcodec

Import = Callable[[str], ModuleType]

ROOT = Path(__file__).resolve().parents[2]
RESULTS = sorted((ROOT / "bench/results").glob("*.json"))


def result(seconds: dict[str, list[float]], **members: Any) -> dict[str, Any]:
    peers = {name: {"seconds": times} for name, times in seconds.items()}
    machine = {"cpu": "one", "versions": {"zarr": "1"}}
    return {"machine": machine, "rows": [{"group": "g", "name": "r", "nbytes": 1, "peers": peers}], **members}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_result_names_its_machine(path: Path) -> None:
    document = json.loads(path.read_text())
    assert {"cpu", "cpus_used", "kernel", "file_system", "versions"} <= document["machine"].keys()
    rows = document.get("rows", [])
    assert rows or document["counts"]
    assert len({(row["group"], row["name"]) for row in rows}) == len(rows)
    for row in rows:
        for peer in row["peers"].values():
            assert "failed" in peer or (peer["seconds"] and all(seconds > 0 for seconds in peer["seconds"]))


def test_pages_have_the_figures_of_the_results(bench: Import) -> None:
    stale = [path.name for path, text in bench("tables").pages().items() if path.read_text() != text]
    assert not stale, "run: python bench/tables.py --write"


def test_changed_figure_of_a_page_is_noticed(
    bench: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = bench("tables")
    for page in (tables.README, tables.PAGE, tables.ALTERNATIVES):
        (tmp_path / page).parent.mkdir(exist_ok=True)
        (tmp_path / page).write_text((ROOT / page).read_text())
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.main([]) == 0
    table = next(table for table in tables.TABLES if table.page == tables.PAGE)
    line = tables.render(table).splitlines()[-1]
    changed = line[:-3] + "1 |"
    assert changed != line
    path = tmp_path / table.page
    path.write_text(path.read_text().replace(line, changed))
    assert tables.main([]) == 1
    assert tables.main(["--write"]) == 0 == tables.main([])
    assert path.read_text() == (ROOT / table.page).read_text()


def test_round_trips_are_stored_as_other_results(bench: Import) -> None:
    rows = bench("round_trips").rows_of(
        "50 us", {"raw: one shard": {"shardcodec": [0.1], "zarrs": "TimeoutError"}}
    )
    assert rows == [
        {
            "group": "50 us",
            "name": "raw: one shard",
            "peers": {
                "shardcodec": {"seconds": [0.1]},
                "zarrs": {"seconds": [], "failed": "TimeoutError"},
            },
        }
    ]
    tables = bench("round_trip_tables")
    assert tables.milliseconds({"rows": rows}, "50 us", "raw: one shard") == {"shardcodec": 100}
    times = {"shardcodec": 2.0, "zarr alone": 0.1, "zarrs": 3.0, "tensorstore": 2.5}
    assert tables.fastest_other(times) == "tensorstore"


def test_part_of_scaling_that_is_not_measured_is_named(bench: Import) -> None:
    """An empty table would look as if nothing were to measure."""
    tables = bench("scaling_tables")
    machine = {"cpu": "one", "cpus_used": 2, "kernel": "6", "file_system": "tmpfs"}
    texts = tables.blocks({"machine": machine, "shrink": 1})
    assert {text for name, text in texts.items() if name != "scaling machine"} == {tables.NOT_YET}
    rows = [
        {
            "group": "size",
            "name": "read",
            "peers": {str(1 << 19): {"seconds": [0.002, 0.001]}},
            "disturbance": 0.5,
        }
    ]
    texts = tables.blocks({"machine": machine, "shrink": 1, "rows": rows})
    assert texts["scaling sizes"].endswith("| read | 1.0 | | | |\n")
    assert "up to 0.5 cores" in texts["scaling machine"]


def test_figures_have_two_or_three_digits(bench: Import) -> None:
    number = bench("report").short
    shown = [number(value) for value in (12345, 1654.2, 243.4, 12.4, 9.04, 0.468, 0.0782)]
    assert shown == ["12300", "1650", "243", "12", "9.0", "0.47", "0.078"]


@pytest.mark.parametrize(
    ("after", "slower", "status", "told"),
    [
        ([2.0, 2.1, 2.2], "1.1", 1, "slower"),
        ([0.5, 0.4, 0.6], "1.1", 0, "faster"),
        ([1.0, 1.1, 1.2], "1.1", 0, "| 1.00 |  |"),
        ([1.2, 2.1, 2.2], "1.1", 0, "| 1.91 |  |"),  # the two ranges overlap
        ([1.3, 1.3, 1.3], "1.5", 0, "| 1.18 |  |"),
    ],
)
def test_two_results_are_compared(
    after: list[float],
    slower: str,
    status: int,
    told: str,
    bench: Import,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = [1.0, 1.1, 1.2]
    (tmp_path / "a.json").write_text(json.dumps(result({"shardcodec": before, "zarr": [1.0]}, threads=2)))
    later = result({"shardcodec": after, "zarrs": [1.0]}, threads=1)
    later["machine"] = {"cpu": "two", "versions": {"zarr": "2"}}
    (tmp_path / "b.json").write_text(json.dumps(later))
    files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert bench("compare").main([*files, "--slower", slower]) == status
    text = capsys.readouterr().out
    assert told in text
    for difference in ("cpu: one, then two", "zarr: 1, then 2", "threads: 2, then 1"):
        assert difference in text
    assert "| zarrs" not in text, "only one result has it"
    assert bench("compare").main([*files, "--peers", "zarr"]) == 2


def test_results_of_arrays_of_other_sizes_are_not_compared(
    bench: Import, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, shrink in (("a", 1), ("b", 16)):
        (tmp_path / f"{name}.json").write_text(json.dumps(result({"zarr": [1.0]}, shrink=shrink)))
    assert bench("compare").main([str(tmp_path / "a.json"), str(tmp_path / "b.json")]) == 2
    assert "--shrink 1, then 16" in capsys.readouterr().err


def test_file_without_a_result_is_named(
    bench: Import, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They ended with a traceback of json."""
    path = tmp_path / "a.md"
    path.write_text("| row |")
    for call in (
        lambda: bench("compare").main([str(path), str(path)]),
        lambda: bench("report").main([str(path)]),
        lambda: bench("model").main([str(tmp_path / "absent.json")]),
    ):
        with pytest.raises(SystemExit, match=r"expected a result that --json has written: "):
            call()
    assert bench("report").main([str(ROOT / "bench/results/scaling.json")]) == 2
    assert "expected a result of bench/run.py, but it has no load_after" in capsys.readouterr().err
    assert bench("tables").main(["--writ"]) == 2
    assert "expected no argument, or --write, got --writ" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--groups", "smal"], "--groups: expected some of .*small.*; got smal"),
        (["--peers", "zarrs,shardcodek"], "--peers: expected some of shardcodec, .*; got shardcodek"),
        (["--without", "no library"], "--without: expected some of shardcodec, .*; got no library"),
        (["--groups", "small", "--rows", "nothing"], "--rows: no row of small has nothing in its name"),
        (["--shrink", "0"], "--shrink: expected a whole number of at least 1, got '0'"),
        (["--rounds", "0"], "--rounds: expected a whole number of at least 1, got '0'"),
        (["--folder", "/absent"], "--folder: expected a folder, got '/absent'"),
        (
            ["--json", "/absent/a.json"],
            "--json: expected a file in a folder that exists, got '/absent/a.json'",
        ),
    ],
)
def test_wrong_argument_is_told_before_anything_is_measured(
    arguments: list[str],
    told: str,
    bench: Import,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A misspelt library was left out without a word, and a result without a folder was lost after half an hour."""
    run = bench("run")
    monkeypatch.setattr("sys.argv", ["run.py", *arguments])
    with pytest.raises(SystemExit, match="2"):
        run.parse()
    assert re.search(told, capsys.readouterr().err)


def test_peers_whose_names_have_commas_can_be_chosen(
    bench: Import, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, peers = bench("run"), bench("peers")
    names = [peer.name for peer in peers.ALL]
    for chosen, text in (
        (["open_array, cache", "tensorstore, cache"], "open_array, cache,tensorstore, cache"),
        (["open_array", "open_array, cached index", "floor"], "open_array,open_array,cached index, floor"),
        (names, ",".join(names)),
    ):
        monkeypatch.setattr("sys.argv", ["run.py", "--peers", text])
        assert run.parse().peers == chosen
    times = {"open_array, cache": [1.0], "copies": [1.0]}
    (tmp_path / "a.json").write_text(json.dumps(result(times)))
    assert bench("compare").main([str(tmp_path / "a.json")] * 2 + ["--peers", "open_array, cache"]) == 0
    told = capsys.readouterr().out
    assert "| open_array, cache |" in told and "copies" not in told


def test_run_keeps_the_tail_and_memory(bench: Import, tmp_path: Path) -> None:
    """A row of several operations has a percentile of single operations, not of turns."""
    run, suite, data, peers = bench("run"), bench("suite"), bench("data"), bench("peers")
    (peer,), _ = peers.available(["zarr batched"])
    case = data.Case((64, 64), (32, 32), (8, 8), "uint16", "raw")
    boxes = tuple((slice(0, n + 1), slice(0, 64)) for n in range(10))
    row = suite.Read("group", "ten reads", case, boxes)
    measured = run.measure(row, suite.Context(tmp_path, peer, peer, age=0), [peer], 3, 60)
    (found,) = measured["peers"].values()
    assert measured["operations"] == 10 and len(found["seconds"]) == 3
    assert found["p99"] >= max(found["seconds"]) > 0
    assert found["peak_nbytes"] >= 0
    text = bench("report").render(
        {
            "machine": bench("machine").facts(tmp_path),
            "threads": 2,
            "rounds": 3,
            "missing": {},
            "warning": None,
        }
        | {"load_after": 0.0, "rows": [measured], "memory": []}
    )
    assert "99th percentile" in text


def test_array_is_old_enough_for_caches_before_a_row_reads_it(bench: Import, tmp_path: Path) -> None:
    """The first row of each array was measured without any cache."""
    suite, data, peers = bench("suite"), bench("data"), bench("peers")
    (peer,), _ = peers.available(["zarr batched"])
    case = data.Case((64, 64), (32, 32), (8, 8), "uint16", "zstd 1")
    context = suite.Context(tmp_path, peer, peer)
    source = context.source(case)
    changed = [path.stat().st_ctime for path in source.rglob("*") if path.is_file()]
    assert len(changed) == 5 and time.time() - max(changed) > 2
    cached = peers.OpenArrayChunks()
    array = cached.open_keeping(source, case, case.nbytes)
    before = shardcodec.stats()["chunk_hits"]
    for _ in range(3):
        cached.read(array, (slice(0, 4), slice(0, 4)))
    assert shardcodec.stats()["chunk_hits"] > before
    begin = time.monotonic()
    assert context.source(case) == source
    assert time.monotonic() - begin < 2
