# exit_code.py - the exit status of a command
# SPDX-License-Identifier: MIT
"""`ExitCode`: the exit status of ``shardcodec COMMAND``."""

from __future__ import annotations

import enum

__all__ = ["ExitCode"]


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
