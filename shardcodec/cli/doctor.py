# doctor.py - the command `doctor`
# SPDX-License-Identifier: MIT
"""The command `doctor`: facts about a place of shards and about this process."""

from __future__ import annotations

from ..tools.doctor.doctor import doctor as examine
from .exit_code import ExitCode
from .flags import Flag
from .tool_command import Run, command

__all__ = ["doctor"]

ROWS = {
    "target": Flag("The place of arrays: a folder or a URL.", metavar="PATH"),
    "clear_cache": Flag("Remove all that is in the folder of the option cache_dir."),
}


@command(examine, ROWS, output=("as_json", "jsonl"))
def doctor(run: Run) -> ExitCode:
    """Show whether a place is fit for shards, and how shardcodec works here.

    It makes a file with a temporary name, locks it and removes it; not with --dry-run. Lines with ! are problems, lines
    with - are worth knowing. The exit code is 1 if there is a problem.

    Example:

        shardcodec doctor images.zarr
    """
    return ExitCode.FINDINGS if run.report().n_problems else ExitCode.CLEAN
