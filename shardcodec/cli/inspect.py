# inspect.py - the commands `inspect` and `doctor`
# SPDX-License-Identifier: MIT
"""The commands `inspect`, which shows what arrays and shards have, and `doctor`, which shows facts about a place and this process."""

from __future__ import annotations

from ..tools.doctor.doctor import doctor as examine
from ..tools.inspect.array_report import ArrayReport
from ..tools.inspect.inspect import inspect as inspect_arrays
from .exit_code import ExitCode
from .flags import Flag
from .tool_command import Run, command

__all__ = ["doctor", "inspect"]


def _axes(given: str | None) -> list[str] | None:
    return None if given is None else [axis.strip() for axis in given.split(",")]


INSPECT_ROWS = {
    "plot": Flag("Save a picture of one array and of a shard, .png or .svg.", metavar="FILE"),
    "plot_axes": Flag(
        "Axes of the picture, by names or numbers: time,lat.", metavar="AXIS,AXIS", kind=str, value=_axes
    ),
}


@command(inspect_arrays, INSPECT_ROWS)
def inspect(run: Run) -> ExitCode:
    """Show what is stored: shapes, codecs, sizes, order and dead bytes.

    Only metadata and indexes are read. The exit code is 1 if a shard is damaged.

    Example:

        shardcodec inspect images.zarr --only level0 --plot level0.png
    """
    before: list[str] = []  # an empty line, from the second array on

    def array_lines(found: ArrayReport) -> list[str]:
        lines = [*before, *found.lines()]
        before[:] = [""]
        return lines

    report = run.report(array_lines, lambda report: report.left)
    return ExitCode.FINDINGS if report.n_findings else ExitCode.CLEAN


DOCTOR_ROWS = {
    "target": Flag("The place of arrays: a folder or a URL.", metavar="PATH"),
    "clear_cache": Flag("Remove all that is in the folder of the option cache_dir."),
}


@command(examine, DOCTOR_ROWS, output=("as_json", "jsonl"))
def doctor(run: Run) -> ExitCode:
    """Show whether a place is fit for shards, and how shardcodec works here.

    It makes a file with a temporary name, locks it and removes it; not with --dry-run. Lines with ! are problems, lines
    with - are worth knowing. The exit code is 1 if there is a problem.

    Example:

        shardcodec doctor images.zarr
    """
    return ExitCode.FINDINGS if run.report().n_problems else ExitCode.CLEAN
