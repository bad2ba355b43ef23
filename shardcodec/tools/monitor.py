# monitor.py - progress of a tool, and requests to stop
# SPDX-License-Identifier: MIT
"""`Monitor`: a tool tells it what is done, and asks it between two shards whether to stop."""

from __future__ import annotations

from .report import Report

__all__ = ["Incomplete", "Monitor", "Stopped"]


class Stopped(Exception):
    """The user asked the tool to stop; the current shard was finished or dropped.

    Attributes
    ----------
    report : Report or None
        What `repair` and `compact` did before; None from the other tools.
    """

    report: Report | None = None


class Incomplete(Exception):
    """A job was interrupted, but not by the user; it can be resumed."""


class Monitor:
    """The default monitor: it shows nothing and never stops a tool. A program overrides the methods."""

    def start(self, name: str, total: int | None) -> None:
        """Begin a new part of the work.

        Parameters
        ----------
        name : str
            What is worked on, such as the name of an array.
        total : int or None
            Number of shards to come; None if it is unknown.
        """

    def advance(self, n: int = 1) -> None:
        """Note that `n` more shards are done."""

    def check(self) -> None:
        """Raise `Stopped` if the user asked to stop; call it when no shard is half done."""
