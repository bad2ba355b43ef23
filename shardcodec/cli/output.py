# output.py - the report of a command on standard output
# SPDX-License-Identifier: MIT
"""`Output`: prints results as text, as one JSON document, or as one JSON document a line."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable

from typer import BadParameter

from ..tools.report import Report

__all__ = ["Output", "printable"]


# Control characters, which would move the cursor of a terminal or change its colours.
_CONTROLS = {n: repr(chr(n))[1:-1] for n in (*range(0x20), *range(0x7F, 0xA0))}


def printable(text: str) -> str:
    """Return a line for readers, with escapes for the control characters that names may have."""
    return text.translate(_CONTROLS)


class Output:
    """Prints results in the form that the user chose.

    Parameters
    ----------
    as_json : bool
        One JSON document at the end.
    as_lines : bool
        One JSON document a line: each part as soon as it is known, then the report.
    """

    def __init__(self, *, as_json: bool, as_lines: bool) -> None:
        if as_json and as_lines:
            raise BadParameter("expected one of --json and --jsonl, got both")
        self._as_json = as_json
        self._as_lines = as_lines

    @property
    def keeps_parts(self) -> bool:
        """True if the report at the end has all parts, because none has a line of its own."""
        return self._as_json

    @property
    def is_text(self) -> bool:
        """True if the output is for readers."""
        return not (self._as_json or self._as_lines)

    def part(self, part: Report) -> None:
        """Print a part of the result, if each part has a line."""
        if self._as_lines:
            self._write(json.dumps(part.to_json()))

    def text(self, lines: Iterable[str]) -> None:
        """Print lines, if the output is for readers."""
        if self.is_text:
            for line in lines:
                self._write(printable(line))

    def end(self, report: Report) -> None:
        """Print the whole result, if the output is JSON."""
        if not self.is_text:
            self._write(json.dumps(report.to_json(), indent=2 if self._as_json else None))

    def _write(self, line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
