# __init__.py - the tools
# SPDX-License-Identifier: MIT
"""Tools over arrays, groups and single shards. Their results are records with `to_json`; the command `shardcodec` prints them."""

from .access_pattern import AccessPattern, parse_access
from .advise import advise
from .advise_report import AdviseReport, Bounds
from .array_report import InspectReport
from .check import DoctorReport
from .doctor import doctor
from .inspect import inspect

__all__ = [
    "AccessPattern",
    "AdviseReport",
    "Bounds",
    "DoctorReport",
    "InspectReport",
    "advise",
    "doctor",
    "inspect",
    "parse_access",
]
