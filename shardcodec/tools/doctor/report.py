# report.py - the results of doctor
# SPDX-License-Identifier: MIT
"""`DoctorReport` and its parts."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...readable import Fact
from ..report import Record, Report

__all__ = ["Check", "DoctorReport", "Status"]


class Status(enum.StrEnum):
    """The rating of a fact."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


# How the text shows them.
_MARKS = {Status.OK: " ", Status.NOTE: "-", Status.PROBLEM: "!"}


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

    target: str
    checks: tuple[Check, ...]

    def facts(self) -> Iterator[Fact]:
        """Yield the checks as names and texts, with a mark for problems and notes.

        Yields
        ------
        name, text : str
        """
        for one in self.checks:
            yield f"{_MARKS[one.status]} {one.name}", one.text
            if one.advice is not None:
                yield "  ", f"-> {one.advice}"

    def lines(self) -> Iterator[str]:
        """Yield the checks as lines of text.

        Yields
        ------
        str
        """
        for name, text in self.facts():
            yield f"{name:14} {text}"

    @property
    def n_problems(self) -> int:
        """Number of checks with a problem."""
        return sum(check.status is Status.PROBLEM for check in self.checks)
