# finding_line.py - a finding as one line of text
# SPDX-License-Identifier: MIT
"""`finding_line`, for the commands that report damage."""

from __future__ import annotations

from ..tools.report import Finding

__all__ = ["finding_line"]


def finding_line(finding: Finding) -> str:
    """Return a finding as one line of text."""
    place = finding.shard
    if finding.chunk is not None:
        place += f", inner chunk {finding.chunk}" + "".join(f" > {one}" for one in finding.nested)
    if finding.offset is not None:
        place += f", {finding.nbytes} bytes at offset {finding.offset}"
    notes = {True: " (recoverable)", False: " (needs a copy)", None: ""}
    sign = "warning: " if finding.is_warning else ""
    return f"{sign}{finding.kind.value}: {place}: {finding.detail}{notes[finding.recoverable]}"
