# test_plan_worker.py - a process that runs batches of a plan
# SPDX-License-Identifier: MIT
"""A batch may run twice, end early, or be sent to the wrong machine."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from job_files import N_SHARDS, SHARDS, check, files, shards_by_ledger, source_array

from shardcodec.errors import ConflictError
from shardcodec.options import resolve
from shardcodec.tools import plan_convert, run_part
from shardcodec.tools.convert import array_conversion
from shardcodec.tools.convert.plan import Unit
from shardcodec.tools.convert.units import ConvertTask, PlanPlace, Totals
from shardcodec.tools.convert.work import GroupWork
from shardcodec.tools.job_mark import MARK, claim
from shardcodec.tools.jobs.job_files import PlanFile
from shardcodec.tools.jobs.shard_work import ShardBatch, ShardWorker
from shardcodec.tools.new_hierarchy import NewHierarchy


@pytest.fixture
def planned(tmp_path: Path, new: Path, job: Path) -> PlanFile:
    plan_convert(source_array(tmp_path / "a.zarr"), new, job, n_parts=1, shards=SHARDS)
    found = PlanFile.read(job)
    claim(NewHierarchy(found.destination), found.job, str(job), is_begun=False)
    return found


def worker_of(
    file: PlanFile,
    *,
    n_threads: int = 1,
    memory: int = 1 << 30,
    job: str | None = None,
    owner: str | None = None,
) -> ShardWorker:
    place = PlanPlace(job or file.path, owner or file.job)
    return ShardWorker(place, ConvertTask(False), resolve(), n_threads=n_threads, memory=memory)


def unrecorded(units: Iterable[Unit]) -> list[tuple[Unit, Any]]:
    """Return units of whose shards nothing is recorded."""
    return [(unit, {}) for unit in units]


def totals_of(batch: ShardBatch) -> Totals:
    totals = Totals()
    for _, part in batch.results:
        totals.add(part)
    return totals


def test_batches_that_run_twice_store_the_same_bytes(planned: PlanFile, new: Path, job: Path) -> None:
    units = list(planned.plan.units())
    workers = [worker_of(planned, n_threads=2), worker_of(planned)]
    threads = [
        threading.Thread(target=worker.run, args=(unrecorded(some), 60.0))
        for worker, some in ((workers[0], units), (workers[0], units[::-1]), (workers[1], units))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for worker in workers:
        worker.stop()
    assert sum(map(len, shards_by_ledger(job).values())) == 3 * N_SHARDS
    before = files(new)
    report = run_part(job, 0)
    assert report.is_complete and report.n_skipped == N_SHARDS and files(new) == before
    check(new)


def test_worker_returns_the_rest_of_a_batch(planned: PlanFile, job: Path) -> None:
    units = list(planned.plan.units())
    worker = worker_of(planned)
    assert len(units) == 4
    assert not worker.run(unrecorded(units), 0.0).results
    batch = worker.run(unrecorded(units[:3]), 60.0)
    assert len(batch.results) == 3 and totals_of(batch).n_written == 9 and batch.seconds > 0
    worker.stop()
    assert not worker.run(unrecorded(units[3:]), 60.0).results
    assert sum(map(len, shards_by_ledger(job).values())) == 9


def test_worker_refuses_the_plan_of_another_job(planned: PlanFile) -> None:
    worker = worker_of(planned, owner="another")
    with pytest.raises(ConflictError, match="expected the plan of the job another"):
        worker.run([], 1.0)
    missing = worker_of(planned, job=f"{planned.path}.gone")
    with pytest.raises(FileNotFoundError, match="all workers must reach the plan"):
        missing.run([], 1.0)


def test_worker_refuses_a_destination_without_the_mark_of_the_job(planned: PlanFile, new: Path) -> None:
    (new / MARK).unlink()  # as on a machine where the path leads to another disk
    with pytest.raises(FileNotFoundError, match="all workers must reach the destination under the same path"):
        worker_of(planned).run(unrecorded(planned.plan.units()), 1.0)
    assert not files(new)


def test_worker_refuses_a_complete_destination_of_another_job(planned: PlanFile, new: Path) -> None:
    """The path led to another disk with an older copy: all shards counted as written, and the job ended complete."""
    (new / MARK).unlink()
    (new / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    with pytest.raises(FileNotFoundError, match="all workers must reach the destination under the same path"):
        worker_of(planned).run(unrecorded(planned.plan.units()), 1.0)
    assert not files(new)


@pytest.mark.parametrize("end", ["documents", "no mark", "another mark"])
def test_worker_that_wakes_up_after_the_end_stores_nothing(
    end: str, planned: PlanFile, new: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had read a group before the job ended. Its late shards replaced what users had written since."""
    worker = worker_of(planned)
    original = array_conversion.copy_chunks

    def late(*arguments: Any, **how: Any) -> Any:
        copied = original(*arguments, **how)
        if end == "documents":
            (new / "zarr.json").write_text("{}")
        else:
            (new / MARK).unlink(missing_ok=True)
        if end == "another mark":
            (new / MARK).write_text('{"job": "another"}')
        return copied

    monkeypatch.setattr(array_conversion, "copy_chunks", late)
    totals = totals_of(worker.run(unrecorded(planned.plan.units())[:1], 60.0))
    assert totals.n_failed == 0 and totals.n_skipped >= 2
    assert not files(new)


@pytest.mark.parametrize(("memory", "most"), [(1 << 30, 3), (0, 1)])
def test_memory_bounds_the_batches_at_the_same_time(
    memory: int, most: int, tmp_path: Path, new: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_convert(source_array(tmp_path / "a.zarr"), new, job, n_parts=1, shards=SHARDS, threads=3)
    file = PlanFile.read(job)
    claim(NewHierarchy(file.destination), file.job, str(job), is_begun=False)
    (need,) = (array.grouping.need_nbytes for array in file.plan.arrays)
    running, seen = [], []
    original = GroupWork.run

    def watched(self: GroupWork, unit: Unit) -> Any:
        running.append(unit)
        end = time.monotonic() + 60
        while len(running) < most and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.1)  # one more batch might begin
        seen.append(len(running))
        try:
            return original(self, unit)
        finally:
            running.remove(unit)

    monkeypatch.setattr(GroupWork, "run", watched)
    worker = worker_of(file, n_threads=3, memory=memory or need)
    units = list(file.plan.units())[:3]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda unit: worker.run(unrecorded([unit]), 60.0), units))
    assert max(seen) == most
