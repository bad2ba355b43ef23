# finding_list.py - the findings of one shard while it is checked
# SPDX-License-Identifier: MIT
"""`FindingList` collects findings of one shard, and counts those that are too many to list."""

from __future__ import annotations

from typing import Any

from .findings import MOST_FINDINGS, WARNINGS, Finding, FindingKind

__all__ = ["FindingList"]


class FindingList:
    """Findings of one shard.

    Parameters
    ----------
    array, shard : str
        Names for the findings.
    """

    def __init__(self, array: str, shard: str) -> None:
        self._array, self.shard = array, shard
        self._listed: list[Finding] = []
        self._n_errors = 0

    def add(
        self,
        kind: FindingKind,
        detail: str,
        offset: int | None = None,
        nbytes: int | None = None,
        **more: Any,
    ) -> None:
        """Add a finding; `more` has further fields of `Finding`."""
        is_warning = kind in WARNINGS
        self._n_errors += not is_warning
        if len(self._listed) < MOST_FINDINGS:
            if is_warning:
                more["recoverable"] = None
            self._listed.append(
                Finding(kind, self.shard, detail, self._array, offset=offset, nbytes=nbytes, **more)
            )

    def result(self) -> tuple[tuple[Finding, ...], int]:
        """Return the listed findings, and the number of all that are no warnings."""
        return tuple(self._listed), self._n_errors
