# run_part.py - run one part of a stored plan; how far a job is
# SPDX-License-Identifier: MIT
"""Run one part of a stored plan; how far a job is.

`run_part`: one of the parts of a plan, in a process of its own, such as a task of a cluster's job array.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from ...arguments import checked
from ...option_sources import current_options
from ...options import check
from ...readable import Fact, format_count, format_nbytes, format_share
from ..capped import NAMED
from ..convert.report import ConvertReport, ReportOfJob
from ..convert.run_plan import Execution, left_of, run_report
from ..convert.write_units import is_finished, open_plan, recorded_shards
from ..monitor import Monitor, passes_on_signals
from ..new_hierarchy import NewHierarchy
from ..report import Record
from .job_files import PlanFile, read_ledgers

__all__ = [
    "ArrayProgress",
    "StatusReport",
    "run_part",
    "status",
]


@passes_on_signals
@checked
def run_part(
    file: str | os.PathLike[str],
    part: int,
    *,
    threads: int | None = None,
    fail_fast: bool = False,
    monitor: Monitor | None = None,
) -> ConvertReport:
    """Run one part of a plan. Parts may run at the same time, in any order, and more than once.

    Shards that a ledger shows to be finished, and that are stored as it says, are skipped. The part that finds all shards of
    the plan finished writes the metadata. Once they are written, a part writes nothing.

    Parameters
    ----------
    file : path-like
        The plan, from `plan_convert`.
    part : int
        Number of the part, from 0 on.
    threads : int, optional
        Number of threads, at most that of the plan. Default: the option ``threads``.
    fail_fast : bool
        Stop at the first shard that cannot be written.
    monitor : Monitor, optional
        Gets the progress, and may stop the work between two groups of shards.

    Returns
    -------
    ConvertReport
        Its counts are those of the part; ``is_complete`` is that of the whole plan.

    Raises
    ------
    ValueError
        The file is not a whole plan, or it has no such part.
    ConflictError
        The source has changed since the plan was made, or since a part was run.
    FileExistsError
        The destination has metadata or objects that are not of this plan.
    FileNotFoundError, SpecError, UnsupportedError, ImportError
        The source or the destination cannot be opened.

    Examples
    --------
    >>> report = tools.plan_convert("a.zarr", "b.zarr", "plan.json", parts=2, shards=(4, 3))
    >>> [tools.run_part("plan.json", part).is_complete for part in range(2)]
    [False, True]
    """
    found = PlanFile.read(file)
    plan = found.plan
    if not 0 <= part < found.n_parts:
        raise ValueError(f"part: expected a number from 0 to {found.n_parts - 1}, got {part}")
    options = current_options(argument=check({"threads": threads}))
    options = replace(options, threads=min(options.threads, plan.n_threads))  # the plan has their memory
    tree, new = open_plan(found, options)
    units = list(plan.part(part, found.n_parts))
    n_shards = sum(len(plan.arrays[one.array].coords(one.group)) for one in units)
    execution = Execution(
        plan,
        tree,
        new,
        options,
        monitor or Monitor(),
        fail_fast,
        job=os.path.abspath(found.path),
        owner=found.job,
    )
    totals, is_complete, n_damaged = execution.run(units, n_shards=n_shards, finishes=False)
    left = left_of(tree, plan, totals.others)
    return run_report(plan, options, totals, n_shards, is_complete, n_damaged, (), left)


# `status`: finished shards of each array and part of a plan, from its ledgers. The new hierarchy is not read.


@dataclass(frozen=True)
class ArrayProgress(Record):
    """How far one array is.

    Attributes
    ----------
    name : str
        Path in the hierarchy.
    n_shards, n_finished : int
        Shards of its grid, and those that a ledger shows.
    nbytes : int
        Size of the finished ones.
    """

    name: str
    n_shards: int
    n_finished: int
    nbytes: int

    def facts(self) -> Iterator[Fact]:
        """Yield the array as one line.

        Yields
        ------
        name, text : str
        """
        share = format_share(self.n_finished, self.n_shards)
        count = f"{self.n_finished} of {format_count(self.n_shards, 'shard')} ({share})"
        yield self.name or "array", f"{count}, {format_nbytes(self.nbytes)}"


@dataclass(frozen=True, kw_only=True)
class StatusReport(ReportOfJob):
    """How far a job is.

    Parameters
    ----------
    plan, source, destination : str
        Paths.
    n_parts : int
        Parts of the plan.
    parts_left : tuple of int
        Parts with shards that no ledger shows.
    n_shards, n_finished : int
        Shards of all arrays.
    n_damaged_lines, n_foreign_ledgers : int
        Damaged lines; ledgers of another plan, and entries that are not regular files. They show no finished shard.
    is_complete : bool
        The job has written the metadata of the new hierarchy, and they are there.
    arrays : tuple of ArrayProgress
    """

    schema: ClassVar[str] = "shardcodec.status"

    plan: str
    n_parts: int
    parts_left: tuple[int, ...]
    n_finished: int
    n_foreign_ledgers: int
    arrays: tuple[ArrayProgress, ...]

    def facts(self) -> Iterator[Fact]:
        """Yield the arrays, and what is left to do.

        Yields
        ------
        name, text : str
        """
        yield "", f"{self.source} to {self.destination}"
        for array in self.arrays:
            yield from array.facts()
        if self.n_damaged_lines or self.n_foreign_ledgers:
            damaged, foreign = self.n_damaged_lines, self.n_foreign_ledgers
            lines = f"left out: {format_count(damaged, 'damaged line')}"
            yield "", f"{lines}, not of this plan: {format_count(foreign, 'ledger')}"
        if self.parts_left:
            named = ",".join(map(str, self.parts_left[:NAMED]))
            more = ",..." if len(self.parts_left) > NAMED else ""
            yield "", f"parts left ({len(self.parts_left)} of {self.n_parts}): {named}{more}"
        if self.is_complete:
            yield "", "complete"
        elif not self.parts_left:
            yield "", "all shards are finished; run any part once more to write the metadata"


@checked
def status(file: str | os.PathLike[str]) -> StatusReport:
    """Say how far a job is.

    Parameters
    ----------
    file : path-like
        The plan.

    Returns
    -------
    StatusReport

    Raises
    ------
    FileNotFoundError, ValueError
        There is no such file, or it is not a plan.

    Examples
    --------
    >>> report = tools.plan_convert("a.zarr", "b.zarr", "plan.json", parts=2, shards=(4, 3))
    >>> report = tools.run_part("plan.json", 0)
    >>> state = tools.status("plan.json")
    >>> state.n_finished, state.n_shards
    (1, 2)
    """
    found = PlanFile.read(file)
    plan = found.plan
    lines = read_ledgers(found.path, plan.fingerprint)
    done = recorded_shards(lines)
    arrays = []
    for one in plan.arrays:
        records = [some[-1] for (name, _), some in done.items() if name == one.name]
        arrays.append(
            ArrayProgress(one.name, one.n_shards, len(records), sum(record.nbytes for record in records))
        )
    left = tuple(
        part
        for part in range(found.n_parts)
        if any(
            (plan.arrays[unit.array].name, at) not in done
            for unit in plan.part(part, found.n_parts)
            for at in plan.arrays[unit.array].coords(unit.group)
        )
    )
    return StatusReport(
        plan=found.path,
        source=found.source,
        destination=found.destination,
        n_parts=found.n_parts,
        parts_left=left,
        n_shards=plan.n_shards,
        n_finished=sum(one.n_finished for one in arrays),
        n_damaged_lines=lines.n_damaged,
        n_foreign_ledgers=lines.n_foreign,
        is_complete=is_finished(lines) and NewHierarchy(found.destination, found.storage_options).is_complete,
        arrays=tuple(arrays),
    )
