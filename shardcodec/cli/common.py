# common.py - the common parts of all commands: options, signals, progress, output, exit codes
# SPDX-License-Identifier: MIT
"""The common parts of all commands: options, signals, progress, output, exit codes.

Exit status of `shardcodec COMMAND`.
"""

from __future__ import annotations

import contextlib
import enum
import importlib.util
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Annotated, Any, NoReturn, Self

from typer import Argument, BadParameter, Exit, Option
from zarr.errors import BaseZarrError

from ..errors import ShardError, os_error_of
from ..format.spec import ShardSpec
from ..tools.report import Report, format_count, format_nbytes, parse_nbytes
from ..tools.work import Incomplete, Monitor, Stopped
from .early_stop import replace_handlers

__all__ = [
    "ArrayOption",
    "DaskOption",
    "DryRunOption",
    "ExactlyOption",
    "ExcludeOption",
    "ExitCode",
    "JsonLinesOption",
    "JsonOption",
    "KeepGoingOption",
    "MemoryOption",
    "MetadataOption",
    "OnlyArraysOption",
    "OnlyOption",
    "Output",
    "PathArgument",
    "ProgressKind",
    "ProgressOption",
    "StopRequests",
    "StorageOption",
    "ThreadsOption",
    "parse_share",
    "printable",
    "run_command",
    "shown",
    "spec_from",
    "storage_options_from",
]


class ExitCode(enum.IntEnum):
    """Exit status of a command."""

    CLEAN = 0
    """Done, and nothing was found."""
    FINDINGS = 1
    """Done, and the report has findings."""
    USAGE = 2
    """An option or an argument is invalid."""
    FAILED = 3
    """The command could not do its work."""
    INCOMPLETE = 4
    """A part is left to do, and the command can resume."""
    UNCHECKED = 5
    """Nothing was found, but a part could not be checked."""
    INTERRUPTED = 130
    """Stopped by Ctrl-C or SIGTERM."""


# ---------------------------------------------------------------- the options that several commands have
#
# Types of common options, for the signatures of commands: ``array: ArrayOption = None``.


class ProgressKind(enum.StrEnum):
    """The ways to show progress."""

    AUTO = "auto"
    PLAIN = "plain"
    NONE = "none"


