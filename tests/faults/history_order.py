# history_order.py - whether one order of reads and writes explains the history of a register
# SPDX-License-Identifier: MIT
"""`unexplained` searches an order of the operations in which each takes effect at one moment between its begin and its end.

The search follows the method of Wing and Gong with Lowe's rule: an operation takes effect no earlier than it must, just before
some operation ends. All values but one are written once, so a value that will still be read cannot be replaced. This leaves few
states at any time, and a history of n operations takes about n steps. The value that is written several times is that of an erased inner chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

__all__ = ["NEVER", "Operation", "contradiction", "unexplained"]

NEVER = int(np.iinfo(np.int64).max)


class Operation(NamedTuple):
    """A read or a write. An optional write may have no effect; one that never ends may have it several times."""

    number: int
    is_write: bool
    value: int
    begin: int
    end: int
    is_optional: bool = False


State = tuple[int, frozenset[int]]  # the value, and the operations under way that have had their effect


class _Search:
    """All states that are possible at a moment."""

    def __init__(self, operations: list[Operation], first: int, repeated: int) -> None:
        self._operations = operations
        self._repeated = repeated
        self._repeats = False  # the repeated value may be written at any time
        self._last_reads: dict[int, int] = {}
        for one in operations:
            if not one.is_write:
                self._last_reads[one.value] = max(one.begin, self._last_reads.get(one.value, one.begin))
        self._writes: set[int] = set()  # under way
        self._reads: set[int] = set()
        self.states: set[State] = {(first, frozenset())}

    def begin(self, at: int) -> None:
        one = self._operations[at]
        if not one.is_write:
            self._reads.add(at)
            self.states = {(v, done | {at} if v == one.value else done) for v, done in self.states}
        elif one.end == NEVER and one.is_optional:
            self._repeats = True
        else:
            self._writes.add(at)

    def end(self, at: int) -> bool:
        """End an operation; return False if it cannot have had its effect."""
        one = self._operations[at]
        if not all(at in done for _, done in self.states):
            without = self.states if one.is_optional else set()
            self.states = without | self._with_effect(at, one.end)
        self.states = {(value, done - {at}) for value, done in self.states}
        self._writes.discard(at)
        self._reads.discard(at)
        return bool(self.states)

    def _with_effect(self, at: int, now: int) -> set[State]:
        """Return the states in which an operation has had its effect, by way of any other writes."""
        seen, stack, found = set(self.states), list(self.states), set()
        while stack:
            state = stack.pop()
            if at in state[1]:
                found.add(state)
                continue
            for other in self._following(state, now):
                if other not in seen:
                    seen.add(other)
                    stack.append(other)
        return found

    def _following(self, state: State, now: int) -> list[State]:
        value, done = state
        if value != self._repeated and self._last_reads.get(value, 0) > now:
            return []  # a read that begins later will need this value
        changes = [(self._operations[at].value, {at}) for at in self._writes - done]
        if self._repeats:
            changes.append((self._repeated, set()))
        return [
            (new, done | one | {at for at in self._reads if self._operations[at].value == new})
            for new, one in changes
        ]


def unexplained(operations: list[Operation], first: int, repeated: int) -> Operation | None:
    """Return the first operation that no order explains, or None. The register begins with the value `first`."""
    events = [(one.begin, 0, at) for at, one in enumerate(operations)]
    # what ends in the moment in which another operation begins counts as beside it
    events += [
        (one.end, 1, at) for at, one in enumerate(operations) if one.end != NEVER or not one.is_optional
    ]
    search = _Search(operations, first, repeated)
    for _, is_end, at in sorted(events):
        if not is_end:
            search.begin(at)
        elif not search.end(at):
            return operations[at]
    return None


def contradiction(
    operations: list[Operation], failed: Operation, first: int, repeated: int
) -> list[Operation]:
    """Return few operations that no order explains, in the order of their begins.

    A value is left out with all its reads and writes if the others are still not explained.
    """
    kept = _near(operations, failed, first, repeated)

    def fails(values: list[int]) -> bool:
        chosen = set(values)
        return unexplained([one for one in kept if one.value in chosen], first, repeated) is not None

    values = _smallest(sorted({one.value for one in kept}), fails)
    kept = [one for one in kept if one.value in set(values)]
    numbers = [one.number for one in kept if not one.is_write]

    def fails_with(reads: list[int]) -> bool:
        chosen = set(reads)
        return (
            unexplained([one for one in kept if one.is_write or one.number in chosen], first, repeated)
            is not None
        )

    reads = set(_smallest(numbers, fails_with))
    return sorted((one for one in kept if one.is_write or one.number in reads), key=lambda one: one.begin)


def _near(operations: list[Operation], failed: Operation, first: int, repeated: int) -> list[Operation]:
    """Return the operations on values that were in use near the failed one, if no order explains them; else all."""
    nanoseconds = 10_000_000
    while nanoseconds < 10_000_000_000:
        begin, end = failed.begin - nanoseconds, failed.end + nanoseconds
        values = {one.value for one in operations if one.begin <= end and one.end >= begin}
        near = [one for one in operations if one.value in values]
        if unexplained(near, first, repeated) is not None:
            return near
        nanoseconds *= 10
    return operations


def _smallest(items: list[int], fails: Callable[[list[int]], bool]) -> list[int]:
    """Leave out items, first many at a time and then single ones, as long as the others fail."""
    step = max(1, len(items) // 2)
    while True:
        at = 0
        while at < len(items):
            fewer = items[:at] + items[at + step :]
            if fails(fewer):
                items = fewer
            else:
                at += step
        if step == 1:
            return items
        step //= 2
