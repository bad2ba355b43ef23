# __init__.py - the tools
# SPDX-License-Identifier: MIT
"""Tools over arrays, groups and single shards. Their results are records with `to_json`; the command `shardcodec` prints them."""

from ..native import require
from .advise import AccessPattern, AdviseReport, Bounds, advise, parse_access
from .array_report import InspectReport
from .compact import CompactReport, compact
from .convert.convert import convert, plan_convert
from .convert.plan import Prices
from .convert.report import ConvertReport
from .doctor import DoctorReport, doctor
from .inspect import inspect
from .jobs.run_part import StatusReport, run_part, status
from .repair import repair
from .shard_repair import RepairReport
from .verify import VerifyReport, verify
from .write_regions import WritePlan, plan_writes

require()  # without the extension no tool works, and the error says what to type

__all__ = [
    "AccessPattern",
    "AdviseReport",
    "Bounds",
    "CompactReport",
    "ConvertReport",
    "DoctorReport",
    "InspectReport",
    "Prices",
    "RepairReport",
    "StatusReport",
    "VerifyReport",
    "WritePlan",
    "advise",
    "compact",
    "convert",
    "doctor",
    "inspect",
    "parse_access",
    "plan_convert",
    "plan_writes",
    "repair",
    "run_part",
    "status",
    "verify",
]
