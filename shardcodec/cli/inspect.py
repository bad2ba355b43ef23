# inspect.py - the commands that only look: `shardcodec inspect`, `verify` and `doctor`
# SPDX-License-Identifier: MIT
"""The commands that only look: `shardcodec inspect`, `verify` and `doctor`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from typer import Argument, Option

from ..tools.array_report import ArrayReport, LayoutRecord, SizeSummary, StoredRecord
from ..tools.chunk_check import Level
from ..tools.doctor import Check, DoctorReport, Status
from ..tools.doctor import doctor as examine
from ..tools.inspect import inspect as inspect_arrays
from ..tools.report import format_count, format_nbytes, format_share
from ..tools.verify import ShardFindings, VerifiedArray, VerifyReport
from ..tools.verify import verify as verify_shards
from ..tools.work import Monitor
from .common import (
    ArrayOption,
    DaskOption,
    DryRunOption,
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

__all__ = ["doctor", "inspect", "verify"]


def inspect(
    path: PathArgument,
    array: ArrayOption = None,
    plot: Annotated[
        str | None,
        Option("--plot", metavar="FILE", help="Save a picture of one array and of a shard, .png or .svg."),
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
        output.text([*([""] if n_shown else []), *lines(report)])
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
            storage_options=storage_options_from(storage_option),
            monitor=monitor,
            on_array=None if output.keeps_parts else on_array,
        )
        output.end(report)
        return ExitCode.FINDINGS if report.n_findings else ExitCode.CLEAN

    run_command(work, progress)


_ORDERS = {"any": "fits every order", "other": "no known order"}


def lines(report: ArrayReport) -> Iterator[str]:
    """Yield the report of one array as lines of text."""
    yield report.name or report.place
    if report.problem is not None:
        yield _line("problem", report.problem)
    if report.foreign_codec is not None:
        kind = "its data type" if report.layout is None else report.layout.dtype
        yield _line(
            "note",
            f"inner chunks are moved as bytes: only zarr decodes {kind} with the codec {report.foreign_codec}",
        )
    if report.layout is not None:
        yield from _layout_lines(report.layout)
    if report.stored is not None and report.layout is not None:
        yield from _stored_lines(report.stored, report.layout)
    for one in report.damaged:
        yield _line("damaged", f"{one.shard}: {one.message}")
    for name in report.foreign:
        yield _line("other file", name)
    if not report.is_complete:
        yield _line("note", "stopped at the first damaged shard")


def _line(name: str, text: str) -> str:
    return f"  {name:13} {text}"


def _layout_lines(layout: LayoutRecord) -> Iterator[str]:
    yield _line("array", f"{_shape(layout.shape)} {layout.dtype}, fill value {layout.fill_value}")
    if layout.dimension_names is not None:
        yield _line("axes", ", ".join(name or "-" for name in layout.dimension_names))
    if layout.grid_sizes is not None:
        sizes = " x ".join(f"({', '.join(map(str, axis))})" for axis in layout.grid_sizes)
        kind = "chunks, not sharded" if layout.chunk_shape is None else "shards"
        yield _line("grid", f"rectilinear: sizes {sizes} of {kind}")
        if layout.chunk_shape is not None:
            yield _line("inner chunks", _shape(layout.chunk_shape))
    elif layout.shard_shape is None and layout.chunk_shape is not None:
        yield _line("chunks", f"{_shape(layout.chunk_shape)}, not sharded")
    elif layout.shard_shape is not None and layout.chunk_shape is not None:
        yield _line("shard", f"{_shape(layout.shard_shape)} in inner chunks of {_shape(layout.chunk_shape)}")
    yield _line("codecs", _codecs(layout.codecs))
    if layout.index_location is not None:
        size = format_nbytes(layout.index_nbytes)
        yield _line("index", f"{size} at the {layout.index_location}, {_codecs(layout.index_codecs)}")


def _stored_lines(stored: StoredRecord, layout: LayoutRecord) -> Iterator[str]:
    total = stored.shards.nbytes
    yield _line("shards", f"{stored.n_shards} of {stored.n_grid_shards}, {format_nbytes(total)}")
    if stored.n_damaged:
        yield _line("damaged", format_count(stored.n_damaged, "shard"))
    if stored.n_foreign:
        yield _line("other files", str(stored.n_foreign))
    if stored.n_shards == stored.n_damaged:
        return
    share = format_share(stored.n_chunks, stored.n_grid_chunks)
    yield _line("inner chunks", f"{stored.n_chunks} of {stored.n_grid_chunks} ({share})")
    yield _line("shard size", _sizes(stored.shards))
    if stored.n_chunks:
        yield _line("chunk size", _sizes(stored.chunks))
    if stored.ratio is not None:
        decoded = format_nbytes(stored.decoded_nbytes)
        yield _line("ratio", f"{stored.ratio:.3g} ({decoded} decoded)")
    yield _line(
        "index bytes", f"{format_nbytes(stored.index_nbytes)} ({format_share(stored.index_nbytes, total)})"
    )
    yield _line(
        "dead bytes", f"{format_nbytes(stored.dead_nbytes)} ({format_share(stored.dead_nbytes, total)})"
    )
    if stored.padding_nbytes:
        yield _line("padding", f"{format_nbytes(stored.padding_nbytes)} of alignment")
    if stored.unmarked_nbytes:
        text = "before the first or behind the last inner chunk: header, footer or dead"
        yield _line("unmarked", f"{format_nbytes(stored.unmarked_nbytes)} {text}")
    for name, n, nbytes in (
        ("header", stored.n_with_header, stored.header_nbytes),
        ("footer", stored.n_with_footer, stored.footer_nbytes),
    ):
        if n:
            yield _line(name, f"in {format_count(n, 'shard')}, {format_nbytes(nbytes)}")
    yield _line(
        "order",
        ", ".join(
            f"{_ORDERS.get(name, name)} ({format_count(n, 'shard')})"
            for name, n in sorted(stored.orders.items())
        ),
    )
    if stored.n_without_index_checksum:
        yield _line(
            "no checksum", f"of the index in {format_count(stored.n_without_index_checksum, 'shard')}"
        )


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) if shape else "scalar"


def _sizes(sizes: SizeSummary) -> str:
    numbers = [sizes.p5_nbytes, sizes.p50_nbytes, sizes.p95_nbytes]
    p5, p50, p95 = (format_nbytes(number or 0) for number in numbers)
    return f"5 %: {p5}, median: {p50}, 95 %: {p95}"


def _codecs(codecs: list[Any]) -> str:
    """Return the names of codecs, with the levels of compressors."""
    found = []
    for codec in codecs:
        configuration = codec.get("configuration") or {}
        shown = [configuration[name] for name in ("cname", "level", "clevel") if name in configuration]
        found.append(codec["name"] + (f"({', '.join(map(str, shown))})" if shown else ""))
    return ", ".join(found) or "none"


# ---------------------------------------------------------------- `shardcodec doctor PATH`: is a place fit for shards?

_MARKS = {Status.OK: " ", Status.NOTE: "-", Status.PROBLEM: "!"}


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
        output.text(check_lines(report))
        output.end(report)
        return ExitCode.FINDINGS if report.n_problems else ExitCode.CLEAN

    run_command(work, ProgressKind.NONE)


def check_lines(report: DoctorReport) -> Iterator[str]:
    """Yield the facts as lines of text."""
    for one in report.checks:
        yield from _lines_of(one)


def _lines_of(one: Check) -> Iterator[str]:
    yield f"{_MARKS[one.status]} {one.name:12} {one.text}"
    if one.advice is not None:
        yield f"  {'':12} -> {one.advice}"


# ---------------------------------------------------------------- `shardcodec verify PATH`: are shards whole?


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
