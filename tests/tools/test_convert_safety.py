# test_convert_safety.py - what convert and its jobs must not write, and what complete means
# SPDX-License-Identifier: MIT
"""A new hierarchy belongs to one job; once it has metadata, the job writes nothing; a changed source or plan is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from helpers import quiet
from zarr.storage import LocalStore

from shardcodec.cli.app import run
from shardcodec.errors import ConflictError
from shardcodec.tools.convert import work
from shardcodec.tools.convert.claim import claim
from shardcodec.tools.convert.convert import convert, plan_convert
from shardcodec.tools.convert.destination import NewTree
from shardcodec.tools.jobs.plan_file import PlanFile
from shardcodec.tools.jobs.run_part import run_part
from shardcodec.tools.monitor import Monitor, Stopped

VALUES = np.arange(32 * 32, dtype="int32").reshape(32, 32)


def source(place: Any, **how: Any) -> Any:
    with quiet():
        array = zarr.create_array(place, **({"shape": (32, 32), "chunks": (8, 8), "dtype": "int32"} | how))
        array[...] = VALUES
    return array


def elements(place: Any) -> Any:
    return zarr.open_array(place, mode="r")[...]


# ---- what exists is not replaced


def test_part_that_runs_again_keeps_what_users_wrote_after_the_end(tmp_path: Path) -> None:
    source(tmp_path / "old")
    plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", n_parts=1, shards=(16, 16))
    assert run_part(tmp_path / "plan", 0).is_complete
    zarr.open_array(tmp_path / "new", mode="r+")[...] = -5
    run_part(tmp_path / "plan", 0)
    assert (elements(tmp_path / "new") == -5).all()


def test_resume_of_a_finished_job_keeps_what_users_wrote_after_the_end(tmp_path: Path) -> None:
    source(tmp_path / "old")
    how: dict[str, Any] = {"shards": (16, 16), "job": tmp_path / "job"}
    assert convert(tmp_path / "old", tmp_path / "new", **how).is_complete
    zarr.open_array(tmp_path / "new", mode="r+")[...] = -5
    convert(tmp_path / "old", tmp_path / "new", resume=True, **how)
    assert (elements(tmp_path / "new") == -5).all()


def test_second_plan_of_one_destination_is_refused(tmp_path: Path) -> None:
    source(tmp_path / "a")
    source(tmp_path / "b")[...] = VALUES + 1000
    for name in "ab":
        plan_convert(tmp_path / name, tmp_path / "new", tmp_path / f"{name}.json", n_parts=1, shards=(16, 16))
    assert run_part(tmp_path / "a.json", 0).is_complete
    with pytest.raises(FileExistsError, match="it has metadata, and the ledgers do not show"):
        run_part(tmp_path / "b.json", 0)
    assert (elements(tmp_path / "new") == VALUES).all()


def test_group_that_another_program_made_at_the_destination_is_not_taken_for_the_end(tmp_path: Path) -> None:
    source(tmp_path / "old")
    plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", n_parts=1, shards=(16, 16))
    zarr.create_group(tmp_path / "new", attributes={"mine": 1})
    with pytest.raises(FileExistsError, match="it has metadata"):
        run_part(tmp_path / "plan", 0)
    assert dict(zarr.open_group(tmp_path / "new", mode="r").attrs) == {"mine": 1}


@pytest.mark.parametrize("how", [{}, {"chunks": (4, 4)}, {"chunks": (1, 1), "memory": 9000}], ids=str)
def test_shard_of_a_killed_run_does_not_stay_if_its_elements_are_gone(how: Any, tmp_path: Path) -> None:
    source(tmp_path / "old")
    plan = tmp_path / "plan"
    plan_convert(tmp_path / "old", tmp_path / "new", plan, n_parts=1, shards=(16, 16), threads=1, **how)
    assert run_part(plan, 0).is_complete
    (tmp_path / "new" / "zarr.json").unlink()  # as after a kill before the first line of the ledger
    claim(NewTree(tmp_path / "new"), PlanFile.read(plan).job, None, is_begun=True)
    shutil.rmtree(tmp_path / "plan.ledger")
    shutil.rmtree(tmp_path / "old" / "c")
    assert run_part(plan, 0).is_complete
    assert (elements(tmp_path / "new") == elements(tmp_path / "old")).all()


@pytest.mark.parametrize("kind", ["store", "url"])
def test_destination_inside_the_source_is_refused_for_stores_and_urls(kind: str, tmp_path: Path) -> None:
    zarr.create_group(tmp_path / "old")
    source(tmp_path / "old" / "x")
    place = LocalStore(tmp_path / "old") if kind == "store" else f"file://{tmp_path}/old"
    with pytest.raises(ValueError, match="outside"):
        convert(place, tmp_path / "old" / "new")


def test_destination_that_is_a_file(tmp_path: Path) -> None:
    source(tmp_path / "old")
    (tmp_path / "new").write_text("x")
    with pytest.raises(FileExistsError):
        convert(tmp_path / "old", tmp_path / "new")


# ---- complete means complete


def test_source_that_changed_between_two_parts_is_noticed(tmp_path: Path) -> None:
    array = source(tmp_path / "old")
    plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", n_parts=2, shards=(16, 16))
    run_part(tmp_path / "plan", 0)
    array[...] = VALUES + 7
    with pytest.raises(ConflictError, match=r"the source of shard .* has changed"):
        run_part(tmp_path / "plan", 1)
    assert not (tmp_path / "new" / "zarr.json").exists()


def test_plan_that_was_damaged_is_refused(tmp_path: Path) -> None:
    source(tmp_path / "old")
    plan = tmp_path / "plan"
    plan_convert(tmp_path / "old", tmp_path / "new", plan, n_parts=1, shards=(16, 16))
    found = json.loads(plan.read_text())
    assert found["plan"]["arrays"][0]["grid"] == [2, 2]
    found["plan"]["arrays"][0]["grid"] = [2, 1]
    plan.write_text(json.dumps(found))
    with pytest.raises(ValueError, match="plan"):
        run_part(plan, 0)


def test_part_that_was_stopped_before_the_metadata_has_exit_code_4(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source(tmp_path / "old")
    plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", n_parts=1, shards=(16, 16))
    monkeypatch.setattr(work.GroupWork, "unfinished", _stopped)
    code = run(["run-part", str(tmp_path / "plan"), "0", "--progress", "none"])
    assert not (tmp_path / "new" / "zarr.json").exists()
    assert code == 4


def _stopped(self: Any, monitor: Monitor) -> int:
    raise Stopped


@pytest.mark.parametrize("relative", ["old", "./old", "old/"])
def test_plan_of_a_relative_path(relative: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source(tmp_path / "old")
    plan_convert(relative, "new", "plan", n_parts=1, shards=(16, 16))
    assert run_part("plan", 0).is_complete


def test_resume_with_another_spelling_of_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source(tmp_path / "old")
    convert("old", "new", shards=(16, 16), job="job")
    assert convert(tmp_path / "old", "new", shards=(16, 16), job="job", resume=True).n_skipped == 4
