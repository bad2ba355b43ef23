# test_convert_safety.py - what convert and its jobs must not write, and what complete means
# SPDX-License-Identifier: MIT
"""A new hierarchy belongs to one job; once it has metadata, the job writes nothing; a changed source or plan is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import zarr
from conversions import SQUARE as VALUES
from conversions import elements
from conversions import square_source as source
from zarr.storage import MemoryStore, ObjectStore, WrapperStore

from shardcodec.cli.app import run
from shardcodec.errors import ConflictError
from shardcodec.tools.convert import run_plan, write_group
from shardcodec.tools.convert.convert import convert, plan_convert
from shardcodec.tools.job_mark import MARK, claim, release
from shardcodec.tools.jobs.job_files import PlanFile
from shardcodec.tools.jobs.run_part import run_part, status
from shardcodec.tools.monitor import Monitor, Stopped
from shardcodec.tools.new_hierarchy import NewHierarchy


class KeysOfZarr(WrapperStore[MemoryStore]):
    """A store that refuses other keys, as that of icechunk does."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        super().__init__(store or MemoryStore())

    async def get(self, key: str, *arguments: Any, **options: Any) -> Any:
        self._check(key)
        return await super().get(key, *arguments, **options)

    async def set(self, key: str, value: Any) -> None:
        self._check(key)
        await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        self._check(key)
        await super().set_if_not_exists(key, value)

    async def delete(self, key: str) -> None:
        self._check(key)
        await super().delete(key)

    @staticmethod
    def _check(key: str) -> None:
        if key == MARK:
            raise ValueError(f"invalid key {key}")


def test_part_that_runs_again_keeps_what_users_wrote_after_the_end(tmp_path: Path) -> None:
    source(tmp_path / "old")
    plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", parts=1, shards=(16, 16))
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
        plan_convert(tmp_path / name, tmp_path / "new", tmp_path / f"{name}.json", parts=1, shards=(16, 16))
    assert run_part(tmp_path / "a.json", 0).is_complete
    with pytest.raises(FileExistsError, match="it has metadata, and the ledgers do not show"):
        run_part(tmp_path / "b.json", 0)
    assert [status(tmp_path / f"{name}.json").is_complete for name in "ab"] == [True, False]
    assert (elements(tmp_path / "new") == VALUES).all()


def test_group_that_another_program_made_at_the_destination_is_not_taken_for_the_end(tmp_path: Path) -> None:
    source(tmp_path / "old")
    plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", parts=1, shards=(16, 16))
    zarr.create_group(tmp_path / "new", attributes={"mine": 1})
    with pytest.raises(FileExistsError, match="it has metadata"):
        run_part(tmp_path / "plan", 0)
    assert dict(zarr.open_group(tmp_path / "new", mode="r").attrs) == {"mine": 1}


@pytest.mark.parametrize("how", [{}, {"chunks": (4, 4)}, {"chunks": (1, 1), "memory": 1200}], ids=str)
def test_shard_of_a_killed_run_does_not_stay_if_its_elements_are_gone(how: Any, tmp_path: Path) -> None:
    source(tmp_path / "old")
    plan = tmp_path / "plan"
    plan_convert(tmp_path / "old", tmp_path / "new", plan, parts=1, shards=(16, 16), threads=1, **how)
    assert run_part(plan, 0).is_complete
    (tmp_path / "new" / "zarr.json").unlink()  # as after a kill before the first line of the ledger
    claim(NewHierarchy(tmp_path / "new"), PlanFile.read(plan).job, None, is_begun=True)
    shutil.rmtree(tmp_path / "plan.ledger")
    shutil.rmtree(tmp_path / "old" / "c")
    assert run_part(plan, 0).is_complete
    assert (elements(tmp_path / "new") == elements(tmp_path / "old")).all()


