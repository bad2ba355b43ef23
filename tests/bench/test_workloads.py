# test_workloads.py - the workloads of the benchmarks: each file parses, and each library that replays one gives equal values
# SPDX-License-Identifier: MIT

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from helpers import ZARR_IS_31

Import = Callable[[str], ModuleType]

BENCH = Path(__file__).resolve().parents[2] / "bench"
NAMES = sorted(path.stem for path in (BENCH / "workloads").glob("*.json"))
# A small array for each kind of row: a few rows of each file. At night, and in `make bench`, all of them.
SOME = {
    "again": "crops of 32^3,batches,tiles,windows",
    "whole": "zstd",
    "tiny": "4^3",
    "small": "40^3,element",
    "partial": "8 shards",
    "gather": "gathered",
    "index": "written,mask",
    "loader": "boxes,element",
    "limits": "missing",
    "v2": "zstd",
    "codecs": "strings,packbits",
}
# The peer that is ours in each row, if it is not zarr's array with our pipeline.
OURS = {"again": "open_array, cache"}
# zarr 3.1 has no scale_offset and no cast_value.
ROWS_OF_ZARR_31 = {
    "codecs": "shuffle,fletcher32,delta,fixedscaleoffset,bitround,quantize,astype,packbits,bz2,strings"
}


