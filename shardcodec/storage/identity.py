# identity.py - what is known of an object, found by its identity
# SPDX-License-Identifier: MIT
"""Facts about objects of other libraries, made once for each object.

``str``, ``repr``, ``==`` and ``hash`` of such an object are foreign code. It may wait for a lock whose owner waits for the
GIL, which is a deadlock. So a dictionary must not have such objects as keys, and a read or write must not format them.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

__all__ = ["ByIdentity"]

T = TypeVar("T")

# Objects without weak references that stay in memory because a fact about them is known.
MAX_KEPT = 64


class ByIdentity(Generic[T]):
    """Facts about objects, each kept for as long as its object lives.

    Parameters
    ----------
    make : callable
        From an object to the fact. Two threads may call it at the same time for one object; both get the same fact.
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self._facts: dict[int, tuple[Callable[[], Any], T]] = {}
        self._kept: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._facts)

    def has(self, thing: Any) -> bool:
        """Tell whether the fact about an object is made."""
        fact = self._facts.get(id(thing))
        return fact is not None and fact[0]() is thing

    def of(self, thing: Any) -> T:
        """Return the fact about an object, which is made at the first call."""
        fact = self._facts.get(id(thing))
        if fact is not None and fact[0]() is thing:
            return fact[1]
        new = self._reference(thing), self._make(thing)
        fact = self._facts.setdefault(id(thing), new)
        if fact[0]() is not thing:  # a fact about an object that is gone
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
        except TypeError:  # its class has slots and no `__weakref__`
            self._kept.append(number)
            if len(self._kept) > MAX_KEPT:
                self._facts.pop(self._kept.popleft(), None)
            return lambda: thing
