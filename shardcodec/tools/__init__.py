# __init__.py - the tools
# SPDX-License-Identifier: MIT
"""Tools over arrays, groups and single shards. Their results are records with `to_json`; the command `shardcodec` prints them."""

from .access_pattern import AccessPattern, parse_access
from .advise import advise
from .advise_report import AdviseReport, Bounds
from .array_report import InspectReport
from .check import DoctorReport
from .compact import compact
from .compact_report import CompactReport
from .convert.convert import convert, plan_convert
from .convert.convert_report import ConvertReport
from .convert.estimate import Prices
from .doctor import doctor
from .inspect import inspect
from .jobs.run_part import run_part
from .jobs.status import StatusReport, status
from .repair import repair
from .repair_report import RepairReport
from .verify import verify
from .verify_report import VerifyReport
from .write_regions import WritePlan, plan_writes

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
