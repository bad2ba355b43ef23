# test_killed_groups.py - conversions of whole data sets that are killed again and again
# SPDX-License-Identifier: MIT
"""One command converts a data set. It is killed ten times, each time resumed, and the result is that of a run without a kill."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from data_sets import array_names, check_consolidated, climate, image, members, same_files
from helpers import bits, bytes_of_files, quiet
from prepared_python import PreparedPython

from shardcodec.cli.app import run
from shardcodec.tools import verify
from shardcodec.tools.jobs.run_part import status

N_KILLS = 10
# The command, with a pause before each group of shards, so that a kill finds it in the middle of its work.
SLOW = """
    import sys, time
    from shardcodec.cli.app import run
    from shardcodec.tools.convert.write_group import GroupWork
    original = GroupWork.run
    def slow(self, unit):
        time.sleep(0.05)
        return original(self, unit)
    GroupWork.run = slow
    sys.exit(run(sys.argv[1:]))
"""


def n_finished(job: Path) -> int:
    return status(job).n_finished if job.exists() else 0


def write_year(place: Path) -> None:
    climate(place, 2)


def write_image(place: Path) -> None:
    image(place, "0.5")
    (place / "tables/counts/note.parquet").write_bytes(bytes(range(256)) * 5000)


@pytest.mark.slow
@pytest.mark.parametrize(("write", "layout"), [
    (write_year, ["--chunks", "time=5,lat=9,lon=20", "--shards", "time=365"]),
    (write_image, ["--chunks", "z=1,y=64,x=64", "--shards", "z=2,y=128,x=128"]),
])  # fmt: skip
def test_data_set_that_is_killed_ten_times(
    write: Callable[[Path], Any], layout: list[str], prepared_python: PreparedPython, tmp_path: Path
) -> None:
    old, new, job = (tmp_path / name for name in ("old", "new", "job.json"))
    write(old)
    words = [str(old), *layout, "--threads", "1"]
    assert run(["convert", words[0], str(tmp_path / "whole"), *words[1:]]) == 0
    resumed = ["convert", words[0], str(new), *words[1:], "--job", str(job), "--resume"]
    for _ in range(N_KILLS):
        before = n_finished(job)
        process = prepared_python.start(SLOW, *resumed)
        while n_finished(job) <= before:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.kill()
        process.communicate()
        assert not (new / "zarr.json").exists()
    process = prepared_python.start(SLOW, *resumed)
    assert process.communicate() and process.returncode == 0, process.communicate()
    same_files(tmp_path / "whole", new)
    assert verify(new, level="decode").n_findings == 0
    with quiet():
        source, made = members(old), members(new)
        assert source.keys() == made.keys()
        for name in array_names(old):
            assert bits(made[name][...]) == bits(source[name][...])
    check_consolidated(new)
    assert not [name for name in bytes_of_files(new) if ".shardcodec" in name]
