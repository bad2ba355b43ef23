# test_pictures.py - the pictures of the pages show what the tables and the code say today
# SPDX-License-Identifier: MIT
"""`scripts/pictures.py` makes docs/pictures. Charts are compared as a whole, drawings of matplotlib by their texts."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from helpers import quiet

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts/pictures.py"))
STORED = {path.name: path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs/pictures").glob("*"))}
CHARTS: dict[str, str] = SCRIPT["charts"]()
DRAWINGS = sorted(set(STORED) - set(CHARTS))


@pytest.mark.parametrize("name", CHARTS)
def test_chart_shows_the_numbers_of_its_table(name: str) -> None:
    assert STORED.get(name) == CHARTS[name], "run: python scripts/pictures.py --charts"


@pytest.mark.slow
def test_drawings_show_what_is_stored() -> None:
    for package in ("matplotlib", "nibabel"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    with quiet():
        made: dict[str, str] = SCRIPT["drawings"]()
    assert sorted(made) == DRAWINGS
    for name, svg in made.items():
        assert SCRIPT["texts"](STORED[name]) == SCRIPT["texts"](svg), "run: python scripts/pictures.py"


@pytest.mark.parametrize("name", STORED)
def test_picture_has_the_colours_of_both_themes(name: str) -> None:
    svg = STORED[name]
    ElementTree.fromstring(svg)
    assert "prefers-color-scheme: dark" in svg
    # Ink of a fixed colour cannot be read on one of the two backgrounds.
    assert not re.findall(r"<text[^>]*fill: #(?:000000|ffffff)", svg)


def test_each_picture_is_on_a_page() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    assert set(re.findall(r"!\[[^]]+\]\(pictures/([\w-]+\.svg)\)", pages)) == set(STORED)


@pytest.mark.parametrize(
    ("label", "values", "rows"),
    [
        ("read, raw", {"a": "**64**", "b": "1,400 (23 % larger)", "c": ""}, [("read, raw", {"a": 64.0, "b": 1400.0})]),
        ("read / write", {"a": "9.0 / **11**"}, [("read", {"a": 9.0}), ("write", {"a": 11.0})]),
        ("plane (axis 0 / 1), zstd", {"a": "1 / 2"}, [("plane (axis 0), zstd", {"a": 1.0}), ("plane (axis 1), zstd", {"a": 2.0})]),
    ],
)  # fmt: skip
def test_cells_of_tables_are_read(label: str, values: dict[str, str], rows: list[Any]) -> None:
    line = f"| {label} | {' | '.join(values.values())} |"
    found, *cells = SCRIPT["cells"](line)
    assert SCRIPT["split_row"](found, dict(zip(values, cells, strict=True))) == rows
