# batches.py - how many units a task of a cluster gets
# SPDX-License-Identifier: MIT
"""`Batches`: divides the units of a plan into batches of about `TARGET_SECONDS`, by what earlier ones have taken.

A batch of a second would be mostly administration; one of an hour is lost if its worker dies. The first size is an
estimate. Near the end batches become smaller, so that the workers end at about the same time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence

from ..convert.plan import ConvertPlan, Unit

__all__ = ["MOST_SECONDS", "Batches"]

# Work of the first batches, of later ones, and the time after which a worker returns the rest of a batch.
FIRST_SECONDS = 5.0
TARGET_SECONDS = 20.0
MOST_SECONDS = 60.0
# Elements per second of one thread, before any batch was measured.
FIRST_SPEED = 50e6
# A message to a worker names at most so many shards, with what is recorded of them.
MOST_SHARDS = 10_000


class Batches:
    """The units that are left.

    Parameters
    ----------
    plan : ConvertPlan
    units : iterable of Unit
        Units of the plan. It is read as batches are taken, so that no list of all units is made.
    """

    def __init__(self, plan: ConvertPlan, units: Iterable[Unit]) -> None:
        self._n_shards = [math.prod(one.shards) for one in plan.arrays]
        self._costs = [math.prod(one.shards) * math.prod(one.shard_shape) for one in plan.arrays]
        self._left = sum(
            math.prod(one.groups) * cost for one, cost in zip(plan.arrays, self._costs, strict=True)
        )
        self._rest = iter(units)
        self._returned: deque[Unit] = deque()
        self._speed, self._seconds = FIRST_SPEED, FIRST_SECONDS

    def take(self, n_slots: int) -> list[Unit]:
        """Return the next batch; an empty one if nothing is left.

        Parameters
        ----------
        n_slots : int
            Batches that the workers run at the same time.
        """
        wanted = min(self._speed * self._seconds, self._left / (2 * max(1, n_slots)))
        batch: list[Unit] = []
        cost = n_shards = 0
        while not batch or (cost < wanted and n_shards < MOST_SHARDS):
            unit = self._returned.popleft() if self._returned else next(self._rest, None)
            if unit is None:
                break
            batch.append(unit)
            cost += self._costs[unit.array]
            n_shards += self._n_shards[unit.array]
        self._left -= cost
        return batch

    def give_back(self, units: Sequence[Unit]) -> None:
        """Take units back that a worker has not run; they come next."""
        self._returned.extendleft(reversed(units))
        self._left += self._cost(units)

    def measured(self, units: Sequence[Unit], seconds: float) -> None:
        """Adapt the size of batches to the time that the units of one have taken."""
        speed = self._cost(units) / max(seconds, 1e-3)
        is_first = self._seconds == FIRST_SECONDS
        self._speed = speed if is_first else (self._speed + speed) / 2
        self._seconds = TARGET_SECONDS

    def _cost(self, units: Iterable[Unit]) -> int:
        return sum(self._costs[unit.array] for unit in units)
