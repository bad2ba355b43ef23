# verify.py - the command `shardcodec verify`
# SPDX-License-Identifier: MIT
"""`shardcodec verify PATH` checks that shards are whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from typer import Option

from ..tools.chunk_check import Level
from ..tools.report import format_count, format_nbytes, format_share
from ..tools.verify import ShardFindings, VerifiedArray, VerifyReport
from ..tools.verify import verify as verify_shards
from ..tools.work import Monitor
from .common import (
    ArrayOption,
    DaskOption,
    ExitCode,
    JsonLinesOption,
    JsonOption,
    KeepGoingOption,
    MemoryOption,
    MetadataOption,
    Output,
    PathArgument,
    ProgressKind,
    ProgressOption,
    StorageOption,
    ThreadsOption,
    finding_line,
    parse_share,
    run_command,
    spec_from,
    storage_options_from,
)

__all__ = ["verify"]


def verify(
    path: PathArgument,
    level: Annotated[
        Level, Option("--level", help="Check indexes, all checksums, or decode all inner chunks.")
    ] = Level.CHECKSUM,
    sample: Annotated[
        float,
        Option(
            "--sample",
            metavar="SHARE",
            parser=parse_share,
            show_default="100%",
            help="Check a share of the shards, such as 1%.",
        ),
    ] = 1.0,
    since: Annotated[
        str | None,
        Option("--since", metavar="MANIFEST", help="Skip shards that have not changed since this manifest."),
    ] = None,
    manifest: Annotated[
        str | None, Option("--manifest", metavar="OUT", help="Write a manifest to this file.")
    ] = None,
    against: Annotated[
        str | None,
        Option(
            "--against",
            metavar="OTHER",
            help="Compare all elements, and objects of no array, with this source of `convert`.",
        ),
    ] = None,
    array: ArrayOption = None,
    only_arrays: Annotated[
        bool, Option("--only-arrays", help="With --against: do not compare objects that belong to no array.")
    ] = False,
    metadata: MetadataOption = None,
    storage_option: StorageOption = None,
    memory: MemoryOption = None,
    threads: ThreadsOption = None,
    dask: DaskOption = None,
    as_json: JsonOption = False,
    jsonl: JsonLinesOption = False,
    progress: ProgressOption = ProgressKind.AUTO,
    keep_going: KeepGoingOption = True,
) -> None:
    """Check that shards are whole. Nothing is changed.

    Each finding has its kind, the shard, the inner chunk, the bytes, and whether `repair` can restore it without a copy.
    The exit code is 1 if a shard is damaged.

    Example:

        shardcodec verify images.zarr --level decode --manifest images.manifest
    """
    output = Output(as_json=as_json, as_lines=jsonl)

    def on_shard(found: ShardFindings) -> None:
        output.part(found)
        output.text(map(finding_line, found.findings))
        n_more = found.n_findings - sum(not one.is_warning for one in found.findings)
        output.text([f"{found.shard}: {format_count(n_more, 'further finding')}"] if n_more > 0 else [])

    def work(monitor: Monitor) -> ExitCode:
        report = verify_shards(
            path,
            level=level,
            sample=sample,
            since=since,
            manifest=manifest,
            against=against,
            array=array,
            only_arrays=only_arrays,
            spec=spec_from(metadata),
            threads=threads,
            fail_fast=not keep_going,
            memory=memory,
            dask=dask,
            storage_options=storage_options_from(storage_option),
            monitor=monitor,
            on_shard=None if output.keeps_parts else on_shard,
        )
        output.text(_lines(report))
        output.end(report)
        return ExitCode.FINDINGS if report.n_findings else ExitCode.CLEAN

    run_command(work, progress)


def _lines(report: VerifyReport) -> Iterator[str]:
    for one in report.arrays:
        yield from _array_lines(one, report)
    if report.n_other_objects:
        yield f"{format_count(report.n_other_objects, 'other object')} compared"
    if not report.is_complete:
        yield "stopped at the first finding"
    n_left = sum(one.problem is not None for one in report.arrays)
    were = "was" if n_left == 1 else "were"
    left = f"; {format_count(n_left, 'array')} {were} not verified" if n_left else ""
    yield (format_count(report.n_findings, "finding") if report.n_findings else "no damage found") + left


def _array_lines(one: VerifiedArray, report: VerifyReport) -> Iterator[str]:
    yield one.name or report.target
    if one.problem is not None:
        yield f"  not verified: {one.problem}"
        return
    yield f"  shards        {one.n_shards} verified, {one.n_damaged} of them damaged, {format_nbytes(one.nbytes)}"
    if one.n_unchanged or one.n_not_sampled:
        yield f"  left out      {one.n_unchanged} unchanged since the manifest, {one.n_not_sampled} not in the sample"
    verified = format_share(one.verified_nbytes, one.data_nbytes)
    yield f"  inner chunks  {format_nbytes(one.data_nbytes)}, {verified} verified by a checksum"
    if one.unverifiable_nbytes:
        share = format_share(one.unverifiable_nbytes, one.data_nbytes)
        yield f"  no checksum   {format_nbytes(one.unverifiable_nbytes)} ({share}): damage of these bytes cannot be found"
    if not one.has_index_checksum:
        yield "  no checksum   of the indexes; `shardcodec compact --index-crc` makes an array that has it"
