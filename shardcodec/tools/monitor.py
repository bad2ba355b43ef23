# monitor.py - how a tool runs: progress, requests to stop, the choices of its caller
# SPDX-License-Identifier: MIT
"""`Monitor`: a tool tells it what is done, and asks it between two shards whether to stop. `RunOptions` has it with the other choices."""

from __future__ import annotations

import functools
import signal
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from .report import Report

__all__ = ["Incomplete", "LostScheduler", "Monitor", "RunOptions", "Stopped", "passes_on_signals"]

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = str(Path(__file__).parents[1])


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


def passes_on_signals(tool: Callable[P, R]) -> Callable[P, R]:
    """Return a tool that raises what a signal handler of the program has raised, also where it was taken for an error of an object."""

    @functools.wraps(tool)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if threading.current_thread() is not threading.main_thread():
            return tool(*args, **kwargs)
        raised: list[Exception] = []
        own = {number: signal.getsignal(number) for number in signal.valid_signals()}
        noting = {
            number: _noting(handler, raised)
            for number, handler in own.items()
            if callable(handler) and handler is not signal.default_int_handler
        }
        try:
            for number, handler in noting.items():
                signal.signal(number, handler)
            return tool(*args, **kwargs)
        finally:
            for number, handler in noting.items():
                if signal.getsignal(number) is handler:
                    signal.signal(number, own[number])
            for error in raised:
                if _was_caught_here(error):
                    raise error

    return call


def _noting(handler: Callable[..., Any], raised: list[Exception]) -> Callable[..., Any]:
    """Return a handler of signals that also notes the errors it raises."""

    @functools.wraps(handler)
    def call(*arguments: Any) -> Any:
        try:
            return handler(*arguments)
        except Exception as error:
            raised.append(error)
            raise

    return call


def _was_caught_here(error: Exception) -> bool:
    """Return True if the outermost frame that an error has passed is one of this package."""
    return error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename.startswith(
        _PACKAGE
    )
