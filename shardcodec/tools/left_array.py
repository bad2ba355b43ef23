# left_array.py - an array whose shards a tool does not change
# SPDX-License-Identifier: MIT
"""`LeftArray`: an array that `repair` and `compact` leave as it is, and why."""

from __future__ import annotations

from dataclasses import dataclass

from .array_target import ArrayTarget
from .report import Record

__all__ = ["LeftArray"]


@dataclass(frozen=True)
class LeftArray(Record):
    """An array without shards that the tool can read.

    Attributes
    ----------
    name : str
        Path of the array in the hierarchy; empty for its root.
    problem : str
        Why it was left.
    is_unreadable : bool
        Its metadata are malformed, so no program can read the array: a finding, as in `verify`.
    """

    name: str
    problem: str
    is_unreadable: bool

    @classmethod
    def of(cls, array: ArrayTarget) -> LeftArray:
        """Return the record of an array."""
        return cls(array.name, array.problem or "it is not sharded", array.is_malformed)