def test_begun_job_keeps_others_away(tmp_path: Path) -> None:
    source(tmp_path / "a")
    source(tmp_path / "b")
    for name in "ab":
        plan_convert(tmp_path / name, tmp_path / "new", tmp_path / f"{name}.json", parts=2, shards=(16, 16))
    run_part(tmp_path / "a.json", 0)
    stored = (tmp_path / "new" / MARK).read_bytes()
    with pytest.raises(FileExistsError, match=r"the job .*a\.json writes there"):
        run_part(tmp_path / "b.json", 1)
    shutil.rmtree(tmp_path / "new" / "c")
    with pytest.raises(FileExistsError, match=r"the job .*a\.json writes there"):
        convert(tmp_path / "b", tmp_path / "new")
    with pytest.raises(FileExistsError, match="it has files"):
        plan_convert(tmp_path / "b", tmp_path / "new", tmp_path / "c.json", parts=1)
    assert (tmp_path / "new" / MARK).read_bytes() == stored
    assert not run_part(tmp_path / "a.json", 1).is_complete  # the shards of the first part are gone
    assert run_part(tmp_path / "a.json", 0).is_complete
    assert (elements(tmp_path / "new") == VALUES).all()
    assert sorted(one.name for one in (tmp_path / "new").iterdir()) == ["c", "zarr.json"]


def test_job_whose_worker_was_killed_at_the_very_end_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source(tmp_path / "old")
    plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", parts=1, shards=(16, 16))

    def killed(self: Any, documents: Any, **how: Any) -> None:
        write(self, documents, **how)
        raise KeyboardInterrupt

    write = NewHierarchy.write_documents
    with monkeypatch.context() as patch:
        patch.setattr(NewHierarchy, "write_documents", killed)
        with pytest.raises(KeyboardInterrupt):
            run_part(tmp_path / "plan", 0)
    assert (tmp_path / "new" / MARK).exists()
    zarr.open_array(tmp_path / "new", mode="r+")[...] = -5
    report = run_part(tmp_path / "plan", 0)
    assert (report.is_complete, report.n_written, report.n_skipped) == (True, 0, 4)
    assert (elements(tmp_path / "new") == -5).all()
    assert not (tmp_path / "new" / MARK).exists()
    # without the killed worker's line in a ledger, a third worker found neither it nor the mark, and took the array for foreign
    assert status(tmp_path / "plan").is_complete
    assert run_part(tmp_path / "plan", 0).is_complete


