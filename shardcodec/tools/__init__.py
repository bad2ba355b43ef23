# __init__.py - the tools
# SPDX-License-Identifier: MIT
"""Tools over arrays, groups and single shards. Their results are records with `to_json`; the command `shardcodec` prints them."""

from ..native import require
from .advise.access_pattern import AccessPattern, parse_access
from .advise.advise import advise
from .advise.report import AdviseReport, Bounds
from .compact import compact
from .compact_report import CompactReport
from .convert.convert import convert, plan_convert
from .convert.report import ConvertReport
from .doctor.doctor import doctor
from .doctor.report import DoctorReport
from .inspect.array_report import InspectReport
from .inspect.inspect import inspect
from .jobs.run_part import StatusReport, run_part, status
from .repair.repair import repair
from .repair.report import RepairReport
from .verify.verify import VerifyReport, verify
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
