# inspect.py - the command `inspect`
# SPDX-License-Identifier: MIT
"""The command `inspect`, which shows what arrays and shards have."""

from __future__ import annotations

from ..tools.inspect.array_report import ArrayReport
from ..tools.inspect.inspect import inspect as inspect_arrays
from .exit_code import ExitCode
from .flags import Flag
from .tool_command import Run, command

__all__ = ["inspect"]


def _axes(given: str | None) -> list[str] | None:
    return None if given is None else [axis.strip() for axis in given.split(",")]


ROWS = {
    "plot": Flag("Save a picture of one array and of a shard, .png or .svg.", metavar="FILE"),
    "plot_axes": Flag(
        "Axes of the picture, by names or numbers: time,lat.", metavar="AXIS,AXIS", kind=str, value=_axes
    ),
}


@command(inspect_arrays, ROWS)
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
