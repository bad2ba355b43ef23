# run_command.py - run one command: signals, progress, errors, exit code
# SPDX-License-Identifier: MIT
"""`run_command`: every command ends with it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

from typer import BadParameter, Exit
from zarr.errors import BaseZarrError

from ..errors import ShardError, os_error_of
from ..tools.monitor import Incomplete, Monitor, Stopped
from .exit_code import ExitCode
from .progress import ProgressKind, shown
from .stop_requests import StopRequests

__all__ = ["run_command"]

_FAILURES = (ShardError, OSError, ImportError, MemoryError, BaseZarrError)


def run_command(
    work: Callable[[Monitor], ExitCode],
    progress: ProgressKind,
) -> NoReturn:
    """Run a command and leave with its exit code.

    Parameters
    ----------
    work : callable
        Gets the monitor, prints the report and returns the exit code. `Stopped` and errors are handled here.
    progress : ProgressKind
        How progress is shown.

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
                code = work(monitor)
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
