# jobs.py - the commands `plan`, `run-part` and `status`
# SPDX-License-Identifier: MIT
"""The commands `plan`, `run-part` and `status`: a conversion that several processes share.

`shardcodec plan convert` plans the same as `shardcodec convert` for them.
"""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from ..readable import format_count
from ..tools.convert.convert import plan_convert
from ..tools.jobs.run_part import run_part as run_one_part
from ..tools.jobs.run_part import status as job_status
from ..tools.monitor import Monitor
from .common_options import (
    ArrayOption,
    ExactlyOption,
    ExcludeOption,
    JsonOption,
    MemoryOption,
    OnlyArraysOption,
    OnlyOption,
    ProgressOption,
    StorageOption,
    ThreadsOption,
    storage_options_from,
)
from .convert import (
    AccessOption,
    ChunksOption,
    CodecsOption,
    DestinationArgument,
    LikeOption,
    Operation,
    ShardsOption,
    SourceArgument,
    Verify,
    VerifyOption,
    chosen,
    layout,
)
from .exit_code import ExitCode
from .output import Output
from .progress import ProgressKind
from .run_command import run_command

__all__ = ["plan", "run_part", "status"]


def plan(
    operation: Annotated[Operation, Argument(metavar="OPERATION", help="What is planned: convert.")],
    source: SourceArgument,
    destination: DestinationArgument,
    file: Annotated[str, Option("-o", "--output", metavar="FILE", help="The new file of the plan.")],
    parts: Annotated[int, Option("--parts", metavar="N", min=1, help="Number of parts.")] = 1,
    chunks: ChunksOption = None,
    shards: ShardsOption = None,
    access: AccessOption = None,
    codecs: CodecsOption = None,
    like: LikeOption = None,
    only: OnlyOption = None,
    exclude: ExcludeOption = None,
    exactly: ExactlyOption = False,
    only_arrays: OnlyArraysOption = False,
    verify: VerifyOption = Verify.NONE,
    array: ArrayOption = None,
    storage_option: StorageOption = None,
    memory: MemoryOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Plan a conversion whose parts run in processes of their own, such as the tasks of a job array.

    The file has the whole plan. `shardcodec run-part FILE N` runs a part, and `shardcodec status FILE` says how far it is.

    Example:

        shardcodec plan convert images.zarr shards.zarr --parts 4 -o plan.json
    """
    output = Output(as_json=as_json, as_lines=False)

    def work(monitor: Monitor) -> ExitCode:
        report = plan_convert(
            source,
            destination,
            file,
            n_parts=parts,
            **layout(chunks, shards, access, codecs, like),
            **chosen(only, exclude, array, exactly=exactly),
            only_arrays=only_arrays,
            verify=verify.value,
            memory=memory,
            threads=threads,
            storage_options=storage_options_from(storage_option),
        )
        output.text(report.lines())
        output.text([f"{format_count(report.n_shards, 'shard')} in {format_count(parts, 'part')}: {file}"])
        output.end(report)
        return ExitCode.FINDINGS if report.left_arrays or report.left.n_unreadable else ExitCode.CLEAN

    run_command(work, ProgressKind.NONE)


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
        output.text(report.lines())
        output.end(report)
        n_done = report.n_written + report.n_skipped
        is_done = n_done == report.n_shards and not report.n_failed
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
        output.text(report.lines())
        output.end(report)
        return ExitCode.CLEAN if report.is_complete else ExitCode.INCOMPLETE

    run_command(work, ProgressKind.NONE)
