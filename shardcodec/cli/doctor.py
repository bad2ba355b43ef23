# doctor.py - the command `shardcodec doctor`
# SPDX-License-Identifier: MIT
"""`shardcodec doctor PATH`: show whether a place is fit for shards, and how shardcodec works here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from typer import Argument

from ..tools.doctor import Check, DoctorReport, Status
from ..tools.doctor import doctor as examine
from ..tools.work import Monitor
from .common import (
    DryRunOption,
    ExitCode,
    JsonLinesOption,
    JsonOption,
    Output,
    ProgressKind,
    StorageOption,
    run_command,
    storage_options_from,
)

__all__ = ["doctor"]

_MARKS = {Status.OK: " ", Status.NOTE: "-", Status.PROBLEM: "!"}


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
        output.text(lines(report))
        output.end(report)
        return ExitCode.FINDINGS if report.n_problems else ExitCode.CLEAN

    run_command(work, ProgressKind.NONE)


def lines(report: DoctorReport) -> Iterator[str]:
    """Yield the facts as lines of text."""
    for one in report.checks:
        yield from _lines_of(one)


def _lines_of(one: Check) -> Iterator[str]:
    yield f"{_MARKS[one.status]} {one.name:12} {one.text}"
    if one.advice is not None:
        yield f"  {'':12} -> {one.advice}"
