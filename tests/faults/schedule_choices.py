# schedule_choices.py - which actors work together, and who has the next turn
# SPDX-License-Identifier: MIT
"""`Case`: actors and the start. `Policy`: chooses the next turn: `Bounded` for enumerations, `Swizzled` at random, `Given` as it is told."""

from __future__ import annotations

import itertools
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from faults.schedule_actors import KINDS, LAYOUTS, STARTS

__all__ = [
    "Bounded",
    "Case",
    "Given",
    "Policy",
    "Swizzled",
    "Turn",
    "all_pairs",
    "next_points",
    "random_group",
]

# They change nothing, unless there is a journal.
PASSIVE = {"reader", "twin", "verify"}


class Case(NamedTuple):
    """The actors of a schedule, and the files from which they start."""

    start: str
    layout: str
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.start}/{self.layout}/{'+'.join(self.kinds)}"

    @classmethod
    def named(cls, name: str) -> Case:
        start, layout, kinds = name.split("/")
        return cls(start, layout, tuple(kinds.split("+")))


class Turn(NamedTuple):
    """An actor makes so many calls (-1: until it ends or waits), or is killed."""

    actor: int
    n_calls: int = -1
    kills: bool = False


class Policy(ABC):
    @abstractmethod
    def turn(self, ready: Sequence[int], remaining: Sequence[int]) -> Turn:
        """Return the next turn: of an actor that is ready; one that remains may be killed."""

    def made(self, actor: int, n_calls: int, *, stopped: bool) -> None:  # noqa: B027
        """Note the calls of the last turn. `stopped`: it made all of them, and goes on."""


class _OneAfterAnother(Policy):
    """An actor goes on until it ends or waits; then comes the next one."""

    def __init__(self, first: int = 0) -> None:
        self.current = first

    def turn(self, ready: Sequence[int], remaining: Sequence[int]) -> Turn:
        if self.current not in ready:
            self.advance(ready)
        return Turn(self.current)

    def advance(self, ready: Sequence[int]) -> None:
        """Let the next actor that is ready have the turn."""
        later = [number for number in ready if number > self.current]
        others = [number for number in ready if number != self.current]
        self.current = min(later or others or ready)


class Bounded(_OneAfterAnother):
    """One after another, with some preemptions: at each of `points`, counted in calls of all actors since the one before.

    kills: the actor that is stopped at the last point is killed there. has_effect: False if the last point came after the end, or when
    no other actor remained: then no larger number makes another schedule.
    """

    def __init__(self, first: int, points: Sequence[int], *, kills: bool = False) -> None:
        super().__init__(first)
        self._points = list(points)
        self._kills = kills
        self._is_due = False
        self.has_effect = False

    def turn(self, ready: Sequence[int], remaining: Sequence[int]) -> Turn:
        if self._is_due:
            self._is_due = False
            self.has_effect = not self._points and (self._kills or len(remaining) > 1)
            if self._kills and not self._points and self.current in remaining:
                return Turn(self.current, kills=True)
            self.advance(ready)
        elif self.current not in ready:
            self.advance(ready)
        return Turn(self.current, self._points[0] if self._points else -1)

    def made(self, actor: int, n_calls: int, *, stopped: bool) -> None:
        if self._points:
            self._points[0] -= n_calls
            if stopped:
                del self._points[0]
                self._is_due = True


def next_points(points: Sequence[int], n: int, *, has_effect: bool) -> list[int] | None:
    """Return the n points after these, in an enumeration that leaves out lists without effect; None after the last ones."""
    later = list(points)
    if not has_effect:
        later.pop()
    if not later:
        return None
    later[-1] += 1
    return later + [1] * (n - len(later))


class Swizzled(Policy):
    """Turns at random, from a seed, and kills at random moments."""

    LENGTHS = (1, 1, 1, 2, 2, 3, 5, 8, 13, 21, 34, -1)

    def __init__(self, seed: str, n_actors: int) -> None:
        self._chance = random.Random(seed)
        self._lengths = self._chance.choice([self.LENGTHS, (1,), (1, 2, 5), (5, 20, 40, -1)])
        n_kills = min(self._chance.choice([0, 0, 1, 1, 2]), n_actors - 1)
        self._kills = sorted(self._chance.randrange(1, 80 * n_actors) for _ in range(n_kills))
        self._n_calls = 0

    def turn(self, ready: Sequence[int], remaining: Sequence[int]) -> Turn:
        if self._kills and self._n_calls >= self._kills[0]:
            del self._kills[0]
            return Turn(self._chance.choice(remaining), kills=True)
        return Turn(self._chance.choice(ready), self._chance.choice(self._lengths))

    def made(self, actor: int, n_calls: int, *, stopped: bool) -> None:
        self._n_calls += max(n_calls, 1)


class Given(_OneAfterAnother):
    """The turns that a problem has named: "0:17,1:*,0:k" - 17 calls of actor 0, actor 1 until it ends or waits, a kill of actor 0."""

    def __init__(self, choices: str) -> None:
        super().__init__()
        self._turns = [word.split(":") for word in choices.split(",") if word]

    def turn(self, ready: Sequence[int], remaining: Sequence[int]) -> Turn:
        if not self._turns:
            return super().turn(ready, remaining)
        actor, what = self._turns.pop(0)
        self.current = int(actor)
        return Turn(int(actor), -1 if what in "*k" else int(what), kills=what == "k")


# ---------------------------------------------------------------- who works together


def is_possible(case: Case) -> bool:
    """Return False if what an actor expects is not promised beside another one."""
    kinds = [KINDS[name] for name in case.kinds]
    if any(kind.needs_peace for kind in kinds) and any(kind.writes for kind in kinds):
        return False
    if any(kind.needs_replace for kind in kinds):
        return case.start != "pending" and all(kind.only_replaces for kind in kinds)
    return True


def all_pairs() -> list[Case]:
    """Return all pairs of actors, at least one of which writes or packs, with all layouts and starts."""
    pairs = []
    for one, other in itertools.combinations_with_replacement(KINDS, 2):
        for layout in LAYOUTS:
            for start in STARTS:
                case = Case(start, layout, (one, other))
                if is_possible(case) and not {one, other} <= PASSIVE:
                    pairs.append(case)
    return pairs


def random_group(chance: random.Random) -> Case:
    """Return two to four actors."""
    while True:
        kinds = tuple(chance.choice(list(KINDS)) for _ in range(chance.choice([2, 3, 3, 4])))
        case = Case(chance.choice(STARTS), chance.choice(LAYOUTS), kinds)
        if is_possible(case) and not {*kinds} <= PASSIVE:
            return case
