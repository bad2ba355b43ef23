# advise.py - the command `shardcodec advise`
# SPDX-License-Identifier: MIT
"""`shardcodec advise`: shapes of shards and inner chunks for the way an array is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from typer import Argument, BadParameter, Option

from ..readable import parse_nbytes
from ..tools.advise.access_pattern import parse_access
from ..tools.advise.advise import advise as propose
from ..tools.advise.report import Bounds
from ..tools.advise.trials import try_proposal
from ..tools.hierarchy import find_arrays
from ..tools.inspect.inspect import chunk_shape_of_shards
from ..tools.monitor import Monitor
from ..tools.nodes import ZarrNodes
from ..tools.targets import ArrayTarget
from .common_options import (
    ArrayOption,
    JsonOption,
    MemoryOption,
    StorageOption,
    ThreadsOption,
    storage_options_from,
)
from .exit_code import ExitCode
from .output import Output
from .progress import ProgressKind
from .run_command import run_command

__all__ = ["advise"]

N_TRIALS = 2


def advise(
    access: Annotated[
        list[str],
        Option(
            "--access",
            metavar="BOX[@WEIGHT]",
            help="A box that is read, such as '1,:,:', '1,64,64@10' or time=1; may be repeated.",
        ),
    ],
    path: Annotated[
        str | None, Argument(metavar="[PATH]", help="An array; or give --shape and --dtype.")
    ] = None,
    shape: Annotated[str | None, Option("--shape", metavar="N,N,...", help="Shape of a new array.")] = None,
    dtype: Annotated[str, Option("--dtype", metavar="TYPE", help="Data type of a new array.")] = "uint16",
    chunk: Annotated[
        int,
        Option(
            "--chunk-size",
            metavar="SIZE",
            parser=parse_nbytes,
            show_default="1MiB",
            help="Target of an inner chunk, decoded.",
        ),
    ] = 1 << 20,
    shard: Annotated[
        int,
        Option(
            "--shard-size",
            metavar="SIZE",
            parser=parse_nbytes,
            show_default="512MiB",
            help="Largest shard, decoded.",
        ),
    ] = 512 << 20,
    max_files: Annotated[
        int | None, Option("--max-files", metavar="N", min=1, help="Shards at most.")
    ] = None,
    writers: Annotated[int, Option("--writers", metavar="N", min=1, help="Writers at the same time.")] = 1,
    ratio: Annotated[
        float, Option("--ratio", metavar="R", min=0.01, help="Expected compression ratio.")
    ] = 1.0,
    measure: Annotated[bool, Option("--try", help="Measure the best two on a sample of PATH.")] = False,
    array: ArrayOption = None,
    storage_option: StorageOption = None,
    memory: MemoryOption = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Propose shapes of shards and inner chunks for the way an array is read.

    For each proposal: requests, bytes and memory of an access, on average over all positions. --memory is that of one
    writer, which holds a shard.

    Example:

        shardcodec advise --shape 900,2048,2048 --access 1,:,: --max-files 99
    """
    output = Output(as_json=as_json, as_lines=False)
    if (path is None) == (shape is None):
        raise BadParameter("expected PATH or --shape, and not both")
    if measure and path is None:
        raise BadParameter("--try: expected PATH, an array with the data of the sample")

    def work(monitor: Monitor) -> ExitCode:
        bounds = Bounds(
            chunk_nbytes=chunk,
            shard_nbytes=shard,
            max_files=max_files,
            memory=memory,
            writers=writers,
            ratio=ratio,
        )
        if path is None:
            sizes, kind, target, present = _shape(shape or ""), _dtype(dtype), None, None
            names: Sequence[str | None] = ()
        else:
            target = _one_array(path, array, storage_option)
            assert target.layout is not None
            sizes, kind = target.layout.shape, target.layout.dtype
            facts = ZarrNodes(target.folder).array("")
            names = () if facts is None else facts.names
            present = (
                (chunk_shape_of_shards(target.spec), target.spec.shard_shape)
                if target.spec is not None
                else None
            )
        accesses = [parse_access(text, sizes, names) for text in access]
        report = propose(sizes, kind, accesses, bounds, present=present)
        if measure and target is not None:
            trials = [
                try_proposal(target, one, accesses, threads=threads, monitor=monitor)
                for one in report.proposals[:N_TRIALS]
            ]
            report = replace(report, trials=tuple(trials))
        output.text(report.lines())
        output.end(report)
        return ExitCode.CLEAN

    run_command(work, ProgressKind.NONE)


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(part) for part in text.split(","))
    except ValueError:
        shape = (0,)
    if min(shape) < 1:
        raise ValueError(f"--shape: expected positive numbers, such as 1000,2048,2048, got {text!r}")
    return shape


def _dtype(text: str) -> np.dtype[Any]:
    try:
        return np.dtype(text)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(f"--dtype: expected a data type of numpy, such as uint16, got {text!r}") from error


def _one_array(path: str, array: str | None, storage_option: list[str] | None) -> ArrayTarget:
    found = list(find_arrays(path, array=array, storage_options=storage_options_from(storage_option)))
    if len(found) != 1:
        names = ", ".join(one.name for one in found[:3])
        raise ValueError(
            f"expected a single array, got {len(found)} ({names}); choose one of them with --array"
        )
    if found[0].layout is None:
        raise ValueError(f"array {found[0].place}: {found[0].problem}")
    if found[0].foreign_type is not None:
        raise ValueError(
            f"array {found[0].place}: expected a data type that shardcodec has, got {found[0].foreign_type}"
        )
    return found[0]
