# test_report.py - results as JSON, and sizes as text
# SPDX-License-Identifier: MIT
"""Records become plain JSON values; sizes are read and written as users do.

A change of a record must change the page, and the version of the schema if a member is gone.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from shardcodec.readable import format_count, format_nbytes, format_share, parse_nbytes
from shardcodec.tools.advise.report import AccessCost, AdviseReport, Proposal, Trial
from shardcodec.tools.convert.report import ConvertedArray, ConvertReport, Cost
from shardcodec.tools.doctor.report import Check, DoctorReport
from shardcodec.tools.inspect.array_report import ArrayReport, InspectReport, LayoutRecord, StoredRecord
from shardcodec.tools.jobs.run_part import StatusReport
from shardcodec.tools.report import Record, Report
from shardcodec.tools.write_regions import WritePlan


@dataclass(frozen=True)
class Part(Record):
    name: str
    coords: tuple[int, ...]


@dataclass(frozen=True)
class Whole(Report):
    schema: ClassVar[str] = "test.whole"
    schema_version: ClassVar[int] = 3
    parts: tuple[Part, ...]
    facts: dict[Any, Any]


class Color(enum.StrEnum):
    RED = "red"


def test_report_is_json_with_its_schema() -> None:
    facts = {
        1: np.uint64(2**63), "array": np.arange(2), "nan": math.nan, "infinite": np.float64("inf"),
        "path": Path("a/b"), "kind": Color.RED, "none": None, "flag": np.bool_(True),
    }  # fmt: skip
    found = Whole((Part("a", (1, 2)),), facts).to_json()
    assert found == {
        "schema": "test.whole",
        "schema_version": 3,
        "parts": [{"name": "a", "coords": [1, 2]}],
        "facts": {
            "1": 2**63, "array": [0, 1], "nan": None, "infinite": None,
            "path": "a/b", "kind": "red", "none": None, "flag": True,
        },
    }  # fmt: skip
    assert json.loads(json.dumps(found, allow_nan=False)) == found


@pytest.mark.parametrize(("text", "nbytes"), [
    ("1", 1), ("512MiB", 512 << 20), ("4 GB", 4 * 10**9), ("1.5K", 1536), ("2tib", 2 << 40), ("10B", 10),
    (7, 7),
])  # fmt: skip
def test_sizes_are_parsed(text: str, nbytes: int) -> None:
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "0", "4 XB", "1e3", "nan", "0.1"])
def test_wrong_sizes_are_told(text: str) -> None:
    with pytest.raises(ValueError, match="expected a size such as 512MiB"):
        parse_nbytes(text)


@pytest.mark.parametrize(("nbytes", "text"), [
    (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (1023 << 10, "1023 KiB"), (5 << 40, "5 TiB"),
    (9000 << 50, "9000 PiB"),
])  # fmt: skip
def test_sizes_for_readers(nbytes: int, text: str) -> None:
    assert format_nbytes(nbytes) == text


def test_counts() -> None:
    shown = [format_count(n, "shard") for n in (0, 1, 2)]
    assert shown == ["0 shards", "1 shard", "2 shards"]
    assert (
        format_count(1000, "file", ",") == "1,000 files"
        and format_count(1.5, "request", ".3g") == "1.5 requests"
    )


def test_shares() -> None:
    assert format_share(1, 8) == "12.5 %" and format_share(0, 0) == "-"


PAGE = (Path(__file__).resolve().parents[2] / "docs/tools.md").read_text(encoding="utf-8")


def members_after(heading: str) -> list[str]:
    """Return the members in the first table behind a heading."""
    _, found, rest = PAGE.partition(heading)
    assert found, f"docs/tools.md has no {heading!r}"
    rows = re.search(r"\| member \| value \|\n\|---\|---\|\n((?:\|.*\n)+)", rest)
    assert rows is not None
    return [name for row in rows[1].splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]


@pytest.mark.parametrize(("record", "heading"), [
    (InspectReport, '### Schema `"shardcodec.inspect"`, version 1'),
    (ArrayReport, '### Schema `"shardcodec.inspect.array"`, version 1'),
    (LayoutRecord, "Members of `layout`:"), (StoredRecord, "Members of `stored`:"),
    (ConvertReport, '### Schema `"shardcodec.convert"`, version 1'),
    (ConvertedArray, '### Schema `"shardcodec.convert.array"`, version 1'),
    (Cost, "Members of `cost`:"),
    (StatusReport, '### Schema `"shardcodec.status"`, version 1'),
    (DoctorReport, '### Schema `"shardcodec.doctor"`, version 1'),
    (Check, "Members of a check:"),
    (AdviseReport, '### Schema `"shardcodec.advise"`, version 1'),
    (Proposal, "Members of a proposal:"), (AccessCost, "Members of an access:"),
    (Trial, "Members of a trial:"),
    (WritePlan, '### Schema `"shardcodec.plan_writes"`, version 1'),
])  # fmt: skip
def test_page_has_every_member(record: type[Record], heading: str) -> None:
    assert dataclasses.is_dataclass(record)
    fields = [field.name for field in dataclasses.fields(record)]
    views = ["left", "left_arrays", "notes"] if record is ConvertReport else []  # of the one list in `others`
    assert sorted(members_after(heading)) == sorted([*fields, *views])


@pytest.mark.parametrize("report", [
    InspectReport, ArrayReport, ConvertReport, ConvertedArray, StatusReport, DoctorReport, AdviseReport,
    WritePlan,
])  # fmt: skip
def test_page_has_the_version(report: type) -> None:
    assert f'### Schema `"{report.schema}"`, version {report.schema_version}\n' in PAGE  # type: ignore[attr-defined]
