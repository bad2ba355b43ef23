# left_line.py - one line for an array that a command leaves as it is
# SPDX-License-Identifier: MIT
"""`left_line`: what `repair` and `compact` print about an array without readable shards."""

from __future__ import annotations

from ..tools.report import LeftArray

__all__ = ["left_line"]


def left_line(one: LeftArray, target: str, to: str | None) -> str:
    """Return the line.

    Parameters
    ----------
    one : LeftArray
        The array.
    target : str
        The path that was given, which names the array at its root.
    to : str or None
        The new hierarchy, which has a copy.

    Returns
    -------
    str
    """
    done = "skipped" if to is None else "copied as it is"
    return f"{one.name or target}: {'unreadable, ' if one.is_unreadable else ''}{done}: {one.problem}"
