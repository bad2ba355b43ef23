# inspect.py - the commands that only look: `shardcodec inspect`, `verify` and `doctor`
# SPDX-License-Identifier: MIT
"""The commands that only look: `shardcodec inspect`, `verify` and `doctor`."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from ..tools.chunk_check import Level
from ..tools.doctor.doctor import doctor as examine
from ..tools.inspect.array_report import ArrayReport
from ..tools.inspect.inspect import inspect as inspect_arrays
from ..tools.monitor import Monitor
from ..tools.verify.report import ShardFindings
from ..tools.verify.verify import verify as verify_all
from .common_options import (
    ArrayOption,
    DaskOption,
    DryRunOption,
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

__all__ = ["doctor", "inspect", "verify"]


def inspect(
    path: PathArgument,
    array: ArrayOption = None,
    plot: Annotated[
        str | None,
        Option("--plot", metavar="FILE", help="Save a picture of one array and of a shard, .png or .svg."),
    ] = None,
    plot_axes: Annotated[
        str | None,
        Option(
            "--plot-axes", metavar="AXIS,AXIS", help="Axes of the picture, by names or numbers: time,lat."
        ),
    ] = None,
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
    """Show what is stored: shapes, codecs, sizes, order and dead bytes.

    Only metadata and indexes are read. The exit code is 1 if a shard is damaged.

    Example:

        shardcodec inspect images.zarr --array level0 --plot level0.png
    """
    output = Output(as_json=as_json, as_lines=jsonl)

    n_shown = 0

    def on_array(report: ArrayReport) -> None:
        nonlocal n_shown
        output.part(report)
        output.text([*([""] if n_shown else []), *report.lines()])
        n_shown += 1

    def work(monitor: Monitor) -> ExitCode:
        report = inspect_arrays(
            path,
            array=array,
            spec=spec_from(metadata),
            threads=threads,
            memory=memory,
            dask=dask,
            fail_fast=not keep_going,
            plot=plot,
            plot_axes=None if plot_axes is None else [axis.strip() for axis in plot_axes.split(",")],
            storage_options=storage_options_from(storage_option),
            monitor=monitor,
            on_array=None if output.keeps_parts else on_array,
        )
        output.text(report.left)
        output.end(report)
        return ExitCode.FINDINGS if report.n_findings else ExitCode.CLEAN

    run_command(work, progress)


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