PathArgument = Annotated[
    str,
    Argument(
        metavar="PATH", help="A group, an array or one shard: a path, a URL, or a path into a zip file."
    ),
]
ArrayOption = Annotated[
    str | None, Option("--array", metavar="NAME", help="Only this array of the group, by its path.")
]
OnlyOption = Annotated[
    list[str] | None,
    Option(
        "--only",
        metavar="PATTERN",
        help="Only arrays with such a path, such as 'a/*', and the coordinates that they need; may be repeated.",
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    Option("--exclude", metavar="PATTERN", help="Leave out such arrays and groups; may be repeated."),
]
ExactlyOption = Annotated[
    bool, Option("--exactly", help="Copy only arrays that are named, without the coordinates that they need.")
]
MetadataOption = Annotated[
    str | None,
    Option("--metadata", metavar="FILE", help="zarr.json of the array, for a shard outside of its array."),
]
StorageOption = Annotated[
    list[str] | None,
    Option(
        "--storage-option",
        metavar="NAME=VALUE",
        help="Option of the store of a URL, such as region=eu-west-1 or skip_signature=true; may be repeated.",
    ),
]
OnlyArraysOption = Annotated[
    bool, Option("--only-arrays", help="Leave out objects that belong to no array, such as tables.")
]
DryRunOption = Annotated[bool, Option("--dry-run", help="Show what would be done, and change nothing.")]
MemoryOption = Annotated[
    int | None,
    Option("--memory", metavar="SIZE", parser=parse_nbytes, help="Memory to use at most, such as 4GiB."),
]
ThreadsOption = Annotated[int | None, Option("--threads", metavar="N", min=1, help="Threads to use.")]
DaskOption = Annotated[
    str | None,
    Option(
        "--dask",
        metavar="ADDRESS|local:N",
        help="Let the workers of this dask scheduler, or N new processes, do the work. --memory and --threads are of one worker.",
    ),
]
JsonOption = Annotated[bool, Option("--json", help="Print the report as one JSON document.")]
JsonLinesOption = Annotated[
    bool, Option("--jsonl", help="Print one JSON document a line, as results appear.")
]
ProgressOption = Annotated[
    ProgressKind,
    Option(
        "--progress",
        help="Progress on standard error: lines, or nothing. auto: a bar on a terminal, in a file a line each minute.",
    ),
]
KeepGoingOption = Annotated[
    bool, Option("--keep-going/--fail-fast", help="Go on after a finding, or stop at the first one.")
]


def parse_share(text: str | float) -> float:
    """Return a share from ``1%`` or ``0.01``."""
    given = str(text).strip()
    try:
        share = float(given[:-1]) / 100 if given.endswith("%") else float(given)
    except ValueError:
        raise BadParameter(f"expected a share such as 1% or 0.01, got {text!r}") from None
    if not 0 <= share <= 1:
        raise BadParameter(f"expected a share from 0 % to 100 %, got {text!r}")
    return share


def storage_options_from(given: list[str] | None) -> dict[str, Any] | None:
    """Return the options of a store from ``NAME=VALUE``; a value that is JSON, such as ``true`` or ``8``, is parsed."""
    if not given:
        return None
    found: dict[str, Any] = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not equals or not name:
            raise BadParameter(f"--storage-option: expected NAME=VALUE, got {one!r}")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def spec_from(file: str | None) -> ShardSpec | None:
    """Return the encoding of a shard from the ``zarr.json`` of its array."""
    if file is None:
        return None
    text = Path(file).read_text(encoding="utf-8")
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--metadata {file}: expected JSON: {error}") from error
    return ShardSpec.from_metadata(document)


# ---------------------------------------------------------------- the report of a command on standard output
#
# `Output`: prints results as text, as one JSON document, or as one JSON document a line.


# Control characters, which would move the cursor of a terminal or change its colours.
_CONTROLS = {n: repr(chr(n))[1:-1] for n in (*range(0x20), *range(0x7F, 0xA0))}


def printable(text: str) -> str:
    """Return a line for readers, with escapes for the control characters that names may have."""
    return text.translate(_CONTROLS)


class Output:
    """Prints results in the form that the user chose.

    Parameters
    ----------
    as_json : bool
        One JSON document at the end.
    as_lines : bool
        One JSON document a line: each part as soon as it is known, then the report.
    """

    def __init__(self, *, as_json: bool, as_lines: bool) -> None:
        if as_json and as_lines:
            raise BadParameter("expected one of --json and --jsonl, got both")
        self._as_json = as_json
        self._as_lines = as_lines

    @property
    def keeps_parts(self) -> bool:
        """True if the report at the end has all parts, because none has a line of its own."""
        return self._as_json

    @property
    def is_text(self) -> bool:
        """True if the output is for readers."""
        return not (self._as_json or self._as_lines)

    def part(self, part: Report) -> None:
        """Print a part of the result, if each part has a line."""
        if self._as_lines:
            self._write(json.dumps(part.to_json()))

    def text(self, lines: Iterable[str]) -> None:
        """Print lines, if the output is for readers."""
        if self.is_text:
            for line in lines:
                self._write(printable(line))

    def end(self, report: Report) -> None:
        """Print the whole result, if the output is JSON."""
        if not self.is_text:
            self._write(json.dumps(report.to_json(), indent=2 if self._as_json else None))

    def _write(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


# ---------------------------------------------------------------- Ctrl-C and SIGTERM while a command works
#
# `StopRequests`: the first Ctrl-C or SIGTERM asks the command to stop after the current shard, the second ends the process.
#
# A Python handler runs only between two steps of the main thread, which may wait for a long native call. So a thread reads
# the numbers of the signals from a pipe, into which the interpreter writes them at once. A process may end at any time: no
# write leaves a part of a shard (``docs/durability.md``).

_NOTE = b"\nshardcodec: stopping after the current shard; Ctrl-C again to stop at once\n"
# Written to the pipe to end the thread; not the number of a signal.
_END = b"\0"


class StopRequests:
    """Handle signals in a with block. Outside of the main thread, which alone may set handlers, it does nothing.

    Attributes
    ----------
    requested : bool
        True if the user asked to stop.
    """

    def __init__(self) -> None:
        self.requested: bool = False
        self._old: dict[int, Any] = {}
        self._pipe = (-1, -1)
        self._old_fd = -1
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._pipe = os.pipe()
        os.set_blocking(self._pipe[1], False)
        self._old_fd = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, name="shardcodec-signals", daemon=True)
        self._thread.start()
        self._old = replace_handlers(_ignore)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is None:
            return
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_fd)
        os.write(self._pipe[1], _END)
        self._thread.join()
        for fd in self._pipe:
            os.close(fd)

    def _listen(self) -> None:
        while (number := os.read(self._pipe[0], 1)) != _END:
            if number[0] not in (signal.SIGINT, signal.SIGTERM):
                continue
            if self.requested:
                os._exit(ExitCode.INTERRUPTED)
            self.requested = True
            os.write(2, _NOTE)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Do nothing: a handler of Python must exist, so that the number of the signal is written to the pipe."""


# ---------------------------------------------------------------- progress of a command on standard error
#
# The monitors of a command: a bar of rich, lines, or nothing. Standard output has the report only.

# Seconds between two lines of `plain`, and of `auto` in a file.
PAUSE = 5.0
LONG_PAUSE = 60.0
# Seconds between two texts of the line of a terminal.
REPLACE_PAUSE = 0.5
# Rate and time left follow from the last measurements, at least a second apart: a resumed job first skips many shards.
MEASUREMENTS = 60


class Pace:
    """What is done of a part of the work, how fast, and how long the rest takes.

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


