# left_parts.py - parts of a hierarchy that a copy of it lacks or changes
# SPDX-License-Identifier: MIT
"""`LeftParts`: the one list of what `convert`, `repair` and `compact` do not carry over to a new hierarchy. `LeftPart`: an entry of it."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..readable import Fact, format_count
from .capped import LISTED
from .report import Record

__all__ = ["NOTHING_LEFT", "LeftKind", "LeftPart", "LeftParts", "group_notes"]


class LeftKind(enum.StrEnum):
    """The kinds of parts that a copy does not have."""

    ARRAY = "array"
    GROUP = "group"  # its attributes, or its whole document
    OBJECT = "object"  # an object, also a document that cannot be read, or all that is in a folder
    METADATA = "metadata"  # a member or an attribute of a group, or a document that another one stands in for
    OF_ARRAY = "metadata of an array"


@dataclass(frozen=True)
class LeftPart(Record):
    """A part of a hierarchy that a copy lacks or changes.

    Attributes
    ----------
    kind : LeftKind
    name : str
        Path of the array, the group or the object below the root of the hierarchy; that of a folder has a slash at its end.
    reason : str
        Why it is not copied. Of metadata, a sentence that says what is lost or changed.
    is_unreadable : bool
        True if it is not copied because it cannot be read.
    """

    kind: LeftKind
    name: str
    reason: str
    is_unreadable: bool = False

    @property
    def problem(self) -> str:
        """`reason`, by the name that it has in the record of an array."""
        return self.reason

    @classmethod
    def object(cls, name: str, reason: str, *, is_unreadable: bool = False) -> LeftPart:
        """Return the part for an object, or for a folder with a slash at its end."""
        return cls(LeftKind.OBJECT, name, reason, is_unreadable)

    @classmethod
    def notes(cls, name: str, sentences: Iterable[str]) -> list[LeftPart]:
        """Return the parts for sentences on the metadata of a group, or of the whole hierarchy."""
        return [cls(LeftKind.METADATA, name, sentence) for sentence in sentences]


@dataclass(frozen=True)
class LeftParts(Record):
    """All parts that a copy does not have.

    Attributes
    ----------
    counts, unreadable : mapping
        From each kind to the number of parts, and to that of the parts that cannot be read.
    parts : tuple of LeftPart
        The first `capped.LISTED` of them.
    """

    counts: dict[str, int] = field(default_factory=dict)
    unreadable: dict[str, int] = field(default_factory=dict)
    parts: tuple[LeftPart, ...] = ()

    def __iter__(self) -> Iterator[LeftPart]:
        return iter(self.parts)

    def __add__(self, more: Iterable[LeftPart]) -> LeftParts:
        """Return these parts and further ones."""
        counts, unreadable, given = Counter(self.counts), Counter(self.unreadable), list(more)
        if isinstance(more, LeftParts):
            counts.update(more.counts)
            unreadable.update(more.unreadable)
        else:
            counts.update(one.kind.value for one in given)
            unreadable.update(one.kind.value for one in given if one.is_unreadable)
        return LeftParts(dict(counts), dict(unreadable), (*self.parts, *given)[:LISTED])

    @property
    def n_unreadable(self) -> int:
        """Number of the parts that cannot be read."""
        return sum(self.unreadable.values())

    def of(self, *kinds: LeftKind) -> tuple[LeftPart, ...]:
        """Return the listed parts of some kinds."""
        return tuple(one for one in self.parts if one.kind in kinds)

    def result_facts(self, *, would: bool) -> Iterator[Fact]:
        """Yield the parts as lines of text; `would`: nothing was copied yet. The lines of an array have its metadata already."""
        left = "would be left out" if would else "left out"
        for one in self.parts:
            if one.kind is LeftKind.METADATA:
                yield "note", one.reason
            elif one.kind is not LeftKind.OF_ARRAY:
                yield "", f"{one.name or '/'}: {left}: {one.reason}"
        n_more = sum(self.counts.values()) - len(self.parts)
        if n_more:
            yield "", f"{format_count(n_more, 'further part')} left out"

    def to_json(self) -> dict[str, Any]:
        """Return the parts as values that `json.dumps` accepts, the counts in the order of the kinds."""
        facts = super().to_json()
        return facts | {name: dict(sorted(facts[name].items())) for name in ("counts", "unreadable")}


NOTHING_LEFT = LeftParts()


def group_notes(name: str, notes: Sequence[str]) -> list[str]:
    """Return sentences that name their group."""
    return [f"group {name or '/'}: {note}" for note in notes]
