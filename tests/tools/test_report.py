# test_report.py - results as JSON, and sizes as text
# SPDX-License-Identifier: MIT
"""Records become plain JSON values; sizes are read and written as users do."""

from __future__ import annotations

import enum
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from shardcodec.readable import format_count, format_nbytes, format_share, parse_nbytes
from shardcodec.tools.report import Record, Report


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
