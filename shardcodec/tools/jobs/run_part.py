# run_part.py - run one part of a plan
# SPDX-License-Identifier: MIT
"""`run_part`: one of the parts of a plan, in a process of its own, such as a task of a cluster's job array."""

from __future__ import annotations

import os
from dataclasses import replace

from ...arguments import checked
from ...option_sources import current_options
from ...options import check
from ..convert.convert_report import ConvertReport
from ..convert.execute import Execution, run_report
from ..monitor import Monitor
from .open_plan import open_plan
from .plan_file import PlanFile

__all__ = ["run_part"]


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
        job=os.path.abspath(found.path),
        owner=found.job,
        fail_fast=fail_fast,
    )
    totals, is_complete, n_damaged = execution.run(units, n_shards=n_shards, finishes=False)
    return run_report(plan, options, totals, n_shards, is_complete, n_damaged, ())
