# other_lines.py - lines for the objects that belong to no array
# SPDX-License-Identifier: MIT
"""`other_lines`: what `convert`, `repair` and `compact` print about the objects beside the arrays."""

from __future__ import annotations

from collections.abc import Iterator

from ..tools.other_objects import ObjectCounts
from ..tools.report import format_count, format_nbytes

__all__ = ["other_lines"]


def other_lines(others: ObjectCounts, *, would: bool) -> Iterator[str]:
    """Yield the lines; none if there are no such objects. `would`: nothing was copied yet."""
    for one in others.left:
        yield f"{one.name}: {'would be ' if would else ''}left out: {one.reason}"
    if others.n_left > len(others.left):
        yield f"{format_count(others.n_left - len(others.left), 'further object')} left out"
    if others.n_objects:
        done = "would be copied" if would else "copied"
        yield f"{format_count(others.n_objects, 'other object')} ({format_nbytes(others.nbytes)}) {done}"