def test_worker_that_is_still_running_at_the_end_writes_nothing_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part runs twice at the same time; a user writes after the first one has ended."""
    source(tmp_path / "old")
    plan = tmp_path / "plan"
    plan_convert(tmp_path / "old", tmp_path / "new", plan, parts=1, shards=(16, 16), threads=1)
    runs = []
    original = write_group.GroupWork.run

    def run_other_first(self: Any, unit: Any) -> Any:
        if not runs:
            runs.append(unit)
            assert run_part(plan, 0).is_complete
            zarr.open_array(tmp_path / "new", mode="r+")[...] = -5
        return original(self, unit)

    monkeypatch.setattr(write_group.GroupWork, "run", run_other_first)
    report = run_part(plan, 0)
    assert (report.is_complete, report.n_written) == (True, 0)
    assert (elements(tmp_path / "new") == -5).all()


def test_job_that_ends_while_a_worker_begins_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has read the ledgers, which were empty, and then finds files without a mark."""
    source(tmp_path / "old")
    plan = tmp_path / "plan"
    plan_convert(tmp_path / "old", tmp_path / "new", plan, parts=1, shards=(16, 16))
    original = run_plan.claim

    def run_other_first(*arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(run_plan, "claim", original)
        assert run_part(plan, 0).is_complete
        original(*arguments, **options)

    monkeypatch.setattr(run_plan, "claim", run_other_first)
    report = run_part(plan, 0)
    assert (report.is_complete, report.n_written, report.n_skipped) == (True, 0, 4)


@pytest.mark.parametrize("kind", ["memory", "object store"])
def test_stores_have_the_mark_only_until_the_end(kind: str) -> None:
    new: Any = MemoryStore()
    if kind == "object store":
        obstore = pytest.importorskip("obstore", reason="obstore is not installed")
        new = ObjectStore(obstore.store.MemoryStore())
    tree = NewHierarchy(new)
    claim(tree, "first", "plan.json", is_begun=False)
    claim(tree, "first", "plan.json", is_begun=False)
    with pytest.raises(FileExistsError, match=r"the job plan\.json writes there"):
        claim(tree, "second", None, is_begun=True)
    with pytest.raises(FileExistsError, match="expected a new place"):
        convert(VALUES, new, chunks=(8, 8))
    release(tree)
    convert(VALUES, new, chunks=(8, 8))
    assert tree.get(MARK) is None and tree.is_complete


def test_store_that_takes_only_keys_of_zarr_has_no_mark() -> None:
    new = KeysOfZarr()
    with pytest.raises(ValueError, match="invalid key"):
        NewHierarchy(new).get(MARK)
    assert convert(VALUES, new, chunks=(8, 8), shards=(16, 16)).is_complete
    assert (elements(new) == VALUES).all()


def test_destination_that_is_a_file(tmp_path: Path) -> None:
    source(tmp_path / "old")
    (tmp_path / "new").write_text("x")
    with pytest.raises(FileExistsError):
        plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", parts=1)
    (tmp_path / "new").unlink()
    plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", parts=1)
    (tmp_path / "new").write_text("x")
    with pytest.raises(OSError, match="new"):
        run_part(tmp_path / "plan", 0)
    assert (tmp_path / "new").read_text() == "x"


def test_source_that_changed_between_two_parts_is_noticed(tmp_path: Path) -> None:
    array = source(tmp_path / "old")
    plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", parts=2, shards=(16, 16))
    run_part(tmp_path / "plan", 0)
    array[...] = VALUES + 7
    with pytest.raises(ConflictError, match=r"the source of shard .* has changed"):
        run_part(tmp_path / "plan", 1)
    assert not (tmp_path / "new" / "zarr.json").exists()


def test_source_that_changed_while_a_job_ran_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    array = source(tmp_path / "old")
    original = write_group.GroupWork.run

    def run_and_change(self: Any, unit: Any) -> Any:
        found = original(self, unit)
        array[...] = VALUES + sum(unit.group)
        return found

    monkeypatch.setattr(write_group.GroupWork, "run", run_and_change)
    with pytest.raises(ConflictError, match=r"the source of shard .* has changed"):
        convert(tmp_path / "old", tmp_path / "new", shards=(16, 16), job=tmp_path / "job", threads=1)
    assert not (tmp_path / "new" / "zarr.json").exists()


def test_shard_that_is_gone_before_the_end_is_named(tmp_path: Path) -> None:
    source(tmp_path / "old")
    plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", parts=2, shards=(16, 16))
    run_part(tmp_path / "plan", 0)
    (tmp_path / "new" / "c" / "0" / "0").unlink()
    report = run_part(tmp_path / "plan", 1)
    assert (report.is_complete, report.n_failed) == (False, 1)
    assert report.failures[0].shard == str(tmp_path / "new" / "c" / "0" / "0")
    (tmp_path / "new" / "c" / "0" / "1").unlink()
    assert run(["run-part", str(tmp_path / "plan"), "1", "--progress", "none"]) == 4
    assert run(["run-part", str(tmp_path / "plan"), "0", "--progress", "none"]) == 0


def test_plan_that_was_damaged_is_refused(tmp_path: Path) -> None:
    source(tmp_path / "old")
    plan = tmp_path / "plan"
    plan_convert(tmp_path / "old", tmp_path / "new", plan, parts=1, shards=(16, 16))
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
    plan_convert(tmp_path / "old", tmp_path / "new", tmp_path / "plan", parts=1, shards=(16, 16))
    monkeypatch.setattr(write_group.GroupWork, "unfinished", _stopped)
    code = run(["run-part", str(tmp_path / "plan"), "0", "--progress", "none"])
    assert not (tmp_path / "new" / "zarr.json").exists()
    assert code == 4


def _stopped(self: Any, monitor: Monitor) -> int:
    raise Stopped


@pytest.mark.parametrize("relative", ["old", "./old", "old/"])
def test_plan_of_a_relative_path(relative: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source(tmp_path / "old")
    plan_convert(relative, "new", "plan", parts=1, shards=(16, 16))
    assert run_part("plan", 0).is_complete


def test_resume_with_another_spelling_of_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    source(tmp_path / "old")
    convert("old", "new", shards=(16, 16), job="job")
    assert convert(tmp_path / "old", "new", shards=(16, 16), job="job", resume=True).n_skipped == 4
