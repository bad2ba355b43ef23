# test_plan_worker.py - batches of shards, and the workers that run them
# SPDX-License-Identifier: MIT
"""A batch may run twice, end early, or be sent to the wrong machine.

Each item comes once, and its result in order; sizes follow the measured times and shrink at the end.
"""

from __future__ import annotations

import itertools
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
from shardcodec.tools.convert.grouping import Grouping
from shardcodec.tools.convert.layout import NewLayout
from shardcodec.tools.convert.plan import ConvertPlan, PlannedArray, Unit
from shardcodec.tools.convert.write_group import GroupWork
from shardcodec.tools.convert.write_units import ConvertTask, PlanPlace, RecordedUnit, Totals, batches_of_plan
from shardcodec.tools.job_mark import MARK, claim
from shardcodec.tools.jobs.batches import (
    AHEAD,
    FIRST_SECONDS,
    FIRST_SPEED,
    MAX_SHARDS,
    TARGET_SECONDS,
    Batches,
    TaskBatch,
)
from shardcodec.tools.jobs.job_files import PlanFile
from shardcodec.tools.jobs.shard_work import ShardBatch, ShardWorker
from shardcodec.tools.new_hierarchy import NewHierarchy


@pytest.fixture
def planned(tmp_path: Path, new: Path, job: Path) -> PlanFile:
    plan_convert(source_array(tmp_path / "a.zarr"), new, job, parts=1, shards=SHARDS)
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
    assert len(batch.results) == 3 and totals_of(batch).counts["n_written"] == 9 and batch.seconds > 0
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
    assert not totals.failures and totals.counts["n_skipped"] >= 2
    assert not files(new)


