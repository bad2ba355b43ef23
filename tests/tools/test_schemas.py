# test_schemas.py - docs/tools.md documents each member of the JSON
# SPDX-License-Identifier: MIT
"""A change of a record must change the page, and the version of the schema if a member is gone."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from shardcodec.tools.advise.report import AccessCost, AdviseReport, Proposal, Trial
from shardcodec.tools.convert.report import ConvertedArray, ConvertReport, Cost
from shardcodec.tools.doctor.report import Check, DoctorReport
from shardcodec.tools.inspect.array_report import ArrayReport, InspectReport, LayoutRecord, StoredRecord
from shardcodec.tools.jobs.run_part import StatusReport
from shardcodec.tools.report import Record
from shardcodec.tools.write_regions import WritePlan

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
