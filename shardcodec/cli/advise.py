# advise.py - the command `shardcodec advise`
# SPDX-License-Identifier: MIT
"""`shardcodec advise`: shapes of shards and inner chunks for the way an array is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from typer import BadParameter

from ..readable import parse_nbytes
from ..tools.advise.access_pattern import parse_access
from ..tools.advise.advise import advise as propose
from ..tools.advise.report import AdviseReport, Bounds
from ..tools.advise.trials import try_proposal
from ..tools.hierarchy import find_arrays
from ..tools.inspect.inspect import chunk_shape_of_shards
from ..tools.monitor import Monitor
from ..tools.nodes import ZarrNodes
from ..tools.targets import ArrayTarget
from .exit_code import ExitCode
from .flags import Flag
from .tool_command import Run, command

__all__ = ["advise"]

N_TRIALS = 2

ROWS = {
    "target": Flag("An array; or give --shape and --dtype.", metavar="[PATH]"),
    "access": Flag(
        "A box that is read, such as '1,:,:', '1,64,64@10' or time=1; may be repeated.",
        metavar="BOX[@WEIGHT]",
        kind=list[str],
    ),
    "shape": Flag("Shape of a new array.", metavar="N,N,..."),
    "dtype": Flag("Data type of a new array.", metavar="TYPE"),
    "chunks": Flag(
        "Target of an inner chunk, decoded.", metavar="SIZE", parser=parse_nbytes, show_default="1MiB"
    ),
    "shards": Flag("Largest shard, decoded.", metavar="SIZE", parser=parse_nbytes, show_default="512MiB"),
    "max_files": Flag("Shards at most.", metavar="N", min=1),
    "measure": Flag("Measure the best two on a sample of PATH.", "--try"),
}


def _propose(
    target: str | None = None,
    *,
    access: Sequence[str],
    shape: str | None = None,
    dtype: str = "uint16",
    chunks: int = 1 << 20,
    shards: int = 512 << 20,
    max_files: int | None = None,
    measure: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    memory: int | None = None,
    threads: int | None = None,
    monitor: Monitor,
) -> AdviseReport:
    """Return proposals from the texts of the user."""
    if (target is None) == (shape is None):
        raise BadParameter("expected PATH or --shape, and not both")
    if measure and target is None:
        raise BadParameter("--try: expected PATH, an array with the data of the sample")
    bounds = Bounds(chunk_nbytes=chunks, shard_nbytes=shards, max_files=max_files, memory=memory)
    if target is None:
        sizes, kind, found, present = _shape(shape or ""), _dtype(dtype), None, None
        names: Sequence[str | None] = ()
    else:
        found = _one_array(target, storage_options)
        assert found.layout is not None
        sizes, kind = found.layout.shape, found.layout.dtype
        facts = ZarrNodes(found.folder).array("")
        names = () if facts is None else facts.names
        present = (
            (chunk_shape_of_shards(found.spec), found.spec.shard_shape) if found.spec is not None else None
        )
    accesses = [parse_access(text, sizes, names) for text in access]
    report = propose(sizes, kind, accesses, bounds, present=present)
    if measure and found is not None:
        trials = [
            try_proposal(found, one, accesses, threads=threads, monitor=monitor)
            for one in report.proposals[:N_TRIALS]
        ]
        report = replace(report, trials=tuple(trials))
    return report


@command(_propose, ROWS, output=("as_json",))
def advise(run: Run) -> ExitCode:
    """Propose shapes of shards and inner chunks for the way an array is read.

    For each proposal: requests, bytes and memory of an access, on average over all positions. --memory is that of one
    writer, which holds a shard.

    Example:

        shardcodec advise --shape 900,2048,2048 --access 1,:,: --max-files 99
    """
    run.report()
    return ExitCode.CLEAN


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


def _one_array(path: str, storage_options: Mapping[str, Any] | None) -> ArrayTarget:
    found = list(find_arrays(path, storage_options=storage_options))
    if len(found) != 1:
        names = ", ".join(one.name for one in found[:3])
        raise ValueError(f"expected a single array, got {len(found)} ({names}); give the path of one of them")
    if found[0].layout is None:
        raise ValueError(f"array {found[0].place}: {found[0].problem}")
    if found[0].foreign_type is not None:
        raise ValueError(
            f"array {found[0].place}: expected a data type that shardcodec has, got {found[0].foreign_type}"
        )
    return found[0]
