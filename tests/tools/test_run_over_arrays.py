# test_run_over_arrays.py - the one loop of the tools over arrays and shards
# SPDX-License-Identifier: MIT

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from shardcodec.tools.capped import LISTED
from shardcodec.tools.run_over_arrays import RunOverArrays


class Pool:
    """Gives each shard its own name as the result, and notes what was asked for and whether the results were closed."""

    def __init__(self, *, is_remote: bool = False) -> None:
        self.is_remote, self.n_advanced, self.n_closed = is_remote, 0, 0
        self.run = SimpleNamespace(monitor=SimpleNamespace(advance=self.advance))

    def advance(self, n: int) -> None:
        self.n_advanced += n

    def results(self, _task: Any, _tool: Any, _array: Any, shards: Any) -> Iterator[tuple[list[Any], Any]]:
        try:
            for shard in shards:
                yield [shard], shard
        finally:
            self.n_closed += 1


class Run(RunOverArrays[Any, Any]):
    def __init__(self, pool: Any, on_record: Callable[[Any], None] | None = None, **how: bool) -> None:
        super().__init__(pool, on_record, **how)
        self.seen: list[Any] = []

    def _add(self, array: Any) -> None:
        self._work_on(array, None, None, array)  # type: ignore[arg-type]

    def _count(self, shards: Sequence[Any], result: Any) -> None:
        self.seen += shards
        self._list(result, n_findings=result < 0)

    @property
    def listed(self) -> list[Any]:
        return self._listed


class AdvancedByThreads(Run):
    _tool_advances = True


ARRAYS: Any = [[1, -2, 3], [4]]


def test_all_shards_of_all_arrays_are_counted_in_their_order() -> None:
    pool = Pool()
    run = Run(pool)
    run.run_over(ARRAYS)
    assert run.seen == run.listed == [1, -2, 3, 4] and not run.is_stopped
    assert (pool.n_advanced, pool.n_closed) == (4, 2)


def test_a_finding_stops_the_shards_and_the_arrays() -> None:
    pool = Pool()
    run = Run(pool, fail_fast=True)
    run.run_over(ARRAYS)
    assert run.seen == [1, -2] and run.is_stopped
    assert (pool.n_advanced, pool.n_closed) == (2, 1)


def test_records_that_the_caller_gets_are_not_listed() -> None:
    told: list[Any] = []
    run = Run(Pool(), told.append)
    run.run_over(ARRAYS)
    assert told == [1, -2, 3, 4] and run.listed == []


def test_a_report_lists_the_first_records() -> None:
    run = Run(Pool())
    run.run_over([range(LISTED + 5)])  # type: ignore[list-item]
    assert len(run.listed) == LISTED and len(run.seen) == LISTED + 5


@pytest.mark.parametrize(("is_remote", "n"), [(False, 0), (True, 4)])
def test_threads_that_advance_the_progress_themselves_are_not_counted_twice(is_remote: bool, n: int) -> None:
    pool = Pool(is_remote=is_remote)
    AdvancedByThreads(pool).run_over(ARRAYS)
    assert pool.n_advanced == n
