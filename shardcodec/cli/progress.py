# progress.py - progress of a command on standard error
# SPDX-License-Identifier: MIT
"""The monitors of a command: a bar of rich, lines, or nothing. Standard output has the report only."""

from __future__ import annotations

import contextlib
import enum
import importlib.util
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from ..readable import format_count, format_nbytes
from ..tools.monitor import Monitor, Stopped
from .output import printable
from .stop_requests import StopRequests

__all__ = ["ProgressKind", "shown"]


class ProgressKind(enum.StrEnum):
    """The ways to show progress."""

    AUTO = "auto"
    PLAIN = "plain"
    NONE = "none"


# Seconds between two lines of `plain`, and of `auto` in a file.
PAUSE = 5.0
LONG_PAUSE = 60.0
# Seconds between two texts of the line of a terminal.
REPLACE_PAUSE = 0.5
# Rate and time left follow from the last measurements, at least a second apart: a resumed job first skips many shards.
MEASUREMENTS = 60


class Pace:
    """The finished share of a part of the work, its speed, and the time that the rest takes.

    Parameters
    ----------
    total : int or None
        Number of shards.
    now : float
        The present time in seconds; any clock that does not go back.
    """

    def __init__(self, total: int | None, now: float) -> None:
        self._total = total
        self._done = self._nbytes = 0
        self._measured = deque([(now, 0, 0)], MEASUREMENTS)

    def add_nbytes(self, nbytes: int) -> None:
        """Count bytes."""
        self._nbytes += nbytes

    def advance(self, n: int, now: float) -> None:
        """Count shards."""
        self._done += n
        if now - self._measured[-1][0] >= 1:
            self._measured.append((now, self._done, self._nbytes))

    def shards(self) -> str:
        """Return how many shards are done."""
        if self._total is None:
            return format_count(self._done, "shard")
        return f"{self._done} of {format_count(self._total, 'shard')}"

    def rate(self, now: float) -> str:
        """Return bytes, rate and time left, as far as they are known."""
        begin, n_before, nbytes_before = self._measured[0]
        seconds, n_since = max(now - begin, 1e-9), self._done - n_before
        texts = []
        if self._nbytes:
            texts = [
                format_nbytes(self._nbytes),
                f"{format_nbytes((self._nbytes - nbytes_before) / seconds)}/s",
            ]
        if self._total is not None and n_since and self._done < self._total:
            texts.append(f"{format_seconds(seconds * (self._total - self._done) / n_since)} left")
        return ", ".join(texts)


def format_seconds(seconds: float) -> str:
    """Return a time for readers, such as ``40 s`` or ``2 h 5 min``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


class _Silent(Monitor):
    """Shows nothing, and stops a tool when the user asked for it."""

    def __init__(self, stop: StopRequests) -> None:
        self._stop = stop

    def check(self) -> None:
        if self._stop.requested:
            raise Stopped


class _Shown(_Silent):
    """The base of monitors that show the pace of the present part of the work."""

    def __init__(self, stop: StopRequests) -> None:
        super().__init__(stop)
        self._pace = Pace(None, time.monotonic())

    def start(self, name: str, total: int | None) -> None:
        self._pace = Pace(total, time.monotonic())
        self._begin(name, total)

    def add_nbytes(self, nbytes: int) -> None:
        self._pace.add_nbytes(nbytes)

    def advance(self, n: int = 1) -> None:
        now = time.monotonic()
        self._pace.advance(n, now)
        self._show(n, now)

    def _begin(self, name: str, total: int | None) -> None:
        """Begin to show a part of the work."""
        raise NotImplementedError

    def _show(self, n: int, now: float) -> None:
        """Show the pace after `n` more shards."""
        raise NotImplementedError


class _Lines(_Shown):
    """Prints a line now and then; on a terminal each line replaces the last one."""

    def __init__(self, stop: StopRequests, pause: float, *, replaces: bool = False) -> None:
        super().__init__(stop)
        self._pause, self._replaces = pause, replaces
        self._name = ""
        self._next = 0.0

    def _begin(self, name: str, total: int | None) -> None:
        self._name, self._next = name, time.monotonic() + self._pause

    def _show(self, n: int, now: float) -> None:
        if now >= self._next:
            self._next = now + self._pause
            rate = self._pace.rate(now)
            line = f"{self._name}: {self._pace.shards()}{rate and ', '}{rate}"
            # to the start of the line before, and without its rest behind
            print(
                f"\r{line}\x1b[K" if self._replaces else line,
                end="" if self._replaces else "\n",
                file=sys.stderr,
                flush=True,
            )

    def end(self) -> None:
        """Remove the last line from a terminal."""
        if self._replaces:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


class _Bar(_Shown):
    """Shows a bar of rich."""

    def __init__(self, stop: StopRequests, bars: Any) -> None:
        super().__init__(stop)
        self._bars = bars
        self._task: Any = None

    def _begin(self, name: str, total: int | None) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = self._bars.add_task(printable(name), total=total, rate="")

    def _show(self, n: int, now: float) -> None:
        if self._task is not None:
            self._bars.update(self._task, advance=n, rate=self._pace.rate(now))


@contextlib.contextmanager
def shown(kind: ProgressKind, stop: StopRequests) -> Iterator[Monitor]:
    """Show progress in a with block.

    Parameters
    ----------
    kind : ProgressKind
        ``auto`` shows a bar on a terminal, without rich a line that is replaced; in a file, a line each minute.
    stop : StopRequests
        Stops the tool.

    Yields
    ------
    Monitor
    """
    if kind is ProgressKind.NONE:
        yield _Silent(stop)
    elif kind is ProgressKind.PLAIN:
        yield _Lines(stop, PAUSE)
    elif not sys.stderr.isatty():
        yield _Lines(stop, LONG_PAUSE)
    elif importlib.util.find_spec("rich") is None:
        lines = _Lines(stop, REPLACE_PAUSE, replaces=True)
        try:
            yield lines
        finally:
            lines.end()
    else:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}", markup=False),  # names may have brackets
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
        )
        # rich moves what is printed above the bar, to stderr: right for a report on the same terminal, if its lines stay whole
        console = Console(stderr=True, soft_wrap=True)
        is_beside = sys.stdout.isatty()
        with Progress(*columns, console=console, transient=True, redirect_stdout=is_beside) as bars:
            yield _Bar(stop, bars)
