# convert.py - the commands `convert`, `plan`, `run-part` and `status`
# SPDX-License-Identifier: MIT
"""The command `convert`, which converts arrays to shards, and `plan`, `run-part` and `status`: several processes share a conversion.

`shardcodec plan` plans the same as `shardcodec convert` for them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..readable import format_count
from ..tools.convert.convert import convert as convert_arrays
from ..tools.convert.convert import plan_convert
from ..tools.convert.report import ConvertedArray, table_lines
from ..tools.jobs.run_part import run_part as run_one_part
from ..tools.jobs.run_part import status as job_status
from .exit_code import ExitCode
from .flags import KEEP_WRITING, Flag, Rows
from .tool_command import Run, command

__all__ = ["convert", "plan", "run_part", "status"]

CONVERT_ROWS: Rows = {
    "temp": Flag("A new folder for an intermediate array, where it saves reads.", metavar="FOLDER"),
    "job": Flag("Make it resumable: a new file for the plan; the ledger is beside it.", metavar="FILE"),
    "resume": Flag("Go on with the job in --job FILE, or begin it if there is none."),
    "fail_fast": KEEP_WRITING,
}


@command(convert_arrays, CONVERT_ROWS)
def convert(run: Run) -> ExitCode:
    """Convert arrays to shards. Encoded chunks are moved as they are where shapes and codecs permit.

    Sources: Zarr v2, v3 with or without shards, the 2022 format, HDF5. Groups keep attributes and the names of axes, and all objects
    that belong to no array.
    Metadata are written last. With --job, Ctrl-C and SIGTERM lead to exit code 4, and --resume goes on. With --dask it is always a job;
    its file is by default beside DST, with the ending .job.json.

    Example:

        shardcodec convert images.zarr shards.zarr --job shards.json

        shardcodec convert images.zarr copy.zarr --dask local:2
    """
    given = run.given
    arrays: list[ConvertedArray] = []

    def array_lines(done: ConvertedArray) -> Iterable[str]:
        arrays.append(done)
        return done.lines()

    report = run.report(array_lines, lambda report: [*table_lines(arrays), *report.lines()])
    if given["dry_run"] or report.is_complete:
        return ExitCode.FINDINGS if report.left_arrays or report.left.n_unreadable else ExitCode.CLEAN
    return ExitCode.FAILED if given["job"] is None and given["dask"] is None else ExitCode.INCOMPLETE


PLAN_ROWS: Rows = {
    "file": Flag("The new file of the plan.", metavar="FILE"),
    "parts": Flag("Number of parts.", metavar="N", min=1),
}


@command(plan_convert, PLAN_ROWS)
def plan(run: Run) -> ExitCode:
    """Plan a conversion whose parts run in processes of their own, such as the tasks of a job array.

    The file has the whole plan. `shardcodec run-part FILE N` runs a part, and `shardcodec status FILE` says how far it is.

    Example:

        shardcodec plan images.zarr shards.zarr plan.json --parts 4
    """
    report = run.report()
    shards, parts = format_count(report.n_shards, "shard"), format_count(run.given["parts"], "part")
    run.output.text([f"{shards} in {parts}: {run.given['file']}"])
    return ExitCode.FINDINGS if report.left_arrays or report.left.n_unreadable else ExitCode.CLEAN


PART_ROWS = {
    "part": Flag("Number of the part, from 0 on.", metavar="N", min=0),
    "fail_fast": KEEP_WRITING,
}


@command(run_one_part, PART_ROWS)
def run_part(run: Run) -> ExitCode:
    """Run one part of a plan. Parts may run at the same time, in any order, and again: finished shards are skipped.

    After SIGTERM, or if a shard cannot be written, the exit code is 4; run the part again. The part that finds all shards
    finished writes the metadata.

    Example:

        shardcodec run-part plan.json 0
    """
    report = run.report()
    is_done = report.n_written + report.n_skipped == report.n_shards and not report.n_failed
    return ExitCode.CLEAN if is_done and not report.is_stopped else ExitCode.INCOMPLETE


@command(job_status)
def status(run: Run) -> ExitCode:
    """Show how far a job is, from its ledgers. The exit code is 4 until it is complete.

    Example:

        shardcodec status plan.json
    """
    return ExitCode.CLEAN if run.report().is_complete else ExitCode.INCOMPLETE
