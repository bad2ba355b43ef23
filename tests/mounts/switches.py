# switches.py - the faults of a mount: switches that a test sets, and the calls that fail
# SPDX-License-Identifier: MIT

from __future__ import annotations

import fnmatch
import os
import time
from collections import Counter
from typing import Any

from nodes import Node

SWITCHES: dict[str, Any] = {
    "write_back": False,  # data and size reach the backing folder when a descriptor is closed, or by fsync
    "entry_seconds": 0.0,  # how long the kernel uses a name, or the absence of a name, without asking
    "attr_seconds": 0.0,  # how long it uses size and times without asking
    "settle_seconds": 0.0,  # how long after a write the times are those of the client, before those of the server
    "stale_open": 0,  # errno for opening a file that another mount has removed, by a name that is still cached
    "stale_handles": False,  # ESTALE for every use of an open file that another mount has removed
    "exchange": False,  # RENAME_EXCHANGE works
    "tmpfile": False,  # O_TMPFILE works
}


class Switches:
    """The switches, delays and failures of one mount, and counters of its calls."""

    def __init__(self) -> None:
        self.values = dict(SWITCHES)
        self.rules: list[dict[str, Any]] = []
        self.delays: dict[str, float] = {}
        self.calls: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def command(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Do what a test asks for; return the counters."""
        self.values |= asked.get("set", {})
        self.delays |= asked.get("delay", {})
        if "fail" in asked:
            self.rules.append(asked["fail"])
        if asked.get("heal"):
            self.rules.clear()
        return {"calls": self.calls, "failed": self.failed}

    def begin(self, call: str, node: Node | None) -> None:
        """Count a call, delay it, and raise the error that a test has asked for."""
        self.calls[call] += 1
        time.sleep(self.delays.get(call, 0))
        name = os.fsdecode(node.name) if node else ""
        for rule in self.rules:
            if rule["call"] != call or not fnmatch.fnmatch(name, rule["name"]):
                continue
            if call == "flush" and not (node and node.is_dirty):
                continue  # nothing was written through this descriptor
            rule["after"] -= 1
            if rule["after"] >= 0 or rule["times"] == 0:
                continue
            if rule["times"] is not None:
                rule["times"] -= 1
            self.failed[call] += 1
            if call in ("flush", "fsync") and node:
                node.drop()
            raise OSError(rule["errno"], call)
