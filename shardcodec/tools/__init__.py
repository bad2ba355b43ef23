# __init__.py - the tools
# SPDX-License-Identifier: MIT
"""Tools over arrays, groups and single shards. Their results are records with `to_json`; the command `shardcodec` prints them."""

from .array_report import InspectReport
from .inspect import inspect
from .repair import repair
from .repair_report import RepairReport
from .verify import verify
from .verify_report import VerifyReport

__all__ = ["InspectReport", "RepairReport", "VerifyReport", "inspect", "repair", "verify"]
