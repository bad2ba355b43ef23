# status.py - how far a job is
# SPDX-License-Identifier: MIT
"""`status`: finished shards of each array and part of a plan, from its ledgers. The new hierarchy is not read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

from ...arguments import checked
from ..convert.destination import NewTree
from ..convert.execute import is_finished, recorded_shards
from ..report import Record, Report
from .ledger import read_ledgers
from .plan_file import PlanFile

__all__ = ["ArrayProgress", "StatusReport", "status"]


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


@dataclass(frozen=True)
class StatusReport(Report):
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
    schema_version: ClassVar[int] = 1

    plan: str
    source: str
    destination: str
    n_parts: int
    parts_left: tuple[int, ...]
    n_shards: int
    n_finished: int
    n_damaged_lines: int
    n_foreign_ledgers: int
    is_complete: bool
    arrays: tuple[ArrayProgress, ...]


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
        found.path,
        found.source,
        found.destination,
        found.n_parts,
        left,
        plan.n_shards,
        sum(one.n_finished for one in arrays),
        lines.n_damaged,
        lines.n_foreign,
        is_finished(lines) and NewTree(found.destination, found.storage_options).is_complete,
        tuple(arrays),
    )
