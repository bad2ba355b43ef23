# convert.py - the command `convert`
# SPDX-License-Identifier: MIT
"""The command `convert`: `shardcodec convert SRC DST` converts arrays to shards."""

from __future__ import annotations

import enum
from typing import Annotated, Any

from typer import Argument, Option

from ..tools.convert.choice_texts import parse_rules
from ..tools.convert.convert import convert as convert_arrays
from ..tools.convert.cost import Prices
from ..tools.convert.layout import parse_codec_list
from ..tools.convert.report import ConvertedArray, table_lines
from ..tools.monitor import Monitor
from .common_options import (
    ArrayOption,
    DaskOption,
    DryRunOption,
    ExactlyOption,
    ExcludeOption,
    JsonLinesOption,
    JsonOption,
    MemoryOption,
    OnlyArraysOption,
    OnlyOption,
    ProgressOption,
    StorageOption,
    ThreadsOption,
    storage_options_from,
)
from .exit_code import ExitCode
from .output import Output
from .progress import ProgressKind
from .run_command import run_command

__all__ = [
    "AccessOption",
    "ChunksOption",
    "CodecsOption",
    "DestinationArgument",
    "LikeOption",
    "Operation",
    "ShardsOption",
    "SourceArgument",
    "Verify",
    "VerifyOption",
    "chosen",
    "convert",
    "layout",
]


class Verify(enum.StrEnum):
    """The part of new shards that is read again."""

    NONE = "none"
    CHECKSUM = "checksum"
    FULL = "full"


class Operation(enum.StrEnum):
    """The commands that `plan` can prepare."""

    CONVERT = "convert"


SourceArgument = Annotated[
    str,
    Argument(
        metavar="SRC",
        help="A group or an array of Zarr, or an HDF5 file: a path, a URL, or a path into a file.",
    ),
]
DestinationArgument = Annotated[
    str, Argument(metavar="DST", help="The new hierarchy: a path or a URL; nothing may be there.")
]
ChunksOption = Annotated[
    list[str] | None,
    Option(
        "--chunks",
        metavar="[ARRAY:]SHAPE",
        help="Inner chunks: a shape such as 64,64,64; sizes by names of axes such as time=24,lat=90; or auto, for --access. ARRAY is "
        "a path or a pattern; may be repeated.",
    ),
]
ShardsOption = Annotated[
    list[str] | None,
    Option(
        "--shards",
        metavar="[ARRAY:]SIZE|SHAPE",
        help="Largest shard, decoded, such as 512MiB; or as --chunks, such as time=240.",
    ),
]
AccessOption = Annotated[
    list[str] | None,
    Option(
        "--access",
        metavar="BOX[@WEIGHT]",
        help="A box that is read, such as '1,:,:' or time=1, for --chunks auto and --shards auto; may be repeated.",
    ),
]
CodecsOption = Annotated[
    str | None,
    Option("--codecs", metavar="LIST", help="Codecs of an inner chunk: names such as zstd,crc32c, or JSON."),
]
LikeOption = Annotated[
    str | None, Option("--like", metavar="ARRAY", help="Take shapes and codecs of this array.")
]
VerifyOption = Annotated[
    Verify, Option("--verify", help="Read new shards again: their checksums, or all of them.")
]


def convert(
    source: SourceArgument,
    destination: DestinationArgument,
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
    temp: Annotated[
        str | None,
        Option(
            "--temp", metavar="FOLDER", help="A new folder for an intermediate array, where it saves reads."
        ),
    ] = None,
    job: Annotated[
        str | None,
        Option(
            "--job",
            metavar="FILE",
            help="Make it resumable: a new file for the plan; the ledger is beside it.",
        ),
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="Go on with the job in --job FILE, or begin it if there is none.")
    ] = False,
    dask: DaskOption = None,
    price_get: Annotated[
        float | None, Option("--price-get", metavar="X", min=0, help="Price of 1,000 reads, for --dry-run.")
    ] = None,
    price_put: Annotated[
        float | None, Option("--price-put", metavar="X", min=0, help="Price of 1,000 writes, for --dry-run.")
    ] = None,
    array: ArrayOption = None,
    storage_option: StorageOption = None,
    memory: MemoryOption = None,
    threads: ThreadsOption = None,
    keep_going: Annotated[
        bool, Option("--keep-going/--fail-fast", help="Go on after a shard that cannot be written, or stop.")
    ] = True,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    jsonl: JsonLinesOption = False,
    progress: ProgressOption = ProgressKind.AUTO,
) -> None:
    """Convert arrays to shards. Encoded chunks are moved as they are where shapes and codecs permit.

    Sources: Zarr v2, v3 with or without shards, the 2022 format, HDF5. Groups keep attributes and the names of axes, and all objects
    that belong to no array.
    Metadata are written last. With --job, Ctrl-C and SIGTERM lead to exit code 4, and --resume goes on. With --dask it is always a job;
    its file is by default beside DST, with the ending .job.json.

    Example:

        shardcodec convert images.zarr shards.zarr --job shards.json

        shardcodec convert images.zarr copy.zarr --dask local:2
    """
    output = Output(as_json=as_json, as_lines=jsonl)
    arrays: list[ConvertedArray] = []

    def on_array(done: ConvertedArray) -> None:
        arrays.append(done)
        output.part(done)
        output.text(done.lines())

    def work(monitor: Monitor) -> ExitCode:
        prices = None
        if price_get is not None or price_put is not None:
            prices = Prices(price_get or 0.0, price_put or 0.0)
        report = convert_arrays(
            source,
            destination,
            **layout(chunks, shards, access, codecs, like),
            **chosen(only, exclude, array, exactly=exactly),
            only_arrays=only_arrays,
            verify=verify.value,
            memory=memory,
            threads=threads,
            temp=temp,
            job=job,
            resume=resume,
            dask=dask,
            fail_fast=not keep_going,
            dry_run=dry_run,
            prices=prices,
            storage_options=storage_options_from(storage_option),
            monitor=monitor,
            on_array=None if output.keeps_parts else on_array,
        )
        output.text(table_lines(arrays))
        output.text(report.lines())
        output.end(report)
        if dry_run or report.is_complete:
            return ExitCode.FINDINGS if report.left_arrays or report.left.n_unreadable else ExitCode.CLEAN
        return ExitCode.INCOMPLETE if job is not None or dask is not None else ExitCode.FAILED

    run_command(work, progress)


def layout(
    chunks: list[str] | None,
    shards: list[str] | None,
    access: list[str] | None,
    codecs: str | None,
    like: str | None,
) -> dict[str, Any]:
    """Return the arguments of `convert` that describe the new arrays."""
    return {
        "chunks": parse_rules("chunks", chunks or ()),
        "shards": parse_rules("shards", shards or ()),
        "access": tuple(access or ()),
        "codecs": None if codecs is None else parse_codec_list(codecs),
        "like": like,
    }


def chosen(
    only: list[str] | None, exclude: list[str] | None, array: str | None, *, exactly: bool
) -> dict[str, Any]:
    """Return the arguments of `convert` that choose arrays."""
    if only and array is not None:
        raise ValueError("expected one of --array and --only, got both")
    return {"only": tuple(only or ()), "exclude": tuple(exclude or ()), "array": array, "exactly": exactly}
