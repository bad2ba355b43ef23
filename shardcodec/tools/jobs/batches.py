# batches.py - how much work a task of a cluster gets
# SPDX-License-Identifier: MIT
"""`Batches`: divides units of a plan, or shards, into batches of about `TARGET_SECONDS`, by what earlier ones have taken.

A batch of a second would be mostly administration; one of an hour is lost if its worker dies. The first size is an
estimate. Near the end batches become smaller, so that the workers end at about the same time.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from ..convert.plan import ConvertPlan, Unit
from ..monitor import Monitor, Stopped

__all__ = ["MOST_SECONDS", "BatchEnd", "Batches", "batches_of_plan"]

T = TypeVar("T")

# Work of the first batches, of later ones, and the time after which a worker returns the rest of a batch.
FIRST_SECONDS = 5.0
TARGET_SECONDS = 20.0
MOST_SECONDS = 60.0
# Elements per second of one thread, before any batch was measured.
FIRST_SPEED = 50e6
# A message to a worker names at most so many shards, with what is recorded of them.
MOST_SHARDS = 10_000


class Batches(Generic[T]):
    """The items that are left, such as units of a plan.

    Parameters
    ----------
    items : iterable
        It is read as batches are taken, so that no list of all items is made.
    cost : callable
        Returns the number of elements of an item.
    n_shards : callable
        Returns the number of shards of an item.
    left : int
        Elements of all items; too many do no harm, apart from larger batches at the end.
    """

    def __init__(
        self, items: Iterable[T], *, cost: Callable[[T], int], n_shards: Callable[[T], int], left: int
    ) -> None:
        self._item_cost, self._n_shards, self._left = cost, n_shards, left
        self._rest = iter(items)
        self._returned: deque[T] = deque()
        self._speed, self._seconds = FIRST_SPEED, FIRST_SECONDS

    def take(self, n_slots: int) -> list[T]:
        """Return the next batch; an empty one if nothing is left.

        Parameters
        ----------
        n_slots : int
            Batches that the workers run at the same time.
        """
        wanted = min(self._speed * self._seconds, self._left / (2 * max(1, n_slots)))
        batch: list[T] = []
        cost = n_shards = 0
        while not batch or (cost < wanted and n_shards < MOST_SHARDS):
            item = self._returned.popleft() if self._returned else next(self._rest, None)
            if item is None:
                break
            batch.append(item)
            cost += self._item_cost(item)
            n_shards += self._n_shards(item)
        self._left -= cost
        return batch

    def give_back(self, items: Sequence[T]) -> None:
        """Take items back that a worker has not run; they come next."""
        self._returned.extendleft(reversed(items))
        self._left += self._cost(items)

    def measured(self, items: Sequence[T], seconds: float) -> None:
        """Adapt the size of batches to the time that the items of one have taken."""
        speed = self._cost(items) / max(seconds, 1e-3)
        is_first = self._seconds == FIRST_SECONDS
        self._speed = speed if is_first else (self._speed + speed) / 2
        self._seconds = TARGET_SECONDS

    def _cost(self, items: Iterable[T]) -> int:
        return sum(map(self._item_cost, items))


class BatchEnd(Monitor):
    """Ends a batch in a worker when its time is over, or the worker is stopped.

    Parameters
    ----------
    is_stopped : callable
        Returns True if the worker is stopped.
    end : float
        Time of `time.monotonic`.
    """

    def __init__(self, is_stopped: Callable[[], bool], end: float) -> None:
        self._is_stopped, self._end = is_stopped, end

    def check(self) -> None:
        if self._is_stopped() or time.monotonic() >= self._end:
            raise Stopped


def batches_of_plan(plan: ConvertPlan, units: Iterable[Unit]) -> Batches[Unit]:
    """Return the batches of units of a plan."""
    shards = [math.prod(one.shards) for one in plan.arrays]
    costs = [n * math.prod(one.shard_shape) for n, one in zip(shards, plan.arrays, strict=True)]
    left = sum(math.prod(one.groups) * cost for one, cost in zip(plan.arrays, costs, strict=True))
    return Batches(
        units, cost=lambda unit: costs[unit.array], n_shards=lambda unit: shards[unit.array], left=left
    )