@pytest.mark.parametrize(("memory", "most"), [(1 << 30, 3), (0, 1)])
def test_memory_bounds_the_batches_at_the_same_time(
    memory: int, most: int, tmp_path: Path, new: Path, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_convert(source_array(tmp_path / "a.zarr"), new, job, parts=1, shards=SHARDS, threads=3)
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


SHARD = 1000


def units_of(
    n: int, *, shard: int = SHARD, first: int | None = None
) -> tuple[Batches[Any, Any], list[RecordedUnit]]:
    """Return the batches of a plan of `n` units, and the first units."""
    layout, grouping = NewLayout({}, "encode"), Grouping((1,), None, 1, 1.0)
    array = PlannedArray("a", layout, (10,), (shard,), (n,), grouping)
    document = {"zarr_format": 3, "chunk_key_encoding": {"name": "default"}}
    plan = ConvertPlan("s", "d", (array,), {"a": document}, (), 1, 1, "none", "f")
    units = [(unit, {}) for unit in itertools.islice(plan.units(), min(n, 2000) if first is None else first)]
    every = ((unit, {}) for unit in plan.units()) if first is None else iter(units)
    return batches_of_plan(plan, every), units


def answer(*results: object, seconds: float = 0.0) -> ShardBatch:
    """Return the answer of a worker with one result for each item."""
    return ShardBatch([(1, result) for result in results], [], seconds, None, "host")


def taken(batches: Batches[Any, Any], n_slots: int = 1) -> TaskBatch[Any, Any]:
    batch = batches.take(n_slots)
    assert batch is not None
    return batch


def test_each_unit_comes_once_and_the_last_batches_are_small() -> None:
    batches, units = units_of(1000)
    sizes, results = [], []
    while batch := batches.take(4):
        sizes.append(len(batch.items))
        batches.add(batch, answer(*batch.items))
        results += [result for _, result in batches.ready()]
    assert results == units
    assert sizes[0] == 125 and sizes == sorted(sizes, reverse=True) and sizes[-1] == 1


def test_items_that_were_not_run_come_next_in_batches_of_the_measured_size() -> None:
    """The rest of a batch that was much too large was one batch again: one worker had it, and at the end the others had nothing."""
    batches, units = units_of(2000, shard=10**6)
    first, second = taken(batches), taken(batches)
    n = len(first.items)
    batches.add(first, answer(*first.items[:10], seconds=200.0))  # an item takes 20 s
    again = taken(batches)
    assert again.items == units[10:11]
    batches.add(second, answer(*second.items))
    assert [result for _, result in batches.ready()] == units[:10]
    batches.add(again, answer(*again.items))
    assert [result for _, result in batches.ready()] == units[10:11]
    assert taken(batches).items == units[11:12] and n > 100


def test_size_follows_the_measured_time() -> None:
    batches, _ = units_of(10**6, shard=10**6)
    first = taken(batches, 2)
    n = len(first.items)
    assert n == FIRST_SECONDS * FIRST_SPEED / 10**6
    batches.add(first, answer(*first.items, seconds=2.0 * n))  # a unit takes 2 s
    batch = taken(batches, 2)
    assert len(batch.items) == TARGET_SECONDS / 2
    for _ in range(30):
        batches.add(batch, answer(*batch.items, seconds=0.1 * len(batch.items)))
        list(batches.ready())
        batch = taken(batches, 2)
    assert 0.9 * TARGET_SECONDS / 0.1 <= len(batch.items) <= TARGET_SECONDS / 0.1


def test_shards_that_were_finished_before_say_nothing_about_the_time() -> None:
    """A job that is resumed skips them at once; the next batches would be far too large."""
    batches, _ = units_of(10**6, shard=10**6)
    first = taken(batches, 2)
    batches.add(first, answer(*first.items, seconds=0.0))
    assert len(taken(batches, 2).items) == len(first.items)


def test_batch_has_at_least_one_unit_and_not_too_many() -> None:
    slow, _ = units_of(10, shard=10**12)
    assert len(taken(slow).items) == 1
    many, _ = units_of(10**9, shard=1)  # no list of 10^9 units is made
    assert len(taken(many, 8).items) == MAX_SHARDS
    empty, _ = units_of(10**9, shard=1, first=0)
    assert empty.take(1) is None


def test_results_that_wait_for_an_earlier_one_are_bounded() -> None:
    batches, _ = units_of(10**6, shard=10**12)
    n = 0
    while batches.take(2) is not None:
        n += 1
    assert n == AHEAD * 3 + 1


def test_batch_that_ends_workers_is_divided_until_its_unit_has_failed() -> None:
    batches, units = units_of(40, shard=1000)
    results: list[Any] = []
    while batch := batches.take(1):
        if units[5] in batch.items:
            batches.divide(batch, RuntimeError("killed"))
        else:
            batches.add(batch, answer(*batch.items))
        results += [result for _, result in batches.ready()]
    (failed,) = [result for result in results if not isinstance(result, tuple)]
    assert (
        results.index(failed) == 5 and [one for one in results if one is not failed] == units[:5] + units[6:]
    )
    assert failed.failures.n == 1 and failed.failures[0].shard == "a/c/5"
    assert "ended several workers: killed" in failed.failures[0].detail


def test_unit_beside_one_that_ends_workers_is_run_alone_before_it_has_failed() -> None:
    """dask counts the death of a worker against all that wait there: a sound shard was reported as one that ends workers."""
    batches, units = units_of(3, shard=10**12)
    first, second = taken(batches), taken(batches)
    batches.divide(second, RuntimeError("killed"))
    assert batches.take(1, [first]) is None  # not beside another one
    batches.add(first, answer(*first.items))
    alone = taken(batches)
    assert alone.items == units[1:2] and batches.take(1, [alone]) is None
    batches.add(alone, answer(*alone.items))
    third = taken(batches)
    batches.add(third, answer(*third.items))
    assert [result for _, result in batches.ready()] == units


def test_error_of_a_batch_comes_after_the_results_before_it() -> None:
    batches, units = units_of(100, shard=10**12)
    first, second, third = taken(batches), taken(batches), taken(batches)
    batches.fail(second, ValueError("second"))
    batches.add(third, answer(*third.items))
    assert not list(batches.ready())
    batches.add(first, answer(*first.items))
    ready = batches.ready()
    assert [result for _, result in itertools.islice(ready, len(first.items))] == units[:1]
    with pytest.raises(ValueError, match="second"):
        next(ready)
    rest, errors = batches.rest()
    assert [result for _, result in rest] == units[2:3] and not errors
