# inspect.py - the command `inspect`
# SPDX-License-Identifier: MIT
"""The command `inspect`, which shows what arrays and shards have."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from ..tools.inspect.array_report import ArrayReport
from ..tools.inspect.inspect import inspect as inspect_arrays
from ..tools.monitor import Monitor
from .common_options import (
    ArrayOption,
    DaskOption,
    JsonLinesOption,
    JsonOption,
    KeepGoingOption,
    MemoryOption,
    MetadataOption,
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

__all__ = ["inspect"]


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
