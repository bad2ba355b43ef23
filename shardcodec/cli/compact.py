# compact.py - the command `compact`
# SPDX-License-Identifier: MIT
"""The command `compact`: remove what the shards of arrays do not need."""

from __future__ import annotations

from typing import Annotated, cast

from typer import Option

from ..options import Order
from ..readable import fact_lines
from ..tools.compact import compact as compact_shards
from ..tools.compact_report import CompactedShard, CompactReport
from ..tools.monitor import Monitor
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
    parse_share,
    spec_from,
    storage_options_from,
)
from .exit_code import ExitCode
from .output import Output
from .progress import ProgressKind
from .run_command import run_command

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
    """Pack shards: remove dead bytes, order inner chunks, add index checksums. Nothing is decoded.

    Each shard is replaced in one step, or written to a new hierarchy (--to). The exit code is 1 if a shard is damaged and was
    not packed, or the metadata of an array cannot be read.

    Example:

        shardcodec compact images.zarr --min-dead 20% --dry-run
    """
    output = Output(as_json=as_json, as_lines=jsonl)

    def on_shard(done: CompactedShard) -> None:
        output.part(done)
        output.text(fact_lines(done.result_facts(would=dry_run)))

    def show(report: CompactReport) -> None:
        output.text(report.lines())
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
        return ExitCode.FINDINGS if report.n_failed or report.n_unreadable else ExitCode.CLEAN

    run_command(work, progress, show)