def check(groups: str, *arguments: str) -> str:
    """Let the benchmark compare the results of all installed libraries. Its modules are in its folder, so that must be on the path."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    command = [
        sys.executable,
        "-W",
        "ignore",
        str(BENCH / "run.py"),
        "--check",
        "--groups",
        groups,
        *arguments,
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_file_has_some_rows() -> None:
    assert sorted(SOME) == NAMES


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shrink", [1, 4, 16])
def test_boxes_lie_in_their_arrays(name: str, shrink: int, bench: Import) -> None:
    workload = bench("workload")
    rows = workload.rows(name, shrink)
    assert rows
    assert len({(row.group, row.name) for row in rows}) == len(rows), "two rows have one name"
    for row in rows:
        case = row.case
        assert all(size % shard == 0 for size, shard in zip(case.shape, case.shard, strict=True)), row.name
        assert all(shard % inner == 0 for shard, inner in zip(case.shard, case.inner, strict=True)), row.name
        for box in (*getattr(row, "boxes", ()), *([row.box] if hasattr(row, "box") else ())):
            for pair, size in zip(box, case.shape, strict=True):
                assert 0 <= pair.start < pair.stop <= size, row.name


@pytest.mark.parametrize("name", NAMES)
def test_shrunk_arrays_are_smaller_and_keep_their_layout(name: str, bench: Import) -> None:
    workload = bench("workload")
    for large, small in zip(workload.rows(name), workload.rows(name, 4), strict=True):
        assert small.case.nbytes <= large.case.nbytes / 8, large.name
        assert (small.case.shard == small.case.inner) == (large.case.shard == large.case.inner)
        if large.case.shard != large.case.inner:
            counts = [
                [-(-n // s) for n, s in zip(c.shape, c.shard, strict=True)] for c in (large.case, small.case)
            ]
            assert counts[0] == counts[1], large.name


def test_one_name_means_the_same_codecs_everywhere(bench: Import) -> None:
    """Rows that are programs make their codecs from the name."""
    workload, data, floor = bench("workload"), bench("data"), bench("floor")
    rows = [row for name in NAMES for row in workload.rows(name, 16) if row.case.zarr_format == 3]
    known = [row.case for row in rows if row.case.codec in floor.CODECS]
    assert {case.codec for case in known} == set(floor.CODECS)
    for case in known:
        assert case.codecs == data.codec_chain(case.codec, 2)


def test_peers_that_a_file_names_exist(bench: Import) -> None:
    """A name that no peer has would leave a library out without a word."""
    names = {peer.name for peer in bench("peers").ALL}
    for row in (row for name in NAMES for row in bench("workload").rows(name, 16)):
        assert {
            *row.peers,
            *row.without,
            *row.may_refuse,
            *filter(None, (row.writer, row.checker)),
        } <= names, row.name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rowz": []}, "rowz"),
        ({"arrays": {"cube": {"shape": [4], "chunks": [2], "dtype": "u1", "shard": [2]}}}, "shard"),
        ({"rows": [{"name": "a", "do": "read", "box": "whole"}]}, "box"),
        (
            {"rows": [{"name": "a", "do": "raed", "boxes": "whole"}]},
            "row a: do: expected some of read, .*; got raed",
        ),
        ({"rows": [{"name": "a", "do": "read"}]}, r"row a: missing members \['boxes'\]"),
        (
            {"rows": [{"name": "a", "do": "write", "codecs": ["zst"]}]},
            "row a: codecs: expected some of .*; got zst",
        ),
        (
            {"rows": [{"name": "a", "do": "read", "boxes": {"seed": 1}}]},
            "boxes: expected one of random, planes",
        ),
        (
            {"rows": [{"name": "a", "do": "read", "boxes": {"random": 1, "planes": 1}}]},
            "boxes: expected one of",
        ),
        ({"arrays": {"cube": {"shape": [4], "chunks": [2]}}}, r"array cube: missing members \['dtype'\]"),
    ],
)
def test_mistake_of_a_file_is_named(
    change: dict[str, object], message: str, bench: Import, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = bench("workload")
    document = json.loads((BENCH / "workloads/whole.json").read_text()) | change
    (tmp_path / "one.json").write_text(json.dumps(document))
    monkeypatch.setattr(workload, "FOLDER", tmp_path)
    with pytest.raises(workload.WorkloadError, match=message):
        workload.rows("one")


def test_order_and_repeats_of_boxes(bench: Import) -> None:
    workload, data = bench("workload"), bench("data")
    case = data.Case((64, 64), (32, 32), (8, 8), "uint16", "raw")
    drawn = {"random": 20, "shape": [8, 8], "aligned": True, "seed": 3}
    boxes = workload.boxes_of(drawn, case)
    assert all(s.start % 8 == 0 for box in boxes for s in box)
    ascending, shuffled = (
        workload.boxes_of({**drawn, "order": order}, case) for order in ("ascending", "shuffled")
    )
    starts = [[s.start for s in box] for box in ascending]
    assert starts == sorted(starts) == sorted([s.start for s in box] for box in boxes)
    assert shuffled != boxes
    assert workload.boxes_of({**drawn, "repeat": 3}, case) == boxes * 3
    assert workload.boxes_of({"corner": [6, 6]}, case) == ((slice(29, 35), slice(29, 35)),)
    chunks = workload.boxes_of({"chunks": "all"}, case)
    assert len(chunks) == math.prod(64 // 8 for _ in range(2)) and chunks[1] == (slice(0, 8), slice(8, 16))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_libraries_give_equal_values(name: str, tmp_path: Path) -> None:
    told = check(name, "--rows", SOME[name], "--shrink", "16", "--folder", str(tmp_path))
    assert f": {OURS.get(name, 'shardcodec')}: equal" in told
    if name not in ("gather", "again"):  # zarr does not gather writes, and keeps no chunks
        assert "zarr batched: equal" in told


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_libraries_give_equal_values_in_all_rows(name: str, tmp_path: Path) -> None:
    some = ["--rows", ROWS_OF_ZARR_31[name]] if ZARR_IS_31 and name in ROWS_OF_ZARR_31 else []
    assert f": {OURS.get(name, 'shardcodec')}: equal" in check(
        name, *some, "--shrink", "8", "--folder", str(tmp_path)
    )


@pytest.mark.slow
def test_wrong_value_is_noticed(tmp_path: Path) -> None:
    """The check would be worth nothing if it passed whatever a library returns."""
    program = tmp_path / "wrong.py"
    program.write_text(
        "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
        "import peers, run\n"
        "read = peers.ZarrBatched.read\n"
        "peers.ZarrBatched.read = lambda *of: read(*of) + 1\n"
        "run.main()\n"
    )
    options = [
        "--check",
        "--groups",
        "whole",
        "--rows",
        "read, raw",
        "--shrink",
        "16",
        "--folder",
        str(tmp_path),
    ]
    command = [sys.executable, "-W", "ignore", str(program), str(BENCH), *options, "--peers", "zarr batched"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 1, done.stderr
    assert "zarr batched gives other values" in done.stdout
