# identity.py - facts about Python objects, memoised by identity
# SPDX-License-Identifier: MIT
"""Facts about objects of other libraries, computed once per object.

``str``, ``repr``, ``==`` and ``hash`` of such an object are foreign code. They may wait for a lock whose owner waits for
the GIL, which is a deadlock. So a dictionary must not have such objects as keys, and a read or write must not format them.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["ByIdentity"]

T = TypeVar("T")

# Most objects without weak references that are kept in memory together with their fact.
MAX_KEPT = 64


class ByIdentity(Generic[T]):
    """A memo of facts about objects; each fact is kept as long as its object lives.

    Parameters
    ----------
    make : callable
        Computes the fact about an object. Two threads may call it at the same time for one object; both get the same fact.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._facts: dict[int, tuple[Callable[[], Any], T]] = {}
        self._kept: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._facts)

    def has(self, thing: Any) -> bool:
        """Return True if the fact about an object is memoised."""
        fact = self._facts.get(id(thing))
        return fact is not None and fact[0]() is thing

    def of(self, thing: Any) -> T:
        """Return the fact about an object; the first call computes it."""
        fact = self._facts.get(id(thing))
        if fact is not None and fact[0]() is thing:
            return fact[1]
        new = self._reference(thing), self._make(thing)
        fact = self._facts.setdefault(id(thing), new)
        if fact[0]() is not thing:  # stale: the fact of a deleted object with the same id
            self._facts[id(thing)] = fact = new
        return fact[1]

    def _reference(self, thing: Any) -> Callable[[], Any]:
        number = id(thing)

        def forget(reference: Any) -> None:
            fact = self._facts.get(number)
            if fact is not None and fact[0] is reference:
                self._facts.pop(number, None)

        try:
            return weakref.ref(thing, forget)
        except TypeError:  # a class with slots and without `__weakref__`
            self._kept.append(number)
            if len(self._kept) > MAX_KEPT:
                self._facts.pop(self._kept.popleft(), None)
            return lambda: thing
