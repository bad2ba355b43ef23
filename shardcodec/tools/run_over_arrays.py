# run_over_arrays.py - one run of a tool over the shards of several arrays
# SPDX-License-Identifier: MIT
"""`RunOverArrays`: `inspect`, `verify`, `repair` and `compact` work on arrays one after the other, each with its shards in threads or on dask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Generic, TypeVar

from .capped import Capped
from .jobs.shard_pool import ShardPool
from .jobs.shard_work import ArrayTask, ShardTool
from .targets import ArrayTarget, ShardTarget

__all__ = ["RunOverArrays"]

R = TypeVar("R")
L = TypeVar("L")


class RunOverArrays(ABC, Generic[R, L]):
    """One run over several arrays: results of shards are counted in their order, and records are listed or given to the caller.

    Parameters
    ----------
    pool : ShardPool
        It works on the shards; it may not be open yet.
    on_record : callable or None
        Called with each record, which is not listed then.
    fail_fast : bool
        Stop at the first record with findings.

    Attributes
    ----------
    is_stopped : bool
        A finding has stopped the run.
    """

    # The threads of this process advance the monitor themselves.
    _tool_advances = False

    def __init__(
        self, pool: ShardPool, on_record: Callable[[L], None] | None, *, fail_fast: bool = False
    ) -> None:
        self._pool, self._monitor, self._fail_fast = pool, pool.run.monitor, fail_fast
        self._listed: Capped[L] = Capped()
        self._tell = self._listed.add if on_record is None else on_record
        self.is_stopped: bool = False

    def run_over(self, arrays: Iterable[ArrayTarget]) -> None:
        """Work on arrays until the run is stopped."""
        for array in arrays:
            self._add(array)
            if self.is_stopped:
                break

    @abstractmethod
    def _add(self, array: ArrayTarget) -> None:
        """Work on one array."""

    @abstractmethod
    def _count(self, shards: Sequence[ShardTarget], result: R) -> None:
        """Count the result of some shards."""

    def _work_on(
        self,
        array: ArrayTarget,
        task: ArrayTask[R],
        tool: ShardTool[ShardTarget, R],
        shards: Iterable[ShardTarget],
    ) -> None:
        """Work on shards of one array until the run is stopped."""
        with closing(self._pool.results(task, tool, array, shards)) as results:
            for some, result in results:
                self._count(some, result)
                if not self._tool_advances or self._pool.is_remote:
                    self._monitor.advance(len(some))
                if self.is_stopped:
                    break

    def _list(self, record: L, n_findings: int = 0) -> None:
        """List a record, or give it to the caller."""
        self._tell(record)
        if self._fail_fast and n_findings:
            self.is_stopped = True
