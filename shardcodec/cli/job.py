# job.py - the commands `shardcodec run-part` and `shardcodec status`
# SPDX-License-Identifier: MIT
"""`shardcodec run-part FILE N` runs a part of a plan; `shardcodec status FILE` says how far the job is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from typer import Argument, Option

from ..tools.jobs.run_part import StatusReport
from ..tools.jobs.run_part import run_part as run_one_part
from ..tools.jobs.run_part import status as job_status
from ..tools.report import format_count, format_nbytes, format_share
from ..tools.work import Monitor
from .convert import convert_lines
from .exit_codes import ExitCode
from .options import JsonOption, ProgressKind, ProgressOption, ThreadsOption
from .output import Output
from .session import run_command

__all__ = ["run_part", "status"]

# Parts that a line of text names.
MOST_PARTS = 20

PlanArgument = Annotated[str, Argument(metavar="FILE", help="The plan.")]


def run_part(
    file: PlanArgument,
    part: Annotated[int, Argument(metavar="N", help="Number of the part, from 0 on.", min=0)],
    threads: ThreadsOption = None,
    keep_going: Annotated[
        bool, Option("--keep-going/--fail-fast", help="Go on after a shard that cannot be written, or stop.")
    ] = True,
    as_json: JsonOption = False,
    progress: ProgressOption = ProgressKind.AUTO,
) -> None:
    """Run one part of a plan. Parts may run at the same time, in any order, and again: finished shards are skipped.

    After SIGTERM, or if a shard cannot be written, the exit code is 4; run the part again. The part that finds all shards
    finished writes the metadata.

    Example:

        shardcodec run-part plan.json 0
    """
    output = Output(as_json=as_json, as_lines=False)

    def work(monitor: Monitor) -> ExitCode:
        report = run_one_part(file, part, threads=threads, fail_fast=not keep_going, monitor=monitor)
        output.text(convert_lines(report))
        output.end(report)
        is_done = report.n_written + report.n_skipped == report.n_shards and not report.n_failed
        return ExitCode.CLEAN if is_done and not report.is_stopped else ExitCode.INCOMPLETE

    run_command(work, progress)


def status(file: PlanArgument, as_json: JsonOption = False) -> None:
    """Show how far a job is, from its ledgers. The exit code is 4 until it is complete.

    Example:

        shardcodec status plan.json
    """
    output = Output(as_json=as_json, as_lines=False)

    def work(monitor: Monitor) -> ExitCode:
        report = job_status(file)
        output.text(_lines(report))
        output.end(report)
        return ExitCode.CLEAN if report.is_complete else ExitCode.INCOMPLETE

    run_command(work, ProgressKind.NONE)


def _lines(report: StatusReport) -> Iterator[str]:
    yield f"{report.source} to {report.destination}"
    for one in report.arrays:
        share = format_share(one.n_finished, one.n_shards)
        yield f"  {one.name or 'array':20} {one.n_finished} of {format_count(one.n_shards, 'shard')} ({share}), {format_nbytes(one.nbytes)}"
    if report.n_damaged_lines or report.n_foreign_ledgers:
        yield (
            f"left out: {format_count(report.n_damaged_lines, 'damaged line')}, "
            f"not of this plan: {format_count(report.n_foreign_ledgers, 'ledger')}"
        )
    if report.parts_left:
        shown = ",".join(map(str, report.parts_left[:MOST_PARTS]))
        more = ",..." if len(report.parts_left) > MOST_PARTS else ""
        yield f"parts left ({len(report.parts_left)} of {report.n_parts}): {shown}{more}"
    if report.is_complete:
        yield "complete"
    elif not report.parts_left:
        yield "all shards are finished; run any part once more to write the metadata"
