# capped.py - the first items of many, and the number of all
# SPDX-License-Identifier: MIT
"""`Capped`: lists the first items that a run finds and counts all, so that memory and reports are bounded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

__all__ = ["LISTED", "NAMED", "Capped", "Named"]

# The largest number of items that a report lists, and that a text names.
LISTED, NAMED = 1000, 20

T = TypeVar("T")


class Capped(list[T]):
    """The first items of many, and the number of all. Threads and workers send their own, which `merge` adds up.

    Attributes
    ----------
    most : int
        Number of items that are listed at most.
    n : int
        Number of all items.
    """

    most: int = LISTED
    n: int = 0

    @classmethod
    def of(cls, items: Iterable[T], most: int = NAMED) -> Capped[T]:
        """Return the first items of some."""
        given = list(items)
        found = cls(given[:most])
        found.most, found.n = most, len(given)
        return found

    @property
    def n_more(self) -> int:
        """Number of items that are not listed."""
        return self.n - len(self)

    def add(self, item: T) -> None:
        """Count an item, and list it if it is one of the first."""
        self.n += 1
        if len(self) < self.most:
            self.append(item)

    def merge(self, more: Capped[T]) -> None:
        """Add the items that come after these."""
        self.n += more.n
        self += more[: self.most - len(self)]

    def text(self, separator: str = ", ", end: str = " and ") -> str:
        """Return the listed items as a text, and how many more there are."""
        return separator.join(map(str, self)) + (f"{end}{self.n_more} more" if self.n_more else "")


class Named(Capped[T]):
    """The items that a text names."""

    most = NAMED
