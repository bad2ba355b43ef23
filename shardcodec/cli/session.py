# session.py - run one command: signals, progress, errors, exit code
# SPDX-License-Identifier: MIT
"""`run_command`: every command ends with it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

from typer import BadParameter, Exit
from zarr.errors import BaseZarrError

from ..errors import ShardError
from ..tools.work import Incomplete, Monitor, Stopped
from .exit_codes import ExitCode
from .options import ProgressKind
from .progress import shown
from .signals import StopRequests

__all__ = ["run_command"]

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
    with StopRequests() as stop:
        code = _code_of(_showing(work, show), progress, stop)
    raise Exit(code)


def _showing(
    work: Callable[[Monitor], ExitCode], show: Callable[[Any], None] | None
) -> Callable[[Monitor], ExitCode]:
    def shown_work(monitor: Monitor) -> ExitCode:
        try:
            return work(monitor)
        except Stopped as stop:
            if show is not None and stop.report is not None:
                show(stop.report)
            raise

    return shown_work


def _code_of(work: Callable[[Monitor], ExitCode], progress: ProgressKind, stop: StopRequests) -> ExitCode:
    try:
        with shown(progress, stop) as monitor:
            return work(monitor)
    except (BadParameter, Exit):
        raise
    except Stopped:
        return ExitCode.INTERRUPTED
    except Incomplete as error:
        return _told(error, ExitCode.INCOMPLETE)
    except BrokenPipeError:
        # the reader of the report is gone; the interpreter must not write to it again when it ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.FAILED
    except _failures() as error:
        return _told(error, ExitCode.FAILED)
    except (TypeError, ValueError) as error:
        return _told(error, ExitCode.USAGE)
    except Exception:  # noqa: BLE001 - the exit code of an uncaught error, 1, means findings
        traceback.print_exc()
        return ExitCode.FAILED


def _failures() -> tuple[type[BaseException], ...]:
    """Return the classes of errors whose message is enough, with those of obstore if it is in use."""
    obstore = sys.modules.get("obstore.exceptions")
    return _FAILURES if obstore is None else (*_FAILURES, obstore.BaseError)


def _told(error: BaseException, code: ExitCode) -> ExitCode:
    # obstore appends the structure of its error, which says nothing more
    message = str(error).partition("\n\nDebug source:")[0] or type(error).__name__
    print(f"shardcodec: {message}", file=sys.stderr)
    for note in getattr(error, "__notes__", ()):
        print(note, file=sys.stderr)
    return code
