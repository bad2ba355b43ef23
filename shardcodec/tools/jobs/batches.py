# batches.py - which shards a worker gets next, and their results in order
# SPDX-License-Identifier: MIT
"""`Batches`: divides shards, or units of a plan, into batches of about `TARGET_SECONDS`, and puts the results in order.

A batch of a second would be mostly administration; one of an hour is lost if its worker dies. The first size is an
estimate; later ones follow the measured times. Near the end batches become smaller, so that the workers end at about the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from .shard_work import ShardBatch, unseen

__all__ = ["Batches", "TaskBatch"]

I = TypeVar("I")  # noqa: E741 - an item: a shard, or a unit of a plan
R = TypeVar("R")

# Seconds of work in the first batches, and in later ones.
FIRST_SECONDS = 5.0
TARGET_SECONDS = 20.0
# Elements per second of one thread, before any batch was measured.
FIRST_SPEED = 50e6
# A message to a worker names at most so many shards, with what is recorded of them.
MAX_SHARDS = 10_000
# Batches whose results wait for those of an earlier one, for each batch that runs.
AHEAD = 4


@dataclass(eq=False)
class TaskBatch(Generic[I, R]):
    """Items that lie one after the other, and their results. A suspect has ended workers, perhaps by a batch beside it."""

    items: list[I]
    is_suspect: bool = False
    results: list[tuple[list[I], R]] = field(default_factory=list)
    has_ended: bool = False
    error: BaseException | None = None


class Batches(Generic[I, R]):
    """The items of one run, in their order.

    Parameters
    ----------
    items : iterable
        It is read as batches are taken, so that no list of all items is made.
    cost : callable
        Returns the number of elements of an item.
    n_shards : callable
        Returns the number of shards of an item.
    left : int
        Elements of all items; a number that is too large makes the last batches larger.
    failed : callable
        Returns the result of an item that ends its workers; called with the item and the reason.
    """

    def __init__(
        self,
        items: Iterable[I],
        *,
        cost: Callable[[I], int],
        n_shards: Callable[[I], int],
        left: int,
        failed: Callable[[I, str], R],
    ) -> None:
        self._item_cost, self._n_shards, self._left, self._failed = cost, n_shards, left, failed
        self._rest = iter(items)
        self._order: deque[TaskBatch[I, R]] = deque()
        self._again: deque[TaskBatch[I, R]] = deque()  # batches in `_order` that a worker must still get
        self._speed, self._seconds = FIRST_SPEED, FIRST_SECONDS

    def take(self, n_slots: int, running: Collection[TaskBatch[I, R]] = ()) -> TaskBatch[I, R] | None:
        """Return the next batch; None if there is none now.

        A suspect runs alone, because dask counts the death of a worker against each batch that waits there, too. Too
        many results that wait for an earlier one are another reason for None.

        Parameters
        ----------
        n_slots : int
            Batches that the workers run at the same time.
        running : collection of TaskBatch
            Those that have not ended.
        """
        if any(batch.is_suspect for batch in running) or (
            running and self._again and self._again[0].is_suspect
        ):
            return None
        if self._again:
            batch = self._again.popleft()
            items = batch.items
            batch.items = self._fill(iter(items), n_slots)
            self._left -= self._cost(items)
            self._insert(batch, items[len(batch.items) :])
            return batch
        if len(self._order) > AHEAD * (n_slots + 1):
            return None
        items = self._fill(self._rest, n_slots)
        if not items:
            return None
        self._left -= self._cost(items)
        self._order.append(TaskBatch(items))
        return self._order[-1]

    def add(self, batch: TaskBatch[I, R], answer: ShardBatch) -> None:
        """Add the answer of a worker; the items that it has not come to are the next batch."""
        batch.has_ended = True
        n_done = 0
        for n, result in answer.results:
            batch.results.append((batch.items[n_done : n_done + n], result))
            n_done += n
        if n_done and answer.seconds:
            self._measure(batch.items[:n_done], answer.seconds)
        batch.error = answer.error or unseen(batch.items, answer)
        if batch.error is None:
            self._insert(batch, batch.items[n_done:])

    def fail(self, batch: TaskBatch[I, R], error: BaseException) -> None:
        """Note that a batch has no results, because a worker could not begin it."""
        batch.has_ended, batch.error = True, error

    def divide(self, batch: TaskBatch[I, R], error: BaseException) -> None:
        """Run both halves of a batch that ended several workers, and a single item alone, which has failed if it does so again."""
        batch.has_ended = True
        if batch.is_suspect:
            detail = f"dask: the work on it ended several workers: {error}"
            batch.results.append((batch.items, self._failed(batch.items[0], detail)))
        elif len(batch.items) == 1:
            self._insert(batch, batch.items, is_suspect=True)
        else:
            half = len(batch.items) // 2
            self._insert(batch, batch.items[half:])
            self._insert(batch, batch.items[:half])

    def ready(self) -> Iterator[tuple[list[I], R]]:
        """Yield the results of all batches up to the first that still runs. An error of a batch is raised after its results."""
        while self._order and self._order[0].has_ended:
            batch = self._order.popleft()
            yield from batch.results
            if batch.error is not None:
                raise batch.error

    def rest(self) -> tuple[Iterator[tuple[list[I], R]], list[BaseException]]:
        """Return the results and the errors behind the first batch that has not ended, of a run that is given up."""
        results = chain.from_iterable(batch.results for batch in self._order)
        return results, [batch.error for batch in self._order if batch.error is not None]

    def _insert(self, batch: TaskBatch[I, R], items: list[I], *, is_suspect: bool = False) -> None:
        """Run items later, whose results come after those of a batch."""
        if items:
            later: TaskBatch[I, R] = TaskBatch(items, is_suspect)
            self._order.insert(self._order.index(batch) + 1, later)
            self._again.appendleft(later)
            self._left += self._cost(items)

    def _fill(self, items: Iterator[I], n_slots: int) -> list[I]:
        """Return the items of the next batch; none only if none is left."""
        most = min(self._speed * self._seconds, self._left / (2 * max(1, n_slots)))
        batch: list[I] = []
        cost = n_shards = 0
        while not batch or (cost < most and n_shards < MAX_SHARDS):
            item = next(items, None)
            if item is None:
                break
            batch.append(item)
            cost += self._item_cost(item)
            n_shards += self._n_shards(item)
        return batch

    def _measure(self, items: Iterable[I], seconds: float) -> None:
        """Adapt the size of batches to the time that these items have taken."""
        speed = self._cost(items) / max(seconds, 1e-3)
        is_first = self._seconds == FIRST_SECONDS
        self._speed = speed if is_first else (self._speed + speed) / 2
        self._seconds = TARGET_SECONDS

    def _cost(self, items: Iterable[I]) -> int:
        return sum(map(self._item_cost, items))
