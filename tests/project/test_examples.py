# test_examples.py - the example programs that need only the package
# SPDX-License-Identifier: MIT
"""Each example is run like a user runs it; it checks its own results."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zarr

import shardcodec
from shardcodec.access.user_bytes import MARK

ROOT = Path(__file__).resolve().parents[2]


def run(name: str, folder: Path) -> str:
    paths = [str(Path(shardcodec.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-P", str(ROOT / "examples" / name), str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_minmax_footer_example_runs(tmp_path: Path) -> None:
    told = run("minmax_footer.py", tmp_path / "table.zarr")
    assert told.count("rows, found with") == 3 and "reads the same columns" in told
    table = zarr.open_group(tmp_path / "table.zarr", mode="r")  # opened with zarr alone
    assert "vlen-utf8" in str(table["station"].metadata.to_dict()["codecs"])
    assert {str(name) for name, _ in table.members(max_depth=None)} == {
        "time", "level", "station", "hits", "hits/ends", "hits/values"
    }  # fmt: skip
    assert table["hits/ends"][-1] == table["hits/values"].shape[0]


def test_range_query_reads_only_indexes_and_footers(tmp_path: Path) -> None:
    """The example counts the bytes it reads; this count is compared with the bytes that the engine fetched."""
    example = runpy.run_path(str(ROOT / "examples" / "minmax_footer.py"))
    rows, spec = 300_000, example["SHARD"]
    column = zarr.create_array(
        tmp_path, name="time", shape=rows, shards=(spec,), chunks=(example["CHUNK"],), dtype="f8"
    )
    values = np.sort(np.random.default_rng(0).uniform(0, 1e6, rows))
    example["write_column"](tmp_path, column, values)
    before = shardcodec.stats()
    first, end, n_read = example["rows_between"](column, 1e5, 2e5)
    after = shardcodec.stats()
    assert first <= np.searchsorted(values, 1e5) and end >= np.searchsorted(values, 2e5, "right")
    assert end - first < 0.2 * rows
    n_shards, per_shard = -(-rows // spec), spec // example["CHUNK"]
    assert n_read == n_shards * ((16 * per_shard + 4) + (8 + 16 * per_shard))
    assert after["bytes_fetched"] - before["bytes_fetched"] == n_read + n_shards * MARK.size


def test_tiff_shard_example_runs(tmp_path: Path) -> None:
    assert "still both" in run("tiff_shard.py", tmp_path / "image.zarr")
    assert (tmp_path / "image.zarr" / "c" / "0" / "0").read_bytes()[:4] == b"II*\0"


@pytest.mark.slow
def test_why_example_runs(tmp_path: Path) -> None:
    """It ends with an error if shardcodec loses an element or an array differs from what was written."""
    rows = [line.split(" | ") for line in run("why.py", tmp_path).splitlines()[2:]]
    assert [len(row) for row in rows] == [3, 3, 3]
    assert rows[0][2].rstrip(" |") == "0"
