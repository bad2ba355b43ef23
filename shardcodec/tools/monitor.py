# monitor.py - how a tool runs: progress, requests to stop, the choices of its caller
# SPDX-License-Identifier: MIT
"""`Monitor`: a tool tells it what is done, and asks it between two shards whether to stop. `RunOptions` has it with the other choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .report import Report

__all__ = ["Incomplete", "LostScheduler", "Monitor", "RunOptions", "Stopped"]


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


class LostScheduler(OSError):
    """The scheduler of a cluster was lost, or has dropped the work."""


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

    def add_nbytes(self, nbytes: int) -> None:
        """Note the size of objects that are done, in bytes; tools that know it call this before `advance`."""

    def check(self) -> None:
        """Raise `Stopped` if the user asked to stop; call it when no shard is half done."""


@dataclass(frozen=True)
class RunOptions:
    """How a tool runs, as its caller has chosen: collected in the public function, and handed on as one record.

    Attributes
    ----------
    threads, memory : int or None
        Of this process, or of each worker.
    dask : str, distributed.Client, bool or None
        The cluster that does the work, as for `convert`.
    storage_options : mapping or None
        Options of the stores of URLs.
    monitor : Monitor
    """

    threads: int | None = None
    memory: int | None = None
    dask: Any = None
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    monitor: Monitor = field(default_factory=Monitor)
