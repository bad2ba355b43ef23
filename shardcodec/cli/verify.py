# verify.py - the command `verify`
# SPDX-License-Identifier: MIT
"""The command `verify`, which checks the objects of arrays."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from ..tools.chunk_check import Level
from ..tools.monitor import Monitor
from ..tools.verify.report import ShardFindings
from ..tools.verify.verify import verify as verify_all
from .common_options import (
    ArrayOption,
    DaskOption,
    ExcludeOption,
    JsonLinesOption,
    JsonOption,
    KeepGoingOption,
    MemoryOption,
    MetadataOption,
    OnlyOption,
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

__all__ = ["verify"]


def verify(
    path: PathArgument,
    level: Annotated[
        Level, Option("--level", help="Check indexes, all checksums, or decode all chunks.")
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
        Option(
            "--since",
            metavar="MANIFEST",
            help="Skip shards that have not changed since this manifest; OLD.sha256 skips nothing, all hashes are compared.",
        ),
    ] = None,
    manifest: Annotated[
        str | None,
        Option(
            "--manifest",
            metavar="OUT",
            help="Write a manifest to this file; OUT.sha256 is a text for `sha256sum -c`.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        Option(
            "--against",
            metavar="OTHER",
            help="Compare all elements, and objects of no array, with this source of `convert`; attributes too, of Zarr.",
        ),
    ] = None,
    only: OnlyOption = None,
    exclude: ExcludeOption = None,
    exactly: Annotated[
        bool, Option("--exactly", help="Only arrays that are named, without the coordinates that they need.")
    ] = False,
    array: ArrayOption = None,
    only_arrays: Annotated[
        bool, Option("--only-arrays", help="Do not check objects that belong to no array, such as tables.")
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
    """Check that shards, chunks, metadata and other objects are whole. Nothing is changed.

    Each finding has its kind, the object, the inner chunk, the bytes, and whether `repair` can restore it without a copy.
    The exit code is 1 if something is damaged, and 5 if nothing is, but a part could not be checked: the report names it.

    Example:

        shardcodec verify images.zarr --level decode --manifest images.manifest
    """
    output = Output(as_json=as_json, as_lines=jsonl)

    def on_shard(found: ShardFindings) -> None:
        output.part(found)
        output.text(found.lines())

    def work(monitor: Monitor) -> ExitCode:
        report = verify_all(
            path,
            level=level,
            sample=sample,
            since=since,
            manifest=manifest,
            against=against,
            only=tuple(only or ()),
            exclude=tuple(exclude or ()),
            exactly=exactly,
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
        output.text(report.lines())
        output.end(report)
        if report.n_findings:
            return ExitCode.FINDINGS
        return ExitCode.UNCHECKED if report.n_unchecked else ExitCode.CLEAN

    run_command(work, progress)
