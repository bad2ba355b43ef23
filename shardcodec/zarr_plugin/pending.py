# pending.py - what a block of `group_writes` has of one object
# SPDX-License-Identifier: MIT
"""Elements that were assigned, or changes that another surface gathers."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

from ..access.overlay import Gathered
from ..compat import StorePath
from ..options import Options

__all__ = ["Entry", "Held", "HeldEntry", "is_held"]


@dataclass(slots=True, eq=False)
class Entry:
    """An object with gathered writes."""

    gathered: Gathered
    target: StorePath
    spec: Any
    options: Options
    last_write: int


class Held(Protocol):
    """Changes of an object that another surface gathers, not as elements.

    Attributes
    ----------
    kind : hashable
        What is held as one kind of an object can be added to; before another kind comes, it is stored.
    """

    kind: Hashable

    @property
    def nbytes(self) -> int:
        """Memory that is held."""

    @property
    def is_complete(self) -> bool:
        """Whether all of the object is given."""

    async def store(self) -> None:
        """Store it; the object's lock in the table is held."""


@dataclass(slots=True, eq=False)
class HeldEntry:
    """An object with changes that are not elements."""

    gathered: Held
    last_write: int


def is_held(entry: Entry | HeldEntry, kind: Hashable) -> bool:
    """Tell whether changes of this kind are gathered, to which more can be added."""
    return isinstance(entry, HeldEntry) and entry.gathered.kind == kind
