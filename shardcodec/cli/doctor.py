# doctor.py - the command `doctor`
# SPDX-License-Identifier: MIT
"""The command `doctor`: facts about a place of shards and about this process."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from ..tools.doctor.doctor import doctor as examine
from ..tools.monitor import Monitor
from .common_options import (
    DryRunOption,
    JsonLinesOption,
    JsonOption,
    StorageOption,
    storage_options_from,
)
from .exit_code import ExitCode
from .output import Output
from .progress import ProgressKind
from .run_command import run_command

__all__ = ["doctor"]


def doctor(
    path: Annotated[str, Argument(metavar="PATH", help="The place of arrays: a folder or a URL.")],
    storage_option: StorageOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    jsonl: JsonLinesOption = False,
) -> None:
    """Show whether a place is fit for shards, and how shardcodec works here.

    It makes a file with a temporary name, locks it and removes it; not with --dry-run. Lines with ! are problems, lines
    with - are worth knowing. The exit code is 1 if there is a problem.

    Example:

        shardcodec doctor images.zarr
    """
    output = Output(as_json=as_json, as_lines=jsonl)

    def work(monitor: Monitor) -> ExitCode:
        report = examine(path, probe=not dry_run, storage_options=storage_options_from(storage_option))
        output.text(report.lines())
        output.end(report)
        return ExitCode.FINDINGS if report.n_problems else ExitCode.CLEAN

    run_command(work, ProgressKind.NONE)
