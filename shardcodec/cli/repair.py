# repair.py - the command `repair`
# SPDX-License-Identifier: MIT
"""The command `repair`: `shardcodec repair PATH --to NEW` keeps what is whole of damaged shards."""

from __future__ import annotations

from typing import Annotated, cast

from typer import Option

from ..options import Order
from ..readable import fact_lines
from ..tools.monitor import Monitor
from ..tools.repair.repair import IN_PLACE_ON_DASK
from ..tools.repair.repair import repair as repair_shards
from ..tools.repair.report import RepairedShard, RepairReport
from .common_options import (
    ArrayOption,
    DaskOption,
    DryRunOption,
    ExactlyOption,
    JsonLinesOption,
    JsonOption,
    MemoryOption,
    MetadataOption,
    OnlyArraysOption,
    PathArgument,
    ProgressOption,
    StorageOption,
    ThreadsOption,
    spec_from,
    storage_options_from,
)
from .exit_code import ExitCode
from .output import Output
from .progress import ProgressKind
from .run_command import run_command

__all__ = ["repair"]


def repair(
    path: PathArgument,
    to: Annotated[
        str | None, Option("--to", metavar="NEW", help="Write the repaired hierarchy here.")
    ] = None,
    in_place: Annotated[bool, Option("--in-place", help="Replace damaged shards; needs --backup.")] = False,
    backup: Annotated[
        str | None, Option("--backup", metavar="DIR", help="Folder for the old objects of a repair in place.")
    ] = None,
    copy: Annotated[
        str | None,
        Option("--from", metavar="COPY", help="Take what is damaged from this copy, in any layout."),
    ] = None,
    order: Annotated[
        str | None,
        Option(
            "--order",
            metavar="ORDER",
            help="Order of inner chunks in shards whose index is lost, if you know it.",
        ),
    ] = None,
    array: ArrayOption = None,
    exactly: ExactlyOption = False,
    only_arrays: OnlyArraysOption = False,
    metadata: MetadataOption = None,
    storage_option: StorageOption = None,
    memory: MemoryOption = None,
    threads: ThreadsOption = None,
    dask: DaskOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    jsonl: JsonLinesOption = False,
    progress: ProgressOption = ProgressKind.AUTO,
) -> None:
    """Repair damaged shards: keep what is whole, take the rest from a copy, say what is lost.

    Stop all writers first. The only copy of a shard is never changed: the result is a new hierarchy (--to), or each old
    object is copied to a backup before it is replaced (--in-place --backup). The exit code is 1 if something is lost; with
    --dry-run, if something is damaged; and if the metadata of an array cannot be read.

    Example:

        shardcodec repair images.zarr --to repaired.zarr --dry-run
    """
    output = Output(as_json=as_json, as_lines=jsonl)

    def on_shard(done: RepairedShard) -> None:
        output.part(done)
        output.text(fact_lines(done.result_facts(would=dry_run)))

    def show(report: RepairReport) -> None:
        output.text(report.lines())
        output.end(report)

    def work(monitor: Monitor) -> ExitCode:
        if in_place and dask is not None:
            raise ValueError(IN_PLACE_ON_DASK)
        if in_place != (backup is not None) and not dry_run:
            raise ValueError("--in-place needs --backup DIR, and --backup needs --in-place")
        report = repair_shards(
            path,
            to=to,
            backup=backup,
            copy=copy,
            order=cast("Order | None", order),  # checked there
            dry_run=dry_run,
            array=array,
            exactly=exactly,
            only_arrays=only_arrays,
            spec=spec_from(metadata),
            threads=threads,
            memory=memory,
            dask=dask,
            storage_options=storage_options_from(storage_option),
            monitor=monitor,
            on_shard=None if output.keeps_parts else on_shard,
        )
        show(report)
        is_clean = not report.n_damaged if dry_run else report.n_restored == report.n_damaged
        return ExitCode.CLEAN if is_clean and not report.n_unreadable else ExitCode.FINDINGS

    run_command(work, progress, show)
