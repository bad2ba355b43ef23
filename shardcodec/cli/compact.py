# compact.py - the command `shardcodec compact`
# SPDX-License-Identifier: MIT
"""`shardcodec compact PATH` packs and orders shards without decoding them."""

from __future__ import annotations

from typing import Annotated, cast

from typer import Option

from ..options import Order
from ..tools.compact import CompactAction, CompactedShard, CompactReport
from ..tools.compact import compact as compact_shards
from ..tools.report import format_count, format_nbytes
from ..tools.work import Monitor
from .exit_codes import ExitCode
from .left_line import left_line
from .options import (
    ArrayOption,
    DaskOption,
    DryRunOption,
    JsonLinesOption,
    JsonOption,
    MemoryOption,
    MetadataOption,
    OnlyArraysOption,
    PathArgument,
    ProgressKind,
    ProgressOption,
    StorageOption,
    ThreadsOption,
    parse_share,
    spec_from,
    storage_options_from,
)
from .other_lines import other_lines
from .output import Output
from .session import run_command

__all__ = ["compact"]


def compact(
    path: PathArgument,
    min_dead: Annotated[
        float,
        Option(
            "--min-dead",
            metavar="SHARE",
            parser=parse_share,
            show_default="10%",
            help="Pack shards with this share of dead bytes.",
        ),
    ] = 0.1,
    order: Annotated[
        str | None,
        Option(
            "--order",
            metavar="ORDER",
            help="Order of inner chunks: morton, lexicographic or colexicographic.",
        ),
    ] = None,
    index_crc: Annotated[
        bool, Option("--index-crc", help="Add a checksum to indexes that have none; needs --to.")
    ] = False,
    to: Annotated[
        str | None, Option("--to", metavar="NEW", help="Write a new hierarchy; PATH is not changed.")
    ] = None,
    array: ArrayOption = None,
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
    """Pack shards: remove dead bytes, order inner chunks, add index checksums. Nothing is decoded.

    Each shard is replaced in one step, or written to a new hierarchy (--to). The exit code is 1 if a shard is damaged and was
    not packed, or the metadata of an array cannot be read.

    Example:

        shardcodec compact images.zarr --min-dead 20% --dry-run
    """
    output = Output(as_json=as_json, as_lines=jsonl)

    def on_shard(done: CompactedShard) -> None:
        output.part(done)
        output.text([_line(done, dry_run)])

    def show(report: CompactReport) -> None:
        output.text(left_line(one, path, None if dry_run else to) for one in report.left_arrays)
        output.text(other_lines(report.others, would=dry_run))
        output.text([_last_line(report)])
        output.end(report)

    def work(monitor: Monitor) -> ExitCode:
        report = compact_shards(
            path,
            min_dead=min_dead,
            order=cast("Order | None", order),  # checked there
            index_crc=index_crc,
            to=to,
            dry_run=dry_run,
            array=array,
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
        return ExitCode.FINDINGS if report.n_failed or report.n_unreadable_arrays else ExitCode.CLEAN

    run_command(work, progress, show)


def _last_line(report: CompactReport) -> str:
    would = "would be " if report.dry_run else ""
    freed = format_nbytes(abs(report.freed_nbytes))
    sign = "-" if report.freed_nbytes < 0 else ""
    return (
        f"{format_count(report.n_shards, 'shard')}, {report.n_packed} {would}packed, {report.n_failed} failed, {sign}{freed} {would}freed"
        f"{'' if report.is_complete else _why_incomplete(report)}"
    )


def _why_incomplete(report: CompactReport) -> str:
    if report.n_failed and report.to is not None:
        return "; no metadata were written; repair the shards that failed, remove what is at --to, and run it again"
    return "; stopped before the end"


def _line(done: CompactedShard, dry_run: bool) -> str:
    if done.action is CompactAction.FAILED:
        return f"{done.shard}: not packed: {done.detail}"
    size = "" if done.new_nbytes is None else f" to {format_nbytes(done.new_nbytes)}"
    dead = format_nbytes(done.dead_nbytes)
    return f"{done.shard}: {'would be ' if dry_run else ''}packed from {format_nbytes(done.nbytes)}{size}, {dead} dead"
