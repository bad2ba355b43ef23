# check.py - the results of `doctor`
# SPDX-License-Identifier: MIT
"""`Check`: one fact about a place or a process, with its status and one line of advice."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from .report import Record, Report

__all__ = ["Check", "DoctorReport", "Status"]


class Status(enum.StrEnum):
    """The rating of a fact."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True)
class Check(Record):
    """One fact.

    Attributes
    ----------
    name : str
        What was looked at, such as ``"locks"``.
    status : Status
        ``ok``; ``note``: worth knowing; ``problem``: data or work is at risk.
    text : str
        What was found.
    advice : str or None
        One line: what to do.
    details : mapping
        The same as numbers and names.
    """

    name: str
    status: Status
    text: str
    advice: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DoctorReport(Report):
    """The result of `doctor`.

    Parameters
    ----------
    target : str
        The path that was given.
    checks : tuple of Check
        The facts.
    """

    schema: ClassVar[str] = "shardcodec.doctor"
    schema_version: ClassVar[int] = 1

    target: str
    checks: tuple[Check, ...]

    @property
    def n_problems(self) -> int:
        """Number of checks with a problem."""
        return sum(one.status is Status.PROBLEM for one in self.checks)