# ---------------------------------------------------------------- run one command: signals, progress, errors, exit code
#
# `run_command`: every command ends with it.

_FAILURES = (ShardError, OSError, ImportError, MemoryError, BaseZarrError)


def run_command(
    work: Callable[[Monitor], ExitCode],
    progress: ProgressKind,
    show: Callable[[Any], None] | None = None,
) -> NoReturn:
    """Run a command and leave with its exit code.

    Parameters
    ----------
    work : callable
        Gets the monitor, prints the report and returns the exit code. `Stopped` and errors are handled here.
    progress : ProgressKind
        How progress is shown.
    show : callable, optional
        Prints the report of what was done before a stop, if the tool has one.

    Raises
    ------
    typer.Exit
        Always.
    """
    for name in ("stdout", "stderr"):
        if (
            getattr(sys, name) is None
        ):  # the shell has closed it (`>&-`); the exit code is wanted all the same
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - until the process ends
    with StopRequests() as stop:
        try:
            with shown(progress, stop) as monitor:
                try:
                    code = work(monitor)
                except Stopped as error:
                    if show is not None and error.report is not None:
                        show(error.report)
                    raise
        except (BadParameter, Exit):
            raise
        except Exception as error:  # noqa: BLE001 - the exit code of an uncaught error, 1, means findings
            code = _code_of(error)
    raise Exit(code)


def _code_of(error: Exception) -> ExitCode:
    """Return the exit code for an error, and tell the user about it."""
    if isinstance(error, Stopped):
        return ExitCode.INTERRUPTED
    if isinstance(error, Incomplete):
        return _told(error, ExitCode.INCOMPLETE)
    if isinstance(error, BrokenPipeError):
        # the reader of the report is gone; the interpreter must not write to it again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    if isinstance(os_error_of(error), _FAILURES):
        return _told(error, ExitCode.FAILED)
    if isinstance(error, TypeError | ValueError):
        return _told(error, ExitCode.USAGE)
    traceback.print_exception(error)
    return ExitCode.FAILED


def _told(error: BaseException, code: ExitCode) -> ExitCode:
    # obstore appends the structure of its error, which says nothing more
    message = str(error).partition("\n\nDebug source:")[0] or type(error).__name__
    print(f"shardcodec: {message}", file=sys.stderr)
    for note in getattr(error, "__notes__", ()):
        print(note, file=sys.stderr)
    return code
