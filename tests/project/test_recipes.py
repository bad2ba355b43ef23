# test_recipes.py - the example programs that use dask, xarray and icechunk
# SPDX-License-Identifier: MIT
"""Each program compares its arrays for equality and ends with an error if they differ.

`examples/mpi_slots.py`, `slurm_array.py`, `loader.py` and `csr.py` are run by the pages that show them (test_how_to.py).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from helpers import python_environment, without_end

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(name: str, *arguments: object) -> list[list[str]]:
    """Run a program; return the rows of the table that it prints."""
    return run_command([sys.executable, "-P", str(EXAMPLES / name), *map(str, arguments)])


def run_command(command: list[str]) -> list[list[str]]:
    done = subprocess.run(
        command,
        env=python_environment(),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.strip("| ").split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    return rows[1:]


def test_append_and_group_writes_write_little(tmp_path: Path) -> None:
    rows = {row[0].split("`")[1]: int(row[1].replace(",", "")) for row in run("append_time.py", tmp_path)}
    assert set(rows) == {"replace", "append", "group_writes"}
    step = 4 * 96 * 96
    assert rows["group_writes"] < 1.1 * step < rows["replace"]
    assert rows["append"] <= rows["replace"], "where the file system is not safe for `append`, both are equal"


def test_reported_cases_lose_nothing(tmp_path: Path) -> None:
    pytest.importorskip("dask", reason="dask is not installed")
    pytest.importorskip("xarray", reason="xarray is not installed")
    rows = {row[0]: row[2] for row in run("lost_updates.py", tmp_path)}
    assert len(rows) == 4
    assert rows["zarr-python#3682"] == "0 of 1,000,000"
    assert all(cell.startswith(("0 of", "refused")) for cell in rows.values())


def test_xarray_reads_what_both_pipelines_wrote(tmp_path: Path) -> None:
    """50 steps: one shard is whole, and one is not full."""
    xr = pytest.importorskip("xarray", reason="xarray is not installed")
    assert [row[0] for row in run("xarray_times.py", 50, tmp_path)] == ["write", "read"]
    zarrs, ours = (
        xr.open_zarr(tmp_path / f"{name}.zarr", consolidated=False, chunks=None).load()
        for name in ("zarr", "shardcodec")
    )
    assert ours.equals(zarrs) and ours["heat"].shape == (50, 180, 360)


def test_icechunk_keeps_both_versions(tmp_path: Path) -> None:
    pytest.importorskip("icechunk", reason="icechunk is not installed")
    run_command(without_end(EXAMPLES / "icechunk_commit.py", tmp_path))


@pytest.mark.nightly
def test_processes_write_regions_with_xarray(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    rows = dict(run("xarray_regions.py", tmp_path))
    assert set(rows) == {"zarr", "shardcodec"}
    assert rows["shardcodec"] == "0 of 207,360", "what zarr loses differs from run to run"


@pytest.mark.nightly
def test_each_way_gives_shardcodec_to_workers() -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    rows = {row[0]: row[1:] for row in run("dask_workers.py")}
    assert len(rows) == 4
    for way, (pipeline, lost) in rows.items():
        if way == "too_late":
            assert pipeline == "BatchedCodecPipeline", f"{way} works now: update docs/how-to/dask.md"
        else:
            assert (pipeline, lost) == ("ShardCodecPipeline", "0"), way
