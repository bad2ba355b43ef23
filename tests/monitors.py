# monitors.py - monitors that stop a tool
# SPDX-License-Identifier: MIT
"""`StopAfter` stops a tool when some shards are done, as Ctrl-C does."""

from __future__ import annotations

from shardcodec.tools.monitor import Monitor, Stopped

__all__ = ["StopAfter"]


class StopAfter(Monitor):
    """Stops after some shards."""

    def __init__(self, n: int) -> None:
        self._n = n

    def advance(self, n: int = 1) -> None:
        self._n -= n

    def check(self) -> None:
        if self._n <= 0:
            raise Stopped
