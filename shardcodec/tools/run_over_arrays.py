# run_over_arrays.py - one run of a tool that writes shards, over several arrays
# SPDX-License-Identifier: MIT
"""`RunOverArrays`: what `repair` and `compact` do with each array and each shard, and the results that their reports list."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any, Generic, TypeVar

from .hierarchy_copy import HierarchyCopy
from .jobs.shard_pool import ShardPool
from .jobs.shard_work import ArrayTask, ShardTool
from .other_objects import NO_OBJECTS, OtherObjects
from .report import LeftArray
from .targets import ArrayTarget, ForeignObject, ShardTarget
from .work import Monitor

__all__ = ["RunOverArrays", "check_only_arrays"]

# Shards that a report lists.
MOST_SHARDS = 1000

R = TypeVar("R")


class RunOverArrays(ABC, Generic[R]):
    """One run over several arrays.

    Parameters
    ----------
    to : HierarchyCopy or None
        The new hierarchy, which gets the arrays without readable shards as they are.
    pool : ShardPool
        It works on the shards.
    monitor : Monitor
    on_shard : callable or None
        Called with each result, which the report does not list then.

    Attributes
    ----------
    n_shards : int
        Shards that were looked at.
    listed : list
        The first `MOST_SHARDS` results.
    left : list of LeftArray
        Arrays without readable shards.
    others : ObjectCounts
        Objects that belong to no array.
    """

    def __init__(
        self,
        to: HierarchyCopy | None,
        pool: ShardPool,
        monitor: Monitor,
        on_shard: Callable[[R], None] | None,
    ) -> None:
        self._to, self._pool, self._monitor, self._on_shard = to, pool, monitor, on_shard
        self.n_shards = 0
        self.listed: list[R] = []
        self.left: list[LeftArray] = []
        self.others = NO_OBJECTS

    def add_all(self, arrays: Iterable[ArrayTarget]) -> None:
        """Work on all arrays.

        Raises
        ------
        Stopped
            `monitor` stopped the work.
        """
        for one in arrays:
            if one.is_sharded:
                self._add(one)
            else:
                self._leave(one)

    def copy_others(self, others: OtherObjects | None) -> None:
        """Copy the objects that belong to no array to the new hierarchy.

        Raises
        ------
        Stopped
            `monitor` stopped the work.
        """
        if others is not None and self._to is not None:
            self.others = self._to.copy_others(others, self._monitor)

    @abstractmethod
    def _add(self, array: ArrayTarget) -> None:
        """Work on one array, by `_work_on`."""

    @abstractmethod
    def _count(self, done: R) -> None:
        """Count the result of one shard."""

    def _work_on(
        self, array: ArrayTarget, task: ArrayTask[R | None], tool: ShardTool[ShardTarget, R | None]
    ) -> None:
        """Work on the shards of one array; those with the result None need nothing."""
        shards = (one for one in array.objects() if not isinstance(one, ForeignObject))
        with closing(self._pool.results(task, tool, array, shards)) as results:
            for _, done in results:
                self.n_shards += 1
                if done is not None:
                    self._note(done)
                self._monitor.advance()

    def _note(self, done: R) -> None:
        self._count(done)
        if self._on_shard is not None:
            self._on_shard(done)
        elif len(self.listed) < MOST_SHARDS:
            self.listed.append(done)

    def _leave(self, array: ArrayTarget) -> None:
        if self._to is not None:
            self._to.copy_all(array)
        self.left.append(LeftArray.of(array))


def check_only_arrays(only_arrays: bool, to: Any) -> None:
    """Raise `ValueError` for an option of a new hierarchy without one."""
    if only_arrays and to is None:
        raise ValueError("only_arrays: expected `to` (--to), a new place, because nothing is copied in place")
