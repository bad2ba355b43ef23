# progress.py - progress of a command on standard error
# SPDX-License-Identifier: MIT
"""The monitors of a command: a bar of rich, plain lines, or nothing. Standard output has the report only."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import time
from collections.abc import Iterator
from typing import Any

from ..tools.report import format_count
from ..tools.work import Monitor, Stopped
from .options import ProgressKind
from .signals import StopRequests

__all__ = ["shown"]

# Seconds between two plain lines.
PAUSE = 5.0


class _Silent(Monitor):
    """Shows nothing, and stops a tool when the user asked for it."""

    def __init__(self, stop: StopRequests) -> None:
        self._stop = stop

    def check(self) -> None:
        if self._stop.requested:
            raise Stopped


class _Lines(_Silent):
    """Prints a line now and then."""

    def __init__(self, stop: StopRequests) -> None:
        super().__init__(stop)
        self._name = ""
        self._total: int | None = None
        self._done = 0
        self._next = 0.0

    def start(self, name: str, total: int | None) -> None:
        self._name, self._total, self._done = name, total, 0
        self._next = time.monotonic() + PAUSE

    def advance(self, n: int = 1) -> None:
        self._done += n
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PAUSE
            of = "" if self._total is None else f"{self._done} of "
            shards = format_count(self._done if self._total is None else self._total, "shard")
            print(f"{self._name}: {of}{shards}", file=sys.stderr, flush=True)


class _Bar(_Silent):
    """Shows a bar of rich."""

    def __init__(self, stop: StopRequests, bars: Any) -> None:
        super().__init__(stop)
        self._bars = bars
        self._task: Any = None

    def start(self, name: str, total: int | None) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(name, total=total)

    def advance(self, n: int = 1) -> None:
        if self._task is not None:
            self._bars.advance(self._task, n)


@contextlib.contextmanager
def shown(kind: ProgressKind, stop: StopRequests) -> Iterator[Monitor]:
    """Show progress in a with block.

    Parameters
    ----------
    kind : ProgressKind
        ``auto`` shows a bar, or lines without rich, if standard error is a terminal.
    stop : StopRequests
        Stops the tool.

    Yields
    ------
    Monitor
    """
    is_terminal = sys.stderr.isatty()
    if kind is ProgressKind.NONE or (kind is ProgressKind.AUTO and not is_terminal):
        yield _Silent(stop)
    elif kind is ProgressKind.PLAIN or importlib.util.find_spec("rich") is None:
        yield _Lines(stop)
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
            yield _Bar(stop, bars)
